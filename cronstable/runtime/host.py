"""The host as plugins see it: the seams, a snapshot, events, and commands."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Literal, TypeAlias

from cronstable.core.clock import Clock, Seconds
from cronstable.core.decision import DecisionRecord, DecisionRing, settled
from cronstable.core.events import Event
from cronstable.core.runs import Line, RunRecord
from cronstable.core.values import dataclass
from cronstable.plugin.protocols import (
    Actor,
    Command,
    CommandOutcome,
    FileSystem,
    FleetReport,
    HostSnapshot,
    Http,
    Ids,
    Processes,
    Rng,
    Threads,
)
from cronstable.runtime.bus import EventBus
from cronstable.runtime.output import OutputHub

Stored: TypeAlias = Callable[[Literal["streams", "documents"], str], Awaitable["Sequence[str] | None"]]
"""Where names in the durable state come from."""


@dataclass(frozen=True, slots=True)
class Seams:
    """Everything that reaches outside the process, in one place; tests replace it whole."""

    clock: Clock
    rng: Rng
    ids: Ids
    fs: FileSystem
    http: Http
    threads: Threads
    processes: Processes


class DaemonHost:
    """Implements ``cronstable.api.Host`` for a running daemon."""

    def __init__(self, *, seams: Seams, log: logging.Logger, bus: EventBus, hub: OutputHub) -> None:
        self._seams = seams
        self._log = log
        self._bus = bus
        self._hub = hub
        self._snapshot: Callable[[], HostSnapshot] | None = None
        self._do: Callable[[Command, Actor], Awaitable[CommandOutcome]] | None = None
        self._decisions = DecisionRing(1)
        self._runs: Callable[[str, int], Awaitable[Sequence[RunRecord]]] | None = None
        self._stored: Stored | None = None
        self._window: Callable[[str], Seconds] | None = None
        self.fleet: dict[str, FleetReport] = {}
        self.expiries: Mapping[tuple[str, str], float] = MappingProxyType({})

    def connect(
        self,
        snapshot: Callable[[], HostSnapshot],
        do: Callable[[Command, Actor], Awaitable[CommandOutcome]],
        decisions: DecisionRing,
        runs: Callable[[str, int], Awaitable[Sequence[RunRecord]]],
        stored: Stored | None = None,
        window: Callable[[str], Seconds] | None = None,
    ) -> None:
        """Say where all this comes from and who carries out commands; once, as the daemon is built.

        ``window``: how long an occurrence of a job may be caught up on; None: never.
        """
        self._window = window
        self._snapshot = snapshot
        self._runs = runs
        self._stored = stored
        self._do = do
        self._decisions = decisions

    @property
    def clock(self) -> Clock:
        """The clocks of this node."""
        return self._seams.clock

    @property
    def rng(self) -> Rng:
        """Randomness for jitter."""
        return self._seams.rng

    @property
    def ids(self) -> Ids:
        """Unguessable identifiers."""
        return self._seams.ids

    @property
    def log(self) -> logging.Logger:
        """The daemon's logger."""
        return self._log

    @property
    def fs(self) -> FileSystem:
        """Blocking file system calls, for use in ``threads``."""
        return self._seams.fs

    @property
    def http(self) -> Http:
        """The HTTP client."""
        return self._seams.http

    @property
    def threads(self) -> Threads:
        """Blocking calls off the loop."""
        return self._seams.threads

    @property
    def processes(self) -> Processes:
        """Programs that plugins run."""
        return self._seams.processes

    def snapshot(self) -> HostSnapshot:
        """The daemon at this instant."""
        if self._snapshot is None:
            raise RuntimeError("the host is not connected yet")
        return self._snapshot()

    def events(self, *kinds: type[Event]) -> AsyncIterator[Event]:
        """Events from the moment iteration begins."""
        return self._bus.subscribe(*kinds)

    def output(self, run_id: str, after: int = 0) -> AsyncIterator[Line]:
        """Lines of a run."""
        return self._hub.read(run_id, after)

    def decisions(self, job: str, limit: int = 100) -> Sequence[DecisionRecord]:
        """The newest decisions on a job, newest first."""
        wall, window = self.clock.now().wall, 0.0 if self._window is None else self._window(job)
        return tuple(settled(record, wall, window) for record in islice(self._decisions.for_job(job), max(0, limit)))

    async def runs(self, job: str, limit: int = 100) -> Sequence[RunRecord]:
        """The newest runs of a job, newest first."""
        if self._runs is None:
            raise RuntimeError("the host is not connected yet")
        return await self._runs(job, max(0, limit))

    async def do(self, command: Command, by: Actor) -> CommandOutcome:
        """Carry out a command."""
        if self._do is None:
            raise RuntimeError("the host is not connected yet")
        return await self._do(command, by)

    def publish(self, fleet: FleetReport) -> None:
        """Keep the newest report of each source; one without nodes ends it."""
        self.fleet.pop(fleet.source, None)
        if fleet.nodes:
            self.fleet[fleet.source] = fleet

    def certificates(self, use: str, ends: Sequence[tuple[str, float]]) -> None:
        """Keep the newest word on each use."""
        others = {key: at for key, at in self.expiries.items() if key[0] != use}
        self.expiries = MappingProxyType({**others, **{(use, file): at for file, at in ends}})

    async def stored(self, kind: Literal["streams", "documents"], prefix: str = "") -> Sequence[str] | None:
        """Names in the durable state."""
        return None if self._stored is None else await self._stored(kind, prefix)
