"""The sweep: which occurrences inside the window are owed, and what becomes of each (claims.md 12 to 15).

Level-triggered: every sweep looks at everything that is due and undecided, so that no change of leadership, late
answer or restart can lose an occurrence by coming at a bad moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from cronstable.core.claim_values import Known, Ledger, Skip, Start, Wants
from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.decision import Reason
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job
from cronstable.core.missed import starting_deadline
from cronstable.core.schedule import Schedule
from cronstable.core.values import dataclass

SHORTEST_WINDOW: Final = 60.0
HANDOVERS: Final = 3
"""``window: auto`` is this many worst handovers, and at least a minute."""
LATE_AFTER: Final = 10.0
"""Seconds. An occurrence that starts later than this is a late one, whoever led when it fell due."""
AGED: Final = 20
"""Of what nobody decided about in time, so many of each job are told one by one."""
AGED_AT_ONCE: Final = 1000
"""The same of all jobs together, in one sweep."""
BACK: Final = 1.0
"""A wall clock that went back this many seconds makes the horizon look at the window anew."""


class Mode(StrEnum):
    """What is done about late occurrences: ``cluster.catchUp.mode``."""

    ALL = "all"
    LAST = "last"
    NONE = "none"


def auto_window(worst_handover: Seconds) -> Seconds:
    """The window that ``auto`` stands for, given how long leadership may be vacant."""
    return max(SHORTEST_WINDOW, HANDOVERS * worst_handover)


@dataclass(frozen=True, slots=True)
class Claimable:
    """What the sweep has to know of a job. ``order``: its place in the configuration.

    ``coalesce``: overlapping runs are not allowed, so that of several late T only the newest is worth a start.
    ``deadline``: ``startingDeadlineSeconds``.
    """

    name: str
    order: int
    schedule: Schedule
    coalesce: bool = False
    deadline: Seconds | None = None


def is_claimable(job: Job) -> bool:
    """Whether occurrences of ``job`` are claimed at all (claims.md 14)."""
    return (
        job.options.enabled and not job.schedule.reboot and job.options.cluster_policy is not ClusterPolicy.EVERY_NODE
    )


def claimable(job: Job, order: int) -> Claimable:
    """What the sweep has to know of ``job``."""
    overlap = job.options.concurrency_policy
    coalesce = overlap in (ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE)
    return Claimable(job.name, order, job.schedule, coalesce, starting_deadline(job.options.raw))


def reruns(job: Job) -> bool:
    """Whether a claim of which nobody knows that it was started is tried again (``onUnfinishedClaim``)."""
    return job.options.raw.get("onUnfinishedClaim") == "rerun"


class Horizon:
    """The T of every job that are due and not yet decided, as far as this process knows.

    ``window``: seconds that a T stays unless a sweep of ours has taken it up; then it stays until it is decided.
    """

    def __init__(self, window: Seconds) -> None:
        self.window = window
        self._jobs: dict[str, Claimable] = {}
        self._due: dict[str, list[EpochSeconds]] = {}
        self._heap: list[tuple[EpochSeconds, int, str]] = []
        self._kept: set[tuple[str, EpochSeconds]] = set()
        self._aged: list[tuple[str, EpochSeconds]] = []
        self._wall: float | None = None

    @property
    def jobs(self) -> Mapping[str, Claimable]:
        """The jobs it looks at."""
        return self._jobs

    @property
    def next_at(self) -> EpochSeconds | None:
        """When the next occurrence falls due that was not due at the last look."""
        return self._heap[0][0] if self._heap else None

    @property
    def is_empty(self) -> bool:
        """Nothing is due, and nothing left the window that is to be told."""
        return not (self._aged or any(self._due.values()))

    def load(self, jobs: Iterable[Claimable], wall: float) -> None:
        """Take over a job set. Nothing is owed any more for a job that is gone (claims.md 13)."""
        self._jobs = {job.name: job for job in jobs}
        self._kept = {(job, at) for job, at in self._kept if job in self._jobs}
        self._seed(wall)

    def forget_waiting(self) -> None:
        """Leadership is gone: what waited here is the next leader's, and ages like everything else."""
        self._kept.clear()

    def _seed(self, wall: float) -> None:
        since, until = int(wall - self.window), int(wall)
        self._wall = wall
        self._due = {}
        self._heap = []
        for job in self._jobs.values():
            kept = sorted(at for name, at in self._kept if name == job.name and at <= since)
            self._due[job.name] = [*kept, *job.schedule.fires(since, until, until - since)]
            self._schedule(job, until)
        heapq.heapify(self._heap)

    def _schedule(self, job: Claimable, after: EpochSeconds) -> None:
        at = job.schedule.next_after(after)
        if at is not None:
            heapq.heappush(self._heap, (at, job.order, job.name))

    def advance(self, wall: float) -> None:
        """Take in what fell due until ``wall``, and let go of what aged out of the window."""
        if self._wall is None or wall < self._wall - BACK:
            self._seed(wall)
        self._wall = wall
        since = int(wall - self.window)
        while self._heap and self._heap[0][0] <= wall:
            at, _, name = heapq.heappop(self._heap)
            job = self._jobs[name]
            if at <= since:
                self._aged += [(name, old) for old in job.schedule.fires(at - 1, since, AGED)]
                self._due[name] += job.schedule.fires(since, int(wall), int(wall) - since)
                self._schedule(job, int(wall))
                continue
            self._due[name].append(at)
            self._schedule(job, at)
        for name, due in self._due.items():
            if due and due[0] <= since:
                gone = [at for at in due if at <= since and (name, at) not in self._kept]
                self._aged += [(name, at) for at in gone[:AGED]]
                self._due[name] = [at for at in due if at > since or (name, at) in self._kept]

    def aged(self, ledger: Ledger, known: Known) -> tuple[tuple[str, EpochSeconds], ...]:
        """What left the window and nobody had decided about: the oldest few of each job, a thousand in one call."""
        # Of thousands of jobs after a long outage the rest comes with the next sweeps: no loop stands still for them.
        aged, self._aged = self._aged[:AGED_AT_ONCE], self._aged[AGED_AT_ONCE:]
        return tuple((name, at) for name, at in aged if at > known.of(name) and not ledger.claimed(name, at))

    def undecided(self, ledger: Ledger, known: Known, wall: float) -> Iterable[tuple[Claimable, list[EpochSeconds]]]:
        """For each job its T that are owed: due, unclaimed, and later than the job's first known definition."""
        for name, due in self._due.items():
            if not due:
                continue
            owed = [at for at in due if not ledger.claimed(name, at)]
            self._due[name] = owed
            since = known.of(name)
            ready = [at for at in owed if since < at <= wall]
            if ready:
                yield self._jobs[name], ready

    def keep(self, wanted: Iterable[tuple[str, EpochSeconds]]) -> None:
        """These were taken up by a sweep: they do not age out while they wait (claims.md 12)."""
        self._kept = set(wanted)


