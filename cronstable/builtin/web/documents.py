"""Documents that are polled, kept as bytes between changes: GET /jobs and GET /cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from cronstable.api import (
    ClusterView,
    EpochSeconds,
    HostSnapshot,
    Job,
    LiveRun,
    Pause,
    RunRecord,
    Seconds,
)
from cronstable.builtin.web.shapes import cluster_document, countdown, dumps, job_parts

FRESH: Seconds = 0.1
"""A rendered list whose facts have not changed is sent again for this long; its countdowns are that old at most."""

_ClusterFacts: TypeAlias = tuple[bool, "ClusterView | None", "str | None"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A body and the weak entity tag of what it says, countdowns aside."""

    body: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class _Facts:
    """All that a job's entry is made of, but its countdown."""

    job: Job
    live: tuple[LiveRun, ...]
    history: tuple[RunRecord, ...]
    paused: Pause | None
    pending: bool
    never: bool
    election: bool
    owners: Hashable


@dataclass(frozen=True, slots=True)
class _Entry:
    facts: _Facts
    before: bytes
    after: bytes


class JobsDocument:
    """GET /jobs. An entry is made again only when something about its job changed.

    The entity tag leaves the countdowns out: a 304 says that the list a client has is right but for the time that
    passed since its ``Date``. (With them in, no two answers would ever be equal.)
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._fires: tuple[EpochSeconds | None, ...] = ()
        self._etag = ""
        self._rendered: Rendered | None = None
        self._rendered_at = 0.0

    def render(self, snapshot: HostSnapshot, wall: float) -> Rendered:
        """The list as of ``wall``."""
        changed = self._refresh(snapshot)
        if self._rendered is not None and not changed and 0 <= wall - self._rendered_at < FRESH:
            return self._rendered
        parts = [
            b"%b%b%b" % (entry.before, b"null" if left is None else repr(left).encode(), entry.after)
            for name, entry in self._entries.items()
            for left in (countdown(snapshot, name, wall),)
        ]
        self._rendered = Rendered(b"[%b]" % b",".join(parts), self._etag)
        self._rendered_at = wall
        return self._rendered

    def _refresh(self, snapshot: HostSnapshot) -> bool:
        """Bring the entries up to date; True when anything but the time changed."""
        view = snapshot.cluster
        owners = None if view is None else (view.distribution, view.owners, view.available_owners)
        entries = {
            name: self._entry(
                snapshot,
                _Facts(
                    job,
                    snapshot.live.get(name, ()),
                    snapshot.history.get(name, ()),
                    snapshot.paused.get(name),
                    name in snapshot.reboot_pending,
                    snapshot.next_fires.get(name, 0) is None,
                    snapshot.election_configured,
                    owners if snapshot.election_configured else None,
                ),
            )
            for name, job in snapshot.jobs.items()
        }
        fires = tuple(snapshot.next_fires.get(name) for name in entries)
        old = self._entries
        unchanged = (
            bool(self._etag)
            and fires == self._fires
            and len(entries) == len(old)
            and all(new is kept for new, kept in zip(entries.values(), old.values(), strict=True))
        )
        self._entries, self._fires = entries, fires
        if unchanged:
            return False
        digest = hashlib.blake2b(digest_size=12)
        for entry, due in zip(entries.values(), fires, strict=True):
            digest.update(b"%b%b%b" % (entry.before, str(due).encode(), entry.after))
        self._etag = f'W/"{digest.hexdigest()}"'
        return True

    def _entry(self, snapshot: HostSnapshot, facts: _Facts) -> _Entry:
        kept = self._entries.get(facts.job.name)
        if kept is not None and kept.facts == facts:
            return kept
        before, after = job_parts(snapshot, facts.job)
        return _Entry(facts, dumps(before)[:-1] + b',"scheduled_in":', b"," + dumps(after)[1:])


class ClusterDocument:
    """GET /cluster, made again when the view changed."""

    def __init__(self) -> None:
        self._facts: _ClusterFacts | None = None
        self._body = b""

    def render(self, snapshot: HostSnapshot) -> bytes:
        """The document as bytes."""
        facts = (snapshot.cluster_configured, snapshot.cluster, snapshot.cluster_error)
        if facts != self._facts:
            self._facts, self._body = facts, dumps(cluster_document(snapshot))
        return self._body
