"""Claims at work, on virtual time: real drivers of lease, claims and schedule over one store in memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC
from types import MappingProxyType
from typing import Any, cast

import anyio
import pytest

from cronstable.core import claim_records
from cronstable.core.claim_desk import Desk
from cronstable.core.decision import Decision, DecisionRecord, DecisionRing, Reason, Verdict
from cronstable.core.handover import LOOK_EVERY
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job, JobOptions, Json
from cronstable.core.lease_values import LeaseTiming
from cronstable.core.retry import Resumed, retry_policy
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.store import Appended, Full, Grant, StoreUnavailable
from cronstable.core.view import ClusterView
from cronstable.leadership import LeaseBackend
from cronstable.plugin.descriptors import Capability
from cronstable.plugin.protocols import Claims, Pause
from cronstable.runtime.bus import EventBus
from cronstable.runtime.claim_seat import ClaimSeat
from cronstable.runtime.claims_driver import ClaimsDriver
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.retries import Retries
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.host import FakeHost
from cronstable.testing.memory import MemoryLease, MemoryLeaseStore, Point

LOG = logging.getLogger("test")
START = 1_800_000_000
TTL = 5.0
LOST = (Verdict.SKIP, Reason.OUTSIDE_WINDOW)
CAPABILITIES = frozenset({Capability.LEASE, Capability.FENCED, Capability.OCCURRENCE_CLAIMS})


def job(
    name: str = "tick",
    text: str = "* * * * * * *",
    *,
    policy: ClusterPolicy = ClusterPolicy.LEADER,
    overlap: ConcurrencyPolicy = ConcurrencyPolicy.ALLOW,
    **raw: Json,
) -> Job:
    options = JobOptions(cluster_policy=policy, concurrency_policy=overlap, raw=MappingProxyType(raw))
    return Job(name, "true", Schedule.parse(text, job_name=name, zone=UTC), options)


class Status:
    def __init__(self) -> None:
        self.begun = anyio.Event()

    def started(self, value: None = None) -> None:
        self.begun.set()


class Cluster:
    """The cluster manager's part."""

    elects = True

    def __init__(self, backend: LeaseBackend, catch_up: Mapping[str, Json]) -> None:
        self.backend = backend
        self.catch_up = catch_up

    def view(self) -> ClusterView:
        return self.backend.view()

    @property
    def claims(self) -> Claims | None:
        return self.backend.claims


@dataclass
class Start:
    node: str
    job: str
    at: int
    when: float
    attempt: int
    trigger: Trigger
    fence: str | None
    run_id: str


class Node:
    """One daemon without its services."""

    def __init__(self, fleet: Fleet, name: str, catch_up: Mapping[str, Json]) -> None:
        self.fleet, self.name = fleet, name
        self.clock = fleet.clock
        self.host = FakeHost(self.clock, name)
        self.down = False
        self.lose: set[str] = set()
        self.refuses: Callable[[str], bool] = lambda operation: False
        self.writes: Counter[str] = Counter()
        self.backend = self.make_backend()
        members: Any = Cluster(self.backend, catch_up)
        self.members: Cluster = members
        bus = EventBus(LOG)
        self.launcher = Launcher(
            execute=self.execute,
            clock=self.clock,
            ids=self.host.ids,
            bus=bus,
            hub=OutputHub(),
            log=LOG,
            node=name,
            decisions=DecisionRing(),
        )
        self.scheduler = Scheduler(clock=self.clock, cluster=members, launcher=self.launcher, log=LOG)
        self.claims = ClaimSeat(self.clock, members, self.make_claims)
        self.scheduler.claimer = self.claims
        self.retries = Retries(
            clock=self.clock, scheduler=self.scheduler, cluster=members, launcher=self.launcher, log=LOG
        )
        self.retries.claimer = self.claims
        self.launcher.admission = self.retries
        self.launcher.listeners += (self.claims, self.retries)
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()

    def make_claims(self) -> ClaimsDriver:
        driver = ClaimsDriver(
            clock=self.clock,
            ids=self.host.ids,
            gate=self.scheduler,
            cluster=cast("Any", self.members),
            launcher=self.launcher,
            log=LOG,
        )
        driver.retry_refused = self.retries.refused
        driver.retry_spent = self.retries.spent
        return driver

    def make_backend(self) -> LeaseBackend:
        return LeaseBackend(
            MemoryLeaseStore(self.fleet.lease, clock=self.clock, at=self.strike),
            self.host.context("memory"),
            self.host,
            timing=LeaseTiming.for_ttl(TTL),
            capabilities=CAPABILITIES,
        )

    async def rebuild(self) -> None:
        """A reload that changes the cluster section."""
        await self.claims.stop()
        self.electing.cancel()
        await until(lambda: not self.leads, within=5)
        self.backend = self.members.backend = self.make_backend()
        self.fleet.tasks.start_soon(self.elect, Status())
        await until(lambda: self.leads, within=5)
        self.claims.load()

    async def elect(self, status: Status) -> None:
        with anyio.CancelScope() as self.electing:
            await self.backend.run(self.host, task_status=status)

    async def strike(self, point: Point, operation: str) -> None:
        await anyio.sleep(0.002)
        if point is Point.BEFORE_COMMIT:
            self.writes[operation] += 1
        if self.down or self.refuses(operation):
            raise StoreUnavailable("the store is away")
        if point is Point.BEFORE_ANSWER and operation in self.lose:
            self.lose.discard(operation)
            raise StoreUnavailable("the answer was lost", ambiguous=True)

    async def execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        await anyio.sleep(self.fleet.prepare)
        permit()
        await anyio.sleep(self.fleet.spawning_of.get(request.key.job, self.fleet.spawning))
        key, now = request.key, self.clock.now().wall
        at = key.scheduled_at or 0
        fence = request.variables.get("CRONSTABLE_FENCE")
        self.fleet.starts.append(Start(self.name, key.job, at, now, key.attempt, key.trigger, fence, key.run_id))
        on_started(LiveRun(key, 1, now))
        outcome = Outcome.CANCELLED
        with request.cancellation.scope():
            await anyio.sleep(self.fleet.lasts)
            outcome = Outcome.FAILURE if key.job in self.fleet.failing else Outcome.SUCCESS
        return RunRecord(key, outcome, 0, now, self.clock.now().wall, 0.0)

    def load(self, *jobs: Job) -> None:
        self.scheduler.load(jobs)
        self.claims.load()

    async def run(self) -> None:
        with self.scope:
            async with anyio.create_task_group() as runs:
                self.launcher.bind(runs)
                async with anyio.create_task_group() as election:
                    status = Status()
                    election.start_soon(self.elect, status)
                    await status.begun.wait()
                    async with anyio.create_task_group() as tasks:
                        self.working = tasks.cancel_scope
                        tasks.start_soon(self.scheduler.run)
                        tasks.start_soon(self.claims.run)
                        tasks.start_soon(self.retries.run)
                    await self.claims.stop()
                    election.cancel_scope.cancel()
                async with anyio.create_task_group() as handover:
                    handover.start_soon(self.claims.drain)
                    await self.launcher.idle()
                    handover.cancel_scope.cancel()
                await self.claims.leave()
        self.over.set()

    def kill(self) -> None:
        """kill -9: nothing is released, and what runs is gone."""
        self.down = True
        self.scope.cancel()

    async def stop(self) -> None:
        """SIGTERM."""
        self.launcher.stopping = True
        self.retries.stop()
        self.scheduler.poke()
        self.working.cancel()
        await self.over.wait()

    @property
    def leads(self) -> bool:
        return self.backend.view().is_leader

    def decision(self, name: str, at: int) -> tuple[Verdict, Reason] | None:
        record = self.launcher.decisions.get(name, at)
        return None if record is None else (record.decision.verdict, record.decision.reason)


