"""Missed runs at work: watermarks as decisions are made, and after a start what ``onMissed`` asks for (reference 4.4).

Only at the start of a daemon, and by whoever owns the job then or later: a catch-up that its owner did not come to is
in the checkpoint, and goes on with the next owner. On backends that claim occurrences the sweep decides what lies in
its window; what is older comes through here, by the same log (claims.md 15).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

import anyio

from cronstable.core.clock import Clock, EpochSeconds, Seconds, until_next
from cronstable.core.decision import Decision, DecisionRecord, Reason, Verdict
from cronstable.core.job import ClusterPolicy, Job
from cronstable.core.missed import (
    Checkpoint,
    Gap,
    MissedPolicy,
    OnMissed,
    definition,
    delay,
    gap_of,
    missed_policy,
    owed,
)
from cronstable.core.records import KEEP, WriteKind, stream
from cronstable.core.runs import Outcome, Trigger
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.history import RunHistory
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.scheduler import Scheduler
from cronstable.runtime.state import StateKeeper

LOOK_EVERY: Final[Seconds] = 1.0
EAGER: Final[Seconds] = 60.0
IDLE: Final[Seconds] = 15.0
"""Between two looks later on: a job that a reload brought gets its first watermark this late."""
ABREAST: Final = 16
"""Jobs that catch up at the same time; each one starts its runs one after the other."""
KEPT: Final = KEEP[WriteKind.CHECKPOINT]


class LateClaimer(Protocol):
    """The claims driver, as far as missed runs need it."""

    def owns(self, job: Job) -> bool: ...

    @property
    def window(self) -> Seconds:
        """How far back the sweep looks; 0 without a claim log."""
        ...

    @property
    def has_swept(self) -> bool:
        """Whether the sweep has looked, and has given up what is too old for it."""
        ...

    def catch_up(self, job: Job, at: EpochSeconds, over: Callable[[Decision | None], None]) -> bool:
        """Claim an occurrence that is older than the window, and launch it.

        False: not now. ``over`` is called when the run is over, with what refused it, if anything did.
        """
        ...


class MissedRuns:
    """Watches every decision of jobs with ``onMissed``, and catches up what fell due while no daemon was there."""

    def __init__(
        self,
        *,
        keeper: StateKeeper,
        scheduler: Scheduler,
        cluster: ClusterManager,
        launcher: Launcher,
        history: RunHistory,
        claimer: LateClaimer,
        clock: Clock,
        log: logging.Logger,
    ) -> None:
        self._keeper = keeper
        self._scheduler = scheduler
        self._cluster = cluster
        self._launcher = launcher
        self._history = history
        self._claimer = claimer
        self._clock = clock
        self._log = log
        self._boot = clock.now().boot
        self._seen: Mapping[str, Job] = MappingProxyType({})
        self._jobs: tuple[Job, ...] = ()
        self._checkpoints: dict[str, Checkpoint] = {}
        self._known: set[str] = set()
        self._unread: dict[str, EpochSeconds] = {}
        self._gaps: dict[str, Gap] = {}
        self._busy: set[str] = set()
        self._starting: dict[str, EpochSeconds] = {}
        self._given_up: dict[str, set[EpochSeconds]] = {}
        self._led_at: float | None = None
        self._generation = 0
        launcher.decided = self._decided

    # -- watermarks ---------------------------------------------------------------------------------------------------

    def _decided(self, record: DecisionRecord) -> None:
        """An occurrence was decided here: the watermark of its job moves."""
        at, job = record.scheduled_at, self._scheduler.jobs.get(record.job)
        if at is None or record.provisional or job is None or not self._watches(job):
            return
        if record.decision.reason is Reason.OUTSIDE_WINDOW:
            # The sweep gave it up as too old for it, which is what this is for (claims.md 15).
            if job.name in self._gaps or job.name not in self._known:
                self._given_up.setdefault(job.name, set()).add(at)
            return
        checkpoint = self._checkpoints.get(job.name)
        if checkpoint is None:
            # Nothing is written over a watermark that was not read yet, or that may be another owner's.
            self._unread[job.name] = max(at, self._unread.get(job.name, at))
            return
        gap = checkpoint.gap
        if gap is not None and self._starting.get(job.name) == at:
            # Ours, and in order; the sweep may have decided about newer ones before.
            self._gaps[job.name] = gap = Gap(at, gap.until)
        if at > checkpoint.through or gap != checkpoint.gap:
            self._mark(job, Checkpoint(checkpoint.definition, max(at, checkpoint.through), gap))

    def _watches(self, job: Job) -> bool:
        return (
            self._keeper.configured
            and not job.schedule.reboot
            and missed_policy(job.options.raw).mode is not OnMissed.SKIP
        )

    def _mark(self, job: Job, checkpoint: Checkpoint) -> None:
        self._checkpoints[job.name] = checkpoint
        record = checkpoint.record(self._clock.now().wall)
        self._keeper.write(WriteKind.CHECKPOINT, self._stream(job), record, keep=KEPT)

    def _stream(self, job: Job) -> str:
        """One for all nodes, unless each of them runs the job for itself."""
        own = self._is_own(job)
        return stream("catchup", job.name, self._launcher.node) if own else stream("catchup", job.name)

    def _is_own(self, job: Job) -> bool:
        return self._cluster.elects and job.options.cluster_policy is ClusterPolicy.EVERY_NODE

    # -- after the start ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read watermarks, catch up what is owed, and begin watermarks of jobs that have none; until cancelled."""
        async with anyio.create_task_group() as tasks:
            while not self._launcher.stopping:
                self._notice_leader()
                await self._read()
                for name in self._ready():
                    self._busy.add(name)
                    tasks.start_soon(self._catch_up, name)
                await self._clock.sleep(LOOK_EVERY if self._is_eager() else until_next(IDLE, self._clock.now()))
            tasks.cancel_scope.cancel()

    def _is_eager(self) -> bool:
        """Soon after the start; who only follows then, with the gaps of thousands of jobs, looks at them rarely."""
        if self._busy or self._is_behind():
            return True
        return bool(self._gaps) and self._clock.now().boot < self._boot + EAGER

    def _notice_leader(self) -> None:
        if self._led_at is None and self._cluster.elects:
            view = self._cluster.view()
            if view is not None and view.quorate and (view.leader is not None or view.owners):
                self._led_at = self._clock.now().wall

    async def _read(self) -> None:
        """The watermarks that are not known yet: of all jobs after the start, of new ones after a reload."""
        if self._keeper.generation != self._generation:
            self._generation = self._keeper.generation
            self._checkpoints.clear()
            self._known.clear()
        if self._scheduler.jobs is not self._seen:
            self._load(self._scheduler.jobs)
        if not self._is_behind():
            return
        waiting = iter([job for job in self._jobs if job.name not in self._known])

        async def read() -> None:
            for job in waiting:
                if not await self._read_one(job):
                    return

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(read)

    def _is_behind(self) -> bool:
        return self._keeper.configured and any(job.name not in self._known for job in self._jobs)

    def _load(self, jobs: Mapping[str, Job]) -> None:
        self._seen = jobs
        self._jobs = tuple(job for job in jobs.values() if self._watches(job))
        for job in self._jobs:
            if not self._same(job):
                # Another schedule: what the old one would have had is not owed, and nothing of the new one yet.
                self._gaps.pop(job.name, None)
                self._mark(job, Checkpoint(definition(job), int(self._clock.now().wall)))
        self._given_up = {name: at for name, at in self._given_up.items() if name in self._gaps}

    def _gap(self, checkpoint: Checkpoint | None, job: Job) -> Gap | None:
        """What was missed before the scheduler of this daemon looked at its first job set."""
        start = self._scheduler.since
        return None if start is None else gap_of(checkpoint, job, start)

    def _same(self, job: Job) -> bool:
        known = self._checkpoints.get(job.name)
        return known is None or known.definition == definition(job)

    async def _read_one(self, job: Job) -> bool:
        newest = await self._keeper.newest(self._stream(job))
        if newest is None:
            return False
        self._known.add(job.name)
        found = Checkpoint.of(newest.record) if newest.record is not None else None
        if found is None or found.definition != definition(job) or not job.options.enabled:
            # It has missed nothing so far; from now on it can.
            self._begin(job)
            return True
        # A store that a reload brought is not the one in which this start finds what was missed.
        gap = self._gap(found, job) if self._generation == 1 else None
        if gap is not None and not self._may_be_owed(job):
            gap = None
        if gap is not None:
            self._gaps[job.name] = gap
        if gap is None or not self._is_contested(job):
            self._settle(job, found, gap)
        return True

    def _begin(self, job: Job) -> None:
        now = int(self._clock.now().wall)
        self._mark(job, Checkpoint(definition(job), max(now, self._unread.pop(job.name, now))))

    def _settle(self, job: Job, found: Checkpoint, gap: Gap | None) -> None:
        """From here on this is how far ``job`` is; what was decided before that was known is written now."""
        through = max(found.through, self._unread.pop(job.name, found.through))
        self._checkpoints[job.name] = Checkpoint(found.definition, through, gap)
        if through > found.through:
            self._mark(job, self._checkpoints[job.name])

    def _is_contested(self, job: Job) -> bool:
        """Whether another node may catch up as well: then only who owns the job says how far it is."""
        return self._cluster.elects and self._keeper.shared and not self._is_own(job)

    def _may_be_owed(self, job: Job) -> bool:
        """Where nodes elect but do not share the store, this node cannot know what the others ran."""
        if not self._cluster.elects or job.options.cluster_policy is ClusterPolicy.EVERY_NODE or self._keeper.shared:
            return True
        self._log.warning("job %s: onMissed has no effect: the nodes elect, but do not share the state store", job.name)
        return False

    def _ready(self) -> Iterable[str]:
        """Jobs whose time has come and that are ours, as far as there is room."""
        boot = self._clock.now().boot
        for name in tuple(self._gaps):
            job = self._scheduler.jobs.get(name)
            if job is None or not job.options.enabled or not self._watches(job):
                # Nothing is owed for what was removed or disabled (claims.md 13).
                del self._gaps[name]
                if job is not None and name in self._checkpoints:
                    now = int(self._clock.now().wall)
                    self._mark(job, Checkpoint(definition(job), max(self._checkpoints[name].through, now)))
                continue
            if len(self._busy) >= ABREAST or name in self._busy:
                continue
            if boot < self._boot + delay(name, missed_policy(job.options.raw).jitter):
                continue
            if self._claimer.owns(job) and (self._led_at is None or not self._claimer.has_swept):
                continue
            if self._may_start(job):
                yield name

    def _may_start(self, job: Job) -> bool:
        return self._scheduler.recheck(job).verdict is Verdict.RUN

    # -- one job ------------------------------------------------------------------------------------------------------

    async def _catch_up(self, name: str) -> None:
        try:
            job = self._scheduler.jobs.get(name)
            if job is None or not await self._refresh(job):
                return
            if await self._start_all(job):
                through = max(self._checkpoints[name].through, self._gaps.pop(name).until)
                self._mark(job, Checkpoint(definition(job), through))
            elif self._is_contested(job):
                # Another owner may go on with it: what is decided here meanwhile waits until that is known.
                self._checkpoints.pop(name, None)
        except Exception:  # noqa: BLE001 - a defect of ours costs this job its catch-up, never the daemon
            self._log.exception("job %s: what it missed cannot be caught up", name)
            self._gaps.pop(name, None)
        finally:
            self._starting.pop(name, None)
            self._busy.discard(name)

    async def _refresh(self, job: Job) -> bool:
        """What is in the checkpoint now: another owner may have come before us. False: nothing to do, or not known."""
        if not self._is_contested(job):
            return True
        newest = await self._keeper.newest(self._stream(job))
        if newest is None:
            return False
        found = Checkpoint.of(newest.record) if newest.record is not None else None
        gap = self._gap(found, job)
        if gap is None:
            # Settled by the owner before us.
            self._gaps.pop(job.name, None)
        else:
            self._gaps[job.name] = gap
        if found is None or found.definition != definition(job):
            self._begin(job)
            return False
        self._settle(job, found, gap)
        if gap is not None:
            self._mark(job, self._checkpoints[job.name])
        return gap is not None

    async def _start_all(self, job: Job) -> bool:
        """Start what is owed, one run after the other; False when something came in between."""
        policy, claimed = missed_policy(job.options.raw), self._claimer.owns(job)
        missed = await self._missed(job, policy, claimed)
        if missed:
            self._log.info("job %s: %d missed runs are caught up (%s)", job.name, len(missed), policy.mode)
        for at in missed:
            if not self._may_start(job):
                return False
            self._starting[job.name] = at
            if policy.deadline is not None and self._clock.now().wall - at > policy.deadline:
                self._launcher.record(job, at, _too_late(policy, self._clock.now().wall - at))
            elif not await self._start_one(job, at, claimed):
                return False
            if not self._goes_on(job.name):
                return False
            if self._gaps[job.name].after < at:
                self._gaps[job.name] = Gap(at, self._gaps[job.name].until)
            await self._mark_well(job)
            if not self._goes_on(job.name):
                return False
        return True

    def _goes_on(self, name: str) -> bool:
        """Whether no reload took the gap, or the store, away meanwhile."""
        return name in self._gaps and name in self._checkpoints

    async def _mark_well(self, job: Job) -> None:
        """Not only soon: runs can be shorter than writes, and a kill would repeat all that are not written down."""
        checkpoint = Checkpoint(definition(job), self._checkpoints[job.name].through, self._gaps[job.name])
        self._checkpoints[job.name] = checkpoint
        record = checkpoint.record(self._clock.now().wall)
        if not await self._keeper.append(WriteKind.CHECKPOINT, self._stream(job), record, keep=KEPT):
            self._mark(job, checkpoint)

    async def _missed(self, job: Job, policy: MissedPolicy, claimed: bool) -> Sequence[EpochSeconds]:
        gap, given_up = self._gaps[job.name], self._given_up.pop(job.name, set())
        older = gap
        if claimed and self._led_at is not None:
            older = Gap(gap.after, min(gap.until, int(self._led_at - self._claimer.window)))
        done = await self._done(job)
        paused_since = partial(self._scheduler.paused_since, job.name)
        found = owed(job.schedule, older, policy, self._clock.now().wall, paused_since)
        if found.more:
            self._log.warning("job %s: more than %d runs were missed; the newest are run", job.name, len(found.run))
        left = {at for at in given_up if gap.after < at <= gap.until and paused_since(at) is None}
        missed = sorted(at for at in {*found.run, *left} if at not in done)
        return missed[-1:] if policy.mode is OnMissed.RUN_ONCE else missed

    async def _done(self, job: Job) -> frozenset[EpochSeconds]:
        """Occurrences that have a row: the daemon before died between a start and its watermark."""
        rows = await self._history.last(job.name) or ()
        if self._is_own(job):
            rows = [row for row in rows if row.node in (self._launcher.node, None)]
        ran = (row.key.scheduled_at for row in rows if row.outcome is not Outcome.SKIPPED)
        return frozenset(at for at in ran if at is not None)

    async def _start_one(self, job: Job, at: EpochSeconds, claimed: bool) -> bool:
        """Start one run and wait for its end; False when it could not be claimed now."""
        ended, refusals = anyio.Event(), []

        def over(refusal: Decision | None) -> None:
            refusals.append(refusal)
            ended.set()

        if claimed:
            if not self._claimer.catch_up(job, at, over):
                return False
        else:
            evidence = MappingProxyType({"late_by": self._clock.now().wall - at})
            started = self._launcher.start(
                job,
                Decision(Verdict.RUN, Reason.CATCH_UP, evidence),
                scheduled_at=at,
                trigger=Trigger.CATCHUP,
                recheck=lambda: self._scheduler.recheck(job),
                on_over=over,
            )
            if isinstance(started, Decision):
                return True
        await ended.wait()
        refusal = refusals[0]
        return refusal is None or refusal.verdict is Verdict.SKIP


def _too_late(policy: MissedPolicy, late: Seconds) -> Decision:
    evidence: Mapping[str, float | None] = {"late_by": late, "deadline": policy.deadline}
    return Decision(Verdict.SKIP, Reason.STARTING_DEADLINE, MappingProxyType(evidence))
