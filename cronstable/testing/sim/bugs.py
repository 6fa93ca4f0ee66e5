"""Protocol bugs to plant in the state machines and the store: the simulator must find every one (reliability 4).

Each replaces one function of ``cronstable.core`` by one that makes the mistake its docstring names. A test runs them
all; a backend author has no use for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType, ModuleType
from typing import Final

from cronstable.core import claim_log, claim_values, lease, lease_values, sweep
from cronstable.core.claim_desk import Desk
from cronstable.core.claim_session import Session
from cronstable.core.claim_values import (
    Answer,
    Claim,
    ClaimState,
    Ended,
    Head,
    Known,
    Ledger,
    Phase,
    Spawned,
    Start,
    Term,
    Wants,
)
from cronstable.core.clock import EpochSeconds, Instant, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.lease_values import LeaseState, LeaseTiming
from cronstable.core.store import Fenced, LeaseRecord, Span, Unknown, Won
from cronstable.core.sweep import Horizon, Local, Rules
from cronstable.testing import planted
from cronstable.testing.memory import MemoryLeaseStore
from cronstable.testing.sim.faults import ALL_KINDS, Kind
from cronstable.testing.sim.world import Setup

Seam = tuple[ModuleType | type, str, object]


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake. ``seams``: (module or class, name, what stands there instead). ``backend``: where it can show;
    ``kinds``, ``nodes``, ``ttl`` and ``ttls`` (of single nodes): under which conditions it soon does.
    """

    name: str
    what: str
    seams: tuple[Seam, ...] = ()
    store: type[MemoryLeaseStore] = MemoryLeaseStore
    backend: str = "filesystem"
    kinds: tuple[Kind, ...] = ALL_KINDS
    nodes: int = 3
    ttl: Seconds = 15.0
    ttls: Mapping[int, Seconds] = field(default_factory=lambda: MappingProxyType({}))

    def setup(self, setup: Setup) -> Setup:
        """What it is looked for in: ``setup`` under the conditions that it takes."""
        return replace(
            setup,
            backend=self.backend,
            kinds=self.kinds,
            nodes=self.nodes,
            ttl=self.ttl,
            ttls=self.ttls,
            store=self.store,
            first_only=True,
        )

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The mistake is made while this is entered."""
        with ExitStack() as undo:
            for where, name, instead in self.seams:
                undo.callback(setattr, where, name, getattr(where, name))
                setattr(where, name, instead)
            yield


SLOW: Final = (Kind.STORE, Kind.PAUSE, Kind.PARTITION)

_lease_step: Final = lease.step
_claim_step: Final = claim_log.step
_sweep: Final = sweep.sweep
_head: Final = claim_log._head
_leftovers: Final = claim_log._leftovers
_own: Final = claim_log._own


# -- the lease --------------------------------------------------------------------------------------------------------


def deadline_from_the_answer(state: LeaseState, event: lease_values.Event, now: Instant) -> lease.Result:
    """The term is counted from when the answer came, not from before the request left."""
    after, commands = _lease_step(state, event, now)
    if state.in_flight is not None and after.deadline is not None and after.deadline != state.deadline:
        after = replace(after, deadline=after.deadline + now.boot - state.in_flight.sent)
    return after, commands


def no_margin(state: LeaseState, event: lease_values.Event, now: Instant) -> lease.Result:
    """A term is acted on until its very end."""
    after, commands = _lease_step(state, event, now)
    if after.deadline is not None and after.deadline != state.deadline:
        after = replace(after, deadline=after.deadline + state.timing.margin)
    return after, commands


def leads_until_told_otherwise(state: LeaseState, boot: float) -> bool:
    """Having won counts, the deadline does not."""
    return state.phase is lease_values.Phase.RUNNING and state.grant is not None and state.deadline is not None


def own_ttl(record: LeaseRecord, timing: LeaseTiming) -> Seconds:
    """A record is taken over by the challenger's own ttl, not by the one that its holder stored."""
    return timing.ttl


