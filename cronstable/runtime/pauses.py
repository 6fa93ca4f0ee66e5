"""Pauses that outlive the daemon, and that move with the leadership where nodes share a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from cronstable.core.clock import Clock, EpochSeconds, Seconds
from cronstable.core.job import Json
from cronstable.core.pauses import Interval, changed, forget, paused_since, record, replay
from cronstable.core.records import KEEP, WriteKind, stream
from cronstable.plugin.protocols import Pause
from cronstable.runtime.scheduler import Scheduler
from cronstable.runtime.state import StateKeeper

LOOK_EVERY: Final[Seconds] = 15.0
"""Where other nodes can pause a job too: how often is looked whether one did."""
REMEMBERED: Final[Seconds] = 604_800.0
"""For how long a pause that is over is remembered, unless ``gcGraceSeconds`` says otherwise: one retention."""


class Pauses:
    """Every change of a pause goes through here; what is in force stands in the scheduler."""

    def __init__(self, *, keeper: StateKeeper, scheduler: Scheduler, clock: Clock) -> None:
        self._keeper = keeper
        self._scheduler = scheduler
        self._clock = clock
        self._intervals: dict[str, tuple[Interval, ...]] = {}
        self._written: dict[str, Mapping[str, Json]] = {}
        self._settled = anyio.Event()
        scheduler.paused_since = self.paused_since

    def set(self, job: str, pause: Pause | None) -> None:
        """Pause a job, or end its pause."""
        now = self._clock.now().wall
        interval = None
        if pause is not None:
            since = now if pause.since is None else pause.since
            interval = Interval(since, pause.until, pause.note, pause.by, pause.channel)
        self._intervals[job] = self._recent(changed(self._intervals.get(job, ()), now, interval))
        self._written[job] = change = {**record(now, interval), "job": job}
        self._scheduler.set_pause(job, pause)
        self._keeper.write(WriteKind.PAUSE, stream("paused", job), change, keep=KEEP[WriteKind.PAUSE])

    def paused_since(self, job: str, at: EpochSeconds) -> EpochSeconds | None:
        """When the pause began in which the occurrence ``at`` of ``job`` lies; None when it lies in none."""
        return paused_since(self._intervals.get(job, ()), at)

    async def settled(self, within: Seconds) -> None:
        """Return when the pauses of before the start are known, or after ``within`` seconds."""
        if self._keeper.configured:
            with anyio.move_on_after(within):
                await self._settled.wait()

    async def run(self) -> None:
        """Read what was, and where nodes share the store also what others say meanwhile."""
        while True:
            generation = await self._keeper.opened()
            unread = await self._look()
            if unread is not None:
                self._settled.set()
            if unread == 0 and not self._keeper.shared:
                await self._keeper.opened(generation)
                continue
            await self._clock.sleep(LOOK_EVERY if self._settled.is_set() else 1.0)

    async def _look(self) -> int | None:
        """How many jobs have records that cannot be read; None when the store did not answer."""
        known = await self._keeper.streams("paused/")
        if known is None:
            return None
        unread = 0
        names = {stream("paused", name): name for name in self._scheduler.jobs}
        for one in known:
            job = names.get(one)
            if job is None:
                continue
            records = await self._keeper.read(one)
            if records is None:
                if not self._keeper.is_open:
                    return None
                unread += 1
                continue
            last, intervals = replay(records)
            if not self._is_ahead(job, records, last) and (intervals := self._recent(intervals)) != self._known(job):
                self._intervals[job] = intervals
                self._scheduler.set_pause(job, self._in_force(job))
        return unread

    def _known(self, job: str) -> tuple[Interval, ...]:
        return self._recent(self._intervals.get(job, ()))

    def _is_ahead(self, job: str, records: Sequence[Mapping[str, Json]], last: float) -> bool:
        """Whether what was changed here did not reach the store yet. The order there decides, and not the clocks."""
        mine = self._written.get(job)
        if mine is None or mine in records:
            return False
        at = mine["at"]
        return isinstance(at, float) and at >= last

    def _in_force(self, job: str) -> Pause | None:
        # Also one that has not begun by this clock: it was made on another node, or the clock was set back since.
        now = self._clock.now().wall
        found = [one for one in self._intervals[job] if one.until > now]
        if not found:
            return None
        one = found[-1]
        return Pause(job, one.until, one.note, one.since, one.by, one.channel)

    def _recent(self, intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
        policy = self._keeper.policy
        retention = REMEMBERED if policy is None or policy.gc_grace is None else policy.gc_grace
        return forget(intervals, self._clock.now().wall - retention)
