"""What a killed daemon left behind: rows for what is lost, and runs that live on and count until they are gone."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.config.model import StateConfig
from cronstable.core.decision import Decision, DecisionRing, Reason, Verdict
from cronstable.core.job import ConcurrencyPolicy, Job, JobOptions
from cronstable.core.records import decode, run_of
from cronstable.core.runs import LiveRun, Outcome, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.plugin.state_store import RecordsUnreadable, StoredRecord, StoreInfo, Topology
from cronstable.runtime.bus import EventBus
from cronstable.runtime.history import RunHistory
from cronstable.runtime.inflight import InFlight, unfinished
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.process_table import ProcTable
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.state import StateKeeper
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.host import FakeHost, SeededIds, SeededRng

BACKEND = StateStoreBackend(name="memory", factory="none:none")
RUN = Decision(Verdict.RUN, Reason.NO_ELECTION)


class Machine:
    """Processes by id; outlives the daemons on it."""

    def __init__(self, boot: str = "boot") -> None:
        self.boot = boot
        self.marks: dict[int, str] = {}
        self.signals: list[tuple[int, int]] = []
        self.deaf = False
        self.children: set[int] = set()
        """Leaders of groups in which somebody is left who heeds no SIGTERM."""
        self._ids = itertools.count(100 if boot == "boot" else 5000)

    def spawn(self) -> int:
        pid = next(self._ids)
        self.marks[pid] = f"{self.boot}:{pid}0"
        return pid

    def mark(self, pid: int) -> str | None:
        return self.marks.get(pid)

    def signal_group(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        if number == 9 or not self.deaf:
            self.marks.pop(pid, None)
        if number == 9:
            self.children.discard(pid)

    def group_lives(self, pid: int) -> bool:
        return pid in self.marks or pid in self.children


class Store(MemoryStateStore):
    topology = Topology.SINGLE_NODE
    unreadable: frozenset[str] = frozenset()

    async def open(self) -> StoreInfo:
        self.reads: list[str] = []
        return StoreInfo("memory", self.topology, "here")

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        self.reads.append(stream)
        if stream in self.unreadable:
            raise RecordsUnreadable("EIO")
        return await super().read(stream, limit=limit, after=after)


def job(name: str = "a", policy: ConcurrencyPolicy = ConcurrencyPolicy.FORBID, **options: Any) -> Job:
    made = JobOptions(concurrency_policy=policy, kill_timeout=5.0, **options)
    return Job(name, "true", Schedule.parse("* * * * *", job_name=name, zone=UTC), made)


class World:
    """One daemon on a machine."""

    def __init__(self, contents: Contents, machine: Machine, jobs: list[Job], hostname: str) -> None:
        self.clock = VirtualClock.of_loop()
        self.machine = machine
        self.pid = machine.spawn()
        self.host = FakeHost(self.clock)
        self.lasts = 1.0
        self.store = Store(self.clock, contents)
        self.keeper = StateKeeper(
            make=lambda policy, host: self.store, host=self.host, clock=self.clock, rng=SeededRng(), log=self.host.log
        )
        self.keeper.configure(StateConfig(BACKEND, None, {}))
        self.launcher = Launcher(
            execute=self._execute,
            clock=self.clock,
            ids=SeededIds(f"{self.pid}"),
            bus=EventBus(self.host.log),
            hub=OutputHub(),
            log=self.host.log,
            node="node-a",
            decisions=DecisionRing(),
        )
        named = MappingProxyType({one.name: one for one in jobs})
        self.history = RunHistory(
            keeper=self.keeper, launcher=self.launcher, clock=self.clock, jobs=lambda: named, log=self.host.log
        )
        self.inflight = InFlight(
            keeper=self.keeper,
            launcher=self.launcher,
            history=self.history,
            table=machine,
            clock=self.clock,
            ids=SeededIds(f"proc-{self.pid}"),
            jobs=lambda: named,
            hostname=hostname,
            pid=self.pid,
            log=self.host.log,
        )
        self.launcher.listeners += (self.inflight,)

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        now = self.clock.now().wall
        pid = self.machine.spawn()
        on_started(LiveRun(request.key, pid, now))
        with request.cancellation.scope():
            await self.clock.sleep(self.lasts)
        self.machine.marks.pop(pid, None)
        return RunRecord(request.key, Outcome.SUCCESS, 0, now, self.clock.now().wall, self.lasts)

    def start(self, job: Job, at: int = 60) -> str | Decision:
        return self.launcher.start(job, RUN, scheduled_at=at, trigger=Trigger.SCHEDULE, recheck=lambda: RUN)

    def outcomes(self, name: str = "a") -> list[Outcome]:
        return [row.outcome for row in self.launcher.history().get(name, ())]


def live(
    contents: Contents,
    machine: Machine,
    jobs: list[Job],
    scene: Callable[[World], Awaitable[None]],
    hostname: str = "host",
    topology: Topology = Topology.SINGLE_NODE,
    listen: Callable[[World], None] = lambda world: None,
) -> World:
    """A daemon's life, at the end of which it is killed: nothing is flushed that was not written yet."""

    async def main() -> World:
        world = World(contents, machine, jobs, hostname)
        world.store.topology = topology
        listen(world)
        async with anyio.create_task_group() as tasks:
            world.launcher.bind(tasks)
            tasks.start_soon(world.keeper.run)
            world.inflight.bind(tasks)
            assert await world.inflight.settled(5) == (not world.store.unreadable)
            await scene(world)
            tasks.cancel_scope.cancel()
        machine.marks.pop(world.pid, None)
        return world

    return run_virtual(main)


