"""Short pieces of work beside everything else, which the daemon's stop waits for, though not for long."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from cronstable.core.clock import Seconds

Chore: TypeAlias = Callable[[], Coroutine[None, None, None]]


class Chores:
    """Starts them, and knows when none is left."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None
        self._open = 0
        self._done = anyio.Event()

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group they live in; once, before the first one. What came before is not done."""
        self._tasks = tasks

    def start(self, chore: Chore) -> None:
        """Do it some time soon."""
        if self._tasks is not None:
            self._open += 1
            self._tasks.start_soon(self._do, chore)

    async def _do(self, chore: Chore) -> None:
        try:
            await chore()
        finally:
            self._open -= 1
            if self._open == 0:
                self._done.set()

    async def idle(self, within: Seconds) -> None:
        """Return when none is left, or after ``within`` seconds."""
        with anyio.move_on_after(within, shield=True):
            while self._open:
                self._done = anyio.Event()
                await self._done.wait()