@dataclass(frozen=True, slots=True)
class Local:
    """What only this process can say about an occurrence.

    ``paused``: T lies in a pause. ``blocked``: a run of the job forbids another one now. ``waits``: a run that is to be
    replaced is being ended elsewhere. ``started``: this process started the occurrence without a claim, while the
    store did not answer.
    """

    paused: Callable[[str, EpochSeconds], bool] = lambda job, at: False
    blocked: Callable[[str], bool] = lambda job: False
    waits: Callable[[str], bool] = lambda job: False
    started: Callable[[str, EpochSeconds], bool] = lambda job, at: False


@dataclass(frozen=True, slots=True)
class Rules:
    """``cluster.catchUp``. ``limit``: late starts in one sweep of the whole node."""

    mode: Mode = Mode.ALL
    limit: int = 100
    rerun: frozenset[str] = frozenset()


def sweep(
    horizon: Horizon, ledger: Ledger, known: Known, rules: Rules, local: Local, wall: float, opened_at: float
) -> Wants:
    """What is to be decided now, most urgent first: on time beats late, then the oldest T (claims.md 12).

    ``opened_at``: wall seconds at which this term was opened; what fell due before is late.
    """
    horizon.advance(wall)
    if horizon.is_empty:
        horizon.keep(())
        return Wants(rerun=rules.rerun)
    starts: list[tuple[bool, EpochSeconds, int, Start]] = []
    skips: list[Skip] = []
    for job, due in horizon.undecided(ledger, known, wall):
        wanted, unwanted = _judge(job, due, rules, local, wall, opened_at)
        skips += unwanted
        starts += [(start.late, start.at, job.order, start) for start in wanted]
    held = [entry for entry in starts if local.waits(entry[3].job)]
    starts = sorted((entry for entry in starts if entry not in held), key=lambda entry: entry[:3])
    horizon.keep([(start.job, start.at) for *_, start in (*starts, *held)] + [(skip.job, skip.at) for skip in skips])
    on_time = sum(1 for late, *_ in starts if not late)
    chosen = [start for *_, start in starts[: on_time + rules.limit]]
    rest = [start.at for *_, start in (*starts[on_time + rules.limit :], *held)]
    waiting = min([*rest, *(skip.at for skip in skips)], default=None)
    return Wants(tuple(chosen), tuple(skips), waiting, rules.rerun, lost=horizon.aged(ledger, known))


def is_late(at: EpochSeconds, wall: float, opened_at: float) -> bool:
    """Whether a start now would be a catch-up: it fell due under another term, or long ago."""
    return at < int(opened_at) or wall - at > LATE_AFTER


def _judge(
    job: Claimable, due: list[EpochSeconds], rules: Rules, local: Local, wall: float, opened_at: float
) -> tuple[list[Start], list[Skip]]:
    skips: list[Skip] = []
    left: list[EpochSeconds] = []
    for at in due:
        reason = _unwanted(job, at, rules, local, wall, opened_at)
        if reason is None:
            left.append(at)
        else:
            skips.append(Skip(job.name, at, reason))
    if job.coalesce or rules.mode is Mode.LAST:
        skips += [Skip(job.name, at, Reason.COALESCED) for at in left[:-1]]
        left = left[-1:]
    if left and local.blocked(job.name):
        skips += [Skip(job.name, at, Reason.CONCURRENCY_FORBID) for at in left]
        left = []
    return [Start(job.name, at, late=is_late(at, wall, opened_at)) for at in left], skips


def _unwanted(
    job: Claimable, at: EpochSeconds, rules: Rules, local: Local, wall: float, opened_at: float
) -> Reason | None:
    if local.started(job.name, at):
        return Reason.STARTED_UNCLAIMED
    if local.paused(job.name, at):
        return Reason.PAUSED
    if job.deadline is not None and wall - at > job.deadline:
        return Reason.STARTING_DEADLINE
    if rules.mode is Mode.NONE and is_late(at, wall, opened_at):
        return Reason.CATCH_UP_OFF
    return None