def takeover_by_wall_clock(state: LeaseState, now: Instant) -> float | None:
    """What the wall clock says has expired is dead."""
    standing = state.standing
    if standing is None or state.expires_itself or standing.record.expires_at is None:
        return None
    return now.boot + max(0.0, standing.record.expires_at + lease.CHALLENGER_MARGIN - now.wall)


# -- the claim log ----------------------------------------------------------------------------------------------------


def opens_without_reading(state: ClaimState, span: Span) -> ClaimState:
    """A new term appends its open record at once; what the ones before it claimed is not read."""
    term = state.term
    if term is None or term.phase is not Phase.LOOK:
        return state
    ledger = Ledger(last=span.last, fence=state.ledger.fence)
    return replace(state, ledger=ledger, term=replace(term, phase=Phase.OPENING, cursor=span.last + 1))


def _answer_as(wrong: type, right: Callable[[], object]) -> Callable[..., claim_log.Result]:
    def step(state: ClaimState, event: claim_values.Event, now: Instant) -> claim_log.Result:
        if isinstance(event, Answer) and isinstance(event.appended, wrong):
            answer = right()
            if answer is None:
                return replace(state, flight=None), ()
            assert isinstance(answer, Won)
            event = Answer(answer)
        return _claim_step(state, event, now)

    return step


def floor_is_now(
    ledger: Ledger, wall: float, store_at: float | None, window: Seconds, waiting: EpochSeconds | None
) -> EpochSeconds:
    """The floor follows the clock, past what still waits."""
    return max(ledger.floor, math.floor(wall))


def claimed_by_job(self: Ledger, job: str, at: EpochSeconds) -> bool:
    """The claim of one occurrence counts for all of the job."""
    return at <= self.floor or any(job in jobs for jobs in self.marks.values())


def pending_ends_with_the_term(state: ClaimState, event: claim_values.Event, now: Instant) -> claim_log.Result:
    """What was won and not spawned is forgotten when the term ends."""
    return _claim_step(replace(state, pending=()) if isinstance(event, Ended) else state, event, now)


def own_claims_are_leftovers(
    state: ClaimState, term: Term, wants: Wants
) -> tuple[tuple[Start, ...], tuple[object, ...]]:
    """A claim that is about to be spawned here is taken for one that was left behind."""
    return _leftovers(replace(state, pending=(), begun=()), term, wants)


def rerun_with_the_same_number(
    state: ClaimState, term: Term, wants: Wants
) -> tuple[tuple[Start, ...], tuple[object, ...]]:
    """A claim whose fate nobody knows is claimed again as the same attempt."""
    starts, skips = _leftovers(state, term, wants)
    return tuple(replace(start, attempt=max(0, start.attempt - 1)) for start in starts), skips


def gives_nothing_back(state: ClaimState) -> tuple[str, ...]:
    """A stopping process says nothing of what it claimed and did not start."""
    return ()


def fence_stands_still(state: ClaimState, term: Term, nonce: str, floor: EpochSeconds, now: Instant) -> Head:
    """Every term has the same fence."""
    return replace(_head(state, term, nonce, floor, now), fence=1)


def keeps_what_was_decided_since(state: ClaimState, fence: int) -> ClaimState:
    """A claim of an earlier term is started whatever the terms in between made of it."""
    return replace(state, pending=tuple(replace(claim, fence=fence) for claim in state.pending))


def fence_by_the_clock(lease: int, now: Instant) -> int:
    """What the lease remembers of earlier terms does not matter to the log."""
    return int(now.wall) if lease else 0


def carries_its_old_fence(state: ClaimState, fence: int) -> ClaimState:
    """A claim of an earlier term is started with the fence that it was won with."""
    pending = {claim.run_id: claim.fence for claim in state.pending}
    state = _own(state, fence)
    return replace(state, pending=tuple(replace(one, fence=pending[one.run_id]) for one in state.pending))


# -- the sweep, and the spawn -----------------------------------------------------------------------------------------


def only_from_now_on(
    horizon: Horizon, ledger: Ledger, known: Known, rules: Rules, local: Local, wall: float, opened_at: float
) -> Wants:
    """A new leader begins with what falls due next."""
    wants = _sweep(horizon, ledger, known, rules, local, wall, opened_at)
    return replace(wants, starts=tuple(start for start in wants.starts if not start.late))


