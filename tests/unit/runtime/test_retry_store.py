"""Retries that outlive their daemon and move, on virtual time: nodes that share a store, are killed, and come back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from types import MappingProxyType

import anyio
import pytest

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.core import records
from cronstable.core.decision import DecisionRing
from cronstable.core.job import ClusterPolicy, Job, JobOptions, Json
from cronstable.core.records import WriteKind
from cronstable.core.runs import LiveRun, Outcome, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.core.store import HeldTerm
from cronstable.core.view import ClusterView
from cronstable.plugin.protocols import Actor, CancelRun, Done, LeaseStore, StartRun
from cronstable.runtime.bus import EventBus
from cronstable.runtime.chores import Chores
from cronstable.runtime.commands import Commands
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.retries import Retries
from cronstable.runtime.retry_door import RetryDoor
from cronstable.runtime.retry_scan import Around, RetryScan
from cronstable.runtime.retry_store import RetryStore
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.testing.clock import VirtualClock, run_virtual

NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600
OPERATOR = Actor("operator", "test")


class Keeper:
    """A state keeper over a store that all nodes share. ``broken``: it does not answer; ``slow``: seconds a write."""

    def __init__(self, contents: Contents, clock: VirtualClock, *, shared: bool, fail_closed: bool) -> None:
        self._store = MemoryStateStore(clock, contents)
        self._clock = clock
        self.configured = True
        self._shared = shared
        self.fail_closed = fail_closed
        self.broken = False
        self.slow = 0.0
        self._waiting: list[tuple[str, bytes]] = []

    @property
    def shared(self) -> bool:
        return self._shared

    async def opened(self, after: int = 0) -> int:
        return 1

    def write(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> None:
        self._waiting.append((stream, records.encode(data)))
        if not self.broken:
            self.flush()

    def flush(self) -> None:
        """What was written without an answer lands when the store has one again."""
        for stream, raw in self._waiting:
            self._store.contents.streams.setdefault(stream, {})[self._store.contents.number()] = raw
        self._waiting.clear()

    async def append(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> bool:
        if self.slow:
            await self._clock.sleep(self.slow)
        if self.broken:
            return False
        await self._store.append(stream, records.encode(data))
        if keep is not None:
            await self._store.trim(stream, keep)
        return True

    async def read(self, stream: str, *, limit: int | None = None) -> Sequence[Mapping[str, Json]] | None:
        if self.broken:
            return None
        found = await self._store.read(stream, limit=limit)
        return [data for record in found if (data := records.decode(record.data)) is not None]

    async def streams(self, prefix: str = "") -> Sequence[str] | None:
        return None if self.broken else await self._store.streams(prefix)

    def lease(self, name: str) -> LeaseStore | None:
        return None if self.broken else self._store.lease(name)


class Claims:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def term(self) -> HeldTerm | None:
        return HeldTerm(1) if self._cluster.leads() else None


@dataclass
class Cluster:
    """One node's side of an election that a test directs: ``fleet.leader`` says who leads."""

    fleet: Fleet
    node: str

    @property
    def elects(self) -> bool:
        return self.fleet.elects

    def leads(self) -> bool:
        return self.fleet.leader in (self.node, "*")

    @property
    def claims(self) -> Claims | None:
        return Claims(self) if self.fleet.fenced else None

    def view(self) -> ClusterView | None:
        leads = self.leads()
        return ClusterView(
            backend="filesystem",
            node_name=self.node,
            job_set_id="v1:0",
            quorate=True,
            leader=self.fleet.leader,
            is_leader=leads,
            available=leads,
        )


class Ids:
    def __init__(self, name: str) -> None:
        self._name, self._n = name, 0

    def token(self, nbytes: int = 6) -> str:
        self._n += 1
        return f"{self._name}{self._n}"


class Rng:
    def random(self) -> float:
        return 0.5


@dataclass
class Fleet:
    """What the nodes have in common. ``starts``: who began which attempt when, of all nodes."""

    clock: VirtualClock
    contents: Contents = field(default_factory=Contents)
    leader: str = "a"
    elects: bool = True
    shared: bool = True
    fenced: bool = False
    fail_closed: bool = False
    succeeds: Callable[[RunRequest], bool] = lambda _: False
    lasts: float = 0.0
    boot_id: str = "b1"
    starts: list[tuple[str, float, int]] = field(default_factory=list)
    requests: list[RunRequest] = field(default_factory=list)
    serial: int = 0

    def attempts(self, node: str | None = None) -> list[int]:
        return [attempt for name, _, attempt in self.starts if node in (None, name)]

    def rows(self, name: str = "job") -> list[Mapping[str, Json]]:
        found = [records.decode(raw) for raw in self.contents.streams.get(f"retries/{name}", {}).values()]
        return [row for row in found if row is not None]


