"""Documents that are polled, kept as bytes between changes: GET /jobs and GET /cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

import anyio
import anyio.lowlevel

from cronstable.api import EpochSeconds, HostSnapshot, Job, LastRun, LiveRun, Pause, RunRecord, Seconds
from cronstable.builtin.web.kept import Kept
from cronstable.builtin.web.routes import JSON
from cronstable.builtin.web.shapes import cluster_document, dumps, job_parts

FRESH: Final[Seconds] = 0.2
"""A rendered list whose facts have not changed is sent again for this long; its countdowns are that old at most."""

AT_ONCE: Final = 20
"""Entries made in a row before others on the event loop get a turn: some milliseconds."""

_JobFacts: TypeAlias = tuple[
    Job, tuple[LiveRun, ...], tuple[RunRecord, ...], LastRun | None, Pause | None, bool, bool, bool, Hashable, object
]  # a tuple: comparing two of them a thousand times in a poll has to cost nothing


@dataclass(frozen=True, slots=True)
class Rendered:
    """A list and the weak entity tag of what it says, countdowns aside."""

    kept: Kept
    etag: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """A job's entry around its countdown, and all that it was made of."""

    facts: _JobFacts
    before: bytes
    after: bytes


class JobsDocument:
    """GET /jobs. An entry is made again only when something about its job changed.

    The entity tag leaves the countdowns out: a 304 says that the list a client has is right but for the time that
    passed since its ``Date``. (With them in, no two answers would ever be equal.)
    """

    def __init__(self, *, words: bool) -> None:
        """``words``: with the schedules in words."""
        self._words = words
        self._entries: dict[str, _Entry] = {}
        self._fires: tuple[EpochSeconds | None, ...] = ()
        self._seen: HostSnapshot | None = None
        self._etag = ""
        self._rendered: Rendered | None = None
        self._rendered_at = 0.0
        self._busy = anyio.Lock()

    async def render(self, snapshot: HostSnapshot, wall: float) -> Rendered:
        """The list as of ``wall``. Lets others run while many entries have to be made."""
        if (kept := self.fresh(snapshot, wall)) is not None:
            return kept
        async with self._busy:
            if (kept := self.fresh(snapshot, wall)) is not None:
                return kept
            await self._refresh(snapshot)
            body = Kept(self._body(wall), JSON, {"ETag": self._etag, "Vary": "Accept-Encoding"})
            self._rendered, self._rendered_at = Rendered(body, self._etag), wall
            return self._rendered

    def fresh(self, snapshot: HostSnapshot, wall: float) -> Rendered | None:
        """What was rendered a moment ago, when nothing changed since."""
        if self._seen is None or not 0 <= wall - self._rendered_at < FRESH:
            return None
        if self._seen is not snapshot and not _same_parts(self._seen, snapshot):
            return None
        return self._rendered

    def _body(self, wall: float) -> bytes:
        left: dict[EpochSeconds | None, bytes] = {None: b"null"}
        pieces: list[bytes] = []
        for entry, due in zip(self._entries.values(), self._fires, strict=True):
            if due is not None and due not in left:
                left[due] = repr(round(due - wall, 6)).encode()
            pieces += (b",", entry.before, left[due], entry.after)
        return b"[%b]" % b"".join(pieces[1:])

    async def _refresh(self, snapshot: HostSnapshot) -> None:
        """Bring the entries and the tag up to date."""
        if self._seen is not None and _same_parts(self._seen, snapshot):
            return
        entries: dict[str, _Entry] = {}
        made = 0
        for name, facts in _facts(snapshot).items():
            kept = self._entries.get(name)
            if kept is None or kept.facts != facts:
                made += 1
                if made % AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
                before, after = job_parts(snapshot, facts[0], words=self._words)
                kept = _Entry(facts, dumps(before)[:-1] + b',"scheduled_in":', b"," + dumps(after)[1:])
            entries[name] = kept
        fires = tuple(snapshot.next_fires.get(name) for name in entries)
        same = not made and fires == self._fires and list(entries) == list(self._entries) and self._etag != ""
        self._entries, self._fires, self._seen = entries, fires, snapshot
        if same:
            return
        digest = hashlib.blake2b(digest_size=12)
        for entry, due in zip(entries.values(), fires, strict=True):
            digest.update(b"%b%b%b" % (entry.before, str(due).encode(), entry.after))
        self._etag = f'W/"{digest.hexdigest()}"'