@dataclass
class Fleet:
    """Nodes that share one lease."""

    clock: VirtualClock
    tasks: Any
    lease: MemoryLease = field(default_factory=MemoryLease)
    starts: list[Start] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    prepare: float = 0.001
    lasts: float = 0.0
    spawning: float = 0.0
    spawning_of: Mapping[str, float] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()
    catch_up: Mapping[str, Json] = field(default_factory=dict)
    jobs: tuple[Job, ...] = (job(),)

    async def node(self, name: str = "a", *jobs: Job) -> Node:
        node = Node(self, name, self.catch_up)
        node.load(*(jobs or self.jobs))
        self.nodes.append(node)
        self.tasks.start_soon(node.run)
        await anyio.sleep(0.1)
        return node

    async def until_wall(self, at: float) -> None:
        await anyio.sleep(START + at - self.clock.now().wall)

    def times(self, name: str = "tick") -> list[int]:
        return [start.at - START for start in self.starts if start.job == name]

    def records(self) -> list[Any]:
        return [claim_records.decode(self.lease.records[number]) for number in sorted(self.lease.records)]


@asynccontextmanager
async def fleet(**options: Any) -> AsyncIterator[Fleet]:
    async with anyio.create_task_group() as tasks:
        made = Fleet(VirtualClock.of_loop(wall=START - 20.5), tasks, **options)
        yield made
        for node in made.nodes:
            node.kill()
        tasks.cancel_scope.cancel()


def test_an_occurrence_is_claimed_before_it_starts_and_knows_its_fence() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("minutely", "0 * * * * * *"),)) as f:
            await f.node()
            await f.until_wall(5)
            (start,) = f.starts
            assert (start.at - START, start.attempt, start.trigger) == (0, 0, Trigger.SCHEDULE)
            assert start.when - start.at < 0.05
            opened, claimed, *_ = f.records()
            assert opened.head.opens
            assert start.fence == str(opened.head.fence)
            assert claimed.run_id(0) == start.run_id
            assert f.nodes[0].decision("minutely", START) == (Verdict.RUN, Reason.LEADER)

    run_virtual(story)


def test_nothing_is_missed_or_doubled_when_leaders_are_killed() -> None:
    async def story() -> None:
        async with fleet() as f:
            for number in range(3):
                await f.node(f"n{number}")
            await f.until_wall(0.3)
            for round_ in range(4):
                leader = next(node for node in f.nodes if node.leads)
                leader.kill()
                f.nodes.remove(leader)
                await f.node(f"again-{round_}")
                await anyio.sleep(12)
            await anyio.sleep(1)
            last = int(f.clock.now().wall) - 1 - START
            assert set(range(-14, last + 1)) <= set(f.times())
            assert len(f.times()) == len(set(f.times()))
            late = [start for start in f.starts if start.trigger is Trigger.CATCHUP]
            assert late
            assert all(start.when - start.at < 12 for start in f.starts)
            fences = [int(start.fence or 0) for start in sorted(f.starts, key=lambda start: start.when)]
            assert fences == sorted(fences)

    run_virtual(story)


