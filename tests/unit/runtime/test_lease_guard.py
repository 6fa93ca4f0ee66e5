"""``onLeaseLost`` on virtual time: what asks for it is gone by the deadline, and nothing else is touched."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from types import MappingProxyType

import anyio
import pytest

from cronstable.core.clock import Seconds
from cronstable.core.decision import Decision
from cronstable.core.gate import decide
from cronstable.core.job import ClusterPolicy, Job, JobOptions
from cronstable.core.lease_loss import MARGIN
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.view import ClusterView
from cronstable.runtime.lease_guard import LeaseGuard
from cronstable.testing.clock import VirtualClock, run_virtual

TERM = 14.0
"""Seconds from a renewal to the deadline, as with a ttl of 15."""


@dataclass(frozen=True)
class Ended:
    at: float
    run_id: str
    grace: Seconds | None


class World:
    """A node that leads. ``endings`` says what was ended, and when."""

    def __init__(self) -> None:
        self.clock = VirtualClock.of_loop(wall=1_800_000_000)
        self.born = self.clock.now().boot
        self.elects = True
        self.broken = False
        self.endings: list[Ended] = []
        self.deadline = 0.0
        self.answer: ClusterView | None = None
        self.renew()
        self.guard = LeaseGuard(
            clock=self.clock,
            gate=self,
            cluster=self,
            launcher=self,  # type: ignore[arg-type]  # one method of it is used
            log=logging.Logger("test"),
        )

    @property
    def boot(self) -> float:
        return self.clock.now().boot

    @property
    def age(self) -> float:
        """Seconds since the scene began."""
        return self.boot - self.born

    def renew(self) -> None:
        self.deadline = self.boot + TERM
        self.answer = ClusterView(
            "fs", "a", "v1:0", quorate=True, leader="a", is_leader=True, available=True, deadline=self.deadline
        )

    def lose(self) -> None:
        self.answer = ClusterView("fs", "a", "v1:0", quorate=True, leader="b", is_leader=False, available=False)
        self.guard.poke()

    def unreachable(self) -> None:
        """The deadline has passed and the store does not answer."""
        self.answer = ClusterView("fs", "a", "v1:0", quorate=False, available=True)

    def view(self) -> ClusterView | None:
        if self.broken:
            raise RuntimeError("a plugin's view broke")
        return self.answer

    def decide(self, job: Job) -> Decision:
        return decide(job.options.cluster_policy, job.name, election_configured=True, view=self.answer, boot=self.boot)

    def end(self, job: str, run_id: str, reason: str, *, grace: Seconds | None = None) -> None:
        self.endings.append(Ended(self.boot, run_id, grace))

    def start(self, mode: str | None = "kill", trigger: Trigger = Trigger.SCHEDULE, **options: object) -> Job:
        raw = MappingProxyType({} if mode is None else {"onLeaseLost": mode})
        one = Job("a", "true", Schedule.parse("* * * * *", job_name="a", zone=UTC), JobOptions(raw=raw, **options))  # type: ignore[arg-type]  # of the test's own making
        self.guard.started(one, LiveRun(RunKey("run", "a", 0, 0, trigger), 1, 0.0))
        return one

    def adopt(self, mode: str = "kill") -> None:
        """A run of a daemon that died is found."""
        raw = MappingProxyType({"onLeaseLost": mode})
        options = JobOptions(raw=raw, cluster_policy=ClusterPolicy.LEADER, kill_timeout=30.0)
        one = Job("a", "true", Schedule.parse("* * * * *", job_name="a", zone=UTC), options)
        self.guard.adopted(one, LiveRun(RunKey("run", "a", 0, 0, Trigger.SCHEDULE), 1, 0.0))

    def finish(self, job: Job) -> None:
        record = RunRecord(RunKey("run", "a", 0), Outcome.SUCCESS, 0, 0.0, 1.0, 1.0)
        self.guard.finished(job, record)


def play(scene: Callable[[World], Awaitable[None]]) -> World:
    made: list[World] = []

    async def main() -> None:
        made.append(World())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made[0].guard.run)
            await scene(made[0])
            tasks.cancel_scope.cancel()

    run_virtual(main)
    return made[0]


def test_a_run_whose_lease_is_renewed_is_left_alone() -> None:
    async def scene(world: World) -> None:
        world.start("kill")
        for _ in range(10):
            await anyio.sleep(5)
            world.renew()

    assert play(scene).endings == []


def test_a_run_to_be_killed_is_killed_before_the_deadline() -> None:
    async def scene(world: World) -> None:
        world.start("kill")
        await anyio.sleep(60)

    world = play(scene)
    (ended,) = world.endings
    assert ended.at == pytest.approx(world.deadline - MARGIN)
    assert ended.grace == 0


@pytest.mark.parametrize(("kill_timeout", "notice"), [(30.0, TERM / 3), (2.0, 2.0), (0.0, 0.0)])
def test_a_run_to_be_told_is_gone_by_the_deadline_too(kill_timeout: float, notice: float) -> None:
    async def scene(world: World) -> None:
        world.start("term", kill_timeout=kill_timeout)
        await anyio.sleep(60)

    world = play(scene)
    gone_by = world.deadline - MARGIN
    (ended,) = world.endings
    assert ended.at == pytest.approx(gone_by - notice)
    assert ended.grace == pytest.approx(notice)


def test_a_late_renewal_spares_the_run() -> None:
    async def scene(world: World) -> None:
        world.start("term")
        await anyio.sleep(TERM * 2 / 3 - MARGIN - 0.01)
        world.renew()
        await anyio.sleep(TERM / 3 + 1)

    assert play(scene).endings == []


@pytest.mark.parametrize("mode", ["term", "kill"])
def test_a_lease_that_somebody_else_has_ends_the_run_at_once(mode: str) -> None:
    async def scene(world: World) -> None:
        world.start(mode, kill_timeout=30.0)
        await anyio.sleep(3)
        world.lose()
        await anyio.sleep(0.1)

    world = play(scene)
    (ended,) = world.endings
    assert ended.at == pytest.approx(world.born + 3)
    assert ended.grace == pytest.approx(0 if mode == "kill" else TERM - 3 - MARGIN)


@pytest.mark.parametrize(
    ("mode", "trigger", "policy"),
    [
        ("continue", Trigger.SCHEDULE, ClusterPolicy.LEADER),
        (None, Trigger.SCHEDULE, ClusterPolicy.LEADER),
        ("kill", Trigger.MANUAL, ClusterPolicy.LEADER),
        ("kill", Trigger.SCHEDULE, ClusterPolicy.EVERY_NODE),
    ],
    ids=["continue", "the default", "started by hand", "every node has its own"],
)
def test_what_has_no_lease_to_lose_goes_on(mode: str | None, trigger: Trigger, policy: ClusterPolicy) -> None:
    async def scene(world: World) -> None:
        world.start(mode, trigger, cluster_policy=policy)
        world.lose()
        await anyio.sleep(60)
        await world.guard.let_go()

    assert play(scene).endings == []


def test_a_prefer_leader_run_outlives_an_outage_but_not_another_leader() -> None:
    async def scene(world: World) -> None:
        world.start("kill", cluster_policy=ClusterPolicy.PREFER_LEADER)
        world.unreachable()
        await anyio.sleep(60)
        assert world.endings == []
        world.lose()
        await anyio.sleep(0.1)

    assert len(play(scene).endings) == 1


def test_a_run_that_ended_in_time_is_not_ended_again() -> None:
    async def scene(world: World) -> None:
        job = world.start("kill")
        await anyio.sleep(5)
        world.finish(job)
        await anyio.sleep(60)

    assert play(scene).endings == []


def test_a_view_that_breaks_puts_no_deadline_off() -> None:
    async def scene(world: World) -> None:
        world.start("kill")
        await anyio.sleep(5)
        world.broken = True
        await anyio.sleep(60)

    world = play(scene)
    assert [e.at for e in world.endings] == [pytest.approx(world.deadline - MARGIN)]


def test_an_election_that_was_taken_out_of_the_configuration_ends_nothing() -> None:
    async def scene(world: World) -> None:
        world.start("kill")
        world.elects = False
        await anyio.sleep(60)

    assert play(scene).endings == []


def test_an_orderly_stop_keeps_the_lease_until_the_killed_are_gone() -> None:
    async def scene(world: World) -> None:
        job = world.start("kill")

        async def dies() -> None:
            await anyio.sleep(0.2)
            world.finish(job)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dies)
            await world.guard.let_go()
        assert world.age == pytest.approx(0.2)

    assert [e.grace for e in play(scene).endings] == [0.0]


def test_an_orderly_stop_does_not_wait_for_the_told_nor_for_the_unkillable() -> None:
    async def scene(world: World) -> None:
        world.start("term")
        await world.guard.let_go()
        assert world.age == pytest.approx(0)
        world.finish(world.start("term"))
        world.start("kill")
        await world.guard.let_go()
        assert world.age == pytest.approx(2)

    assert [e.grace for e in play(scene).endings] == [None, 0.0]


@pytest.mark.parametrize(("mode", "grace"), [("kill", 0.0), ("term", 4.5)])
def test_a_survivor_on_a_node_that_does_not_lead_is_ended_at_once(mode: str, grace: float) -> None:
    async def scene(world: World) -> None:
        world.lose()
        world.adopt(mode)
        await anyio.sleep(10)

    (ended,) = (world := play(scene)).endings
    assert ended.at - world.born < 0.1
    assert ended.grace == pytest.approx(grace, abs=0.01)


def test_a_survivor_whose_node_has_no_view_yet_is_gone_within_seconds() -> None:
    async def scene(world: World) -> None:
        world.answer = None
        world.adopt()
        await anyio.sleep(10)

    (ended,) = (world := play(scene)).endings
    assert 4.0 < ended.at - world.born <= 5.0


def test_a_survivor_on_a_node_that_leads_goes_on_until_that_lease_is_lost() -> None:
    async def scene(world: World) -> None:
        world.adopt()
        for _ in range(5):
            await anyio.sleep(5)
            world.renew()
        assert world.endings == []
        assert world.guard.guards("run")
        world.lose()
        await anyio.sleep(1)
        world.guard.gone("run")
        assert not world.guard.guards("run")

    (ended,) = (world := play(scene)).endings
    assert 25.0 <= ended.at - world.born < 25.1


def test_a_survivor_whose_job_says_continue_is_left_alone() -> None:
    async def scene(world: World) -> None:
        world.lose()
        world.adopt("continue")
        await anyio.sleep(60)

    assert play(scene).endings == []
