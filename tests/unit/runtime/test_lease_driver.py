"""The lease driver on a virtual loop: what it logs, how it stops, what it makes of a store that misbehaves."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

import anyio
import pytest

from cronstable.core.lease_values import LeaseTiming
from cronstable.core.store import Holder, LeaseRecord, Observation
from cronstable.leadership import LeaseBackend
from cronstable.plugin.descriptors import Capability
from cronstable.plugin.protocols import Election, ElectionContext, LeaseStore, Observable, RebootLedger
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.faults import FaultyStore, Hang, LoseAnswer, Plan, Raise
from cronstable.testing.host import FakeHost
from cronstable.testing.memory import MemoryLease, MemoryLeaseStore, Point

TTL = 15.0
STRANGER = Holder("stranger", "0123456789ab")


@dataclass
class Rig:
    """One driver under test, running."""

    lease: MemoryLease
    host: FakeHost
    clock: VirtualClock
    store: LeaseStore
    backend: LeaseBackend
    scope: anyio.CancelScope
    ended: anyio.Event

    @property
    def faults(self) -> FaultyStore:
        assert isinstance(self.store, FaultyStore)
        return self.store

    async def stop(self) -> None:
        self.scope.cancel()
        await self.ended.wait()


class Status:
    def __init__(self, begun: anyio.Event) -> None:
        self.begun = begun

    def started(self, value: None = None) -> None:
        self.begun.set()


@asynccontextmanager
async def rig(
    plan: Plan = MappingProxyType({}),
    *,
    lease: MemoryLease | None = None,
    wrap: Callable[[LeaseStore, VirtualClock], LeaseStore] | None = None,
    timing: LeaseTiming | None = None,
    capabilities: frozenset[Capability] = frozenset(),
    job_set_id: Callable[[], str] = lambda: "set-1",
) -> AsyncIterator[Rig]:
    clock = VirtualClock.of_loop()
    host = FakeHost(clock, "node-a")
    lease = lease if lease is not None else MemoryLease()
    inner = MemoryLeaseStore(lease, clock=clock)
    store: LeaseStore = wrap(inner, clock) if wrap else FaultyStore(inner, plan, clock)
    context: ElectionContext = replace(host.context("memory"), job_set_id=job_set_id)
    timing = timing if timing is not None else LeaseTiming.for_ttl(TTL)
    backend = LeaseBackend(
        store, context, host, timing=timing, capabilities=capabilities, lease_fields=(("path", "/lease"),)
    )
    made = Rig(lease, host, clock, store, backend, anyio.CancelScope(), anyio.Event())

    async def run() -> None:
        with made.scope:
            await backend.run(host, task_status=Status(begun))
        made.ended.set()

    begun = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(60):
            await begun.wait()
        yield made
        tasks.cancel_scope.cancel()


def story(function: Callable[[], Awaitable[None]]) -> None:
    run_virtual(function)


def test_the_driver_is_an_election_a_ledger_and_observable() -> None:
    async def told() -> None:
        async with rig() as made:
            assert isinstance(made.backend, Election)
            assert isinstance(made.backend, RebootLedger)
            assert isinstance(made.backend, Observable)

    story(told)


def test_the_first_view_is_real_and_has_the_shape_of_a_lease_view() -> None:
    async def told() -> None:
        async with rig() as made:
            view = made.backend.view()
            assert (view.is_leader, view.quorate, view.leader, view.available) == (True, True, "node-a", True)
            assert (view.cluster_size, view.quorum, view.peers, view.settled) == (1, 1, (), True)
            assert view.lease is not None
            assert (view.lease.holder, view.lease.fence, view.lease.fields) == ("node-a", 1, (("path", "/lease"),))
            assert view.lease.identity == "node-a", "the token is for the store alone"
            assert made.host.logged("cluster: memory election ready (identity=node-a#")

    story(told)


def test_a_hung_store_does_not_hold_up_the_start() -> None:
    async def told() -> None:
        async with rig(lambda operation, number: Hang()) as made:
            view = made.backend.view()
            assert (view.is_leader, view.quorate, view.available) == (False, False, True)
            assert made.clock.now().boot - 1000 <= LeaseTiming.for_ttl(TTL).round_deadline
            assert made.host.logged("cluster: memory election round failed: no answer within 2.25 s")

    story(told)


def test_leadership_ends_at_its_deadline_while_the_store_hangs_and_somebody_is_told() -> None:
    async def told() -> None:
        async with rig(lambda operation, number: Hang() if operation == "renew" else None) as made:
            deadline = made.backend.view().deadline
            assert deadline is not None
            await made.backend.wait_change()
            assert made.clock.now().boot == pytest.approx(deadline, abs=0.01)
            assert not made.backend.view().is_leader
            assert made.host.logged("leadership lost: the deadline passed")

    story(told)


def test_a_failing_store_is_complained_about_once_and_its_recovery_is_told() -> None:
    async def told() -> None:
        async with rig() as made:
            made.faults.down = True
            await anyio.sleep(40)
            assert len(made.host.logged("round failed")) == 1
            await anyio.sleep(60)
            assert len(made.host.logged("round failed")) == 2
            assert "more like it" in made.host.logged("round failed")[1]
            made.faults.down = False
            await until(lambda: made.backend.view().is_leader, within=5)
            assert made.host.logged("rounds work again")

    story(told)


def test_a_failing_store_is_asked_at_most_twice_a_second() -> None:
    async def told() -> None:
        async with rig() as made:
            made.faults.down = True
            await anyio.sleep(30)
            failing = [at for at, _ in made.faults.calls[5:]]
            assert len(failing) > 10
            assert min(b - a for a, b in itertools.pairwise(failing)) >= 0.5

    story(told)


def test_a_bug_in_the_store_costs_leadership_and_not_the_daemon() -> None:
    async def told() -> None:
        async with rig(lambda operation, number: Raise(KeyError("oops")) if operation == "renew" else None) as made:
            await anyio.sleep(2 * TTL)
            assert not made.backend.view().is_leader
            assert not made.ended.is_set()
            assert len(made.host.logged("a bug in the memory store")) == 1

    story(told)


def test_a_lost_answer_to_the_first_acquisition_is_made_good() -> None:
    async def told() -> None:
        async with rig({("acquire", 1): LoseAnswer()}) as made:
            assert not made.backend.view().is_leader
            await until(lambda: made.backend.view().is_leader, within=3)
            assert made.lease.last_fence == 1, "the same term, not a second one"

    story(told)


def test_stopping_releases_the_lease_at_once() -> None:
    async def told() -> None:
        async with rig() as made:
            await anyio.sleep(7)
            await made.stop()
            assert made.lease.released
            assert not made.backend.view().is_leader
            assert made.faults.calls[-1][1] == "release"

    story(told)


def test_stopping_over_a_hung_store_ends_within_its_deadline() -> None:
    async def told() -> None:
        async with rig(lambda operation, number: Hang() if operation == "release" else None) as made:
            before = made.clock.now().boot
            await made.stop()
            assert made.clock.now().boot - before <= 3 * LeaseTiming.for_ttl(TTL).op_timeout
            assert made.host.logged("was not released and runs out by itself")

    story(told)


@pytest.mark.parametrize("ttl", [15.0, 60.0, 3600.0])
def test_stopping_over_a_store_whose_requests_may_take_long_ends_within_five_seconds(ttl: float) -> None:
    timing = replace(LeaseTiming.for_ttl(ttl), op_timeout=ttl / 2)

    async def told() -> None:
        async with rig(lambda operation, number: Hang() if operation == "release" else None, timing=timing) as made:
            before = made.clock.now().boot
            await made.stop()
            assert made.clock.now().boot - before <= 5
            assert made.host.logged("was not released and runs out by itself: no answer within 5 s")

    story(told)


@pytest.mark.parametrize("early", [True, False])
def test_a_stop_that_is_to_hurry_leaves_a_release_one_more_second(early: bool) -> None:
    timing = replace(LeaseTiming.for_ttl(TTL), op_timeout=TTL / 2)

    async def told() -> None:
        async with rig(lambda operation, number: Hang() if operation == "release" else None, timing=timing) as made:
            before = made.clock.now().boot
            made.scope.cancel()
            if not early:
                await made.clock.sleep(2)
            made.backend.hurry()
            await made.ended.wait()
            assert made.clock.now().boot - before == pytest.approx(1.0 if early else 3.0)
            assert made.host.logged("was not released and runs out by itself: there was no time left")

    story(told)


def test_a_stop_that_is_to_hurry_still_releases_the_lease_of_a_store_that_answers() -> None:
    async def told() -> None:
        async with rig() as made:
            made.backend.hurry()
            await made.stop()
            assert made.lease.released

    story(told)


def test_stopping_in_the_middle_of_an_acquisition_that_landed_releases_it() -> None:
    async def told() -> None:
        lease = MemoryLease()
        lease.write(LeaseRecord(STRANGER, 1, "x", TTL))
        async with rig({("acquire", 1): Hang(committed=True)}, lease=lease) as made:
            lease.released = True
            await until(lambda: lease.record is not None and lease.record.holder != STRANGER, within=2)
            await made.stop()
            assert lease.released

    story(told)


def test_a_lease_that_somebody_else_writes_over_is_lost_in_the_next_round() -> None:
    async def told() -> None:
        async with rig() as made:
            made.lease.write(LeaseRecord(STRANGER, 9, "x", TTL))
            await until(lambda: not made.backend.view().is_leader, within=6)
            view = made.backend.view()
            assert (view.leader, view.available) == ("stranger", False)
            assert made.host.logged("leadership lost: another node holds the lease")

    story(told)


def test_a_store_that_removes_dead_holders_itself_is_never_taken_over() -> None:
    async def told() -> None:
        lease = MemoryLease()
        lease.write(LeaseRecord(STRANGER, 1, "x", TTL))
        async with rig(lease=lease, capabilities=frozenset({Capability.EXPIRES_ITSELF})) as made:
            await anyio.sleep(10 * TTL)
            assert not made.backend.view().is_leader
            lease.delete()
            await until(lambda: made.backend.view().is_leader, within=1)

    story(told)


class Watching:
    """A store whose ``observe`` waits for a change, as a watch does."""

    def __init__(self, inner: LeaseStore, clock: VirtualClock, patience: float) -> None:
        self.inner = inner
        self.clock = clock
        self.patience = patience
        self.observed = 0
        self.last: Observation | None = None
        self.acquire, self.renew, self.release = inner.acquire, inner.renew, inner.release

    async def observe(self) -> Observation:
        self.observed += 1
        end = self.clock.now().boot + self.patience
        answer = await self.inner.observe()
        while answer == self.last and self.clock.now().boot < end:
            await self.clock.sleep(0.05)
            answer = await self.inner.observe()
        self.last = answer
        return answer


def test_a_watching_store_is_asked_seldom_and_a_release_is_seen_at_once() -> None:
    async def told() -> None:
        lease = MemoryLease()
        lease.write(LeaseRecord(STRANGER, 1, "x", 60.0))
        timing = replace(LeaseTiming.for_ttl(TTL), watch=5.0)
        async with rig(lease=lease, wrap=lambda inner, clock: Watching(inner, clock, 5.0), timing=timing) as made:
            store = made.store
            assert isinstance(store, Watching)
            await anyio.sleep(30)
            assert store.observed <= 8
            assert made.backend.view().quorate
            lease.released = True
            await until(lambda: made.backend.view().is_leader, within=0.2)

    story(told)


def test_a_long_poll_is_cut_when_a_takeover_is_due() -> None:
    async def told() -> None:
        lease = MemoryLease()
        lease.write(LeaseRecord(STRANGER, 1, "x", TTL))
        timing = replace(LeaseTiming.for_ttl(TTL), watch=9.0)
        async with rig(lease=lease, wrap=lambda inner, clock: Watching(inner, clock, 9.0), timing=timing) as made:
            await until(lambda: made.backend.view().is_leader, within=TTL + 0.2)
            assert not made.host.logged("round failed")

    story(told)


def test_a_watch_that_never_waits_does_not_make_the_driver_spin() -> None:
    async def told() -> None:
        lease = MemoryLease()
        lease.write(LeaseRecord(STRANGER, 1, "x", 60.0))
        timing = replace(LeaseTiming.for_ttl(TTL), watch=5.0)
        async with rig(lease=lease, timing=timing) as made:
            await anyio.sleep(30)
            assert made.faults.count("observe") <= 30 / timing.poll + 2

    story(told)


def test_a_driver_runs_once() -> None:
    async def told() -> None:
        async with rig() as made:
            await made.stop()
            with pytest.raises(RuntimeError, match="runs once"):
                await made.backend.run(made.host, task_status=Status(anyio.Event()))

    story(told)


# -- @reboot marks ----------------------------------------------------------------------------------------------------


def plain(inner: LeaseStore, clock: VirtualClock) -> LeaseStore:
    return inner


def test_a_reboot_job_is_marked_once_in_the_store() -> None:
    async def told() -> None:
        async with rig(wrap=plain) as made:
            assert made.backend.reboot_ran("job") is False
            assert await made.backend.mark_reboot_ran("job") is True
            assert made.backend.reboot_ran("job") is True
            assert await made.backend.mark_reboot_ran("job") is False
            assert list(made.lease.marks) == [("set-1", "job")]

    story(told)


def test_marks_of_another_job_set_do_not_count() -> None:
    async def told() -> None:
        current = ["set-1"]
        async with rig(wrap=plain, job_set_id=lambda: current[0]) as made:
            await made.backend.mark_reboot_ran("job")
            current[0] = "set-2"
            assert made.backend.reboot_ran("job") is None, "not known before it was read"
            await until(lambda: made.backend.reboot_ran("job") is False, within=6)

    story(told)


def test_a_follower_cannot_mark() -> None:
    async def told() -> None:
        lease = MemoryLease()
        lease.write(LeaseRecord(STRANGER, 1, "x", TTL))
        async with rig(lease=lease, wrap=plain) as made:
            assert await made.backend.mark_reboot_ran("job") is False
            assert not lease.marks

    story(told)


def test_a_new_leader_reads_the_marks_of_its_predecessor_before_it_answers() -> None:
    async def told() -> None:
        lease = MemoryLease()
        lease.write(LeaseRecord(STRANGER, 1, "x", TTL))
        async with rig(lease=lease, wrap=plain) as made:
            assert made.backend.reboot_ran("job") is False
            lease.marks[("set-1", "job")] = "theirs"
            lease.released = True
            answers = []
            while not made.backend.view().is_leader:
                await made.backend.wait_change()
            answers.append(made.backend.reboot_ran("job"))
            await until(lambda: made.backend.reboot_ran("job") is not None, within=1)
            answers.append(made.backend.reboot_ran("job"))
            assert False not in answers
            assert answers[-1] is True

    story(told)


def test_a_mark_whose_answer_was_lost_is_recognised_as_ours() -> None:
    async def told() -> None:
        lost: list[str] = []

        async def strike(point: Point, operation: str) -> None:
            if operation == "mark_reboot" and point is Point.BEFORE_ANSWER and not lost:
                lost.append(operation)
                await anyio.sleep_forever()

        def wrap(inner: LeaseStore, clock: VirtualClock) -> LeaseStore:
            assert isinstance(inner, MemoryLeaseStore)
            inner.at = strike
            return inner

        async with rig(wrap=wrap) as made:
            assert await made.backend.mark_reboot_ran("job") is False
            assert ("set-1", "job") in made.lease.marks
            await anyio.sleep(70)
            assert made.backend.reboot_ran("job") is False, "it has not run: nobody was told to run it"
            assert await made.backend.mark_reboot_ran("job") is True
            assert made.backend.reboot_ran("job") is True

    story(told)


def test_without_marks_in_the_store_they_live_in_memory() -> None:
    async def told() -> None:
        current = ["set-1"]
        async with rig(job_set_id=lambda: current[0]) as made:
            assert made.backend.reboot_ran("job") is False
            assert await made.backend.mark_reboot_ran("job") is True
            assert await made.backend.mark_reboot_ran("job") is False
            assert made.backend.reboot_ran("job") is True
            current[0] = "set-2"
            assert made.backend.reboot_ran("job") is False

    story(told)
