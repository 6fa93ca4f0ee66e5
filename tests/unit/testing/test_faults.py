"""Each injected fault does what it is called, to the store and to the caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from cronstable.core.store import Held, Holder, Observation, Seen, StoreUnavailable, Vacant
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.faults import BackDoor, Delay, Fault, FaultyStore, Hang, LoseAnswer, LoseRequest, Raise, Stale
from cronstable.testing.host import FakeHost
from cronstable.testing.memory import MemoryLease, MemoryLeaseStore, Point

A = Holder("a", "aaaaaaaaaaaa")


def with_store(fault: Fault, operation: str, story: Callable[[FaultyStore, MemoryLease], Awaitable[None]]) -> None:
    async def main() -> None:
        lease = MemoryLease()
        clock = VirtualClock.of_loop()
        await story(FaultyStore(MemoryLeaseStore(lease), {(operation, 1): fault}, clock), lease)

    run_virtual(main)


def test_a_lost_request_leaves_the_store_as_it_was() -> None:
    async def story(store: FaultyStore, lease: MemoryLease) -> None:
        with pytest.raises(StoreUnavailable):
            await store.acquire(A, 15, nonce="n1")
        assert lease.record is None
        assert isinstance(await store.acquire(A, 15, nonce="n2"), Held)

    with_store(LoseRequest(), "acquire", story)


def test_a_lost_answer_is_ambiguous_and_the_write_stands() -> None:
    async def story(store: FaultyStore, lease: MemoryLease) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            await store.acquire(A, 15, nonce="n1")
        assert caught.value.ambiguous
        assert lease.record is not None

    with_store(LoseAnswer(), "acquire", story)


@pytest.mark.parametrize("committed", [True, False])
def test_a_hung_call_never_comes_back(committed: bool) -> None:
    async def story(store: FaultyStore, lease: MemoryLease) -> None:
        with anyio.move_on_after(3600) as scope:
            await store.acquire(A, 15, nonce="n1")
        assert scope.cancelled_caught
        assert (lease.record is not None) is committed

    with_store(Hang(committed=committed), "acquire", story)


def test_a_delay_comes_before_and_after_the_write() -> None:
    async def story(store: FaultyStore, lease: MemoryLease) -> None:
        start = anyio.current_time()
        landed: list[float] = []

        async def look() -> None:
            await until(lambda: lease.record is not None, within=10)
            landed.append(anyio.current_time() - start)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await store.acquire(A, 15, nonce="n1")
        assert landed[0] == pytest.approx(2, abs=0.3)
        assert anyio.current_time() - start == pytest.approx(5)

    with_store(Delay(before=2, after=3), "acquire", story)


def test_a_stale_read_repeats_the_last_one() -> None:
    async def main() -> None:
        lease = MemoryLease()
        store = FaultyStore(MemoryLeaseStore(lease), {("observe", 2): Stale()}, VirtualClock.of_loop())
        answers: list[Observation] = [await store.observe()]
        await store.acquire(A, 15, nonce="n1")
        answers += [await store.observe(), await store.observe()]
        assert [type(answer) for answer in answers] == [Vacant, Vacant, Seen]

    run_virtual(main)


def test_the_wrong_exception_can_be_raised() -> None:
    async def story(store: FaultyStore, lease: MemoryLease) -> None:
        with pytest.raises(KeyError, match="oops"):
            await store.observe()

    with_store(Raise(KeyError("oops")), "observe", story)


def test_the_back_door_acts_before_the_request() -> None:
    async def main() -> None:
        lease = MemoryLease()
        inner = MemoryLeaseStore(lease)
        held = await inner.acquire(A, 15, nonce="n1")
        assert isinstance(held, Held)
        store = FaultyStore(inner, {("renew", 1): BackDoor(lease.delete)}, VirtualClock.of_loop())
        assert isinstance(await store.renew(held.grant, nonce="n2"), Vacant)

    run_virtual(main)


def test_a_store_that_is_down_fails_everything_and_counts_the_calls() -> None:
    async def story(store: FaultyStore, lease: MemoryLease) -> None:
        store.down = True
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.observe()
        assert store.count("observe") == 3

    with_store(Stale(), "acquire", story)


def test_the_memory_store_strikes_at_its_three_points() -> None:
    async def main() -> None:
        lease = MemoryLease()
        seen: list[tuple[Point, bool]] = []

        async def strike(point: Point, operation: str) -> None:
            seen.append((point, lease.record is not None))

        await MemoryLeaseStore(lease, at=strike).acquire(A, 15, nonce="n1")
        assert seen == [(Point.BEFORE_COMMIT, False), (Point.BEFORE_ANSWER, True), (Point.AFTER_ANSWER, True)]

    run_virtual(main)


def test_a_fake_host_is_the_same_in_every_run_and_differs_by_name() -> None:
    def draw(name: str) -> tuple[str, str, float]:
        host = FakeHost(VirtualClock(), name)
        return host.ids.token(6), host.ids.token(8), host.rng.random()

    assert draw("a") == draw("a")
    assert draw("a") != draw("b")
    token, longer, number = draw("a")
    assert (len(token), len(longer)) == (12, 16)
    assert 0 <= number < 1


def test_a_fake_host_without_a_file_system_says_how_to_get_one() -> None:
    with pytest.raises(LookupError, match=r"FakeHost\(clock, fs=\.\.\.\)"):
        _ = FakeHost(VirtualClock()).fs