class Node:
    """One daemon as far as retries are concerned; ``live`` runs it until it is killed."""

    def __init__(self, fleet: Fleet, name: str, *jobs: Job) -> None:
        fleet.serial += 1
        self.fleet = fleet
        self.name = name
        clock = self.clock = fleet.clock
        self.log_lines: list[str] = []
        log = logging.Logger("test", logging.DEBUG)
        log.addHandler(_Collect(self.log_lines))
        self.keeper = Keeper(fleet.contents, clock, shared=fleet.shared, fail_closed=fleet.fail_closed)
        ids = Ids(f"{name}{fleet.serial}-")
        cluster: object = Cluster(fleet, name)
        self.launcher = Launcher(
            execute=self._execute,
            clock=clock,
            ids=ids,
            bus=EventBus(log),
            hub=OutputHub(),
            log=log,
            node=name,
            decisions=DecisionRing(),
        )
        self.scheduler = Scheduler(clock=clock, cluster=cluster, launcher=self.launcher, log=log)  # type: ignore[arg-type]  # two members of it are used
        self.retries = Retries(clock=clock, scheduler=self.scheduler, cluster=cluster, launcher=self.launcher, log=log)  # type: ignore[arg-type]  # as above
        self.launcher.admission = self.retries
        self.launcher.listeners = (self.retries,)
        self.launcher.remembered = self._remember
        self.commands = Commands(
            scheduler=self.scheduler,
            launcher=self.launcher,
            log=log,
            shutdown=self.stop,
            cancel_retry=self.retries.cancel,
        )
        door = RetryDoor(
            keeper=self.keeper,
            cluster=cluster,  # type: ignore[arg-type]  # as above
            jobs=lambda: self.scheduler.jobs,
            clock=clock,
            ids=ids,
            log=log,
            node=lambda: name,
        )
        self.chores = Chores()
        self.store = RetryStore(door=door, ladders=self.retries, chores=self.chores, clock=clock)
        around = Around(self.scheduler, cluster, self.retries, self._last, self._boot_id)  # type: ignore[arg-type]  # as above
        self.scan = RetryScan(door=door, store=self.store, around=around, rng=Rng(), log=log)
        self.retries.memory = self.store
        self._scope = anyio.CancelScope()
        self.scheduler.load(jobs)

    async def _boot_id(self) -> str | None:
        return self.fleet.boot_id

    def _remember(self, record: RunRecord) -> None:
        row = records.run_row(record, self.name)
        self.keeper.write(WriteKind.RUN_RECORD, f"runs/{record.key.job}", row)

    async def _last(self, job: str) -> Sequence[RunRecord] | None:
        rows = await self.keeper.read(f"runs/{job}")
        return None if rows is None else [run for row in rows if (run := records.run_of(job, row)) is not None]

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        now = self.clock.now().wall
        self.fleet.starts.append((self.name, round(now - NOON, 3), request.key.attempt))
        self.fleet.requests.append(request)
        on_started(LiveRun(request.key, 4711, now))
        await self.clock.sleep(self.fleet.lasts)
        outcome, code = (Outcome.SUCCESS, 0) if self.fleet.succeeds(request) else (Outcome.FAILURE, 1)
        return RunRecord(request.key, outcome, code, now, self.clock.now().wall, self.clock.now().wall - now)

    def stop(self) -> None:
        self.launcher.stopping = True
        self.retries.stop()

    async def live(self) -> None:
        with self._scope:
            async with anyio.create_task_group() as tasks:
                self.launcher.bind(tasks)
                self.chores.bind(tasks)
                tasks.start_soon(self.scheduler.run)
                tasks.start_soon(self.retries.run)
                tasks.start_soon(self.scan.run)

    def kill(self) -> None:
        self._scope.cancel()

    def said(self, text: str) -> bool:
        return any(text in line for line in self.log_lines)


