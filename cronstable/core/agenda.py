"""The agenda: when each job is due next, and what is due now. A heap of instants, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.job import Job

REPLAY_LIMIT: Seconds = 10.0
"""A slot up to this late is still run, each missed one in turn (reference 2.2)."""
BACKWARD_LIMIT: Seconds = 86_400.0
"""A wall clock that went back further than this was wrong before: jobs are seeded anew from the new time."""


@dataclass(frozen=True, slots=True)
class Due:
    """One occurrence to decide about. ``order`` is the job's place in the configuration."""

    scheduled_at: EpochSeconds
    order: int
    job: Job


@dataclass(frozen=True, slots=True)
class Missed:
    """Slots of a job that are too old to run: those from ``first`` to ``last``."""

    job: Job
    first: EpochSeconds
    last: EpochSeconds


@dataclass(frozen=True, slots=True)
class Batch:
    """What one look at the agenda found. ``rounds``: launch one after the other; within one, at the same time."""

    rounds: tuple[tuple[Due, ...], ...] = ()
    missed: tuple[Missed, ...] = ()


@dataclass(slots=True)
class _Entry:
    job: Job
    order: int
    next_at: EpochSeconds | None
    fired_at: EpochSeconds | None = None


class Agenda:
    """Next fires of a job set, as UTC instants (reference 2.2).

    Rules: seeding looks strictly into the future; a slot is advanced before it is handed out, so it is handed out at
    most once whatever the wall clock does; a reload keeps the next fire of a job whose schedule did not change.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[EpochSeconds, int, str]] = []

    def load(self, jobs: Iterable[Job], wall: float) -> None:
        """Take over a new job set at wall time ``wall``, by difference."""
        old, self._entries = self._entries, {}
        for order, job in enumerate(jobs):
            if job.schedule.reboot or not job.options.enabled:
                continue
            entry = old.get(job.name)
            if entry is not None and entry.job.schedule == job.schedule:
                self._entries[job.name] = _Entry(job, order, entry.next_at, entry.fired_at)
                continue
            fired = entry.fired_at if entry is not None else None
            start = int(wall) if fired is None or fired > wall + BACKWARD_LIMIT else max(int(wall), fired)
            self._entries[job.name] = _Entry(job, order, job.schedule.next_after(start), fired)
        self._rebuild()

    def reseed(self, wall: float) -> None:
        """Forget every next fire and seed from ``wall``: the clock before was wrong."""
        for entry in self._entries.values():
            entry.next_at = entry.job.schedule.next_after(int(wall))
            entry.fired_at = None
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(e.next_at, e.order, name) for name, e in self._entries.items() if e.next_at is not None]
        heapq.heapify(self._heap)

    @property
    def next_at(self) -> EpochSeconds | None:
        """When the first job is due, None when none ever is."""
        return self._heap[0][0] if self._heap else None

    def next_fires(self) -> Mapping[str, EpochSeconds | None]:
        """Next fire of every scheduled job, in configuration order."""
        return {name: e.next_at for name, e in self._entries.items()}

    def take(self, wall: float) -> Batch:
        """All that is due at ``wall``, advanced past it.

        Slots up to ``REPLAY_LIMIT`` late are replayed one after the other. After a larger gap (suspend, a step of the
        clock) only the newest slot runs, and only if it is that recent; the older ones are reported as missed.
        """
        queues: list[list[Due]] = []
        missed: list[Missed] = []
        while self._heap and self._heap[0][0] <= wall:
            _, order, name = heapq.heappop(self._heap)
            entry = self._entries[name]
            slots, lost = self._slots(entry, wall)
            if lost is not None:
                missed.append(lost)
            if slots:
                queues.append([Due(t, order, entry.job) for t in slots])
                entry.fired_at = slots[-1]
            elif lost is not None:
                entry.fired_at = lost.last
            if entry.next_at is not None:
                heapq.heappush(self._heap, (entry.next_at, order, name))
        return Batch(_rounds(queues), tuple(missed))

    @staticmethod
    def _slots(entry: _Entry, wall: float) -> tuple[list[EpochSeconds], Missed | None]:
        first = entry.next_at
        if first is None:
            return [], None
        schedule = entry.job.schedule
        if wall - first <= REPLAY_LIMIT:
            slots: list[EpochSeconds] = []
            at: EpochSeconds | None = first
            while at is not None and at <= wall:
                slots.append(at)
                at = schedule.next_after(at)
            entry.next_at = at
            return slots, None
        last = schedule.prev_before(int(wall) + 1) or first
        entry.next_at = schedule.next_after(int(wall))
        if wall - last <= REPLAY_LIMIT and last > first:
            return [last], Missed(entry.job, first, schedule.prev_before(last) or first)
        return [], Missed(entry.job, first, last)


def _rounds(queues: list[list[Due]]) -> tuple[tuple[Due, ...], ...]:
    """Round k holds the k-th slot of every job: replays of one job never run beside each other."""
    rounds: list[tuple[Due, ...]] = []
    for k in range(max((len(q) for q in queues), default=0)):
        due = [q[k] for q in queues if len(q) > k]
        rounds.append(tuple(sorted(due, key=lambda d: (d.scheduled_at, d.order))))
    return tuple(rounds)
