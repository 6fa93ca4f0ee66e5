"""A ``Host`` for tests: every seam in memory, deterministic, and open to inspection."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeVar

from cronstable.core.clock import Clock, Seconds
from cronstable.core.decision import DecisionRecord, DecisionRing
from cronstable.core.events import Event
from cronstable.core.runs import Line, RunRecord
from cronstable.plugin.protocols import (
    Actor,
    Command,
    CommandOutcome,
    Done,
    ElectionContext,
    FileSystem,
    FleetReport,
    HostSnapshot,
    Http,
    HttpResponse,
    ProcessEnd,
    Processes,
    ReloadHealth,
)

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")


class SeededRng:
    """The same numbers for the same seed, on every platform and version."""

    def __init__(self, seed: str = "") -> None:
        self._seed = seed
        self._drawn = 0

    def random(self) -> float:
        """A number in [0, 1)."""
        self._drawn += 1
        digest = hashlib.sha256(f"{self._seed}/{self._drawn}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48


class SeededIds:
    """Identifiers that differ from each other and between seeds, and are the same in every run."""

    def __init__(self, seed: str = "") -> None:
        self._seed = seed
        self._made = 0

    def token(self, nbytes: int = 6) -> str:
        """``nbytes`` as lower-case hex."""
        self._made += 1
        return hashlib.sha256(f"{self._seed}#{self._made}".encode()).hexdigest()[: 2 * nbytes]


class InlineThreads:
    """Runs a blocking call at once, on the loop. ``hang``: lanes whose calls never end (they time out)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.hang: set[str] = set()

    async def run(self, call: Callable[[], T], *, timeout: Seconds, lane: str = "default") -> T:
        """The result of ``call``, or ``TimeoutError`` after ``timeout`` seconds of the host's clock."""
        if lane in self.hang:
            await self._clock.sleep(timeout)
            raise TimeoutError(f"a call on lane {lane} hangs")
        return call()


class NoHttp:
    """A network without anybody on it."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: Seconds,
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        """Refused."""
        raise ConnectionRefusedError(f"{method} {url}: this FakeHost has no http")


class NoProcesses:
    """A machine without a single program."""

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] = MappingProxyType({}), timeout: Seconds
    ) -> ProcessEnd:
        """Not found."""
        raise FileNotFoundError(f"{argv[0]}: this FakeHost has no processes")


class FakeHost:
    """What a factory is given in a test.

    ``name``: the node's name and the seed of its randomness. ``log_lines`` collects (level name, text).
    ``commands``, ``published`` and ``expiries`` collect what was asked of the host; what a test adds to ``ring`` are
    its decisions, what it puts into ``history``, oldest first, its runs.
    Give ``fs``, ``http`` or ``processes`` to code that uses them.
    """

    def __init__(
        self,
        clock: Clock,
        name: str = "node-a",
        *,
        fs: FileSystem | None = None,
        http: Http | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.rng = SeededRng(name)
        self.ids = SeededIds(name)
        self.http: Http = http if http is not None else NoHttp()
        self.threads = InlineThreads(clock)
        self.processes: Processes = processes if processes is not None else NoProcesses()
        self.log_lines: list[tuple[str, str]] = []
        self.log = logging.Logger(f"cronstable.testing.{name}")
        self.log.addHandler(_Collect(self.log_lines))
        self.commands: list[tuple[Command, Actor]] = []
        self.published: list[FleetReport] = []
        self.expiries: dict[str, tuple[tuple[str, float], ...]] = {}
        self.ring = DecisionRing()
        self.history: dict[str, tuple[RunRecord, ...]] = {}
        self._fs = fs

    @property
    def fs(self) -> FileSystem:
        """The file system given at construction."""
        if self._fs is None:
            raise LookupError("this FakeHost was made without a file system: FakeHost(clock, fs=...)")
        return self._fs

    def snapshot(self) -> HostSnapshot:
        """An idle daemon without jobs."""
        wall = self.clock.now().wall
        return HostSnapshot(
            version="2.0.0",
            node_name=self.name,
            at=wall,
            started_at=wall,
            jobs=MappingProxyType({}),
            live=MappingProxyType({}),
            next_fires=MappingProxyType({}),
            history=MappingProxyType({}),
            job_set_id="0" * 64,
            reload=ReloadHealth(ok=True, at=wall, last_success=wall),
        )

    async def events(self, *kinds: type[Event]) -> AsyncIterator[Event]:
        """None, ever."""
        nothing: tuple[Event, ...] = ()
        for event in nothing:
            yield event

    async def output(self, run_id: str, after: int = 0) -> AsyncIterator[Line]:
        """None."""
        nothing: tuple[Line, ...] = ()
        for line in nothing:
            yield line

    def decisions(self, job: str, limit: int = 100) -> Sequence[DecisionRecord]:
        """The newest of ``ring``."""
        return tuple(islice(self.ring.for_job(job), max(0, limit)))

    async def runs(self, job: str, limit: int = 100) -> Sequence[RunRecord]:
        """The newest of what a test put into ``history``."""
        return tuple(reversed(self.history.get(job, ())))[: max(0, limit)]

    async def do(self, command: Command, by: Actor) -> CommandOutcome:
        """Remembered in ``commands``."""
        self.commands.append((command, by))
        return Done()

    def publish(self, fleet: FleetReport) -> None:
        """Remembered in ``published``."""
        self.published.append(fleet)

    def certificates(self, use: str, ends: Sequence[tuple[str, float]]) -> None:
        """Remembered in ``expiries``."""
        self.expiries[use] = tuple(ends)

    async def stored(self, kind: Literal["streams", "documents"], prefix: str = "") -> Sequence[str] | None:
        """None: there is no durable state."""
        return None

    def logged(self, text: str) -> list[str]:
        """The log lines that contain ``text``."""
        return [line for _, line in self.log_lines if text in line]

    def context(self, backend: str = "memory", settings: object = None, job_set_id: str = "0" * 64) -> ElectionContext:
        """An ``ElectionContext`` for this node with nothing configured."""
        return ElectionContext(
            backend=backend,
            node_name=self.name,
            settings=settings,
            cluster=MappingProxyType({}),
            job_set_id=lambda: job_set_id,
        )


class _Collect(logging.Handler):
    def __init__(self, lines: list[tuple[str, str]]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelname, record.getMessage()))
