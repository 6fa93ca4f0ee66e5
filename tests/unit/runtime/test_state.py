"""The state keeper on virtual time: what waits, what is dropped, and that nobody is held up by a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from cronstable.config.model import StateConfig
from cronstable.core.records import WriteKind, encode
from cronstable.core.store import StoreUnavailable
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.plugin.protocols import LeaseStore
from cronstable.plugin.state_store import Document, LockCount, RecordsUnreadable, StoredRecord, StoreInfo, Topology
from cronstable.runtime.state import Absent, Conflict, Newest, StateKeeper, Stored, Unavailable
from cronstable.runtime.state_queue import Write, WriteQueue
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.host import FakeHost, SeededRng
from cronstable.testing.memory import MemoryLease, MemoryLeaseStore

RUNS, LOG = WriteKind.RUN_RECORD, WriteKind.LOG
BACKEND = StateStoreBackend(name="planted", factory="none:none")


class Store:
    """A store in memory that can be down, hang, or refuse to write."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.streams_: dict[str, list[StoredRecord]] = {}
        self.documents_: dict[str, Document] = {}
        self.aside: list[str] = []
        self.asked: list[tuple[float, str]] = []
        self.trims: list[tuple[str, int]] = []
        self.down = self.hung = self.full = self.buggy = False
        self.unreadable: set[str] = set()
        self.slow = 0.0
        self.closed = 0
        self._serial = 0

    async def _ask(self, op: str) -> None:
        self.asked.append((self.clock.now().boot, op))
        if self.hung:
            await anyio.sleep_forever()
        await anyio.sleep(self.slow)
        if self.buggy:
            raise KeyError(op)
        if self.down or (self.full and op in ("append", "put")):
            raise StoreUnavailable("no space left" if self.full else "down")

    async def open(self) -> StoreInfo:
        await self._ask("open")
        return StoreInfo("planted", Topology.SHARED, "nowhere")

    async def aclose(self) -> None:
        self.closed += 1

    async def append(self, stream: str, data: bytes) -> str:
        await self._ask("append")
        self._serial += 1
        self.streams_.setdefault(stream, []).append(StoredRecord(f"{self._serial:08}", data))
        return f"{self._serial:08}"

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        await self._ask("read")
        found = [record for record in self.streams_.get(stream, []) if record.name > after]
        good = [record for record in found if record.name not in self.unreadable]
        asked = good if limit is None else good[-limit:]
        if len(good) < len(found):
            raise RecordsUnreadable("EIO", asked)
        return asked

    async def trim(self, stream: str, keep: int) -> None:
        await self._ask("trim")
        self.trims.append((stream, keep))
        self.streams_[stream] = self.streams_.get(stream, [])[-keep:] if keep else []

    async def put_aside(self, stream: str, name: str) -> None:
        await self._ask("put_aside")
        self.aside.append(name)
        self.streams_[stream] = [record for record in self.streams_[stream] if record.name != name]

    async def get(self, document: str) -> Document | None:
        await self._ask("get")
        return self.documents_.get(document)

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        await self._ask("put")
        old = self.documents_.get(document)
        if (None if old is None else old.version) != expect:
            return None
        self._serial += 1
        self.documents_[document] = Document(data, str(self._serial))
        return self.documents_[document]

    async def delete(self, document: str, expect: str) -> bool:
        await self._ask("delete")
        old = self.documents_.get(document)
        if old is None or old.version != expect:
            return False
        del self.documents_[document]
        return True

    async def streams(self, prefix: str = "") -> Sequence[str]:
        await self._ask("streams")
        return sorted(name for name in self.streams_ if name.startswith(prefix))

    async def documents(self, prefix: str = "") -> Sequence[str]:
        await self._ask("documents")
        return sorted(name for name in self.documents_ if name.startswith(prefix))

    def lease(self, name: str) -> LeaseStore:
        return MemoryLeaseStore(MemoryLease())

    def of(self, stream: str) -> list[bytes]:
        return [record.data for record in self.streams_.get(stream, [])]


class World:
    """A keeper with a store; a reload makes another one."""

    def __init__(self, store: type[Store] = Store) -> None:
        self.clock = VirtualClock.of_loop()
        self.host = FakeHost(self.clock)
        self.stores = [store(self.clock)]
        self.made = 0
        self.keeper = StateKeeper(
            make=self._make, host=self.host, clock=self.clock, rng=SeededRng("s"), log=self.host.log
        )

    def _make(self, policy: StateConfig, host: object) -> Store:
        self.made += 1
        while len(self.stores) < self.made:
            self.stores.append(Store(self.clock))
        return self.stores[self.made - 1]

    @property
    def store(self) -> Store:
        return self.stores[max(self.made, 1) - 1]


