"""Work that several nodes, or several daemons of one boot, have in common: retries, slots, @reboot markers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from anyio.abc import TaskGroup

from cronstable.core.clock import Seconds
from cronstable.runtime.boot_marks import BootMarks
from cronstable.runtime.chores import Chores
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.durable import Durable
from cronstable.runtime.host import Seams
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.locks import StoreLeases
from cronstable.runtime.reboot import RebootKeeper
from cronstable.runtime.retries import Retries
from cronstable.runtime.retry_door import RetryDoor
from cronstable.runtime.retry_scan import Around, RetryScan
from cronstable.runtime.retry_store import RetryStore
from cronstable.runtime.scheduler import Scheduler
from cronstable.runtime.slots import Slots
from cronstable.runtime.state import StateKeeper

LAST_WORDS: Final[Seconds] = 3.0
"""At the daemon's stop: how long slots may take to be let go and records to be written."""


class SharedWork:
    """Puts it together around the state keeper. Without a ``state`` section nothing of it does anything."""

    def __init__(
        self,
        *,
        keeper: StateKeeper,
        durable: Durable,
        seams: Seams,
        cluster: ClusterManager,
        scheduler: Scheduler,
        launcher: Launcher,
        retries: Retries,
        reboot: RebootKeeper,
        log: logging.Logger,
        node: Callable[[], str],
    ) -> None:
        clock, ids = seams.clock, seams.ids
        self._chores = Chores()
        self._marks = BootMarks(
            keeper=keeper,
            clock=clock,
            fs=seams.fs,
            threads=seams.threads,
            node=node,
            survives=durable.inflight.survives,
        )
        reboot.marks = self._marks
        door = RetryDoor(
            keeper=keeper,
            cluster=cluster,
            jobs=lambda: scheduler.jobs,
            clock=clock,
            ids=ids,
            log=log,
            node=node,
        )
        self._store = RetryStore(door=door, ladders=retries, chores=self._chores, clock=clock)
        around = Around(scheduler, cluster, retries, durable.history.last, self._marks.boot_id)
        self._scan = RetryScan(door=door, store=self._store, around=around, rng=seams.rng, log=log)
        retries.memory = self._store
        leases = StoreLeases(find=keeper.lease, clock=clock, ids=ids, log=log, node=node)
        self.slots = Slots(
            keeper=keeper, leases=leases, runs=launcher, chores=self._chores, clock=clock, log=log, node=node
        )
        self.slots.taken_over = durable.inflight.taken_over
        launcher.slots = self.slots

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group the store is asked in; once, before the first run."""
        self._chores.bind(tasks)
        self.slots.bind(tasks)

    def poke(self) -> None:
        """The leadership changed."""
        self._scan.poke()

    async def run(self) -> None:
        """Take up retries of before, and look for those of other nodes, until cancelled."""
        await self._scan.run()

    async def finish(self) -> None:
        """The last runs are over: what was begun is finished, if that does not take long."""
        await self._chores.idle(LAST_WORDS)
