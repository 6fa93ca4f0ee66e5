"""Cluster-wide slots around real launchers on virtual time: nodes that share a store, die, and lose it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from types import MappingProxyType, SimpleNamespace
from typing import Any

import anyio
import pytest

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.core import records
from cronstable.core.decision import Decision, DecisionRing, Reason, Verdict
from cronstable.core.job import ConcurrencyPolicy, Job, JobOptions, Json
from cronstable.core.records import WriteKind
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.store import Grant, StoreUnavailable
from cronstable.plugin.protocols import LeaseStore, SlotView
from cronstable.runtime.bus import EventBus
from cronstable.runtime.chores import Chores
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.locks import StoreLeases
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.slots import Slots
from cronstable.runtime.state import Newest
from cronstable.testing.clock import VirtualClock, run_virtual

GO = Decision(Verdict.RUN, Reason.MANUAL)
TTL = 30.0


class _Hangs:
    """A lease whose store does not answer."""

    async def acquire(self, *args: object, **more: object) -> None:
        await anyio.sleep(3600)

    async def renew(self, *args: object, **more: object) -> None:
        await anyio.sleep(3600)

    async def observe(self) -> None:
        raise StoreUnavailable("gone")

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        raise RuntimeError("a bug")


class _Slow:
    """A lease whose answers are late: what was asked is done all the same."""

    def __init__(self, lease: LeaseStore, clock: VirtualClock, seconds: float) -> None:
        self._lease, self._clock, self._seconds = lease, clock, seconds

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            answer = await getattr(self._lease, name)(*args, **more)
            await self._clock.sleep(self._seconds)
            return answer

        return call


class Keeper:
    def __init__(self, world: World) -> None:
        self._store = MemoryStateStore(world.clock, world.contents)
        self._world = world
        self.policy: Any = SimpleNamespace(slot_ttl=TTL)
        self.fail_closed = False
        self.hangs = False
        self.slow = 0.0

    def lease(self, name: str) -> Any:
        if self.hangs:
            return _Hangs()
        lease = self._store.lease(name)
        return _Slow(lease, self._world.clock, self.slow) if self.slow else lease

    def write(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> None:
        streams = self._world.contents.streams.setdefault(stream, {})
        streams[self._world.contents.number()] = records.encode(data)

    async def newest(self, stream: str) -> Newest | None:
        found = await self._store.read(stream, limit=1)
        return Newest(records.decode(found[-1].data) if found else None)


class Ids:
    def __init__(self, name: str) -> None:
        self._name, self._n = name, 0

    def token(self, nbytes: int = 6) -> str:
        self._n += 1
        return f"{self._name}{self._n}"


@dataclass
class World:
    """``living``: runs under way, by node; ``most``: of how many nodes at once there ever were."""

    clock: VirtualClock
    tasks: anyio.abc.TaskGroup
    contents: Contents = field(default_factory=Contents)
    living: list[str] = field(default_factory=list)
    most: int = 0
    lasts: float = 60.0
    serial: int = 0

    def nodes(self, *names: str) -> list[Node]:
        return [Node(self, name) for name in names]


class Node:
    def __init__(self, world: World, name: str) -> None:
        world.serial += 1
        self.world, self.name = world, name
        self.lines: list[str] = []
        log = logging.Logger("test", logging.DEBUG)
        log.addHandler(_Collect(self.lines))
        self.keeper = Keeper(world)
        ids = Ids(f"{name}{world.serial}-")
        self.launcher = Launcher(
            execute=self._execute,
            clock=world.clock,
            ids=ids,
            bus=EventBus(log),
            hub=OutputHub(),
            log=log,
            node=name,
            decisions=DecisionRing(),
        )
        leases = StoreLeases(find=self.keeper.lease, clock=world.clock, ids=ids, log=log, node=lambda: name)
        self.chores = Chores()
        self.slots = Slots(
            keeper=self.keeper,
            leases=leases,
            runs=self.launcher,
            chores=self.chores,
            clock=world.clock,
            log=log,
            node=lambda: name,
        )
        self.launcher.slots = self.slots
        self._scope = anyio.CancelScope()
        world.tasks.start_soon(self._live)

    async def _live(self) -> None:
        with self._scope:
            async with anyio.create_task_group() as tasks:
                self.launcher.bind(tasks)
                self.slots.bind(tasks)
                self.chores.bind(tasks)
                await anyio.sleep_forever()

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        now = self.world.clock.now().wall
        if request.cancellation.requested:
            return RunRecord(request.key, Outcome.CANCELLED, None, None, now, None, request.cancellation.reason)
        permit()
        on_started(LiveRun(request.key, 4711, now))
        self.world.living.append(self.name)
        self.world.most = max(self.world.most, len(set(self.world.living)))
        outcome = Outcome.CANCELLED
        try:
            with request.cancellation.scope():
                await self.world.clock.sleep(self.world.lasts)
                outcome = Outcome.SUCCESS
        finally:
            self.world.living.remove(self.name)
        end = self.world.clock.now().wall
        return RunRecord(request.key, outcome, 0, now, end, end - now, fail_reason=request.cancellation.reason or None)

    def start(self, policy: ConcurrencyPolicy = ConcurrencyPolicy.FORBID, scope: str = "cluster") -> str | Decision:
        return self.launcher.start(
            job(policy, scope), GO, scheduled_at=None, trigger=Trigger.MANUAL, recheck=lambda: GO
        )

    def kill(self) -> None:
        self._scope.cancel()

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    @property
    def outcomes(self) -> list[str]:
        rows = self.launcher.history().get("job", ())
        return [row.skip_reason or row.outcome.value for row in rows]


class _Collect(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__()
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(record.getMessage())


def job(policy: ConcurrencyPolicy, scope: str = "cluster") -> Job:
    raw: dict[str, Json] = {"concurrencyScope": scope}
    options = JobOptions(concurrency_policy=policy, raw=MappingProxyType(raw))
    return Job("job", "true", Schedule.parse("@daily", job_name="job", zone=UTC), options)


def play(script: Callable[[World], Awaitable[None]]) -> World:
    async def scenario() -> World:
        async with anyio.create_task_group() as tasks:
            world = World(VirtualClock.of_loop(), tasks)
            await script(world)
            tasks.cancel_scope.cancel()
        return world

    return run_virtual(scenario)


def test_forbid_skips_while_another_node_runs_the_job_and_names_it() -> None:
    async def script(world: World) -> None:
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start()
        await anyio.sleep(10)
        b.start()
        await anyio.sleep(1)
        assert b.outcomes == ["slot-held"]
        assert b.said("not started, a runs it")
        assert a.slots.view() == {"job": SlotView(True, "a", 1)}
        assert b.slots.view() == {"job": SlotView(False, "a", 0)}
        await anyio.sleep(60)
        b.start()
        await anyio.sleep(1)
        assert world.living == ["b"]
        assert a.slots.view() == {}

    assert play(script).most == 1


def test_a_slot_is_renewed_for_as_long_as_the_run_lives() -> None:
    async def script(world: World) -> None:
        world.lasts = 20 * TTL
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start()
        for _ in range(18):
            await anyio.sleep(TTL)
            b.start()
        await anyio.sleep(1)
        assert b.outcomes == ["slot-held"] * 18

    assert play(script).most == 1


def test_a_job_of_node_scope_takes_no_slot() -> None:
    async def script(world: World) -> None:
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start(scope="node")
        b.start(scope="node")
        await anyio.sleep(1)
        assert sorted(world.living) == ["a", "b"]
        assert world.contents.leases == {}

    play(script)


def test_replace_ends_the_run_of_the_other_node_and_takes_its_place() -> None:
    async def script(world: World) -> None:
        world.lasts = 3600
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start(ConcurrencyPolicy.REPLACE)
        await anyio.sleep(15)
        b.start(ConcurrencyPolicy.REPLACE)
        await anyio.sleep(TTL)
        assert world.living == ["b"]
        assert a.outcomes == ["cancelled"]
        assert a.said("b wants to run it")

    assert play(script).most == 1


def test_replace_gives_up_on_a_holder_that_does_not_answer() -> None:
    async def script(world: World) -> None:
        world.lasts = 3600
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start(ConcurrencyPolicy.REPLACE)
        await anyio.sleep(1)
        a.slots._obeyed["job"] = 1
        b.start(ConcurrencyPolicy.REPLACE)
        await anyio.sleep(2 * TTL - 2)
        assert b.outcomes == []
        await anyio.sleep(5)
        assert b.outcomes == ["slot-held"]
        assert world.living == ["a"]

    play(script)


def test_the_slot_of_a_killed_daemon_is_had_once_it_has_stood_still() -> None:
    async def script(world: World) -> None:
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start()
        await anyio.sleep(5)
        a.kill()
        await anyio.sleep(1)
        b.start()
        await anyio.sleep(1)
        assert b.outcomes == ["slot-held"]
        await anyio.sleep(TTL)
        told: list[tuple[str, str]] = []
        b.slots.taken_over = lambda job, holder: told.append((job.name, holder))
        b.start()
        await anyio.sleep(TTL + 5)
        assert world.living == ["b"]
        assert told == [("job", "a")]

    play(script)


def test_a_run_that_is_cancelled_while_it_waits_for_a_slot_starts_nothing_and_leaves_nothing() -> None:
    async def script(world: World) -> None:
        world.lasts = 3600
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start(ConcurrencyPolicy.REPLACE)
        await anyio.sleep(1)
        a.slots._obeyed["job"] = 1
        b.start(ConcurrencyPolicy.REPLACE)
        await anyio.sleep(5)
        assert b.launcher.cancel("job") == 1
        await anyio.sleep(1)
        assert b.outcomes == ["cancelled"]
        a.launcher.cancel("job")
        await anyio.sleep(1)
        assert world.contents.leases["slots/job"].record is None

    play(script)


def test_a_cancelled_question_whose_answer_was_yes_lets_the_slot_go_again() -> None:
    async def script(world: World) -> None:
        (a,) = world.nodes("a")
        a.keeper.slow = 5.0
        await anyio.sleep(0.1)
        a.start()
        await anyio.sleep(2)
        assert world.contents.leases["slots/job"].record is not None
        a.launcher.cancel("job")
        await anyio.sleep(20)
        assert world.contents.leases["slots/job"].record is None

    play(script)


@pytest.mark.parametrize(("fail_closed", "outcomes"), [(False, ["success"]), (True, ["store-unavailable"])])
def test_without_an_answer_of_the_store_the_run_counts_here_alone_or_is_skipped(
    fail_closed: bool, outcomes: list[str]
) -> None:
    async def script(world: World) -> None:
        (a,) = world.nodes("a")
        a.keeper.hangs, a.keeper.fail_closed = True, fail_closed
        await anyio.sleep(0.1)
        a.start()
        await anyio.sleep(5)
        assert isinstance(a.start(), Decision)
        await anyio.sleep(90)
        assert [one for one in a.outcomes if one != "concurrency-forbid"] == outcomes
        assert a.said("it runs here") is not fail_closed

    play(script)


def test_losing_the_slot_is_said_and_never_ends_the_run() -> None:
    async def script(world: World) -> None:
        world.lasts = 200.0
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start()
        await anyio.sleep(5)
        a.keeper.hangs = True
        await anyio.sleep(2 * TTL)
        b.start()
        await anyio.sleep(TTL + 5)
        assert sorted(world.living) == ["a", "b"]
        assert a.said("its slot is lost, nobody can tell who has it")
        assert a.slots.view() == {"job": SlotView(False, None, 1)}
        a.keeper.hangs = False
        await anyio.sleep(TTL)
        assert a.slots.view() == {"job": SlotView(False, "b", 1)}
        assert a.said("its slot is lost, b has it")
        await anyio.sleep(300)
        assert a.outcomes == ["success"]
        assert a.slots.view() == {}

    play(script)


def test_a_run_that_outlived_its_daemon_has_its_slot_back_and_lets_it_go() -> None:
    async def script(world: World) -> None:
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        run_id = a.start()
        assert isinstance(run_id, str)
        await anyio.sleep(5)
        a.kill()
        (again,) = world.nodes("a")
        await anyio.sleep(1)
        key = RunKey(run_id, "job", None)
        flight = again.launcher.adopt(job(ConcurrencyPolicy.FORBID), LiveRun(key, 4711, world.clock.now().wall))
        await anyio.sleep(TTL + 5)
        assert again.slots.view() == {"job": SlotView(True, "a", 1)}
        b.start()
        await anyio.sleep(5 * TTL)
        assert b.outcomes == ["slot-held"]
        again.launcher.release(flight, None)
        await anyio.sleep(1)
        b.start()
        await anyio.sleep(1)
        assert world.living == ["b"]

    play(script)


def test_a_run_that_outlived_its_daemon_and_is_over_before_it_has_its_slot_back_keeps_none() -> None:
    async def script(world: World) -> None:
        a, b = world.nodes("a", "b")
        await anyio.sleep(0.1)
        a.start()
        await anyio.sleep(5)
        a.kill()
        (again,) = world.nodes("a")
        await anyio.sleep(1)
        live = LiveRun(RunKey("r", "job", None), 4711, world.clock.now().wall)
        flight = again.launcher.adopt(job(ConcurrencyPolicy.FORBID), live)
        await anyio.sleep(5)
        again.launcher.release(flight, None)
        await anyio.sleep(2 * TTL)
        assert again.slots.view() == {}
        b.start()
        await anyio.sleep(1)
        assert world.living == ["b"]

    play(script)


def test_a_slot_that_nobody_took_in_an_outage_is_ours_again() -> None:
    async def script(world: World) -> None:
        world.lasts = 300.0
        (a,) = world.nodes("a")
        await anyio.sleep(0.1)
        a.start()
        await anyio.sleep(5)
        a.keeper.hangs = True
        await anyio.sleep(3 * TTL)
        a.keeper.hangs = False
        await anyio.sleep(TTL)
        assert a.said("its slot is ours again")
        assert a.slots.view() == {"job": SlotView(True, "a", 1)}

    play(script)


def test_runs_that_follow_one_another_at_once_each_have_the_slot() -> None:
    async def script(world: World) -> None:
        world.lasts = 2.0
        a, b = world.nodes("a", "b")
        a.keeper.slow = 0.3
        await anyio.sleep(0.1)
        for n in range(40):
            (a, b)[n % 2].start()
            await anyio.sleep(1.1)
        assert "success" in a.outcomes
        assert "success" in b.outcomes

    assert play(script).most == 1
