"""What durable state costs on a directory: the history of a large job set at the start, and the records of a run.

Run: python benchmarks/state.py [JOBS [ROWS]]
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC

import anyio
from cronstable_fs.state import make
from cronstable_fs.state_layout import StateLayout
from cronstable_fs.state_settings import parse_state

from cronstable.config.model import StateConfig
from cronstable.core.decision import Decision, DecisionRing, Reason, Verdict
from cronstable.core.job import Job, JobOptions
from cronstable.core.records import encode, run_row, stream
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.plugin.protocols import Actor, Command, CommandOutcome, HostSnapshot, Refused
from cronstable.runtime.bus import EventBus
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.history import RunHistory
from cronstable.runtime.host import DaemonHost, Seams
from cronstable.runtime.inflight import InFlight
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.process_table import ProcTable
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.state import StateKeeper
from cronstable.runtime.system import SystemClock, SystemIds, SystemRng
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.host import NoHttp, NoProcesses

RUNS = 1000
ORIGINALS = 20
"""Jobs whose records are written one by one."""
RUN = Decision(Verdict.RUN, Reason.NO_ELECTION)
LOG = logging.getLogger("benchmark")


class Careless(SystemFiles):
    """Fills the store: what is only read afterwards need not be on the disk."""

    def fsync(self, fd: int) -> None:
        """Not."""


def host_with(files: SystemFiles) -> DaemonHost:
    """A host on the real machine."""
    seams = Seams(SystemClock(), SystemRng(), SystemIds(), files, NoHttp(), ThreadLanes(), NoProcesses())
    host = DaemonHost(seams=seams, log=LOG, bus=EventBus(LOG), hub=OutputHub())

    def no_snapshot() -> HostSnapshot:
        raise LookupError("there is no daemon")

    host.connect(no_snapshot, _refuse, DecisionRing(1), _no_runs)
    return host


async def _refuse(command: Command, by: Actor) -> CommandOutcome:
    return Refused("there is no daemon")


async def _no_runs(job: str, limit: int) -> Sequence[RunRecord]:
    return ()


class Node:
    """What a daemon has of it."""

    def __init__(self, path: str, jobs: dict[str, Job]) -> None:
        self.host = host_with(SystemFiles())
        self.keeper = StateKeeper(
            make=lambda policy, host: make(policy.settings, host),
            host=self.host,
            clock=self.host.clock,
            rng=self.host.rng,
            log=LOG,
        )
        settings = parse_state({"path": path})
        self.keeper.configure(StateConfig(StateStoreBackend(name="filesystem", factory="x:y"), settings, {}))
        self.launcher = Launcher(
            execute=self._execute,
            clock=self.host.clock,
            ids=self.host.ids,
            bus=EventBus(LOG),
            hub=OutputHub(),
            log=LOG,
            node="node",
            decisions=DecisionRing(),
        )
        clock = self.host.clock
        self.history = RunHistory(keeper=self.keeper, launcher=self.launcher, clock=clock, jobs=lambda: jobs, log=LOG)
        self.inflight = InFlight(
            keeper=self.keeper,
            launcher=self.launcher,
            history=self.history,
            table=ProcTable(),
            clock=clock,
            ids=self.host.ids,
            jobs=lambda: jobs,
            hostname="host",
            pid=os.getpid(),
            log=LOG,
        )
        self.launcher.listeners = (self.inflight,)

    async def _execute(self, request: RunRequest, on_started: object, permit: object) -> RunRecord:
        assert callable(permit)
        assert callable(on_started)
        permit()
        now = self.host.clock.now().wall
        on_started(LiveRun(request.key, os.getpid(), now))
        return RunRecord(request.key, Outcome.SUCCESS, 0, now, now + 0.01, 0.01)


async def fill(path: str, jobs: dict[str, Job], rows: int) -> None:
    """Rows of runs that were. Most jobs get links to the records of others: ten million files would take 40 GB."""
    names = list(jobs)
    await write(path, names[:ORIGINALS], rows)
    layout = StateLayout.of(path, "default")
    originals = [layout.stream(stream("runs", name)) for name in names[:ORIGINALS]]
    listed = [os.listdir(original) for original in originals]
    for number, name in enumerate(names[ORIGINALS:]):
        copy, original = layout.stream(stream("runs", name)), originals[number % ORIGINALS]
        os.mkdir(copy, 0o700)
        for record in listed[number % ORIGINALS]:
            os.link(os.path.join(original, record), os.path.join(copy, record))


async def write(path: str, names: Sequence[str], rows: int) -> None:
    """Rows through the store."""
    store = make(parse_state({"path": path}), host_with(Careless()))
    await store.open()
    waiting = iter(names)

    async def write_all() -> None:
        for name in waiting:
            for number in range(rows):
                key = RunKey(f"{name}-{number}", name, number * 60)
                record = RunRecord(key, Outcome.SUCCESS, 0, number * 60.0, number * 60.0 + 1, 1.0)
                await store.append(stream("runs", name), encode(run_row(record, "node")))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(write_all)
    await store.aclose()


async def start(path: str, jobs: dict[str, Job], rows: int) -> None:
    """How long the first decisions wait, and how long it takes until the history is complete."""
    node, worst = Node(path, jobs), 0.0
    begun, cpu = time.monotonic(), time.process_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.keeper.run)
        await node.keeper.settled(30)
        opened = time.monotonic()
        node.inflight.bind(tasks)
        await node.inflight.settled(30)
        ready = time.monotonic()
        tasks.start_soon(node.history.run)
        while len(node.launcher.history()) < len(jobs):
            before = time.monotonic()
            await anyio.sleep(0.05)
            worst = max(worst, time.monotonic() - before - 0.05)
        whole = time.monotonic()
        begin = time.monotonic()
        listed = await node.history.runs(next(iter(jobs)), rows)
        one = time.monotonic() - begin
        tasks.cancel_scope.cancel()
    print(
        f"start with {len(jobs)} jobs of {rows} rows: open {opened - begun:.3f} s, in flight {ready - opened:.3f} s, "
        f"history in the background {whole - ready:.1f} s ({time.process_time() - cpu:.1f} s CPU, loop late by "
        f"{1000 * worst:.0f} ms at most); {len(listed)} rows of one job {1000 * one:.1f} ms"
    )


async def runs(path: str, jobs: dict[str, Job]) -> None:
    """The records of runs: what a run writes in all, on the disk."""
    node = Node(path, jobs)
    async with anyio.create_task_group() as tasks:
        node.launcher.bind(tasks)
        tasks.start_soon(node.keeper.run)
        await node.keeper.settled(30)
        names = list(jobs)
        begun, cpu = time.monotonic(), time.process_time()
        for number in range(RUNS):
            job = jobs[names[number % len(names)]]
            node.launcher.start(job, RUN, scheduled_at=number, trigger=Trigger.SCHEDULE, recheck=lambda: RUN)
        await node.launcher.idle()
        launched = time.monotonic()
        await node.keeper.flush(600)
        written = time.monotonic()
        status = node.keeper.status()
        appended = 0 if status is None else status.operations["append"].count
        tasks.cancel_scope.cancel()
    print(
        f"{RUNS} runs: {appended / RUNS:.1f} records a run, {1000 * (written - begun) / RUNS:.2f} ms and "
        f"{1000 * (time.process_time() - cpu) / RUNS:.2f} ms CPU a run until they are on the disk; the launches "
        f"themselves took {launched - begun:.2f} s"
    )


def main() -> None:
    """Fill a store and measure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    daily = Schedule.parse("@daily", job_name="job", zone=UTC)
    options = JobOptions()
    jobs = {name: Job(name, "true", daily, options) for name in (f"job-{number}" for number in range(count))}
    with tempfile.TemporaryDirectory() as path:
        begun = time.monotonic()
        anyio.run(fill, path, jobs, rows)
        print(f"filled in {time.monotonic() - begun:.0f} s")
        anyio.run(start, path, jobs, rows)
        anyio.run(runs, path, jobs)


if __name__ == "__main__":
    main()
