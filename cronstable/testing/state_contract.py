"""The contract of a state store. A backend author subclasses ``StateStoreContract`` and gives it one fixture.

    class TestMyState(StateStoreContract):
        @pytest.fixture
        def door(self, tmp_path):
            return MyDoor(tmp_path)          # a StateDoor, see below

Each test runs on a fresh, empty store and on the real event loop. A store's leases are held to ``LeaseStoreContract``
as well, in a class of their own: give it a ``LeaseDoor`` over ``store.lease(name)``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import anyio
import anyio.lowlevel
import pytest

from cronstable.core.store import Held, StoreUnavailable, Vacant
from cronstable.plugin.state_store import Document, Inspectable, StateStore, StoredRecord, Topology
from cronstable.testing.kit import ContractKit
from cronstable.testing.lease_contract import TTL, A, B, granted

ODD_NAMES: Final = (
    "runs/a",
    "runs/A",
    "runs/a/b",
    "runs/ab",
    "runs%2Fa",
    "runs/%61",
    ".",
    "..",
    "../a",
    "a/../b",
    "b",
    "a.b",
    "a.json",
    "con",
    "a b ",
    "a b",
    "tab\tand\nline",
    "nul\0byte",
    "~",
    "-r",
    "*?[x]",
    "a\\b",
    "q\"u'o`te$(x)",
    unicodedata.normalize("NFC", "café"),
    unicodedata.normalize("NFD", "café"),
    "日本",
    "K",
    "\N{KELVIN SIGN}",
    "x" * 512,
    "x" * 511 + "y",
    "\U0001f600" * 511 + "a",
    "\U0001f600" * 512,
    "p/" * 255 + "p",
)
"""Names that differ although some file system, database or library takes them for the same, or for somewhere else."""

ODD_DATA: Final = (b"", b"\0", b"\n", b"{}\n\n", bytes(range(256)), b"\xff\xfe" * 70_000, b"a" * 2**20)
"""Bytes up to the size that every store keeps."""


class StateDoor(Protocol):
    """One store, by the front door and by the back door."""

    def store(self) -> StateStore:
        """A new handle on the store, as another process would have; not opened."""
        ...

    def step_clock(self, seconds: float) -> None:
        """Step the wall clock of all handles, those to come too; nothing where a store reads no clock."""
        ...

    async def aside(self) -> Sequence[bytes]:
        """The data of all records that were put aside, found by other means."""
        ...

    def outage(self) -> AbstractAsyncContextManager[None]:
        """While it is entered the store cannot be used at all, through any handle."""
        ...


async def opened(door: StateDoor) -> StateStore:
    """A new handle, ready for use."""
    store = door.store()
    await store.open()
    return store


def data_of(records: Sequence[StoredRecord]) -> list[bytes]:
    """What is in them, in their order."""
    return [record.data for record in records]


def written(document: Document | None) -> Document:
    """The document of a write that must have been made."""
    assert document is not None, "the write was refused although its version stood"
    return document


class StateStoreContract(ContractKit, suite=True):
    """What every state store must do. ``crowd``: how many handles race."""

    crowd = 4
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The host runs on asyncio."""
        return "asyncio"

    # -- streams ------------------------------------------------------------------------------------------------------

    async def test_a_store_says_who_and_where_it_is(self, door: StateDoor) -> None:
        info = await door.store().open()
        assert info.backend
        assert info.location
        assert info.topology in Topology

    async def test_an_empty_store_has_nothing(self, door: StateDoor) -> None:
        store = await opened(door)
        assert list(await store.streams()) == list(await store.documents()) == []
        assert list(await store.read("s")) == []
        assert await store.get("d") is None

    async def test_a_record_is_there_for_every_handle_once_it_is_acknowledged(self, door: StateDoor) -> None:
        one, two = await opened(door), await opened(door)
        assert list(await two.read("s")) == []
        for number in range(3):
            name = await one.append("s", b"%d" % number)
            assert (await two.read("s"))[-1] == StoredRecord(name, b"%d" % number)
        assert data_of(await two.read("s")) == [b"0", b"1", b"2"]

    async def test_records_outlive_the_handle_that_wrote_them(self, door: StateDoor) -> None:
        store = await opened(door)
        await store.append("s", b"1")
        await store.put("d", b"2", None)
        await store.aclose()
        await store.aclose()
        other = await opened(door)
        assert data_of(await other.read("s")) == [b"1"]
        assert written(await other.get("d")).data == b"2"

    async def test_names_rise_by_text_whoever_appends(self, door: StateDoor) -> None:
        stores = [await opened(door) for _ in range(3)]
        names = [await stores[number % 3].append("s", b"%d" % number) for number in range(12)]
        assert sorted(set(names)) == names
        assert [record.name for record in await stores[0].read("s")] == names
        assert data_of(await stores[0].read("s")) == [b"%d" % number for number in range(12)]

    async def test_names_rise_when_the_clock_is_set_back(self, door: StateDoor) -> None:
        one, two = await opened(door), await opened(door)
        names = [await one.append("s", b"1"), await two.append("s", b"2")]
        door.step_clock(-3600.0)
        names += [await two.append("s", b"3"), await one.append("s", b"4")]
        late = await opened(door)
        names.append(await late.append("s", b"5"))
        assert sorted(set(names)) == names
        assert data_of(await late.read("s")) == [b"1", b"2", b"3", b"4", b"5"]

    async def test_a_name_is_never_used_again(self, door: StateDoor) -> None:
        store = await opened(door)
        names = [await store.append("s", b"1"), await store.append("s", b"2")]
        await store.put_aside("s", names[-1])
        names.append(await store.append("s", b"3"))
        door.step_clock(-3600.0)
        await store.trim("s", 0)
        names.append(await (await opened(door)).append("s", b"4"))
        await store.put_aside("s", names[-1])
        names.append(await (await opened(door)).append("s", b"5"))
        assert sorted(set(names)) == names
        assert data_of(await store.read("s")) == [b"5"]

    async def test_a_limit_keeps_the_newest_and_after_leaves_out_what_was_seen(self, door: StateDoor) -> None:
        store = await opened(door)
        names = [await store.append("s", b"%d" % number) for number in range(5)]
        assert data_of(await store.read("s", limit=2)) == [b"3", b"4"]
        assert data_of(await store.read("s", limit=9)) == [b"0", b"1", b"2", b"3", b"4"]
        assert data_of(await store.read("s", limit=0)) == []
        assert data_of(await store.read("s", after=names[1])) == [b"2", b"3", b"4"]
        assert data_of(await store.read("s", limit=1, after=names[1])) == [b"4"]
        assert data_of(await store.read("s", limit=4, after=names[3])) == [b"4"]
        assert data_of(await store.read("s", after=names[4])) == []
        await store.trim("s", 2)
        assert data_of(await store.read("s", after=names[0])) == [b"3", b"4"]

    async def test_trimming_keeps_the_newest_and_touches_nothing_else(self, door: StateDoor) -> None:
        store = await opened(door)
        for stream in ("s", "s/t", "st", "S"):
            for number in range(4):
                await store.append(stream, b"%d" % number)
        await store.trim("s", 9)
        await store.trim("s", 4)
        assert len(await store.read("s")) == 4
        await store.trim("s", 2)
        assert data_of(await store.read("s")) == [b"2", b"3"]
        await store.trim("s", 0)
        await store.trim("s", 0)
        await store.trim("nothing", 0)
        await store.trim("nothing", 3)
        assert list(await store.read("s")) == []
        assert list(await store.streams()) == ["S", "s/t", "st"]
        assert [len(await store.read(stream)) for stream in ("S", "s/t", "st")] == [4, 4, 4]

    async def test_a_record_that_is_put_aside_leaves_its_stream_and_is_kept(self, door: StateDoor) -> None:
        store = await opened(door)
        names = [await store.append("s", b"%d" % number) for number in range(3)]
        other = await store.append("t", b"other")
        await store.put_aside("s", names[1])
        await store.put_aside("s", names[1])
        await store.put_aside("s", "nothing")
        await store.put_aside("nothing", names[0])
        assert data_of(await (await opened(door)).read("s")) == [b"0", b"2"]
        assert list(await door.aside()) == [b"1"]
        await store.put_aside("t", other)
        assert list(await store.streams()) == ["s"]
        assert sorted(await door.aside()) == [b"1", b"other"]

    # -- names and data -----------------------------------------------------------------------------------------------

    async def test_two_names_that_differ_anywhere_are_two_streams(self, door: StateDoor) -> None:
        store = await opened(door)
        for name in ODD_NAMES:
            await store.append(name, name.encode())
        other = await opened(door)
        for name in ODD_NAMES:
            assert data_of(await other.read(name)) == [name.encode()], name
        assert list(await other.streams()) == sorted(ODD_NAMES)
        assert list(await other.documents()) == []

    async def test_two_names_that_differ_anywhere_are_two_documents(self, door: StateDoor) -> None:
        store = await opened(door)
        for name in ODD_NAMES:
            assert await store.put(name, name.encode(), None) is not None, name
        other = await opened(door)
        for name in ODD_NAMES:
            assert written(await other.get(name)).data == name.encode(), name
        assert list(await other.documents()) == sorted(ODD_NAMES)
        assert list(await other.streams()) == []

    async def test_a_prefix_is_text_and_not_a_folder(self, door: StateDoor) -> None:
        store = await opened(door)
        for name in ("runs/b", "runs/a", "runs", "run", "Runs/a", "runs/é", "x"):
            await store.append(name, b"1")
            await store.put(name, b"2", None)
        for listing in (store.streams, store.documents):
            assert list(await listing()) == ["Runs/a", "run", "runs", "runs/a", "runs/b", "runs/é", "x"]
            assert list(await listing("runs/")) == ["runs/a", "runs/b", "runs/é"]
            assert list(await listing("run")) == ["run", "runs", "runs/a", "runs/b", "runs/é"]
            assert list(await listing("runs/a")) == ["runs/a"]
            assert list(await listing("y")) == []

    async def test_data_come_back_byte_for_byte(self, door: StateDoor) -> None:
        store = await opened(door)
        for data in ODD_DATA:
            await store.append("s", data)
        other = await opened(door)
        assert data_of(await other.read("s")) == list(ODD_DATA)
        version = None
        for data in ODD_DATA:
            version = written(await store.put("d", data, version)).version
            assert written(await other.get("d")) == Document(data, version)

    # -- documents ----------------------------------------------------------------------------------------------------

    async def test_a_document_is_written_only_over_the_version_that_was_named(self, door: StateDoor) -> None:
        one, two = await opened(door), await opened(door)
        assert await one.put("d", b"x", "nothing") is None
        first = written(await one.put("d", b"1", None))
        assert await two.get("d") == first
        assert await two.put("d", b"x", None) is None
        second = written(await two.put("d", b"2", first.version))
        assert await one.put("d", b"x", first.version) is None
        assert await one.get("d") == second == Document(b"2", second.version)

    async def test_a_version_is_good_for_one_write_also_when_the_data_come_back(self, door: StateDoor) -> None:
        store = await opened(door)
        first = written(await store.put("d", b"1", None))
        second = written(await store.put("d", b"2", first.version))
        third = written(await store.put("d", b"1", second.version))
        assert len({first.version, second.version, third.version}) == 3
        assert await store.put("d", b"x", first.version) is None
        assert written(await store.put("d", b"1", third.version)).version != third.version

    async def test_a_document_is_deleted_only_in_the_version_that_was_named(self, door: StateDoor) -> None:
        one, two = await opened(door), await opened(door)
        assert await one.delete("d", "nothing") is False
        first = written(await one.put("d", b"1", None))
        second = written(await one.put("d", b"2", first.version))
        assert await two.delete("d", first.version) is False
        assert await one.get("d") == second
        assert await two.delete("d", second.version) is True
        assert await one.get("d") is None
        assert list(await one.documents()) == []
        assert await one.delete("d", second.version) is False
        assert await one.put("d", b"x", second.version) is None
        again = written(await one.put("d", b"2", None))
        assert again.version not in (first.version, second.version)

    async def test_of_many_that_write_one_version_exactly_one_does(self, door: StateDoor) -> None:
        stores = [await opened(door) for _ in range(self.crowd)]
        version: str | None = None
        for number in range(3):
            done: list[Document] = []

            async def write(
                who: int, *, version: str | None = version, number: int = number, done: list[Document] = done
            ) -> None:
                document = await stores[who].put("d", b"%d by %d" % (number, who), version)
                if document is not None:
                    done.append(document)

            async with anyio.create_task_group() as tasks:
                for who in range(self.crowd):
                    tasks.start_soon(write, who)
            assert len(done) == 1
            assert await stores[0].get("d") == done[0]
            version = done[0].version

    async def test_a_counter_that_many_raise_loses_nothing(self, door: StateDoor) -> None:
        rounds = 3

        async def raise_it() -> None:
            store = await opened(door)
            left = rounds
            while left:
                stands = await store.get("d")
                value = b"%d" % (int(stands.data if stands is not None else b"0") + 1)
                if await store.put("d", value, stands.version if stands is not None else None) is not None:
                    left -= 1

        async with anyio.create_task_group() as tasks:
            for _ in range(self.crowd):
                tasks.start_soon(raise_it)
        assert written(await (await opened(door)).get("d")).data == b"%d" % (rounds * self.crowd)

    # -- at the same time ---------------------------------------------------------------------------------------------

    async def test_a_reader_that_goes_on_where_it_was_misses_nothing(self, door: StateDoor) -> None:
        """No name may turn up below one that was seen already."""
        each = 6
        seen: list[bytes] = []
        ended: list[int] = []

        async def write(who: int) -> None:
            store = await opened(door)
            for number in range(each):
                await store.append("s", b"%d-%d" % (who, number))
            ended.append(who)

        async def follow() -> None:
            store = await opened(door)
            after = ""
            while True:
                over = len(ended) == self.crowd
                for record in await store.read("s", after=after):
                    seen.append(record.data)
                    after = record.name
                if over:
                    return
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            for who in range(self.crowd):
                tasks.start_soon(write, who)
            tasks.start_soon(follow)
        assert sorted(seen) == sorted(b"%d-%d" % (who, number) for who in range(self.crowd) for number in range(each))
        assert data_of(await (await opened(door)).read("s")) == seen
        for who in range(self.crowd):
            own = [data for data in seen if data.startswith(b"%d-" % who)]
            assert own == [b"%d-%d" % (who, number) for number in range(each)]

    async def test_trimming_never_takes_what_is_being_written(self, door: StateDoor) -> None:
        ended = False

        async def trim() -> None:
            store = await opened(door)
            while not ended:
                await store.trim("s", 1)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trim)
            store = await opened(door)
            names = []
            for number in range(8):
                names.append(await store.append("s", b"%d" % number))
                newest = await store.read("s", limit=1)
                assert data_of(newest) == [b"%d" % number]
            ended = True
        assert sorted(set(names)) == names

    async def test_a_call_may_be_cancelled_anywhere_and_the_handle_goes_on(self, door: StateDoor) -> None:
        store = await opened(door)
        version = written(await store.put("d", b"0", None)).version
        first = await store.append("s", b"0")
        calls: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: store.append("s", b"x"),
            lambda: store.read("s"),
            lambda: store.put("d", b"x", version),
            lambda: store.get("d"),
            lambda: store.streams(),
            lambda: store.trim("t", 1),
            lambda: store.open(),
        )
        for call in calls:
            for steps in range(4):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
        name = await store.append("s", b"1")
        records = await store.read("s")
        assert (records[0].name, records[0].data) == (first, b"0")
        assert (records[-1].name, records[-1].data) == (name, b"1")
        assert set(data_of(records[1:-1])) <= {b"x"}
        stands = written(await store.get("d"))
        assert stands.data in (b"0", b"x")
        assert await store.put("d", b"2", stands.version) is not None

    # -- bad days -----------------------------------------------------------------------------------------------------

    async def test_an_outage_is_unavailable_and_nothing_else(self, door: StateDoor) -> None:
        store = await opened(door)
        name = await store.append("s", b"1")
        version = written(await store.put("d", b"1", None)).version
        calls: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: store.append("s", b"2"),
            lambda: store.read("s"),
            lambda: store.trim("s", 0),
            lambda: store.put_aside("s", name),
            lambda: store.get("d"),
            lambda: store.put("d", b"2", version),
            lambda: store.delete("d", version),
            lambda: store.streams(),
            lambda: store.documents(),
            lambda: store.lease("l").acquire(A, TTL, nonce="n1"),
            lambda: store.lease("l").observe(),
            lambda: door.store().open(),
        )
        async with door.outage():
            for number, call in enumerate(calls):
                try:
                    await call()
                except StoreUnavailable:
                    continue
                pytest.fail(f"call number {number} worked during an outage")
            await store.aclose()

    async def test_what_was_acknowledged_is_there_after_an_outage(self, door: StateDoor) -> None:
        store = await opened(door)
        names = [await store.append("s", b"1")]
        version = written(await store.put("d", b"1", None)).version
        async with door.outage():
            with pytest.raises(StoreUnavailable):
                await store.append("s", b"lost")
        await store.open()
        names.append(await store.append("s", b"2"))
        assert sorted(set(names)) == names
        records = await store.read("s")
        assert [record.data for record in records if record.data != b"lost"] == [b"1", b"2"]
        assert written(await store.get("d")).data == b"1"
        assert await store.put("d", b"2", version) is not None

    async def test_a_store_that_is_well_has_no_damage(self, door: StateDoor) -> None:
        store = await opened(door)
        names = [await store.append("runs/A b", b"%d" % number) for number in range(3)]
        await store.put_aside("runs/A b", names[0])
        await store.trim("runs/A b", 1)
        await store.append("gone", b"1")
        await store.trim("gone", 0)
        first = written(await store.put("D", b"1", None))
        await store.put("d", b"1", None)
        await store.delete("D", first.version)
        granted(await store.lease("L").acquire(A, TTL, nonce="n1"))
        if isinstance(store, Inspectable):
            assert [damage async for damage in store.inspect(repair=False)] == []
            assert [damage async for damage in store.inspect(repair=True)] == []
        assert data_of(await store.read("runs/A b")) == [b"2"]

    # -- leases -------------------------------------------------------------------------------------------------------

    async def test_a_lease_of_a_name_is_one_lease_for_all_handles(self, door: StateDoor) -> None:
        one, two = await opened(door), await opened(door)
        grant = granted(await one.lease("slots/a").acquire(A, TTL, nonce="n1"))
        assert not isinstance(await two.lease("slots/a").acquire(B, TTL, nonce="n2"), Held)
        await one.lease("slots/a").release(grant, ())
        assert granted(await two.lease("slots/a").acquire(B, TTL, nonce="n3")).fence > grant.fence

    async def test_leases_of_two_names_have_nothing_to_do_with_each_other(self, door: StateDoor) -> None:
        store = await opened(door)
        names = (".", "..", "a", "A", "a/b", "a.lock", "a%2Fb", "x" * 512, "x" * 511 + "y")
        for number, name in enumerate(names):
            granted(await store.lease(name).acquire(A, TTL, nonce=f"n{number}"))
        await store.append("a", b"1")
        await store.put("a", b"2", None)
        assert list(await store.streams()) == list(await store.documents()) == ["a"]
        seen = await store.lease("b").observe()
        assert isinstance(seen, Vacant)

    async def test_a_fence_grows_over_every_term_of_its_lease(self, door: StateDoor) -> None:
        fences = []
        for number in range(4):
            store = await opened(door)
            grant = granted(await store.lease("l").acquire(A if number % 2 else B, TTL, nonce=f"n{number}"))
            fences.append(grant.fence)
            await store.lease("l").release(grant, ())
            door.step_clock(-3600.0)
        assert sorted(set(fences)) == fences
