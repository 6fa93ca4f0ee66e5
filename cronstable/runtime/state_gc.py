"""The daily collection: what removed jobs left in the store goes when its grace is over (reference 4.7)."""

from __future__ import annotations

import logging
from typing import Final

from cronstable.core.clock import Clock, Seconds
from cronstable.core.retention import Manifest, Retention, manifest_of
from cronstable.plugin.protocols import Rng
from cronstable.runtime.state import StateKeeper

FIRST: Final[Seconds] = 3600.0
"""After the start, and as much again by chance: nodes that start together do not collect together."""
EVERY: Final[Seconds] = 86_400.0


class Collector:
    """Every node collects; what one of them dropped the others do not find."""

    def __init__(self, *, keeper: StateKeeper, clock: Clock, rng: Rng, log: logging.Logger) -> None:
        self._keeper = keeper
        self._clock = clock
        self._rng = rng
        self._log = log

    async def run(self) -> None:
        """Until cancelled."""
        await self._clock.sleep(FIRST * (1 + self._rng.random()))
        while True:
            await self._keeper.opened()
            await self.collect()
            await self._clock.sleep(EVERY)

    async def collect(self) -> int:
        """Once: how many streams went. A store that does not answer ends it until tomorrow."""
        grace = self._keeper.policy.gc_grace if self._keeper.policy is not None else None
        manifests = await self._manifests() if grace is not None else None
        names = await self._keeper.streams() if manifests else None
        if grace is None or not manifests or names is None:
            return 0
        retention = Retention.of(manifests, grace, self._clock.now().wall)
        gone = 0
        for name in filter(retention.candidate, names):
            newest = await self._keeper.newest(name)
            if newest is None:
                break
            if retention.may_go(newest.record):
                gone += await self._keeper.trim(name, 0)
        if gone:
            self._log.info("state: %d streams of jobs that nobody has any more are dropped", gone)
        return gone

    async def _manifests(self) -> list[Manifest] | None:
        found: list[Manifest] = []
        names = await self._keeper.streams("manifests/")
        for name in names or ():
            rows = await self._keeper.read(name)
            if rows is None:
                # What this node said is not known: then nothing is known to be nobody's.
                return None
            found += [manifest for row in rows if (manifest := manifest_of(row)) is not None]
        return found