def policy(**changes: Any) -> StateConfig:
    return StateConfig(BACKEND, changes.pop("settings", None), {}, **changes)


def play(
    scene: Callable[[World], Awaitable[None]],
    config: StateConfig | None = None,
    *,
    settled: bool = True,
    store: type[Store] = Store,
) -> World:
    """A scene with a keeper at work."""

    async def main() -> World:
        world = World(store)
        world.keeper.configure(policy() if config is None else config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.keeper.run)
            if settled:
                await world.keeper.settled(5.0)
            await scene(world)
            tasks.cancel_scope.cancel()
        return world

    return run_virtual(main)


def test_what_is_written_stands_in_its_stream_in_order() -> None:
    async def scene(world: World) -> None:
        for number in range(20):
            world.keeper.write(RUNS, "runs/a", {"n": number})
            world.keeper.write(RUNS, "runs/b", {"n": -number})
        await world.keeper.flush()
        assert world.store.of("runs/a") == [encode({"n": n}) for n in range(20)]
        assert world.store.of("runs/b") == [encode({"n": -n}) for n in range(20)]
        assert await world.keeper.newest("runs/a") == Newest({"n": 19})
        assert await world.keeper.newest("runs/c") == Newest(None)
        assert [r["n"] for r in await world.keeper.read("runs/a", limit=2) or ()] == [18, 19]

    play(scene)


def test_an_acknowledged_append_is_there_when_it_returns() -> None:
    async def scene(world: World) -> None:
        world.keeper.write(RUNS, "runs/a", {"n": 1})
        assert await world.keeper.append(RUNS, "runs/a", {"n": 2})
        assert world.store.of("runs/a") == [encode({"n": 1}), encode({"n": 2})]

    play(scene)


def test_without_a_section_nothing_is_kept_and_nothing_counts_as_dropped() -> None:
    async def main() -> None:
        world = World()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.keeper.run)
            world.keeper.write(RUNS, "runs/a", {})
            assert not await world.keeper.append(RUNS, "runs/a", {})
            assert await world.keeper.read("runs/a") is None
            assert world.keeper.status() is None
            assert not world.keeper.dropped
            assert world.made == 0
            tasks.cancel_scope.cancel()

    run_virtual(main)


def test_a_store_that_fails_is_asked_at_most_twice_a_second_and_then_gets_what_waited() -> None:
    async def scene(world: World) -> None:
        world.store.down = True
        for number in range(50):
            world.keeper.write(RUNS, f"runs/{number}", {"n": number})
        await anyio.sleep(0.1)
        first = len(world.store.asked)
        await anyio.sleep(60)
        assert len(world.store.asked) - first <= 120
        assert world.keeper.error == "down"
        assert await world.keeper.read("runs/1") is None
        assert world.keeper.lease("x") is None
        world.store.down = False
        await until(lambda: len(world.store.streams_) == 50, within=30)
        assert not world.keeper.dropped
        assert len(world.host.logged("the store failed")) == 1
        assert len(world.host.logged("answers again")) == 1

    play(scene)


def test_a_full_disk_costs_the_writes_that_it_refuses_and_they_are_counted() -> None:
    async def scene(world: World) -> None:
        world.store.full = True
        world.keeper.write(RUNS, "runs/a", {"n": 1})
        world.keeper.write(LOG, "logs/a", {"n": 1})
        start = len(world.store.asked)
        began = world.clock.now().boot
        await until(lambda: sum(world.keeper.dropped.values()) == 2, within=300)
        assert world.keeper.dropped == {"run-record": 1, "log": 1}
        assert len(world.store.asked) - start <= 2 * (world.clock.now().boot - began) + 2
        world.store.full = False
        world.keeper.write(RUNS, "runs/a", {"n": 2})
        await until(lambda: world.store.of("runs/a") == [encode({"n": 2})], within=60)

    play(scene)


@pytest.mark.parametrize("room", [True, False])
def test_what_waits_at_a_stop_is_written_when_somebody_just_made_room(room: bool) -> None:
    async def scene(world: World) -> None:
        world.store.down = True
        world.keeper.write(RUNS, "runs/a", {"n": 0})
        await anyio.sleep(300)
        world.keeper.write(RUNS, "runs/b", {"n": 1})
        await anyio.sleep(0.2)
        world.store.down = not room
        began = world.clock.now().boot
        await world.keeper.finish()
        assert world.clock.now().boot - began <= 5.0
        assert world.store.of("runs/b") == ([encode({"n": 1})] if room else [])
        assert bool(world.host.logged("are lost")) is not room

    play(scene)


