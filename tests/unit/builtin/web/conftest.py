"""A host that only remembers what it was asked, and a plain HTTP client that sends exactly what it is told."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from cronstable.api import (
    Actor,
    Command,
    CommandOutcome,
    DecisionRecord,
    Done,
    Event,
    HostSnapshot,
    Instant,
    Job,
    JobOptions,
    Line,
    NoSuchJob,
    ReloadHealth,
    RunRecord,
    Schedule,
)
from cronstable.builtin.web import streams
from cronstable.builtin.web.service import make
from cronstable.builtin.web.settings import parse
from cronstable.core.last_run import last_run
from cronstable.runtime.bus import EventBus
from cronstable.runtime.output import OutputHub
from cronstable.testing.host import SeededIds

NOON = 1_800_000_000.0
DEADLINE = 20.0


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.wall = NOON
        self.boot = 1000.0
        self.moved = anyio.Event()

    def now(self) -> Instant:
        return Instant(self.wall, self.boot)

    async def sleep(self, seconds: float) -> None:
        until = self.boot + seconds
        while self.boot < until:
            await self.moved.wait()

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds
        moved, self.moved = self.moved, anyio.Event()
        moved.set()


class RealThreads:
    async def run(self, call: Callable[[], Any], *, timeout: float, lane: str = "default") -> Any:
        with anyio.fail_after(timeout):
            return await anyio.to_thread.run_sync(call)


class Files:
    """Files by their path, for reading alone."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.mounted: str | None = None
        self._opened: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if path not in self.texts:
            raise FileNotFoundError(path)
        self._opened[len(self._opened) + 100] = path
        return len(self._opened) + 99

    def read(self, fd: int, n: int) -> bytes:
        return self.texts[self._opened[fd]].encode()[:n]

    def mounts(self) -> str | None:
        return self.mounted

    def close(self, fd: int) -> None:
        assert fd in self._opened


