"""Retries on virtual time: the gate before every attempt, reloads, cancels, pauses, and one owner through all of it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from types import MappingProxyType

import anyio
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cronstable.core.decision import DecisionRing, Reason, Verdict
from cronstable.core.job import ConcurrencyPolicy, Job, JobOptions
from cronstable.core.occurrence import occurrence_env
from cronstable.core.runs import LiveRun, Outcome, PendingRetry, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.view import ClusterView
from cronstable.plugin.protocols import Actor, CancelRun, Done, Pause, Refused, StartRun
from cronstable.runtime.bus import EventBus
from cronstable.runtime.commands import Commands
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.retries import Retries
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.testing.clock import VirtualClock, run_virtual

NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600
CASES = Path(__file__).resolve().parents[2] / "cases"
OPERATOR = Actor("operator", "test")


class Cluster:
    def __init__(self) -> None:
        self.answer: ClusterView | None = None
        self.elects = False
        self.broken = False

    def view(self) -> ClusterView | None:
        if self.broken:
            raise RuntimeError("broken plugin")
        return self.answer


class Ids:
    def __init__(self) -> None:
        self._n = 0

    def token(self, nbytes: int = 6) -> str:
        self._n += 1
        return f"run{self._n}"


@dataclass
class Reports:
    told: list[tuple[str, Outcome, bool]] = field(default_factory=list)

    def run_over(self, job: Job, record: RunRecord, *, will_retry: bool) -> None:
        self.told.append((job.name, record.outcome, will_retry))

    def gave_up(self, job: Job, record: RunRecord) -> None:
        self.told.append((job.name, record.outcome, False))

    @property
    def permanent(self) -> int:
        return sum(outcome is Outcome.FAILURE and not again for _, outcome, again in self.told)


class World:
    """A node whose runs last ``lasts`` virtual seconds and fail unless ``succeeds`` says otherwise."""

    def __init__(self, *, lasts: float = 0.0, succeeds: Callable[[RunRequest], bool] = lambda _: False) -> None:
        self.clock = VirtualClock.of_loop(wall=NOON - 0.5)
        self.lasts = lasts
        self.succeeds = succeeds
        self.cluster = Cluster()
        self.requests: list[tuple[float, RunRequest]] = []
        self.living = 0
        self.most_living = 0
        self.reports = Reports()
        self.log_lines: list[logging.LogRecord] = []
        log = logging.Logger("test", logging.DEBUG)
        log.addHandler(_Collect(self.log_lines))
        self.launcher = Launcher(
            execute=self._execute,
            clock=self.clock,
            ids=Ids(),
            bus=EventBus(log),
            hub=OutputHub(),
            log=log,
            node="node-a",
            decisions=DecisionRing(),
        )
        cluster: object = self.cluster
        self.scheduler = Scheduler(clock=self.clock, cluster=cluster, launcher=self.launcher, log=log)  # type: ignore[arg-type]  # two members of it are used
        self.retries = Retries(
            clock=self.clock,
            scheduler=self.scheduler,
            cluster=cluster,  # type: ignore[arg-type]  # as above
            launcher=self.launcher,
            log=log,
            reports=self.reports,
        )
        self.launcher.admission = self.retries
        self.launcher.listeners = (self.retries,)
        self.commands = Commands(
            scheduler=self.scheduler,
            launcher=self.launcher,
            log=log,
            shutdown=self.stop,
            cancel_retry=self.retries.cancel,
        )

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        now = self.clock.now().wall
        self.requests.append((round(now - NOON, 3), request))
        on_started(LiveRun(request.key, 4711, now))
        self.living += 1
        self.most_living = max(self.most_living, self.living)
        outcome, code = Outcome.CANCELLED, -15
        with request.cancellation.scope():
            await self.clock.sleep(self.lasts)
            outcome, code = (Outcome.SUCCESS, 0) if self.succeeds(request) else (Outcome.FAILURE, 1)
        self.living -= 1
        return RunRecord(request.key, outcome, code, now, self.clock.now().wall, self.clock.now().wall - now)

    def stop(self) -> None:
        self.launcher.stopping = True
        self.retries.stop()

    def load(self, *jobs: Job) -> None:
        self.scheduler.load(jobs)
        self.retries.reloaded()

    async def run(self, seconds: float, during: Callable[[], Awaitable[object]] | None = None) -> None:
        async def script() -> None:
            if during is not None:
                await during()

        async with anyio.create_task_group() as runs:
            self.launcher.bind(runs)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.scheduler.run)
                tasks.start_soon(self.retries.run)
                tasks.start_soon(script)
                await self.clock.sleep(seconds)
                tasks.cancel_scope.cancel()
            runs.cancel_scope.cancel()

    @property
    def starts(self) -> list[tuple[float, int]]:
        return [(at, request.key.attempt) for at, request in self.requests]

    def lines(self, level: int, text: str) -> int:
        return sum(1 for r in self.log_lines if r.levelno == level and text in r.getMessage())


class _Collect(logging.Handler):
    def __init__(self, into: list[logging.LogRecord]) -> None:
        super().__init__()
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(record)


def job(schedule: str = "0 12 * * *", *, command: str = "false", retries: int = 3, **options: object) -> Job:
    raw = {
        "onFailure": {
            "retry": {"maximumRetries": retries, "initialDelay": 2, "maximumDelay": 60, "backoffMultiplier": 2}
        }
    }
    made = JobOptions(raw=MappingProxyType(raw), **options)  # type: ignore[arg-type]  # the test's own keywords
    return Job("a", command, Schedule.parse(schedule, job_name="a", zone=UTC), made)


def view(**facts: object) -> ClusterView:
    base = {"backend": "filesystem", "node_name": "node-a", "job_set_id": "v1:0", "quorate": True}
    return ClusterView(**{**base, **facts})  # type: ignore[arg-type]  # the test's own keywords


LEADER = {"leader": "node-a", "is_leader": True, "available": True}
FOLLOWER = {"leader": "node-b", "is_leader": False, "available": False}


def play(
    seconds: float, script: Callable[[World], Awaitable[object]] | None = None, *jobs: Job, **kind: object
) -> World:
    async def scenario() -> World:
        world = World(**kind)  # type: ignore[arg-type]  # the test's own keywords
        world.load(*(jobs or (job(),)))
        await world.run(seconds, None if script is None else lambda: script(world))
        return world

    return run_virtual(scenario)


def test_attempts_come_after_their_delays_and_the_last_failure_is_final() -> None:
    world = play(100)
    assert world.starts == [(0.0, 0), (2.0, 1), (6.0, 2), (14.0, 3)]
    assert [again for _, _, again in world.reports.told] == [True, True, True, False]
    assert world.reports.permanent == 1
    assert world.retries.pending == {}


@pytest.mark.parametrize("name", ["exec-retry-backoff", "extra/exec-retry-shrinking", "extra/exec-retry-constant"])
def test_a_case_of_retries_has_its_attempts_delays_and_one_final_report(name: str) -> None:
    case = yaml.safe_load((CASES / f"{name}.yaml").read_text())
    options = JobOptions(raw=MappingProxyType({"onFailure": case["input"]["job"]["onFailure"]}))
    schedule = Schedule.parse("0 12 * * *", job_name="a", zone=UTC)
    world = play(100, None, Job("a", case["input"]["job"]["command"], schedule, options))
    times = [at for at, _ in world.starts]
    assert len(times) == case["expected"]["attempts"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps == pytest.approx(case["expected"]["delays_s"], abs=case["expected"]["tolerance_s"])
    assert world.reports.permanent == case["expected"]["permanent_failure_reports"]


def test_no_attempt_follows_a_success_that_is_only_told_later() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(1.5)
        await world.commands.do(StartRun("a"), OPERATOR)
        world.launcher.ends.hold()
        await world.clock.sleep(5)
        world.launcher.ends.release()

    world = play(100, script, lasts=0.5, succeeds=lambda request: request.key.trigger is Trigger.MANUAL)
    assert world.starts == [(0.0, 0), (1.0, 0)]
    assert [outcome for _, outcome, _ in world.reports.told] == [Outcome.FAILURE, Outcome.SUCCESS]
    assert world.retries.pending == {}


def test_a_run_that_is_over_and_only_told_later_is_not_cancelled() -> None:
    answers = []

    async def script(world: World) -> None:
        await world.clock.sleep(0.9)
        world.launcher.ends.hold()
        await world.clock.sleep(0.5)
        answers.append(await world.commands.do(CancelRun("a"), OPERATOR))
        world.launcher.ends.release()

    play(10, script, lasts=0.5, succeeds=lambda _: True)
    assert answers == [Refused("the job is not running")]


def test_all_attempts_are_one_occurrence() -> None:
    world = play(100)
    names = {occurrence_env(r.key, "n", "d", False)["CRONSTABLE_OCCURRENCE_ID"] for _, r in world.requests}
    assert len(names) == 1
    assert len({r.key.run_id for _, r in world.requests}) == 4
    assert {r.key.trigger for _, r in world.requests[1:]} == {Trigger.RETRY}


def test_all_attempts_of_a_manual_run_are_one_occurrence_too() -> None:
    async def script(world: World) -> None:
        await world.commands.do(StartRun("a"), OPERATOR)

    world = play(100, script, job("0 0 1 1 *"))
    env = [
        occurrence_env(r.key, "n", "d", False, first_run_id=r.first_run_id)["CRONSTABLE_OCCURRENCE_ID"]
        for _, r in world.requests
    ]
    assert len(env) == 4
    assert len(set(env)) == 1


def test_success_ends_the_attempts() -> None:
    world = play(100, None, succeeds=lambda request: request.key.attempt == 2)
    assert [attempt for _, attempt in world.starts] == [0, 1, 2]
    assert world.reports.permanent == 0


def test_what_is_waited_for_is_shown() -> None:
    seen: dict[str, PendingRetry] = {}

    async def script(world: World) -> None:
        await world.clock.sleep(1.5)
        seen.update(world.retries.pending)

    play(5, script)
    shown = seen["a"]
    assert (shown.attempt, shown.maximum, shown.delay) == (1, 3, 2.0)
    assert shown.at == pytest.approx(NOON + 2)


def test_doubt_defers_an_attempt_and_says_so_once_at_info() -> None:
    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(**LEADER)
        await world.clock.sleep(1)
        world.cluster.answer = view(**FOLLOWER, quorate=False)
        await world.clock.sleep(9)
        world.cluster.answer = view(**LEADER)

    world = play(12, script)
    assert world.starts[0] == (0.0, 0)
    assert world.starts[1] == (10.0, 1)
    assert world.lines(logging.INFO, "may not start yet") == 1
    assert world.lines(logging.DEBUG, "may not start yet") >= 2
    assert world.reports.permanent == 0


@pytest.mark.parametrize("doubt", [{"conflict_names": ("node-a",)}, {"settled": False}])
def test_conflict_and_a_view_that_converges_are_doubt(doubt: dict[str, object]) -> None:
    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(**LEADER)
        await world.clock.sleep(1)
        world.cluster.answer = view(**FOLLOWER, **doubt)

    world = play(30, script)
    assert world.starts == [(0.0, 0)]
    assert "a" in world.retries.pending


def test_a_gate_that_breaks_is_doubt() -> None:
    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(**LEADER)
        await world.clock.sleep(1)
        world.cluster.broken = True

    assert "a" in play(30, script).retries.pending


def test_ownership_that_moved_abandons_the_attempt_with_a_warning_and_a_row() -> None:
    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(**LEADER)
        await world.clock.sleep(1)
        world.cluster.answer = view(**FOLLOWER)

    world = play(30, script)
    assert world.starts == [(0.0, 0)]
    assert world.lines(logging.WARNING, "abandoned") == 1
    last = world.launcher.history()["a"][-1]
    assert (last.outcome, last.key.attempt) == (Outcome.CANCELLED, 1)
    assert world.reports.permanent == 0
    assert world.retries.pending == {}


def test_a_pause_defers() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(1)
        await world.commands.do(Pause("a", NOON + 20.0), OPERATOR)

    world = play(30, script)
    assert world.starts[1][0] >= 20.0
    assert world.starts[1][1] == 1


@pytest.mark.parametrize(
    "edit", [[], [job(enabled=False)], [job(command="exit 4")]], ids=["removed", "disabled", "changed"]
)
def test_a_reload_that_takes_the_job_away_or_changes_it_settles_the_ladder(edit: list[Job]) -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(1)
        world.load(*edit)

    world = play(100, script)
    assert world.starts == [(0.0, 0)]
    assert world.retries.pending == {}
    assert world.lines(logging.INFO, "will not be made") == 1
    assert world.reports.permanent == 1, "the failure is final after all"


def test_a_reload_that_changes_nothing_keeps_the_ladder_and_doubles_nothing() -> None:
    async def script(world: World) -> None:
        for _ in range(20):
            await world.clock.sleep(1)
            world.load(job())

    assert play(100, script).starts == [(0.0, 0), (2.0, 1), (6.0, 2), (14.0, 3)]


def test_a_failure_after_a_reload_that_removed_the_job_is_final_and_does_not_crash() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(1)
        world.load()

    world = play(100, script, lasts=5.0)
    assert world.starts == [(0.0, 0)]
    assert world.reports.permanent == 1


def test_cancelling_ends_the_run_or_the_wait_and_refuses_when_there_is_neither() -> None:
    outcomes = []

    async def script(world: World) -> None:
        await world.clock.sleep(1)
        outcomes.append(await world.commands.do(CancelRun("a"), OPERATOR))
        outcomes.append(await world.commands.do(CancelRun("a"), OPERATOR))

    world = play(100, script)
    assert world.starts == [(0.0, 0)]
    assert outcomes == [Done(0), Refused("the job is not running")]
    assert world.reports.permanent == 0


def test_a_cancelled_run_is_not_tried_again() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(1)
        await world.commands.do(CancelRun("a"), OPERATOR)

    world = play(100, script, lasts=50.0)
    assert world.starts == [(0.0, 0)]
    assert [outcome for _, outcome, _ in world.reports.told] == [Outcome.CANCELLED]


def test_a_replaced_run_is_not_tried_again_and_its_successor_is() -> None:
    replacing = job("0,1 12 * * *", concurrency_policy=ConcurrencyPolicy.REPLACE)
    world = play(300, None, replacing, lasts=70.0)
    assert world.starts[:3] == [(0.0, 0), (60.0, 0), (132.0, 1)]


def test_stopping_cancels_what_is_waited_for_and_reports_no_failure() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(1)
        world.stop()

    world = play(100, script)
    assert world.starts == [(0.0, 0)]
    assert world.retries.pending == {}
    late = play(100, script, lasts=5.0)
    assert late.reports.told == []


def test_a_scheduled_fire_starts_over() -> None:
    world = play(75, None, job("* * * * *", retries=-1), lasts=0.0)
    assert [a for _, a in world.starts] == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_forbid_defers_an_attempt_behind_a_manual_run() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(1)
        world.lasts = 10.0
        await world.commands.do(StartRun("a"), OPERATOR)

    world = play(15, script, job(concurrency_policy=ConcurrencyPolicy.FORBID))
    assert world.most_living == 1
    assert world.starts[:2] == [(0.0, 0), (0.5, 0)]
    assert world.starts[2][1] == 1


def test_leadership_lost_right_before_the_spawn_of_an_attempt_abandons_it() -> None:
    async def scenario() -> World:
        world = World()
        world.load(job())
        execute = world.launcher._execute

        async def slow(
            request: RunRequest, started: Callable[[LiveRun], None], permit: Callable[[], None]
        ) -> RunRecord:
            if request.key.attempt:
                await anyio.sleep(1)
                world.cluster.answer = view(**FOLLOWER)
            return await execute(request, started, permit)

        world.launcher._execute = slow
        world.cluster.elects = True
        world.cluster.answer = view(**LEADER)
        await world.run(60)
        return world

    world = run_virtual(scenario)
    assert world.starts == [(0.0, 0)]
    assert world.lines(logging.WARNING, "abandoned") == 1


# -- the queue --------------------------------------------------------------------------------------------------------

QUEUE = ConcurrencyPolicy.QUEUE


def test_a_queued_run_starts_when_the_one_ahead_is_over_and_one_waits_at_most() -> None:
    queued = job("0-3 12 * * *", retries=0, concurrency_policy=QUEUE)
    world = play(700, None, queued, lasts=150.0)
    assert world.most_living == 1
    assert world.starts == [(0.0, 0), (150.0, 0), (300.0, 0)]
    assert [r.key.scheduled_at for _, r in world.requests] == [NOON, NOON + 60, NOON + 180]
    skipped = [r.skip_reason for r in world.launcher.history()["a"] if r.outcome is Outcome.SKIPPED]
    assert skipped == ["queue-full"]
    record = world.launcher.decisions.get("a", NOON + 60)
    assert record is not None
    assert (record.decision.verdict, record.decision.reason) == (Verdict.RUN, Reason.NO_ELECTION)


def test_a_manual_start_at_the_same_instant_queues_and_a_second_one_is_refused() -> None:
    outcomes = []

    async def script(world: World) -> None:
        for _ in range(3):
            outcomes.append(await world.commands.do(StartRun("a"), OPERATOR))

    world = play(100, script, job("0 0 1 1 *", retries=0, concurrency_policy=QUEUE), lasts=10.0)
    assert [type(outcome) for outcome in outcomes] == [Done, Done, Refused]
    assert world.most_living == 1
    assert world.starts == [(-0.5, 0), (9.5, 0)]


def test_cancelling_takes_a_queued_run_out_of_the_queue() -> None:
    async def script(world: World) -> None:
        for _ in range(2):
            await world.commands.do(StartRun("a"), OPERATOR)
        await world.clock.sleep(1)
        assert await world.commands.do(CancelRun("a"), OPERATOR) == Done(2)

    world = play(100, script, job("0 0 1 1 *", retries=0, concurrency_policy=QUEUE), lasts=10.0)
    assert world.launcher.busy == 0


@pytest.mark.parametrize("edit", [[], [job("0 0 1 1 *", enabled=False)]], ids=["removed", "disabled"])
def test_a_queued_scheduled_run_whose_job_is_gone_does_not_start(edit: list[Job]) -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(61)
        world.load(*edit)

    world = play(400, script, job("0,1 12 * * *", retries=0, concurrency_policy=QUEUE), lasts=100.0)
    assert world.starts == [(0.0, 0)]


def test_a_stop_takes_the_waiting_run_out_of_the_queue() -> None:
    async def script(world: World) -> None:
        await world.clock.sleep(61)
        assert world.launcher.queued == {"a"}
        world.stop()

    world = play(400, script, job("0,1 12 * * *", retries=0, concurrency_policy=QUEUE), lasts=100.0)
    assert world.starts == [(0.0, 0)]
    assert world.launcher.queued == frozenset()
    assert world.launcher.history()["a"][-1].skip_reason == "stopping"


def test_a_command_that_cannot_be_launched_is_tried_again_like_any_failure() -> None:
    async def scenario() -> World:
        world = World()

        async def launch_fails(
            request: RunRequest, started: Callable[[LiveRun], None], permit: Callable[[], None]
        ) -> RunRecord:
            permit()
            now = world.clock.now().wall
            world.requests.append((round(now - NOON, 3), request))
            return RunRecord(request.key, Outcome.FAILURE, 127, now, now, 0.0, fail_reason="launch failed")

        world.launcher._execute = launch_fails
        world.load(job())
        await world.run(60)
        return world

    assert run_virtual(scenario).starts == [(0.0, 0), (2.0, 1), (6.0, 2), (14.0, 3)]


# -- any interleaving -------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 6.0),
        st.sampled_from(["reload", "change", "remove", "cancel", "pause", "resume", "start", "moved", "doubt", "mine"]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([0.0, 1.0, 5.0]))
def test_no_interleaving_of_reload_cancel_pause_and_handover_doubles_an_attempt(
    steps: Iterable[tuple[float, str]], lasts: float
) -> None:
    async def script(world: World) -> None:
        world.cluster.elects = True
        world.cluster.answer = view(**LEADER)
        for pause, what in steps:
            await world.clock.sleep(pause)
            match what:
                case "reload":
                    world.load(job())
                case "change":
                    world.load(job(command=f"exit {pause}"))
                case "remove":
                    world.load()
                case "cancel":
                    await world.commands.do(CancelRun("a"), OPERATOR)
                case "pause":
                    await world.commands.do(Pause("a", world.clock.now().wall + 3), OPERATOR)
                case "start":
                    await world.commands.do(StartRun("a"), OPERATOR)
                case "moved":
                    world.cluster.answer = view(**FOLLOWER)
                case "doubt":
                    world.cluster.answer = view(**FOLLOWER, quorate=False)
                case _:
                    world.cluster.answer = view(**LEADER)

    world = play(200, script, lasts=lasts)
    attempts: dict[str | None, list[int]] = {}
    for _, request in world.requests:
        if request.key.trigger is Trigger.RETRY:
            attempts.setdefault(request.first_run_id, []).append(request.key.attempt)
    for made in attempts.values():
        assert made == sorted(set(made)), "an attempt was made twice"
        assert max(made) <= 3
