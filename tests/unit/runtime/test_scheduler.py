"""The scheduler on virtual time: starts at the instant, honours gate, pause and clock steps, survives a bad view."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC
from types import MappingProxyType
from typing import Any

import anyio
import pytest

from cronstable.core.decision import DecisionRing, Reason, Verdict
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job, JobOptions
from cronstable.core.runs import LiveRun, Outcome, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.view import ClusterView
from cronstable.plugin.protocols import Pause
from cronstable.runtime import scheduler as scheduler_module
from cronstable.runtime.bus import EventBus
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.testing.clock import VirtualClock, run_virtual

NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600
LOG = logging.getLogger("test")


class Cluster:
    """Stands in for the cluster manager: a view under the test's control."""

    def __init__(self, view: ClusterView | None = None, *, elects: bool = False) -> None:
        self.answer = view
        self.elects = elects
        self.broken = False
        self.refreshed = 0
        self.after_refresh: ClusterView | None = None

    async def refresh(self) -> None:
        self.refreshed += 1
        await anyio.sleep(1.0)
        if self.after_refresh is not None:
            self.answer = self.after_refresh

    def view(self) -> ClusterView | None:
        if self.broken:
            raise RuntimeError("broken plugin")
        return self.answer


class Ids:
    def __init__(self) -> None:
        self._n = 0

    def token(self, nbytes: int = 6) -> str:
        self._n += 1
        return f"{self._n:0{nbytes * 2}x}"


class World:
    """A scheduler, a launcher and a fake runner that takes ``lasts`` virtual seconds per run."""

    def __init__(self, *, at: float = NOON - 0.5, cluster: Cluster | None = None, lasts: float = 0.0) -> None:
        self.clock = VirtualClock.of_loop(wall=at)
        self.cluster = cluster or Cluster()
        self.lasts = lasts
        self.starts: list[tuple[str, int | None, float]] = []
        bus = EventBus(LOG)
        self.launcher = Launcher(
            execute=self._execute,
            clock=self.clock,
            ids=Ids(),
            bus=bus,
            hub=OutputHub(),
            log=LOG,
            node="node-a",
            decisions=DecisionRing(),
        )
        members: Any = self.cluster
        self.scheduler = Scheduler(
            clock=self.clock,
            cluster=members,
            launcher=self.launcher,
            log=LOG,
        )

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        now = self.clock.now().wall
        self.starts.append((request.key.job, request.key.scheduled_at, now))
        on_started(LiveRun(request.key, 4711, now))
        outcome = Outcome.CANCELLED
        with request.cancellation.scope():
            await self.clock.sleep(self.lasts)
            outcome = Outcome.SUCCESS
        return RunRecord(request.key, outcome, 0, now, self.clock.now().wall, self.clock.now().wall - now)

    async def run(self, seconds: float, during: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        async with anyio.create_task_group() as runs:
            self.launcher.bind(runs)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.scheduler.run)
                if during is not None:
                    tasks.start_soon(during)
                await self.clock.sleep(seconds)
                tasks.cancel_scope.cancel()
            runs.cancel_scope.cancel()

    def offsets(self) -> list[tuple[str, float]]:
        return [(name, round(at - NOON, 3)) for name, _, at in self.starts]


def job(name: str = "a", schedule: str = "* * * * *", **options: object) -> Job:
    return Job(name, "true", Schedule.parse(schedule, job_name=name, zone=UTC), JobOptions(**options))  # type: ignore[arg-type]


def leader(*, is_leader: bool, deadline: float | None = None) -> ClusterView:
    return ClusterView(
        backend="filesystem",
        node_name="node-a",
        job_set_id="v1:0",
        quorate=True,
        leader="node-a" if is_leader else "node-b",
        is_leader=is_leader,
        available=is_leader,
        deadline=deadline,
    )


def test_jobs_start_at_their_instant_with_their_scheduled_time() -> None:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job()])
        await world.run(121)
        return world

    world = run_virtual(scenario)
    assert world.offsets() == [("a", 0.0), ("a", 60.0), ("a", 120.0)]
    assert [at for _, at, _ in world.starts] == [NOON, NOON + 60, NOON + 120]


def test_a_per_second_job_misses_no_tick_in_ten_minutes() -> None:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job("tick", "* * * * * * *")])
        await world.run(600)
        return world

    world = run_virtual(scenario)
    assert [at for _, at, _ in world.starts] == list(range(NOON, NOON + 600))


def test_a_follower_skips_with_the_holder_as_evidence_and_without_a_row_of_history() -> None:
    async def scenario() -> World:
        world = World(cluster=Cluster(leader(is_leader=False), elects=True))
        world.scheduler.load([job()])
        await world.run(1)
        return world

    world = run_virtual(scenario)
    assert world.starts == []
    record = world.launcher.decisions.get("a", NOON)
    assert record is not None
    assert (record.decision.verdict, record.decision.reason) == (Verdict.SKIP, Reason.NOT_LEADER)
    assert "node-b" in record.decision.evidence.values()
    assert record.provisional
    assert not world.launcher.history()