def test_a_leader_that_is_told_to_stop_gives_back_what_it_claimed_and_nothing_is_lost() -> None:
    async def story() -> None:
        async with fleet(prepare=0.3) as f:
            first = await f.node("a")
            second = await f.node("b")
            await f.until_wall(3.15)
            assert first.leads
            await first.stop()
            await until(lambda: second.leads, within=5)
            await anyio.sleep(5)
            assert set(range(-13, 6)) <= set(f.times())
            assert len(f.times()) == len(set(f.times()))
            given_back = [start for start in f.starts if start.at == START + 3]
            assert [(start.node, start.attempt) for start in given_back] == [("b", 0)]
            reasons = {skip.reason for record in f.records() for skip in record.skips}
            assert "claimed-not-started" not in reasons

    run_virtual(story)


@pytest.mark.parametrize(("unfinished", "minutes"), [("skip", 8), ("rerun", 1)])
def test_a_thousand_jobs_at_one_instant_cost_twenty_writes_with_all_that_follows(unfinished: str, minutes: int) -> None:
    async def story() -> None:
        jobs = tuple(job(f"job-{number}", "0 * * * * * *", onUnfinishedClaim=unfinished) for number in range(1000))
        async with fleet(jobs=jobs, spawning=0.01) as f:
            node = await f.node()
            for minute in range(minutes):
                await f.until_wall(60 * minute - 5)
                before, node.writes = len(f.starts), Counter()
                await f.until_wall(60 * minute + 50)
                assert len(f.starts) - before == 1000
                assert max(start.when for start in f.starts) < START + 60 * minute + 2
                # Whatever else is asked for is a read.
                assert node.writes.keys() <= {"append", "trim", "renew", "entries", "reboot_marks"}
                assert node.writes["append"] + node.writes["trim"] <= 20
            assert minutes == 1 or f.lease.low > 1, "no trim was counted"

    run_virtual(story)


def test_rule_12_sixteen_are_on_their_way_to_a_process_at_a_time() -> None:
    async def story() -> None:
        jobs = tuple(job(f"job{n}", "0 * * * * * *") for n in range(60))
        async with fleet(jobs=jobs, prepare=0.3) as f:
            await f.node()
            await f.until_wall(10)
            together = Counter(round(start.when, 1) for start in f.starts)
            assert len(f.starts) == 60
            assert max(together.values()) == 16

    run_virtual(story)


def test_an_outage_of_the_store_delays_and_loses_nothing() -> None:
    async def story() -> None:
        async with fleet() as f:
            node = await f.node()
            await f.until_wall(0.5)
            node.down = True
            await anyio.sleep(10)
            during = [start for start in f.starts if start.when > START + TTL + 0.6]
            assert during == []
            node.down = False
            await anyio.sleep(6)
            assert set(range(-13, 15)) <= set(f.times())
            assert len(f.times()) == len(set(f.times()))

    run_virtual(story)


def test_a_store_that_stays_silent_is_asked_twice_a_second_and_hardly_more_while_a_term_runs_out() -> None:
    async def story() -> None:
        async with fleet() as f:
            node = await f.node("a")
            await f.until_wall(5)
            node.down = True
            for second in range(5, 40):
                before, led = node.writes.total(), node.leads
                await f.until_wall(second + 1)
                # A leader still tries to get its claims through; its term ends within four seconds.
                assert node.writes.total() - before <= (3 if led else 2), f"in second {second}"

    run_virtual(story)


def test_what_an_outage_longer_than_the_window_lost_is_said_and_nothing_else() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("tick", "*/10 * * * * * *"),)) as f:
            node = await f.node("a")
            await f.until_wall(5)
            node.down = True
            await f.until_wall(95)
            node.down = False
            await f.until_wall(115)
            assert sorted(f.times()) == [-10, 0, 40, 50, 60, 70, 80, 90, 100, 110]
            lost = [at for at in range(-10, 111, 10) if node.decision("tick", START + at) == LOST]
            assert lost == [10, 20, 30]

    run_virtual(story)


def test_a_lost_answer_costs_a_repetition_and_no_second_start() -> None:
    async def story() -> None:
        async with fleet() as f:
            node = await f.node()
            await f.until_wall(1.5)
            node.lose.add("append")
            await f.until_wall(5.5)
            assert sorted(f.times())[-5:] == [1, 2, 3, 4, 5]
            assert len(f.times()) == len(set(f.times()))

    run_virtual(story)


