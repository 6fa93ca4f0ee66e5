"""Captured output: bytes to lines, the few that are kept, and the log that sees them all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from cronstable.core.runs import Line, RunKey
from cronstable.core.values import dataclass


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Complete lines of one stream of one run, in order.

    ``prefix``: the formatted ``streamPrefix``, to be put before each line in the log. ``first``: the number of the
    first line, counted from 1 over both streams. ``at``: wall seconds. Batches, because jobs write millions of lines.
    """

    key: RunKey
    stream: str
    prefix: str
    first: int
    texts: Sequence[str]
    at: float

    def lines(self, last: int | None = None) -> Iterator[Line]:
        """The same as single values; at most the ``last`` of them, for who would throw the others away."""
        skipped = 0 if last is None else max(0, len(self.texts) - last)
        texts = self.texts[skipped:] if skipped else self.texts
        return (Line(number, self.stream, text, self.at) for number, text in enumerate(texts, self.first + skipped))

    def logged(self) -> str:
        """The text for the log: each line with its prefix and a newline."""
        return self.prefix + f"\n{self.prefix}".join(self.texts) + "\n"


class LineSink(Protocol):
    """Where lines go as they come: the log, and whoever reads along."""

    def write(self, batch: LineBatch) -> None:
        """Take a batch. Must neither wait nor raise."""
        ...

    async def ready(self) -> None:
        """Return when more may come. Until then the run is not read any further, and its pipe fills up."""
        ...


def format_prefix(template: str, job_name: str, stream_name: str) -> str:
    """``streamPrefix`` for one stream; a template that cannot be formatted is taken literally."""
    try:
        return template.format(job_name=job_name, stream_name=stream_name)
    except (ValueError, LookupError, AttributeError, TypeError):
        return template


class StreamCapture:
    """Splits one stream into lines and keeps the first and the last of them (``saveLimit``, ``maxLineLength``).

    Lines end in LF or CR LF; the length of a line is counted in bytes without its ending. Memory is bounded by the
    lines kept, whatever the job writes: a line that outgrows ``max_line_length`` is dropped while it is still coming.
    """

    def __init__(self, save_limit: int, max_line_length: int) -> None:
        self._head_limit = save_limit // 2
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=save_limit - save_limit // 2)
        self._max = max_line_length
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._outgrown = False
        self._open_end = False
        self._split = 0
        self.overlong = 0

    @property
    def produced(self) -> int:
        """Lines seen so far, also those that were not kept or were too long."""
        return self._split + self.overlong

    def feed(self, data: bytes) -> list[str]:
        """Take bytes as they came; the lines that they complete."""
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            self._hold(data)
            return []
        block = data[:cut]
        if self._partial or self._outgrown:
            block = self._join_partial(block)
        self._hold(data[cut:])
        return self._take(block) if block else []

    def finish(self) -> list[str]:
        """The stream is over; the last line, if it had no ending."""
        if self._outgrown:
            self._outgrown = False
            self.overlong += 1
            return []
        rest = b"".join(self._partial)
        self._partial.clear()
        self._partial_size = 0
        lines = self._take(rest + b"\n") if rest else []
        self._open_end = bool(lines)
        return lines

    def text(self) -> str:
        """What was kept, with a marker line where lines are missing."""
        dropped = self._split - len(self._head) - len(self._tail)
        marker = [f"[.... {dropped} lines discarded ...]"] if dropped else []
        kept = [*self._head, *marker, *self._tail]
        if not kept:
            return ""
        ends_open = self._open_end and (self._head or self._tail)
        return "\n".join(kept) + ("" if ends_open else "\n")

    def _hold(self, data: bytes) -> None:
        if self._outgrown or not data:
            return
        self._partial_size += len(data)
        # One byte more than allowed may still be the CR of the ending.
        if self._partial_size > self._max + 1:
            self._outgrown = True
            self._partial.clear()
            self._partial_size = 0
        else:
            self._partial.append(data)

    def _join_partial(self, block: bytes) -> bytes:
        if self._outgrown:
            self._outgrown = False
            self.overlong += 1
            return block[block.index(b"\n") + 1 :]
        joined = b"".join([*self._partial, block])
        self._partial.clear()
        self._partial_size = 0
        return joined

    def _take(self, block: bytes) -> list[str]:
        if len(block) > self._max:
            block = self._without_overlong(block)
            if not block:
                return []
        # LF never is a part of a longer UTF-8 sequence, so a block of whole lines can be decoded at once.
        text = block.decode("utf-8", "replace")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        lines.pop()
        self._split += len(lines)
        self._keep(lines)
        return lines

    def _without_overlong(self, block: bytes) -> bytes:
        lines = block.split(b"\n")
        lines.pop()
        short = [line for line in lines if len(line.removesuffix(b"\r")) <= self._max]
        self.overlong += len(lines) - len(short)
        return b"".join(line + b"\n" for line in short)

    def _keep(self, lines: list[str]) -> None:
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head.extend(lines[:room])
            lines = lines[room:]
        if lines and self._tail.maxlen:
            self._tail.extend(lines[-self._tail.maxlen :])