class StatusDocument:
    """GET /status in one of its two forms, made again when a job changed or its countdowns are too old."""

    def __init__(self, make: Callable[[HostSnapshot, float], bytes], content_type: str) -> None:
        self._make = make
        self._type = content_type
        self._seen: HostSnapshot | None = None
        self._kept = Kept(b"", content_type)
        self._made_at = 0.0

    def render(self, snapshot: HostSnapshot, wall: float) -> Kept:
        """The document as of ``wall``."""
        fresh = 0 <= wall - self._made_at < FRESH
        if not fresh or self._seen is None or not same_in(_STATUS_PARTS, self._seen, snapshot):
            self._kept = Kept(self._make(snapshot, wall), self._type)
            self._seen, self._made_at = snapshot, wall
        return self._kept


class ClusterDocument:
    """GET /cluster, made again when the view changed."""

    def __init__(self) -> None:
        self._seen: HostSnapshot | None = None
        self._kept = Kept(b"", JSON)

    def render(self, snapshot: HostSnapshot) -> Kept:
        """The document now."""
        if self._seen is None or not same_in(_CLUSTER_PARTS, self._seen, snapshot):
            self._kept, self._seen = Kept(dumps(cluster_document(snapshot)), JSON), snapshot
        return self._kept


_PARTS: Final = (
    attrgetter("jobs"),
    attrgetter("next_fires"),
    attrgetter("live"),
    attrgetter("history"),
    attrgetter("last_runs"),
    attrgetter("paused"),
    attrgetter("reboot_pending"),
    attrgetter("election_configured"),
    attrgetter("cluster"),
    attrgetter("retries"),
    attrgetter("late"),
    attrgetter("queued"),
    attrgetter("resources"),
    attrgetter("slots"),
)
"""All parts of a snapshot that the list is made of."""


_STATUS_PARTS: Final = (attrgetter("jobs"), attrgetter("next_fires"), attrgetter("live"))

_CLUSTER_PARTS: Final = (
    attrgetter("cluster_configured"),
    attrgetter("cluster"),
    attrgetter("cluster_error"),
    attrgetter("fleet"),
    attrgetter("tally.claims"),
    attrgetter("tally.catch_ups"),
)


def _same_parts(old: HostSnapshot, new: HostSnapshot) -> bool:
    """True when both snapshots say the same about all that the list is made of.

    What did not change is the same object, which is looked at first: comparing a thousand entries costs as much as
    the rest of an answer.
    """
    return same_in(_PARTS, old, new) and (old.jobs is new.jobs or list(old.jobs) == list(new.jobs))


def same_in(parts: Sequence[Callable[[HostSnapshot], object]], old: HostSnapshot, new: HostSnapshot) -> bool:
    """True when both snapshots say the same about all ``parts``."""
    for part in parts:
        before, after = part(old), part(new)
        if before is not after and before != after:
            return False
    return True


def _facts(snapshot: HostSnapshot) -> dict[str, _JobFacts]:
    """All that each job's entry is made of, but its countdown."""
    view = snapshot.cluster if snapshot.election_configured else None
    owners = None if view is None else (view.distribution, view.owners, view.available_owners)
    return {
        name: (
            job,
            snapshot.live.get(name, ()),
            snapshot.history.get(name, ()),
            snapshot.last_runs.get(name),
            snapshot.paused.get(name),
            name in snapshot.reboot_pending,
            snapshot.next_fires.get(name, 0) is None,
            snapshot.election_configured,
            owners,
            _passing(snapshot, name),
        )
        for name, job in snapshot.jobs.items()
    }


def _passing(snapshot: HostSnapshot, name: str) -> object:
    """What is said about a job for a while only; None for most jobs at most times."""
    used = [snapshot.resources.get(run.key.run_id) for run in snapshot.live.get(name, ())] if snapshot.resources else []
    waits, slot = name in snapshot.queued, snapshot.slots.get(name)
    passing = (snapshot.retries.get(name), snapshot.late.get(name), waits, slot, *used)
    return passing if any(passing) else None
