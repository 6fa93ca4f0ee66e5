"""Everything that outlives the daemon, put together around the state keeper (reference 4.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import anyio
from anyio.abc import TaskGroup

from cronstable.config import Config
from cronstable.core.clock import Clock, Seconds
from cronstable.core.runs import RunRecord
from cronstable.plugin.protocols import Host
from cronstable.runtime.archive import Archive
from cronstable.runtime.history import RunHistory
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.state import StateKeeper

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
        clock: Clock,
        log: logging.Logger,
        config: Callable[[], Config],
        environ: Mapping[str, str],
        recalled: Callable[[str, Sequence[RunRecord]], None],
    ) -> None:
        self._keeper = keeper
        self.history = RunHistory(
            keeper=keeper,
            launcher=launcher,
            clock=clock,
            jobs=lambda: {job.name: job for job in config().jobs},
            log=log,
            recalled=recalled,
        )
        self.archive = Archive(keeper=keeper, host=host, config=config, environ=environ)
        launcher.listeners += (self.archive,)

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group the work is done in; once, before the first run."""
        self.archive.bind(tasks)
        tasks.start_soon(self.history.run)

    async def finish(self) -> None:
        """The last runs are over: what there is to be kept goes to the store."""
        with anyio.move_on_after(LAST_OUTPUT, shield=True):
            await self.archive.idle()
        await self._keeper.finish()
