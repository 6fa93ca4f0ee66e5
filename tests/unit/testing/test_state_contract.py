"""The contract of a state store: the memory store keeps it, and each planted bug is caught."""

from __future__ import annotations

import hashlib
import posixpath
import unicodedata
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from cronstable.api import (
    Clock,
    Document,
    Grant,
    Held,
    LeaseRecord,
    LeaseStore,
    StateStore,
    StoredRecord,
    StoreUnavailable,
    Unreadable,
)
from cronstable.builtin.memory_state import Contents, Lease, MemoryStateStore
from cronstable.testing.clock import VirtualClock
from cronstable.testing.faults import FaultyStateStore, FaultyStore, Hang, LoseAnswer
from cronstable.testing.kit import violations
from cronstable.testing.lease_contract import TTL, A, LeaseStoreContract
from cronstable.testing.state_contract import StateStoreContract


class Door:
    """A ``StateDoor`` over memory; ``kind`` makes the handles, so that a broken one can be put in their place."""

    def __init__(self, kind: type[MemoryStateStore] = MemoryStateStore) -> None:
        self.contents = Contents()
        self.clock = VirtualClock()
        self.kind = kind
        self.handles: list[FaultyStateStore] = []
        self.down = False

    def store(self) -> StateStore:
        handle = FaultyStateStore(self.kind(self.clock, self.contents), {}, self.clock)
        handle.down = self.down
        self.handles.append(handle)
        return handle

    def step_clock(self, seconds: float) -> None:
        self.clock.step_wall(seconds)

    async def aside(self) -> Sequence[bytes]:
        return list(self.contents.aside.values())

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self._set(True)
        try:
            yield
        finally:
            self._set(False)

    def _set(self, down: bool) -> None:
        self.down = down
        for handle in self.handles:
            handle.down = down


class Garbled(Lease):
    """Nothing that anybody could read."""

    def look(self) -> Unreadable:
        return Unreadable("not a lease")


class LeaseDoor:
    """A ``LeaseDoor`` over one lease of a store in memory."""

    def __init__(self) -> None:
        self.door = Door()

    def store(self) -> LeaseStore:
        return self.door.store().lease("l")

    async def record(self) -> LeaseRecord | None:
        lease = self.door.contents.leases.get("l")
        return lease.record if lease is not None else None

    async def delete(self) -> None:
        self.door.contents.leases["l"].record = None

    async def garble(self) -> None:
        self.door.contents.leases["l"] = Garbled()

    def outage(self) -> AbstractAsyncContextManager[None]:
        return self.door.outage()


class TestMemoryState(StateStoreContract):
    @pytest.fixture
    def door(self) -> Door:
        return Door()


class TestMemoryStateLease(LeaseStoreContract):
    @pytest.fixture
    def door(self) -> LeaseDoor:
        return LeaseDoor()


# -- planted bugs ---------------------------------------------------------------------------------------------------


class Renames(MemoryStateStore):
    """What bugs in names share."""

    def bent(self, name: str) -> str:
        return name

    async def append(self, stream: str, data: bytes) -> str:
        return await super().append(self.bent(stream), data)

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        return await super().read(self.bent(stream), limit=limit, after=after)

    async def get(self, document: str) -> Document | None:
        return await super().get(self.bent(document))

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        return await super().put(self.bent(document), data, expect)


class FoldsCase(Renames):
    def bent(self, name: str) -> str:
        return name.lower()


class NormalisesText(Renames):
    def bent(self, name: str) -> str:
        return unicodedata.normalize("NFC", name)


class ResolvesDots(Renames):
    def bent(self, name: str) -> str:
        return posixpath.normpath(name)


class CutsLongNames(Renames):
    def bent(self, name: str) -> str:
        return name[:255]


class DecodesPercent(Renames):
    def bent(self, name: str) -> str:
        return name.replace("%2F", "/")


class Appends(MemoryStateStore):
    """What bugs in the names of records share."""

    def next_name(self, stream: str) -> str:
        raise AssertionError

    async def append(self, stream: str, data: bytes) -> str:
        name = self.next_name(stream)
        self.contents.streams.setdefault(stream, {})[name] = data
        return name


class NamesByClock(Appends):
    def next_name(self, stream: str) -> str:
        return f"{self._clock.now().wall:020.6f}-{self.contents.number()}"


class NamesByCount(Appends):
    def next_name(self, stream: str) -> str:
        return f"{len(self.contents.streams.get(stream, {})) + 1:016d}"


class NamesAfterTheNewest(Appends):
    """Forgets where it was when the stream goes."""

    def next_name(self, stream: str) -> str:
        return f"{int(max(self.contents.streams.get(stream, {'0': b''}))) + 1:016d}"


class NamesByHandle(Appends):
    def next_name(self, stream: str) -> str:
        return f"{id(self):020d}-{self.contents.number()}"