def test_a_skip_is_in_the_log_so_that_no_successor_starts_it() -> None:
    async def story() -> None:
        jobs = (job("long", "*/5 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=7.0) as f:
            first = await f.node("a")
            await f.until_wall(1)
            assert f.times("long")[-1] == -5
            assert first.decision("long", START) == (Verdict.SKIP, Reason.CONCURRENCY_FORBID)
            await f.node("b")
            first.kill()
            await anyio.sleep(12)
            assert 0 not in f.times("long")
            assert f.times("long")[-1] > 0

    run_virtual(story)


def test_prefer_leader_starts_unclaimed_while_the_store_does_not_answer() -> None:
    async def story() -> None:
        jobs = (job(policy=ClusterPolicy.PREFER_LEADER),)
        async with fleet(jobs=jobs) as f:
            node = await f.node()
            await f.until_wall(1.5)
            assert f.starts[-1].fence is not None
            node.down = True
            await anyio.sleep(12)
            unclaimed = [start for start in f.starts if start.fence is None]
            assert unclaimed
            node.down = False
            await anyio.sleep(5)
            assert set(range(-13, 18)) <= set(f.times())
            assert len(f.times()) == len(set(f.times()))

    run_virtual(story)


def test_every_node_jobs_are_never_claimed() -> None:
    async def story() -> None:
        jobs = (job(policy=ClusterPolicy.EVERY_NODE),)
        async with fleet(jobs=jobs) as f:
            await f.node("a")
            await f.node("b")
            await f.until_wall(2.5)
            assert Counter(f.times())[2] == 2
            assert all(not record.starts for record in f.records())
            assert {start.fence for start in f.starts} == {None}

    run_virtual(story)


def test_a_claim_of_a_dead_node_is_skipped_by_default_and_tried_again_on_request() -> None:
    async def story() -> None:
        jobs = (job("once", "0 * * * * * *"), job("again", "0 * * * * * *", onUnfinishedClaim="rerun"))
        async with fleet(jobs=jobs, prepare=0.5) as f:
            first = await f.node("a")
            second = await f.node("b")
            await f.until_wall(0.3)
            assert first.leads
            first.kill()
            await anyio.sleep(12)
            assert [(start.job, start.attempt, start.node) for start in f.starts] == [("again", 1, "b")]
            assert second.decision("once", START) == (Verdict.SKIP, Reason.CLAIMED_NOT_STARTED)

    run_virtual(story)


def test_a_paused_job_is_skipped_for_good() -> None:
    async def story() -> None:
        async with fleet() as f:
            node = await f.node()
            await f.until_wall(0.5)
            node.scheduler.pauses = {"tick": Pause("tick", START + 3.2)}
            await f.until_wall(6)
            assert set(f.times()) & {1, 2, 3} == set()
            assert node.decision("tick", START + 2) == (Verdict.SKIP, Reason.PAUSED)

    run_virtual(story)


def test_a_new_job_does_not_back_fill_and_a_removed_one_stops() -> None:
    async def story() -> None:
        async with fleet() as f:
            node = await f.node()
            await f.until_wall(10.5)
            node.load(job("new"))
            await f.until_wall(14.5)
            assert max(f.times("tick")) == 10
            assert f.times("new") == [11, 12, 13, 14]

    run_virtual(story)


@pytest.mark.parametrize(("mode", "counts"), [("none", {0}), ("last", {1}), ("all", {2, 3})])
def test_the_mode_says_what_becomes_of_late_ones(mode: str, counts: set[int]) -> None:
    async def story() -> None:
        jobs = (job("two", "*/2 * * * * * *"),)
        async with fleet(jobs=jobs, catch_up={"mode": mode}) as f:
            first = await f.node("a")
            await f.node("b")
            await f.until_wall(0.5)
            first.kill()
            await f.until_wall(15)
            assert sum(start.trigger is Trigger.CATCHUP for start in f.starts) in counts

    run_virtual(story)


def test_a_node_whose_clock_is_far_behind_lets_go_of_the_lease() -> None:
    async def story() -> None:
        async with fleet() as f:
            first = await f.node("a")
            await f.until_wall(200)
            await first.stop()
            f.clock.step_wall(-600)
            second = await f.node("b")
            await anyio.sleep(4)
            assert not second.leads
            assert all(start.node == "a" for start in f.starts)

    run_virtual(story)


def test_old_records_are_trimmed() -> None:
    async def story() -> None:
        async with fleet() as f:
            await f.node()
            await f.until_wall(900)
            assert f.lease.low > 100
            assert len(f.lease.records) < 350
            assert len(f.times()) == len(set(f.times())) > 900

    run_virtual(story)


def test_a_run_that_waits_for_another_one_does_not_hold_up_the_rest() -> None:
    async def story() -> None:
        jobs = (job("queued", "0 * * * * * *", overlap=ConcurrencyPolicy.QUEUE), job())
        async with fleet(jobs=jobs, lasts=90.0) as f:
            await f.node()
            await f.until_wall(70)
            assert f.times("queued") == [0]
            assert 65 in f.times()
            await f.until_wall(100)
            assert f.times("queued") == [0, 60]

    run_virtual(story)


def test_what_a_follower_decides_is_provisional() -> None:
    async def story() -> None:
        async with fleet() as f:
            await f.node("a")
            follower = await f.node("b")
            await f.until_wall(2.5)
            record = follower.launcher.decisions.get("tick", START + 2)
            assert record is not None
            assert record.provisional
            assert record.decision.reason is Reason.NOT_LEADER

    run_virtual(story)


RETRY: Json = {"retry": {"maximumRetries": 2, "initialDelay": 3, "maximumDelay": 3, "backoffMultiplier": 1}}


def test_a_retry_is_claimed_before_it_starts() -> None:
    async def story() -> None:
        jobs = (job("bad", "0 * * * * * *", onFailure=RETRY),)
        async with fleet(jobs=jobs, failing=frozenset({"bad"})) as f:
            await f.node()
            await f.until_wall(20)
            assert [(start.at - START, start.attempt, start.trigger) for start in f.starts] == [
                (0, 0, Trigger.SCHEDULE),
                (0, 1, Trigger.RETRY),
                (0, 2, Trigger.RETRY),
            ]
            claims = [(start.job, start.attempt) for record in f.records() for start in record.starts]
            assert claims == [("bad", 0), ("bad", 1), ("bad", 2)]
            assert len({start.run_id for start in f.starts}) == 3
            assert len({start.fence for start in f.starts}) == 1

    run_virtual(story)


def test_a_retry_that_the_store_does_not_answer_for_is_made_once_it_does() -> None:
    async def story() -> None:
        jobs = (job("bad", "0 * * * * * *", onFailure=RETRY),)
        async with fleet(jobs=jobs, failing=frozenset({"bad"})) as f:
            node = await f.node()
            await f.until_wall(2)
            node.down = True
            await f.until_wall(12)
            assert [start.attempt for start in f.starts] == [0]
            node.down = False
            await f.until_wall(40)
            assert [start.attempt for start in f.starts] == [0, 1, 2]

    run_virtual(story)


def test_a_retry_moves_to_nobody_when_the_leader_changes() -> None:
    async def story() -> None:
        jobs = (job("bad", "0 * * * * * *", onFailure=RETRY, onUnfinishedClaim="rerun"),)
        async with fleet(jobs=jobs, failing=frozenset({"bad"})) as f:
            first = await f.node("a")
            await f.node("b")
            await f.until_wall(4)
            assert [start.attempt for start in f.starts] == [0, 1]
            first.kill()
            await f.until_wall(40)
            attempts = [(start.node, start.attempt) for start in f.starts]
            assert len(attempts) == len({attempt for _, attempt in attempts})

    run_virtual(story)


def test_a_ladder_that_goes_on_elsewhere_makes_no_attempt_that_the_log_has_already() -> None:
    """Its record said attempt 1, and the node that died had claimed that: the number is used up."""

    async def story() -> None:
        jobs = (job("bad", "0 * * * * * *", onFailure=RETRY),)
        async with fleet(jobs=jobs, failing=frozenset({"bad"})) as f:
            first = await f.node("a")
            second = await f.node("b")
            await f.until_wall(4)
            assert [start.attempt for start in f.starts] == [0, 1]
            first.kill()
            await until(lambda: second.leads, within=30)
            policy = retry_policy({"onFailure": RETRY})
            key = RunKey(f.starts[0].run_id, "bad", START)
            second.retries.resume(jobs[0], Resumed(key, policy, 1, 0.0))
            await f.until_wall(50)
            assert [(start.node, start.attempt) for start in f.starts] == [("a", 0), ("a", 1), ("b", 2)]

    run_virtual(story)


def test_a_cancelled_retry_that_was_claimed_is_not_started() -> None:
    async def story() -> None:
        jobs = (job("bad", "0 * * * * * *", onFailure=RETRY),)
        async with fleet(jobs=jobs, failing=frozenset({"bad"}), prepare=0.5) as f:
            node = await f.node()
            await f.until_wall(1)
            assert [start.attempt for start in f.starts] == [0]
            node.retries.cancel("bad")
            await f.until_wall(20)
            assert [start.attempt for start in f.starts] == [0]

    run_virtual(story)


def test_a_retry_that_was_claimed_is_not_started_after_a_success_that_is_only_told_later() -> None:
    async def story() -> None:
        bad = job("bad", "0 * * * * * *", onFailure=RETRY)
        async with fleet(jobs=(bad,), failing=frozenset({"bad"})) as f:
            node = await f.node()
            await f.until_wall(2.8)
            f.failing, f.lasts = frozenset(), 0.5
            by_hand = Decision(Verdict.RUN, Reason.MANUAL)
            node.launcher.start(bad, by_hand, scheduled_at=None, trigger=Trigger.MANUAL, recheck=lambda: by_hand)
            node.down = True
            await f.until_wall(3.2)
            node.launcher.ends.hold()
            await f.until_wall(3.5)
            node.down = False
            await f.until_wall(6)
            node.launcher.ends.release()
            await f.until_wall(20)
            assert [(start.attempt, start.trigger) for start in f.starts] == [
                (0, Trigger.SCHEDULE),
                (0, Trigger.MANUAL),
            ]
            skips = [(skip.job, skip.reason) for record in f.records() for skip in record.skips]
            assert skips == [("bad", Reason.RETRY_SETTLED)]

    run_virtual(story)


async def handed_over(f: Fleet) -> Node:
    """Node a was told to stop while its run of T=0 goes on; node b leads."""
    first = await f.node("a")
    second = await f.node("b")
    await f.until_wall(5)
    assert [(start.node, start.at - START) for start in f.starts][-1] == ("a", 0)
    f.tasks.start_soon(first.stop)
    await until(lambda: second.leads, within=5)
    return second


def test_rule_16_forbid_is_honoured_against_a_run_that_still_drains_elsewhere() -> None:
    async def story() -> None:
        jobs = (job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=30.0) as f:
            second = await handed_over(f)
            await f.until_wall(25)
            assert second.decision("long", START + 20) == (Verdict.SKIP, Reason.CONCURRENCY_FORBID)
            await f.until_wall(45)
            assert [(start.node, start.at - START) for start in f.starts][-1] == ("b", 40)
            assert f.lease.entries == {}

    run_virtual(story)


def test_rule_16_replace_ends_the_run_elsewhere_and_takes_its_place() -> None:
    async def story() -> None:
        jobs = (job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.REPLACE),)
        async with fleet(jobs=jobs, lasts=300.0) as f:
            await handed_over(f)
            await f.until_wall(30)
            (late,) = [start for start in f.starts if start.at == START + 20]
            assert late.node == "b"
            assert late.when - late.at < 6
            assert f.nodes[0].over.is_set()

    run_virtual(story)


def test_rule_16_an_entry_that_stands_still_blocks_for_one_ttl() -> None:
    async def story() -> None:
        jobs = (job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=300.0) as f:
            second = await handed_over(f)
            f.nodes[0].kill()
            await f.until_wall(30)
            assert [start.node for start in f.starts][-1] == "b"
            assert second.leads

    run_virtual(story)


def test_rule_16_what_a_killed_node_left_behind_is_not_read_every_second_for_good() -> None:
    async def story() -> None:
        jobs = (job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=300.0) as f:
            second = await handed_over(f)
            f.nodes[0].kill()
            await f.until_wall(30)
            assert f.lease.entries
            read = second.writes["entries"]
            await f.until_wall(90)
            assert second.leads
            assert 0 < second.writes["entries"] - read <= 60 / LOOK_EVERY + 1

    run_virtual(story)


def test_rule_16_runs_of_a_node_that_was_killed_block_nothing() -> None:
    async def story() -> None:
        jobs = (job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=300.0) as f:
            first = await f.node("a")
            await f.node("b")
            await f.until_wall(5)
            first.kill()
            await f.until_wall(25)
            assert [start.node for start in f.starts][-1] == "b"

    run_virtual(story)


async def cut_off(f: Fleet) -> Node:
    """Node a lost its lease to b while the store was out of its reach; its run of T=0 goes on, and it is back."""
    first = await f.node("a")
    second = await f.node("b")
    await f.until_wall(1)
    assert [(start.node, start.at - START) for start in f.starts][-1] == ("a", 0)
    first.down = True
    await until(lambda: second.leads, within=15)
    first.down = False
    return second


def test_rule_16_a_run_of_a_node_that_was_cut_off_and_is_back_is_minded() -> None:
    async def story() -> None:
        jobs = (job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=30.0) as f:
            second = await cut_off(f)
            await f.until_wall(25)
            assert second.decision("long", START + 20) == (Verdict.SKIP, Reason.CONCURRENCY_FORBID)
            await f.until_wall(45)
            assert [(start.node, start.at - START) for start in f.starts][-1] == ("b", 40)
            assert f.lease.entries == {}

    run_virtual(story)


def test_rule_16_a_run_of_a_node_that_was_cut_off_is_ended_to_be_replaced_and_only_it() -> None:
    async def story() -> None:
        jobs = (
            job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.REPLACE),
            job("other", "0 * * * * * *"),
        )
        async with fleet(jobs=jobs, lasts=300.0) as f:
            await cut_off(f)
            await f.until_wall(30)
            assert [start.node for start in f.starts if start.at == START + 20] == ["b"]
            assert [run.name for run in f.nodes[0].launcher.running().values()] == ["other"]

    run_virtual(story)


