"""Writes that wait for the state store: in order within a stream, side by side over streams, never without bound."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import anyio

from cronstable.core.records import WriteKind

LIMIT: Final = 8192
"""Writes that may wait (reference 4)."""


@dataclass(slots=True, eq=False)
class Write:
    """One record on its way. ``keep``: how many its stream holds; None for all. ``over``: it landed or never will."""

    kind: WriteKind
    stream: str
    data: bytes
    keep: int | None = None
    tries: int = 0
    landed: bool = False
    over: anyio.Event = field(default_factory=anyio.Event)


class WriteQueue:
    """Writes by stream. At most one write of a stream is under way, so that none overtakes the one before."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._streams: dict[str, deque[Write]] = {}
        self._ready: deque[str] = deque()
        self._arrived = anyio.Event()
        self._emptied = anyio.Event()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, write: Write, *, urgent: bool = False) -> bool:
        """Queue it; False when there is no room. ``urgent``: its stream comes next, since somebody waits."""
        if self._size >= self._limit:
            return False
        self._size += 1
        waiting = self._streams.get(write.stream)
        if waiting is None:
            self._streams[write.stream] = deque([write])
            self._offer(write.stream, first=urgent)
            return True
        waiting.append(write)
        if urgent and write.stream in self._ready:
            self._ready.remove(write.stream)
            self._ready.appendleft(write.stream)
        return True

    async def take(self) -> Write:
        """The next write, once there is one; then ``settle`` or ``put_back`` it."""
        while not self._ready:
            if self._arrived.is_set():
                self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._streams[self._ready.popleft()][0]

    def put_back(self, write: Write) -> None:
        """It could not be made now: it stays the first of its stream."""
        self._offer(write.stream, first=True)

    def settle(self, write: Write, *, landed: bool) -> None:
        """It was made, or is given up."""
        write.landed = landed
        write.over.set()
        self._size -= 1
        waiting = self._streams[write.stream]
        waiting.popleft()
        if waiting:
            self._offer(write.stream, first=False)
        else:
            del self._streams[write.stream]
        if not self._size:
            self._emptied.set()

    async def empty(self) -> None:
        """Return once nothing waits."""
        while self._size:
            if self._emptied.is_set():
                self._emptied = anyio.Event()
            await self._emptied.wait()

    def _offer(self, stream: str, *, first: bool) -> None:
        if first:
            self._ready.appendleft(stream)
        else:
            self._ready.append(stream)
        self._arrived.set()
