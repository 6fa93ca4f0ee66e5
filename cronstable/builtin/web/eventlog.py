"""GET /events: the newest events of this node under growing numbers, so that a reader can go on where it was."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import anyio

from cronstable.api import (
    Decided,
    Event,
    Host,
    Json,
    LeaderChanged,
    PeerStatus,
    QuorumChanged,
    Reloaded,
    RunFinished,
    RunStarted,
    Seconds,
    Verdict,
)
from cronstable.builtin.web.shapes import SPREAD, event_data
from cronstable.builtin.web.streams import message

KEPT: Final = 2_000
"""Events that a reader can have missed and still get."""
AT_ONCE: Final = 100
"""Events in one chunk, so that a reader that was away costs no more memory than one that was not."""
KINDS: Final = ("started", "finished", "skipped", "decided", "leadership", "quorum", "cluster", "reloaded")
"""Names of the events."""


LOOK: Final[Seconds] = 0.1
"""Between two looks at what this node believes of its cluster, while somebody reads."""


@dataclass(frozen=True, slots=True)
class Believed:
    """What of a view is worth a word when it changes. What happens on other nodes is no event of this one."""

    leader: str | None = None
    is_leader: bool = False
    quorate: bool = False
    conflict: bool = False
    peers: tuple[tuple[str, PeerStatus], ...] = ()


@dataclass(slots=True, eq=False)
class _Entry:
    """An event under its number; ``sent``: its bytes, made when the first reader wants them."""

    number: int
    kind: str
    event: Event | Believed
    sent: bytes = b""


class EventLog:
    """A ring of events. It is run for as long as the service lives, whether anybody reads or not."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._entries: deque[_Entry] = deque(maxlen=KEPT)
        self._last = 0
        self._waiting: list[anyio.Event] = []
        self._read = anyio.Event()
        # Numbers begin anew with each service: an id of another one must not be taken for one of ours.
        self._mark = host.ids.token(4)

    async def run(self) -> None:
        """Take in events until cancelled."""
        async for event in self._host.events():
            self._add(kind_of(event), event)

    async def watch(self) -> None:
        """Add an event whenever this node believes something else of its cluster; looks only while somebody reads."""
        seen = self._believed()
        while True:
            if not self._waiting:
                self._read = anyio.Event()
                await self._read.wait()
            await self._host.clock.sleep(LOOK)
            now = self._believed()
            if now != seen:
                self._add("cluster", now)
                seen = now

    def _believed(self) -> Believed:
        try:
            view = self._host.snapshot().cluster
        except Exception:  # a bug there is told to whoever asks for a document; streams go on
            self._host.log.debug("web: the cluster could not be looked at", exc_info=True)
            return Believed()
        if view is None:
            return Believed()
        alone = view.distribution != SPREAD
        peers = tuple((peer.host, peer.status) for peer in view.peers)
        return Believed(view.leader if alone else None, view.is_leader and alone, view.quorate, view.conflict, peers)

    def _add(self, kind: str, event: Event | Believed) -> None:
        self._last += 1
        self._entries.append(_Entry(self._last, kind, event))
        waiting, self._waiting = self._waiting, []
        for reader in waiting:
            reader.set()

    def reader(self, last_id: str, kinds: frozenset[str]) -> EventReader:
        """A reader that goes on after ``last_id`` (empty: from now on) with events of ``kinds`` (none: all)."""
        if not last_id:
            return EventReader(self, self._last, kinds, "")
        mark, _, number = last_id.partition(":")
        known = mark == self._mark and number.isascii() and number.isdigit() and len(number) < 16
        if not known or int(number) > self._last:
            return EventReader(self, self._last, kinds, "the node or its service started anew")
        return EventReader(self, int(number), kinds, "")

    def identity(self, number: int) -> str:
        """The id of an event."""
        return f"{self._mark}:{number}"

    def after(self, number: int) -> tuple[list[_Entry], bool]:
        """The oldest events after ``number``, ``AT_ONCE`` at most, and whether some before them are gone."""
        skipped = len(self._entries) - (self._last - number)
        return list(islice(self._entries, max(0, skipped), max(0, skipped) + AT_ONCE)), skipped < 0

    async def more(self, number: int) -> None:
        """Return once there is an event after ``number``."""
        while self._last <= number:
            ready = anyio.Event()
            self._waiting.append(ready)
            self._read.set()
            try:
                await ready.wait()
            finally:
                if ready in self._waiting:
                    self._waiting.remove(ready)

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    async def since(self, number: int) -> AsyncIterator[Event]:
        """The events after ``number`` as they come; those that were overwritten meanwhile are left out."""
        while True:
            await self.more(number)
            for entry in self.after(number)[0]:
                number = entry.number
                if not isinstance(entry.event, Believed):
                    yield entry.event

    def bytes_of(self, entry: _Entry) -> bytes:
        """The event as it is sent."""
        if not entry.sent:
            event = entry.event
            data = believed_data(event) if isinstance(event, Believed) else event_data(event)
            entry.sent = message(entry.kind, data, self.identity(entry.number))
        return entry.sent


class EventReader:
    """A ``Source`` of the events that one client wants."""

    def __init__(self, log: EventLog, after: int, kinds: frozenset[str], reset: str) -> None:
        self._log = log
        self._after = after
        self._kinds = kinds
        self._reset = reset
        self._greet = True

    async def take(self) -> bytes | None:
        """The next chunk. The first says where the reader stands, so that it can go on from there."""
        chunk = self._reset_of(self._reset) if self._reset else b""
        self._reset = ""
        if self._greet and not chunk:
            chunk = message("hello", {"last": self._after}, self._log.identity(self._after))
        self._greet = False
        while not chunk:
            await self._log.more(self._after)
            entries, lost = self._log.after(self._after)
            wanted = [self._log.bytes_of(e) for e in entries if not self._kinds or e.kind in self._kinds]
            chunk = (self._reset_of("events were missed") if lost else b"") + b"".join(wanted)
            self._after = entries[-1].number
        return chunk

    def _reset_of(self, reason: str) -> bytes:
        """What this reader knows may be wrong: it has to ask the other endpoints again."""
        return message("reset", {"reason": reason}, self._log.identity(self._after))


def believed_data(now: Believed) -> dict[str, Json]:
    """What is said when a view changed: enough to know whether to ask for the whole."""
    return {
        "leader": now.leader,
        "is_leader": now.is_leader,
        "quorate": now.quorate,
        "conflict": now.conflict,
        "agreed": sum(1 for _, status in now.peers if status is PeerStatus.AGREED),
    }


def kind_of(event: Event) -> str:
    """The name of an event. A skip that is final has its own: it is what people look for."""
    if isinstance(event, Decided):
        final = event.record.decision.verdict is Verdict.SKIP and not event.record.provisional
        return "skipped" if final else "decided"
    names: dict[type[Event], str] = {
        RunStarted: "started",
        RunFinished: "finished",
        LeaderChanged: "leadership",
        QuorumChanged: "quorum",
        Reloaded: "reloaded",
    }
    return names[type(event)]
