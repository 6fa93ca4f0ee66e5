"""Counts what happens when it happens: always on, plain numbers, nothing of a metrics library (reference 8)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Protocol

from cronstable.core.clock import Clock, Seconds, until_next
from cronstable.core.decision import DecisionRecord, Verdict
from cronstable.core.events import Decided, Event, RunFinished, RunStarted
from cronstable.core.job import Json
from cronstable.core.runs import LAUNCH_FAILED, Outcome, RunRecord, Trigger
from cronstable.core.tally import DELAY_BOUNDS, DURATION_BOUNDS, JobTally, NotifierTally, Observed, Tally
from cronstable.plugin.protocols import Report

LOOK: Seconds = 5.0
"""Between two looks at how late the event loop is: rare, because an idle daemon is to cost nothing."""
LOOKS = 12
"""Looks that the worst one is of: a minute's."""


class Delivered(Protocol):
    """What became of the messages of one notifier."""

    sent: int
    failed: int
    dropped: int


class _Job:
    """One job's numbers, changed in place."""

    __slots__ = (
        "breaches",
        "cpu",
        "duration",
        "last_failure",
        "last_success",
        "outcomes",
        "peak_rss",
        "permanent_failures",
        "retries",
        "start_failures",
    )

    def __init__(self, bounds: tuple[Seconds, ...]) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.retries = self.permanent_failures = self.start_failures = self.peak_rss = 0
        self.duration = Observed(bounds)
        self.last_success: float | None = None
        self.last_failure: float | None = None
        self.breaches: dict[str, int] = {}
        self.cpu = [0.0, 0.0]

    def join(self, other: JobTally) -> None:
        """Counts of before the start of this daemon."""
        for outcome in Outcome:
            self.outcomes[outcome] += getattr(other, outcome.value)
        self.retries += other.retries
        self.permanent_failures += other.permanent_failures
        self.start_failures += other.start_failures
        self.peak_rss = max(self.peak_rss, other.peak_rss)
        if other.duration is not None:
            self.duration.join(other.duration)
        self.last_success = max(self.last_success or 0.0, other.last_success or 0.0) or None
        self.last_failure = max(self.last_failure or 0.0, other.last_failure or 0.0) or None
        for check, count in other.breaches.items():
            self.breaches[check] = self.breaches.get(check, 0) + count
        self.cpu = [self.cpu[0] + other.cpu_user, self.cpu[1] + other.cpu_system]

    def value(self) -> JobTally:
        return JobTally(
            **{outcome.value: count for outcome, count in self.outcomes.items()},
            retries=self.retries,
            permanent_failures=self.permanent_failures,
            start_failures=self.start_failures,
            duration=self.duration.value(),
            last_success=self.last_success,
            last_failure=self.last_failure,
            breaches=MappingProxyType(dict(self.breaches)),
            cpu_user=self.cpu[0],
            cpu_system=self.cpu[1],
            peak_rss=self.peak_rss,
        )


