"""Best-effort errands about runs: figures and check-ins go out in order per job, and never hold anything up."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from cronstable.core.clock import Seconds

LIMIT = 2000
"""Errands that wait, over all jobs; more are dropped and counted. Many jobs can start at once and have several."""
ABREAST = 50
"""Errands under way at a time: fewer than the HTTP client has connections."""

Errand = Callable[[], Awaitable[None]]


class Courier:
    """Runs errands: those of one key one after the other, those of different keys side by side.

    An errand has ``deadline`` seconds. What goes wrong with it is logged once until one of the same key goes well
    again, with the name of the error alone: the text of an error may repeat an address that is a secret.
    """

    def __init__(self, what: str, *, log: logging.Logger, deadline: Seconds, limit: int = LIMIT) -> None:
        self._what = what
        self._log = log
        self._deadline = deadline
        self._limit = limit
        self._tasks: TaskGroup | None = None
        self._queues: dict[str, deque[Errand]] = {}
        self._waiting = 0
        self._failing: set[str] = set()
        self._idle = anyio.Event()
        self._abreast = anyio.Semaphore(ABREAST)
        self.dropped = 0

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group errands live in; before that, none are taken."""
        self._tasks = tasks

    def post(self, key: str, errand: Errand) -> None:
        """Take an errand for ``key``; returns at once."""
        if self._tasks is None:
            return
        if self._waiting >= self._limit:
            self.dropped += 1
            if self.dropped == 1 or self.dropped % LIMIT == 0:
                self._log.warning("%s: %d dropped, %d wait already", self._what, self.dropped, self._waiting)
            return
        if self._waiting == 0:
            self._idle = anyio.Event()
        self._waiting += 1
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(errand)
            return
        self._queues[key] = deque((errand,))
        self._tasks.start_soon(self._work, key)

    async def idle(self) -> None:
        """Return once nothing waits."""
        if self._waiting:
            await self._idle.wait()

    async def _work(self, key: str) -> None:
        queue = self._queues[key]
        while queue:
            errand = queue.popleft()
            try:
                async with self._abreast:
                    with anyio.fail_after(self._deadline):
                        await errand()
                self._failing.discard(key)
            except Exception as error:  # noqa: BLE001 - best effort: a run must not feel it
                self._complain(key, error)
            self._waiting -= 1
        del self._queues[key]
        if self._waiting == 0:
            self._idle.set()

    def _complain(self, key: str, error: Exception) -> None:
        level = logging.DEBUG if key in self._failing else logging.WARNING
        self._failing.add(key)
        self._log.log(level, "%s of job %s: %s", self._what, key, _name(error))


class Refusal(Exception):
    """An errand was answered with a no; the text names no secret and is logged."""


def _name(error: Exception) -> str:
    if isinstance(error, Refusal):
        return str(error)
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
