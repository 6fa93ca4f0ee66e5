"""Occurrence claims at work: between what is due and what is launched, on backends that keep a claim log.

Every decision is in ``core.claim_log`` and ``core.sweep``. What is here: asking the store, launching what was won after
one more look at the deadline, and writing down what was decided.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol, assert_never

import anyio

from cronstable.core import claim_log
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
    Skip,
    Spawn,
    Spawned,
    StandDown,
    Start,
    Wants,
)
from cronstable.core.clock import Clock, EpochSeconds, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job
from cronstable.core.runs import Trigger
from cronstable.core.store import Full, Unknown
from cronstable.core.sweep import Local, Rules, sweep
from cronstable.plugin.protocols import Ids
from cronstable.runtime.claims_session import Session, claimable, definition, is_claimable
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.handover import Handover
from cronstable.runtime.launcher import Launcher

SPAWNING: Final = 16
"""Late or not, so many are on their way to a process at a time (claims.md 12)."""
PATIENCE: Final[Seconds] = 1.0
"""For launches that wait for a slow disk or for the run before: after that the next chunk may be claimed."""
SWEEP_EVERY: Final[Seconds] = 1.0
IDLE: Final[Seconds] = 30.0
"""Without a claim log there is nothing to do; a change of leadership wakes the loop."""
PAUSE: Final[Seconds] = 0.2
"""Between two tries at a store that does not answer, or shows less than it must have."""
SILENT: Final[Seconds] = 2.0
"""The same once it was silent before, give or take a fifth: all nodes of a fleet ask the same store, and each of them
for its lease as well (DESIGN 6, L4)."""
STOP_WITHIN: Final[Seconds] = 3.0
STAND_DOWN: Final[Seconds] = 60.0
REOPEN_AFTER: Final[Seconds] = 5.0
TRIM_EVERY: Final = 100
QUIET: Final[Seconds] = 60.0

_FINAL: Final = frozenset({Reason.DISABLED, Reason.PAUSED, Reason.LAST_NOT_SUCCEEDED, Reason.STORE_UNAVAILABLE})
"""Refusals before the spawn that time does not heal."""


class Gate(Protocol):
    """The scheduler's side: what is configured, and what may start now."""

    @property
    def jobs(self) -> Mapping[str, Job]: ...
    def decide(self, job: Job) -> Decision: ...
    def recheck(self, job: Job) -> Decision: ...
    def paused_at(self, job: Job, at: EpochSeconds) -> bool: ...
    def after_success(self, job: Job) -> Decision | None: ...


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
        self._session: Session | None = None
        self._begun: tuple[str, ...] = ()
        """Started, and not yet said in the log by a session that is over: the next one must not take them for lost."""
        self._tokens: deque[str] = deque(maxlen=100)
        self._launching: set[str] = set()
        self._settled = anyio.Event()
        self._wake = anyio.Event()
        self._due: set[tuple[str, EpochSeconds]] = set()
        self._unclaimed: set[tuple[str, EpochSeconds]] = set()
        self._retries: dict[tuple[str, EpochSeconds, int], str] = {}
        self._missed: dict[tuple[str, EpochSeconds, int], Callable[[Decision | None], None]] = {}
        self._catching_up: dict[str, Callable[[Decision | None], None]] = {}
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
        if not self.owns(job):
            return False
        view = self._cluster.view()
        if job.options.cluster_policy is ClusterPolicy.PREFER_LEADER and (view is None or not view.quorate):
            self._unclaimed.add((job.name, scheduled_at))
            return False
        self._due.add((job.name, scheduled_at))
        self.poke()
        return True

    def retry(self, job: Job, scheduled_at: EpochSeconds, attempt: int, first_run_id: str) -> bool:
        """A further attempt is due: True when it is appended first and launched from here (claims.md 5).

        ``retry_refused`` is called with the job's name when that cannot be done now, ``retry_spent`` when the number
        of the attempt is in the log already.
        """
        view = self._cluster.view()
        prefers = job.options.cluster_policy is ClusterPolicy.PREFER_LEADER
        if not self.owns(job) or (prefers and (view is None or not view.quorate)):
            return False
        session = self._session
        if session is None or session.closing:
            self.retry_refused(job.name)
            return True
        # A term that just began is opened first: what is in the log already must not be started beside it.
        key = (job.name, scheduled_at, attempt)
        self._retries[key] = first_run_id
        session.swept_at = float("-inf")
        for claim in session.state.pending:
            if _key(claim.start) == key and claim.run_id not in self._launching:
                self._feed(session, Handed(claim.run_id, waits=False))
        self.poke()
        return True

    def forget_retries(self, job: str) -> None:
        """Nothing of ``job`` is to be tried again: what was claimed for that gets its reason in the log."""
        self._retries = {key: first for key, first in self._retries.items() if key[0] != job}
        session = self._session
        if session is None:
            return
        for claim in session.state.pending:
            if claim.start.job == job and _is_retry(claim.start) and claim.run_id not in self._launching:
                self._feed(session, Dropped(claim.run_id, Reason.RETRY_SETTLED))

    @property
    def window(self) -> Seconds:
        """How far back the sweep looks; 0 without a claim log."""
        return self._session.horizon.window if self._session is not None else 0.0

    @property
    def has_swept(self) -> bool:
        """Whether the sweep has had its look at this job set, and given up what is too old for it."""
        return self._session is not None and self._session.swept_at > float("-inf")

    def catch_up(self, job: Job, at: EpochSeconds, over: Callable[[Decision | None], None]) -> bool:
        """Claim an occurrence that is older than the window, and launch it (claims.md 15); False: not now.

        It is claimed as attempt 1: attempt 0 of what lies below the floor counts as claimed by somebody. ``over`` is
        called once: when the run is over, or with what refused it; a DEFER may be asked for again.
        """
        session = self._session
        if session is None or not self.owns(job) or not self._may_work(session):
            return False
        if session.state.ledger.mark(job.name, at) is not None:
            over(Decision(Verdict.SKIP, Reason.CLAIM_TAKEN))
            return True
        self._missed[(job.name, at, 1)] = over
        session.swept_at = float("-inf")
        self.poke()
        return True

    def _end_missed(self, key: tuple[str, EpochSeconds, int], refusal: Decision | None) -> None:
        over = self._missed.pop(key, None)
        if over is not None:
            over(refusal)

    def _defer_missed(self) -> None:
        """The term is over: what is not on its way to a process is asked for again, by whoever leads then."""
        for key in [key for key in self._missed if not self._is_launching(key)]:
            self._end_missed(key, Decision(Verdict.DEFER, Reason.FENCED))

    def load(self) -> None:
        """The job set changed."""
        if self._session is not None:
            self._load(self._session)
        self.poke()

    def poke(self) -> None:
        """Look again now."""
        self._wake.set()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and launch until cancelled."""
        while True:
            self._wake = anyio.Event()
            try:
                session = self._current()
                again = session is not None and await self._step(session)
            except Exception:  # noqa: BLE001 - see below
                # Ours or a backend's bug: it may cost what was claimed and not started, never the daemon.
                self._log.exception("cluster: a bug in the claims; the log is read again")
                self._end_session()
                session = None
                self._defer_missed()
                again = False
                await self._clock.sleep(SWEEP_EVERY)
                self.poke()
            if not again:
                with anyio.move_on_after(self._pause(session)):
                    await self._wake.wait()

    async def _step(self, session: Session) -> bool:
        if self._may_work(session):
            return await self._turn(session)
        self._start_unclaimed(session)
        if session.term is None:
            # A run that outlived its term, whatever ended that: whoever leads now has to know of it (claims.md 16).
            await session.handover.tend()
        return False

    def _current(self) -> Session | None:
        """The session of the election that runs now, told of its term."""
        claims = self._cluster.claims
        if claims is None:
            self._refuse_retries()
            self._end_session()
            self._defer_missed()
            return None
        session = self._session
        if session is None or session.claims is not claims:
            self._end_session()
            token = self._ids.token(6)
            handover = Handover(claims, self._launcher, self._clock, self._ids, token, self._tokens)
            self._tokens.append(token)
            session = Session(claims, self._cluster.catch_up, self._launcher.node, token, handover)
            self._session = session
            for run_id in self._begun:
                self._feed(session, Spawned(run_id))
            self._load(session)
        self._follow_term(session)
        self._forget_old(session)
        return session

    def _end_session(self) -> None:
        if self._session is not None:
            self._begun, self._session = self._session.state.begun, None

    def _follow_term(self, session: Session) -> None:
        term = session.claims.term
        if term is None:
            self._refuse_retries()
        if term is None or session.term is None or term.fence != session.term.fence:
            if session.term is not None:
                session.horizon.forget_waiting()
                self._feed(session, Ended())
                self._refuse_retries()
                self._defer_missed()
            if term is not None:
                session.handover.begin()
                self._feed(session, Began(term.returned))
            session.term = term
            session.left = Wants()

    def _load(self, session: Session) -> None:
        jobs = [job for job in self._gate.jobs.values() if is_claimable(job)]
        session.left, session.swept_at = Wants(), float("-inf")
        session.horizon.load((claimable(job, order) for order, job in enumerate(jobs)), self._clock.now().wall)
        self._feed(session, Loaded({job.name: definition(job) for job in jobs}))

    def _may_work(self, session: Session) -> bool:
        view = self._cluster.view()
        leads = view is not None and view.is_leader and (view.deadline is None or self._boot() < view.deadline)
        return session.term is not None and leads and not session.closing and not self._launcher.stopping

    def _pause(self, session: Session | None) -> Seconds:
        if session is None:
            return IDLE
        if session.term is None:
            return SWEEP_EVERY
        if not claim_log.is_open(session.state) or not self._may_work(session):
            return PAUSE
        ahead = session.horizon.next_at
        return SWEEP_EVERY if ahead is None else max(0.001, min(SWEEP_EVERY, ahead - self._clock.now().wall))

    async def _turn(self, session: Session) -> bool:
        """One thing; True when there may be another one right away."""
        self._revive(session)
        if claim_log.is_open(session.state):
            known = await session.handover.look()
            # Meanwhile the lease may have been lost and won again: what follows is then for the new term.
            self._follow_term(session)
            if not known:
                # A run of the node before may still be under way: whom it blocks is not known yet.
                await self._breathe(session, answered=False)
                return True
        commands = self._feed(session, Ready(self._ids.token(8), self._wants(session)))
        for command in commands:
            await self._obey(session, command)
        return bool(commands)

    def _revive(self, session: Session) -> None:
        """A term whose append was refused, and whose lease is renewed all the same, is opened again."""
        term = session.state.term
        if term is None or term.phase is not Phase.OVER:
            session.over_since = None
        elif session.over_since is None:
            session.over_since = self._boot()
        elif self._boot() >= session.over_since + REOPEN_AFTER:
            session.over_since = None
            self._feed(session, Began())

    def _wants(self, session: Session) -> Wants:
        """The next piece of the last sweep, or of a new one: a sweep looks at everything, an append takes a chunk."""
        term = session.state.term
        if term is None or term.phase is not Phase.OPEN or session.state.flight is not None:
            return Wants()
        if claim_log.unspawned(session.state):
            return Wants()
        now = self._clock.now()
        left, ahead = session.left, session.horizon.next_at
        stale = now.boot >= session.swept_at + SWEEP_EVERY or (ahead is not None and ahead <= now.wall)
        if stale or not (left.starts or left.skips):
            left = self._sweep(session, now.wall, term.opened_at)
            session.swept_at = now.boot
            self._lost(left.lost)
        session.left = replace(left, starts=left.starts[CHUNK:], skips=left.skips[SKIPS:])
        waiting = [start.at for start in session.left.starts if start.attempt == 0]
        waiting += [skip.at for skip in session.left.skips]
        oldest = min(waiting if left.waiting is None else [*waiting, left.waiting], default=None)
        return replace(left, starts=left.starts[:CHUNK], skips=left.skips[:SKIPS], waiting=oldest)

    def _sweep(self, session: Session, wall: float, opened_at: float) -> Wants:
        jobs = self._gate.jobs
        rerun = frozenset(n for n in session.horizon.jobs if jobs[n].options.raw.get("onUnfinishedClaim") == "rerun")
        local = Local(
            paused=self._paused,
            blocked=lambda name: self._blocked(session, name),
            waits=lambda name: session.handover.waits(jobs[name]),
            started=lambda name, at: (name, at) in self._unclaimed,
        )
        rules = Rules(session.mode, session.limit, rerun)
        known = claim_log.known_now(session.state)
        wants = sweep(session.horizon, session.state.ledger, known, rules, local, wall, opened_at)
        claimed = {_key(claim.start) for claim in session.state.pending}
        retries = tuple(Start(*key) for key in self._retries if key not in claimed)
        free = (key for key in self._missed if key not in claimed and not self._blocked(session, key[0]))
        missed = tuple(Start(*key, late=True) for key in free)
        return replace(wants, starts=(*retries, *wants.starts, *missed))

    def _lost(self, lost: Iterable[tuple[str, EpochSeconds]]) -> None:
        for name, at in lost:
            self._due.discard((name, at))
            self._alarm("lost", f"nobody led for longer than the window: the occurrence of {name} at {at} is lost")
            self._record(name, at, Decision(Verdict.SKIP, Reason.OUTSIDE_WINDOW))

    def _paused(self, job: str, at: EpochSeconds) -> bool:
        return self._gate.paused_at(self._gate.jobs[job], at)

    def _blocked(self, session: Session, name: str) -> bool:
        job = self._gate.jobs[name]
        forbids = job.options.concurrency_policy is ConcurrencyPolicy.FORBID
        return (forbids and self._launcher.occupied(name)) or session.handover.blocks(job)

    # -- carrying out -------------------------------------------------------------------------------------------------

    def _feed(self, session: Session, event: Event) -> tuple[Command, ...]:
        session.state, commands = claim_log.step(session.state, event, self._clock.now())
        return commands

    async def _obey(self, session: Session, command: Command) -> None:
        match command:
            case Look():
                span = await session.claims.span()
                if span is not None:
                    self._feed(session, Looked(span))
                term = session.state.term
                if span is None or (term is not None and term.doubt is not None):
                    await self._breathe(session, answered=span is not None)
            case Read(number):
                answer = await session.claims.read(number)
                if answer is None:
                    await self._breathe(session, answered=False)
                else:
                    session.silent = 0
                    await self._all(session, self._feed(session, Found(number, answer[0])))
            case Append(number, data):
                await self._append(session, number, data)
            case Spawn(claims):
                await self._spawn(session, claims)
            case Refused(starts, reason):
                for start in starts:
                    if self._retries.pop(_key(start), None) is not None:
                        (self.retry_spent if reason == Reason.CLAIM_TAKEN else self.retry_refused)(start.job)
                    elif _key(start) in self._missed:
                        verdict = Verdict.SKIP if reason == Reason.CLAIM_TAKEN else Verdict.DEFER
                        self._end_missed(_key(start), Decision(verdict, Reason(reason)))
                    elif start.attempt == 0:
                        self._record(start.job, start.at, Decision(Verdict.DEFER, Reason(reason)))
            case Logged(skips):
                self._skipped(skips)
            case Alarm(kind, text):
                self._alarm(kind, text)
            case StandDown():
                await session.claims.stand_down(STAND_DOWN)
            case _:
                assert_never(command)

    async def _all(self, session: Session, commands: Iterable[Command]) -> None:
        for command in commands:
            await self._obey(session, command)

    async def _append(self, session: Session, number: int, data: bytes) -> None:
        asked = self._clock.now().boot
        appended = await session.claims.append(number, data)
        self.appended(self._clock.now().boot - asked, type(appended).__name__.lower())
        # The term may be another one by now; what was asked under the old one is not an answer for the new.
        self._follow_term(session)
        await self._all(session, self._feed(session, Answer(appended)))
        if isinstance(appended, Unknown):
            self._alarm("unknown", "the claim log did not answer; the same claim is sent again until it does")
        if isinstance(appended, Unknown):
            await self._breathe(session, answered=False)
            return
        session.silent = 0
        session.crowded = session.crowded or isinstance(appended, Full)
        low = claim_log.trimmable(session.state)
        if low >= session.trimmed + (1 if session.crowded else TRIM_EVERY):
            await session.claims.trim(low)
            session.trimmed, session.crowded = low, False
        if isinstance(appended, Full):
            await self._clock.sleep(PAUSE)

    async def _breathe(self, session: Session, *, answered: bool) -> None:
        """Before the next try. One answer may get lost; a store that stays silent is asked less often."""
        session.silent = 0 if answered else session.silent + 1
        if session.silent < 2:
            await self._clock.sleep(PAUSE)
        else:
            await self._clock.sleep(SILENT * (0.8 + 0.4 * int(self._ids.token(1), 16) / 255))

    def _skipped(self, skips: Iterable[Skip]) -> None:
        for skip in skips:
            self._due.discard((skip.job, skip.at))
            if skip.reason == Reason.CLAIMED_NOT_STARTED:
                self._log.warning("job %s: %d was claimed and is not known to have started", skip.job, skip.at)
            if skip.reason != Reason.STARTED_UNCLAIMED:
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

    # -- launching ----------------------------------------------------------------------------------------------------

    async def _spawn(self, session: Session, claims: tuple[Claim, ...]) -> None:
        """Launch what was won, in order, some at a time; each one looks at the deadline again before its process."""
        for first in range(0, len(claims), SPAWNING):
            batch = [claim for claim in claims[first : first + SPAWNING] if claim.run_id not in self._launching]
            for claim in batch:
                self._launch(session, claim)
            end = self._boot() + PATIENCE
            while waiting := [c for c in batch if c.run_id in self._launching and not self._is_handed(session, c)]:
                self._settled = anyio.Event()
                with anyio.move_on_after(max(0.0, end - self._boot())):
                    await self._settled.wait()
                if self._boot() >= end:
                    for claim in waiting:
                        if claim.run_id in self._launching:
                            self._feed(session, Handed(claim.run_id))
                    break
            if not self._may_work(session):
                return
        if any(claim.run_id not in self._launching for claim in claim_log.unspawned(session.state)):
            await self._clock.sleep(PAUSE)

    @staticmethod
    def _is_handed(session: Session, claim: Claim) -> bool:
        return any(one.run_id == claim.run_id and one.handed for one in session.state.pending)

    def _launch(self, session: Session, claim: Claim) -> None:
        start = claim.start
        job = self._gate.jobs.get(start.job)
        if job is None or not is_claimable(job):
            self._feed(session, Dropped(claim.run_id, Reason.DISABLED))
            self._end_missed(_key(start), Decision(Verdict.SKIP, Reason.DISABLED))
            return
        self._due.discard((start.job, start.at))
        if start.attempt == 0 and (start.job, start.at) in self._unclaimed:
            self._feed(session, Dropped(claim.run_id, Reason.STARTED_UNCLAIMED))
            return
        first_run_id = self._retries.get(_key(start))
        if _is_retry(start) and first_run_id is None:
            # Its ladder waits once more, and asks for the same attempt again: nothing else is held up for it.
            self._feed(session, Handed(claim.run_id))
            return
        self._launching.add(claim.run_id)
        begun = self._launcher.start(
            job,
            _decision(claim),
            scheduled_at=start.at,
            trigger=_trigger(start),
            recheck=lambda: self._permit(session, claim, job),
            attempt=0 if _key(start) in self._missed else start.attempt,
            first_run_id=first_run_id,
            run_id=claim.run_id,
            variables={"CRONSTABLE_FENCE": str(claim.fence)},
            on_over=lambda refusal: self._over(session, claim, refusal),
        )
        if isinstance(begun, Decision):
            self._launching.discard(claim.run_id)
            if self._retries.pop(_key(start), None) is not None:
                self._feed(session, Handed(claim.run_id))
                self.retry_refused(start.job)
            else:
                self._feed(session, Dropped(claim.run_id, begun.reason))
                self._end_missed(_key(start), begun)
        elif self._launcher.waits(claim.run_id):
            self._feed(session, Handed(claim.run_id))

    def _permit(self, session: Session, claim: Claim, job: Job) -> Decision:
        """The last question before the spawn. RUN counts as started from here on, whatever becomes of the process."""
        decision = self._gate.recheck(job)
        if decision.verdict is Verdict.RUN and claim.start.attempt == 0:
            decision = self._gate.after_success(job) or decision
        if decision.verdict is Verdict.RUN:
            mine = session is self._session and claim_log.may_spawn(session.state, claim.run_id)
            if not mine or not self._may_work(session):
                return Decision(Verdict.DEFER, Reason.FENCED)
            self._feed(session, Spawned(claim.run_id))
            self._retries.pop(_key(claim.start), None)
            if (over := self._missed.pop(_key(claim.start), None)) is not None:
                self._catching_up[claim.run_id] = over
            self._settle(claim.run_id)
            return decision
        if decision.reason in _FINAL:
            return replace(decision, verdict=Verdict.SKIP)
        return replace(decision, verdict=Verdict.DEFER)

    def _over(self, session: Session, claim: Claim, refusal: Decision | None) -> None:
        """The launcher is done with it. What was only refused for now stays ours and is launched again."""
        self._settle(claim.run_id)
        self._retries.pop(_key(claim.start), None)
        if (over := self._catching_up.pop(claim.run_id, None)) is not None:
            over(refusal)
        elif refusal is None or refusal.verdict is not Verdict.DEFER:
            self._end_missed(_key(claim.start), refusal)
        if all(one.run_id != claim.run_id for one in session.state.pending):
            return
        if refusal is not None and refusal.verdict is Verdict.DEFER:
            # A retry's ladder was told, and asks again; the others are simply launched again.
            self._feed(session, Handed(claim.run_id, waits=_is_retry(claim.start)))
        else:
            self._feed(session, Dropped(claim.run_id, Reason.START_FAILED if refusal is None else refusal.reason))
        self.poke()

    def _settle(self, run_id: str) -> None:
        self._launching.discard(run_id)
        self._settled.set()

    def _refuse_retries(self) -> None:
        """The term is over: the ladders ask the gate again, and learn whose job it is now."""
        refused = [key for key in self._retries if not self._is_launching(key)]
        for key in refused:
            self._retries.pop(key, None)
            self.retry_refused(key[0])

    def _is_launching(self, key: tuple[str, EpochSeconds, int]) -> bool:
        pending = self._session.state.pending if self._session is not None else ()
        return any(_key(claim.start) == key and claim.run_id in self._launching for claim in pending)

    # -- without the store --------------------------------------------------------------------------------------------

    def _start_unclaimed(self, session: Session) -> None:
        """PreferLeader does not wait for a store that stopped answering between the due time and the claim."""
        view = self._cluster.view()
        if view is None or view.quorate or self._launcher.stopping:
            return
        held = [claim for claim in session.state.pending if claim.run_id not in self._launching]
        # What the log has was started already, or decided about by whoever claimed it.
        open_ = {(name, at) for name, at in self._due if session.state.ledger.mark(name, at) is None}
        due = open_ | {(claim.start.job, claim.start.at) for claim in held if claim.start.attempt == 0}
        for name, at in sorted(due, key=lambda one: one[1]):
            job = self._gate.jobs.get(name)
            if job is None or job.options.cluster_policy is not ClusterPolicy.PREFER_LEADER:
                continue
            self._due.discard((name, at))
            decision = self._gate.recheck(job)
            if decision.verdict is not Verdict.RUN:
                continue
            for claim in held:
                if (claim.start.job, claim.start.at) == (name, at):
                    self._feed(session, Dropped(claim.run_id, Reason.STARTED_UNCLAIMED))
            self._unclaimed.add((name, at))
            recheck = partial(self._gate.recheck, job)
            self._launcher.start(job, decision, scheduled_at=at, trigger=Trigger.SCHEDULE, recheck=recheck)

    def _forget_old(self, session: Session) -> None:
        since = self._clock.now().wall - 2 * session.horizon.window
        self._due = {due for due in self._due if due[1] > since}
        self._unclaimed = {start for start in self._unclaimed if start[1] > since}

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Settle the append in flight, say what was started, and give back what was not (claims.md 7)."""
        session = self._session
        if session is None:
            return
        session.closing = True
        with anyio.move_on_after(STOP_WITHIN, shield=True):
            while session.term is not None and claim_log.is_open(session.state):
                commands = self._feed(session, Ready(self._ids.token(8), flush=True))
                appends = [command for command in commands if isinstance(command, Append)]
                if not appends:
                    break
                appended = await session.claims.append(appends[0].number, appends[0].data)
                self._feed(session, Answer(appended))
                if isinstance(appended, Unknown):
                    await self._clock.sleep(PAUSE)
            if session.term is not None:
                await session.handover.leave()
        session.state, ids = claim_log.give_back(session.state)
        session.claims.give_back(ids)
        if ids:
            self._log.info("cluster: %d claimed runs are given back to whoever leads next", len(ids))

    async def drain(self) -> None:
        """While the last runs end: keep the successor informed, until cancelled."""
        if self._session is not None and self._session.term is not None:
            await self._session.handover.drain()

    async def leave(self) -> None:
        """The last runs are over, or given up on."""
        if self._session is not None and self._session.term is not None:
            with anyio.move_on_after(STOP_WITHIN, shield=True):
                await self._session.handover.leave()


def _key(start: Start) -> tuple[str, EpochSeconds, int]:
    return start.job, start.at, start.attempt


def _is_retry(start: Start) -> bool:
    """A further attempt that a ladder of this node asked for; a rerun of what another node left is late."""
    return start.attempt > 0 and not start.late


def _trigger(start: Start) -> Trigger:
    if start.late:
        return Trigger.CATCHUP
    return Trigger.RETRY if start.attempt else Trigger.SCHEDULE


def _decision(claim: Claim) -> Decision:
    start: Start = claim.start
    evidence = MappingProxyType({"fence": claim.fence, "attempt": start.attempt})
    return Decision(Verdict.RUN, Reason.CATCH_UP if start.late else Reason.LEADER, evidence)