class NamesBySizeOfNumber(Appends):
    """Numbers that are compared as numbers by their author and as text by everybody else."""

    def next_name(self, stream: str) -> str:
        return str(int(self.contents.number()))


class NamesBeforeItWrites(MemoryStateStore):
    """A name is taken first and the record follows later."""

    async def append(self, stream: str, data: bytes) -> str:
        name = self.contents.number()
        for _ in range(int(name) % 3):
            await anyio.lowlevel.checkpoint()
        records = {**self.contents.streams.get(stream, {}), name: data}
        self.contents.streams[stream] = dict(sorted(records.items()))
        return name


class LosesOneOfTwo(MemoryStateStore):
    """Reads the stream, and writes it back with one more."""

    async def append(self, stream: str, data: bytes) -> str:
        records = dict(self.contents.streams.get(stream, {}))
        await anyio.lowlevel.checkpoint()
        name = self.contents.number()
        self.contents.streams[stream] = {**records, name: data}
        return name


class KeepsACopy(MemoryStateStore):
    """A handle reads a stream once."""

    def __init__(self, clock: Clock, contents: Contents | None = None) -> None:
        super().__init__(clock, contents)
        self._copies: dict[str, Sequence[StoredRecord]] = {}

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        if stream not in self._copies:
            self._copies[stream] = await super().read(stream)
        records = [record for record in self._copies[stream] if record.name > after]
        return records if limit is None else records[len(records) - min(limit, len(records)) :]


class LimitKeepsTheOldest(MemoryStateStore):
    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        return (await super().read(stream, after=after))[:limit]


class LimitZeroIsNoLimit(MemoryStateStore):
    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        return await super().read(stream, limit=limit or None, after=after)


class AfterIsIncluded(MemoryStateStore):
    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        return await super().read(stream, limit=limit, after=after[:-1] + chr(ord(after[-1]) - 1) if after else "")


class TrimsTheNewest(MemoryStateStore):
    async def trim(self, stream: str, keep: int) -> None:
        for name in list(self.contents.streams.get(stream, {}))[keep:]:
            self._take(stream, name)


class TrimsByPrefix(MemoryStateStore):
    async def trim(self, stream: str, keep: int) -> None:
        for name in await self.streams(stream):
            await super().trim(name, keep)


class LeavesEmptyStreams(MemoryStateStore):
    async def trim(self, stream: str, keep: int) -> None:
        if keep == 0 and stream in self.contents.streams:
            self.contents.streams[stream] = {}
        else:
            await super().trim(stream, keep)


class ThrowsAwayWhatIsPutAside(MemoryStateStore):
    async def put_aside(self, stream: str, name: str) -> None:
        self._take(stream, name)


class FailsOverWhatIsGone(MemoryStateStore):
    async def put_aside(self, stream: str, name: str) -> None:
        self.contents.aside[stream, name] = self.contents.streams[stream][name]
        self._take(stream, name)


class PrefixIsAFolder(MemoryStateStore):
    async def streams(self, prefix: str = "") -> Sequence[str]:
        folder = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        return [name for name in await super().streams() if name.startswith(folder)]


class ListsAsItCame(MemoryStateStore):
    async def streams(self, prefix: str = "") -> Sequence[str]:
        return [name for name in self.contents.streams if name.startswith(prefix)]


class OneSpaceForAll(MemoryStateStore):
    async def documents(self, prefix: str = "") -> Sequence[str]:
        return sorted({*await super().documents(prefix), *await super().streams(prefix)})


class CutsLongData(MemoryStateStore):
    async def append(self, stream: str, data: bytes) -> str:
        return await super().append(stream, data[:65_536])


class StripsData(MemoryStateStore):
    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        return await super().put(document, data.rstrip(b"\n"), expect)


class PutsBlindly(MemoryStateStore):
    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        stands = await self.get(document)
        return await super().put(document, data, stands.version if stands is not None else None)


class ComparesThenWrites(MemoryStateStore):
    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        if not self._is(document, expect):
            return None
        await anyio.lowlevel.checkpoint()
        stands = self.contents.documents[document] = Document(data, self.contents.number())
        return stands


class CreatesOverWhatIsThere(MemoryStateStore):
    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        if expect is None:
            self.contents.documents.pop(document, None)
        return await super().put(document, data, expect)


class VersionsAreDigests(MemoryStateStore):
    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        written = await super().put(document, data, expect)
        if written is not None:
            written = replace(written, version=hashlib.sha256(data).hexdigest())
            self.contents.documents[document] = written
        return written


class VersionsStartAgain(MemoryStateStore):
    """The count of writes goes with the document."""

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        written = await super().put(document, data, expect)
        if written is not None:
            written = replace(written, version=str(int(expect or 0) + 1))
            self.contents.documents[document] = written
        return written


