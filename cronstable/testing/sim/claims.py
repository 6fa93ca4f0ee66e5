"""A process's side of the claim log: what ``ClaimsDriver`` does, with the same machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

from cronstable.core import claim_log, sweep
from cronstable.core.claim_values import (
    CHUNK,
    SKIPS,
    Alarm,
    Answer,
    Append,
    Began,
    Claim,
    Command,
    Dropped,
    Ended,
    Event,
    Found,
    Handed,
    Loaded,
    Logged,
    Look,
    Looked,
    Phase,
    Read,
    Ready,
    Refused,
    Spawn,
    Spawned,
    StandDown,
    Start,
    Wants,
)
from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job
from cronstable.core.runs import Trigger
from cronstable.core.store import Fenced, Full, Taken, Unknown, Won
from cronstable.core.sweep import Horizon, Local, Rules
from cronstable.plugin.protocols import HeldTerm
from cronstable.runtime.claims_driver import (
    PATIENCE,
    PAUSE,
    REOPEN_AFTER,
    SILENT,
    SPAWNING,
    STAND_DOWN,
    STOP_WITHIN,
    SWEEP_EVERY,
    TRIM_EVERY,
)
from cronstable.runtime.claims_session import claimable, is_claimable
from cronstable.testing.sim.door import Door, Handover
from cronstable.testing.sim.engine import Signal, Steps, pause
from cronstable.testing.sim.faults import Moment

if TYPE_CHECKING:
    from cronstable.testing.sim.node import LeaseSide, Process

T = TypeVar("T")

_MINDS: Final = frozenset({ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE})
_FINAL: Final = frozenset({Reason.DISABLED, Reason.PAUSED})
Key = tuple[str, EpochSeconds, int]


class ClaimsSide:
    """See ``ClaimsDriver`` and its ``Session``."""

    def __init__(self, process: Process, lease: LeaseSide) -> None:
        self._process = process
        self._world = world = process.world
        self._node = process.node
        self._lease = lease
        self._dice = process.dice.child("claims")
        token = self._dice.token(6)
        self.door = Door(process, lease)
        self.handover = Handover(process, self.door, token)
        self.state = claim_log.initial(process.node.name, token, world.window)
        self.horizon = Horizon(world.window)
        self._term: HeldTerm | None = None
        self._trimmed = 0
        self._crowded = False
        self._silent = 0
        self._over_since: float | None = None
        self._left = Wants()
        self._swept_at = float("-inf")
        self._closing = False
        self.settled = False
        self._launching: dict[str, bool] = {}
        self._settled = Signal()
        self._wake = Signal()
        self._woken = False
        self._due: dict[tuple[str, EpochSeconds], bool] = {}
        self._unclaimed: dict[tuple[str, EpochSeconds], bool] = {}
        self._retries: dict[Key, str] = {}
        jobs = [job for job in world.jobs.values() if is_claimable(job)]
        self.horizon.load((claimable(job, order) for order, job in enumerate(jobs)), process.now().wall)
        self._feed(Loaded({job.name: definition(job) for job in jobs}))

    # -- what others ask ----------------------------------------------------------------------------------------------

    def takes(self, job: Job, scheduled_at: EpochSeconds) -> bool:
        """See ``ClaimsDriver.takes``."""
        if not is_claimable(job):
            return False
        if job.options.cluster_policy is ClusterPolicy.PREFER_LEADER and not self._quorate():
            self._unclaimed[(job.name, scheduled_at)] = True
            return False
        self._due[(job.name, scheduled_at)] = True
        self.poke()
        return True

    def retry(self, job: Job, scheduled_at: EpochSeconds, attempt: int, first_run_id: str) -> bool:
        """See ``ClaimsDriver.retry``."""
        prefers = job.options.cluster_policy is ClusterPolicy.PREFER_LEADER
        if not is_claimable(job) or (prefers and not self._quorate()):
            return False
        if self._closing:
            self._process.runs.retry_refused(job.name)
            return True
        key = (job.name, scheduled_at, attempt)
        self._retries[key] = first_run_id
        self._swept_at = float("-inf")
        for claim in self.state.pending:
            if _key(claim.start) == key and claim.run_id not in self._launching:
                self._feed(Handed(claim.run_id, waits=False))
        self.poke()
        return True

    def forget_retries(self, job: str) -> None:
        """See ``ClaimsDriver.forget_retries``."""
        self._retries = {key: first for key, first in self._retries.items() if key[0] != job}
        for claim in self.state.pending:
            if claim.start.job == job and _is_retry(claim.start) and claim.run_id not in self._launching:
                self._feed(Dropped(claim.run_id, Reason.RETRY_SETTLED))

    def poke(self) -> None:
        """Look again now."""
        self._woken = True
        self._wake.set()

    def works(self) -> bool:
        """Whether this process can claim and start at this instant."""
        return claim_log.is_open(self.state) and self.may_work()

    def may_work(self) -> bool:
        """See ``ClaimsDriver``."""
        return self._term is not None and self._lease.leads() and not self._closing and not self._process.stopping

    def _quorate(self) -> bool:
        return self._lease.view().quorate

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Steps[None]:
        """Claim and launch."""
        while True:
            self._woken = False
            self._follow_term()
            self._forget_old()
            again = False
            if self.may_work():
                again = yield from self._turn()
            else:
                self._start_unclaimed()
                if self._term is None:
                    yield from self.handover.tend()
            self._world.working(self._process, self.works())
            if not again and not self._woken:
                yield from pause(self._node, self._pause(), self._wake)

    def _follow_term(self) -> None:
        term = self.door.term
        if term is None:
            self._refuse_retries()
        if term is None or self._term is None or term.fence != self._term.fence:
            if self._term is not None:
                self.horizon.forget_waiting()
                self._feed(Ended())
                self._refuse_retries()
            if term is not None:
                self.handover.begin()
                self._feed(Began(term.returned))
            self._term = term
            self._left = Wants()

    def _pause(self) -> Seconds:
        idle = max(SWEEP_EVERY, self._world.idle)
        if self._term is None:
            return SWEEP_EVERY if self._process.runs.running() else max(idle, 3 * self._world.idle)
        if not claim_log.is_open(self.state) or not self.may_work():
            return PAUSE
        if self.state.begun or self.state.pending:
            idle = SWEEP_EVERY
        ahead = self.horizon.next_at
        return idle if ahead is None else max(0.001, min(idle, ahead - self._process.now().wall))

    def _turn(self) -> Steps[bool]:
        self._revive()
        if claim_log.is_open(self.state):
            known = yield from self.handover.look()
            self._follow_term()
            if not known:
                yield from self._breathe(answered=False)
                return True
        commands = self._feed(Ready(self._dice.token(8), self._wants()))
        yield from self._all(commands)
        return bool(commands)

    def _revive(self) -> None:
        term, boot = self.state.term, self._process.now().boot
        if term is None or term.phase is not Phase.OVER:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = boot
        elif boot >= self._over_since + REOPEN_AFTER:
            self._over_since = None
            self._feed(Began())

    def _wants(self) -> Wants:
        term = self.state.term
        if term is None or term.phase is not Phase.OPEN or self.state.flight is not None:
            return Wants()
        if claim_log.unspawned(self.state):
            return Wants()
        now = self._process.now()
        left, ahead = self._left, self.horizon.next_at
        stale = now.boot >= self._swept_at + SWEEP_EVERY or (ahead is not None and ahead <= now.wall)
        if stale or not (left.starts or left.skips):
            left = self._sweep(now.wall, term.opened_at)
            self._swept_at = now.boot
            for name, at in left.lost:
                self._due.pop((name, at), None)
                self._world.alarm(self._node, "lost", f"{name} at {at} left the window")
                self._record(name, at, Decision(Verdict.SKIP, Reason.OUTSIDE_WINDOW))
        self._left = replace(left, starts=left.starts[CHUNK:], skips=left.skips[SKIPS:])
        waiting = [start.at for start in self._left.starts if start.attempt == 0]
        waiting += [skip.at for skip in self._left.skips]
        oldest = min(waiting if left.waiting is None else [*waiting, left.waiting], default=None)
        return replace(left, starts=left.starts[:CHUNK], skips=left.skips[:SKIPS], waiting=oldest)

    def _sweep(self, wall: float, opened_at: float) -> Wants:
        jobs = self._world.jobs
        local = Local(
            blocked=self._blocked,
            waits=lambda name: self.handover.waits(jobs[name]),
            started=lambda name, at: (name, at) in self._unclaimed,
        )
        rules = Rules(self._world.mode, self._world.limit, self._world.rerun)
        known = claim_log.known_now(self.state)
        wants = sweep.sweep(self.horizon, self.state.ledger, known, rules, local, wall, opened_at)
        claimed = {_key(claim.start) for claim in self.state.pending}
        retries = tuple(Start(*key) for key in self._retries if key not in claimed)
        return replace(wants, starts=(*retries, *wants.starts)) if retries else wants

    def _blocked(self, name: str) -> bool:
        job = self._world.jobs[name]
        forbids = job.options.concurrency_policy is ConcurrencyPolicy.FORBID
        return (forbids and self._process.runs.occupied(name)) or self.handover.blocks(job)

    # -- carrying out -------------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> tuple[Command, ...]:
        self.state, commands = claim_log.step(self.state, event, self._process.now())
        return commands

    def _all(self, commands: Iterable[Command]) -> Steps[None]:
        for command in commands:
            yield from self._obey(command)

    def _obey(self, command: Command) -> Steps[None]:
        match command:
            case Look():
                span = yield from self.door.span()
                if span is not None:
                    self._feed(Looked(span))
                term = self.state.term
                if span is None or (term is not None and term.doubt is not None):
                    yield from self._breathe(answered=span is not None)
            case Read(number):
                answer = yield from self.door.read(number)
                if answer is None:
                    yield from self._breathe(answered=False)
                else:
                    self._silent = 0
                    yield from self._all(self._feed(Found(number, answer[0])))
            case Append(number, data):
                yield from self._append(number, data)
            case Spawn(claims):
                yield from self._spawn(claims)
            case Refused(starts, reason):
                for start in starts:
                    if self._retries.pop(_key(start), None) is not None:
                        runs = self._process.runs
                        (runs.retry_spent if reason == Reason.CLAIM_TAKEN else runs.retry_refused)(start.job)
                    elif start.attempt == 0:
                        self._record(start.job, start.at, Decision(Verdict.DEFER, Reason(reason)))
            case Logged(skips):
                for skip in skips:
                    self._due.pop((skip.job, skip.at), None)
                    if skip.reason != Reason.STARTED_UNCLAIMED:
                        self._record(skip.job, skip.at, Decision(Verdict.SKIP, Reason(skip.reason)))
            case Alarm(kind, text):
                self._world.alarm(self._node, kind, text)
            case StandDown():
                self._world.checker.stood_down(STAND_DOWN)
                yield from self._lease.stand_down(STAND_DOWN)
            case _:
                assert_never(command)

    def _append(self, number: int, data: bytes) -> Steps[None]:
        opening = self.state.term is not None and self.state.term.phase is Phase.OPENING
        self._world.moment(self._node, Moment.OPENING if opening else Moment.CLAIMING)
        appended = yield from self.door.append(number, data)
        assert isinstance(appended, Won | Taken | Fenced | Full | Unknown)
        flight = self.state.flight
        if isinstance(appended, Won) and flight is not None and flight.data == data:
            self._world.checker.answered(flight.record)
        self._follow_term()
        commands = self._feed(Answer(appended))
        if any(isinstance(command, Spawn) for command in commands):
            self._world.moment(self._node, Moment.CLAIMED)
        yield from self._all(commands)
        if isinstance(appended, Unknown):
            self._world.alarm(self._node, "unknown", "the claim log did not answer")
            yield from self._breathe(answered=False)
            return
        self._silent = 0
        self._crowded = self._crowded or isinstance(appended, Full)
        low = claim_log.trimmable(self.state)
        if low >= self._trimmed + (1 if self._crowded else TRIM_EVERY):
            yield from self.door.trim(low)
            self._trimmed, self._crowded = low, False
        if isinstance(appended, Full):
            yield from pause(self._node, PAUSE)

    def _breathe(self, *, answered: bool) -> Steps[None]:
        self._silent = 0 if answered else self._silent + 1
        wait = PAUSE if self._silent < 2 else SILENT * self._dice.between(0.8, 1.2)
        yield from pause(self._node, wait)

    def _record(self, name: str, at: EpochSeconds, decision: Decision) -> None:
        self._process.runs.record(self._world.jobs[name], at, decision)

    def _spawn(self, claims: tuple[Claim, ...]) -> Steps[None]:
        for first in range(0, len(claims), SPAWNING):
            batch = [claim for claim in claims[first : first + SPAWNING] if claim.run_id not in self._launching]
            for claim in batch:
                self._launch(claim)
            end = self._process.now().boot + PATIENCE
            while waiting := [c for c in batch if c.run_id in self._launching and not self._is_handed(c)]:
                yield from pause(self._node, max(0.0, end - self._process.now().boot), self._settled)
                if self._process.now().boot >= end:
                    for claim in waiting:
                        if claim.run_id in self._launching:
                            self._feed(Handed(claim.run_id))
                    break
            if not self.may_work():
                return
        if any(claim.run_id not in self._launching for claim in claim_log.unspawned(self.state)):
            yield from pause(self._node, PAUSE)

    def _is_handed(self, claim: Claim) -> bool:
        return any(one.run_id == claim.run_id and one.handed for one in self.state.pending)

    def _launch(self, claim: Claim) -> None:
        start = claim.start
        job = self._world.jobs[start.job]
        self._due.pop((start.job, start.at), None)
        if start.attempt == 0 and (start.job, start.at) in self._unclaimed:
            self._feed(Dropped(claim.run_id, Reason.STARTED_UNCLAIMED))
            return
        first_run_id = self._retries.get(_key(start))
        if _is_retry(start) and first_run_id is None:
            self._feed(Handed(claim.run_id))
            return
        self._launching[claim.run_id] = True
        begun = self._process.runs.start(
            job,
            _decision(claim),
            scheduled_at=start.at,
            trigger=_trigger(start),
            recheck=lambda: self.permit(claim, job),
            attempt=start.attempt,
            first_run_id=first_run_id,
            run_id=claim.run_id,
            fence=claim.fence,
            on_over=lambda refusal: self._over(claim, refusal),
        )
        if isinstance(begun, Decision):
            self._launching.pop(claim.run_id, None)
            if self._retries.pop(_key(start), None) is not None:
                self._feed(Handed(claim.run_id))
                self._process.runs.retry_refused(start.job)
            else:
                self._feed(Dropped(claim.run_id, begun.reason))
        elif self._process.runs.waits(claim.run_id):
            self._feed(Handed(claim.run_id))

    def permit(self, claim: Claim, job: Job) -> Decision:
        """See ``ClaimsDriver._permit``."""
        decision = self._process.runs.recheck(job)
        if decision.verdict is Verdict.RUN:
            if not claim_log.may_spawn(self.state, claim.run_id) or not self.may_work():
                return Decision(Verdict.DEFER, Reason.FENCED)
            self._feed(Spawned(claim.run_id))
            self._retries.pop(_key(claim.start), None)
            self._settle(claim.run_id)
            return decision
        if decision.reason in _FINAL:
            return replace(decision, verdict=Verdict.SKIP)
        return replace(decision, verdict=Verdict.DEFER)

    def _over(self, claim: Claim, refusal: Decision | None) -> None:
        self._settle(claim.run_id)
        self._retries.pop(_key(claim.start), None)
        if all(one.run_id != claim.run_id for one in self.state.pending):
            return
        if refusal is not None and refusal.verdict is Verdict.DEFER:
            self._feed(Handed(claim.run_id, waits=_is_retry(claim.start)))
        else:
            self._feed(Dropped(claim.run_id, Reason.START_FAILED if refusal is None else refusal.reason))
        self.poke()

    def _settle(self, run_id: str) -> None:
        self._launching.pop(run_id, None)
        self._settled.set()

    def _refuse_retries(self) -> None:
        launching = {_key(c.start) for c in self.state.pending if c.run_id in self._launching}
        for key in [key for key in self._retries if key not in launching]:
            self._retries.pop(key, None)
            self._process.runs.retry_refused(key[0])

    # -- without the store, and the end -------------------------------------------------------------------------------

    def _start_unclaimed(self) -> None:
        if self._process.stopping or self._quorate():
            return
        held = [claim for claim in self.state.pending if claim.run_id not in self._launching]
        due = [(name, at) for name, at in self._due if self.state.ledger.mark(name, at) is None]
        due = [*due, *((claim.start.job, claim.start.at) for claim in held if claim.start.attempt == 0)]
        for name, at in sorted(dict.fromkeys(due), key=lambda one: one[1]):
            job = self._world.jobs[name]
            if job.options.cluster_policy is not ClusterPolicy.PREFER_LEADER:
                continue
            self._due.pop((name, at), None)
            decision = self._process.runs.recheck(job)
            if decision.verdict is not Verdict.RUN:
                continue
            for claim in held:
                if (claim.start.job, claim.start.at) == (name, at):
                    self._feed(Dropped(claim.run_id, Reason.STARTED_UNCLAIMED))
            self._unclaimed[(name, at)] = True
            runs = self._process.runs
            runs.start(
                job,
                decision,
                scheduled_at=at,
                trigger=Trigger.SCHEDULE,
                recheck=partial(runs.recheck, job),
            )

    def _forget_old(self) -> None:
        since = self._process.now().wall - 2 * self.horizon.window
        if self._due:
            self._due = {due: True for due in self._due if due[1] > since}
        if self._unclaimed:
            self._unclaimed = {start: True for start in self._unclaimed if start[1] > since}

    def close(self) -> Steps[None]:
        """See ``ClaimsDriver.stop``; the loop above was ended before."""
        self._closing = True
        until = self._process.now().boot + STOP_WITHIN
        while self._term is not None and claim_log.is_open(self.state) and self._process.now().boot < until:
            commands = self._feed(Ready(self._dice.token(8), flush=True))
            appends = [command for command in commands if isinstance(command, Append)]
            if not appends:
                break
            appended = yield from self.door.append(appends[0].number, appends[0].data)
            assert isinstance(appended, Won | Taken | Fenced | Full | Unknown)
            self._feed(Answer(appended))
            if isinstance(appended, Unknown):
                yield from pause(self._node, PAUSE)
        if self._term is not None:
            yield from self.handover.leave()
        self.settled = self.state.flight is None and claim_log.is_open(self.state)
        self.state, ids = claim_log.give_back(self.state)
        self._lease.given_back = ids

    @property
    def had_term(self) -> bool:
        """Whether there is something to say to a successor."""
        return self._term is not None


def definition(job: Job) -> str:
    """What makes a job another one for the claim log; any text that tells schedules apart will do here."""
    return f"{job.schedule.text}|{job.schedule.day_match}|{job.schedule.zone}"


def _key(start: Start) -> Key:
    return start.job, start.at, start.attempt


def _is_retry(start: Start) -> bool:
    return start.attempt > 0 and not start.late


def _trigger(start: Start) -> Trigger:
    if start.late:
        return Trigger.CATCHUP
    return Trigger.RETRY if start.attempt else Trigger.SCHEDULE


def _decision(claim: Claim) -> Decision:
    evidence = MappingProxyType({"fence": claim.fence, "attempt": claim.start.attempt})
    return Decision(Verdict.RUN, Reason.CATCH_UP if claim.start.late else Reason.LEADER, evidence)