class TallyKeeper:
    """Hears of everything synchronously: what waits in a queue can be dropped, and a count must not be.

    ``transitions``: of leadership and of quorum so far; ``delivered``: by notifier.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        transitions: Callable[[], tuple[int, int]] = lambda: (0, 0),
        delivered: Callable[[], Mapping[str, Delivered]] = dict,
    ) -> None:
        self._clock = clock
        self._transitions = transitions
        self._delivered = delivered
        self._bounds = DURATION_BOUNDS
        self._jobs: dict[str, _Job] = {}
        self._names: Collection[str] = ()
        self._decisions: dict[tuple[str, str, bool], int] = {}
        self._decision_delay = Observed(DELAY_BOUNDS)
        self._claim_delay = Observed(DELAY_BOUNDS)
        self._claims: dict[str, int] = {}
        self._catch_ups = 0
        self._lags: deque[Seconds] = deque(maxlen=LOOKS)
        self._shown: dict[str, JobTally] = {}
        self._stale: set[str] = set()
        self._jobs_shown: Mapping[str, JobTally] = MappingProxyType({})
        self._last: tuple[object, Tally] | None = None
        self._heard = 0

    def configure(self, web: object, jobs: Collection[str]) -> None:
        """Take over a configuration: the buckets of its section ``web``, and the jobs that are left.

        Other buckets mean that durations are counted anew; a job that is gone takes its numbers along.
        """
        self._names = jobs
        bounds = duration_bounds(web)
        if bounds != self._bounds:
            self._bounds = bounds
            for job in self._jobs.values():
                job.duration = Observed(bounds)
            self._stale.update(self._jobs)
        for name in [name for name in self._jobs if name not in jobs]:
            del self._jobs[name]
            self._stale.add(name)

    # -- what happened ------------------------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """An event of the bus. Never waits, never raises."""
        self._heard += 1
        if isinstance(event, RunFinished):
            self._finished(event.record)
        elif isinstance(event, Decided):
            self._decided(event.record)
        elif isinstance(event, RunStarted):
            if event.run.key.trigger is Trigger.RETRY:
                self._job(event.run.key.job).retries += 1
            elif event.run.key.trigger is Trigger.CATCHUP:
                self._catch_ups += 1

    def reported(self, report: Report) -> None:
        """A hook of a job fired, whether anybody is told or not."""
        if report.event == "onPermanentFailure":
            self._job(report.job.name).permanent_failures += 1
        elif report.event == "onLate" and report.facts is not None:
            breaches = self._job(report.job.name).breaches
            breaches[report.facts.check] = breaches.get(report.facts.check, 0) + 1

    def claimed(self, took: Seconds, answer: str) -> None:
        """A write to the claim log was answered, or was not: ``answer`` is the name of what came."""
        self._heard += 1
        self._claim_delay.add(took)
        self._claims[answer] = self._claims.get(answer, 0) + 1

    def restore(self, jobs: Mapping[str, JobTally]) -> None:
        """Counts of before the start of this daemon are added to those since, for jobs that there still are."""
        for name, tally in jobs.items():
            if name in self._names:
                self._job(name).join(tally)

    async def run(self) -> None:
        """Look at how late the event loop is, until cancelled."""
        now = self._clock.now()
        while True:
            before, pause = now, until_next(LOOK, now)
            await self._clock.sleep(pause)
            now = self._clock.now()
            self._lags.append(max(0.0, now.boot - before.boot - pause))
            self._heard += 1

    def _job(self, name: str) -> _Job:
        found = self._jobs.get(name)
        if found is None:
            found = self._jobs[name] = _Job(self._bounds)
        self._stale.add(name)
        return found

    def _finished(self, record: RunRecord) -> None:
        job = self._job(record.key.job)
        job.outcomes[record.outcome] += 1
        if record.outcome is Outcome.SUCCESS:
            job.last_success = record.finished_at
        elif record.outcome is Outcome.FAILURE:
            job.last_failure = record.finished_at
            if record.exit_code == LAUNCH_FAILED and record.started_at is None:
                job.start_failures += 1
        if record.duration is not None and record.outcome in (Outcome.SUCCESS, Outcome.FAILURE):
            job.duration.add(record.duration)
        if record.resources is not None:
            job.cpu[0] += record.resources.cpu_user
            job.cpu[1] += record.resources.cpu_system
            job.peak_rss = max(job.peak_rss, record.resources.max_rss)

    def _decided(self, record: DecisionRecord) -> None:
        decision, final = record.decision, not record.provisional
        key = (decision.verdict.value, decision.reason.value, final)
        self._decisions[key] = self._decisions.get(key, 0) + 1
        if decision.verdict is Verdict.SKIP and final:
            self._job(record.job).outcomes[Outcome.SKIPPED] += 1
        if decision.verdict is Verdict.RUN and record.scheduled_at is not None:
            self._decision_delay.add(max(0.0, record.decided_at - record.scheduled_at))

    # -- looking ------------------------------------------------------------------------------------------------------

    def view(self) -> Tally:
        """All numbers as of now; the same object as the last time when nothing happened since."""
        told = tuple((name, one.sent, one.failed, one.dropped) for name, one in self._delivered().items())
        state = (self._heard, self._bounds, self._transitions(), told)
        if self._stale or self._last is None or self._last[0] != state:
            self._last = (state, self._made(told))
        return self._last[1]

    def _made(self, told: tuple[tuple[str, int, int, int], ...]) -> Tally:
        if self._stale:
            for name in self._stale:
                if name in self._jobs:
                    self._shown[name] = self._jobs[name].value()
                else:
                    self._shown.pop(name, None)
            self._stale.clear()
            self._jobs_shown = MappingProxyType(dict(self._shown))
        leader, quorum = self._transitions()
        return Tally(
            bounds=self._bounds,
            jobs=self._jobs_shown,
            decisions=MappingProxyType(dict(self._decisions)),
            decision_delay=self._decision_delay.value(),
            claim_delay=self._claim_delay.value(),
            claims=MappingProxyType(dict(self._claims)),
            catch_ups=self._catch_ups,
            loop_lag=(self._lags[-1], max(self._lags)) if self._lags else (0.0, 0.0),
            leader_transitions=leader,
            quorum_transitions=quorum,
            notifiers=MappingProxyType({name: NotifierTally(*counts) for name, *counts in told}),
        )


def duration_bounds(web: object) -> tuple[Seconds, ...]:
    """``web.metrics.durationBuckets`` of a checked section, or the usual ones."""
    metrics: object = web.get("metrics") if isinstance(web, Mapping) else None
    buckets: Json | object = metrics.get("durationBuckets") if isinstance(metrics, Mapping) else None
    found = tuple(float(b) for b in buckets if isinstance(b, int | float)) if isinstance(buckets, list) else ()
    rising = found == tuple(sorted(set(found))) and all(math.isfinite(b) and b > 0 for b in found)
    return found if found and rising else DURATION_BOUNDS