def test_leader_jobs_fail_closed_without_a_manager_and_every_node_jobs_run() -> None:
    async def scenario() -> World:
        world = World(cluster=Cluster(None, elects=True))
        world.scheduler.load(
            [
                job("leader"),
                job("prefer", cluster_policy=ClusterPolicy.PREFER_LEADER),
                job("every", cluster_policy=ClusterPolicy.EVERY_NODE),
            ]
        )
        await world.run(1)
        return world

    world = run_virtual(scenario)
    assert [name for name, _ in world.offsets()] == ["prefer", "every"]
    record = world.launcher.decisions.get("leader", NOON)
    assert record is not None
    assert record.decision.reason is Reason.MANAGER_ABSENT


def test_a_view_that_raises_closes_the_gate_and_the_scheduler_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> World:
        cluster = Cluster(leader(is_leader=True), elects=True)
        cluster.broken = True
        world = World(cluster=cluster)
        world.scheduler.load([job()])

        async def mend() -> None:
            await world.clock.sleep(30)
            cluster.broken = False

        await world.run(61, mend)
        return world

    world = run_virtual(scenario)
    assert world.offsets() == [("a", 60.0)]
    record = world.launcher.decisions.get("a", NOON)
    assert record is not None
    assert record.decision.reason is Reason.GATE_ERROR
    assert "the gate failed" in caplog.text


def test_leadership_lost_between_decision_and_spawn_stops_the_spawn() -> None:
    async def scenario() -> World:
        cluster = Cluster(leader(is_leader=True), elects=True)
        world = World(cluster=cluster)
        world.scheduler.load([job()])
        execute = world.launcher._execute

        async def slow(
            request: RunRequest, started: Callable[[LiveRun], None], permit: Callable[[], None]
        ) -> RunRecord:
            await anyio.sleep(5)
            cluster.answer = leader(is_leader=False)
            return await execute(request, started, permit)

        world.launcher._execute = slow
        await world.run(30)
        return world

    world = run_virtual(scenario)
    assert world.starts == []
    record = world.launcher.decisions.get("a", NOON)
    assert record is not None
    assert record.decision.reason is Reason.NOT_LEADER


def test_a_paused_job_is_skipped_with_a_row_of_history_and_goes_on_afterwards() -> None:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job()])
        world.scheduler.pauses = MappingProxyType({"a": Pause("a", NOON + 30, "maintenance")})
        await world.run(61)
        return world

    world = run_virtual(scenario)
    assert world.offsets() == [("a", 60.0)]
    rows = world.launcher.history()["a"]
    assert (rows[0].outcome, rows[0].skip_reason) == (Outcome.SKIPPED, "paused")


def test_forbid_skips_while_the_run_before_lives() -> None:
    async def scenario() -> World:
        world = World(lasts=90)
        world.scheduler.load([job(concurrency_policy=ConcurrencyPolicy.FORBID)])
        await world.run(125)
        return world

    world = run_virtual(scenario)
    assert world.offsets() == [("a", 0.0), ("a", 120.0)]
    record = world.launcher.decisions.get("a", NOON + 60)
    assert record is not None
    assert record.decision.reason is Reason.CONCURRENCY_FORBID


def test_replace_ends_the_old_run_before_the_new_one_starts() -> None:
    async def scenario() -> World:
        world = World(lasts=90)
        world.scheduler.load([job(concurrency_policy=ConcurrencyPolicy.REPLACE)])
        await world.run(65)
        return world

    world = run_virtual(scenario)
    assert world.offsets() == [("a", 0.0), ("a", 60.0)]
    assert world.launcher.history()["a"][0].outcome is Outcome.CANCELLED


def test_a_clock_set_forward_two_hours_gives_no_burst_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job()])

        async def step() -> None:
            await world.clock.sleep(10)
            world.clock.step_wall(7200)

        await world.run(200, step)
        return world

    world = run_virtual(scenario)
    late = [at for _, at in world.offsets() if at > 1]
    assert late == [7260.0, 7320.0, 7380.0]
    assert "the wall clock was stepped by +7200.0 s" in caplog.text
    rows = world.launcher.history()["a"]
    assert [r.skip_reason for r in rows if r.outcome is Outcome.SKIPPED] == ["late-resync"]


def test_a_clock_set_back_an_hour_defers_and_repeats_nothing() -> None:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job("hourly", "0 * * * *")])

        async def step() -> None:
            await world.clock.sleep(10)
            world.clock.step_wall(-3600)

        await world.run(3 * 3600, step)
        return world

    world = run_virtual(scenario)
    assert [at for _, at, _ in world.starts] == [NOON, NOON + 3600]


def test_nothing_starts_once_the_daemon_is_stopping() -> None:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job()])

        async def stop() -> None:
            await world.clock.sleep(0.5)
            world.launcher.stopping = True

        await world.run(200, stop)
        return world

    assert run_virtual(scenario).offsets() in ([], [("a", 0.0)])