class FakeHost:
    """What the API sees of a daemon.

    ``answers`` are the outcomes of commands, by their type's name; ``then`` is what happens after them.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.threads = RealThreads()
        self.log = logging.getLogger("cronstable.test.web")
        self.commands: list[tuple[Command, Actor]] = []
        self.answers: dict[str, CommandOutcome] = {}
        self.then: dict[str, Sequence[Event]] = {}
        self.decided: list[DecisionRecord] = []
        self.broken = False
        self.stuck = False
        self.ids = SeededIds("node-a")
        self.bus = EventBus(self.log)
        self.hub = OutputHub()
        self.fs = Files()
        self.rows: dict[str, tuple[RunRecord, ...]] = {}
        self.names: dict[str, list[str]] | None = None
        self.state = HostSnapshot(
            version="2.0.0",
            node_name="node-a",
            at=NOON,
            started_at=NOON - 60,
            jobs=MappingProxyType({}),
            live=MappingProxyType({}),
            next_fires=MappingProxyType({}),
            history=MappingProxyType({}),
            job_set_id="v1:" + "a" * 64,
            reload=ReloadHealth(ok=True, at=NOON - 60, last_success=NOON - 60),
        )

    def set(self, **changes: Any) -> None:
        """Change the snapshot; what rows say of the last run it says too."""
        if "history" in changes:
            known = {name: last_run(None, rows) for name, rows in changes["history"].items()}
            changes.setdefault("last_runs", {name: last for name, last in known.items() if last is not None})
        self.state = dataclasses.replace(self.state, **changes)

    def add(self, *jobs: Job, due: float | None = 90) -> None:
        """Add jobs; enabled ones with a time schedule are due in ``due`` seconds (None: never)."""
        fires = {
            job.name: None if due is None else int(NOON + due)
            for job in jobs
            if job.options.enabled and not job.schedule.reboot
        }
        self.set(
            jobs={**self.state.jobs, **{job.name: job for job in jobs}},
            next_fires={**self.state.next_fires, **fires},
        )

    def snapshot(self) -> HostSnapshot:
        if self.broken:
            raise RuntimeError("a secret detail")
        return dataclasses.replace(self.state, at=self.clock.wall)

    def decisions(self, job: str, limit: int = 100) -> Sequence[DecisionRecord]:
        return [record for record in reversed(self.decided) if record.job == job][:limit]

    async def runs(self, job: str, limit: int = 100) -> Sequence[RunRecord]:
        """What a test put into ``rows``, newest first, or what the snapshot has."""
        return tuple(reversed(self.rows.get(job) or self.state.history.get(job, ())))[:limit]

    async def stored(self, kind: str, prefix: str = "") -> Sequence[str] | None:
        return None if self.names is None else [name for name in self.names[kind] if name.startswith(prefix)]

    def events(self, *kinds: type[Event]) -> AsyncIterator[Event]:
        return self.bus.subscribe(*kinds)

    def output(self, run_id: str, after: int = 0) -> AsyncIterator[Line]:
        return self.hub.read(run_id, after)

    async def do(self, command: Command, by: Actor) -> CommandOutcome:
        self.commands.append((command, by))
        await (anyio.sleep_forever() if self.stuck else anyio.lowlevel.checkpoint())
        for event in self.then.get(type(command).__name__, ()):
            asyncio.get_running_loop().call_soon(self.bus.emit, event)
        answer = self.answers.get(type(command).__name__)
        if answer is not None:
            return answer
        name = getattr(command, "job", None)
        return NoSuchJob(name) if name is not None and name not in self.state.jobs else Done("run-1")


@dataclasses.dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One request per connection, to an address given as ``(host, port)`` or the path of a unix socket."""

    def __init__(self, address: tuple[str, int] | str, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self.tls = tls

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.address, str):
            return await asyncio.open_unix_connection(self.address)
        return await asyncio.open_connection(*self.address, ssl=self.tls, limit=1 << 24)

    async def raw(self, request: bytes) -> Reply:
        with anyio.fail_after(DEADLINE):
            reader, writer = await self.open()
            try:
                writer.write(request)
                answer = await reader.read()
            finally:
                writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Reply(int(first.split()[1]), headers, body)

    async def __call__(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        lines = {"Host": "localhost", "Connection": "close", **(headers or {})}
        if body:
            lines.setdefault("Content-Length", str(len(body)))
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
        return await self.raw(head.encode("utf-8") + body)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    # The clock is the test's to move: streams must not wait for it between two chunks.
    monkeypatch.setattr(streams, "PACE", 0.0)
    return FakeHost()


@pytest.fixture
def make_job() -> Callable[..., Job]:
    def job(
        name: str,
        schedule: str = "0 3 * * *",
        command: str | tuple[str, ...] = "true",
        zone: str = "UTC",
        **options: Any,
    ) -> Job:
        if zone != "UTC":
            options["timezone"] = zone
        return Job(name, command, Schedule.parse(schedule, job_name=name, zone=ZoneInfo(zone)), JobOptions(**options))

    return job


@pytest.fixture
def port(free_ports: Callable[[int], list[int]]) -> int:
    return free_ports(1)[0]


@pytest.fixture
def client_for() -> type[Client]:
    return Client


@pytest.fixture
def run_service() -> Callable[..., AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def running(host: FakeHost, section: dict[str, Any]) -> AsyncIterator[None]:
        service = make(parse(section), host)  # type: ignore[arg-type]  # the API uses no more of a host than this
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                await tasks.start(lambda *, task_status: service.run(host, task_status=task_status))  # type: ignore[arg-type]
                yield
                tasks.cancel_scope.cancel()

    return running


@pytest.fixture
def serve(
    host: FakeHost, port: int, run_service: Callable[..., AbstractAsyncContextManager[None]]
) -> Callable[..., AbstractAsyncContextManager[Client]]:
    """The API on a free port of the loopback address; keys of the section as keyword arguments."""

    @asynccontextmanager
    async def serving(**section: Any) -> AsyncIterator[Client]:
        async with run_service(host, {"listen": [f"http://127.0.0.1:{port}"], **section}):
            yield Client(("127.0.0.1", port))

    return serving


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A directory whose path is short enough for a unix socket."""

    with tempfile.TemporaryDirectory(prefix="cw") as path:
        yield Path(path)
