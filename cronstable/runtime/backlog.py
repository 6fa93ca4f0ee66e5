"""What can wait while runs start: a start that waits is late, an end that waits is only told later."""

from __future__ import annotations

from collections.abc import Callable


class Backlog:
    """Work about jobs, done at once, or held back for a moment and then done in the order in which it came."""

    def __init__(self) -> None:
        self._holds = False
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    def do(self, job: str, work: Callable[[], None]) -> None:
        """Do ``work``, now or once nothing is held back any more."""
        if self._holds:
            self._waiting.setdefault(job, []).append(work)
        else:
            work()

    def hold(self) -> None:
        """Hold back what comes. Whoever calls this calls ``release`` soon, whatever happens."""
        self._holds = True

    def release(self) -> None:
        """Do all that was held back, and from now on everything at once."""
        self._holds = False
        while self._waiting:
            self.settle(next(iter(self._waiting)))

    def settle(self, job: str) -> None:
        """Do what was held back about one job: somebody is about to decide about it."""
        while waiting := self._waiting.get(job):
            # One after the other: should one break, the rest is still there for the next who asks.
            work = waiting.pop(0)
            if not waiting:
                del self._waiting[job]
            work()
