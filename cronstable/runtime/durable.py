"""Everything that outlives the daemon, put together around the state keeper (reference 4.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import anyio
from anyio.abc import TaskGroup

from cronstable.config import Config
from cronstable.core.clock import Clock, Seconds
from cronstable.core.job import Job
from cronstable.core.runs import RunRecord
from cronstable.plugin.protocols import Host
from cronstable.runtime.archive import Archive
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.history import RunHistory
from cronstable.runtime.inflight import InFlight
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.missed import LateClaimer, MissedRuns
from cronstable.runtime.pauses import Pauses
from cronstable.runtime.process_table import ProcessTable
from cronstable.runtime.scheduler import Scheduler
from cronstable.runtime.state import StateKeeper
from cronstable.runtime.state_counters import Counters, Counts, Manifests
from cronstable.runtime.state_gc import Collector

BOOT_WAIT: Final[Seconds] = 5.0
"""How long the first decisions wait for the state store: what falls due meanwhile is still on time (10 s)."""
LAST_OUTPUT: Final[Seconds] = 5.0
"""At the daemon's stop: how long output may take to get its secrets taken out."""


class Durable:
    """What is kept of runs. Alive whether or not there is a store; without one nothing of it does anything."""

    def __init__(
        self,
        *,
        keeper: StateKeeper,
        host: Host,
        launcher: Launcher,
        scheduler: Scheduler,
        cluster: ClusterManager,
        claims: LateClaimer,
        counts: Counts,
        clock: Clock,
        log: logging.Logger,
        config: Callable[[], Config],
        environ: Mapping[str, str],
        recalled: Callable[[str, Sequence[RunRecord]], None],
        table: ProcessTable,
        hostname: str,
        pid: int,
    ) -> None:
        self._keeper = keeper
        self._clock = clock

        known: list[tuple[Config, Mapping[str, Job]]] = []

        def jobs() -> Mapping[str, Job]:
            # Not the scheduler's: what is looked up at the start comes before it has them.
            current = config()
            if not known or known[0][0] is not current:
                known[:] = [(current, MappingProxyType({job.name: job for job in current.jobs}))]
            return known[0][1]

        self.history = RunHistory(
            keeper=keeper,
            launcher=launcher,
            clock=clock,
            jobs=jobs,
            log=log,
            recalled=recalled,
        )
        self.inflight = InFlight(
            keeper=keeper,
            launcher=launcher,
            history=self.history,
            table=table,
            clock=clock,
            ids=host.ids,
            jobs=jobs,
            hostname=hostname,
            pid=pid,
            log=log,
        )
        scheduler.after_success = self.history.after_success
        self.pauses = Pauses(keeper=keeper, scheduler=scheduler, clock=clock)
        self.missed = MissedRuns(
            keeper=keeper,
            scheduler=scheduler,
            cluster=cluster,
            launcher=launcher,
            history=self.history,
            claimer=claims,
            clock=clock,
            log=log,
        )
        self.counters = Counters(keeper=keeper, counts=counts, clock=clock, node=lambda: launcher.node)
        self.manifests = Manifests(keeper=keeper, config=config, clock=clock, node=lambda: launcher.node)
        self.collector = Collector(keeper=keeper, clock=clock, rng=host.rng, log=log)
        self.archive = Archive(keeper=keeper, host=host, config=config, environ=environ)
        launcher.listeners += (self.archive, self.inflight)

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group the work is done in; once, before the first run."""
        self.archive.bind(tasks)
        self.inflight.bind(tasks)
        tasks.start_soon(self.history.run)
        tasks.start_soon(self.pauses.run)
        tasks.start_soon(self.counters.run)
        tasks.start_soon(self.manifests.run)
        tasks.start_soon(self.collector.run)

    async def boot(self) -> None:
        """What was before this start, as far as the first decisions need it; not for long."""
        end = self._clock.now().boot + BOOT_WAIT
        if await self._keeper.settled(BOOT_WAIT):
            await self.pauses.settled(end - self._clock.now().boot)
            await self.history.settled(end - self._clock.now().boot)
            await self.inflight.settled(end - self._clock.now().boot)

    async def finish(self) -> None:
        """The last runs are over: what there is to be kept goes to the store."""
        with anyio.move_on_after(LAST_OUTPUT, shield=True):
            await self.archive.idle()
        self.counters.snapshot()
        await self._keeper.finish()
