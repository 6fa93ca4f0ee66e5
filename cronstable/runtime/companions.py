"""Everything that goes along with runs and must never hold one up: figures, check-ins, samples."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from anyio.abc import TaskGroup

from cronstable.core.clock import Seconds
from cronstable.core.runs import Resources
from cronstable.plugin.protocols import Host
from cronstable.runtime import checkins, statsd
from cronstable.runtime.checkins import CheckIns
from cronstable.runtime.courier import Courier
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.resources import ResourceMonitor
from cronstable.runtime.statsd import Statsd

LAST_ERRANDS: Seconds = 5.0
"""At the daemon's stop: how long what is on its way may still arrive."""
SECRET_READ: Seconds = 10.0
"""Reading the file that holds the address of a check-in."""


class Companions:
    """Puts them together and to work."""

    def __init__(self, host: Host) -> None:
        self._figures = Courier("statsd figures", log=host.log, deadline=statsd.DEADLINE + 1)
        self._checkins = Courier("check-in", log=host.log, deadline=checkins.TIMEOUT + SECRET_READ)
        self._statsd = Statsd(courier=self._figures, threads=host.threads)
        self._monitor = CheckIns(courier=self._checkins, host=host)
        self._resources = ResourceMonitor(clock=host.clock, threads=host.threads, log=host.log)

    def attach(self, launcher: Launcher) -> None:
        """Hear of every run."""
        launcher.listeners += (self._statsd, self._monitor, self._resources)
        launcher.complete = self._resources.complete

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group the work is done in; once, before the first run."""
        for part in (self._figures, self._checkins, self._resources):
            part.bind(tasks)

    def resources(self) -> Mapping[str, Resources]:
        """What living runs used so far, by run id."""
        return self._resources.live()

    async def finish(self) -> None:
        """Let what is on its way arrive, for a little while."""
        with anyio.move_on_after(LAST_ERRANDS):
            await self._figures.idle()
            await self._checkins.idle()
