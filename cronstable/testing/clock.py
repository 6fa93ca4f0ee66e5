"""Time under a test's control: a clock whose wall and boot readings are set, and an event loop that skips its waits."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from cronstable.core.clock import Instant, Seconds

T = TypeVar("T")


class Deadlock(AssertionError):
    """Every task waits for something that can never happen."""


class _SkippingSelector(selectors.BaseSelector):
    """Instead of waiting for a timeout, moves the loop's time past it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("all tasks wait and no timer is set")
            self.now += max(0.0, timeout)
        return ready

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Any:
        return self._real.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves only when nothing can run, and then at once to the next timer.

    Threads are invisible to it: code under test must not wait for one (``FakeHost`` runs blocking calls in line).
    """

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._skipping.now


def run_virtual(function: Callable[[], Awaitable[T]]) -> T:
    """Run ``await function()`` on a ``VirtualLoop``. Hours pass in milliseconds; ``Deadlock`` when all tasks wait."""

    async def main() -> T:
        return await function()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


class VirtualClock:
    """A ``Clock`` that a test sets. Wall and boot readings are independent.

    ``time``: what drives it. Without, it stands still until ``advance``. ``VirtualClock.of_loop()`` follows the running
    loop instead, so that inside ``run_virtual`` sleeping and deadlines agree.
    """

    def __init__(self, *, wall: float = 1_800_000_000.0, boot: float = 1000.0, time: Callable[[], float] | None = None):
        self._time = time
        self._moved = 0.0
        self._wall = wall - self._elapsed()
        self._boot = boot - self._elapsed()
        self._frozen: float | None = None
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._serial = 0

    @classmethod
    def of_loop(cls, *, wall: float = 1_800_000_000.0, boot: float = 1000.0) -> VirtualClock:
        """A clock that follows the running event loop; call it inside ``run_virtual``."""
        return cls(wall=wall, boot=boot, time=asyncio.get_running_loop().time)

    def _elapsed(self) -> float:
        return self._moved if self._time is None else self._time() + self._moved

    def now(self) -> Instant:
        """Both readings."""
        elapsed = self._elapsed()
        boot = self._frozen if self._frozen is not None else self._boot + elapsed
        return Instant(wall=self._wall + elapsed, boot=boot)

    async def sleep(self, seconds: Seconds) -> None:
        """Until ``seconds`` have been advanced, or have passed on the driving loop."""
        if self._time is not None or seconds <= 0:
            await anyio.sleep(max(0.0, seconds))
            return
        self._serial += 1
        event = anyio.Event()
        heapq.heappush(self._sleepers, (self._moved + seconds, self._serial, event))
        await event.wait()

    def advance(self, seconds: Seconds) -> None:
        """Let time pass for sleepers and both readings. Driven by a loop: both jump, as after suspend."""
        self._moved += seconds
        while self._sleepers and self._sleepers[0][0] <= self._moved:
            heapq.heappop(self._sleepers)[2].set()

    def step_wall(self, seconds: Seconds) -> None:
        """Somebody set the clock: the wall reading jumps, either way."""
        self._wall += seconds

    def freeze_boot(self) -> None:
        """The boot reading stops (a clone resumed from a snapshot sees its clock like that)."""
        self._frozen = self.now().boot

    def thaw_boot(self) -> None:
        """The boot reading goes on from where it stopped."""
        if self._frozen is not None:
            self._boot = self._frozen - self._elapsed()
            self._frozen = None


async def until(
    condition: Callable[[], object], *, within: Seconds, every: Seconds = 0.01, what: str = "the condition"
) -> None:
    """Wait on the loop's time until ``condition()`` is true; ``AssertionError`` when it is not ``within`` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not condition():
        if loop.time() >= end:
            raise AssertionError(f"{what} did not come true within {within:g} s")
        await anyio.sleep(every)


async def always(
    condition: Callable[[], object], *, during: Seconds, every: Seconds = 0.2, what: str = "the condition"
) -> None:
    """Watch for ``during`` seconds of the loop's time that ``condition()`` never ceases to be true."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while loop.time() - start < during:
        if not condition():
            raise AssertionError(f"{what} ceased to be true after {loop.time() - start:g} s")
        await anyio.sleep(every)