def start_without_a_last_look(
    self: Desk, session: Session, claim: Claim, gate: Decision, may_work: bool, now: Instant
) -> Decision:
    """What was won is spawned, however long ago that was."""
    session.feed(Spawned(claim.run_id), now)
    self._launching.pop(claim.run_id, None)
    return Decision(Verdict.RUN, Reason.LEADER)


BUGS: Final[tuple[Bug, ...]] = (
    Bug("deadline-from-the-answer", "", ((lease, "step", deadline_from_the_answer),), backend="etcd", kinds=SLOW),
    Bug("no-margin", "", ((lease, "step", no_margin),)),
    Bug("leads-until-told-otherwise", "", ((lease, "is_leader", leads_until_told_otherwise),)),
    Bug("takeover-by-own-ttl", "", ((lease, "stored_ttl", own_ttl),), ttls=MappingProxyType({0: 60.0, 1: 60.0})),
    Bug("takeover-by-wall-clock", "", ((lease, "takeover_at", takeover_by_wall_clock),)),
    Bug("opens-without-reading", "", ((claim_log, "_looked", opens_without_reading),)),
    Bug(
        "unknown-counts-as-won",
        "An append without an answer is taken for landed.",
        ((claim_log, "step", _answer_as(Unknown, Won)),),
    ),
    Bug(
        "unknown-counts-as-lost",
        "An append without an answer is taken for lost, and claimed anew.",
        ((claim_log, "step", _answer_as(Unknown, lambda: None)),),
        kinds=SLOW,
    ),
    Bug(
        "fenced-counts-as-won",
        "What the store says to an append does not matter.",
        ((claim_log, "step", _answer_as(Fenced, Won)),),
    ),
    Bug(
        "taken-counts-as-mine",
        "Whatever stands under the number is taken for one's own record.",
        ((claim_log, "is_mine", lambda data, flight: True),),
        kinds=(Kind.STORE, Kind.KILL),
    ),
    Bug("floor-is-now", "", ((claim_log, "next_floor", floor_is_now),)),
    Bug("claimed-by-job", "", ((Ledger, "claimed", claimed_by_job),)),
    Bug("pending-ends-with-the-term", "", ((claim_log, "step", pending_ends_with_the_term),), backend="etcd", nodes=1),
    Bug("own-claims-are-leftovers", "", ((claim_log, "_leftovers", own_claims_are_leftovers),)),
    Bug("rerun-with-the-same-number", "", ((claim_log, "_leftovers", rerun_with_the_same_number),)),
    Bug("gives-nothing-back", "", ((claim_log, "_given_up", gives_nothing_back),)),
    Bug("fence-stands-still", "", ((claim_log, "_head", fence_stands_still),)),
    Bug("keeps-what-was-decided-since", "", ((claim_log, "_own", keeps_what_was_decided_since),), nodes=2),
    Bug("carries-its-old-fence", "", ((claim_log, "_own", carries_its_old_fence),)),
    Bug(
        "fence-by-the-clock",
        "",
        ((claim_log, "least_fence", fence_by_the_clock),),
        backend="kubernetes",
        kinds=(Kind.CLOCK, Kind.STORE),
    ),
    Bug("only-from-now-on", "", ((sweep, "sweep", only_from_now_on),)),
    Bug("start-without-a-last-look", "", ((Desk, "permit", start_without_a_last_look),)),
    Bug("store-renews-anything", "", store=planted.RenewsAnything),
    Bug("store-gives-a-held-lease-away", "", store=planted.GivesAHeldLeaseAway),
    Bug("store-takes-over-blindly", "", store=planted.TakesOverBlindly),
    Bug("store-fence-stands-still", "", store=planted.FenceStandsStill),
    Bug("store-fence-dies-with-the-lease", "", store=planted.FenceStartsOverAfterDeletion, backend="etcd"),
    Bug("store-says-won-for-taken", "", store=planted.SaysWonForTaken),
)
"""Every one of them."""
