"""What a node keeps of itself besides its runs: its counts, and which jobs there were (reference 4.1 and 4.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from cronstable.config import Config
from cronstable.core.clock import Clock, Seconds
from cronstable.core.counters import PARTS, by_part, jobs_of, record
from cronstable.core.records import KEEP, WriteKind, stream
from cronstable.core.retention import MANIFEST_EVERY, Manifest, manifests_kept
from cronstable.core.tally import JobTally, Tally
from cronstable.runtime.state import StateKeeper

SNAPSHOT_EVERY: Final[Seconds] = 15.0
NAMES: Final = 5000
"""Jobs named in one record of a manifest; a larger set takes several."""


class Counts(Protocol):
    """Whoever counts."""

    def view(self) -> Tally: ...

    def restore(self, jobs: Mapping[str, JobTally]) -> None:
        """Counts of before this start, to be added to those since."""
        ...


class Counters:
    """Writes the counts of jobs that changed every 15 s, after those of before the start were read back."""

    def __init__(self, *, keeper: StateKeeper, counts: Counts, clock: Clock, node: Callable[[], str]) -> None:
        self._keeper = keeper
        self._counts = counts
        self._clock = clock
        self._node = node
        self._read: set[int] = set()
        self._written: Mapping[str, JobTally] = MappingProxyType({})

    async def run(self) -> None:
        """Until cancelled."""
        known = 0
        while True:
            generation = await self._keeper.opened()
            if known not in (0, generation):
                # Another store: what was counted goes there in full, and nothing comes back from it.
                self._written = MappingProxyType({})
            known = generation
            if not await self._restore():
                await self._clock.sleep(1.0)
                continue
            await self._clock.sleep(SNAPSHOT_EVERY)
            self.snapshot()

    async def _restore(self) -> bool:
        for part in range(PARTS):
            if part in self._read:
                continue
            newest = await self._keeper.newest(self._stream(part), gaps=True)
            if newest is None:
                return False
            self._read.add(part)
            if newest.record is not None:
                self._counts.restore(jobs_of(newest.record))
        return True

    def snapshot(self) -> None:
        """Write what changed since the last time; nothing before what was is known."""
        if len(self._read) < PARTS:
            return
        jobs = self._counts.view().jobs
        if jobs is self._written:
            return
        changed = [name for name, tally in jobs.items() if self._written.get(name) is not tally]
        changed += [name for name in self._written if name not in jobs]
        names = by_part(jobs)
        for part in by_part(changed):
            data = record({name: jobs[name] for name in names.get(part, ())})
            self._keeper.write(WriteKind.COUNTERS, self._stream(part), data, keep=KEEP[WriteKind.COUNTERS])
        self._written = jobs

    def _stream(self, part: int) -> str:
        return stream("counters", self._node(), str(part))


class Manifests:
    """Says every six hours which jobs there are, so that a collection can tell what nobody has any more."""

    def __init__(
        self, *, keeper: StateKeeper, config: Callable[[], Config], clock: Clock, node: Callable[[], str]
    ) -> None:
        self._keeper = keeper
        self._config = config
        self._clock = clock
        self._node = node

    async def run(self) -> None:
        """Until cancelled; each store that opens gets one at once."""
        while True:
            await self._keeper.opened()
            self.write()
            await self._clock.sleep(MANIFEST_EVERY)

    def write(self) -> None:
        """One manifest, in as many records as it takes."""
        config, node, now = self._config(), self._node(), self._clock.now().wall
        names = sorted(job.name for job in config.jobs)
        pieces = [names[i : i + NAMES] for i in range(0, len(names), NAMES)] or [[]]
        policy = self._keeper.policy
        keep = manifests_kept(policy.gc_grace if policy is not None else None) * len(pieces)
        for piece in pieces:
            manifest = Manifest(node, config.job_set_id, frozenset(piece), now)
            self._keeper.write(WriteKind.MANIFEST, stream("manifests", node), manifest.row(), keep=keep)