def test_a_hung_store_holds_up_no_writer_and_every_reader_for_ten_seconds_at_most() -> None:
    async def scene(world: World) -> None:
        world.store.hung = True
        began = world.clock.now().boot
        world.keeper.write(RUNS, "runs/a", {})
        assert world.clock.now().boot == began
        assert await world.keeper.newest("runs/a") is None
        assert not await world.keeper.append(RUNS, "runs/a", {})
        assert isinstance(await world.keeper.get("doc"), Unavailable)
        assert world.clock.now().boot - began <= 20.1
        world.store.hung = False
        await until(lambda: len(world.store.of("runs/a")) == 1, within=60)

    play(scene)


def test_a_store_that_hangs_at_the_start_is_waited_for_as_long_as_was_said() -> None:
    async def scene(world: World) -> None:
        world.store.hung = True
        began = world.clock.now().boot
        assert not await world.keeper.settled(5.0)
        assert world.clock.now().boot - began == pytest.approx(5.0)

    play(scene, settled=False)


def test_no_more_than_the_limit_waits_and_what_comes_then_is_dropped_and_counted() -> None:
    async def scene(world: World) -> None:
        world.store.down = True
        for number in range(8200):
            world.keeper.write(RUNS, "runs/a", {"n": number})
        assert world.keeper.dropped == {"run-record": 8}
        assert len(world.host.logged("dropped")) == 1
        status = world.keeper.status()
        assert status is not None
        assert status.pending == 8192

    play(scene)


def test_what_cannot_be_read_is_put_aside_and_not_in_the_way() -> None:
    async def scene(world: World) -> None:
        bad = [b"", b"{", b"[]", b'{"schemaVersion":"v2","data":{}}', b'{"schemaVersion":"v1","data":3}']
        for raw in (encode({"n": 1}), *bad):
            await world.store.append("runs/a", raw)
        assert await world.keeper.newest("runs/a") == Newest({"n": 1})
        assert len(world.store.aside) == len(bad)
        assert await world.keeper.read("runs/a") == [{"n": 1}]

    play(scene)


def test_a_record_that_the_medium_does_not_give_away_is_no_answer_and_costs_no_other_stream_anything() -> None:
    async def scene(world: World) -> None:
        keeper = world.keeper
        for stream in ("retries/a", "retries/b"):
            assert await keeper.append(WriteKind.RETRY, stream, {"n": 1})
            assert await keeper.append(WriteKind.RETRY, stream, {"n": 2})
        world.store.unreadable = {"00000002"}
        opened = [op for _, op in world.store.asked].count("open")
        for _ in range(3):
            assert await keeper.read("retries/a") is None
            assert await keeper.newest("retries/a") is None
            assert await keeper.read("retries/a", gaps=True) == [{"n": 1}]
            assert await keeper.newest("retries/a", gaps=True) == Newest({"n": 1})
        # Nothing else is in doubt, and nothing is thrown away that another read may find.
        assert keeper.is_open
        assert await keeper.newest("retries/b") == Newest({"n": 2})
        assert [op for _, op in world.store.asked].count("open") == opened
        assert not world.store.aside
        world.store.unreadable = {"00000001", "00000002"}
        assert await keeper.read("retries/a", gaps=True) is None
        world.store.unreadable = set()
        assert await keeper.newest("retries/a") == Newest({"n": 2})

    world = play(scene)
    assert world.host.logged("EIO") == ["state: EIO"]


def test_documents_change_only_as_expected() -> None:
    async def scene(world: World) -> None:
        keeper = world.keeper
        assert isinstance(await keeper.get("d"), Absent)
        first = await keeper.put("d", {"n": 1}, None)
        assert isinstance(first, Stored)
        assert isinstance(await keeper.put("d", {"n": 2}, None), Conflict)
        second = await keeper.put("d", {"n": 2}, first.version)
        assert isinstance(second, Stored)
        assert await keeper.get("d") == second
        assert isinstance(await keeper.delete("d", first.version), Conflict)
        assert isinstance(await keeper.delete("d", second.version), Absent)
        assert isinstance(await keeper.put("d", {"n": float("inf")}, None), Unavailable)
        world.store.documents_["torn"] = Document(b"{", "1")
        assert isinstance(await keeper.get("torn"), Unavailable)

    play(scene)


