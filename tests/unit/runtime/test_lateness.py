"""Late jobs on virtual time: one alert per episode, visible recovery, the owner alone."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from types import MappingProxyType

import anyio
import pytest
import yaml

from cronstable.core.decision import DecisionRing
from cronstable.core.job import ConcurrencyPolicy, Job, JobOptions
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.core.view import ClusterView
from cronstable.plugin.protocols import Pause, Report
from cronstable.runtime.bus import EventBus
from cronstable.runtime.lateness import LatenessWatch
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import SeededIds

NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600
CASES = Path(__file__).resolve().parents[2] / "cases"


def view(*, mine: bool, quorate: bool = True) -> ClusterView:
    leader = "node-a" if mine else "node-b"
    return ClusterView("fs", "node-a", "v1:0", quorate=quorate, leader=leader, is_leader=mine, available=mine)


class Cluster:
    """Stands in for the cluster manager."""

    def __init__(self) -> None:
        self.answer: ClusterView | None = None
        self.elects = False

    def view(self) -> ClusterView | None:
        return self.answer


class Reports:
    def __init__(self) -> None:
        self.told: list[Report] = []
        self.breaks = False

    def report(self, report: Report) -> None:
        if self.breaks:
            raise RuntimeError("nobody can be told")
        self.told.append(report)

    @property
    def checks(self) -> list[str]:
        return [r.facts.check for r in self.told if r.facts is not None]


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock.of_loop(wall=NOON - 30)
        self.lasts = 0.0
        self.outcome = Outcome.SUCCESS
        self.cluster = Cluster()
        self.reports = Reports()
        log = logging.Logger("test")
        self.launcher = Launcher(
            execute=self._execute,
            clock=self.clock,
            ids=SeededIds(),
            bus=EventBus(log),
            hub=OutputHub(),
            log=log,
            node="node-a",
            decisions=DecisionRing(),
        )
        cluster: object = self.cluster
        self.scheduler = Scheduler(clock=self.clock, cluster=cluster, launcher=self.launcher, log=log)  # type: ignore[arg-type]  # two members of it are used
        self.watch = LatenessWatch(
            clock=self.clock,
            scheduler=self.scheduler,
            cluster=cluster,  # type: ignore[arg-type]  # as above
            launcher=self.launcher,
            log=log,
            reports=self.reports,
        )
        self.launcher.listeners = (self.watch,)

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        now = self.clock.now().wall
        on_started(LiveRun(request.key, 1, now))
        outcome = self.outcome
        await self.clock.sleep(self.lasts)
        return RunRecord(request.key, outcome, 0, now, self.clock.now().wall, self.clock.now().wall - now)


def job(sla: dict[str, float], schedule: str = "* * * * *") -> Job:
    options = JobOptions(raw=MappingProxyType({"sla": dict(sla)}))
    return Job("a", "true", Schedule.parse(schedule, job_name="a", zone=UTC), options)


def play(seconds: float, job: Job, script: Callable[[World], Awaitable[None]]) -> World:
    async def scenario() -> World:
        world = World()
        world.scheduler.load([job])
        async with anyio.create_task_group() as runs:
            world.launcher.bind(runs)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(world.scheduler.run)
                tasks.start_soon(world.watch.run)
                tasks.start_soon(_await, script(world))
                await world.clock.sleep(seconds)
                tasks.cancel_scope.cancel()
            runs.cancel_scope.cancel()
        return world

    return run_virtual(scenario)


async def _await(this: Awaitable[None]) -> None:
    await this


async def nothing(world: World) -> None:
    """Let it run."""


def test_a_job_that_cannot_start_for_ten_minutes_is_one_alert_and_its_recovery_shows() -> None:
    case = yaml.safe_load((CASES / "report-late-alert-latches.yaml").read_text())
    seen: list[object] = []

    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(mine=True)
        await world.clock.sleep(100)
        world.cluster.answer = view(mine=False, quorate=False)
        await world.clock.sleep(590)
        seen.append({name: [one.check for one in found] for name, found in world.watch.late.items()})
        world.cluster.answer = view(mine=True)
        await world.clock.sleep(120)
        seen.append({name: [one.check for one in found] for name, found in world.watch.late.items()})

    world = play(900, job(case["input"]["job"]["sla"]), script)
    assert len(world.reports.told) == case["expected"]["alerts"]
    assert world.reports.checks == ["lateAfter"]
    assert seen == [{"a": ["lateAfter"]}, {}]
    assert world.watch.breaches == {("a", "lateAfter"): 1}


def test_a_job_that_starts_in_time_and_runs_long_trips_only_the_limit_of_its_length() -> None:
    async def script(world: World) -> None:
        world.lasts = 500.0

    world = play(400, job({"lateAfterSeconds": 60, "maxRuntimeSeconds": 90}, "0 12 * * *"), script)
    assert world.reports.checks == ["maxRuntime"]


def test_a_long_run_is_told_although_nobody_looked_while_it_lived() -> None:
    async def script(world: World) -> None:
        world.lasts = 45.0
        await world.clock.sleep(180)
        world.lasts = 1.0

    # From 5 to 50 seconds past three minutes, and it is looked at right after each full one.
    world = play(300, job({"maxRuntimeSeconds": 30}, "5 * * * * * *"), script)
    assert world.reports.checks == ["maxRuntime"]
    assert "a run took 45 s" in (world.reports.told[0].record.fail_reason or "")
    assert world.watch.late == {}


def test_a_run_that_was_told_of_while_it_lived_is_over_at_the_next_look() -> None:
    seen: list[bool] = []

    async def script(world: World) -> None:
        world.lasts = 90.0
        await world.clock.sleep(185)
        seen.append(bool(world.watch.late))

    world = play(300, job({"maxRuntimeSeconds": 30}, "5 0 12 * * * *"), script)
    assert (world.reports.checks, seen) == (["maxRuntime"], [False])


def test_a_late_start_is_told_although_it_has_started_when_somebody_looks() -> None:
    async def script(world: World) -> None:
        world.lasts = 40.0
        await world.clock.sleep(55)
        world.lasts = 0.0

    once = job({"lateAfterSeconds": 20}, "5,10 0 12 * * * *")
    queued = replace(once, options=replace(once.options, concurrency_policy=ConcurrencyPolicy.QUEUE))
    world = play(300, queued, script)
    assert world.reports.checks == ["lateAfter"]
    assert "a run has started 35 s after its scheduled time" in (world.reports.told[0].record.fail_reason or "")


def test_limits_that_a_reload_brings_are_watched_from_the_next_full_minute_on() -> None:
    bare = replace(job({}), options=JobOptions(raw=MappingProxyType({})))
    late: list[dict[str, float]] = []

    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(mine=True)
        await world.clock.sleep(400)
        world.lasts = 500.0
        world.scheduler.load([job({"maxRuntimeSeconds": 90})])
        for _ in range(2):
            await world.clock.sleep(120)
            found = world.watch.late.get("a", ())
            late.append({lateness.check: (lateness.since or 0.0) - NOON for lateness in found})

    # Loaded 370 s past noon; the next run starts at 420 s and is too long from 510 s on.
    world = play(700, bare, script)
    assert world.reports.checks == ["maxRuntime"]
    assert late == [{}, {"maxRuntime": 540.5}]


def test_a_job_that_a_reload_leaves_without_limits_is_no_longer_late() -> None:
    bare = replace(job({}), options=JobOptions(raw=MappingProxyType({})))
    seen: list[bool] = []

    async def script(world: World) -> None:
        world.lasts = 500.0
        await world.clock.sleep(200)
        seen.append("a" in world.watch.late)
        world.scheduler.load([bare])
        await world.clock.sleep(60)
        seen.append("a" in world.watch.late)

    play(300, job({"maxRuntimeSeconds": 90}), script)
    assert seen == [True, False]


def test_a_success_that_came_too_early_is_suspicious() -> None:
    case = yaml.safe_load((CASES / "report-early-finish-suspicious.yaml").read_text())
    key = case["expected"]["optional_feature"].split(".")[1].split()[0]

    async def script(world: World) -> None:
        await world.clock.sleep(200)
        world.lasts = 45.0

    world = play(600, job({key: 30}), script)
    assert world.reports.checks == [key.removesuffix("Seconds")]
    assert world.watch.late == {}
    assert "took only" in (world.reports.told[0].record.fail_reason or "")


@pytest.mark.parametrize("name", ["report-early-failure-is-not-suspicious", "report-early-again-after-a-long-success"])
def test_only_a_success_can_come_too_early_and_each_time_is_told_once(name: str) -> None:
    case = yaml.safe_load((CASES / "extra" / f"{name}.yaml").read_text())

    async def script(world: World) -> None:
        await world.clock.sleep(20)
        for lasts, outcome in case["input"]["runs"]:
            world.lasts, world.outcome = lasts, Outcome(outcome)
            await world.clock.sleep(60)

    world = play(60 * len(case["input"]["runs"]) + 80, job(case["input"]["job"]["sla"]), script)
    assert len(world.reports.told) == case["expected"]["alerts"]


def test_time_since_the_last_success_counts_from_the_start_of_the_watch() -> None:
    world = play(7300, job({"maxTimeSinceSuccessSeconds": 3600}, "0 0 1 1 *"), nothing)
    assert world.reports.checks == ["maxTimeSinceSuccess"]
    facts = world.reports.told[0].facts
    assert facts is not None
    assert facts.last_success_at is None
    assert 3600 < facts.observed < 3700


def test_a_follower_says_nothing_and_starts_afresh_when_it_takes_over() -> None:
    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(mine=False)
        await world.clock.sleep(1800)
        world.cluster.answer = view(mine=True)

    world = play(1900, job({"lateAfterSeconds": 60, "maxTimeSinceSuccessSeconds": 600}), script)
    assert world.reports.told == []


def test_an_owner_that_lost_the_job_to_another_node_says_nothing() -> None:
    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(mine=True)
        await world.clock.sleep(100)
        world.cluster.answer = view(mine=False)

    assert play(1900, job({"lateAfterSeconds": 60}), script).reports.told == []


def test_a_second_outage_is_a_second_alert() -> None:
    case = yaml.safe_load((CASES / "extra" / "report-late-again-after-recovery.yaml").read_text())

    async def script(world: World) -> None:
        world.cluster.elects = True
        for _ in range(2):
            world.cluster.answer = view(mine=True)
            await world.clock.sleep(600)
            world.cluster.answer = view(mine=False, quorate=False)
            await world.clock.sleep(300)
        world.cluster.answer = view(mine=True)

    assert len(play(2000, job(case["input"]["job"]["sla"]), script).reports.told) == case["expected"]["alerts"]


def test_a_pause_is_not_late() -> None:
    case = yaml.safe_load((CASES / "extra" / "report-pause-is-not-late.yaml").read_text())

    async def script(world: World) -> None:
        await world.clock.sleep(100)
        world.scheduler.pauses = MappingProxyType({"a": Pause("a", NOON + 3670.0)})

    assert len(play(4200, job(case["input"]["job"]["sla"]), script).reports.told) == case["expected"]["alerts"]


def test_a_job_that_cannot_be_judged_ends_neither_the_watch_nor_its_own_runs() -> None:
    async def script(world: World) -> None:
        world.reports.breaks = True
        world.lasts = 45.0

    world = play(300, job({"maxRuntimeSeconds": 30}, "5 * * * * * *"), script)
    assert [run.outcome for run in world.launcher.history()["a"]] == [Outcome.SUCCESS] * 4


def test_a_job_that_is_removed_is_forgotten() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(100)
        world.scheduler.load([])
        await world.clock.sleep(100)
        world.scheduler.load([job({"lateAfterSeconds": 60}, "0 0 1 1 *")])

    world = play(1000, job({"lateAfterSeconds": 60}), script)
    assert world.reports.told == []
    assert world.watch.late == {}


def test_a_restart_does_not_make_a_stale_job_fresh() -> None:
    key = RunKey("before", "a", None)

    async def script(world: World) -> None:
        now = world.clock.now().wall
        world.outcome = Outcome.FAILURE
        rows = [
            RunRecord(key, Outcome.SUCCESS, 0, now - 7300, now - 7200, 100.0),
            RunRecord(key, Outcome.FAILURE, 1, now - 60, now - 50, 10.0),
        ]
        world.watch.recalled("a", rows)

    world = play(300, job({"maxTimeSinceSuccessSeconds": 3600, "minRuntimeSeconds": 200}), script)
    assert world.reports.checks == ["maxTimeSinceSuccess"]
    fresh = play(300, job({"maxTimeSinceSuccessSeconds": 3600}), nothing)
    assert fresh.reports.checks == []
