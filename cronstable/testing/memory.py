"""A lease in memory: the linearisable reference that the contract kit is proven on, with fault points."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

import anyio
import anyio.lowlevel

from cronstable.core.clock import Clock, Seconds
from cronstable.core.store import (
    Appended,
    Fenced,
    Grant,
    Held,
    Holder,
    LeaseRecord,
    Observation,
    Seen,
    Span,
    StoreUnavailable,
    Taken,
    Unreadable,
    Vacant,
    Won,
)


class Point(StrEnum):
    """Where in an operation a fault can strike."""

    BEFORE_COMMIT = "before commit"
    BEFORE_ANSWER = "after commit, before the answer"
    AFTER_ANSWER = "after the answer"


FaultPoint: TypeAlias = Callable[[Point, str], Awaitable[None]]
"""Called with the point and the operation's name; may wait, raise ``StoreUnavailable`` or change the lease."""


@dataclass(slots=True)
class MemoryLease:
    """The truth that all handles share, and the back door to it.

    ``record`` None: nothing stands there. ``released``: it stands, but nobody holds it any more. ``garbage``: the
    bytes are no lease. ``last_fence`` outlives all of them. ``holds_all``: claims, marks and entries stand in the lease
    and go when it is deleted, as on Kubernetes.
    """

    record: LeaseRecord | None = None
    released: bool = False
    returned: tuple[str, ...] = ()
    garbage: str | None = None
    last_fence: int = 0
    writes: int = 0
    marks: dict[tuple[str, str], str] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)
    low: int = 0
    entries: dict[int, bytes] = field(default_factory=dict)
    holds_all: bool = False

    def write(self, record: LeaseRecord) -> LeaseRecord:
        """Put ``record`` there under a new mark."""
        self.writes += 1
        self.record = replace(record, mark=f"w{self.writes}")
        self.released, self.returned, self.garbage = False, (), None
        self.last_fence = max(self.last_fence, record.fence)
        return self.record

    def delete(self) -> None:
        """As an operator would."""
        self.record, self.released, self.returned, self.garbage = None, False, (), None
        if self.holds_all:
            self.marks, self.records, self.low, self.entries = {}, {}, 0, {}

    def look(self) -> Seen | Vacant | Unreadable:
        """What stands there."""
        if self.garbage is not None:
            return Unreadable(self.garbage)
        if self.record is None:
            return Vacant()
        if self.released:
            return Vacant(self.record.fence, self.returned)
        return Seen(self.record)


async def _no_fault(point: Point, operation: str) -> None:
    return None


