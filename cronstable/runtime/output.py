"""Recent output of runs, for whoever wants to read along."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import islice

import anyio

from cronstable.core.runs import Line
from cronstable.runtime.capture import LineBatch

LINES_PER_RUN = 2_000
CHARACTERS_PER_RUN = 1 << 20
"""A run's last line is kept whatever its length, up to ``LONGEST_LINE``."""
LONGEST_LINE = 1 << 16
"""Characters of a line for those who read along; what is longer is cut, and says so."""
FINISHED_RUNS = 256
CHARACTERS_OF_FINISHED = 16 << 20
READ_AT_ONCE = 128
"""Lines that a reader takes hold of at once: one that reads slowly must not keep alive what is long overwritten."""


class _Buffer:
    __slots__ = ("done", "lines", "size", "waiting")

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self.size = 0
        self.done = False
        self.waiting: list[anyio.Event] = []

    def add(self, batch: LineBatch) -> None:
        for line in batch.lines(LINES_PER_RUN):
            kept = line if len(line.text) <= LONGEST_LINE else _cut(line)
            self.lines.append(kept)
            self.size += len(kept.text)
        while len(self.lines) > LINES_PER_RUN or (self.size > CHARACTERS_PER_RUN and len(self.lines) > 1):
            self.size -= len(self.lines.popleft().text)
        self.notify()

    def notify(self) -> None:
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            event.set()

    def after(self, number: int) -> list[Line]:
        """The oldest lines above ``number``; numbers grow, so that at most the difference of lines are new."""
        unseen = 0 if not self.lines else self.lines[-1].number - number
        tail = islice(self.lines, max(0, len(self.lines) - unseen), None) if unseen > 0 else ()
        return list(islice((line for line in tail if line.number > number), READ_AT_ONCE))


class OutputHub:
    """Keeps the last lines of living runs and of the most recently finished ones."""

    def __init__(self) -> None:
        self._living: dict[str, _Buffer] = {}
        self._finished: OrderedDict[str, _Buffer] = OrderedDict()
        """Oldest first."""
        self._finished_size = 0

    def open(self, run_id: str) -> None:
        """A run begins."""
        self._living[run_id] = _Buffer()

    def extend(self, run_id: str, batch: LineBatch) -> None:
        """Lines came out of a run that was opened."""
        self._living[run_id].add(batch)

    def close(self, run_id: str) -> None:
        """The output of a run is complete; readers end, and old finished runs are forgotten."""
        buffer = self._finished[run_id] = self._living.pop(run_id)
        buffer.done = True
        buffer.notify()
        self._finished_size += buffer.size
        while len(self._finished) > FINISHED_RUNS or (
            len(self._finished) > 1 and self._finished_size > CHARACTERS_OF_FINISHED
        ):
            self._finished_size -= self._finished.popitem(last=False)[1].size

    async def read(self, run_id: str, after: int = 0) -> AsyncIterator[Line]:
        """Lines numbered above ``after``, live; nothing for a run that is not remembered."""
        buffer = self._living.get(run_id) or self._finished.get(run_id)
        last = after
        while buffer is not None:
            lines = buffer.after(last)
            for line in lines:
                last = line.number
                yield line
            if lines:
                continue
            if buffer.done:
                return
            event = anyio.Event()
            buffer.waiting.append(event)
            await event.wait()


def _cut(line: Line) -> Line:
    return replace(line, text=f"{line.text[:LONGEST_LINE]} [.... {len(line.text) - LONGEST_LINE} characters more]")
