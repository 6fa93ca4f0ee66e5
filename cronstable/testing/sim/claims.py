"""A process's side of the claim log: what ``ClaimsDriver`` and ``ClaimLaunch`` do, around the same decisions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from cronstable.core import claim_log
from cronstable.core.claim_desk import PATIENCE, Around, Desk, starts_alone
from cronstable.core.claim_session import PAUSE, STAND_DOWN, SWEEP_EVERY, Session
from cronstable.core.claim_values import (
    Alarm,
    Answer,
    Append,
    Claim,
    Command,
    Found,
    Logged,
    Look,
    Looked,
    Phase,
    Read,
    Ready,
    Refused,
    Skip,
    Spawn,
    StandDown,
    Start,
)
from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.handover import LOOK_EVERY, Handover
from cronstable.core.job import Job
from cronstable.core.lease import is_quorate
from cronstable.core.runs import Trigger
from cronstable.core.store import Fenced, Full, Taken, Unknown, Won
from cronstable.core.sweep import is_claimable
from cronstable.runtime.claims_driver import STOP_WITHIN
from cronstable.testing.sim.door import Door, Entries
from cronstable.testing.sim.engine import Signal, Steps, pause
from cronstable.testing.sim.faults import Moment

if TYPE_CHECKING:
    from cronstable.testing.sim.node import LeaseSide, Process


class ClaimsSide:
    """See ``ClaimsDriver``: it asks, waits and writes down."""

    def __init__(self, process: Process, lease: LeaseSide) -> None:
        self._process = process
        self._world = world = process.world
        self._node = process.node
        self._lease = lease
        self._dice = process.dice.child("claims")
        token = self._dice.token(6)
        self.door = Door(process, lease)
        handover = Handover(token, self.door.ttl)
        self._session = Session(
            process.node.name, token, handover, window=world.window, mode=world.mode, limit=world.limit
        )
        self.entries = Entries(process, self.door, self._session)
        self._desk = Desk()
        self._around = Around(process.runs.occupied)
        self.settled = False
        self._settled = Signal()
        self._wake = Signal()
        self._woken = False
        self._session.load(world.jobs.values(), process.now())

    # -- what others ask ----------------------------------------------------------------------------------------------

    def takes(self, job: Job, scheduled_at: EpochSeconds) -> bool:
        """See ``ClaimsDriver.takes``."""
        if not is_claimable(job) or not self._desk.takes(job, scheduled_at, quorate=self._quorate()):
            return False
        self.poke()
        return True

    def retry(self, job: Job, scheduled_at: EpochSeconds, attempt: int, first_run_id: str) -> bool:
        """See ``ClaimsDriver.retry``."""
        if not is_claimable(job) or starts_alone(job, quorate=self._quorate()):
            return False
        if self._session.closing:
            self._process.runs.retry_refused(job.name)
            return True
        key = (job.name, scheduled_at, attempt)
        self._desk.retry(self._session, key, first_run_id, self._process.now())
        self.poke()
        return True

    def forget_retries(self, job: str) -> None:
        """See ``ClaimsDriver.forget_retries``."""
        self._desk.forget_retries(self._session, job, self._process.now())

    def started(self, job: Job, run_id: str) -> None:
        """See ``ClaimsDriver.started``."""
        if self._desk.lives(self._session, job.name, run_id, self._process.now()):
            self.poke()

    def poke(self) -> None:
        """Look again now."""
        self._woken = True
        self._wake.set()

    def works(self) -> bool:
        """Whether this process can claim and start at this instant."""
        return self._session.is_open and self.may_work()

    def may_work(self) -> bool:
        """See ``ClaimsDriver``."""
        return self._session.may_work(self._lease.leads()) and not self._process.stopping

    @property
    def had_term(self) -> bool:
        """Whether there is something to say to a successor."""
        return self._session.term is not None

    def _quorate(self) -> bool:
        return is_quorate(self._lease.state, self._process.now().boot)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Steps[None]:
        """Claim and launch."""
        session = self._session
        while True:
            self._woken = False
            self._follow_term()
            self._desk.forget_old(self._process.now().wall - 2 * session.horizon.window)
            again = False
            if self.may_work():
                again = yield from self._turn()
            else:
                if not self._process.stopping and not self._quorate():
                    self._start_alone()
                if session.term is None:
                    yield from self.entries.tend()
            self._world.working(self._process, self.works())
            if not again and not self._woken:
                wait = session.pause(self._process.now(), may_work=self.may_work(), longest=self._longest())
                yield from pause(self._node, wait, self._wake)

    def _longest(self) -> Seconds:
        """A coarse simulation looks less often where nothing can happen meanwhile."""
        state, boot = self._session.state, self._process.now().boot
        leading = self._session.term is not None
        if not self._world.idle or state.pending or (not leading and self._process.runs.running()):
            return SWEEP_EVERY
        look = self.next_look(boot) - boot
        if not leading or not state.begun or state.begun_at is None:
            return look
        flush = state.begun_at + claim_log.FLUSH_AFTER - boot
        return min(look, flush if flush > 0 else SWEEP_EVERY)

    def next_look(self, boot: float) -> float:
        """When an idle process looks again.

        At fixed instants, so that it is where it would be when a stretch in which nothing happens is left out.
        """
        every = self._every()
        return boot + every - boot % every

    def last_look(self, boot: float) -> float:
        """When an idle process looked last."""
        return boot - boot % self._every()

    def _every(self) -> Seconds:
        return self._world.idle if self._session.term is not None else 3 * self._world.idle

    def next_at(self) -> EpochSeconds | None:
        """When something falls due that this leader claims, by its clock."""
        return self._session.horizon.next_at if self._session.term is not None else None

    def pass_over_looks(self, boot: float) -> None:
        """Take in what an idle leader sees at its last look before ``boot``, without the ways to the store and back.

        The looks in between find what this one finds: what is due, and the entries, stay as they are.
        """
        now, last = self._process.now(), self.last_look(boot)
        if last <= now.boot:
            return
        handover, every = self._session.handover, max(LOOK_EVERY, self._world.idle)
        self._session.horizon.advance(now.wall + last - now.boot)
        if handover.is_look_due(last, every):
            said = handover.looked(self._found(), last, last)
            assert said is None, "an idle leader has something to say"

    def _found(self) -> tuple[bytes, ...]:
        """The entries as they stand in the store."""
        return tuple(self._lease.store.lease.entries.values())

    def is_idle(self) -> bool:
        """Nothing is under way or owed here, and nothing is to be said."""
        session, now = self._session, self._process.now()
        state, left, ahead = session.state, session.left, session.horizon.next_at
        if (
            session.closing
            or state.flight is not None
            or not (self._desk.is_idle and session.handover.is_quiet(now.boot))
            or session.unsaid(now.boot)
        ):
            return False
        if session.term is None:
            return state.term is None
        return (
            self.works()
            and not (state.pending or state.begun or state.ledger.unstarted)
            and not (left.starts or left.skips or left.waiting)
            and (ahead is None or ahead > now.wall)
            and not session.handover.is_news(self._found(), now.boot)
            and self._world.checker.is_working(self._node.name)
        )

    def _follow_term(self) -> None:
        if self._session.follow(self.door.term, self._process.now()):
            for job in self._desk.refused_retries(self._session):
                self._process.runs.retry_refused(job)

    def _turn(self) -> Steps[bool]:
        session = self._session
        session.revive(self._process.now())
        if session.is_open:
            known = yield from self.entries.look()
            self._follow_term()
            if not known:
                yield from self._breathe(answered=False)
                return True
        now = self._process.now()
        wants = self._desk.wants(session, self._around, now)
        for name, at in wants.lost:
            self._world.alarm(self._node, "lost", f"{name} at {at} left the window")
            self._record(name, at, Decision(Verdict.SKIP, Reason.OUTSIDE_WINDOW))
        commands = session.feed(Ready(self._dice.token(8), wants), now)
        yield from self._all(commands)
        return bool(commands)

    # -- carrying out -------------------------------------------------------------------------------------------------

    def _all(self, commands: Iterable[Command]) -> Steps[None]:
        for command in commands:
            yield from self._obey(command)

    def _obey(self, command: Command) -> Steps[None]:
        session = self._session
        match command:
            case Look():
                span = yield from self.door.span()
                if span is not None:
                    session.feed(Looked(span), self._process.now())
                term = session.state.term
                if span is None or (term is not None and term.doubt is not None):
                    yield from self._breathe(answered=span is not None)
            case Read(number):
                answer = yield from self.door.read(number)
                if answer is None:
                    yield from self._breathe(answered=False)
                else:
                    session.heard()
                    yield from self._all(session.feed(Found(number, answer[0]), self._process.now()))
            case Append(number, data):
                yield from self._append(number, data)
            case Spawn(claims):
                yield from self._spawn(claims)
            case Refused(starts, reason):
                for start in starts:
                    self._not_claimed(start, Reason(reason))
            case Logged(skips):
                self._skipped(skips)
            case Alarm(kind, text):
                self._world.alarm(self._node, kind, text)
            case StandDown():
                self._world.checker.stood_down(STAND_DOWN)
                yield from self._lease.stand_down(STAND_DOWN)
            case _:
                assert_never(command)

    def _not_claimed(self, start: Start, reason: Reason) -> None:
        if self._desk.withdrawn(start):
            runs = self._process.runs
            (runs.retry_spent if reason is Reason.CLAIM_TAKEN else runs.retry_refused)(start.job)
        elif start.attempt == 0:
            self._record(start.job, start.at, Decision(Verdict.DEFER, reason))

    def _append(self, number: int, data: bytes) -> Steps[None]:
        session = self._session
        opening = session.state.term is not None and session.state.term.phase is Phase.OPENING
        self._world.moment(self._node, Moment.OPENING if opening else Moment.CLAIMING)
        appended = yield from self.door.append(number, data)
        assert isinstance(appended, Won | Taken | Fenced | Full | Unknown)
        flight = session.state.flight
        if isinstance(appended, Won) and flight is not None and flight.data == data:
            self._world.checker.answered(flight.record)
        self._follow_term()
        commands = session.feed(Answer(appended), self._process.now())
        if any(isinstance(command, Spawn) for command in commands):
            self._world.moment(self._node, Moment.CLAIMED)
        yield from self._all(commands)
        if isinstance(appended, Unknown):
            self._world.alarm(self._node, "unknown", "the claim log did not answer")
            yield from self._breathe(answered=False)
            return
        low = session.trim_to(appended)
        if low is not None:
            yield from self.door.trim(low)
            session.trimmed(low)
        if isinstance(appended, Full):
            yield from self._breathe(answered=False)

    def _breathe(self, *, answered: bool) -> Steps[None]:
        yield from pause(self._node, self._session.breath(self._dice.random(), answered=answered))

    def _skipped(self, skips: Iterable[Skip]) -> None:
        for skip in self._desk.logged(skips):
            self._record(skip.job, skip.at, Decision(Verdict.SKIP, Reason(skip.reason)))

    def _record(self, name: str, at: EpochSeconds, decision: Decision) -> None:
        self._process.runs.record(self._world.jobs[name], at, decision)

    # -- launching, see ``ClaimLaunch`` -------------------------------------------------------------------------------

    def _spawn(self, claims: tuple[Claim, ...]) -> Steps[None]:
        session, desk = self._session, self._desk
        for batch in desk.batches(claims):
            for claim in batch:
                self._launch(claim)
            end = self._process.now().boot + PATIENCE
            while desk.awaited(session, batch):
                yield from pause(self._node, max(0.0, end - self._process.now().boot), self._settled)
                if self._process.now().boot >= end:
                    desk.hold_up_no_longer(session, batch, self._process.now())
            if not self.may_work():
                return
        if desk.has_unlaunched(session):
            yield from pause(self._node, PAUSE)

    def _launch(self, claim: Claim) -> None:
        start, runs, desk = claim.start, self._process.runs, self._desk
        launch = desk.launch(self._session, claim, self._world.jobs.get(start.job), self._process.now())
        if launch is None:
            return
        begun = runs.start(
            launch.job,
            launch.decision,
            scheduled_at=start.at,
            trigger=launch.trigger,
            recheck=lambda: self._permit(claim, launch.job),
            attempt=launch.attempt,
            first_run_id=launch.first_run_id,
            run_id=claim.run_id,
            fence=claim.fence,
            on_over=lambda refusal: self._over(claim, refusal),
        )
        refusal = begun if isinstance(begun, Decision) else None
        waits = refusal is None and runs.waits(claim.run_id)
        if desk.launched(self._session, claim, refusal, waits, self._process.now()):
            runs.retry_refused(start.job)

    def _permit(self, claim: Claim, job: Job) -> Decision:
        gate = self._process.runs.recheck(job)
        decision = self._desk.permit(self._session, claim, gate, self.may_work(), self._process.now())
        if decision.verdict is Verdict.RUN:
            self._settled.set()
        return decision

    def _over(self, claim: Claim, refusal: Decision | None) -> None:
        again = self._desk.over(self._session, claim, refusal, self._process.now())
        self._settled.set()
        if again:
            self.poke()

    def _start_alone(self) -> None:
        runs = self._process.runs
        for job, at in self._desk.left_alone(self._session, self._world.jobs, self._process.now()):
            decision = runs.recheck(job)
            if decision.verdict is Verdict.RUN:
                self._desk.start_alone(self._session, job, at, self._process.now())
                recheck = partial(runs.recheck, job)
                runs.start(job, decision, scheduled_at=at, trigger=Trigger.SCHEDULE, recheck=recheck)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> Steps[None]:
        """See ``ClaimsDriver.stop``; the loop above was ended before."""
        session = self._session
        session.closing = True
        until = self._process.now().boot + STOP_WITHIN
        while session.term is not None and session.is_open and self._process.now().boot < until:
            commands = session.feed(Ready(self._dice.token(8), flush=True), self._process.now())
            appends = [command for command in commands if isinstance(command, Append)]
            if not appends:
                break
            appended = yield from self.door.append(appends[0].number, appends[0].data)
            assert isinstance(appended, Won | Taken | Fenced | Full | Unknown)
            for command in session.feed(Answer(appended), self._process.now()):
                if isinstance(command, Logged):
                    self._skipped(command.skips)
            if isinstance(appended, Unknown | Full):
                yield from pause(self._node, PAUSE)
        if session.term is not None:
            yield from self.entries.leave()
        self.settled = session.state.flight is None and session.is_open
        session.state, ids = claim_log.give_back(session.state)
        self._lease.given_back = ids