def test_streams_are_trimmed_now_and_then_and_never_below_what_they_keep() -> None:
    async def scene(world: World) -> None:
        for number in range(100):
            world.keeper.write(RUNS, "runs/a", {"n": number}, keep=10)
        await world.keeper.flush()
        assert await world.keeper.append(RUNS, "runs/a", {"n": 100}, keep=10)
        assert 10 <= len(world.store.of("runs/a")) <= 18
        assert world.store.of("runs/a")[-1] == encode({"n": 100})
        assert len(world.store.trims) < 20

    play(scene)


def test_the_locks_of_a_store_that_counts_them_are_told_also_when_it_is_away() -> None:
    class Counting(Store):
        def locks(self) -> LockCount:
            return LockCount(len(self.streams_), 0.5)

    async def scene(world: World) -> None:
        store = world.store
        assert isinstance(store, Counting)
        told = []
        for number in range(2):
            await world.keeper.append(RUNS, f"runs/{number}", {})
            status = world.keeper.status()
            assert status is not None
            told.append(status.locks)
            store.down = True
        assert told == [LockCount(1, 0.5)] * 2

    play(scene, store=Counting)


def test_operations_are_held_to_their_rate_and_counted() -> None:
    async def scene(world: World) -> None:
        began = world.clock.now().boot
        for number in range(50):
            world.keeper.write(RUNS, f"runs/{number}", {})
        await until(lambda: len(world.store.streams_) == 50, within=60)
        assert 8 <= world.clock.now().boot - began <= 10
        status = world.keeper.status()
        assert status is not None
        assert status.operations["append"].count == 50
        assert status.throttled > 0
        assert status.throttle_wait > 0

    play(scene, policy(max_ops_per_second=5.0))


def test_a_reload_that_names_another_store_flushes_the_old_one_and_opens_the_new() -> None:
    async def scene(world: World) -> None:
        keeper, old = world.keeper, world.store
        old.slow = 0.5
        keeper.write(RUNS, "runs/a", {"n": 1})
        generation = keeper.generation
        keeper.configure(policy())
        await anyio.sleep(0.1)
        assert world.made == 1
        keeper.configure(policy(settings="elsewhere", fail_closed=True))
        await keeper.opened(generation)
        assert old.of("runs/a") == [encode({"n": 1})]
        assert old.closed == 1
        assert keeper.fail_closed
        assert keeper.shared
        assert await keeper.append(RUNS, "runs/a", {"n": 2})
        assert world.stores[1].of("runs/a") == [encode({"n": 2})]
        keeper.configure(None)
        await until(lambda: world.stores[1].closed == 1, within=10)
        assert await keeper.read("runs/a") is None
        assert keeper.info is None

    play(scene)


def test_a_store_with_a_bug_costs_an_answer_and_leaves_a_traceback() -> None:
    async def scene(world: World) -> None:
        world.store.buggy = True
        assert await world.keeper.read("runs/a") is None
        assert world.host.logged("a bug in the store")
        world.store.buggy = False
        await until(lambda: world.keeper.error is None, within=10)
        assert await world.keeper.read("runs/a") == []

    play(scene)


def test_a_record_that_is_too_long_or_no_json_is_dropped_at_once() -> None:
    async def scene(world: World) -> None:
        world.keeper.write(LOG, "logs/a", {"text": "x" * (1 << 20)})
        world.keeper.write(LOG, "logs/a", {"number": float("nan")})
        assert world.keeper.dropped == {"log": 2}
        await world.keeper.flush()
        assert not world.store.streams_

    play(scene)


def test_writes_of_many_streams_are_made_side_by_side() -> None:
    async def scene(world: World) -> None:
        await world.keeper.streams()
        world.store.slow = 1.0
        began = world.clock.now().boot
        for number in range(16):
            world.keeper.write(RUNS, f"runs/{number}", {})
        await until(lambda: len(world.store.streams_) == 16, within=60)
        assert world.clock.now().boot - began < 4

    play(scene)


@pytest.mark.anyio
async def test_the_next_write_of_a_stream_waits_for_the_one_before() -> None:
    queue = WriteQueue()
    first, second, other = (Write(RUNS, stream, b"") for stream in ("a", "a", "b"))
    for write in (first, second, other):
        assert queue.add(write)
    assert await queue.take() is first
    assert await queue.take() is other
    queue.put_back(first)
    assert await queue.take() is first
    queue.settle(first, landed=True)
    assert await queue.take() is second
    assert first.landed
    assert len(queue) == 2