class MemoryLeaseStore:
    """One process's handle on a ``MemoryLease``, its marks and its claims. Nothing happens between check and write.

    ``clock``: given, records carry a wall expiry, and the claim log tells its time. ``at``: the fault points.
    ``granted``: the longest ttl it grants. ``least_fence``: what a term gets at least, such as the unix time.
    """

    def __init__(
        self,
        lease: MemoryLease,
        *,
        clock: Clock | None = None,
        at: FaultPoint = _no_fault,
        granted: Seconds = math.inf,
        least_fence: Callable[[], int] = lambda: 0,
    ) -> None:
        self.lease = lease
        self.clock = clock
        self.at = at
        self.granted = granted
        self.least_fence = least_fence
        self._asked = math.inf

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """See ``LeaseStore.acquire``."""
        self._asked = ttl
        return await self._write("acquire", lambda: self.commit_acquire(me, ttl, nonce, over))

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """See ``LeaseStore.renew``."""
        return await self._write("renew", lambda: self.commit_renew(grant, nonce))

    async def observe(self) -> Observation:
        """See ``LeaseStore.observe``."""
        return await self._write("observe", self.lease.look)

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """See ``LeaseStore.release``."""
        await self.at(Point.BEFORE_COMMIT, "release")
        self.commit_release(grant, tuple(returned))
        await self.at(Point.BEFORE_ANSWER, "release")

    async def reboot_marks(self, job_set_id: str) -> frozenset[str]:
        """See ``RebootMarks.reboot_marks``."""
        await self.at(Point.BEFORE_COMMIT, "reboot_marks")
        return frozenset(job for scope, job in self.lease.marks if scope == job_set_id)

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        """See ``RebootMarks.mark_reboot``."""
        await self.at(Point.BEFORE_COMMIT, "mark_reboot")
        stands = self.lease.look()
        created = isinstance(stands, Seen) and grant.owns(stands.record)
        if created:
            created = self.lease.marks.setdefault((job_set_id, job), nonce) == nonce
        await self.at(Point.BEFORE_ANSWER, "mark_reboot")
        return created

    async def append(self, grant: Grant, number: int, record: bytes) -> Appended:
        """See ``ClaimLog.append``."""
        await self.at(Point.BEFORE_COMMIT, "append")
        answer = self.commit_append(grant, number, record)
        await self.at(Point.BEFORE_ANSWER, "append")
        await self.at(Point.AFTER_ANSWER, "append")
        return answer

    async def read(self, number: int) -> bytes | None:
        """See ``ClaimLog.read``."""
        await self.at(Point.BEFORE_COMMIT, "read")
        return self.lease.records.get(number)

    async def span(self) -> Span:
        """See ``ClaimLog.span``."""
        await self.at(Point.BEFORE_COMMIT, "span")
        records = self.lease.records
        return Span(min(records, default=self.lease.low), max(records, default=max(0, self.lease.low - 1)), self.wall())

    async def trim(self, grant: Grant, first: int) -> None:
        """See ``ClaimLog.trim``."""
        await self.at(Point.BEFORE_COMMIT, "trim")
        self.commit_trim(grant, first)

    async def put_entry(self, entry: bytes) -> None:
        """See ``ClaimLog.put_entry``."""
        await self.at(Point.BEFORE_COMMIT, "put_entry")
        self.lease.entries.pop(id(self), None)
        if entry:
            self.lease.entries[id(self)] = entry

    async def entries(self) -> Sequence[bytes]:
        """See ``ClaimLog.entries``."""
        await self.at(Point.BEFORE_COMMIT, "entries")
        return tuple(self.lease.entries.values())

    def wall(self) -> float:
        """The store's clock; it stands at 0 when none was given."""
        return self.clock.now().wall if self.clock is not None else 0.0

    def holds(self, grant: Grant) -> bool:
        """Whether the term of ``grant`` is the one that stands."""
        stands = self.lease.look()
        if not isinstance(stands, Seen):
            return False
        return (stands.record.holder, stands.record.fence) == (grant.holder, grant.fence)

    def commit_append(self, grant: Grant, number: int, record: bytes) -> Appended:
        """The atomic step of ``append``."""
        if not self.holds(grant):
            return Fenced()
        if number < self.lease.low:
            return Taken(b"")
        if number in self.lease.records:
            return Taken(self.lease.records[number])
        self.lease.records[number] = record
        return Won(self.wall())

    def commit_trim(self, grant: Grant, first: int) -> None:
        """The atomic step of ``trim``."""
        if self.holds(grant):
            self.lease.low = max(self.lease.low, first)
            self.lease.records = {n: record for n, record in self.lease.records.items() if n >= self.lease.low}

    async def _write(self, operation: str, commit: Callable[[], Observation]) -> Observation:
        await self.at(Point.BEFORE_COMMIT, operation)
        answer = commit()
        await self.at(Point.BEFORE_ANSWER, operation)
        await self.at(Point.AFTER_ANSWER, operation)
        return answer

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        """The atomic step of ``acquire``."""
        stands = self.lease.look()
        match stands:
            case Unreadable():
                return stands
            case Seen(record):
                if over is None or over.record.mark != record.mark:
                    return stands
            case Vacant():
                if over is not None:
                    return stands
        return self._hold(me, max(self.lease.last_fence + 1, self.least_fence()), min(ttl, self.granted), nonce)

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        """The atomic step of ``renew``."""
        stands = self.lease.look()
        if not isinstance(stands, Seen) or not grant.owns(stands.record):
            return stands
        ttl = grant.ttl if math.isinf(self._asked) else self._asked
        return self._hold(grant.holder, grant.fence, min(ttl, self.granted), nonce)

    def commit_release(self, grant: Grant, returned: tuple[str, ...]) -> None:
        """The atomic step of ``release``."""
        stands = self.lease.look()
        if isinstance(stands, Seen) and grant.owns(stands.record):
            self.lease.released, self.lease.returned = True, returned

    def _hold(self, holder: Holder, fence: int, ttl: Seconds, nonce: str) -> Held:
        expires = self.clock.now().wall + ttl if self.clock is not None else None
        record = self.lease.write(LeaseRecord(holder, fence, nonce, ttl, expires))
        return Held(Grant(holder, fence, nonce, ttl, record.expires_at))


class MemoryDoor:
    """The front and the back door of one ``MemoryLease``: what ``LeaseStoreContract`` asks a backend author for.

    ``kind`` makes the store, so that a broken variant can be put in its place.
    """

    def __init__(self, kind: Callable[..., MemoryLeaseStore] | None = None) -> None:
        self.lease = MemoryLease()
        self._kind = kind if kind is not None else MemoryLeaseStore
        self._down = False

    def store(self) -> MemoryLeaseStore:
        """A new handle."""
        return self._kind(self.lease, at=self._strike)

    async def record(self) -> LeaseRecord | None:
        """Straight from the shared state."""
        stands = self.lease.look()
        return stands.record if isinstance(stands, Seen) else None

    async def delete(self) -> None:
        """Nothing is left, but the fence is remembered."""
        self.lease.delete()

    async def garble(self) -> None:
        """The record becomes unreadable."""
        self.lease.garbage = "not a lease"

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Every operation fails before it commits."""
        self._down = True
        try:
            yield
        finally:
            self._down = False

    async def expire_now(self) -> None:
        """As a store does that removes a dead holder's record."""
        self.lease.delete()

    @asynccontextmanager
    async def rollback(self) -> AsyncIterator[None]:
        """A restore from the copy of before."""
        copy = replace(self.lease, records=dict(self.lease.records), marks=dict(self.lease.marks))
        yield
        for name in ("record", "released", "returned", "garbage", "last_fence", "marks", "records", "low"):
            setattr(self.lease, name, getattr(copy, name))

    async def _strike(self, point: Point, operation: str) -> None:
        await anyio.lowlevel.checkpoint()
        if self._down:
            raise StoreUnavailable("the memory store is down")
