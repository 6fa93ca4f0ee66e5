"""The state store ``memory``: everything is gone with the process. For trying things out, and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cronstable.api import (
    Clock,
    Document,
    Grant,
    Held,
    Holder,
    Host,
    LeaseRecord,
    LeaseStore,
    Observation,
    Seconds,
    Seen,
    StoredRecord,
    StoreInfo,
    Topology,
    Unreadable,
    Vacant,
)

_DIGITS: Final = 16


@dataclass(slots=True)
class Lease:
    """What stands in one lease. ``fence`` is the last one given, also when nobody holds it."""

    record: LeaseRecord | None = None
    returned: tuple[str, ...] = ()
    fence: int = 0

    def look(self) -> Seen | Vacant | Unreadable:
        """As an observer sees it."""
        return Seen(self.record) if self.record is not None else Vacant(self.fence or None, self.returned)


@dataclass(slots=True)
class Contents:
    """What is kept; several handles can share it. ``aside``: records that were taken out, by stream and name."""

    streams: dict[str, dict[str, bytes]] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    aside: dict[tuple[str, str], bytes] = field(default_factory=dict)
    written: int = 0

    def number(self) -> str:
        """A text that comes after every earlier one."""
        self.written += 1
        return f"{self.written:0{_DIGITS}d}"


def make(settings: object, host: Host) -> MemoryStateStore:
    """The factory of the descriptor; there is nothing to set."""
    return MemoryStateStore(host.clock)


class MemoryStateStore:
    """Implements ``StateStore``. It never fails, and nothing happens between a check and its write."""

    def __init__(self, clock: Clock, contents: Contents | None = None) -> None:
        self._clock = clock
        self.contents = contents if contents is not None else Contents()

    async def open(self) -> StoreInfo:
        """See ``StateStore.open``."""
        return StoreInfo("memory", Topology.PROCESS, "this process")

    async def aclose(self) -> None:
        """See ``StateStore.aclose``."""

    async def append(self, stream: str, data: bytes) -> str:
        """See ``StateStore.append``."""
        name = self.contents.number()
        self.contents.streams.setdefault(stream, {})[name] = data
        return name

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        """See ``StateStore.read``."""
        records = [StoredRecord(n, data) for n, data in self.contents.streams.get(stream, {}).items() if n > after]
        return records if limit is None else records[max(0, len(records) - limit) :]

    async def trim(self, stream: str, keep: int) -> None:
        """See ``StateStore.trim``."""
        records = self.contents.streams.get(stream, {})
        for name in list(records)[: max(0, len(records) - keep)]:
            self._take(stream, name)

    async def put_aside(self, stream: str, name: str) -> None:
        """See ``StateStore.put_aside``."""
        data = self._take(stream, name)
        if data is not None:
            self.contents.aside[stream, name] = data

    async def get(self, document: str) -> Document | None:
        """See ``StateStore.get``."""
        return self.contents.documents.get(document)

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        """See ``StateStore.put``."""
        if not self._is(document, expect):
            return None
        stands = self.contents.documents[document] = Document(data, self.contents.number())
        return stands

    async def delete(self, document: str, expect: str) -> bool:
        """See ``StateStore.delete``."""
        if not self._is(document, expect):
            return False
        del self.contents.documents[document]
        return True

    async def streams(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.streams``."""
        return sorted(name for name in self.contents.streams if name.startswith(prefix))

    async def documents(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.documents``."""
        return sorted(name for name in self.contents.documents if name.startswith(prefix))

    def lease(self, name: str) -> LeaseStore:
        """See ``StateStore.lease``."""
        return _MemoryLease(name, self.contents, self._clock)

    def _is(self, document: str, expect: str | None) -> bool:
        stands = self.contents.documents.get(document)
        return (stands.version if stands is not None else None) == expect

    def _take(self, stream: str, name: str) -> bytes | None:
        records = self.contents.streams.get(stream, {})
        data = records.pop(name, None)
        if not records:
            self.contents.streams.pop(stream, None)
        return data


class _MemoryLease:
    """Implements ``LeaseStore`` over a lease that all handles share."""

    def __init__(self, name: str, contents: Contents, clock: Clock) -> None:
        self._name = name
        self._contents = contents
        self._clock = clock

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """See ``LeaseStore.acquire``."""
        stands = self._lease().look()
        match stands:
            case Unreadable():
                return stands
            case Seen(record):
                if over is None or over.record.mark != record.mark:
                    return stands
            case Vacant():
                if over is not None:
                    return stands
        self._lease().fence += 1
        return self._hold(Grant(me, self._lease().fence, nonce, ttl))

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """See ``LeaseStore.renew``."""
        stands = self._lease().look()
        if not isinstance(stands, Seen) or not grant.owns(stands.record):
            return stands
        return self._hold(replace(grant, nonce=nonce))

    async def observe(self) -> Observation:
        """See ``LeaseStore.observe``."""
        return self._lease().look()

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """See ``LeaseStore.release``."""
        stands = self._lease().look()
        if isinstance(stands, Seen) and grant.owns(stands.record):
            self._lease().record, self._lease().returned = None, tuple(returned)

    def _lease(self) -> Lease:
        return self._contents.leases.setdefault(self._name, Lease())

    def _hold(self, grant: Grant) -> Held:
        expires = self._clock.now().wall + grant.ttl
        mark = self._contents.number()
        lease = self._lease()
        lease.record = LeaseRecord(grant.holder, grant.fence, grant.nonce, grant.ttl, expires, mark)
        lease.returned = ()
        return Held(replace(grant, tried=(), expires_at=expires))
