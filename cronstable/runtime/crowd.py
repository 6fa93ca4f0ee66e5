"""Tasks by the hundred: what runs live in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Protocol

import anyio


class Starter(Protocol):
    """Whoever starts tasks: a crowd, or a task group of anyio."""

    def start_soon(self, call: Callable[..., Coroutine[object, object, None]], /, *arguments: object) -> object:
        """Start ``call(*arguments)`` in a task of its own, some time soon."""
        ...


class Crowd:
    """Tasks of which nobody asks for a single one. Made by ``crowd()``.

    A task group of anyio makes a handle, a cancel scope and an event for each task, which is four fifths of what a
    task costs it, and a fifth of what a run that only waits for its command costs the daemon (decision 0037).
    """

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.cancel_scope = scope
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        self._open = True
        self._news = anyio.Event()

    def start_soon(self, call: Callable[..., Coroutine[object, object, None]], /, *arguments: object) -> None:
        """Start ``call(*arguments)`` in a task of its own, some time soon."""
        if not self._open:
            raise RuntimeError("the crowd is closed, it takes no more tasks")
        task = self._loop.create_task(call(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._errors.append(error)
        if self._errors or not self._tasks:
            self._news.set()

    async def keep(self) -> None:
        """Return once the crowd is closed and empty. Whatever else ends this ends every task first."""
        try:
            while (self._open or self._tasks) and not self._errors:
                self._news = anyio.Event()
                await self._news.wait()
        finally:
            self._open = False
            for task in self._tasks:
                task.cancel()
            # Bounded by what a run may take to end its processes (``runner._Run._leave``).
            with anyio.CancelScope(shield=True):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        if self._errors:
            raise BaseExceptionGroup("unhandled errors in a crowd", self._errors)

    def close(self) -> None:
        """Take no more tasks; those that live go on to their ends."""
        self._open = False
        self._news.set()


@asynccontextmanager
async def crowd() -> AsyncIterator[Crowd]:
    """Tasks that live inside the block, like those of a task group.

    Leaving the block waits for them all. Cancelling its ``cancel_scope``, or whatever is around it, cancels each task
    once and waits for it; so does an error that leaves the block or a task, and it is raised when they are gone.
    """
    async with anyio.create_task_group() as around:
        members = Crowd(around.cancel_scope)
        around.start_soon(members.keep)
        yield members
        members.close()