async def die_during_a_run(world: World) -> None:
    world.lasts = 1e6
    world.start(job())
    await world.clock.sleep(10)


def kinds(contents: Contents, name: str = "inflight/a") -> list[object]:
    return [(decode(raw) or {}).get("kind") for raw in contents.streams.get(name, {}).values()]


def test_a_run_whose_process_is_gone_becomes_one_row_unknown_and_blocks_nothing() -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run)
    machine.marks.clear()

    async def after(world: World) -> None:
        assert world.outcomes() == [Outcome.UNKNOWN]
        assert not world.inflight.survives("a")
        assert isinstance(world.start(one, 120), str)
        await world.launcher.idle()
        await world.keeper.flush()

    live(contents, machine, [one], after)
    assert kinds(contents) == ["open", "closed", "open", "closed"]

    async def again(world: World) -> None:
        assert world.outcomes() == []
        rows = [run_of("a", decode(raw) or {}) for raw in contents.streams["runs/a"].values()]
        assert [row and row.outcome for row in rows] == [Outcome.UNKNOWN, Outcome.SUCCESS]

    live(contents, machine, [one], again)


def test_one_stream_that_cannot_be_read_is_asked_for_again_and_no_other_one() -> None:
    contents, machine, jobs = Contents(), Machine(), [job("a"), job("b")]

    async def die_during_both(world: World) -> None:
        world.lasts = 1e6
        for one in jobs:
            world.start(one)
        await world.clock.sleep(10)

    live(contents, machine, jobs, die_during_both)
    machine.marks.clear()

    def listen(world: World) -> None:
        world.store.unreadable = frozenset({"inflight/b"})

    async def after(world: World) -> None:
        await world.clock.sleep(30)
        assert world.outcomes() == [Outcome.UNKNOWN]
        assert world.outcomes("b") == []
        assert world.store.reads.count("inflight/a") == 1
        assert world.store.reads.count("inflight/b") > 1
        world.store.unreadable = frozenset()
        await world.clock.sleep(5)
        assert world.outcomes("b") == [Outcome.UNKNOWN]
        assert await world.inflight.settled(1)

    live(contents, machine, jobs, after, listen=listen)


def test_a_survivor_counts_for_forbid_until_it_is_gone() -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run)

    async def after(world: World) -> None:
        assert world.inflight.survives("a")
        assert len(world.launcher.live()["a"]) == 1
        refused = world.start(one, 120)
        assert isinstance(refused, Decision)
        assert refused.reason is Reason.CONCURRENCY_FORBID
        machine.marks = {world.pid: machine.marks[world.pid]}
        await until(lambda: not world.launcher.busy, within=5)
        assert world.outcomes()[-1] is Outcome.UNKNOWN
        assert isinstance(world.start(one, 180), str)
        await world.launcher.idle()
        await world.keeper.flush()

    live(contents, machine, [one], after)
    assert kinds(contents)[-1] == "closed"


