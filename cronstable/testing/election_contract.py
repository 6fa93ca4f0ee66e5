"""The contract of an election: what the gate, the daemon and an operator rely on, in virtual time.

    class TestMyElection(ElectionContract):
        @pytest.fixture
        def make_world(self):
            lease = MemoryLease()
            return lambda: LeaseWorld(lambda host: MemoryLeaseStore(lease, clock=host.clock))

``make_world`` is called inside the virtual loop. A backend that is not a lease writes an ``ElectionWorld`` of its own.
Nothing in a world may use threads or real sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup, TaskStatus

from cronstable.core.clock import Seconds
from cronstable.leadership import LeaseBackend, LeaseTiming
from cronstable.plugin.descriptors import Capability
from cronstable.plugin.protocols import Election, LeaseStore, Observable
from cronstable.testing.clock import VirtualClock, always, run_virtual, until
from cronstable.testing.faults import FaultyStore, Hang
from cronstable.testing.host import FakeHost
from cronstable.testing.kit import ContractKit


class ElectionWorld(Protocol):
    """A cluster's surroundings: whatever nodes share, and the faults that can strike it."""

    @property
    def bound(self) -> Seconds:
        """Within how long exactly one node leads after the last fault (L1)."""
        ...

    def election(self, host: FakeHost) -> Election:
        """A new node's election; ``host.name`` is its name."""
        ...

    def cut(self, name: str, *, silent: bool) -> None:
        """Node ``name`` reaches nobody any more: errors at once, or ``silent``: no answers."""
        ...

    def heal(self, name: str) -> None:
        """End of ``cut``."""
        ...


class LeaseWorld:
    """The world of a lease backend: ``make_store`` gives a node its handle on the one lease of this world."""

    def __init__(
        self,
        make_store: Callable[[FakeHost], LeaseStore],
        *,
        ttl: Seconds = 15.0,
        capabilities: frozenset[Capability] = frozenset(),
    ) -> None:
        self.timing = LeaseTiming.for_ttl(ttl)
        self._make_store = make_store
        self._capabilities = capabilities
        self.stores: dict[str, FaultyStore] = {}

    @property
    def bound(self) -> Seconds:
        """The filesystem bound of L1, plus what one request may take."""
        return self.timing.ttl + 1 + max(1.0, self.timing.ttl / 3) + self.timing.op_timeout

    def election(self, host: FakeHost) -> Election:
        """The host's own driver over the store under test."""
        store = FaultyStore(self._make_store(host), {}, host.clock)
        self.stores[host.name] = store
        context = host.context("under-test")
        return LeaseBackend(store, context, host, timing=self.timing, capabilities=self._capabilities)

    def cut(self, name: str, *, silent: bool) -> None:
        """No request of this node comes back."""
        if silent:
            self.stores[name].plan = lambda operation, number: Hang()
        else:
            self.stores[name].down = True

    def heal(self, name: str) -> None:
        """Requests come back."""
        self.stores[name].plan = {}
        self.stores[name].down = False


