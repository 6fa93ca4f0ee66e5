"""Deferred @reboot jobs: who runs them, when, and how often, on virtual time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, Job, JobOptions
from cronstable.core.schedule import Schedule
from cronstable.core.view import ClusterView
from cronstable.runtime.reboot import RebootKeeper
from cronstable.testing.clock import VirtualClock, run_virtual

LOG = logging.getLogger("test")
YES, NO = Decision(Verdict.RUN, Reason.LEADER), Decision(Verdict.SKIP, Reason.NOT_LEADER)


def reboot(name: str, policy: ClusterPolicy = ClusterPolicy.LEADER) -> Job:
    return Job(name, "true", Schedule.parse("@reboot", job_name=name, zone=UTC), JobOptions(cluster_policy=policy))


class Ledger:
    """The cluster's memory; ``refuses``: names whose mark somebody else makes first."""

    def __init__(self) -> None:
        self.known: set[str] | None = set()
        self.refuses: set[str] = set()
        self.broken: set[str] = set()

    def reboot_ran(self, job: str) -> bool | None:
        if job in self.broken:
            raise KeyError(job)
        return None if self.known is None else job in self.known

    async def mark_reboot_ran(self, job: str) -> bool:
        if self.known is None or job in self.refuses:
            return False
        self.known.add(job)
        return True


class World:
    """Everything around the keeper; ``gate`` answers for all jobs."""

    def __init__(self, *jobs: Job, elects: bool = True) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.gate = NO
        self.launch_gate: Decision | None = None
        self.ledger: Ledger | None = Ledger()
        self.elects = elects
        self.quorate = True
        self.stopping = False
        self.started: list[str] = []
        self.records: list[tuple[str, Reason]] = []
        seen: Any = self
        self.keeper = RebootKeeper(clock=VirtualClock.of_loop(), scheduler=seen, cluster=seen, launcher=seen, log=LOG)

    def view(self) -> ClusterView:
        return ClusterView("fake", "n", "v1:0", quorate=self.quorate)

    def paused(self, job: Job) -> None:
        return None

    def decide(self, job: Job) -> Decision:
        return self.gate

    def launch(self, job: Job, trigger: object, at: object) -> Decision:
        decision = self.launch_gate or (self.gate if self.elects else YES)
        if decision.verdict is Verdict.RUN:
            self.started.append(job.name)
        return decision

    def record(self, job: Job, at: object, decision: Decision) -> None:
        self.records.append((job.name, decision.reason))


def scenario(world: Callable[[], World], body: Callable[[World], Awaitable[None]]) -> World:
    async def run() -> World:
        made = world()
        made.keeper.boot(made.jobs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.keeper.run)
            await body(made)
            await anyio.sleep(3)
            made.stopping = True
            made.keeper.poke()
        return made

    return run_virtual(run)


async def become_leader(world: World) -> None:
    await anyio.sleep(5)
    world.gate = YES


def test_a_deferred_job_runs_once_and_only_when_the_gate_opens() -> None:
    async def body(world: World) -> None:
        await anyio.sleep(5)
        assert world.started == []
        await become_leader(world)

    world = scenario(lambda: World(reboot("a")), body)
    assert world.started == ["a"]
    assert world.records == [("a", Reason.REBOOT_DEFERRED)]
    assert world.keeper.pending == set()
    assert world.keeper.ran == {"a"}


def test_every_node_and_a_node_without_an_election_do_not_wait() -> None:
    async def body(world: World) -> None:
        await anyio.lowlevel.checkpoint()

    every = scenario(lambda: World(reboot("a", ClusterPolicy.EVERY_NODE)), body)
    alone = scenario(lambda: World(reboot("a"), elects=False), body)
    assert alone.started == ["a"]
    assert every.keeper.pending == frozenset()


def test_what_another_node_ran_is_dropped() -> None:
    async def body(world: World) -> None:
        assert world.ledger is not None
        world.ledger.known = {"a"}
        await become_leader(world)

    world = scenario(lambda: World(reboot("a")), body)
    assert world.started == []
    assert world.records[-1] == ("a", Reason.REBOOT_ALREADY_RAN)


def test_a_leader_that_does_not_know_what_ran_waits_until_it_does() -> None:
    async def body(world: World) -> None:
        assert world.ledger is not None
        world.ledger.known = None
        await become_leader(world)
        await anyio.sleep(30)
        assert world.started == []
        world.ledger.known = set()

    assert scenario(lambda: World(reboot("a")), body).started == ["a"]


def test_a_mark_that_is_refused_starts_nothing() -> None:
    async def body(world: World) -> None:
        assert world.ledger is not None
        world.ledger.refuses = {"a"}
        await become_leader(world)

    world = scenario(lambda: World(reboot("a"), reboot("b")), body)
    assert world.started == ["b"]
    assert world.keeper.pending == {"a"}


def test_prefer_leader_runs_unrecorded_while_the_store_cannot_be_asked() -> None:
    async def body(world: World) -> None:
        assert world.ledger is not None
        world.ledger.known, world.quorate = None, False
        await become_leader(world)

    assert scenario(lambda: World(reboot("a", ClusterPolicy.PREFER_LEADER)), body).started == ["a"]


def test_a_job_that_is_absent_for_a_while_keeps_its_place() -> None:
    async def body(world: World) -> None:
        kept = world.jobs.pop("a")
        await become_leader(world)
        await anyio.sleep(5)
        assert world.keeper.pending == {"a"}
        world.jobs["a"] = replace(kept, command="false")

    assert scenario(lambda: World(reboot("a")), body).started == ["a"]


def test_a_start_that_the_last_look_at_the_gate_forbids_does_not_count_as_a_run() -> None:
    async def body(world: World) -> None:
        world.launch_gate = NO
        await become_leader(world)

    world = scenario(lambda: World(reboot("a")), body)
    assert (world.started, world.keeper.ran) == ([], frozenset())


def test_a_ledger_that_fails_for_one_job_costs_that_job_a_wait_and_the_daemon_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(world: World) -> None:
        assert world.ledger is not None
        world.ledger.broken = {"a"}
        await become_leader(world)
        await anyio.sleep(20)
        assert world.started == ["b"]
        world.ledger.broken = set()

    world = scenario(lambda: World(reboot("a"), reboot("b")), body)
    assert world.started == ["b", "a"]
    assert caplog.text.count("cannot be found out") == 1
