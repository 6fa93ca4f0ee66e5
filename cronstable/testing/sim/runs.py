"""A process's scheduler, launcher and retries: what the daemon does with what is due, with the same machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cronstable.core import gate, retry
from cronstable.core.agenda import BACKWARD_LIMIT, Agenda, Due, Missed
from cronstable.core.clock import EpochSeconds, Instant
from cronstable.core.decision import Decision, DecisionRecord, DecisionRing, Reason, Verdict
from cronstable.core.job import Job
from cronstable.core.overlap import Enqueue, Full, Replace, Skip, decide_overlap
from cronstable.core.retry import Answer, Ladder, Relaunch, RetryEvent
from cronstable.core.runs import LiveRun, RunKey, Trigger
from cronstable.core.sweep import is_claimable
from cronstable.runtime.launcher import REPLACE_GRACE, SILENT_SKIPS
from cronstable.runtime.scheduler import LONGEST_SLEEP
from cronstable.testing.sim.engine import Signal, Sleep, Steps, pause
from cronstable.testing.sim.faults import Moment

if TYPE_CHECKING:
    from cronstable.testing.sim.node import Process

RETRIES_REST = 3600.0
"""Seconds that nobody looks for retries, as long as none waits."""


@dataclass(slots=True, eq=False)
class Flight:
    """A run from the decision to start it until it is over."""

    job: Job
    key: RunKey
    at: float
    ahead: tuple[Flight, ...] = ()
    queued: bool = False
    fence: int | None = None
    first_run_id: str | None = None
    on_over: Callable[[Decision | None], None] | None = None
    cancelled: bool = False
    over: bool = False
    changed: Signal = field(default_factory=Signal)

    def as_live(self) -> LiveRun:
        """What the overlap decision sees."""
        return LiveRun(self.key, 0, self.at)


class RunsSide:
    """See ``Scheduler``, ``Launcher`` and ``Retries``."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._node = process.node
        self._dice = process.dice.child("runs")
        self._flights: dict[str, list[Flight]] = {}
        self._ladders: dict[str, Ladder] = {}
        self._retry_wake = Signal()
        self._agenda = Agenda()
        self._agenda.load(self._world.jobs.values(), process.now().wall)
        self._before: Instant | None = None
        self.decisions = DecisionRing()

    @property
    def is_idle(self) -> bool:
        """No run, and no retry that waits."""
        return not (self._flights or self._ladders)

    def next_due(self) -> EpochSeconds | None:
        """When something falls due, by this node's clock."""
        return self._agenda.next_at

    def wakes(self, at: float, until: float) -> float:
        """When its scheduler, whose wait ends at ``at``, wakes for the first time that is not before ``until``.

        World seconds. Nothing is due before ``until``, so that it wakes again and again without doing anything.
        """
        rests = math.ceil((until - at) / LONGEST_SLEEP) if at < until else 0
        due, now = self._agenda.next_at, self._process.now().wall
        wakes = at + rests * LONGEST_SLEEP
        return wakes if due is None else min(wakes, self._world.engine.at + due - now)

    # -- what is known ------------------------------------------------------------------------------------------------

    def running(self) -> Mapping[str, Job]:
        """See ``Launcher.running``."""
        return {f.key.run_id: f.job for flights in self._flights.values() for f in flights}

    def occupied(self, job: str) -> bool:
        """See ``Launcher.occupied``."""
        return job in self._flights

    def waits(self, run_id: str) -> bool:
        """See ``Launcher.waits``."""
        return any(f.key.run_id == run_id and bool(f.ahead) for flights in self._flights.values() for f in flights)

    def record(self, job: Job, at: EpochSeconds | None, decision: Decision, *, provisional: bool = False) -> None:
        """See ``Launcher.record``."""
        provisional = provisional or decision.verdict is Verdict.DEFER or decision.reason in SILENT_SKIPS
        now = self._process.now().wall
        record = DecisionRecord(self._node.name, job.name, at, now, decision, None, provisional)
        if self.decisions.add(record) and not provisional and at is not None:
            self._world.checker.decided(self._node, job, at, decision)

    # -- the scheduler ------------------------------------------------------------------------------------------------

    def schedule(self) -> Steps[None]:
        """See ``Scheduler.run``."""
        while not self._process.stopping:
            now = self._process.now()
            self._notice_steps(now)
            batch = self._agenda.take(now.wall)
            for missed in batch.missed:
                self._skip_missed(missed, now)
            for due in batch.rounds:
                for occurrence in due:
                    self._due(occurrence)
            ahead = self._agenda.next_at
            wall = self._process.now().wall
            delay = LONGEST_SLEEP if ahead is None else min(ahead - wall, LONGEST_SLEEP)
            yield from pause(self._node, max(0.001, delay))

    def _due(self, due: Due) -> None:
        """See ``Scheduler.launch``."""
        job, at = due.job, due.scheduled_at
        decision = self._decide(job, at)
        if decision.verdict is not Verdict.RUN:
            self.record(job, at, decision, provisional=self._claims(job))
            return
        claims = self._process.claims
        if claims is not None and claims.takes(job, at):
            return
        self.start(
            job, decision, scheduled_at=at, trigger=Trigger.SCHEDULE, recheck=lambda: _terminal(self.recheck(job))
        )

    def _claims(self, job: Job) -> bool:
        return self._process.claims is not None and is_claimable(job)

    def _decide(self, job: Job, at: EpochSeconds | None) -> Decision:
        if self._process.stopping:
            return Decision(Verdict.SKIP, Reason.STOPPING)
        now = self._process.now()
        due = None if at is None else now.boot - (now.wall - at)
        view = self._process.view()
        return gate.decide(
            job.options.cluster_policy,
            job.name,
            election_configured=self._process.lease is not None,
            view=view,
            boot=now.boot,
            due=due,
        )

    def recheck(self, job: Job) -> Decision:
        """See ``Scheduler.recheck``."""
        return self._decide(job, None)

    def _skip_missed(self, missed: Missed, now: Instant) -> None:
        decision = Decision(Verdict.SKIP, Reason.LATE_RESYNC)
        self.record(missed.job, missed.last, decision, provisional=self._claims(missed.job))

    def _notice_steps(self, now: Instant) -> None:
        before, self._before = self._before, now
        if before is not None and (now.wall - before.wall) - (now.boot - before.boot) < -BACKWARD_LIMIT:
            self._agenda.reseed(now.wall)

    # -- the launcher -------------------------------------------------------------------------------------------------

    def start(
        self,
        job: Job,
        decision: Decision,
        *,
        scheduled_at: EpochSeconds,
        trigger: Trigger,
        recheck: Callable[[], Decision],
        attempt: int = 0,
        first_run_id: str | None = None,
        run_id: str | None = None,
        fence: int | None = None,
        on_over: Callable[[Decision | None], None] | None = None,
    ) -> str | Decision:
        """See ``Launcher.start``."""
        flights = self._flights.get(job.name, [])
        waiting = next((f.as_live() for f in flights if f.queued), None)
        verdict = decide_overlap(job.options.concurrency_policy, [f.as_live() for f in flights], waiting=waiting)
        if isinstance(verdict, Skip | Full):
            reason = Reason.CONCURRENCY_FORBID if isinstance(verdict, Skip) else Reason.QUEUE_FULL
            refused = Decision(Verdict.SKIP, reason)
            self.record(job, scheduled_at, refused)
            return refused
        queued = isinstance(verdict, Enqueue)
        ahead = tuple(flights) if isinstance(verdict, Replace) or queued else ()
        key = RunKey(run_id or self._dice.token(8), job.name, scheduled_at, attempt, trigger)
        flight = Flight(job, key, self._process.now().wall, ahead, queued, fence, first_run_id, on_over)
        self._flights.setdefault(job.name, []).append(flight)
        if trigger is not Trigger.CATCHUP:
            self._ladder(job.name, retry.Admitted(key, retry.retry_policy(job.options.raw)))
        self._process.start(self._fly(flight, decision, recheck))
        return key.run_id

    def cancel(self, job: str, run_id: str) -> None:
        """End one run of a job."""
        for flight in self._flights.get(job, []):
            if flight.key.run_id == run_id:
                flight.cancelled = True
                flight.changed.set()

    def _fly(self, flight: Flight, decision: Decision, recheck: Callable[[], Decision]) -> Steps[None]:
        refusal = yield from self._wait_for_others(flight)
        if refusal is None:
            yield from pause(self._node, self._spawn_time())
            self._world.moment(self._node, Moment.SPAWNING)
            # A fault of that moment strikes here, between the way to the process and the last look.
            yield from pause(self._node, 0.0)
            final = recheck()
            refusal = final if final.verdict is not Verdict.RUN else None
        if refusal is None:
            self.record(flight.job, flight.key.scheduled_at, decision)
            self._world.checker.started(self._process, flight.job, flight.key, flight.fence)
            if self._process.claims is not None:
                self._process.claims.started(flight.job, flight.key.run_id)
            self._world.moment(self._node, Moment.STARTED)
            yield from self._live(flight)
            self._land(flight, None)
            self._ended(flight)
        else:
            self.record(flight.job, flight.key.scheduled_at, refusal)
            self._land(flight, refusal)
            self._denied(flight, refusal)

    def _wait_for_others(self, flight: Flight) -> Steps[Decision | None]:
        if not flight.queued:
            for other in flight.ahead:
                other.cancelled = True
                other.changed.set()
        end = self._process.now().boot + flight.job.options.kill_timeout + REPLACE_GRACE
        for other in flight.ahead:
            while not other.over:
                if not flight.queued and self._process.now().boot >= end:
                    return Decision(Verdict.SKIP, Reason.CONCURRENCY_FORBID)
                yield from pause(self._node, 0.05 if not flight.queued else 1.0, other.changed)
        flight.ahead, flight.queued = (), False
        return None

    def _spawn_time(self) -> float:
        seconds = self._dice.between(0.001, 0.02)
        return seconds + self._dice.between(0.0, 2.0) if self._dice.chance(0.01) else seconds

    def _live(self, flight: Flight) -> Steps[None]:
        longest = self._world.run_seconds
        until = self._process.now().boot + self._dice.between(0.0, 2 * longest)
        while not flight.cancelled and self._process.now().boot < until:
            yield Sleep(until, flight.changed)

    def _land(self, flight: Flight, refusal: Decision | None) -> None:
        flights = self._flights[flight.job.name]
        flights.remove(flight)
        if not flights:
            del self._flights[flight.job.name]
        flight.over = True
        flight.changed.set()
        if flight.on_over is not None:
            flight.on_over(refusal)

    # -- retries ------------------------------------------------------------------------------------------------------

    def retry_refused(self, name: str) -> None:
        """See ``Retries.refused``."""
        self._ladder(name, retry.Refused(None, Answer.NOT_NOW))

    def retry_spent(self, name: str) -> None:
        """See ``Retries.spent``."""
        self._ladder(name, retry.Spent())

    def stop_retries(self) -> None:
        """See ``Retries.stop``."""
        for name in tuple(self._ladders):
            self._ladder(name, retry.Settled())

    def _ended(self, flight: Flight) -> None:
        name, key = flight.job.name, flight.key
        if self._process.stopping and name in self._ladders:
            self._ladder(name, retry.Settled())
        if flight.cancelled:
            self._ladder(name, retry.Dropped(key))
        elif self._dice.chance(self._world.failing):
            self._ladder(name, retry.Failed(key))
        else:
            self._ladder(name, retry.Succeeded(key))

    def _denied(self, flight: Flight, decision: Decision) -> None:
        name, key = flight.job.name, flight.key
        if decision.reason in (Reason.STOPPING, Reason.DISABLED):
            self._ladder(name, retry.Settled())
        elif key.trigger is Trigger.RETRY:
            answer = self._ask(flight.job)[0]
            self._ladder(name, retry.Refused(key, Answer.MOVED if answer is Answer.MOVED else Answer.NOT_NOW))
        else:
            self._ladder(name, retry.Dropped(key))

    def retries(self) -> Steps[None]:
        """See ``Retries.run``."""
        while True:
            now = self._process.now().boot
            for name, ladder in tuple(self._ladders.items()):
                if ladder.waiting is not None and ladder.waiting.due <= now:
                    self._attempt(name, ladder)
            dues = [ladder.waiting.due for ladder in self._ladders.values() if ladder.waiting is not None]
            yield Sleep(max(now + 0.001, min(dues, default=now + RETRIES_REST)), self._retry_wake)

    def _attempt(self, name: str, ladder: Ladder) -> None:
        job = self._world.jobs[name]
        answer, decision = self._ask(job)
        action = self._ladder(name, retry.Due(answer))
        at = ladder.first.scheduled_at
        if not isinstance(action, Relaunch) or at is None:
            return
        claims = self._process.claims
        if claims is not None and claims.retry(job, at, action.attempt, ladder.first.run_id):
            return
        started = self.start(
            job,
            decision,
            scheduled_at=at,
            trigger=Trigger.RETRY,
            recheck=lambda: self.recheck(job),
            attempt=action.attempt,
            first_run_id=ladder.first.run_id,
        )
        if isinstance(started, Decision):
            self._ladder(name, retry.Refused(None, Answer.NOT_NOW))

    def _ask(self, job: Job) -> tuple[Answer, Decision]:
        decision = self.recheck(job)
        if decision.verdict is Verdict.RUN:
            return Answer.GO, decision
        gone = self._process.lease is not None and retry.moved(job.name, self._process.view())
        return (Answer.MOVED if gone else Answer.NOT_NOW), decision

    def _ladder(self, name: str, event: RetryEvent) -> retry.Action:
        before = self._ladders.get(name)
        ladder, action = retry.step(before, event, self._process.now().boot)
        if ladder is None:
            self._ladders.pop(name, None)
            if before is not None and self._process.claims is not None:
                self._process.claims.forget_retries(name)
        else:
            self._ladders[name] = ladder
        if ladder is not None and ladder.waiting is not None:
            self._retry_wake.set()
        return action


def _terminal(decision: Decision) -> Decision:
    """See ``Scheduler``: a decision that is not asked for again."""
    return replace(decision, verdict=Verdict.SKIP) if decision.verdict is Verdict.DEFER else decision
