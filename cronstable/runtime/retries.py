"""Retries of this node: the next attempt is waited for, asked about again, and started (reference 4.3)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, assert_never

import anyio

from cronstable.core.clock import Clock, EpochSeconds, Seconds, until_next
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.fingerprint import job_digest
from cronstable.core.job import ConcurrencyPolicy, Job
from cronstable.core.retry import (
    Abandon,
    Action,
    Admitted,
    Answer,
    Arm,
    Defer,
    Dropped,
    Due,
    Failed,
    GiveUp,
    Ladder,
    Nothing,
    Refused,
    Relaunch,
    Resumed,
    RetryEvent,
    Settled,
    Spent,
    Succeeded,
    moved,
    retry_policy,
    step,
)
from cronstable.core.retry_records import Settling
from cronstable.core.runs import LiveRun, Outcome, PendingRetry, RunKey, RunRecord, Trigger
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.scheduler import Scheduler

LONGEST_SLEEP: Seconds = 60.0
"""The loop's own clock may stand still while the machine is suspended, so nobody sleeps longer than this at once."""


class RunReports(Protocol):
    """Whoever tells people how runs end."""

    def run_over(self, job: Job, record: RunRecord, *, will_retry: bool) -> None:
        """A run is over; who is told what follows from its outcome. Must neither wait nor raise."""
        ...

    def gave_up(self, job: Job, record: RunRecord) -> None:
        """A failed run that was to be tried again is not, after all. As above."""
        ...


class RetryClaimer(Protocol):
    """Whoever claims further attempts before they start, on backends that keep a claim log."""

    def retry(self, job: Job, scheduled_at: EpochSeconds, attempt: int, first_run_id: str) -> bool:
        """True: the attempt is claimed and launched, or ``Retries.refused`` is called."""
        ...

    def forget_retries(self, job: str) -> None:
        """No attempt of ``job`` is wanted any more."""
        ...


class RetryMemory(Protocol):
    """Whoever writes ladders down, so that they outlive this process and can move. None of it waits or raises."""

    def armed(self, job: Job, ladder: Ladder) -> None:
        """The ladder waits for an attempt, perhaps as before."""
        ...

    def over(self, name: str, why: Settling | None) -> None:
        """The ladder waits no more. None: it is to be found again after a restart."""
        ...

    def asking(self, name: str) -> bool:
        """Whether an attempt that is due is being taken out of the store; ``may_start`` is then not to be asked."""
        ...

    def may_start(self, name: str) -> bool:
        """Whether an attempt that is due is ours; False: that is being found out, and the ladders are told."""
        ...

    def launched(self, name: str) -> None:
        """The attempt has a process."""
        ...

    def hands_over(self, job: Job) -> bool:
        """Another node owns the job: whether it is left the attempt."""
        ...


_CHANGES: Mapping[Settling, str] = MappingProxyType(
    {
        Settling.JOB_REMOVED: "the job was removed",
        Settling.DISABLED: "the job was disabled",
        Settling.CONFIG_CHANGED: "the job was changed",
        Settling.CANCELLED: "cancelled",
    }
)


