"""Launching what was won, and what may start without a claim; whether is decided in ``core.claim_desk``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import anyio

from cronstable.core.claim_desk import PATIENCE, Desk, key_of
from cronstable.core.claim_session import PAUSE, Session
from cronstable.core.claim_values import Claim
from cronstable.core.clock import Clock, EpochSeconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import Job
from cronstable.core.runs import Trigger
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.older_claims import OlderClaims


class Gate(Protocol):
    """The scheduler's side: what is configured, and what may start now."""

    @property
    def jobs(self) -> Mapping[str, Job]: ...
    def decide(self, job: Job) -> Decision: ...
    def recheck(self, job: Job) -> Decision: ...
    def paused_at(self, job: Job, at: EpochSeconds) -> bool: ...
    def after_success(self, job: Job) -> Decision | None: ...


class ClaimLaunch:
    """Between the claim log and the launcher. ``may_work``: whether a session may claim and start at this instant.

    ``refused``: a ladder's attempt could not be launched now. ``poke``: there may be something to do.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        gate: Gate,
        launcher: Launcher,
        desk: Desk,
        older: OlderClaims,
        may_work: Callable[[Session], bool],
        refused: Callable[[str], None],
        poke: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._gate = gate
        self._launcher = launcher
        self._desk = desk
        self._older = older
        self._may_work = may_work
        self._refused = refused
        self._poke = poke
        self._settled = anyio.Event()

    async def spawn(self, session: Session, claims: tuple[Claim, ...]) -> None:
        """Launch what was won, in order, some at a time; each one looks at the deadline again before its process."""
        desk = self._desk
        for batch in desk.batches(claims):
            for claim in batch:
                self._launch(session, claim)
            end = self._boot() + PATIENCE
            while desk.awaited(session, batch):
                self._settled = anyio.Event()
                with anyio.move_on_after(max(0.0, end - self._boot())):
                    await self._settled.wait()
                if self._boot() >= end:
                    desk.hold_up_no_longer(session, batch, self._clock.now())
            if not self._may_work(session):
                return
        if desk.has_unlaunched(session):
            await self._clock.sleep(PAUSE)

    def _launch(self, session: Session, claim: Claim) -> None:
        start, desk = claim.start, self._desk
        # Before the desk looks: a run that ended and is only told later may have settled the ladder of this attempt.
        self._launcher.ends.settle(start.job)
        launch = desk.launch(session, claim, self._gate.jobs.get(start.job), self._clock.now())
        if launch is None:
            self._older.end(key_of(start), Decision(Verdict.SKIP, Reason.DISABLED))
            return
        begun = self._launcher.start(
            launch.job,
            launch.decision,
            scheduled_at=start.at,
            trigger=launch.trigger,
            recheck=lambda: self._permit(session, claim, launch.job),
            attempt=launch.attempt,
            first_run_id=launch.first_run_id,
            run_id=claim.run_id,
            variables={"CRONSTABLE_FENCE": str(claim.fence)},
            on_over=lambda refusal: self._over(session, claim, refusal),
        )
        refusal = begun if isinstance(begun, Decision) else None
        waits = refusal is None and self._launcher.waits(claim.run_id)
        if desk.launched(session, claim, refusal, waits, self._clock.now()):
            self._refused(start.job)
        elif refusal is not None:
            self._older.end(key_of(start), refusal)

    def _permit(self, session: Session, claim: Claim, job: Job) -> Decision:
        gate = self._gate.recheck(job)
        if gate.verdict is Verdict.RUN and claim.start.attempt == 0:
            gate = self._gate.after_success(job) or gate
        decision = self._desk.permit(session, claim, gate, self._may_work(session), self._clock.now())
        if decision.verdict is Verdict.RUN:
            self._older.begun(key_of(claim.start), claim.run_id)
            self._settled.set()
        return decision

    def _over(self, session: Session, claim: Claim, refusal: Decision | None) -> None:
        """The launcher is done with it."""
        again = self._desk.over(session, claim, refusal, self._clock.now())
        self._settled.set()
        is_final = refusal is None or refusal.verdict is not Verdict.DEFER
        if not self._older.ended(claim.run_id, refusal) and is_final:
            self._older.end(key_of(claim.start), refusal)
        if again:
            self._poke()

    def start_alone(self, session: Session) -> None:
        """PreferLeader does not wait for a store that stopped answering between the due time and the claim."""
        for job, at in self._desk.left_alone(session, self._gate.jobs, self._clock.now()):
            decision = self._gate.recheck(job)
            if decision.verdict is Verdict.RUN:
                self._desk.start_alone(session, job, at, self._clock.now())
                recheck = partial(self._gate.recheck, job)
                self._launcher.start(job, decision, scheduled_at=at, trigger=Trigger.SCHEDULE, recheck=recheck)

    def _boot(self) -> float:
        return self._clock.now().boot
