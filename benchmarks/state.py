"""What durable state costs: the history of a large job set at the start, and the records of a run.

Run: python benchmarks/state.py [JOBS [ROWS [WHERE]]]

WHERE: a directory that is kept, and filled only when nothing is in it; ``etcd`` for a member of its own (Debian's
etcd-server); left out, a directory that is removed afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Protocol

import anyio
import cronstable_etcd.settings
import cronstable_etcd.state
import cronstable_fs.state
import cronstable_fs.state_settings
from cronstable_etcd import wire
from cronstable_etcd.client import Client
from cronstable_etcd.gateway import Gateway
from cronstable_etcd.layout import Layout, name_of
from cronstable_etcd.tls import Tls
from cronstable_fs.state_layout import StateLayout

from cronstable.config.model import StateConfig
from cronstable.core.decision import Decision, DecisionRing, Reason, Verdict
from cronstable.core.job import Job, JobOptions, Json
from cronstable.core.records import encode, run_row, stream
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.store import StoreUnavailable
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.plugin.protocols import Actor, Command, CommandOutcome, Host, HostSnapshot, Http, Refused
from cronstable.plugin.state_store import StateStore
from cronstable.runtime.bus import EventBus
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.history import RunHistory
from cronstable.runtime.host import DaemonHost, Seams
from cronstable.runtime.http import HttpxClient
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


def host_with(files: SystemFiles, http: Http) -> DaemonHost:
    """A host on the real machine."""
    seams = Seams(SystemClock(), SystemRng(), SystemIds(), files, http, ThreadLanes(), NoProcesses())
    host = DaemonHost(seams=seams, log=LOG, bus=EventBus(LOG), hub=OutputHub())

    def no_snapshot() -> HostSnapshot:
        raise LookupError("there is no daemon")

    host.connect(no_snapshot, _refuse, DecisionRing(1), _no_runs)
    return host


async def _refuse(command: Command, by: Actor) -> CommandOutcome:
    return Refused("there is no daemon")


async def _no_runs(job: str, limit: int) -> Sequence[RunRecord]:
    return ()


class Where(Protocol):
    """A store that can be filled."""

    name: str
    make: Callable[[object, Host], StateStore]
    settings: object
    section: Mapping[str, Json]

    def http(self) -> Http: ...
    def is_empty(self) -> bool: ...
    async def fill(self, names: Sequence[str], rows: int) -> None:
        """Rows of runs that were."""
        ...


class Node:
    """What a daemon has of it."""

    def __init__(self, where: Where, jobs: dict[str, Job]) -> None:
        self.host = host_with(SystemFiles(), where.http())
        self.keeper = StateKeeper(
            make=lambda policy, host: where.make(policy.settings, host),
            host=self.host,
            clock=self.host.clock,
            rng=self.host.rng,
            log=LOG,
        )
        backend = StateStoreBackend(name=where.name, factory="x:y")
        self.keeper.configure(StateConfig(backend, where.settings, where.section))
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


def row_of(name: str, number: int) -> bytes:
    """What a run of a minute ago, or of many, left."""
    key = RunKey(f"{name}-{number}", name, number * 60)
    return encode(run_row(RunRecord(key, Outcome.SUCCESS, 0, number * 60.0, number * 60.0 + 1, 1.0), "node"))


class Directory:
    """A store of its own on a local disk."""

    name = "filesystem"
    make = staticmethod(cronstable_fs.state.make)

    def __init__(self, path: str) -> None:
        self.section = {"path": path}
        self.settings = cronstable_fs.state_settings.parse_state(self.section)
        self._layout = StateLayout.of(path, "default")

    def http(self) -> Http:
        """None is needed."""
        return NoHttp()

    def is_empty(self) -> bool:
        """Nothing was put there by an earlier run."""
        return not os.path.exists(self._layout.records)

    async def fill(self, names: Sequence[str], rows: int) -> None:
        """Most jobs get links to the records of others: ten million files would take 40 GB."""
        await self._write(names[:ORIGINALS], rows)
        originals = [self._layout.stream(stream("runs", name)) for name in names[:ORIGINALS]]
        listed = [os.listdir(original) for original in originals]
        for number, name in enumerate(names[ORIGINALS:]):
            copy, original = self._layout.stream(stream("runs", name)), originals[number % ORIGINALS]
            os.mkdir(copy, 0o700)
            for record in listed[number % ORIGINALS]:
                os.link(os.path.join(original, record), os.path.join(copy, record))

    async def _write(self, names: Sequence[str], rows: int) -> None:
        store = self.make(self.settings, host_with(Careless(), NoHttp()))
        await store.open()
        waiting = iter(names)

        async def write_all() -> None:
            for name in waiting:
                for number in range(rows):
                    await store.append(stream("runs", name), row_of(name, number))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(write_all)
        await store.aclose()


class Etcd:
    """A member with the quota that etcd's makers advise as the largest."""

    name = "etcd"
    make = staticmethod(cronstable_etcd.state.make)

    def __init__(self, path: str) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in _ports(2))
        self.section: dict[str, Json] = {"endpoints": [client], "prefix": "benchmark"}
        self.settings = cronstable_etcd.settings.parse_state(self.section)
        command = ["etcd", "--name", "m", "--data-dir", path, "--log-level", "error"]
        command += ["--quota-backend-bytes", "8000000000"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
        self._database = Path(path) / "member" / "snap" / "db"
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=-3)

    def http(self) -> Http:
        """The real one."""
        return HttpxClient()

    def is_empty(self) -> bool:
        """It was just made."""
        return True

    async def fill(self, names: Sequence[str], rows: int) -> None:
        """As the store would leave it, a hundred records in a transaction."""
        host = host_with(SystemFiles(), self.http())
        tls = Tls(self.settings.tls, host, "benchmark")
        client = Client(host, Gateway(host, self.settings.endpoints, post_timeout=30, tls=tls))
        store = self.make(self.settings, host)
        while True:
            with contextlib.suppress(StoreUnavailable):
                await store.open()
                break
            await anyio.sleep(0.2)
        layout, waiting = Layout.of("benchmark"), iter(names)

        async def write_all() -> None:
            for name in waiting:
                runs = stream("runs", name)
                for first in range(0, rows, 100):
                    numbers = range(first, min(rows, first + 100))
                    found = [(layout.record(runs, name_of(n + 1)), b"benchmarking " + row_of(name, n)) for n in numbers]
                    await client.transact((), [wire.put(key, value) for key, value in found])
                await client.transact((), (wire.put(layout.end_of(runs), b"%d" % rows),))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(write_all)
        size = self._database.stat().st_size
        print(f"etcd: {size / 2**20:.0f} MiB, {size / len(names) / rows:.0f} bytes a record; {self._memory():.0f} MiB")

    def _memory(self) -> float:
        return resident(self._process.pid)

    def stop(self) -> None:
        """For good."""
        self._process.kill()
        self._process.wait()