class Member:
    """One running node."""

    def __init__(self, world: ElectionWorld, name: str) -> None:
        self.clock = VirtualClock.of_loop()
        self.host = FakeHost(self.clock, name)
        self.election = world.election(self.host)
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()

    @property
    def leads(self) -> bool:
        """What the gate would be told now."""
        return self.election.view().is_leader

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Run the election until ``scope`` is cancelled."""
        try:
            with self.scope:
                await self.election.run(self.host, task_status=_Ready(task_status))
        finally:
            self.ended.set()


class _Ready:
    def __init__(self, status: TaskStatus[None]) -> None:
        self._status = status

    def started(self, value: None = None) -> None:
        self._status.started(value)


class Fleet:
    """The nodes of one world."""

    def __init__(self, world: ElectionWorld, tasks: TaskGroup) -> None:
        self.world = world
        self.members: dict[str, Member] = {}
        self._tasks = tasks

    async def start(self, name: str) -> Member:
        """A new node, past its first round."""
        member = self.members[name] = Member(self.world, name)
        await self._tasks.start(member.run)
        return member

    async def stop(self, name: str) -> None:
        """Stop a node gracefully and wait for its end."""
        member = self.members[name]
        member.scope.cancel()
        await member.ended.wait()

    def leaders(self) -> list[str]:
        """Who leads now."""
        return [name for name, member in self.members.items() if member.leads]

    async def leader(self, within: Seconds | None = None) -> Member:
        """The one leader, once there is one."""
        await until(lambda: len(self.leaders()) == 1, within=within or self.world.bound, what="exactly one leader")
        return self.members[self.leaders()[0]]

    def others(self, member: Member) -> list[Member]:
        """Everybody else."""
        return [other for other in self.members.values() if other is not member]


@asynccontextmanager
async def fleet_of(world: ElectionWorld, *names: str) -> AsyncIterator[Fleet]:
    """A running fleet; stopped at the end."""
    async with anyio.create_task_group() as tasks:
        fleet = Fleet(world, tasks)
        for name in names:
            await fleet.start(name)
        yield fleet
        tasks.cancel_scope.cancel()


MakeWorld = Callable[[], ElectionWorld]


def in_virtual_time(make_world: MakeWorld, *names: str, story: Callable[[Fleet], Awaitable[None]]) -> None:
    """Run ``story`` with a fresh fleet of ``names``."""

    async def main() -> None:
        async with fleet_of(make_world(), *names) as fleet:
            await story(fleet)

    run_virtual(main)


class ElectionContract(ContractKit, suite=True):
    """What every election with at most one leader must do."""

    def test_one_node_leads_within_the_bound_and_stays(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            first = await fleet.leader()
            await always(lambda: fleet.leaders() == [first.host.name], during=4 * fleet.world.bound)
            for member in fleet.members.values():
                view = member.election.view()
                assert view.quorate
                assert view.leader == first.host.name
                assert view.available == (member is first)

        in_virtual_time(make_world, "a", "b", "c", story=story)

    def test_a_view_before_the_start_leads_nothing(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            view = Member(fleet.world, "z").election.view()
            assert not view.is_leader
            assert not view.quorate
            assert view.node_name == "z"

        in_virtual_time(make_world, "a", story=story)

    def test_a_stopped_leader_hands_over_at_once_and_leads_no_more(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            first = await fleet.leader()
            await fleet.stop(first.host.name)
            assert not first.leads
            second = await fleet.leader(within=1.5)
            assert second is not first
            await always(lambda: not first.leads, during=2 * fleet.world.bound)

        in_virtual_time(make_world, "a", "b", "c", story=story)

    def test_a_leader_that_hears_errors_stops_and_is_replaced(self, make_world: MakeWorld) -> None:
        in_virtual_time(make_world, "a", "b", "c", story=lambda fleet: _cut_leader(fleet, silent=False))

    def test_a_leader_that_hears_nothing_stops_and_is_replaced(self, make_world: MakeWorld) -> None:
        in_virtual_time(make_world, "a", "b", "c", story=lambda fleet: _cut_leader(fleet, silent=True))

    def test_a_node_that_is_cut_off_knows_it(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            first = await fleet.leader()
            follower = fleet.others(first)[0]
            fleet.world.cut(follower.host.name, silent=True)
            await until(lambda: not follower.election.view().quorate, within=fleet.world.bound)
            view = follower.election.view()
            assert not view.is_leader
            assert view.available, "PreferLeader never skips on doubt"
            assert first.leads
            fleet.world.heal(follower.host.name)
            await until(lambda: follower.election.view().quorate, within=fleet.world.bound)
            assert fleet.leaders() == [first.host.name]

        in_virtual_time(make_world, "a", "b", "c", story=story)

    def test_a_node_that_starts_cut_off_starts_closed_and_joins_later(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            late = Member(fleet.world, "z")
            fleet.world.cut("z", silent=True)
            async with anyio.create_task_group() as tasks:
                with anyio.fail_after(fleet.world.bound):
                    await tasks.start(late.run)
                assert not late.election.view().quorate
                assert not late.leads
                fleet.world.heal("z")
                await until(lambda: late.election.view().quorate, within=fleet.world.bound)
                tasks.cancel_scope.cancel()

        in_virtual_time(make_world, "a", "b", "c", story=story)

    def test_nodes_that_come_and_go_never_lead_together(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            names = list(fleet.members)
            for turn in range(12):
                name = names[turn % len(names)]
                fleet.world.cut(name, silent=turn % 2 == 0)
                await always(lambda: len(fleet.leaders()) <= 1, during=fleet.world.bound / 2)
                fleet.world.heal(name)
                await always(lambda: len(fleet.leaders()) <= 1, during=fleet.world.bound / 3)
            await fleet.leader(within=2 * fleet.world.bound)

        in_virtual_time(make_world, "a", "b", "c", story=story)

    def test_stepping_wall_clocks_moves_no_leadership(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            first = await fleet.leader()
            for step in (3600.0, -7200.0, 30.0, -1e6):
                for member in fleet.members.values():
                    member.clock.step_wall(step)
                    await always(lambda: fleet.leaders() == [first.host.name], during=fleet.world.bound)

        in_virtual_time(make_world, "a", "b", "c", story=story)

    def test_a_leader_that_was_suspended_does_not_lead_on_waking(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            first = await fleet.leader()
            first.clock.advance(10 * fleet.world.bound)
            assert not first.leads
            await always(lambda: len(fleet.leaders()) <= 1, during=2 * fleet.world.bound)
            await fleet.leader()

        in_virtual_time(make_world, "a", "b", "c", story=story)

    def test_a_leaders_deadline_lies_ahead(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            first = await fleet.leader()
            end = first.clock.now().boot + 3 * fleet.world.bound
            while first.clock.now().boot < end:
                view = first.election.view()
                assert view.is_leader
                assert view.deadline is None or view.deadline > first.clock.now().boot
                await first.clock.sleep(0.7)

        in_virtual_time(make_world, "a", "b", story=story)

    def test_a_change_is_announced_at_once(self, make_world: MakeWorld) -> None:
        async def story(fleet: Fleet) -> None:
            first = await fleet.leader()
            election = fleet.others(first)[0].election
            assert isinstance(election, Observable)
            seen: list[bool] = []

            async def watch() -> None:
                while True:
                    await election.wait_change()
                    seen.append(election.view().is_leader)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await anyio.lowlevel.checkpoint()
                await fleet.stop(first.host.name)
                await until(lambda: election.view().is_leader, within=1.5)
                await until(lambda: True in seen, within=0.05, what="the announcement")
                tasks.cancel_scope.cancel()

        in_virtual_time(make_world, "a", "b", story=story)


async def _cut_leader(fleet: Fleet, *, silent: bool) -> None:
    first = await fleet.leader()
    name = first.host.name
    fleet.world.cut(name, silent=silent)
    await always(lambda: len(fleet.leaders()) <= 1, during=fleet.world.bound)
    second = await fleet.leader(within=fleet.world.bound)
    assert second is not first
    fleet.world.heal(name)
    await always(lambda: fleet.leaders() == [second.host.name], during=2 * fleet.world.bound)
