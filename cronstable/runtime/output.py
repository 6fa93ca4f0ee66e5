"""Recent output of runs, for whoever wants to read along."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator

import anyio

from cronstable.core.runs import Line
from cronstable.runtime.capture import LineBatch

LINES_PER_RUN = 2_000
FINISHED_RUNS = 256


class _Buffer:
    __slots__ = ("done", "lines", "waiting")

    def __init__(self) -> None:
        self.lines: deque[Line] = deque(maxlen=LINES_PER_RUN)
        self.done = False
        self.waiting: list[anyio.Event] = []

    def notify(self) -> None:
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            event.set()


class OutputHub:
    """Keeps the last lines of living runs and of the most recently finished ones."""

    def __init__(self) -> None:
        self._buffers: OrderedDict[str, _Buffer] = OrderedDict()
        self._finished = 0

    def open(self, run_id: str) -> None:
        """A run begins."""
        self._buffers[run_id] = _Buffer()

    def extend(self, run_id: str, batch: LineBatch) -> None:
        """Lines came out of a run that was opened."""
        buffer = self._buffers[run_id]
        buffer.lines.extend(batch.lines(LINES_PER_RUN))
        buffer.notify()

    def close(self, run_id: str) -> None:
        """The output of a run is complete; readers end, and old finished runs are forgotten."""
        buffer = self._buffers[run_id]
        buffer.done = True
        buffer.notify()
        self._buffers.move_to_end(run_id)
        self._finished += 1
        if self._finished > FINISHED_RUNS:
            for old, candidate in self._buffers.items():
                if candidate.done:
                    del self._buffers[old]
                    self._finished -= 1
                    break

    async def read(self, run_id: str, after: int = 0) -> AsyncIterator[Line]:
        """Lines numbered above ``after``, live; nothing for a run that is not remembered."""
        buffer = self._buffers.get(run_id)
        last = after
        while buffer is not None:
            seen = len(buffer.lines), buffer.lines[-1].number if buffer.lines else 0
            for line in tuple(buffer.lines):
                if line.number > last:
                    last = line.number
                    yield line
            if buffer.done and (not buffer.lines or buffer.lines[-1].number <= last):
                return
            if seen == (len(buffer.lines), buffer.lines[-1].number if buffer.lines else 0):
                event = anyio.Event()
                buffer.waiting.append(event)
                await event.wait()
