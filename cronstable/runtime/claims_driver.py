"""Occurrence claims at work: between what is due and what is launched, on backends that keep a claim log.

Every decision is in ``core.claim_log``, ``core.claim_session``, ``core.claim_desk`` and ``core.sweep``. What is here:
asking the store, waiting, and writing down what was decided.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, assert_never

import anyio

from cronstable.core import claim_log
from cronstable.core.claim_desk import Around, Desk, starts_alone
from cronstable.core.claim_session import PAUSE, STAND_DOWN, SWEEP_EVERY, Session
from cronstable.core.claim_values import (
    Alarm,
    Answer,
    Append,
    Command,
    Found,
    Logged,
    Look,
    Looked,
    Read,
    Ready,
    Refused,
    Skip,
    Spawn,
    Spawned,
    StandDown,
    Start,
)
from cronstable.core.clock import Clock, EpochSeconds, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import Job
from cronstable.core.occurrence import scheduled_at_text
from cronstable.core.runs import LiveRun, RunRecord
from cronstable.core.store import Full, Unknown
from cronstable.core.sweep import is_claimable
from cronstable.plugin.protocols import Ids
from cronstable.runtime.claim_launch import ClaimLaunch, Gate
from cronstable.runtime.claims_session import Bound, bind
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.older_claims import OlderClaims, Over

IDLE: Final[Seconds] = 30.0
"""Without a claim log there is nothing to do; a change of leadership wakes the loop."""
STOP_WITHIN: Final[Seconds] = 3.0
QUIET: Final[Seconds] = 60.0


class ClaimsDriver:
    """The claims of this node. Without a claim log it does nothing, and the scheduler goes its own way.

    All methods belong to the daemon's loop.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        ids: Ids,
        gate: Gate,
        cluster: ClusterManager,
        launcher: Launcher,
        log: logging.Logger,
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._gate = gate
        self._cluster = cluster
        self._launcher = launcher
        self._log = log
        self._bound: Bound | None = None
        self._begun: tuple[str, ...] = ()
        """Started, and not yet said in the log by a session that is over: the next one must not take them for lost."""
        self._tokens: deque[str] = deque(maxlen=100)
        self._wake = anyio.Event()
        self._older = OlderClaims()
        self._desk = Desk(self._older)
        self._around = Around(launcher.occupied, gate.paused_at)
        self._launch = ClaimLaunch(
            clock=clock,
            gate=gate,
            launcher=launcher,
            desk=self._desk,
            older=self._older,
            may_work=self._may_work,
            refused=lambda job: self.retry_refused(job),
            poke=self.poke,
        )
        self._said: dict[str, float] = {}
        self.appended: Callable[[Seconds, str], None] = lambda took, answer: None
        self.retry_refused: Callable[[str], None] = lambda job: None
        self.retry_spent: Callable[[str], None] = lambda job: None

    # -- what the scheduler asks --------------------------------------------------------------------------------------

    def owns(self, job: Job) -> bool:
        """Whether occurrences of ``job`` are decided through the claim log of a running election."""
        return self._cluster.claims is not None and is_claimable(job)

    def takes(self, job: Job, scheduled_at: EpochSeconds) -> bool:
        """An occurrence may start, says the gate: True when it is claimed first, so that the caller leaves it alone.

        PreferLeader starts unclaimed while the store does not answer (claims.md 14).
        """
        if not self.owns(job) or not self._desk.takes(job, scheduled_at, quorate=self._quorate()):
            return False
        self.poke()
        return True

    def retry(self, job: Job, scheduled_at: EpochSeconds, attempt: int, first_run_id: str) -> bool:
        """A further attempt is due: True when it is appended first and launched from here (claims.md 5).

        ``retry_refused`` is called with the job's name when that cannot be done now, ``retry_spent`` when the number
        of the attempt is in the log already.
        """
        if not self.owns(job) or starts_alone(job, quorate=self._quorate()):
            return False
        session = self._session
        if session is None or session.closing:
            self.retry_refused(job.name)
            return True
        # A term that just began is opened first: what is in the log already must not be started beside it.
        self._desk.retry(session, (job.name, scheduled_at, attempt), first_run_id, self._clock.now())
        self.poke()
        return True

    def forget_retries(self, job: str) -> None:
        """Nothing of ``job`` is to be tried again: what was claimed for that gets its reason in the log."""
        self._desk.forget_retries(self._session, job, self._clock.now())

    @property
    def window(self) -> Seconds:
        """How far back the sweep looks; 0 without a claim log."""
        return self._session.horizon.window if self._session is not None else 0.0

    @property
    def has_swept(self) -> bool:
        """Whether the sweep has had its look at this job set, and given up what is too old for it."""
        return self._session is not None and self._session.swept_at > float("-inf")

    def catch_up(self, job: Job, at: EpochSeconds, over: Over) -> bool:
        """Claim an occurrence that is older than the window, and launch it (claims.md 15); False: not now."""
        session = self._session
        if session is None or not self.owns(job) or not self._may_work(session):
            return False
        if session.state.ledger.mark(job.name, at) is not None:
            over(Decision(Verdict.SKIP, Reason.CLAIM_TAKEN))
            return True
        self._older.add((job.name, at, 1), over)
        session.swept_at = float("-inf")
        self.poke()
        return True

    def started(self, job: Job, run: LiveRun) -> None:
        """A process lives: as the launcher's ``RunListener``."""
        session = self._session
        if session is not None and self._desk.lives(session, job.name, run.key.run_id, self._clock.now()):
            self.poke()

    def finished(self, job: Job, record: RunRecord) -> None:
        """How it ended is no matter of claims."""

    def load(self) -> None:
        """The job set changed."""
        if self._session is not None:
            self._session.load(self._gate.jobs.values(), self._clock.now())
        self.poke()

    def poke(self) -> None:
        """Look again now."""
        self._wake.set()

    @property
    def _session(self) -> Session | None:
        return self._bound.session if self._bound is not None else None

    def _quorate(self) -> bool:
        view = self._cluster.view()
        return view is not None and view.quorate

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and launch until cancelled."""
        while True:
            self._wake = anyio.Event()
            try:
                bound = self._current()
                again = bound is not None and await self._step(bound)
            except Exception:  # noqa: BLE001 - see below
                # Ours or a backend's bug: it may cost what was claimed and not started, never the daemon.
                self._log.exception("cluster: a bug in the claims; the log is read again")
                self._end_session()
                bound, again = None, False
                self._defer_older()
                await self._clock.sleep(SWEEP_EVERY)
                self.poke()
            if not again:
                with anyio.move_on_after(self._pause(bound)):
                    await self._wake.wait()

    def _pause(self, bound: Bound | None) -> Seconds:
        if bound is None:
            return IDLE
        return bound.session.pause(self._clock.now(), may_work=self._may_work(bound.session))

    async def _step(self, bound: Bound) -> bool:
        session = bound.session
        if self._may_work(session):
            return await self._turn(bound)
        view = self._cluster.view()
        if view is not None and not view.quorate and not self._launcher.stopping:
            self._launch.start_alone(session)
        if session.term is None:
            # A run that outlived its term, whatever ended that: whoever leads now has to know of it (claims.md 16).
            await bound.entries.tend()
        return False

    def _current(self) -> Bound | None:
        """The session of the election that runs now, told of its term."""
        claims, now = self._cluster.claims, self._clock.now()
        if claims is None:
            self._refuse_retries()
            self._end_session()
            self._defer_older()
            return None
        bound = self._bound
        if bound is None or bound.claims is not claims:
            self._end_session()
            token = self._ids.token(6)
            bound = bind(claims, self._cluster.catch_up, self._launcher, self._clock, self._ids, token, self._tokens)
            self._tokens.append(token)
            self._bound = bound
            for run_id in self._begun:
                bound.session.feed(Spawned(run_id), now)
            bound.session.load(self._gate.jobs.values(), now)
        self._follow_term(bound)
        self._desk.forget_old(now.wall - 2 * bound.session.horizon.window)
        return bound

    def _end_session(self) -> None:
        if self._bound is not None:
            state = self._bound.session.state
            self._begun, self._bound = (*state.begun, *state.spawning), None

    def _follow_term(self, bound: Bound) -> None:
        if bound.session.follow(bound.claims.term, self._clock.now()):
            self._refuse_retries()
            self._defer_older()

    def _refuse_retries(self) -> None:
        for job in self._desk.refused_retries(self._session):
            self.retry_refused(job)

    def _defer_older(self) -> None:
        """The term is over: what is not on its way to a process is asked for again, by whoever leads then."""
        for key in [key for key in self._older if not self._desk.is_launching(self._session, key)]:
            self._older.end(key, Decision(Verdict.DEFER, Reason.FENCED))

    def _may_work(self, session: Session) -> bool:
        view = self._cluster.view()
        leads = view is not None and view.is_leader and (view.deadline is None or self._boot() < view.deadline)
        return session is self._session and session.may_work(leads) and not self._launcher.stopping

    async def _turn(self, bound: Bound) -> bool:
        """One thing; True when there may be another one right away."""
        session = bound.session
        session.revive(self._clock.now())
        if session.is_open:
            known = await bound.entries.look()
            # Meanwhile the lease may have been lost and won again: what follows is then for the new term.
            self._follow_term(bound)
            if not known:
                # A run of the node before may still be under way: whom it blocks is not known yet.
                await self._breathe(session, answered=False)
                return True
        now = self._clock.now()
        wants = self._desk.wants(session, self._around, now)
        self._lost(wants.lost)
        commands = session.feed(Ready(self._ids.token(8), wants), now)
        await self._all(bound, commands)
        return bool(commands)

    def _lost(self, lost: Iterable[tuple[str, EpochSeconds]]) -> None:
        for name, at in lost:
            self._alarm("lost", f"nobody led for longer than the window: the occurrence of {name} at {at} is lost")
            self._record(name, at, Decision(Verdict.SKIP, Reason.OUTSIDE_WINDOW))

    # -- carrying out -------------------------------------------------------------------------------------------------

    async def _all(self, bound: Bound, commands: Iterable[Command]) -> None:
        for command in commands:
            await self._obey(bound, command)

    async def _obey(self, bound: Bound, command: Command) -> None:
        session, claims = bound.session, bound.claims
        match command:
            case Look():
                span = await claims.span()
                if span is not None:
                    session.feed(Looked(span), self._clock.now())
                term = session.state.term
                if span is None or (term is not None and term.doubt is not None):
                    await self._breathe(session, answered=span is not None)
            case Read(number):
                answer = await claims.read(number)
                if answer is None:
                    await self._breathe(session, answered=False)
                else:
                    session.heard()
                    await self._all(bound, session.feed(Found(number, answer[0]), self._clock.now()))
            case Append(number, data):
                await self._append(bound, number, data)
            case Spawn(won):
                await self._launch.spawn(session, won)
            case Refused(starts, reason):
                for start in starts:
                    self._not_claimed(start, Reason(reason))
            case Logged(skips):
                self._skipped(skips)
            case Alarm(kind, text):
                self._alarm(kind, text)
            case StandDown():
                await claims.stand_down(STAND_DOWN)
            case _:
                assert_never(command)

    def _not_claimed(self, start: Start, reason: Reason) -> None:
        key = (start.job, start.at, start.attempt)
        is_taken = reason is Reason.CLAIM_TAKEN
        if self._desk.withdrawn(start):
            (self.retry_spent if is_taken else self.retry_refused)(start.job)
        elif self._older.end(key, Decision(Verdict.SKIP if is_taken else Verdict.DEFER, reason)):
            return
        elif start.attempt == 0:
            before = self._launcher.decisions.get(start.job, start.at)
            if before is None or before.decision.reason is not reason:
                # Asked for again and again while the log is full: one record says so.
                self._record(start.job, start.at, Decision(Verdict.DEFER, reason))

    async def _append(self, bound: Bound, number: int, data: bytes) -> None:
        session, asked = bound.session, self._boot()
        appended = await bound.claims.append(number, data)
        self.appended(self._boot() - asked, type(appended).__name__.lower())
        # The term may be another one by now; what was asked under the old one is not an answer for the new.
        self._follow_term(bound)
        await self._all(bound, session.feed(Answer(appended), self._clock.now()))
        if isinstance(appended, Unknown):
            self._alarm("unknown", "the claim log did not answer; the same claim is sent again until it does")
            await self._breathe(session, answered=False)
            return
        low = session.trim_to(appended)
        if low is not None:
            await bound.claims.trim(low)
            session.trimmed(low)
        if isinstance(appended, Full):
            await self._breathe(session, answered=False)

    async def _breathe(self, session: Session, *, answered: bool) -> None:
        await self._clock.sleep(session.breath(int(self._ids.token(1), 16) / 255, answered=answered))

    # -- writing down -------------------------------------------------------------------------------------------------

    def _skipped(self, skips: Iterable[Skip]) -> None:
        for skip in self._desk.logged(skips):
            if skip.reason == Reason.CLAIMED_NOT_STARTED:
                due = scheduled_at_text(skip.at)
                self._log.warning("job %s: %s was claimed and is not known to have started", skip.job, due)
            self._record(skip.job, skip.at, Decision(Verdict.SKIP, Reason(skip.reason)))

    def _record(self, name: str, at: EpochSeconds, decision: Decision) -> None:
        job = self._gate.jobs.get(name)
        if job is not None:
            self._launcher.record(job, at, decision)

    def _alarm(self, kind: str, text: str) -> None:
        boot = self._boot()
        if boot - self._said.get(kind, -QUIET) >= QUIET:
            self._said[kind] = boot
            self._log.warning("cluster: %s", text)

    def _boot(self) -> float:
        return self._clock.now().boot

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Settle the append in flight, say what was started, and give back what was not (claims.md 7)."""
        bound = self._bound
        if bound is None:
            return
        session = bound.session
        session.closing = True
        with anyio.move_on_after(STOP_WITHIN, shield=True):
            while session.term is not None and session.is_open:
                commands = session.feed(Ready(self._ids.token(8), flush=True), self._clock.now())
                appends = [command for command in commands if isinstance(command, Append)]
                if not appends:
                    break
                appended = await bound.claims.append(appends[0].number, appends[0].data)
                for command in session.feed(Answer(appended), self._clock.now()):
                    if isinstance(command, Logged):
                        self._skipped(command.skips)
                if isinstance(appended, Unknown | Full):
                    await self._clock.sleep(PAUSE)
            if session.term is not None:
                await bound.entries.leave()
        session.state, ids = claim_log.give_back(session.state)
        bound.claims.give_back(ids)
        if ids:
            self._log.info("cluster: %d claimed runs are given back to whoever leads next", len(ids))

    async def drain(self) -> None:
        """While the last runs end: keep the successor informed, until cancelled."""
        if self._bound is not None and self._bound.session.term is not None:
            await self._bound.entries.drain()

    async def leave(self) -> None:
        """The last runs are over, or given up on."""
        if self._bound is not None and self._bound.session.term is not None:
            with anyio.move_on_after(STOP_WITHIN, shield=True):
                await self._bound.entries.leave()
