"""Blocking calls off the event loop, in threads that a hung call cannot take down with it."""

from __future__ import annotations

import asyncio
import queue
import threading
from _thread import start_new_thread
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from cronstable.core.clock import Seconds

T = TypeVar("T")

WORKERS_PER_LANE = 2
IDLE_EXIT: Seconds = 10.0
ALONE: Final = frozenset({"definitions"})
"""Lanes with one worker: calls that take long, which anybody may ask for again and again."""
RARE: Final = frozenset({"config"})
"""Lanes that are used once a minute: a thread that waited there for more would only wake up to end."""


@dataclass(slots=True, eq=False)
class _Call:
    """``run`` None: nobody waits any more. What it held is let go, as it may stand behind calls that hang for days."""

    run: Callable[[], None] | None


class _Lane:
    """A few daemon threads serving one queue. They end after a while without work."""

    def __init__(self, workers: int, linger: Seconds) -> None:
        self._workers = workers
        self._linger = linger
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._alive = 0
        self._idle = 0

    def submit(self, call: _Call) -> None:
        """Raises ``TimeoutError`` when no thread can be started, and none of before is there to come to it."""
        with self._lock:
            self._calls.put(call)
            if self._idle < self._calls.qsize() and self._alive < self._workers:
                # Nobody joins it: a call that hangs in the kernel must not keep the process from exiting. And nobody
                # waits until it runs, as ``threading`` does.
                try:
                    start_new_thread(self._work, ())
                except RuntimeError as error:
                    # A limit of the machine that may be lifted again. A thread that is there comes to the call itself;
                    # one ends only when nothing is queued, so that without any this call is alone in the queue.
                    if not self._alive:
                        self._calls.get_nowait()
                        raise TimeoutError(str(error)) from error
                else:
                    self._alive += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                call: _Call | None = self._calls.get(timeout=self._linger)
            except queue.Empty:
                call = None
            with self._lock:
                self._idle -= 1
                if call is None:
                    if not self._calls.empty():
                        continue
                    self._alive -= 1
                    return
            run = call.run
            if run is not None:
                run()
            # Not until the next call comes: that may be long.
            del call, run


class ThreadLanes:
    """Implements ``cronstable.api.Threads``."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    async def run(self, call: Callable[[], T], *, timeout: Seconds, lane: str = "default") -> T:
        """Run ``call`` in a thread of ``lane``; TimeoutError after ``timeout`` seconds, the call then abandoned.

        Also when no thread can be started for it, at once: whoever calls is prepared for a call that does not answer.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is handed to the waiting task, whatever it is
                _post(loop, future, None, error)
            else:
                _post(loop, future, result, None)

        entry = _Call(work)
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(1 if lane in ALONE else WORKERS_PER_LANE, 0.0 if lane in RARE else IDLE_EXIT)
        self._lanes[lane].submit(entry)
        try:
            with anyio.fail_after(timeout):
                return await future
        finally:
            entry.run = None


def _post(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], result: T | None, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop is closed: the daemon is gone and nobody waits for this answer any more.
        return