def test_a_survivor_is_found_again_by_the_daemon_after_the_next_one_and_holds_up_no_stop() -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run)

    async def stopped(world: World) -> None:
        world.inflight.let_go()
        assert world.launcher.busy == 0
        await world.launcher.idle()

    live(contents, machine, [one], stopped)

    async def after(world: World) -> None:
        assert world.inflight.survives("a")

    live(contents, machine, [one], after)


@pytest.mark.parametrize("deaf", [False, True])
def test_replace_ends_a_survivor_and_takes_its_place(deaf: bool) -> None:
    contents, machine, one = Contents(), Machine(), job(policy=ConcurrencyPolicy.REPLACE)
    live(contents, machine, [one], die_during_a_run)
    machine.deaf = deaf

    async def after(world: World) -> None:
        assert isinstance(world.start(one, 120), str)
        await world.launcher.idle()
        assert world.outcomes() == [Outcome.CANCELLED, Outcome.SUCCESS]

    live(contents, machine, [one], after)
    assert [number for _, number in machine.signals] == ([15, 9] if deaf else [15])


def test_of_a_survivor_that_is_ended_no_child_is_left_and_the_time_given_counts() -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run)

    async def after(world: World) -> None:
        (run,) = world.launcher.live()["a"]
        machine.children.add(run.pid)
        since = world.clock.now().boot
        world.launcher.end("a", run.key.run_id, "the lease is lost", grace=2.0)
        await until(lambda: not world.launcher.busy, within=10)
        assert not machine.group_lives(run.pid)
        assert 2.0 <= world.clock.now().boot - since < 4.0

    live(contents, machine, [one], after)
    assert [number for _, number in machine.signals] == [15, 9]


def test_a_survivor_that_is_being_ended_is_left_no_more_than_a_later_request_grants() -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run)
    machine.deaf = True

    async def after(world: World) -> None:
        (run,) = world.launcher.live()["a"]
        since = world.clock.now().boot
        world.launcher.end("a", run.key.run_id, "cancelled")
        await until(lambda: bool(machine.signals), within=10)
        world.launcher.end("a", run.key.run_id, "the lease is lost", grace=0.0)
        await until(lambda: not world.launcher.busy, within=10)
        assert world.clock.now().boot - since < 4.0

    live(contents, machine, [one], after)
    assert [number for _, number in machine.signals] == [15, 9]


def test_whoever_minds_leases_is_told_of_a_survivor_and_of_its_end() -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run)
    told: list[str] = []

    async def after(world: World) -> None:
        (run,) = world.launcher.live()["a"]
        assert told == [f"adopted {run.key.run_id}"]
        world.inflight.let_go(lambda run_id: run_id == run.key.run_id)
        assert world.launcher.busy == 1
        machine.marks = {world.pid: machine.marks[world.pid]}
        await until(lambda: not world.launcher.busy, within=5)
        assert told[1:] == [f"gone {run.key.run_id}"]

    def listen(world: World) -> None:
        world.inflight.on_adopted = lambda job, run: told.append(f"adopted {run.key.run_id}")
        world.inflight.on_gone = lambda run_id: told.append(f"gone {run_id}")

    live(contents, machine, [one], after, listen=listen)


def test_a_survivor_does_not_outlive_its_execution_timeout() -> None:
    contents, machine, one = Contents(), Machine(), job(execution_timeout=30.0)
    live(contents, machine, [one], die_during_a_run)

    async def after(world: World) -> None:
        assert world.inflight.survives("a")
        await world.clock.sleep(40)
        assert not world.inflight.survives("a")

    live(contents, machine, [one], after)
    assert machine.signals


def test_a_later_process_of_the_same_id_is_not_the_survivor() -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run)
    machine.marks = dict.fromkeys(machine.marks, "boot:another")

    async def after(world: World) -> None:
        assert not world.inflight.survives("a")
        assert world.outcomes() == [Outcome.UNKNOWN]

    live(contents, machine, [one], after)