def test_five_hundred_jobs_due_at_once_all_start_in_configuration_order() -> None:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job(f"j{i:03d}") for i in range(500)])
        await world.run(1)
        return world

    world = run_virtual(scenario)
    assert world.offsets() == [(f"j{i:03d}", 0.0) for i in range(500)]


DOUBT = ClusterView("gossip", "node-a", "0", stale=True)
SURE = ClusterView("gossip", "node-a", "0", quorate=True, leader="node-a", is_leader=True)
OTHERS = ClusterView("gossip", "node-a", "0", quorate=True, leader="node-b")
POLICIES = [
    job("leaders", cluster_policy=ClusterPolicy.LEADER),
    job("everybody", cluster_policy=ClusterPolicy.EVERY_NODE),
]


def doubting(after: ClusterView | None) -> World:
    async def main() -> World:
        world = World(cluster=Cluster(DOUBT, elects=True))
        world.cluster.after_refresh = after
        world.scheduler.load(POLICIES)
        await world.run(5)
        return world

    return run_virtual(main)


def test_in_doubt_a_leader_job_waits_for_one_refresh_and_the_others_do_not() -> None:
    world = doubting(SURE)
    assert world.offsets() == [("everybody", 0.0), ("leaders", 1.0)]
    assert world.cluster.refreshed == 1


def test_a_refresh_that_shows_another_leader_skips() -> None:
    world = doubting(OTHERS)
    assert world.offsets() == [("everybody", 0.0)]
    record = world.launcher.decisions.get("leaders", NOON)
    assert record is not None
    assert record.decision.reason is Reason.NOT_LEADER


def test_doubt_that_a_refresh_does_not_end_is_a_skip_and_nothing_stays_open() -> None:
    world = doubting(None)
    assert world.offsets() == [("everybody", 0.0)]
    record = world.launcher.decisions.get("leaders", NOON)
    assert record is not None
    assert (record.decision.verdict, record.decision.reason) == (Verdict.SKIP, Reason.STALE_VIEW)
    assert not record.provisional
    assert world.cluster.refreshed == 1


def test_a_job_removed_during_the_refresh_does_not_run() -> None:
    async def main() -> World:
        world = World(cluster=Cluster(DOUBT, elects=True))
        world.cluster.after_refresh = SURE
        world.scheduler.load(POLICIES)

        async def reload() -> None:
            await world.clock.sleep(1)
            world.scheduler.load([])

        await world.run(5, reload)
        return world

    world = run_virtual(main)
    assert world.offsets() == [("everybody", 0.0)]


def test_an_occurrence_of_before_the_term_is_skipped() -> None:
    async def main() -> World:
        clock = VirtualClock.of_loop(wall=NOON - 0.5)
        world = World(cluster=Cluster(replace(SURE, since=clock.now().boot + 1), elects=True))
        world.scheduler.load(POLICIES[:1])
        await world.run(5)
        return world

    world = run_virtual(main)
    assert world.offsets() == []
    record = world.launcher.decisions.get("leaders", NOON)
    assert record is not None
    assert record.decision.reason is Reason.DUE_BEFORE_TERM


class Order:
    """A listener that remembers what came after what."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, job: Job, run: LiveRun) -> None:
        self.heard.append("start")

    def finished(self, job: Job, record: RunRecord) -> None:
        self.heard.append("end")


async def burst() -> tuple[World, list[str]]:
    """A hundred jobs that are due together and end at once."""
    world, order = World(), Order()
    world.launcher.listeners = (order,)
    world.scheduler.load([job(f"job{number}") for number in range(100)])
    await world.run(1)
    return world, order.heard


def test_while_a_burst_starts_the_ends_of_its_runs_wait() -> None:
    world, heard = run_virtual(burst)
    assert heard == ["start"] * 100 + ["end"] * 100
    assert world.launcher.busy == 0
    assert len(world.launcher.history()) == 100


def test_a_burst_that_takes_long_keeps_no_end_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "ENDS_WAIT", 0.0)
    world, heard = run_virtual(burst)
    assert heard.index("end") < heard.count("start") == heard.count("end") == 100
    assert world.launcher.busy == 0


def test_a_job_is_decided_on_after_the_end_of_its_last_run_was_told() -> None:
    async def scenario() -> World:
        world = World()
        forbids = job(concurrency_policy=ConcurrencyPolicy.FORBID)
        world.scheduler.load([forbids])
        async with anyio.create_task_group() as runs:
            world.launcher.bind(runs)
            world.launcher.ends.hold()
            for at in (NOON, NOON + 60):
                world.scheduler.launch(forbids, Trigger.SCHEDULE, at)
                await world.clock.sleep(1)
            assert world.launcher.busy == 1
            world.launcher.ends.release()
        return world

    world = run_virtual(scenario)
    assert [at for _, at, _ in world.starts] == [NOON, NOON + 60]
    assert [run.outcome for run in world.launcher.history()["a"]] == [Outcome.SUCCESS, Outcome.SUCCESS]
    assert world.launcher.busy == 0
