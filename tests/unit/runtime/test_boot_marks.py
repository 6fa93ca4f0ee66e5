"""@reboot once for each boot of the operating system: daemons that are started again and again in one boot."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any, TypeVar

import anyio
import pytest

from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, Job, JobOptions, Json
from cronstable.core.records import WriteKind
from cronstable.core.schedule import Schedule
from cronstable.runtime.boot_marks import BootMarks
from cronstable.runtime.reboot import RebootKeeper
from cronstable.testing.clock import VirtualClock, run_virtual

LOG = logging.getLogger("test")
T = TypeVar("T")


def reboot(name: str = "a", *, command: str = "true", policy: ClusterPolicy = ClusterPolicy.LEADER) -> Job:
    return Job(name, command, Schedule.parse("@reboot", job_name=name, zone=UTC), JobOptions(cluster_policy=policy))


@dataclass
class Machine:
    """A host with its store. ``boot``: what the kernel says; None: it says nothing."""

    boot: str | None = "11111111-aaaa"
    streams: dict[str, list[Mapping[str, Json]]] = field(default_factory=dict)
    reads: bool = True
    writes: bool = True
    fail_closed: bool = False
    configured: bool = True
    shared: bool = False
    survivors: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)
    records: list[tuple[str, Reason]] = field(default_factory=list)
    marked_before: list[int] = field(default_factory=list)

    async def append(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> bool:
        await anyio.sleep(0.1)
        if self.writes:
            self.streams.setdefault(stream, []).append(data)
        return self.writes

    async def read(self, stream: str, *, limit: int | None = None) -> Sequence[Mapping[str, Json]] | None:
        return self.streams.get(stream, []) if self.reads else None

    # the file system, and a thread to call it in

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if self.boot is None:
            raise FileNotFoundError(path)
        assert path == "/proc/sys/kernel/random/boot_id"
        return 3

    def read_file(self, fd: int, n: int) -> bytes:
        return (self.boot or "").encode() + b"\n"

    def close(self, fd: int) -> None:
        pass

    async def run(self, call: Callable[[], T], *, timeout: float, lane: str = "default") -> T:
        return call()


class _Files:
    def __init__(self, machine: Machine) -> None:
        self.open, self.read, self.close = machine.open, machine.read_file, machine.close


class Daemon:
    """One daemon on the machine, from its start until it is told to stop."""

    def __init__(self, machine: Machine, *jobs: Job, node: str = "n", elects: bool = False) -> None:
        self.machine = machine
        self.jobs = {job.name: job for job in jobs}
        self.elects = elects
        self.stopping = False
        self.pauses: set[str] = set()
        self.ledger = None
        me: Any = self
        files: Any = _Files(machine)
        self.keeper = RebootKeeper(clock=VirtualClock.of_loop(), scheduler=me, cluster=me, launcher=me, log=LOG)
        self.keeper.marks = BootMarks(
            keeper=machine,
            clock=VirtualClock.of_loop(),
            fs=files,
            threads=machine,
            node=lambda: node,
            survives=lambda name: name in machine.survivors,
        )

    def view(self) -> None:
        return None

    def paused(self, job: Job) -> Decision | None:
        return Decision(Verdict.SKIP, Reason.PAUSED) if job.name in self.pauses else None

    def decide(self, job: Job) -> Decision:
        return Decision(Verdict.SKIP, Reason.NOT_LEADER)

    def launch(self, job: Job, trigger: object, at: object) -> Decision:
        self.machine.started.append(job.name)
        self.machine.marked_before.append(len(self.machine.streams.get(f"reboot/{job.name}", [])))
        return Decision(Verdict.RUN, Reason.NO_ELECTION)

    def record(self, job: Job, at: object, decision: Decision) -> None:
        self.machine.records.append((job.name, decision.reason))

    async def live(self, body: Callable[[Daemon], Awaitable[None]] | None = None) -> None:
        self.keeper.boot(self.jobs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.keeper.run)
            if body is not None:
                await body(self)
            await anyio.sleep(5)
            self.stopping = True
            self.keeper.poke()


def live(machine: Machine, *daemons: Callable[[], Daemon]) -> Machine:
    async def run() -> None:
        for make in daemons:
            await make().live()

    run_virtual(run)
    return machine


def test_a_daemon_that_is_started_again_in_the_same_boot_does_not_run_it_again() -> None:
    machine = Machine()
    live(machine, *[lambda: Daemon(machine, reboot())] * 3)
    assert machine.started == ["a"]
    assert machine.records == [("a", Reason.REBOOT_ALREADY_RAN)] * 2


def test_the_marker_stands_before_the_run_starts() -> None:
    machine = Machine()
    live(machine, lambda: Daemon(machine, reboot()))
    assert machine.marked_before == [1]


def test_the_next_boot_runs_it_again() -> None:
    machine = Machine()
    live(machine, lambda: Daemon(machine, reboot()))
    machine.boot = "22222222-bbbb"
    live(machine, lambda: Daemon(machine, reboot()))
    assert machine.started == ["a", "a"]


def test_another_definition_and_another_host_have_runs_of_their_own() -> None:
    machine = Machine(shared=True)
    live(
        machine,
        lambda: Daemon(machine, reboot()),
        lambda: Daemon(machine, reboot(command="other")),
        lambda: Daemon(machine, reboot(), node="m"),
        lambda: Daemon(machine, reboot(), node="n"),
    )
    assert machine.started == ["a", "a", "a"]


def test_every_node_jobs_have_the_same_marker_under_an_election_and_the_others_wait_for_an_owner() -> None:
    machine = Machine()
    every = reboot("every", policy=ClusterPolicy.EVERY_NODE)
    for _ in range(2):
        live(machine, lambda: Daemon(machine, every, reboot("leader"), elects=True))
    assert machine.started == ["every"]
    assert list(machine.streams) == ["reboot/every"]


@pytest.mark.parametrize("trouble", [{"reads": False}, {"writes": False}, {"boot": None}, {"boot": "no such thing"}])
@pytest.mark.parametrize("fail_closed", [False, True])
def test_what_cannot_be_verified_runs_or_is_skipped_as_configured(trouble: dict[str, Any], fail_closed: bool) -> None:
    machine = Machine(fail_closed=fail_closed, **trouble)
    live(machine, lambda: Daemon(machine, reboot()))
    assert machine.started == ([] if fail_closed else ["a"])
    assert machine.records == ([("a", Reason.STORE_UNAVAILABLE)] if fail_closed else [])


def test_a_process_that_survived_the_daemon_before_is_this_boots_run() -> None:
    machine = Machine(survivors={"a"})
    live(machine, lambda: Daemon(machine, reboot()))
    assert machine.started == []
    # Also once it is gone.
    machine.survivors.clear()
    live(machine, lambda: Daemon(machine, reboot()))
    assert machine.started == []
    assert machine.streams["reboot/a"][0]["survived"] is True


def test_a_pause_at_boot_defers_the_run_and_burns_no_marker() -> None:
    machine = Machine()

    async def body(daemon: Daemon) -> None:
        await anyio.sleep(60)
        assert (machine.started, machine.streams) == ([], {})
        assert daemon.keeper.pending == {"a"}
        daemon.pauses.clear()

    async def run() -> None:
        daemon = Daemon(machine, reboot())
        daemon.pauses.add("a")
        await daemon.live(body)

    run_virtual(run)
    assert machine.started == ["a"]


def test_without_a_store_each_start_of_the_daemon_runs_it() -> None:
    machine = Machine(configured=False)
    live(machine, *[lambda: Daemon(machine, reboot())] * 2)
    assert machine.started == ["a", "a"]


@pytest.mark.parametrize("gone", [True, False])
def test_a_job_that_changes_while_it_waits_is_dropped_or_keeps_its_place(gone: bool) -> None:
    machine = Machine()

    async def body(daemon: Daemon) -> None:
        await anyio.sleep(5)
        kept = daemon.jobs.pop("a")
        daemon.pauses.clear()
        await anyio.sleep(5)
        assert daemon.keeper.pending == {"a"}
        daemon.jobs["a"] = replace(kept, options=replace(kept.options, enabled=not gone))

    async def run() -> None:
        daemon = Daemon(machine, reboot())
        daemon.pauses.add("a")
        await daemon.live(body)
        assert daemon.keeper.pending == set()

    run_virtual(run)
    assert machine.started == ([] if gone else ["a"])