def test_rule_16_a_node_that_leads_again_minds_its_own_runs_without_an_entry() -> None:
    async def story() -> None:
        jobs = (job("long", "0,20,40 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=30.0) as f:
            node = await f.node("a")
            await f.until_wall(1)
            node.down = True
            await until(lambda: not node.leads, within=15)
            node.down = False
            await until(lambda: node.leads, within=15)
            await f.until_wall(25)
            assert node.decision("long", START + 20) == (Verdict.SKIP, Reason.CONCURRENCY_FORBID)
            assert f.lease.entries == {}

    run_virtual(story)


def test_rule_16_what_a_node_said_before_its_election_was_built_anew_blocks_no_run_of_its_own() -> None:
    async def story() -> None:
        jobs = (job("long", "0,5 * * * * * *", overlap=ConcurrencyPolicy.FORBID),)
        async with fleet(jobs=jobs, lasts=4.0) as f:
            node = await f.node()
            await f.until_wall(3)
            await node.rebuild()
            assert f.lease.entries
            await f.until_wall(8)
            assert [start.at - START for start in f.starts] == [0, 5]

    run_virtual(story)


def test_what_was_started_before_a_reload_in_an_outage_is_not_taken_for_lost_after_it() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("again", "0 * * * * * *", onUnfinishedClaim="rerun"),)) as f:
            node = await f.node()
            await f.until_wall(1.5)
            node.down = True
            await node.claims.stop()
            node.down = False
            await node.rebuild()
            await f.until_wall(50)
            assert [start.attempt for start in f.starts] == [0]

    run_virtual(story)