async def start(where: Where, jobs: dict[str, Job], rows: int) -> None:
    """How long the first decisions wait, and how long it takes until the history is complete."""
    node, worst, size = Node(where, jobs), 0.0, resident(os.getpid())
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
        whole, spent = time.monotonic(), time.process_time() - cpu
        grown = resident(os.getpid()) - size
        names = list(jobs)
        listing = await timed(node.keeper.streams)
        page = await timed(lambda: node.history.runs(names[0], 20))
        all_of_one = await timed(lambda: node.history.runs(names[0], rows))
        tasks.cancel_scope.cancel()
    print(
        f"start with {len(jobs)} jobs of {rows} rows: open {opened - begun:.3f} s, in flight {ready - opened:.3f} s; "
        f"history in the background {whole - ready:.1f} s, {spent:.1f} s CPU, loop late by {1000 * worst:.0f} ms at "
        f"most, {grown:.0f} MiB more; list the streams {listing:.0f} ms, 20 rows of a job {page:.1f} ms, "
        f"{rows} rows {all_of_one:.0f} ms"
    )


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds, the shortest of five."""
    found = []
    for _ in range(5):
        begun = time.monotonic()
        await call()
        found.append(1000 * (time.monotonic() - begun))
    return min(found)


async def runs(where: Where, jobs: dict[str, Job]) -> None:
    """The records of runs until they are durable: the first of each job in this process, and those that follow."""
    node = Node(where, jobs)
    async with anyio.create_task_group() as tasks:
        node.launcher.bind(tasks)
        tasks.start_soon(node.keeper.run)
        await node.keeper.settled(30)
        names = list(jobs)[:RUNS]
        for title in ("first", "next", "next"):
            written = _appends(node)
            begun, cpu = time.monotonic(), time.process_time()
            for number in range(RUNS):
                job = jobs[names[number % len(names)]]
                node.launcher.start(job, RUN, scheduled_at=number, trigger=Trigger.SCHEDULE, recheck=lambda: RUN)
            await node.launcher.idle()
            launched = time.monotonic()
            await node.keeper.flush(600)
            ended, used = time.monotonic(), time.process_time() - cpu
            print(
                f"{title} {RUNS} runs: {(_appends(node) - written) / RUNS:.1f} records a run, "
                f"{1000 * (ended - begun) / RUNS:.2f} ms and {1000 * used / RUNS:.2f} ms CPU a run until they are "
                f"durable; the launches themselves took {launched - begun:.2f} s"
            )
        tasks.cancel_scope.cancel()


def _appends(node: Node) -> int:
    status = node.keeper.status()
    counted = status.operations.get("append") if status is not None else None
    return counted.count if counted is not None else 0


def resident(pid: int) -> float:
    """MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found is not None else 0.0


def _ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextlib.contextmanager
def place(argument: str | None) -> Iterator[Where]:
    """The store that was asked for."""
    if argument not in (None, "etcd"):
        yield Directory(argument)
        return
    with tempfile.TemporaryDirectory() as path:
        if argument is None:
            yield Directory(path)
            return
        etcd = Etcd(path)
        try:
            yield etcd
        finally:
            etcd.stop()


def main() -> None:
    """Fill a store and measure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    daily = Schedule.parse("@daily", job_name="job", zone=UTC)
    options = JobOptions()
    jobs = {name: Job(name, "true", daily, options) for name in (f"job-{number}" for number in range(count))}
    with place(sys.argv[3] if len(sys.argv) > 3 else None) as where:
        if where.is_empty():
            begun = time.monotonic()
            anyio.run(where.fill, list(jobs), rows)
            print(f"filled in {time.monotonic() - begun:.0f} s")
        anyio.run(start, where, jobs, rows)
        anyio.run(runs, where, jobs)


if __name__ == "__main__":
    main()
