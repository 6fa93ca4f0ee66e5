"""Ends runs that must not outlive the lease under which they were started (``onLeaseLost``)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import anyio

from cronstable.core.clock import Clock, Seconds, until_next
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, Job
from cronstable.core.lease_loss import Ending, OnLeaseLost, ending, on_lease_lost
from cronstable.core.runs import LiveRun, RunRecord, Trigger
from cronstable.core.view import ClusterView
from cronstable.runtime.launcher import Launcher

LOOK_EVERY: Seconds = 1.0
"""While there is such a run: how often the deadline is looked at, which each renewal puts off."""
IDLE: Seconds = 60.0
ADOPTED: Seconds = 5.0
"""A run of a daemon that died, whose lease nobody knows, is gone that soon unless this node turns out to lead."""
FIRST: Seconds = 2.0
"""At an orderly stop: how long the lease is kept for runs that are killed before it is let go."""

WHY = "the lease under which it was started is lost"
_NOT_LOST = frozenset({Reason.GATE_ERROR, Reason.STOPPING, Reason.MANAGER_ABSENT})
"""Refusals that say nothing about another node; the deadline still holds."""


class LeaseGate(Protocol):
    """The scheduler's side: may this node start the job now?"""

    def decide(self, job: Job) -> Decision: ...


class Leadership(Protocol):
    """The cluster manager's side."""

    @property
    def elects(self) -> bool: ...
    def view(self) -> ClusterView | None: ...


@dataclass(slots=True)
class _Guarded:
    job: Job
    mode: OnLeaseLost
    deadline: float | None
    ending: bool = False


class LeaseGuard:
    """Implements the launcher's ``RunListener``. All of it belongs to the daemon's loop."""

    def __init__(
        self, *, clock: Clock, gate: LeaseGate, cluster: Leadership, launcher: Launcher, log: logging.Logger
    ) -> None:
        self._clock = clock
        self._gate = gate
        self._cluster = cluster
        self._launcher = launcher
        self._log = log
        self._runs: dict[str, _Guarded] = {}
        self._term: Seconds = 0.0
        self._deadline: float | None = None
        self._sleep = anyio.CancelScope()
        self._over = anyio.Event()

    def started(self, job: Job, run: LiveRun) -> None:
        """Guard it if its job asks for that. What a person started asked no lease."""
        mode = on_lease_lost(job)
        if mode is OnLeaseLost.CONTINUE or run.key.trigger is Trigger.MANUAL or not self._cluster.elects:
            return
        self._follow()
        self._runs[run.key.run_id] = _Guarded(job, mode, self._deadline)
        self.poke()

    def adopted(self, job: Job, run: LiveRun) -> None:
        """The same for a run that lives on from a daemon which died: only the lease of this one can cover it now.

        How long the other's is still good nobody can tell, so that the run does not wait for this node to win its own.
        """
        mode = on_lease_lost(job)
        if mode is OnLeaseLost.CONTINUE or run.key.trigger is Trigger.MANUAL:
            return
        self._follow()
        deadline = self._deadline
        if deadline is None:
            deadline = self._clock.now().boot + ADOPTED
        self._runs[run.key.run_id] = _Guarded(job, mode, deadline)
        self.poke()

    def guards(self, run_id: str) -> bool:
        """Whether the run has to be over before this daemon lets go of its lease."""
        return self._cluster.elects and run_id in self._runs

    def gone(self, run_id: str) -> None:
        """A run that was adopted is over, or is looked at no more."""
        if self._runs.pop(run_id, None) is not None:
            self._over.set()

    def finished(self, job: Job, record: RunRecord) -> None:
        """It is over, in time."""
        self.gone(record.key.run_id)

    def poke(self) -> None:
        """Look again now: the leadership changed."""
        self._sleep.cancel()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._sleep = anyio.CancelScope()
            pause = self._look()
            with self._sleep:
                await self._clock.sleep(pause)

    async def let_go(self) -> None:
        """The daemon stops and is about to release its lease: what may not outlive it is ended first."""
        for run_id, guarded in self._runs.items():
            self._end(run_id, guarded, 0.0 if guarded.mode is OnLeaseLost.KILL else None)
        with anyio.move_on_after(FIRST, shield=True):
            while any(guarded.mode is OnLeaseLost.KILL for guarded in self._runs.values()):
                self._over = anyio.Event()
                await self._over.wait()

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self) -> Seconds:
        """End what has to end now; how long nothing else will have to."""
        if not self._runs or not self._cluster.elects:
            return until_next(IDLE, self._clock.now())
        self._follow()
        boot = self._clock.now().boot
        pause = LOOK_EVERY
        for run_id, guarded in self._runs.items():
            if guarded.ending:
                continue
            left = self._left(guarded, boot)
            if left > 0:
                pause = min(pause, left)
                continue
            gone_by = boot if guarded.deadline is None else self._ending(guarded, guarded.deadline).gone_by
            grace = 0.0 if guarded.mode is OnLeaseLost.KILL else max(0.0, gone_by - boot)
            # Without a lease nobody counts down: the job has the time that it asks for.
            patient = guarded.deadline is None and guarded.mode is OnLeaseLost.TERM
            self._end(run_id, guarded, None if patient else grace)
        return pause

    def _left(self, guarded: _Guarded, boot: float) -> Seconds:
        """Seconds until the run has to be told to end, by what is known now."""
        decision = self._gate.decide(guarded.job)
        if decision.verdict is Verdict.SKIP and decision.reason not in _NOT_LOST:
            return 0.0
        if guarded.job.options.cluster_policy is not ClusterPolicy.LEADER:
            # PreferLeader may run without a lease, and then has none to lose.
            return LOOK_EVERY
        if decision.verdict is Verdict.RUN:
            guarded.deadline = self._deadline
        if guarded.deadline is None:
            return LOOK_EVERY
        return self._ending(guarded, guarded.deadline).ask_at - boot

    def _ending(self, guarded: _Guarded, deadline: float) -> Ending:
        return ending(guarded.mode, deadline=deadline, term=self._term, kill_timeout=guarded.job.options.kill_timeout)

    def _follow(self) -> None:
        """Notice renewals: each one puts the deadline off."""
        try:
            view = self._cluster.view()
        except Exception:  # noqa: BLE001 - the view comes from a plugin; the gate logs its failure
            return
        deadline = view.deadline if view is not None else None
        if deadline is not None and deadline != self._deadline:
            self._term = max(self._term, deadline - self._clock.now().boot)
        self._deadline = deadline

    def _end(self, run_id: str, guarded: _Guarded, grace: Seconds | None) -> None:
        if guarded.ending:
            return
        guarded.ending = True
        self._log.warning("job %s: ended, because %s (run %s)", guarded.job.name, WHY, run_id)
        self._launcher.end(guarded.job.name, run_id, WHY, grace=grace)
