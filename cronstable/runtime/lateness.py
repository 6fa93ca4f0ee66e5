"""Watches the limits of ``sla`` once a minute and says once what trips (reference 2: only the owner evaluates)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from cronstable.core.clock import Clock, EpochSeconds, Seconds
from cronstable.core.decision import Verdict
from cronstable.core.hooks import Lateness
from cronstable.core.job import Job
from cronstable.core.retry import moved
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.sla import Breach, Check, Facts, breaches, latch, limits_of
from cronstable.plugin.protocols import Report
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.scheduler import Scheduler

PAST_THE_MINUTE: Seconds = 0.5
"""So that the starts of a full minute are there when it is looked at."""


class LateReports(Protocol):
    """Whoever tells people that a job is late."""

    def report(self, report: Report) -> None:
        """Tell whoever the job names for this event. Must neither wait nor raise."""
        ...


class LatenessWatch:
    """Implements the launcher's ``RunListener``.

    A node judges a job while it owns it, and on while nobody is known to own it: when quorum is lost, the last owner
    is the one to say that its jobs do not run. What happened before this node watched a job is not held against it,
    nor is a pause.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        scheduler: Scheduler,
        cluster: ClusterManager,
        launcher: Launcher,
        log: logging.Logger,
        reports: LateReports | None = None,
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._cluster = cluster
        self._launcher = launcher
        self._log = log
        self._reports = reports
        self._owned: set[str] = set()
        self._since: dict[str, tuple[Schedule, float]] = {}
        self._started: dict[str, float] = {}
        self._succeeded: dict[str, tuple[float, Seconds | None]] = {}
        self._looked = 0.0
        self._began = float("inf")
        self._between: dict[str, dict[Check, Seconds]] = {}
        self._latched: dict[str, frozenset[Check]] = {}
        self._found: dict[str, tuple[Lateness, ...]] = {}
        self.late: Mapping[str, tuple[Lateness, ...]] = MappingProxyType({})
        self.breaches: dict[tuple[str, str], int] = {}

    # -- what happens to runs -----------------------------------------------------------------------------------------

    def started(self, job: Job, run: LiveRun) -> None:
        """A run answers every scheduled time up to its start."""
        self._started[job.name] = run.started_at
        if run.key.scheduled_at is not None and run.key.trigger is Trigger.SCHEDULE:
            self._meanwhile(job, Check.LATE_START, run.key.scheduled_at, run.started_at - run.key.scheduled_at)

    def finished(self, job: Job, record: RunRecord) -> None:
        """A run that failed to launch answers them too: it is a failure, and not late."""
        if record.started_at is not None:
            self._started[job.name] = max(record.started_at, self._started.get(job.name, 0.0))
        if record.outcome is Outcome.SUCCESS:
            self._succeeded[job.name] = (record.finished_at, record.duration)
        if record.started_at is not None and record.duration is not None:
            self._meanwhile(job, Check.LONG_RUN, record.started_at, record.duration)

    def recalled(self, job: str, rows: Sequence[RunRecord]) -> None:
        """What happened to ``job`` before this daemon began: a restart does not make a stale job fresh."""
        for record in rows:
            if record.outcome is Outcome.SUCCESS and record.finished_at > self._succeeded.get(job, (0.0, None))[0]:
                self._succeeded[job] = (record.finished_at, None)

    def _meanwhile(self, job: Job, check: Check, since: float, span: Seconds) -> None:
        """Keep the worst between two looks; what began at ``since`` and was too long at the last look is told."""
        limit = limits_of(job.options.raw).get(check)
        if limit is not None and since + limit >= self._looked:
            worst = self._between.setdefault(job.name, {})
            worst[check] = max(span, worst.get(check, 0.0))

    # -- judging ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Judge once at the start, which begins the watch, and then after each full minute while a job has limits."""
        while True:
            self.look()
            if not any("sla" in job.options.raw for job in self._scheduler.jobs.values()):
                await self._scheduler.loaded()
                # As after a look: what ran too long before is not told now.
                self._looked = self._clock.now().wall
            wall = self._clock.now().wall
            await self._clock.sleep(60 - (wall - PAST_THE_MINUTE) % 60)

    def look(self) -> None:
        """Judge every job now."""
        jobs = self._scheduler.jobs
        self._began = min(self._began, self._clock.now().wall)
        limited = {name: job for name, job in jobs.items() if "sla" in job.options.raw}
        for known in (self._started, self._succeeded):
            for name in [name for name in known if name not in jobs]:
                del known[name]
        # A job that a reload leaves without limits is no longer late.
        for judged in (self._since, self._between, self._latched, self._found):
            for name in [name for name in judged if name not in limited]:
                del judged[name]
        for job in limited.values():
            try:
                self._judge(job)
            except Exception:  # noqa: BLE001 - what cannot be judged must end neither the watch nor the daemon
                self._log.exception("job %s: its limits cannot be looked at", job.name)
        self._looked = self._clock.now().wall
        if self._found != self.late:
            self.late = MappingProxyType(dict(self._found))

    def _judge(self, job: Job) -> None:
        now = self._clock.now().wall
        between = self._between.pop(job.name, {})
        schedule, since = self._since.get(job.name, (None, now))
        if not self._owns(job) or self._scheduler.paused(job) is not None or not job.options.enabled:
            self._since[job.name] = (job.schedule, now)
            self._latched.pop(job.name, None)
            self._found.pop(job.name, None)
            return
        if schedule is None or schedule != job.schedule:
            since = now
        self._since[job.name] = (job.schedule, since)
        facts = self._facts(job, since, now, between)
        tripped = breaches(limits_of(job.options.raw), facts)
        self._latched[job.name], fresh, over = latch(self._latched.get(job.name, frozenset()), tripped)
        self._note(job, tripped, now)
        for breach in fresh:
            self._tell(job, breach, facts)
        for check in over:
            self._log.info("job %s: %s is kept again", job.name, check.key)

    def _owns(self, job: Job) -> bool:
        if self._scheduler.decide(job).verdict is Verdict.RUN:
            self._owned.add(job.name)
        else:
            try:
                gone = moved(job.name, self._cluster.view())
            except Exception:  # noqa: BLE001 - the view comes from a plugin; the gate has logged its failure
                gone = False
            if gone:
                self._owned.discard(job.name)
        return job.name in self._owned

    def _facts(self, job: Job, since: float, now: float, between: Mapping[Check, Seconds]) -> Facts:
        success, duration = self._succeeded.get(job.name, (since, None))
        watched_from = 0.0 if since <= self._began else since
        return Facts(
            now=now,
            due=self._unanswered(job, max(since, self._started.get(job.name, since)), now),
            oldest_start=min((run.started_at for run in self._launcher.live().get(job.name, ())), default=None),
            success_since=max(success, watched_from),
            last_duration=duration,
            late_start=between.get(Check.LATE_START),
            long_run=between.get(Check.LONG_RUN),
        )

    @staticmethod
    def _unanswered(job: Job, after: float, now: float) -> EpochSeconds | None:
        if job.schedule.reboot:
            return None
        due = job.schedule.next_after(int(after))
        return due if due is not None and due <= now else None

    def _note(self, job: Job, tripped: Sequence[Breach], now: float) -> None:
        """Keep what was found now for whoever looks, with the time at which each check tripped first."""
        before = {lateness.check: lateness.since for lateness in self._found.pop(job.name, ())}
        last = self._succeeded.get(job.name, (None, None))[0]
        found = tuple(
            Lateness(b.check.value, b.threshold, b.observed, last, before.get(b.check.value, now)) for b in tripped
        )
        if found:
            self._found[job.name] = found

    def _tell(self, job: Job, breach: Breach, facts: Facts) -> None:
        self._log.warning("job %s: %s", job.name, breach.words)
        counted = (job.name, breach.check.value)
        self.breaches[counted] = self.breaches.get(counted, 0) + 1
        if self._reports is None:
            return
        key = RunKey("", job.name, facts.due)
        record = RunRecord(key, Outcome.FAILURE, None, facts.oldest_start, facts.now, None, fail_reason=breach.words)
        lateness = next(one for one in self._found[job.name] if one.check == breach.check)
        self._reports.report(Report("onLate", job, record, facts=lateness))
