"""Catch-up after an outage, pauses, the gate on the last run: several lives of a daemon on one store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pytest
import yaml

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.config.model import StateConfig
from cronstable.core.decision import Decision, DecisionRing, Reason, Verdict
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job, JobOptions
from cronstable.core.missed import Checkpoint
from cronstable.core.records import decode
from cronstable.core.runs import LiveRun, Outcome, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.store import StoreUnavailable
from cronstable.core.view import ClusterView
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.plugin.protocols import Actor, Pause, Resume
from cronstable.plugin.state_store import StoreInfo, Topology
from cronstable.runtime.bus import EventBus
from cronstable.runtime.commands import Commands
from cronstable.runtime.history import RunHistory
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.missed import MissedRuns
from cronstable.runtime.output import OutputHub
from cronstable.runtime.pauses import Pauses
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.runtime.state import StateKeeper
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost, SeededIds, SeededRng

CASES = Path(__file__).resolve().parents[2] / "cases"
NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600
BACKEND = StateStoreBackend(name="memory", factory="none:none")
OPERATOR = Actor("operator", "test")
MINUTE = 60


class Store(MemoryStateStore):
    topology = Topology.SINGLE_NODE
    down = False

    async def open(self) -> StoreInfo:
        if self.down:
            raise StoreUnavailable("down")
        return StoreInfo("memory", self.topology, "here")

    slow = 0.0

    async def append(self, stream: str, data: bytes) -> str:
        if self.down:
            raise StoreUnavailable("down")
        await anyio.sleep(self.slow)
        return await super().append(stream, data)


class Cluster:
    def __init__(self) -> None:
        self.elects = False
        self.answer: ClusterView | None = None

    def view(self) -> ClusterView | None:
        return self.answer


class Claimer:
    """A claims driver that starts what it is asked to."""

    def __init__(self) -> None:
        self.claims = False
        self.window = 120.0
        self.has_swept = True
        self.refusal: Decision | None = None
        self.asked: list[int] = []

    def owns(self, job: Job) -> bool:
        return self.claims

    def catch_up(self, job: Job, at: int, over: Callable[[Decision | None], None]) -> bool:
        self.asked.append(at)
        over(self.refusal)
        return True


def job(name: str = "a", schedule: str = "* * * * *", **raw: Any) -> Job:
    own = ("enabled", "cluster_policy", "concurrency_policy")
    options: dict[str, Any] = {key: raw.pop(key) for key in own if key in raw}
    parsed = Schedule.parse(schedule, job_name=name, zone=UTC)
    return Job(name, "true", parsed, JobOptions(raw=MappingProxyType(raw), **options))


class World:
    """One life of a daemon."""

    def __init__(self, contents: Contents, jobs: list[Job], at: float, *, node: str, fail_closed: bool) -> None:
        self.clock = VirtualClock.of_loop(wall=at)
        self.host = FakeHost(self.clock)
        self.lasts, self.outcome = 1.0, Outcome.SUCCESS
        self.runs: list[tuple[str, int | None, Trigger]] = []
        self.cluster, self.claimer = Cluster(), Claimer()
        self.store = Store(self.clock, contents)
        self.keeper = StateKeeper(
            make=lambda policy, host: self.store, host=self.host, clock=self.clock, rng=SeededRng(), log=self.host.log
        )
        self.keeper.configure(StateConfig(BACKEND, None, {}, fail_closed=fail_closed))
        self.launcher = Launcher(
            execute=self._execute,
            clock=self.clock,
            ids=SeededIds(f"{node}{at}"),
            bus=EventBus(self.host.log),
            hub=OutputHub(),
            log=self.host.log,
            node=node,
            decisions=DecisionRing(),
        )
        cluster: Any = self.cluster
        self.scheduler = Scheduler(clock=self.clock, cluster=cluster, launcher=self.launcher, log=self.host.log)
        self.jobs = jobs
        self.history = RunHistory(
            keeper=self.keeper,
            launcher=self.launcher,
            clock=self.clock,
            jobs=lambda: {one.name: one for one in self.jobs},
            log=self.host.log,
        )
        self.scheduler.after_success = self.history.after_success
        self.pauses = Pauses(keeper=self.keeper, scheduler=self.scheduler, clock=self.clock)
        self.missed = MissedRuns(
            keeper=self.keeper,
            scheduler=self.scheduler,
            cluster=cluster,
            launcher=self.launcher,
            history=self.history,
            claimer=self.claimer,
            clock=self.clock,
            log=self.host.log,
        )
        self.commands = Commands(
            scheduler=self.scheduler,
            launcher=self.launcher,
            log=self.host.log,
            shutdown=lambda: None,
            set_pause=self.pauses.set,
        )

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        now = self.clock.now().wall
        self.runs.append((request.job.name, request.key.scheduled_at, request.key.trigger))
        on_started(LiveRun(request.key, 7, now))
        await self.clock.sleep(self.lasts)
        return RunRecord(request.key, self.outcome, 0, now, self.clock.now().wall, self.lasts)

    def caught_up(self, name: str = "a") -> list[int | None]:
        return [at for job, at, trigger in self.runs if trigger is Trigger.CATCHUP and job == name]

    def on_time(self, name: str = "a") -> list[int | None]:
        return [at for job, at, trigger in self.runs if trigger is Trigger.SCHEDULE and job == name]

    def reasons(self, name: str = "a") -> list[Reason]:
        return [one.decision.reason for one in self.launcher.decisions.for_job(name)]

    def lead(self, mine: bool = True) -> None:
        self.cluster.elects = True
        leader = "node-a" if mine else "other"
        self.cluster.answer = ClusterView("x", "node-a", "id", quorate=True, leader=leader, is_leader=mine)


Scene = Callable[[World], Awaitable[None]]


async def nothing(world: World) -> None:
    """Let it run."""


def live(
    contents: Contents,
    jobs: list[Job],
    at: float,
    seconds: float,
    scene: Scene = nothing,
    *,
    before: Callable[[World], None] = lambda world: None,
    node: str = "node-a",
    fail_closed: bool = False,
    begins: float = 0.0,
) -> World:
    """A daemon lives for ``seconds`` from the wall time ``at`` and is killed; it schedules after ``begins`` seconds."""

    async def main() -> World:
        world = World(contents, jobs, at, node=node, fail_closed=fail_closed)
        before(world)
        await world.clock.sleep(begins)
        world.scheduler.load(jobs)
        async with anyio.create_task_group() as tasks:
            world.launcher.bind(tasks)
            tasks.start_soon(world.keeper.run)
            tasks.start_soon(world.history.run)
            tasks.start_soon(world.pauses.run)
            await world.keeper.settled(5)
            await world.pauses.settled(1)
            await world.history.settled(1)
            tasks.start_soon(world.missed.run)
            tasks.start_soon(world.scheduler.run)
            tasks.start_soon(_await, scene(world))
            await world.clock.sleep(seconds)
            tasks.cancel_scope.cancel()
        return world

    return run_virtual(main)


async def _await(this: Awaitable[None]) -> None:
    await this


def checkpoint(contents: Contents, stream: str = "catchup/a") -> Checkpoint | None:
    newest = contents.streams[stream][max(contents.streams[stream])]
    return Checkpoint.of(decode(newest) or {})


GIVEN = (
    "exec-catchup-run-once-after-long-outage",
    "extra/exec-catchup-run-all-after-outage",
    "extra/exec-catchup-run-all-within-its-deadline",
)


@pytest.mark.parametrize("name", GIVEN)
def test_an_outage_is_caught_up_as_its_case_says(name: str) -> None:
    case: Mapping[str, Any] = yaml.safe_load((CASES / f"{name}.yaml").read_text())
    given, contents = case["input"], Contents()
    one = job(**given["job"])
    live(contents, [one], NOON - 30, 100)
    back = NOON + 60 + given["outage_minutes"] * MINUTE - 30
    world = live(contents, [one], back, 20 * MINUTE)
    assert len(world.caught_up()) == case["expected"]["catch_up_runs"]
    assert world.caught_up() == sorted(at for at in world.caught_up() if at is not None and at <= back)
    assert bool(world.on_time()) is case["expected"]["then_normal"]
    assert live(contents, [one], back + 20 * MINUTE + 1, 30).caught_up() == []


def test_a_restart_within_a_slot_owes_nothing_and_a_first_start_neither() -> None:
    contents, one = Contents(), job(onMissed="run-all")
    assert live(contents, [one], NOON - 30, 50).caught_up() == []
    assert live(contents, [one], NOON + 20, 20).caught_up() == []


def test_what_falls_due_while_the_daemon_comes_up_was_missed_too() -> None:
    contents, one = Contents(), job(onMissed="run-all")
    live(contents, [one], NOON - 30, 40)
    world = live(contents, [one], NOON + MINUTE - 1, 100, begins=3)
    assert world.caught_up() == [NOON + MINUTE]
    assert world.on_time() == [NOON + 2 * MINUTE]


def test_without_the_key_nothing_is_caught_up_and_nothing_written() -> None:
    contents, one = Contents(), job()
    live(contents, [one], NOON - 30, 50)
    assert live(contents, [one], NOON + 3600, 50).caught_up() == []
    assert not [name for name in contents.streams if name.startswith("catchup/")]


def test_a_catch_up_that_is_killed_goes_on_after_the_next_start_and_repeats_nothing() -> None:
    contents, one = Contents(), job(schedule="*/10 * * * *", onMissed="run-all")
    live(contents, [one], NOON - 30, 50)

    def slow(world: World) -> None:
        world.lasts = 100.0

    first = live(contents, [one], NOON + 3601, 350, before=slow).caught_up()
    second = live(contents, [one], NOON + 3601 + 351, 100).caught_up()
    assert first == [NOON + 600, NOON + 1200, NOON + 1800, NOON + 2400]
    assert second == [NOON + 3000, NOON + 3600]
    found = checkpoint(contents)
    assert found is not None
    assert found.gap is None


@pytest.mark.parametrize("lives", [2.0, 3.7, 5.2])
def test_runs_that_are_shorter_than_writes_are_not_repeated_after_a_kill_but_for_one(lives: float) -> None:
    contents, one = Contents(), job(onMissed="run-all")
    live(contents, [one], NOON - 30, 50)

    def slow(world: World) -> None:
        world.store.slow, world.lasts = 0.4, 0.01

    back = NOON + 20 * MINUTE + 30
    ran = live(contents, [one], back, lives, before=slow).caught_up()
    ran += live(contents, [one], back + 10, 40).caught_up()
    assert sorted(set(map(str, ran))) == [str(NOON + minute * MINUTE) for minute in range(1, 21)]
    assert len(ran) <= 21


@pytest.mark.parametrize("change", [{"schedule": "*/5 * * * *"}, {"enabled": False}])
def test_a_reload_in_the_middle_of_a_catch_up_ends_it(change: dict[str, Any]) -> None:
    contents, one = Contents(), job(onMissed="run-all")
    live(contents, [one], NOON - 30, 50)

    async def reload(world: World) -> None:
        world.lasts = 20.0
        await world.clock.sleep(30)
        world.scheduler.load([job(onMissed="run-all", **change)])

    world = live(contents, [one], NOON + 20 * MINUTE + 5, 300, reload)
    assert world.caught_up() in ([NOON + MINUTE, NOON + 2 * MINUTE], [NOON + MINUTE])
    assert world.host.logged("cannot be caught up") == []
    later = live(contents, [one], NOON + 40 * MINUTE, 30).caught_up()
    assert [at for at in later if at is not None and at <= NOON + 20 * MINUTE] == []


def test_a_job_that_was_paused_during_the_outage_owes_nothing_for_that_time() -> None:
    contents, one = Contents(), job(schedule="*/10 * * * *", onMissed="run-all")

    async def pause(world: World) -> None:
        await world.clock.sleep(40)
        await world.commands.do(Pause("a", NOON + 1700), OPERATOR)

    live(contents, [one], NOON - 30, 100, pause)
    assert live(contents, [one], NOON + 3601, 30).caught_up() == [NOON + 1800, NOON + 2400, NOON + 3000, NOON + 3600]


def test_a_pause_outlives_the_daemon_and_so_does_its_end() -> None:
    contents, one = Contents(), job()

    async def pause(world: World) -> None:
        await world.commands.do(Pause("a", NOON + 7200, note="tea", by="ann"), OPERATOR)

    live(contents, [one], NOON - 30, 20, pause)
    paused: list[Pause] = []

    async def resume(world: World) -> None:
        paused.append(world.scheduler.pauses["a"])
        await world.clock.sleep(70)
        assert world.on_time() == []
        await world.commands.do(Resume("a"), OPERATOR)

    live(contents, [one], NOON + 10, 100, resume)
    assert (paused[0].until, paused[0].note, paused[0].by) == (NOON + 7200, "tea", "ann")
    world = live(contents, [one], NOON + 200, 80)
    assert world.scheduler.pauses == {}
    assert world.on_time() == [NOON + 240]
    assert world.scheduler.paused_at(one, NOON + 60)
    assert not world.scheduler.paused_at(one, NOON + 240)


def test_a_pause_of_another_node_counts_here_where_they_share_the_store() -> None:
    contents, one = Contents(), job()

    def shared(world: World) -> None:
        world.store.topology = Topology.SHARED

    async def other(world: World) -> None:
        there = World(contents, [one], NOON - 20, node="node-b", fail_closed=False)
        there.scheduler.load([one])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(there.keeper.run)
            await there.keeper.settled(5)
            await there.commands.do(Pause("a", NOON + 7200), OPERATOR)
            await there.keeper.flush()
            tasks.cancel_scope.cancel()

    world = live(contents, [one], NOON - 30, 100, other, before=shared)
    assert world.on_time() == []


@pytest.mark.parametrize("ahead", [-900, 0, 900])
def test_pauses_and_their_ends_count_in_the_order_they_were_made_whatever_the_clocks_of_nodes_say(ahead: int) -> None:
    contents, one = Contents(), job()

    def shared(world: World) -> None:
        world.store.topology = Topology.SHARED

    async def there(at: float, command: Pause | Resume) -> None:
        other = World(contents, [one], at, node="node-b", fail_closed=False)
        other.scheduler.load([one])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other.keeper.run)
            await other.keeper.settled(5)
            await other.commands.do(command, OPERATOR)
            await other.keeper.flush()
            tasks.cancel_scope.cancel()

    async def scene(world: World) -> None:
        await there(NOON + ahead, Pause("a", NOON + 7200))
        await world.clock.sleep(3600)
        assert world.on_time() == []
        await there(NOON + 3600 - ahead, Resume("a"))

    world = live(contents, [one], NOON - 30, 7000, scene, before=shared)
    assert world.on_time()[-1] == NOON + 6960
    assert NOON + 3720 + abs(ahead) in world.on_time()


def test_a_pause_outlives_a_clock_that_is_set_back_and_a_restart() -> None:
    contents, one = Contents(), job()

    async def pause(world: World) -> None:
        await world.commands.do(Pause("a", NOON + 7200), OPERATOR)

    live(contents, [one], NOON + 3600, 20, pause)
    assert live(contents, [one], NOON, 600).on_time() == []


def test_a_store_that_comes_later_is_read_before_anything_is_written_over_its_watermark() -> None:
    contents, one = Contents(), job(schedule="*/10 * * * *", onMissed="run-once")
    live(contents, [one], NOON - 30, 50)

    def down(world: World) -> None:
        world.store.down = True

    async def up(world: World) -> None:
        await world.clock.sleep(700)
        world.store.down = False

    world = live(contents, [one], NOON + 3601, 900, up, before=down)
    assert world.caught_up() == [NOON + 3600]
    assert world.on_time() == [NOON + 4200]
    found = checkpoint(contents)
    assert found is not None
    assert found.through == NOON + 4200


def test_jitter_puts_the_catch_up_off() -> None:
    contents, one = Contents(), job(onMissed="run-once", catchupJitterSeconds=100_000)
    live(contents, [one], NOON - 30, 50)
    assert live(contents, [one], NOON + 3601, 30).caught_up() == []


def test_a_changed_schedule_and_a_disabled_job_owe_nothing() -> None:
    contents = Contents()
    live(contents, [job(onMissed="run-once")], NOON - 30, 50)
    assert live(contents, [job(schedule="*/2 * * * *", onMissed="run-once")], NOON + 3601, 30).caught_up() == []
    off = job(schedule="*/2 * * * *", onMissed="run-once", enabled=False)
    live(contents, [off], NOON + 7201, 30)
    on = job(schedule="*/2 * * * *", onMissed="run-once")
    assert live(contents, [on], NOON + 7450, 30).caught_up() == [NOON + 7440]


def test_a_job_that_is_disabled_while_its_catch_up_waits_owes_nothing_any_more() -> None:
    contents, one = Contents(), job(onMissed="run-once", catchupJitterSeconds=100_000)
    live(contents, [one], NOON - 30, 50)

    async def disable(world: World) -> None:
        await world.clock.sleep(10)
        off = job(onMissed="run-once", catchupJitterSeconds=100_000, enabled=False)
        world.jobs = [off]
        world.scheduler.load([off])

    live(contents, [one], NOON + 3610, 40, disable)
    found = checkpoint(contents)
    assert found is not None
    assert found.gap is None
    eager = job(onMissed="run-once")
    assert live(contents, [eager], NOON + 3655, 4).caught_up() == []


def test_under_an_election_the_owner_catches_up_and_who_comes_after_it_finds_that_done() -> None:
    contents, one = Contents(), job(schedule="*/10 * * * *", onMissed="run-once")

    def leads(world: World) -> None:
        world.store.topology = Topology.SHARED
        world.lead()

    def follows(world: World) -> None:
        world.store.topology = Topology.SHARED
        world.lead(mine=False)

    live(contents, [one], NOON - 30, 50, before=leads)

    async def wins_later(world: World) -> None:
        await world.clock.sleep(30)
        world.lead()

    assert live(contents, [one], NOON + 3601, 20, before=follows, node="node-b").caught_up() == []
    assert live(contents, [one], NOON + 3601, 20, before=leads).caught_up() == [NOON + 3600]
    assert live(contents, [one], NOON + 3650, 60, wins_later, before=follows, node="node-b").caught_up() == []


def test_a_follower_of_the_start_catches_up_what_the_leader_before_it_did_not_come_to() -> None:
    contents, one = Contents(), job(schedule="*/10 * * * *", onMissed="run-once", catchupJitterSeconds=0)

    def follows(world: World) -> None:
        world.store.topology = Topology.SHARED
        world.lead(mine=False)

    def leads(world: World) -> None:
        world.store.topology = Topology.SHARED
        world.lead()

    live(contents, [one], NOON - 30, 50, before=leads)

    async def wins_later(world: World) -> None:
        await world.clock.sleep(30)
        world.lead()

    assert live(contents, [one], NOON + 3601, 60, wins_later, before=follows, node="node-b").caught_up() == [
        NOON + 3600
    ]


def test_a_catch_up_that_its_leader_did_not_finish_is_finished_once_by_the_next_one() -> None:
    contents, one = Contents(), job(schedule="*/10 * * * *", onMissed="run-all")

    def leads(world: World) -> None:
        world.store.topology = Topology.SHARED
        world.lead()
        world.lasts = 100.0

    def follows(world: World) -> None:
        leads(world)
        world.lead(mine=False)
        world.lasts = 1.0

    live(contents, [one], NOON - 30, 50, before=leads)
    assert live(contents, [one], NOON + 3601, 350, before=leads).caught_up() == [
        NOON + 600,
        NOON + 1200,
        NOON + 1800,
        NOON + 2400,
    ]
    started = contents.written

    async def wins_at_a_slot(world: World) -> None:
        await world.clock.sleep(9.5)
        # A node that only follows leaves the checkpoint as the last owner wrote it.
        assert not [name for name in contents.streams["catchup/a"] if int(name) > started]
        world.lead()

    world = live(contents, [one], NOON + 4190, 60, wins_at_a_slot, before=follows, node="node-b")
    assert world.on_time() == [NOON + 4200]
    assert world.caught_up() == [NOON + 3000, NOON + 3600]
    found = checkpoint(contents)
    assert found is not None
    assert (found.through, found.gap) == (NOON + 4200, None)
    assert live(contents, [one], NOON + 4300, 30, before=leads).caught_up() == []


def test_nodes_that_elect_without_a_shared_store_catch_up_nothing_and_say_so() -> None:
    contents, one = Contents(), job(onMissed="run-once")
    live(contents, [one], NOON - 30, 50, before=World.lead)
    world = live(contents, [one], NOON + 3601, 30, before=World.lead)
    assert world.caught_up() == []
    assert world.host.logged("onMissed has no effect")


def test_every_node_has_its_own_watermark() -> None:
    contents, one = Contents(), job(onMissed="run-once", cluster_policy=ClusterPolicy.EVERY_NODE)

    def shared(world: World) -> None:
        world.store.topology = Topology.SHARED
        world.lead()

    live(contents, [one], NOON - 30, 50, before=shared)
    live(contents, [one], NOON - 30, 3700, before=shared, node="node-b")
    assert live(contents, [one], NOON + 3601, 20, before=shared).caught_up() == [NOON + 3600]
    assert sorted(name for name in contents.streams if name.startswith("catchup/")) == [
        "catchup/a/node-a",
        "catchup/a/node-b",
    ]


def claiming(world: World) -> None:
    world.store.topology = Topology.SHARED
    world.lead()
    world.claimer.claims = True


def test_where_occurrences_are_claimed_only_what_is_older_than_the_window_is_asked_for() -> None:
    contents, one = Contents(), job(onMissed="run-all")
    live(contents, [one], NOON - 30, 50, before=claiming)
    world = live(contents, [one], NOON + 610, 20, before=claiming)
    # The first leader was seen at the start, and the sweep takes what is not older than its window then.
    assert world.claimer.asked == list(range(NOON + 60, NOON + 610 - 120, 60))
    assert world.caught_up() == []


def test_what_the_sweep_decides_meanwhile_takes_nothing_from_what_is_older() -> None:
    contents, one = Contents(), job(schedule="*/10 * * * *", onMissed="run-all")
    live(contents, [one], NOON - 30, 50, before=claiming)

    def late(world: World) -> None:
        claiming(world)
        world.cluster.answer = ClusterView("x", "node-a", "id")

    async def sweeps(world: World) -> None:
        await world.clock.sleep(2)
        world.launcher.record(one, NOON + 3000, Decision(Verdict.SKIP, Reason.OUTSIDE_WINDOW))
        world.launcher.record(one, NOON + 3600, Decision(Verdict.RUN, Reason.CATCH_UP), run_id="swept")
        world.lead()

    world = live(contents, [one], NOON + 3601, 30, sweeps, before=late)
    assert world.claimer.asked == [NOON + 600, NOON + 1200, NOON + 1800, NOON + 2400, NOON + 3000]


def test_what_the_sweep_gave_up_is_caught_up_however_long_it_took_to_lead() -> None:
    contents, one = Contents(), job(onMissed="run-all")
    live(contents, [one], NOON - 30, 50, before=claiming)

    def early(world: World) -> None:
        claiming(world)
        world.claimer.has_swept = False

    async def sweeps(world: World) -> None:
        # The record of a leader that is dead stands for a while: by it the window would begin too early.
        await world.clock.sleep(30)
        assert world.claimer.asked == []
        world.launcher.record(one, NOON + 540, Decision(Verdict.SKIP, Reason.OUTSIDE_WINDOW))
        world.claimer.has_swept = True

    world = live(contents, [one], NOON + 610, 45, sweeps, before=early)
    assert world.claimer.asked == [*range(NOON + 60, NOON + 610 - 120, 60), NOON + 540]


def test_where_occurrences_are_claimed_nothing_is_asked_for_before_a_leader_is_known() -> None:
    contents, one = Contents(), job(onMissed="run-once")
    live(contents, [one], NOON - 30, 50, before=claiming)

    def nobody(world: World) -> None:
        claiming(world)
        world.cluster.answer = ClusterView("x", "node-a", "id")

    world = live(contents, [one], NOON + 3601, 30, before=nobody)
    assert world.claimer.asked == []


def test_a_claim_that_was_fenced_is_asked_for_again() -> None:
    contents, one = Contents(), job(onMissed="run-once")
    live(contents, [one], NOON - 30, 50, before=claiming)

    def fenced(world: World) -> None:
        claiming(world)
        world.claimer.refusal = Decision(Verdict.DEFER, Reason.FENCED)

    async def heals(world: World) -> None:
        await world.clock.sleep(5)
        world.claimer.refusal = None

    world = live(contents, [one], NOON + 3601, 20, heals, before=fenced)
    assert len(world.claimer.asked) > 1
    assert len(set(world.claimer.asked)) == 1
    found = checkpoint(contents)
    assert found is not None
    assert found.gap is None


# -- onlyIfLastSucceeded ----------------------------------------------------------------------------------------------


def fails(world: World) -> None:
    world.outcome = Outcome.FAILURE


def test_a_job_whose_last_run_failed_waits_for_a_success_over_restarts_and_skips() -> None:
    contents, one = Contents(), job(onlyIfLastSucceeded=True)
    first = live(contents, [one], NOON - 30, 40 * MINUTE, before=fails)
    assert first.on_time() == [NOON]
    assert first.reasons()[0] is Reason.LAST_NOT_SUCCEEDED

    async def mend(world: World) -> None:
        await world.clock.sleep(90)
        run = Decision(Verdict.RUN, Reason.MANUAL)
        world.launcher.start(one, run, scheduled_at=None, trigger=Trigger.MANUAL, recheck=lambda: run)

    world = live(contents, [one], NOON + 3590, 150, mend)
    assert world.on_time() == [NOON + 3600 + 120]


@pytest.mark.parametrize("fail_closed", [False, True])
def test_without_the_store_the_gate_goes_by_memory_or_blocks(fail_closed: bool) -> None:
    contents, one = Contents(), job(onlyIfLastSucceeded=True)
    live(contents, [one], NOON - 30, 50, before=fails)

    def down(world: World) -> None:
        world.store.down = True

    world = live(contents, [one], NOON + 30, 60, before=down, fail_closed=fail_closed)
    assert world.on_time() == ([] if fail_closed else [NOON + 60])
    assert (world.reasons()[0] is Reason.STORE_UNAVAILABLE) is fail_closed


@pytest.mark.parametrize("fail_closed", [False, True])
def test_a_store_that_is_lost_later_on_blocks_a_job_that_waits_for_a_success_just_the_same(fail_closed: bool) -> None:
    one = job(onlyIfLastSucceeded=True)

    async def lose(world: World) -> None:
        await world.clock.sleep(30.5)
        # What it says of the run at noon is the last that it is asked before the next one.
        world.store.down = True

    world = live(Contents(), [one], NOON - 30, 220, lose, fail_closed=fail_closed)
    assert world.on_time() == ([NOON] if fail_closed else [NOON, NOON + 60, NOON + 120, NOON + 180])
    assert (world.reasons()[0] is Reason.STORE_UNAVAILABLE) is fail_closed


def test_a_catch_up_is_not_held_to_the_last_run() -> None:
    contents, one = Contents(), job(onlyIfLastSucceeded=True, onMissed="run-once")
    live(contents, [one], NOON - 30, 50, before=fails)
    assert live(contents, [one], NOON + 3601, 20).caught_up() == [NOON + 3600]


def test_a_forbid_job_catches_up_one_run_after_the_other() -> None:
    contents = Contents()
    one = job(schedule="*/10 * * * *", onMissed="run-all", concurrency_policy=ConcurrencyPolicy.FORBID)
    live(contents, [one], NOON - 30, 50)

    def slow(world: World) -> None:
        world.lasts = 30.0

    world = live(contents, [one], NOON + 1801, 120, before=slow)
    assert world.caught_up() == [NOON + 600, NOON + 1200, NOON + 1800]
