"""The keys of an election and what stands in them (ADR 0022)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard
from urllib.parse import quote

from cronstable.api import Grant, Holder, Json, LeaseRecord, Seconds, Seen, Vacant
from cronstable_etcd import wire
from cronstable_etcd.wire import Answer, Comparison, KeyValue, Operation

LONGEST_NAME: Final = 200
"""Characters of a foreign value that are shown as a name."""

LARGEST_FENCE: Final = 2**62
"""Jobs keep fences in columns of 64 bits: whatever stands above it was written by hand."""

LONGEST_TTL: Final[Seconds] = 1e15
"""Seconds with which one can still calculate."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys below one election name; further siblings find room beside them."""

    leader: bytes
    term: bytes
    fence: bytes
    marks: bytes
    log: bytes
    low: bytes
    runs: bytes

    @classmethod
    def of(cls, election: str) -> Keys:
        """The keys of ``cluster.etcd.electionName``."""
        leader = encode(election)
        return cls(
            leader=leader,
            term=leader + b"/term",
            fence=leader + b"/fence",
            marks=leader + b"/reboot-ran/",
            log=leader + b"/log/",
            low=leader + b"/log-low",
            runs=leader + b"/runs/",
        )

    def marks_of(self, job_set_id: str) -> bytes:
        """The prefix of the @reboot marks of a job-set id."""
        return self.marks + quote(job_set_id, safe="", errors="surrogatepass").encode("ascii") + b"/"

    def mark(self, job_set_id: str, job: str) -> bytes:
        """The @reboot mark of one job."""
        return self.marks_of(job_set_id) + encode(job)

    @property
    def all_three(self) -> tuple[Operation, Operation, Operation]:
        """Read what ``Standing.of`` wants."""
        return wire.get(self.leader), wire.get(self.term), wire.get(self.fence)


@dataclass(frozen=True, slots=True)
class Bond:
    """What ties a grant to the store: the lease, and the leader key's revisions as this process last wrote it."""

    lease: int
    create: int
    mod: int

    def holds(self, keys: Keys) -> tuple[Comparison, ...]:
        """True while the term is this one's, whoever wrote last."""
        return wire.created(keys.leader, self.create), wire.leased(keys.leader, self.lease)

    def is_of(self, leader: KeyValue | None) -> bool:
        """Whether ``leader``, as it was found, is this term's: what ``holds`` compares."""
        return leader is not None and (leader.create, leader.lease) == (self.create, self.lease)

    def is_last_writer(self, keys: Keys) -> tuple[Comparison, ...]:
        """True while nobody wrote since."""
        return (*self.holds(keys), wire.modified(keys.leader, self.mod))


@dataclass(frozen=True, slots=True)
class Standing:
    """The three keys at one revision."""

    revision: int
    leader: KeyValue | None
    term: KeyValue | None
    fence: KeyValue | None

    @classmethod
    def of(cls, answer: Answer) -> Standing:
        """From the answer to ``Keys.all_three``. Raises ``wire.Malformed``."""
        if len(answer.found) < 3:
            raise wire.Malformed("a transaction was answered in part")
        leader, term, fence = (found[0] if found else None for found in answer.found[:3])
        return cls(answer.revision, leader, term, fence)

    @property
    def bond(self) -> Bond | None:
        """The tie that whoever wrote this has."""
        return None if self.leader is None else Bond(self.leader.lease, self.leader.create, self.leader.mod)

    @property
    def highest(self) -> int:
        """The last fence, 0 when it is not known."""
        return self._last()[0] or 0

    def unchanged(self, keys: Keys) -> tuple[Comparison, ...]:
        """True while all three keys stand exactly so."""
        pairs = ((keys.leader, self.leader), (keys.term, self.term), (keys.fence, self.fence))
        return tuple(wire.modified(key, 0 if found is None else found.mod) for key, found in pairs)

    def vacancy(self) -> Vacant:
        """The lease as free, with what the last term left behind."""
        return Vacant(*self._last())

    def shown(self, ttl: Seconds) -> Seen | Vacant:
        """What the host is told. ``ttl`` stands in for the one that a foreign holder did not store."""
        leader, term = self.leader, self.term
        if leader is None and term is None:
            return self.vacancy()
        if leader is None and term is not None:
            # Deleted by hand: the lease lives, so its holder may still act.
            return Seen(_record(term, f"deleted {term.mod}") or self._foreign(term, b"", ttl))
        assert leader is not None
        mark = f"{leader.create} {leader.mod}"
        # One transaction writes both, and so they have one revision.
        record = _record(term, mark) if term is not None and term.mod == leader.mod else None
        return Seen(record or self._foreign(leader, leader.value, ttl))

    def _foreign(self, found: KeyValue, name: bytes, ttl: Seconds) -> LeaseRecord:
        text = name.decode("utf-8", "replace")[:LONGEST_NAME]
        mark = f"{found.create} {found.mod}"
        return LeaseRecord(Holder(text, ""), self.highest, f"revision {found.mod}", ttl, None, mark)

    def _last(self) -> tuple[int | None, tuple[str, ...]]:
        document = {} if self.fence is None else _document(self.fence.value)
        fence, returned = document.get("fence"), document.get("returned")
        known = fence if _counts(fence) else None
        runs = returned if isinstance(returned, list) else []
        return known, tuple(run for run in runs if isinstance(run, str))


def encode(text: str) -> bytes:
    """Any text as the bytes of a key or value."""
    return text.encode("utf-8", "surrogatepass")


def decoded(data: bytes) -> str | None:
    """What ``encode`` made these bytes of; None when it made none such."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def term_document(grant: Grant) -> bytes:
    """What ``NAME/term`` says."""
    return _dump({"holder": str(grant.holder), "fence": grant.fence, "ttl": grant.ttl, "nonce": grant.nonce})


def fence_document(fence: int, returned: Sequence[str] = ()) -> bytes:
    """What ``NAME/fence`` says."""
    return _dump({"fence": fence, "returned": list(returned)})


def mark_document(grant: Grant, job_set_id: str, job: str, nonce: str) -> bytes:
    """What an @reboot mark says."""
    about: dict[str, Json] = {"jobSetId": job_set_id, "job": job}
    return _dump({**about, "holder": str(grant.holder), "fence": grant.fence, "nonce": nonce})


def nonce_of(data: bytes) -> str | None:
    """The nonce of an @reboot mark."""
    nonce = _document(data).get("nonce")
    return nonce if isinstance(nonce, str) else None


def _record(term: KeyValue, mark: str) -> LeaseRecord | None:
    document = _document(term.value)
    holder, fence, ttl, nonce = (document.get(key) for key in ("holder", "fence", "ttl", "nonce"))
    if not isinstance(holder, str) or not isinstance(nonce, str):
        return None
    if not _counts(fence) or not isinstance(ttl, int | float) or isinstance(ttl, bool) or not 0 < ttl <= LONGEST_TTL:
        return None
    return LeaseRecord(Holder.parse(holder), fence, nonce, float(ttl), None, mark)


def _counts(fence: Json) -> TypeGuard[int]:
    return isinstance(fence, int) and not isinstance(fence, bool) and 0 <= fence <= LARGEST_FENCE


def _document(data: bytes) -> Mapping[str, Json]:
    try:
        return wire.document(data)
    except wire.Malformed:
        return {}


def _dump(document: Mapping[str, Json]) -> bytes:
    return json.dumps(document).encode("ascii")
