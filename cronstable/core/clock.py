"""Time as the core sees it: two readings, taken by somebody else."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

Seconds: TypeAlias = float
"""A duration in seconds."""

EpochSeconds: TypeAlias = int
"""A scheduled time T: whole seconds since the Unix epoch, UTC."""


class Instant(NamedTuple):
    """One reading of both clocks of a node. Taken some ten times a run, so it is the cheapest value there is.

    ``wall``: seconds since the Unix epoch, UTC; it may step in either direction.
    ``boot``: seconds on a clock that never steps and counts suspend (CLOCK_BOOTTIME where there is one);
    its origin means nothing, and readings of two hosts cannot be compared.
    """

    wall: float
    boot: float


def until_next(every: Seconds, now: Instant) -> Seconds:
    """Seconds to the next whole multiple of ``every`` on the boot clock: more than 0, at most ``every``.

    For looks that have no time of their own. All of them fall together, so that an idle daemon wakes up once for all.
    """
    return every - now.boot % every


class Clock(Protocol):
    """The only source of time. The daemon has a real one, tests a virtual one."""

    def now(self) -> Instant:
        """Read both clocks at once."""
        ...

    async def sleep(self, seconds: Seconds) -> None:
        """Return after at least ``seconds`` have passed on the boot clock (negative: at once)."""
        ...
