"""What a process owes the claim log, over all its elections: what fell due here, what is on its way to a process, what
a ladder wants tried again. Between the scheduler and the log, and between the log and the launcher.

The driver and the simulator launch, wait and write; whether a claim may be launched, and what becomes of it when it is
not, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from cronstable.core import claim_log, sweep
from cronstable.core.claim_jobs import known_now
from cronstable.core.claim_session import SWEEP_EVERY, Session
from cronstable.core.claim_values import CHUNK, SKIPS, Claim, Dropped, Handed, Phase, Skip, Spawned, Start, Wants
from cronstable.core.clock import EpochSeconds, Instant, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job
from cronstable.core.runs import Trigger
from cronstable.core.sweep import Local, Rules, is_claimable
from cronstable.core.values import dataclass, replace

SPAWNING: Final = 16
"""Late or not, so many are on their way to a process at a time (claims.md 12)."""
PATIENCE: Final[Seconds] = 1.0
"""For launches that wait for a slow disk or for the run before: after that the next chunk may be claimed."""

FINAL: Final = frozenset({Reason.DISABLED, Reason.PAUSED, Reason.LAST_NOT_SUCCEEDED, Reason.STORE_UNAVAILABLE})
"""Refusals before the spawn that time does not heal."""

Key: TypeAlias = tuple[str, EpochSeconds, int]
"""Job, T and attempt."""


@dataclass(frozen=True, slots=True)
class Around:
    """What only the process around can say. ``occupied``: a run of the job is under way or waits here.

    ``paused``: T of the job lies in a pause.
    """

    occupied: Callable[[str], bool]
    paused: Callable[[Job, EpochSeconds], bool] = lambda job, at: False


@dataclass(frozen=True, slots=True)
class Launch:
    """A claim on its way to the launcher. ``first_run_id``: of the ladder that it is an attempt of."""

    job: Job
    decision: Decision
    trigger: Trigger
    attempt: int
    first_run_id: str | None


class Desk:
    """``older``: keys of occurrences from before the window that are to be claimed as attempt 1 (claims.md 15)."""

    def __init__(self, older: Collection[Key] = ()) -> None:
        self._older = older
        # Not sets: what comes out of them must not depend on how texts hash.
        self._due: dict[tuple[str, EpochSeconds], None] = {}
        self._unclaimed: dict[tuple[str, EpochSeconds], None] = {}
        self._retries: dict[Key, str] = {}
        self._launching: dict[str, None] = {}

    @property
    def is_idle(self) -> bool:
        """Nothing that fell due waits here, no attempt, and nothing is on its way to a process."""
        return not (self._due or self._retries or self._launching)

    # -- what the scheduler and the ladders bring ---------------------------------------------------------------------

    def takes(self, job: Job, at: EpochSeconds, *, quorate: bool) -> bool:
        """An occurrence fell due and may start, says the gate: True when it is to be claimed before."""
        if starts_alone(job, quorate=quorate):
            self._unclaimed[(job.name, at)] = None
            return False
        self._due[(job.name, at)] = None
        return True

    def retry(self, session: Session, key: Key, first_run_id: str, now: Instant) -> None:
        """A further attempt is due: it is claimed with the next append, or launched when it was claimed before."""
        self._retries[key] = first_run_id
        session.swept_at = float("-inf")
        for claim in session.state.pending:
            if key_of(claim.start) == key and claim.run_id not in self._launching:
                session.feed(Handed(claim.run_id, waits=False), now)

    def forget_retries(self, session: Session | None, job: str, now: Instant) -> None:
        """Nothing of ``job`` is to be tried again: what was claimed for that gets its reason in the log."""
        self._retries = {key: first for key, first in self._retries.items() if key[0] != job}
        if session is None:
            return
        for claim in session.state.pending:
            if claim.start.job == job and is_retry(claim.start) and claim.run_id not in self._launching:
                session.feed(Dropped(claim.run_id, Reason.RETRY_SETTLED), now)

    def refused_retries(self, session: Session | None) -> list[str]:
        """The term is over: whose ladders have to ask the gate again, and learn whose job it is now."""
        refused = [key for key in self._retries if not self.is_launching(session, key)]
        for key in refused:
            del self._retries[key]
        return [job for job, _, _ in refused]

    def withdrawn(self, start: Start) -> bool:
        """A start was not claimed: whether it was an attempt that a ladder had asked for, and has to ask for again."""
        return self._retries.pop(key_of(start), None) is not None

    def is_launching(self, session: Session | None, key: Key) -> bool:
        """Whether it is on its way to a process."""
        pending = session.state.pending if session is not None else ()
        return any(key_of(claim.start) == key and claim.run_id in self._launching for claim in pending)

    def logged(self, skips: Iterable[Skip]) -> list[Skip]:
        """These are in the log; which of them are decisions about occurrences of this node."""
        told = []
        for skip in skips:
            self._due.pop((skip.job, skip.at), None)
            if skip.reason != Reason.STARTED_UNCLAIMED:
                told.append(skip)
        return told

    def forget_old(self, since: float) -> None:
        """What fell due before that is no business of anybody's any more."""
        if self._due:
            self._due = {due: None for due in self._due if due[1] > since}
        if self._unclaimed:
            self._unclaimed = {start: None for start in self._unclaimed if start[1] > since}

    # -- what is to be claimed ----------------------------------------------------------------------------------------

    def wants(self, session: Session, around: Around, now: Instant) -> Wants:
        """The next piece of the last sweep, or of a new one: a sweep looks at everything, an append takes a chunk.

        ``lost`` of it is told once.
        """
        term = session.state.term
        if term is None or term.phase is not Phase.OPEN or session.state.flight is not None:
            return Wants()
        if claim_log.unspawned(session.state):
            return Wants()
        left, ahead = session.left, session.horizon.next_at
        stale = now.boot >= session.swept_at + SWEEP_EVERY or (ahead is not None and ahead <= now.wall)
        if stale or not (left.starts or left.skips):
            left = self._sweep(session, around, now, term.opened_at)
            session.swept_at = now.boot
            for lost in left.lost:
                self._due.pop(lost, None)
        if not (left.starts or left.skips or left.lost):
            session.left = left
            return replace(left, begun=session.handover.started, settled=session.handover.is_settled)
        session.left = replace(left, starts=left.starts[CHUNK:], skips=left.skips[SKIPS:], lost=())
        waiting = [start.at for start in session.left.starts if start.attempt == 0]
        waiting += [skip.at for skip in session.left.skips]
        oldest = min(waiting if left.waiting is None else [*waiting, left.waiting], default=None)
        return replace(
            left,
            starts=left.starts[:CHUNK],
            skips=left.skips[:SKIPS],
            waiting=oldest,
            begun=session.handover.started,
            settled=session.handover.is_settled,
        )

    def _sweep(self, session: Session, around: Around, now: Instant, opened_at: float) -> Wants:
        jobs = session.jobs

        def blocked(name: str) -> bool:
            forbids = jobs[name].options.concurrency_policy is ConcurrencyPolicy.FORBID
            return (forbids and around.occupied(name)) or session.handover.blocks(jobs[name], now.boot)

        local = Local(
            paused=lambda name, at: around.paused(jobs[name], at),
            blocked=blocked,
            waits=lambda name: session.handover.waits(jobs[name], now.boot),
            started=lambda name, at: (name, at) in self._unclaimed,
        )
        rules = Rules(session.mode, session.limit, session.rerun)
        known = known_now(session.state)
        wants = sweep.sweep(session.horizon, session.state.ledger, known, rules, local, now.wall, opened_at)
        if not self._retries and not self._older:
            return wants
        claimed = {key_of(claim.start) for claim in session.state.pending}
        retries = tuple(Start(*key) for key in self._retries if key not in claimed)
        free = (key for key in self._older if key not in claimed and key[0] in jobs and not blocked(key[0]))
        return replace(wants, starts=(*retries, *wants.starts, *(Start(*key, late=True) for key in free)))

    # -- launching what was won ---------------------------------------------------------------------------------------

    def batches(self, claims: tuple[Claim, ...]) -> Iterable[list[Claim]]:
        """What was won, in order, so many at a time; without what is on its way already when its turn comes."""
        for first in range(0, len(claims), SPAWNING):
            yield [claim for claim in claims[first : first + SPAWNING] if claim.run_id not in self._launching]

    def launch(self, session: Session, claim: Claim, job: Job | None, now: Instant) -> Launch | None:
        """A claim that was won is to be launched now; None when it is not, and what becomes of it has been settled.

        ``job``: of the present configuration, None when it is in there no more.
        """
        start, run_id = claim.start, claim.run_id
        if job is None or not is_claimable(job):
            session.feed(Dropped(run_id, Reason.DISABLED), now)
            return None
        self._due.pop((start.job, start.at), None)
        if start.attempt == 0 and (start.job, start.at) in self._unclaimed:
            session.feed(Dropped(run_id, Reason.STARTED_UNCLAIMED), now)
            return None
        key = key_of(start)
        first_run_id = self._retries.get(key)
        if is_retry(start) and first_run_id is None:
            # Its ladder waits once more, and asks for the same attempt again: nothing else is held up for it.
            session.feed(Handed(run_id), now)
            return None
        self._launching[run_id] = None
        return Launch(job, _decision(claim), _trigger(start), 0 if key in self._older else start.attempt, first_run_id)

    def launched(self, session: Session, claim: Claim, refusal: Decision | None, waits: bool, now: Instant) -> bool:
        """The launcher was asked. ``refusal``: it did not take it; ``waits``: it took it, and waits for a run before.

        True: a ladder's attempt was refused, and it has to be told.
        """
        if refusal is None:
            if waits:
                session.feed(Handed(claim.run_id), now)
            return False
        self._launching.pop(claim.run_id, None)
        if self.withdrawn(claim.start):
            session.feed(Handed(claim.run_id), now)
            return True
        session.feed(Dropped(claim.run_id, refusal.reason), now)
        return False

    def awaited(self, session: Session, batch: Iterable[Claim]) -> list[Claim]:
        """Which of a batch are on their way, and hold up the next."""
        handed = {claim.run_id for claim in session.state.pending if claim.handed}
        return [claim for claim in batch if claim.run_id in self._launching and claim.run_id not in handed]

    def hold_up_no_longer(self, session: Session, batch: Iterable[Claim], now: Instant) -> None:
        """``PATIENCE`` is over: what is still on its way goes on alone."""
        for claim in self.awaited(session, batch):
            session.feed(Handed(claim.run_id), now)

    def has_unlaunched(self, session: Session) -> bool:
        """Whether something that was won could not be launched, and is to be tried again."""
        return any(claim.run_id not in self._launching for claim in claim_log.unspawned(session.state))

    def permit(self, session: Session, claim: Claim, gate: Decision, may_work: bool, now: Instant) -> Decision:
        """The last question before the spawn. RUN counts as started from here on, whatever becomes of the process.

        ``gate``: what it says now. ``may_work``: this process may claim and start, and in this session.
        """
        if gate.verdict is Verdict.RUN:
            if not may_work or not claim_log.may_spawn(session.state, claim):
                return Decision(Verdict.DEFER, Reason.FENCED)
            session.feed(Spawned(claim.run_id, lives=False), now)
            self._retries.pop(key_of(claim.start), None)
            self._launching.pop(claim.run_id, None)
            return gate
        return replace(gate, verdict=Verdict.SKIP if gate.reason in FINAL else Verdict.DEFER)

    def lives(self, session: Session, job: str, run_id: str, now: Instant) -> bool:
        """A process lives; True when that has to be said at once: what the log does not know is started again."""
        if run_id not in session.state.spawning:
            return False
        session.feed(Spawned(run_id), now)
        # One that is not rerun may be the last that others were waiting for.
        return job in session.rerun or (bool(session.rerun) and not session.state.spawning)

    def over(self, session: Session, claim: Claim, refusal: Decision | None, now: Instant) -> bool:
        """The launcher is done with it. What was only refused for now stays ours and is launched again.

        True: it was not spawned, or that it was is to be said, so that there is something to do.
        """
        self._launching.pop(claim.run_id, None)
        self._retries.pop(key_of(claim.start), None)
        # If it could not be made, that is a start which failed, and not one to be made again.
        to_say = self.lives(session, claim.start.job, claim.run_id, now)
        if all(one.run_id != claim.run_id for one in session.state.pending):
            return to_say
        if refusal is not None and refusal.verdict is Verdict.DEFER:
            # A retry's ladder was told, and asks again; the others are simply launched again.
            session.feed(Handed(claim.run_id, waits=is_retry(claim.start)), now)
        else:
            reason = Reason.START_FAILED if refusal is None else refusal.reason
            session.feed(Dropped(claim.run_id, reason), now)
        return True

    # -- without the store --------------------------------------------------------------------------------------------

    def left_alone(self, session: Session, jobs: Mapping[str, Job], now: Instant) -> list[tuple[Job, EpochSeconds]]:
        """PreferLeader does not wait for a store that stopped answering between the due time and the claim.

        What is to be started without one, the oldest first; each is asked for once. A claim that a term left behind is
        none of it once its window is over: others have decided about it long since.
        """
        # What the log has was started already, or decided about by whoever claimed it.
        due = {key: None for key in self._due if session.state.ledger.mark(*key) is None}
        since = now.wall - 2 * session.horizon.window
        for claim in session.state.pending:
            if claim.start.attempt == 0 and claim.start.at > since and claim.run_id not in self._launching:
                due[(claim.start.job, claim.start.at)] = None
        found = []
        for name, at in sorted(due, key=lambda one: one[1]):
            job = jobs.get(name)
            if job is not None and job.options.cluster_policy is ClusterPolicy.PREFER_LEADER:
                self._due.pop((name, at), None)
                found.append((job, at))
        return found

    def start_alone(self, session: Session, job: Job, at: EpochSeconds, now: Instant) -> None:
        """It is started without a claim: one that was won before is given up."""
        for claim in session.state.pending:
            if (claim.start.job, claim.start.at) == (job.name, at) and claim.run_id not in self._launching:
                session.feed(Dropped(claim.run_id, Reason.STARTED_UNCLAIMED), now)
        self._unclaimed[(job.name, at)] = None


def starts_alone(job: Job, *, quorate: bool) -> bool:
    """PreferLeader starts unclaimed while the store does not answer (claims.md 14)."""
    return not quorate and job.options.cluster_policy is ClusterPolicy.PREFER_LEADER


def key_of(start: Start) -> Key:
    """Which claim it is."""
    return start.job, start.at, start.attempt


def is_retry(start: Start) -> bool:
    """A further attempt that a ladder of this node asked for; a rerun of what another node left is late."""
    return start.attempt > 0 and not start.late


def _trigger(start: Start) -> Trigger:
    if start.late:
        return Trigger.CATCHUP
    return Trigger.RETRY if start.attempt else Trigger.SCHEDULE


def _decision(claim: Claim) -> Decision:
    evidence = MappingProxyType({"fence": claim.fence, "attempt": claim.start.attempt})
    return Decision(Verdict.RUN, Reason.CATCH_UP if claim.start.late else Reason.LEADER, evidence)