class Retries:
    """The ladders of this node, one a job at most. Implements the launcher's ``RunListener`` and ``Admission``.

    All of it happens on the daemon's loop and nothing is awaited between a question and its answer, so that a ladder
    has one owner at any time: the loop in ``run`` while it waits, the launcher while an attempt lives.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        scheduler: Scheduler,
        cluster: ClusterManager,
        launcher: Launcher,
        log: logging.Logger,
        reports: RunReports | None = None,
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._cluster = cluster
        self._launcher = launcher
        self._log = log
        self._reports = reports
        self._ladders: dict[str, Ladder] = {}
        self._jobs: dict[str, Job] = {}
        self._failed: dict[str, tuple[Job, RunRecord]] = {}
        self._pending: dict[str, PendingRetry] = {}
        self._shown: Mapping[str, PendingRetry] = MappingProxyType({})
        self._sleep = anyio.CancelScope()
        self.claimer: RetryClaimer | None = None
        self.memory: RetryMemory | None = None

    @property
    def pending(self) -> Mapping[str, PendingRetry]:
        """What is waited for, by job; the same object as long as nothing changed."""
        return self._shown

    # -- what happens to runs -----------------------------------------------------------------------------------------

    def admitted(self, job: Job, key: RunKey) -> None:
        """A scheduled run begins a new ladder; a manual one joins what is there."""
        policy = retry_policy(job.options.raw)
        if not policy.allows(1) and job.name not in self._ladders:
            # Nearly every run: its failure is final, and that needs no ladder to be known.
            return
        if key.trigger is not Trigger.CATCHUP:
            self._jobs[job.name] = job
        self._step(job.name, Admitted(key, policy))

    def started(self, job: Job, run: LiveRun) -> None:
        """The run was known before; a further attempt is now surely made."""
        if run.key.trigger is Trigger.RETRY and self.memory is not None:
            self.memory.launched(job.name)

    def denied(self, job: Job, key: RunKey, decision: Decision) -> None:
        """The attempt was stopped right before its spawn: ask again later, unless the job is not ours any more."""
        if decision.reason in (Reason.STOPPING, Reason.DISABLED):
            self._settle(job.name, Settling.DISABLED if decision.reason is Reason.DISABLED else None)
        elif key.trigger is Trigger.RETRY:
            answer = self._ask(job)[0]
            if answer is not Answer.MOVED or not self._hands_over(job, key.attempt):
                self._step(job.name, Refused(key, Answer.MOVED if answer is Answer.MOVED else Answer.NOT_NOW))
        else:
            self._step(job.name, Dropped(key))

    def finished(self, job: Job, record: RunRecord) -> None:
        """Decide whether a run is tried again, and pass its record on with the answer."""
        stopping = self._launcher.stopping
        ladder = self._ladders.get(job.name)
        if ladder is not None and (stopping or self._changed(job) is not None):
            self._settle(job.name, None if stopping else self._changed(job))
        if ladder is not None:
            self._over(job, record)
        if self._reports is not None and not (stopping and record.outcome is Outcome.FAILURE):
            ladder = self._ladders.get(job.name)
            again = record.outcome is Outcome.FAILURE and ladder is not None and ladder.waiting is not None
            self._reports.run_over(job, record, will_retry=again)

    def _over(self, job: Job, record: RunRecord) -> None:
        """A run ended that may be one of a ladder's."""
        match record.outcome:
            case Outcome.FAILURE:
                if isinstance(self._step(job.name, Failed(record.key)), Arm):
                    self._failed[job.name] = (job, record)
            case Outcome.SUCCESS:
                self._step(job.name, Succeeded(record.key))
            case _:
                self._step(job.name, Dropped(record.key))

    # -- what settles a ladder ----------------------------------------------------------------------------------------

    def reloaded(self) -> None:
        """The job set changed: what was removed, disabled or is another job now is not tried again."""
        for name, job in tuple(self._jobs.items()):
            change = self._changed(job)
            if change is not None:
                self._give_up(name, change)

    def cancel(self, name: str) -> bool:
        """An operator ends the matter; whether an attempt was waited for."""
        waiting = name in self._pending
        self._settle(name, Settling.CANCELLED)
        return waiting

    def stop(self) -> None:
        """The daemon stops: nothing is tried again here."""
        for name in tuple(self._ladders):
            self._settle(name, None)

    def _give_up(self, name: str, change: Settling | None) -> None:
        failed = self._failed.get(name) if name in self._pending else None
        self._settle(name, change)
        if failed is not None and self._reports is not None:
            self._reports.gave_up(*failed)

    def _settle(self, name: str, why: Settling | None) -> None:
        """End the ladder; ``why`` None: the daemon stops."""
        if name in self._pending:
            text = _CHANGES[why] if why is not None else "the daemon is stopping"
            self._log.info("job %s: retry %d will not be made (%s)", name, self._pending[name].attempt, text)
        self._step(name, Settled(), why)

    def _changed(self, job: Job) -> Settling | None:
        """Why ``job`` is not what is configured now; None when it still is."""
        current = self._scheduler.jobs.get(job.name)
        if current is None:
            return Settling.JOB_REMOVED
        if not current.options.enabled:
            return Settling.DISABLED
        same = current is job or job_digest(current) == job_digest(job)
        return None if same else Settling.CONFIG_CHANGED

    # -- what the memory says -----------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a ladder is under way here."""
        return name in self._ladders

    def resume(self, job: Job, resumed: Resumed, failed: RunRecord | None = None) -> None:
        """A ladder from before, or of another node, goes on here. ``failed``: its last run, where that is known."""
        if job.name not in self._ladders:
            self._jobs[job.name] = job
            self._step(job.name, resumed)
            if failed is not None:
                self._failed[job.name] = (job, failed)

    def later(self, name: str) -> None:
        """Whether the attempt that is due is ours cannot be found out now."""
        self._step(name, Due(Answer.NOT_NOW))

    def gone(self, name: str) -> None:
        """The attempt that is due is another node's, or was: nobody here has anything to say about it."""
        self._log.info("job %s: its retries go on elsewhere", name)
        self._step(name, Settled())

    def poke(self) -> None:
        """Look again now."""
        self._sleep.cancel()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start what is due, until cancelled."""
        while True:
            now = self._clock.now().boot
            for name in tuple(self._ladders):
                if self._is_due(name, now):
                    # A run that ended and is only told later may have settled the matter.
                    self._launcher.ends.settle(name)
                    if self._is_due(name, now):
                        self._attempt(name, self._ladders[name])
            with anyio.CancelScope() as self._sleep:
                await self._clock.sleep(self._until_next())

    def _is_due(self, name: str, now: float) -> bool:
        ladder = self._ladders.get(name)
        return (
            ladder is not None and ladder.waiting is not None and ladder.waiting.due <= now and not self._asking(name)
        )

    def _until_next(self) -> Seconds:
        dues = [
            ladder.waiting.due
            for name, ladder in self._ladders.items()
            if ladder.waiting is not None and not self._asking(name)
        ]
        now = self._clock.now()
        return min(min(dues, default=float("inf")) - now.boot, until_next(LONGEST_SLEEP, now))

    def _asking(self, name: str) -> bool:
        return self.memory is not None and self.memory.asking(name)

    def _attempt(self, name: str, ladder: Ladder) -> None:
        job = self._scheduler.jobs.get(name)
        change = self._changed(self._jobs[name])
        if job is None or change is not None or self._launcher.stopping:
            self._give_up(name, change)
            return
        answer, decision = self._ask(job)
        if answer is Answer.GO and self.memory is not None:
            # A run in the way is no reason to take the attempt out of the store and put it back.
            if job.options.concurrency_policy is ConcurrencyPolicy.FORBID and self._launcher.occupied(name):
                answer = Answer.NOT_NOW
            elif not self.memory.may_start(name):
                return
        if answer is Answer.MOVED and ladder.waiting is not None and self._hands_over(job, ladder.waiting.attempt):
            return
        action = self._step(name, Due(answer))
        if not isinstance(action, Relaunch):
            return
        first = ladder.first
        if first.scheduled_at is not None and self._claims(job, first.scheduled_at, action.attempt, first.run_id):
            return
        started = self._launcher.start(
            job,
            decision,
            scheduled_at=ladder.first.scheduled_at,
            trigger=Trigger.RETRY,
            recheck=lambda: self._scheduler.recheck(job),
            attempt=action.attempt,
            first_run_id=ladder.first.run_id,
        )
        if isinstance(started, Decision):
            self._step(name, Refused(None, Answer.NOT_NOW))

    def _claims(self, job: Job, scheduled_at: EpochSeconds, attempt: int, first_run_id: str) -> bool:
        """Whether the attempt goes through the claim log, which launches it."""
        return self.claimer is not None and self.claimer.retry(job, scheduled_at, attempt, first_run_id)

    def refused(self, name: str) -> None:
        """An attempt that was to be claimed could not be: ask again later."""
        self._step(name, Refused(None, Answer.NOT_NOW))

    def spent(self, name: str) -> None:
        """An attempt that was to be claimed was claimed before, by whoever led then: its number is used up."""
        failed = self._failed.get(name)
        if isinstance(self._step(name, Spent()), GiveUp) and failed is not None and self._reports is not None:
            self._reports.gave_up(*failed)

    def _hands_over(self, job: Job, attempt: int) -> bool:
        """Leave what is left to the node that owns the job now, where it can find it."""
        if self.memory is None or not self.memory.hands_over(job):
            return False
        self._log.info("job %s: retry %d is handed over, another node owns the job now", job.name, attempt)
        self._step(job.name, Settled())
        return True

    def _ask(self, job: Job) -> tuple[Answer, Decision]:
        """The gate's answer for an attempt of ``job`` at this instant. Any failure to find out means: not now."""
        decision = self._scheduler.recheck(job)
        if decision.verdict is Verdict.RUN:
            return Answer.GO, decision
        try:
            gone = self._cluster.elects and moved(job.name, self._cluster.view())
        except Exception:  # noqa: BLE001 - the view comes from a plugin; the gate has logged its failure
            gone = False
        return (Answer.MOVED if gone and decision.reason is not Reason.PAUSED else Answer.NOT_NOW), decision

    # -- carrying out -------------------------------------------------------------------------------------------------

    def _step(self, name: str, event: RetryEvent, why: Settling | None = None) -> Action:
        before = self._ladders.get(name)
        ladder, action = step(before, event, self._clock.now().boot)
        self._keep(name, before, ladder, why or _why(event, action))
        if ladder is None:
            self._ladders.pop(name, None)
            self._jobs.pop(name, None)
            self._failed.pop(name, None)
            if before is not None and self.claimer is not None:
                self.claimer.forget_retries(name)
        else:
            self._ladders[name] = ladder
        self._show(name, ladder)
        self._say(name, before, action)
        return action

    def _keep(self, name: str, before: Ladder | None, ladder: Ladder | None, why: Settling | None) -> None:
        """Have it written down what is waited for, and when it is not waited for any more."""
        if self.memory is None:
            return
        if ladder is not None and ladder.waiting is not None:
            self.memory.armed(self._jobs[name], ladder)
        elif before is not None and (ladder is None or ladder.first != before.first):
            self.memory.over(name, why)

    def _show(self, name: str, ladder: Ladder | None) -> None:
        wait = ladder.waiting if ladder is not None else None
        now = self._clock.now()
        if ladder is None or wait is None:
            if self._pending.pop(name, None) is None:
                return
        else:
            shown = self._pending.get(name)
            at = now.wall + (wait.due - now.boot)
            if shown is not None and shown.attempt == wait.attempt and abs(shown.at - at) < 1e-3:
                return
            self._pending[name] = PendingRetry(wait.attempt, ladder.policy.attempts, at, wait.delay)
        self._shown = MappingProxyType(dict(self._pending))
        self._sleep.cancel()

    def _say(self, name: str, before: Ladder | None, action: Action) -> None:
        match action:
            case Arm(wait):
                self._log.info("job %s: failed; retry %d in %g s", name, wait.attempt, wait.delay)
            case Defer(wait, again):
                level = logging.DEBUG if again else logging.INFO
                self._log.log(level, "job %s: retry %d may not start yet, asked again later", name, wait.attempt)
            case Abandon(attempt):
                self._log.warning("job %s: retry %d is abandoned, another node owns the job now", name, attempt)
                scheduled_at = before.first.scheduled_at if before is not None else None
                key = RunKey("", name, scheduled_at, attempt, Trigger.RETRY)
                why = "the retry was abandoned: another node owns the job now"
                now = self._clock.now().wall
                self._launcher.remember(RunRecord(key, Outcome.CANCELLED, None, None, now, None, fail_reason=why))
            case GiveUp() if before is not None and before.attempt:
                self._log.warning("job %s: failed for good after %d retries", name, before.attempt)
            case GiveUp() | Nothing() | Relaunch():
                pass
            case _:
                assert_never(action)


def _why(event: RetryEvent, action: Action) -> Settling | None:
    """What is written down when a ladder ends, or another one takes its place."""
    if isinstance(action, Abandon):
        return Settling.OWNER_MOVED
    match event:
        case Admitted():
            return Settling.SUPERSEDED
        case Succeeded():
            return Settling.SUCCEEDED
        case Failed() | Spent():
            return Settling.EXHAUSTED
        case Dropped() | Refused() | Due():
            return Settling.CANCELLED
        case Resumed() | Settled():
            return None
        case _:
            assert_never(event)