def test_a_start_of_a_job_that_is_rerun_is_in_the_log_before_anything_else_happens() -> None:
    async def story() -> None:
        jobs = (job("again", "0 * * * * * *", onUnfinishedClaim="rerun"), job("once", "30 * * * * * *"))
        async with fleet(jobs=jobs) as f:
            await f.node()
            await f.until_wall(0.3)
            (start,) = f.starts
            assert f.records()[-1].begun == (start.run_id,)
            await f.until_wall(34)
            assert f.records()[-1].begun == ()
            await f.until_wall(37)
            assert f.records()[-1].begun == (f.starts[-1].run_id,)

    run_virtual(story)


@pytest.mark.parametrize(("slow", "said"), [(0.1, [2]), (2.5, [1, 1])])
def test_starts_of_one_claim_that_are_rerun_are_said_together_unless_one_process_takes_long_to_make(
    slow: float, said: list[int]
) -> None:
    async def story() -> None:
        jobs = tuple(job(name, "0 * * * * * *", onUnfinishedClaim="rerun") for name in ("quick", "slow"))
        async with fleet(jobs=jobs, spawning_of={"slow": slow}) as f:
            await f.node()
            await f.until_wall(0.5)
            assert [len(record.begun) for record in f.records() if record.begun] == said[:1]
            await f.until_wall(5)
            assert [len(record.begun) for record in f.records() if record.begun] == said

    run_virtual(story)


