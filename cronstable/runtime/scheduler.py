"""The scheduler: looks at the clock, takes what is due from the agenda, asks the gate, and launches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

import anyio
import anyio.lowlevel

from cronstable.core.agenda import BACKWARD_LIMIT, Agenda, Due, Missed
from cronstable.core.clock import Clock, EpochSeconds, Instant, Seconds, until_next
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.gate import NO_ELECTION, decide
from cronstable.core.job import Job
from cronstable.core.runs import Trigger
from cronstable.plugin.protocols import Pause
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.launcher import Launcher

SPAWN_GATE = 16
"""Launches between two turns of the event loop (reference 2.2)."""
ENDS_WAIT: Seconds = 0.5
"""For how long at most the ends of runs wait while a burst of others starts."""
LONGEST_SLEEP: Seconds = 60.0
STEP: Seconds = 1.0
"""A wall clock that moved this much against the boot clock was stepped, and that is worth a warning."""


class Claimer(Protocol):
    """Whoever claims occurrences before they start, on backends that keep a claim log."""

    def owns(self, job: Job) -> bool:
        """Whether occurrences of ``job`` are decided through the claim log."""
        ...

    def takes(self, job: Job, scheduled_at: EpochSeconds) -> bool:
        """The gate lets this occurrence start: True when it is claimed first, and the scheduler leaves it alone."""
        ...


class Scheduler:
    """One loop: due jobs are decided and launched, then it sleeps until the next one, at most a minute."""

    def __init__(self, *, clock: Clock, cluster: ClusterManager, launcher: Launcher, log: logging.Logger) -> None:
        self._clock = clock
        self._cluster = cluster
        self._launcher = launcher
        self._log = log
        self._agenda = Agenda()
        self._sleep = anyio.CancelScope()
        self._before: Instant | None = None
        self._next_fires: Mapping[str, EpochSeconds | None] = MappingProxyType({})
        self._dirty = False
        self._loaded = anyio.Event()
        self.claimer: Claimer | None = None
        self.paused_since: Callable[[str, EpochSeconds], EpochSeconds | None] = lambda job, at: None
        self.after_success: Callable[[Job], Decision | None] = lambda job: None
        self.since: EpochSeconds | None = None
        """Of the first job set that was loaded: what falls due later is decided here, what is not later was missed."""
        self.jobs: Mapping[str, Job] = MappingProxyType({})
        self.pauses: Mapping[str, Pause] = MappingProxyType({})

    # -- the job set --------------------------------------------------------------------------------------------------

    def load(self, jobs: Iterable[Job]) -> None:
        """Take over a job set; running jobs are not touched."""
        self.jobs = MappingProxyType({job.name: job for job in jobs})
        now = self._clock.now().wall
        self._agenda.load(self.jobs.values(), now)
        if self.since is None:
            self.since = int(now)
        self._launcher.forget(self.jobs)
        self._dirty = True
        loaded, self._loaded = self._loaded, anyio.Event()
        loaded.set()
        self.poke()

    async def loaded(self) -> None:
        """Wait until another job set is loaded."""
        await self._loaded.wait()

    def next_fires(self) -> Mapping[str, EpochSeconds | None]:
        """Next fire of every scheduled job; the same object as long as nothing changed."""
        if self._dirty:
            self._next_fires = MappingProxyType(dict(self._agenda.next_fires()))
            self._dirty = False
        return self._next_fires

    def poke(self) -> None:
        """Look again now: the job set, the leadership or the intent to stop changed."""
        self._sleep.cancel()

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, job: Job, scheduled_at: EpochSeconds | None = None) -> Decision:
        """May this node start ``job`` at this instant? Any failure to find out means no.

        ``scheduled_at``: the occurrence that came due, where there is one. DEFER: ask again after a refresh.
        """
        if self._launcher.stopping:
            return Decision(Verdict.SKIP, Reason.STOPPING)
        try:
            if not self._cluster.elects:
                return NO_ELECTION
            view = self._cluster.view()
            now = self._clock.now()
            due = None if scheduled_at is None else now.boot - (now.wall - scheduled_at)
            policy = job.options.cluster_policy
            return decide(policy, job.name, election_configured=True, view=view, boot=now.boot, due=due)
        except Exception as error:  # noqa: BLE001 - a view comes from a plugin; no answer means no
            self._log.exception("job %s: the gate failed, so it does not run", job.name)
            return Decision(Verdict.SKIP, Reason.GATE_ERROR, MappingProxyType({"error": type(error).__name__}))

    def paused(self, job: Job) -> Decision | None:
        """The skip that a pause asks for, None when the job is not paused now."""
        pause = self.pauses.get(job.name)
        if pause is None or pause.until <= self._clock.now().wall:
            return None
        return Decision(Verdict.SKIP, Reason.PAUSED, MappingProxyType({"until": pause.until, "note": pause.note}))

    def set_pause(self, job: str, pause: Pause | None) -> None:
        """Put a pause into force, or end what is in force."""
        pauses = {name: one for name, one in self.pauses.items() if name != job}
        if pause is not None:
            pauses[job] = pause
        self.pauses = MappingProxyType(pauses)

    def paused_at(self, job: Job, at: EpochSeconds) -> bool:
        """Whether the occurrence ``at`` lies in a pause, of now or of before (claims.md 15)."""
        pause = self.pauses.get(job.name)
        now = pause is not None and (pause.since is None or pause.since <= at) and at < pause.until
        return now or self.paused_since(job.name, at) is not None

    def launch(self, job: Job, trigger: Trigger, scheduled_at: EpochSeconds | None, *, final: bool = False) -> Decision:
        """Decide about one occurrence and start it if it may run.

        A DEFER is recorded and returned: the caller asks again, with ``final``, which turns another DEFER to a skip.
        """
        self._launcher.ends.settle(job.name)
        decision = self.paused(job) or self.decide(job, scheduled_at)
        if final:
            decision = _terminal(decision)
        claimer = self.claimer if trigger is Trigger.SCHEDULE else None
        claimed = claimer is not None and claimer.owns(job)
        if decision.verdict is Verdict.RUN and not claimed:
            decision = self.after_success(job) or decision
        if decision.verdict is not Verdict.RUN:
            # What is claimed is decided by whoever leads, perhaps later: this is what this node thinks for now.
            self._launcher.record(job, scheduled_at, decision, provisional=claimed)
            return decision
        if claimer is not None and scheduled_at is not None and claimer.takes(job, scheduled_at):
            return decision
        started = self._launcher.start(
            job,
            decision,
            scheduled_at=scheduled_at,
            trigger=trigger,
            recheck=lambda: _terminal(self.recheck(job)),
        )
        return started if isinstance(started, Decision) else decision

    def recheck(self, job: Job) -> Decision:
        """The last question before the spawn; a run that waited in a queue may find its job gone or paused."""
        current = self.jobs.get(job.name)
        if current is None or not current.options.enabled:
            return Decision(Verdict.SKIP, Reason.DISABLED)
        return self.paused(job) or self.decide(job)

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Schedule until the launcher is told to stop."""
        async with anyio.create_task_group() as tasks:
            while not self._launcher.stopping:
                now = self._clock.now()
                self._notice_steps(now)
                batch = self._agenda.take(now.wall)
                if batch.rounds or batch.missed:
                    self._dirty = True
                for missed in batch.missed:
                    self._skip_missed(missed, now)
                deferred: list[Due] = []
                for due in batch.rounds:
                    await self._round(due, deferred)
                if deferred:
                    # Beside the loop: an election in doubt must not hold up the jobs that ask nobody.
                    tasks.start_soon(self._ask_again, deferred)
                await self._wait()
            tasks.cancel_scope.cancel()

    async def _round(self, due: tuple[Due, ...], deferred: list[Due]) -> None:
        began = self._clock.now().boot
        try:
            for i, occurrence in enumerate(due, start=1):
                decision = self.launch(occurrence.job, Trigger.SCHEDULE, occurrence.scheduled_at)
                if decision.reason is Reason.STALE_VIEW:
                    deferred.append(occurrence)
                # The last ones as well are spawned in the turn of the loop that follows.
                if i % SPAWN_GATE == 0 or i == len(due):
                    self._starts_first(self._clock.now().boot - began)
                    await anyio.lowlevel.checkpoint()
        finally:
            self._launcher.ends.release()

    def _starts_first(self, since: Seconds) -> None:
        """While a burst starts, the runs of it that ended already wait to be written down; not for long."""
        if since < ENDS_WAIT:
            self._launcher.ends.hold()
        else:
            self._launcher.ends.release()

    async def _ask_again(self, deferred: Sequence[Due]) -> None:
        """One look of the election, then a decision about each, on the definition of now."""
        await self._cluster.refresh()
        for i, occurrence in enumerate(deferred, start=1):
            job = self.jobs.get(occurrence.job.name)
            if job is None or not job.options.enabled:
                self._launcher.record(occurrence.job, occurrence.scheduled_at, Decision(Verdict.SKIP, Reason.DISABLED))
            else:
                self.launch(job, Trigger.SCHEDULE, occurrence.scheduled_at, final=True)
            if i % SPAWN_GATE == 0:
                await anyio.lowlevel.checkpoint()

    async def _wait(self) -> None:
        with anyio.CancelScope() as self._sleep:
            now = self._clock.now()
            due = self._agenda.next_at
            longest = until_next(LONGEST_SLEEP, now)
            await self._clock.sleep(longest if due is None else min(due - now.wall, longest))

    def _skip_missed(self, missed: Missed, now: Instant) -> None:
        evidence = MappingProxyType({"first": missed.first, "last": missed.last, "late_by": now.wall - missed.last})
        decision = Decision(Verdict.SKIP, Reason.LATE_RESYNC, evidence)
        if self.claimer is not None and self.claimer.owns(missed.job):
            # The sweep finds them, as far as they lie in its window.
            self._launcher.record(missed.job, missed.last, decision, provisional=True)
            return
        self._log.warning("job %s: slots missed while the daemon or its clock stood still are skipped", missed.job.name)
        self._launcher.record(missed.job, missed.last, decision)

    def _notice_steps(self, now: Instant) -> None:
        """Say when the wall clock was stepped; after a huge step back the old next fires mean nothing."""
        before, self._before = self._before, now
        if before is None:
            return
        step = (now.wall - before.wall) - (now.boot - before.boot)
        if abs(step) > STEP:
            self._log.warning("the wall clock was stepped by %+.1f s; jobs follow the new time", step)
        if step < -BACKWARD_LIMIT:
            self._agenda.reseed(now.wall)
            self._dirty = True


def _terminal(decision: Decision) -> Decision:
    """A decision that is not asked for again: what would have to wait is skipped."""
    return replace(decision, verdict=Verdict.SKIP) if decision.verdict is Verdict.DEFER else decision
