"""Calls of the state store: counted, timed, and held to ``maxOpsPerSecond``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cronstable.core.clock import Clock, Seconds
from cronstable.plugin.protocols import OpCount

BURST: Seconds = 1.0
"""What was not used of the last second may be used at once."""


@dataclass(slots=True)
class _Tally:
    count: int = 0
    errors: int = 0
    seconds: float = 0.0


class Operations:
    """Counts per operation since the start of the daemon."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}
        self.inflight = 0
        self.peak = 0

    def begin(self) -> None:
        """A call is about to be made."""
        self.inflight += 1
        self.peak = max(self.peak, self.inflight)

    def end(self, op: str, seconds: Seconds, *, failed: bool) -> None:
        """It is over."""
        self.inflight -= 1
        tally = self._tallies.setdefault(op, _Tally())
        tally.count += 1
        tally.errors += failed
        tally.seconds += seconds

    def counts(self) -> Mapping[str, OpCount]:
        """By operation, as they are now."""
        return MappingProxyType({op: OpCount(t.count, t.errors, t.seconds) for op, t in self._tallies.items()})


class Throttle:
    """A bucket of tokens: ``rate`` operations a second and the burst of one second. ``rate`` 0: no bound."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = float("-inf")
        self.rate = 0.0
        self.throttled = 0
        self.waited: Seconds = 0.0

    async def wait(self) -> None:
        """Return when one more operation may be made."""
        if self.rate <= 0:
            return
        now = self._clock.now().boot
        due = max(self._due, now)
        self._due = due + 1 / self.rate
        delay = due - now - BURST
        if delay > 0:
            self.throttled += 1
            self.waited += delay
            await self._clock.sleep(delay)