class _Collect(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__()
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(record.getMessage())


def job(
    schedule: str = "0 12 * * *", *, retries: int = 3, delay: float = 60, command: str = "false", **options: object
) -> Job:
    retry = {"maximumRetries": retries, "initialDelay": delay, "maximumDelay": delay, "backoffMultiplier": 1}
    raw = {"onFailure": {"retry": retry}}
    made = JobOptions(raw=MappingProxyType(raw), **options)  # type: ignore[arg-type]  # the test's own keywords
    return Job("job", command, Schedule.parse(schedule, job_name="job", zone=UTC), made)


Script = Callable[[Fleet, anyio.abc.TaskGroup, Callable[[float], Awaitable[None]]], Awaitable[None]]


def play(script: Script, **facts: object) -> Fleet:
    """Run a script from half a second before noon; its third argument sleeps until a second after noon."""

    async def scenario() -> Fleet:
        clock = VirtualClock.of_loop(wall=NOON - 0.5)
        fleet = Fleet(clock, **facts)  # type: ignore[arg-type]  # the test's own keywords

        async def till(second: float) -> None:
            await clock.sleep(NOON + second - clock.now().wall)

        async with anyio.create_task_group() as tasks:
            await script(fleet, tasks, till)
            tasks.cancel_scope.cancel()
        return fleet

    return run_virtual(scenario)


ALONE: dict[str, object] = {"elects": False, "shared": False}


# -- one host


def restart(down: float, up: float, until: float, *, graceful: bool = False, **changes: object) -> Script:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        first = Node(fleet, "a", job())
        tasks.start_soon(first.live)
        await till(down)
        if graceful:
            first.stop()
        else:
            first.kill()
        await till(up)
        for name, value in changes.items():
            setattr(fleet, name, value)
        tasks.start_soon(Node(fleet, "a", job()).live)
        await till(until)

    return script


@pytest.mark.parametrize("graceful", [False, True])
@pytest.mark.parametrize("facts", [ALONE, {}])
def test_a_retry_survives_its_daemon_and_comes_at_the_time_that_was_set(
    graceful: bool, facts: dict[str, object]
) -> None:
    fleet = play(restart(20, 30, 250, graceful=graceful), **facts)
    assert fleet.starts == [("a", 0.0, 0), ("a", 60.0, 1), ("a", 120.0, 2), ("a", 180.0, 3)]
    first = fleet.requests[0].key
    assert {request.key.scheduled_at for request in fleet.requests} == {NOON}
    assert {request.first_run_id for request in fleet.requests[1:]} == {first.run_id}


def test_a_retry_that_came_due_while_nobody_ran_is_made_at_once() -> None:
    fleet = play(restart(20, 100, 110), **ALONE)
    assert fleet.starts == [("a", 0.0, 0), ("a", 100.0, 1)]


@pytest.mark.parametrize("facts", [ALONE, {}])
def test_an_attempt_that_was_started_before_a_crash_is_not_started_again(facts: dict[str, object]) -> None:
    fleet = play(restart(75, 80, 600), lasts=10.0, **facts)
    # The run of attempt 1 died with its daemon: nobody knows how it ended, and what is unknown is not tried again.
    assert fleet.starts == [("a", 0.0, 0), ("a", 70.0, 1)]


def test_a_store_that_does_not_answer_at_the_start_is_asked_again() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        first = Node(fleet, "a", job(retries=1))
        tasks.start_soon(first.live)
        await till(20)
        first.kill()
        second = Node(fleet, "a", job(retries=1))
        second.keeper.broken = True
        tasks.start_soon(second.live)
        await till(80)
        second.keeper.broken = False
        await till(90)

    fleet = play(script, **ALONE)
    assert fleet.attempts() == [0, 1]


def test_a_retry_of_a_definition_that_changed_is_settled_at_the_start() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        first = Node(fleet, "a", job())
        tasks.start_soon(first.live)
        await till(20)
        first.kill()
        tasks.start_soon(Node(fleet, "a", job(command="other")).live)
        await till(200)

    fleet = play(script, **ALONE)
    assert fleet.attempts() == [0]
    assert fleet.rows()[-1]["reason"] == "config-changed"


def test_a_retry_of_a_job_that_is_gone_is_settled_at_the_start() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        first = Node(fleet, "a", job())
        tasks.start_soon(first.live)
        await till(20)
        first.kill()
        tasks.start_soon(Node(fleet, "a").live)
        await till(30)

    fleet = play(script, **ALONE)
    assert fleet.rows()[-1]["reason"] == "job-removed"


@pytest.mark.parametrize(("command", "reason"), [(CancelRun("job"), "cancelled"), (StartRun("job"), "succeeded")])
def test_what_ends_a_ladder_ends_it_for_good(command: CancelRun | StartRun, reason: str) -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        first = Node(fleet, "a", job())
        tasks.start_soon(first.live)
        await till(20)
        fleet.succeeds = lambda _: True
        assert isinstance(await first.commands.do(command, OPERATOR), Done)
        await till(25)
        first.kill()
        tasks.start_soon(Node(fleet, "a", job()).live)
        await till(600)

    fleet = play(script)
    assert [attempt for attempt in fleet.attempts() if attempt] == []
    assert fleet.rows()[-1]["reason"] == reason


def test_a_scheduled_run_begins_anew_and_says_so() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        tasks.start_soon(Node(fleet, "a", job("* 12 * * *", delay=100)).live)
        await till(70)

    fleet = play(script, **ALONE)
    assert fleet.starts == [("a", 0.0, 0), ("a", 60.0, 0)]
    assert [row.get("reason", row["kind"]) for row in fleet.rows()] == ["pending", "superseded", "pending"]


# -- a store that fails


@pytest.mark.parametrize(("fail_closed", "starts"), [(False, [0.0, 60.0]), (True, [0.0, 360.0])])
def test_without_an_answer_of_the_store_a_retry_is_made_or_waits_as_configured(
    fail_closed: bool, starts: list[float]
) -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        node = Node(fleet, "a", job(retries=1))
        tasks.start_soon(node.live)
        await till(20)
        node.keeper.broken = True
        await till(310)
        node.keeper.broken = False
        # A store that is back may be looked into before the queue is through.
        await till(500)
        node.keeper.flush()
        await till(600)

    fleet = play(script, fail_closed=fail_closed)
    assert [at for _, at, _ in fleet.starts] == starts


# -- several nodes


def takeover(policy: ClusterPolicy, until: float, *, kill: float = 20.0) -> Script:
    """Node a leads, fails, and is killed; b leads from 30 s on."""

    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        nodes = {name: Node(fleet, name, job(cluster_policy=policy)) for name in "abc"}
        for node in nodes.values():
            tasks.start_soon(node.live)
        await till(kill)
        nodes["a"].kill()
        await till(30)
        fleet.leader = "b"
        nodes["b"].scan.poke()
        await till(until)
        assert nodes["b"].said("is taken over from a") == ("b" in {name for name, _, _ in fleet.starts})

    return script


def test_a_fenced_leader_goes_on_with_a_dead_ones_ladder_at_the_very_time() -> None:
    fleet = play(takeover(ClusterPolicy.LEADER, 300), fenced=True)
    assert fleet.starts == [("a", 0.0, 0), ("b", 60.0, 1), ("b", 120.0, 2), ("b", 180.0, 3)]
    assert {request.first_run_id for request in fleet.requests[1:]} == {fleet.requests[0].key.run_id}


@pytest.mark.parametrize(("policy", "fenced"), [(ClusterPolicy.LEADER, False), (ClusterPolicy.PREFER_LEADER, True)])
def test_where_the_other_node_might_still_start_it_an_attempt_is_overdue_first(
    policy: ClusterPolicy, fenced: bool
) -> None:
    fleet = play(takeover(policy, 400), fenced=fenced)
    assert fleet.starts == [("a", 0.0, 0), ("b", 90.0, 1), ("b", 150.0, 2), ("b", 210.0, 3)]


def test_each_node_keeps_its_own_ladder_of_a_job_that_runs_everywhere() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        every = job(cluster_policy=ClusterPolicy.EVERY_NODE, retries=1)
        nodes = {name: Node(fleet, name, every) for name in "ab"}
        for node in nodes.values():
            tasks.start_soon(node.live)
        await till(20)
        for node in nodes.values():
            node.kill()
        for name in "ab":
            tasks.start_soon(Node(fleet, name, every).live)
        await till(300)

    fleet = play(script)
    assert sorted(fleet.starts) == [("a", 0.0, 0), ("a", 60.0, 1), ("b", 0.0, 0), ("b", 60.0, 1)]


def test_a_living_node_that_lost_the_job_hands_the_rest_over_and_has_no_row_of_it() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        nodes = {name: Node(fleet, name, job()) for name in "ab"}
        for node in nodes.values():
            tasks.start_soon(node.live)
        await till(20)
        fleet.leader = "b"
        await till(62)
        assert nodes["a"].said("retry 1 is handed over")
        nodes["b"].scan.poke()
        await till(65)
        outcomes = [record.outcome for record in nodes["a"].launcher.history()["job"]]
        assert outcomes == [Outcome.FAILURE]

    fleet = play(script)
    assert [(name, attempt) for name, _, attempt in fleet.starts] == [("a", 0), ("b", 1)]
    assert "handoff" in [row["kind"] for row in fleet.rows()]


def test_two_nodes_that_both_may_start_a_job_never_make_an_attempt_twice() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        nodes = {name: Node(fleet, name, job(delay=40)) for name in "abc"}
        nodes["a"].keeper.slow = 3.0
        for node in nodes.values():
            tasks.start_soon(node.live)
        await till(10)
        # A partition of the worst sort: from here on everybody leads.
        fleet.leader = "*"
        for second in range(10, 600, 7):
            await till(second)
            for node in nodes.values():
                node.scan.poke()

    fleet = play(script, fenced=True)
    retried = [attempt for attempt in fleet.attempts() if attempt]
    assert retried == [1, 2, 3]


def test_an_attempt_that_something_kept_from_starting_is_not_lost_for_the_others() -> None:
    """It was taken out of the store, then the launcher refused it, then its daemon died."""

    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        nodes = {name: Node(fleet, name, job()) for name in "ab"}
        for node in nodes.values():
            tasks.start_soon(node.live)
        await till(20)
        nodes["a"].retries.claimer = _Refuses(nodes["a"].retries)
        await till(70)
        nodes["a"].kill()
        fleet.leader = "b"
        nodes["b"].scan.poke()
        await till(125)

    fleet = play(script, fenced=True)
    assert [(name, attempt) for name, _, attempt in fleet.starts] == [("a", 0), ("b", 1)]
    assert any(row.get("voids") for row in fleet.rows())


@dataclass
class _Refuses:
    """A claim log that has no room."""

    retries: Retries

    def retry(self, job: Job, scheduled_at: int, attempt: int, first_run_id: str) -> bool:
        self.retries.refused(job.name)
        return True

    def forget_retries(self, job: str) -> None:
        pass


def test_a_number_that_the_claim_log_has_already_makes_way_for_the_next_one() -> None:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        node = Node(fleet, "a", job())
        tasks.start_soon(node.live)
        await till(20)
        node.retries.claimer = _Spent(node.retries)
        await till(125)

    fleet = play(script)
    assert fleet.starts == [("a", 0.0, 0), ("a", 120.0, 2)]


@dataclass
class _Spent:
    """A claim log in which attempt 1 stands."""

    retries: Retries

    def retry(self, job: Job, scheduled_at: int, attempt: int, first_run_id: str) -> bool:
        if attempt == 1:
            self.retries.spent(job.name)
        return attempt == 1

    def forget_retries(self, job: str) -> None:
        pass


def test_a_retry_of_a_reboot_job_does_not_outlive_the_boot() -> None:
    fleet = play(_reboot("b2"), **ALONE)
    assert fleet.rows()[-1]["reason"] == "rebooted"
    fleet = play(_reboot("b1"), **ALONE)
    assert fleet.rows()[-1]["reason"] == "launched"


def _reboot(boot_id: str) -> Script:
    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        once = job("@reboot", retries=1)
        first = Node(fleet, "a", once)
        tasks.start_soon(first.live)
        await till(0)
        assert isinstance(await first.commands.do(StartRun("job"), OPERATOR), Done)
        await till(20)
        first.kill()
        fleet.boot_id = boot_id
        tasks.start_soon(Node(fleet, "a", once).live)
        await till(100)

    return script


@pytest.mark.parametrize("slow", [0.0, 3.0])
def test_an_attempt_that_a_stop_overtakes_is_put_back(slow: float) -> None:
    """It was taken out of the store, or is being taken, at the instant of SIGTERM."""

    async def script(fleet: Fleet, tasks: anyio.abc.TaskGroup, till: Callable[[float], Awaitable[None]]) -> None:
        first = Node(fleet, "a", job(retries=1))
        tasks.start_soon(first.live)
        await till(20)
        first.keeper.slow = slow
        first.retries.claimer = _Silent()
        await till(61)
        first.stop()
        await first.chores.idle(10)
        first.kill()
        tasks.start_soon(Node(fleet, "a", job(retries=1)).live)
        await till(120)

    fleet = play(script)
    assert fleet.attempts() == [0, 1]


class _Silent:
    """A claim log that has not answered yet."""

    def retry(self, job: Job, scheduled_at: int, attempt: int, first_run_id: str) -> bool:
        return True

    def forget_retries(self, job: str) -> None:
        pass