class DeletesAnything(MemoryStateStore):
    async def delete(self, document: str, expect: str) -> bool:
        return self.contents.documents.pop(document, None) is not None


class StaysLockedWhenCancelled(MemoryStateStore):
    def __init__(self, clock: Clock, contents: Contents | None = None) -> None:
        super().__init__(clock, contents)
        self._busy = False

    async def append(self, stream: str, data: bytes) -> str:
        if self._busy:
            raise StoreUnavailable("busy")
        self._busy = True
        await anyio.lowlevel.checkpoint()
        self._busy = False
        return await super().append(stream, data)


class RaisesWhatItLikes(MemoryStateStore):
    """An outage comes out as the library's own error."""

    async def put_aside(self, stream: str, name: str) -> None:
        raise OSError("no such record") if stream == "nothing" else AssertionError("the plan is to fail")


class ForgetsWhatItHeld(MemoryStateStore):
    """Closing a handle takes what it wrote along."""

    async def aclose(self) -> None:
        self.contents.streams.clear()


class OneLeaseForAll(MemoryStateStore):
    def lease(self, name: str) -> LeaseStore:
        return super().lease("the lease")


class LeasesOfAHandle(MemoryStateStore):
    def lease(self, name: str) -> LeaseStore:
        return super().lease(f"{name}-{id(self)}")


class _FenceOfTheRecord:
    """A lease whose fence is forgotten when it is let go."""

    def __init__(self, inner: LeaseStore, lease: Lease) -> None:
        self._inner, self._lease = inner, lease
        self.acquire, self.renew, self.observe = inner.acquire, inner.renew, inner.observe

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        await self._inner.release(grant, returned)
        self._lease.fence = 0


class ForgetsFences(MemoryStateStore):
    def lease(self, name: str) -> LeaseStore:
        inner = super().lease(name)
        return _FenceOfTheRecord(inner, self.contents.leases.setdefault(name, Lease()))


PLANTED: dict[str, type[MemoryStateStore]] = {
    kind.__name__: kind
    for kind in (
        FoldsCase,
        NormalisesText,
        ResolvesDots,
        CutsLongNames,
        DecodesPercent,
        NamesByClock,
        NamesByCount,
        NamesAfterTheNewest,
        NamesByHandle,
        NamesBySizeOfNumber,
        NamesBeforeItWrites,
        LosesOneOfTwo,
        KeepsACopy,
        LimitKeepsTheOldest,
        LimitZeroIsNoLimit,
        AfterIsIncluded,
        TrimsTheNewest,
        TrimsByPrefix,
        LeavesEmptyStreams,
        ThrowsAwayWhatIsPutAside,
        FailsOverWhatIsGone,
        PrefixIsAFolder,
        ListsAsItCame,
        OneSpaceForAll,
        CutsLongData,
        StripsData,
        PutsBlindly,
        ComparesThenWrites,
        CreatesOverWhatIsThere,
        VersionsAreDigests,
        VersionsStartAgain,
        DeletesAnything,
        StaysLockedWhenCancelled,
        RaisesWhatItLikes,
        ForgetsWhatItHeld,
        OneLeaseForAll,
        LeasesOfAHandle,
        ForgetsFences,
    )
}


def test_the_memory_store_violates_nothing() -> None:
    assert violations(StateStoreContract, Door) == {}
    assert violations(LeaseStoreContract, LeaseDoor) == {}


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_the_contract_catches(bug: str) -> None:
    assert violations(StateStoreContract, lambda: Door(PLANTED[bug]))


# -- the store of faults --------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_faulty_store_loses_answers_by_plan_and_hangs_until_it_is_cancelled() -> None:
    clock = VirtualClock()
    inner = MemoryStateStore(clock)
    store = FaultyStateStore(inner, {("append", 1): LoseAnswer(), ("put", 1): Hang(committed=True)}, clock)
    with pytest.raises(StoreUnavailable) as caught:
        await store.append("s", b"1")
    assert caught.value.ambiguous
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "d", b"1", None)
        while await inner.get("d") is None:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert [record.data for record in await store.read("s")] == [b"1"]
    assert store.count("append") == store.count("put") == 1


@pytest.mark.anyio
async def test_leases_of_a_faulty_store_follow_its_plan() -> None:
    clock = VirtualClock()
    store = FaultyStateStore(MemoryStateStore(clock), {("acquire", 1): LoseAnswer()}, clock)
    lease = store.lease("l")
    assert isinstance(lease, FaultyStore)
    with pytest.raises(StoreUnavailable):
        await lease.acquire(A, TTL, nonce="n1")
    store.down = True
    with pytest.raises(StoreUnavailable):
        await lease.observe()
    store.down = False
    assert not isinstance(await store.lease("l").acquire(A, TTL, nonce="n2"), Held)