def test_a_run_of_a_daemon_that_lives_on_this_host_is_its_own_business() -> None:
    contents, machine, one = Contents(), Machine(), job()
    world = live(contents, machine, [one], die_during_a_run)
    machine.marks[world.pid] = f"boot:{world.pid}0"

    async def after(world: World) -> None:
        assert not world.inflight.survives("a")
        assert world.outcomes() == []

    live(contents, machine, [one], after)
    assert kinds(contents) == ["open"]


@pytest.mark.parametrize(("topology", "rows"), [(Topology.SHARED, 0), (Topology.SINGLE_NODE, 1)])
def test_what_another_host_left_is_settled_only_where_no_other_host_can_be(topology: Topology, rows: int) -> None:
    contents, machine, one = Contents(), Machine(), job()
    live(contents, machine, [one], die_during_a_run, hostname="before", topology=topology)

    async def after(world: World) -> None:
        assert len(world.outcomes()) == rows

    live(contents, Machine("other"), [one], after, topology=topology)


@pytest.mark.parametrize("hostname", ["before", "host"])
def test_whose_slot_was_taken_over_has_a_row_for_what_it_left_and_others_have_none(hostname: str) -> None:
    contents, machine, one = Contents(), Machine(), job()

    async def after(world: World) -> None:
        await other()
        await world.clock.sleep(1)
        world.inflight.taken_over(one, "another")
        await world.clock.sleep(5)
        assert world.outcomes() == []
        world.inflight.taken_over(one, "node-a")
        await world.clock.sleep(5)
        assert world.outcomes() == ([] if hostname == "host" else [Outcome.UNKNOWN])
        machine.marks = {world.pid: machine.marks[world.pid]}
        world.inflight.taken_over(one, "node-a")
        await world.clock.sleep(5)
        assert world.outcomes() == [Outcome.UNKNOWN]

    async def other() -> None:
        # It starts its run after the first one looked at what was left, and dies without its machine.
        there = World(contents, machine, [one], hostname)
        there.store.topology = Topology.SHARED
        async with anyio.create_task_group() as tasks:
            there.launcher.bind(tasks)
            tasks.start_soon(there.keeper.run)
            there.inflight.bind(tasks)
            assert await there.inflight.settled(5)
            await die_during_a_run(there)
            tasks.cancel_scope.cancel()
        del machine.marks[there.pid]

    live(contents, machine, [one], after, topology=Topology.SHARED)
    assert kinds(contents) == ["open", "closed"]


def test_a_run_that_ended_between_its_row_and_its_record_gets_no_second_row() -> None:
    contents, machine, one = Contents(), Machine(), job()

    async def before(world: World) -> None:
        world.start(one)
        await world.launcher.idle()
        await world.keeper.flush()

    live(contents, machine, [one], before)
    last = sorted(contents.streams["inflight/a"])[-1]
    del contents.streams["inflight/a"][last]

    async def after(world: World) -> None:
        assert world.outcomes() == []

    live(contents, machine, [one], after)
    assert kinds(contents)[-1] == "closed"


KEYS = st.sampled_from(["kind", "proc", "pid", "runId", "startedAt", "trigger", "host"])


@given(st.lists(st.dictionaries(KEYS, st.text() | st.integers() | st.just("open"))))
def test_records_that_say_nothing_are_no_runs(records: list[dict[str, Any]]) -> None:
    assert unfinished("a", records) == []


def test_a_process_is_known_by_its_start_and_a_zombie_is_gone() -> None:
    table = ProcTable()
    own = table.mark(os.getpid())
    assert own is not None
    assert own == table.mark(os.getpid())
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    mark = table.mark(child.pid)
    assert mark is not None
    assert mark != own
    assert table.group_lives(child.pid)
    table.signal_group(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert table.mark(child.pid) is None
    child.wait()
    assert table.mark(child.pid) is None
    assert not table.group_lives(child.pid)
    table.signal_group(child.pid, 9)


def test_a_machine_without_proc_knows_no_processes(tmp_path: Path) -> None:
    assert ProcTable(str(tmp_path)).mark(os.getpid()) is None