def test_a_node_that_is_killed_while_a_process_is_being_made_has_started_nothing() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("again", "0 * * * * * *", onUnfinishedClaim="rerun"),), spawning=0.5) as f:
            first = await f.node("a")
            await f.node("b")
            await f.until_wall(0.3)
            first.kill()
            await f.until_wall(50)
            assert [(start.node, start.attempt) for start in f.starts] == [("b", 1)]

    run_virtual(story)


def test_a_run_that_was_started_and_over_when_its_node_was_killed_is_not_started_again() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("again", "0 * * * * * *", onUnfinishedClaim="rerun"),)) as f:
            first = await f.node("a")
            await f.node("b")
            await f.until_wall(0.5)
            first.kill()
            await f.until_wall(50)
            assert [(start.node, start.attempt) for start in f.starts] == [("a", 0)]

    run_virtual(story)


def test_what_a_node_started_and_could_not_log_is_learned_from_its_entry_and_not_started_again() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("again", "0 * * * * * *", onUnfinishedClaim="rerun"),), lasts=0.2) as f:
            first = await f.node("a")
            await f.node("b")
            first.refuses = lambda operation: operation == "append" and bool(f.starts)
            await until(lambda: bool(f.starts), within=50)
            await first.backend.stand_down(60)
            await f.until_wall(50)
            assert [record.begun for record in f.records() if record.begun] == [(f.starts[0].run_id,)]
            assert [start.attempt for start in f.starts] == [0]

    run_virtual(story)


def test_a_bug_costs_a_second_and_not_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with fleet() as f:
            await f.node()
            await f.until_wall(1.5)
            with monkeypatch.context() as patch:
                patch.setattr(Desk, "wants", lambda *_: 1 / 0)
                await anyio.sleep(3)
            await f.until_wall(9.5)
            assert sorted(f.times())[-9:] == list(range(1, 10))
            assert len(f.times()) == len(set(f.times()))

    run_virtual(story)


def test_what_was_started_before_a_bug_is_not_taken_for_lost_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with fleet(jobs=(job("again", "0 * * * * * *", onUnfinishedClaim="rerun"),)) as f:
            await f.node()
            await f.until_wall(1.5)
            assert [start.attempt for start in f.starts] == [0]
            with monkeypatch.context() as patch:
                patch.setattr(Desk, "wants", lambda *_: 1 / 0)
                await anyio.sleep(3)
            await f.until_wall(50)
            assert [start.attempt for start in f.starts] == [0]
            assert [run for record in f.records() for run in record.begun] == [f.starts[0].run_id]

    run_virtual(story)


def test_what_is_older_than_the_window_is_claimed_as_attempt_one_and_runs_as_attempt_zero_once() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("minutely", "0 * * * * * *"),)) as f:
            node = await f.node()
            await f.until_wall(5)
            ended: list[Decision | None] = []
            old = START - 36_000
            minutely = node.scheduler.jobs["minutely"]
            assert node.claims.window == 60
            assert node.claims.catch_up(minutely, old, ended.append)
            await anyio.sleep(2)
            late = [start for start in f.starts if start.at == old]
            assert [(start.attempt, start.trigger) for start in late] == [(0, Trigger.CATCHUP)]
            assert late[0].fence is not None
            assert ended == [None]
            claims = [start for record in f.records() for start in record.starts if start.at == old]
            assert [claim.attempt for claim in claims] == [1]
            # Somebody who asks again, on this node or on the next one, is told that it was decided.
            assert node.claims.catch_up(minutely, old, ended.append)
            await anyio.sleep(2)
            assert [refusal and refusal.reason for refusal in ended] == [None, Reason.CLAIM_TAKEN]
            assert len([start for start in f.starts if start.at == old]) == 1

    run_virtual(story)


def test_a_missed_run_whose_term_ends_is_put_off_and_a_follower_takes_none() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("minutely", "0 * * * * * *"),)) as f:
            node = await f.node("a")
            other = await f.node("b")
            await f.until_wall(5)
            ended: list[Decision | None] = []
            minutely = node.scheduler.jobs["minutely"]
            assert not other.claims.catch_up(minutely, START - 36_000, ended.append)
            node.down = True
            assert node.claims.catch_up(minutely, START - 36_000, ended.append)
            await until(lambda: other.leads, within=60)
            node.down = False
            await until(lambda: ended, within=60)
            assert [refusal and refusal.reason for refusal in ended] == [Reason.FENCED]
            assert [start for start in f.starts if start.at == START - 36_000] == []
            assert other.claims.catch_up(minutely, START - 36_000, ended.append)
            await anyio.sleep(2)
            assert [start.node for start in f.starts if start.at == START - 36_000] == ["b"]

    run_virtual(story)


