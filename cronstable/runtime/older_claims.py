"""Missed occurrences that are older than the sweep's window and are claimed all the same (claims.md 15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from cronstable.core.claim_desk import Key
from cronstable.core.decision import Decision

Over: TypeAlias = Callable[[Decision | None], None]
"""Called once: when the run is over, or with what refused it; a DEFER may be asked for again."""


class OlderClaims(Mapping[Key, Over]):
    """Those that wait to be started. Claimed as attempt 1: attempt 0 of what lies below the floor counts as claimed."""

    def __init__(self) -> None:
        self._waiting: dict[Key, Over] = {}
        self._running: dict[str, Over] = {}

    def __getitem__(self, key: Key) -> Over:
        return self._waiting[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, over: Over) -> None:
        """It is to be claimed and started."""
        self._waiting[key] = over

    def begun(self, key: Key, run_id: str) -> None:
        """Its process is about to be made."""
        if (over := self._waiting.pop(key, None)) is not None:
            self._running[run_id] = over

    def end(self, key: Key, refusal: Decision | None) -> bool:
        """It is not waited for any more; True when it was."""
        over = self._waiting.pop(key, None)
        if over is not None:
            over(refusal)
        return over is not None

    def ended(self, run_id: str, refusal: Decision | None) -> bool:
        """The run is over; True when it was one of these."""
        over = self._running.pop(run_id, None)
        if over is not None:
            over(refusal)
        return over is not None