def test_a_forbidden_missed_run_waits_and_one_of_a_disabled_job_is_refused() -> None:
    async def story() -> None:
        forbid = job("minutely", "0 * * * * * *", overlap=ConcurrencyPolicy.FORBID)
        async with fleet(jobs=(forbid,), lasts=20.0) as f:
            node = await f.node()
            await f.until_wall(5)
            ended: list[Decision | None] = []
            assert node.claims.catch_up(forbid, START - 36_000, ended.append)
            await anyio.sleep(10)
            assert ended == []
            await anyio.sleep(30)
            assert ended == [None]
            assert len([start for start in f.starts if start.at == START - 36_000]) == 1

    run_virtual(story)


def test_an_occurrence_in_a_pause_that_is_over_is_not_caught_up() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("minutely", "0 * * * * * *"),)) as f:
            node = await f.node()
            node.scheduler.paused_since = lambda name, at: START - 10 if at == START else None
            await f.until_wall(65)
            assert [start.at - START for start in f.starts] == [60]
            assert node.decision("minutely", START) == (Verdict.SKIP, Reason.PAUSED)

    run_virtual(story)


def test_a_claimed_run_that_waits_for_a_success_is_skipped_in_the_log() -> None:
    async def story() -> None:
        async with fleet(jobs=(job("minutely", "0 * * * * * *"),)) as f:
            node = await f.node()
            refusal = Decision(Verdict.SKIP, Reason.LAST_NOT_SUCCEEDED)
            node.scheduler.after_success = lambda job: refusal
            await f.until_wall(5)
            assert f.starts == []
            assert node.decision("minutely", START) == (Verdict.SKIP, Reason.LAST_NOT_SUCCEEDED)
            await anyio.sleep(3)
            assert [skip.reason for record in f.records() for skip in record.skips] == ["last-not-succeeded"]
            assert f.starts == []

    run_virtual(story)


def test_late_starts_of_the_sweep_are_bound_by_the_starting_deadline() -> None:
    async def story() -> None:
        late = job("minutely", "0 * * * * * *", startingDeadlineSeconds=20)
        async with fleet(jobs=(late,)) as f:
            first = await f.node("a")
            await f.until_wall(-5)
            first.kill()
            f.nodes.remove(first)
            await f.until_wall(30)
            second = await f.node("b")
            await f.until_wall(65)
            assert [start.at - START for start in f.starts] == [60]
            assert second.decision("minutely", START) == (Verdict.SKIP, Reason.STARTING_DEADLINE)

    run_virtual(story)


@pytest.mark.parametrize(("room", "whole"), [(150, True), (30, False)])
def test_rule_8_a_log_that_is_full_of_the_past_makes_room_for_itself(
    room: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two windows of one claim a second are 120 records: with room for more nothing is lost, with far less it goes on.

    What had to wait is claimed together.
    """
    commit = MemoryLeaseStore.commit_append

    def bounded(self: MemoryLeaseStore, grant: Grant, number: int, record: bytes) -> Appended:
        claims = claim_records.decode(record).starts
        if claims and len(self.lease.records) >= room:
            return Full(None if self.clock is None else self.clock.now().wall)
        return commit(self, grant, number, record)

    monkeypatch.setattr(MemoryLeaseStore, "commit_append", bounded)

    async def story() -> None:
        async with fleet() as f:
            await f.node()
            await f.until_wall(300)
            times = f.times()
            assert len(times) == len(set(times))
            assert (set(times) >= set(range(299))) is whole
            assert max(times) > 200

    run_virtual(story)


def test_a_log_that_stays_full_is_asked_once_in_two_seconds_and_told_once_of_each_occurrence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit, asked, told = MemoryLeaseStore.commit_append, [], Counter[int]()
    has_room = True

    def bounded(self: MemoryLeaseStore, grant: Grant, number: int, record: bytes) -> Appended:
        assert self.clock is not None
        wall = self.clock.now().wall
        if has_room:
            return commit(self, grant, number, record)
        asked.append(wall)
        return Full(wall)

    monkeypatch.setattr(MemoryLeaseStore, "commit_append", bounded)

    async def story() -> None:
        nonlocal has_room
        # Rare enough that there is nothing to be said but the claim itself.
        async with fleet(jobs=(job("third", "*/20 * * * * * *"),)) as f:
            node = await f.node()

            def decided(record: DecisionRecord) -> None:
                if record.decision.reason is Reason.LOG_FULL:
                    told[record.scheduled_at or 0] += 1

            node.launcher.decided = decided
            await f.until_wall(10)
            has_room = False
            await f.until_wall(50)
            has_room = True
            await f.until_wall(60)
            assert 10 <= len(asked) <= 30 / 1.6 + 2
            assert told == {START + 20: 1, START + 40: 1}
            assert [start.at - START for start in f.starts][-2:] == [20, 40]

    run_virtual(story)


def test_prefer_leader_starts_nothing_unclaimed_that_the_log_has() -> None:
    """The sweep may claim and start an occurrence before the scheduler comes to it."""

    async def story() -> None:
        jobs = (job(policy=ClusterPolicy.PREFER_LEADER),)
        async with fleet(jobs=jobs) as f:
            node = await f.node()
            await f.until_wall(1.5)
            assert f.times()[-1] == 1
            assert node.claims.takes(jobs[0], START + 1)
            node.down = True
            await anyio.sleep(12)
            assert any(start.fence is None for start in f.starts)
            assert f.times().count(1) == 1

    run_virtual(story)
