"""The claim log's machine: ``step(state, event, now) -> (state, commands)``, one process's side of one log.

The driver asks the store for what a ``Ready`` yields and feeds the answer back. Nothing here waits, reads a clock or
draws a random number. What keeps an occurrence from being started twice (claims.md, by number):

- 2: a term appends its own ``open`` record after reading every record before it, by number, and starts nothing sooner.
- 3: an append without an answer is sent again, same number and bytes, until it is settled; nothing goes before it.
- 4: "mine" is said by the bytes, which carry a fresh nonce, never by name, term or T.
- 6: no second chunk before the first is spawned. 7: a claim that is won and not spawned stays this process's own.
- 8: what is not listed and above the floor is unclaimed; no log, or a hole in it, raises the floor above every clock.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never

from cronstable.core import claim_records
from cronstable.core.claim_jobs import known_now, loaded
from cronstable.core.claim_values import (
    CHUNK,
    SKIPS,
    Alarm,
    Answer,
    Append,
    Began,
    Claim,
    ClaimState,
    Command,
    Dropped,
    Ended,
    Event,
    Flight,
    Found,
    Handed,
    Head,
    Ledger,
    Loaded,
    Logged,
    Look,
    Looked,
    Phase,
    Read,
    Ready,
    Record,
    Refused,
    Skip,
    Spawn,
    Spawned,
    StandDown,
    Start,
    Term,
    Wants,
)
from cronstable.core.clock import EpochSeconds, Instant, Seconds
from cronstable.core.decision import Reason
from cronstable.core.store import Fenced, Full, Span, Taken, Unknown, Won
from cronstable.core.values import replace

FLUSH_AFTER: Final = 5.0
"""Seconds that started ids wait for an append to ride on before they get one of their own. Those of jobs that are rerun
do not wait: what a successor does not read about, it starts again."""
GATHER: Final = 0.25
"""Seconds that these wait all the same while more processes of their chunk are being made, which is said with them."""
STILL_LANDS: Final = 30.0
"""Seconds after which an append that was not answered has landed or never will. Until then no other one is tried in its
place; after that, one without claims is, which makes room in a log that has none."""
ALLOWANCE: Final = 5
"""Seconds that clocks of two nodes may be apart without harm when a log begins (claims.md 8)."""
BEHIND: Final = 2 * ALLOWANCE
"""Seconds that a leader may be behind the floor: a log that just began has it ahead of every clock. It waits then."""
DOUBT: Final = 3.0
"""Seconds for which a record that must exist is looked for before the log counts as damaged."""
ON_TIME: Final = 60
"""Seconds that a lease's fence may be behind the clock and still be one that the clock gave, as those of our stores."""
PEEKS: Final = 100
"""Records in a row that may be missing or damaged, until the last one is gone to: its number was made up."""

Result: TypeAlias = tuple[ClaimState, tuple[Command, ...]]


def initial(node: str, token: str, window: Seconds) -> ClaimState:
    """A process that has not looked yet. ``token``: of this process alone."""
    return ClaimState(node=node, token=token, window=window)


def is_open(state: ClaimState) -> bool:
    """Whether this term's open record landed. Says nothing about the lease's deadline: ask the gate as well."""
    return state.term is not None and state.term.phase is Phase.OPEN


def may_spawn(state: ClaimState, claim: Claim) -> bool:
    """The last question before the spawn of a claim, beside the gate's: the term is open and the claim still ours.

    A claim of an earlier term is ours again only once the new term has read what happened meanwhile; it has that term's
    fence from then on, and whoever is on the way to a process with the old one has to ask for it anew (claims.md 11).
    """
    known = (claim.run_id, claim.fence)
    return is_open(state) and any((one.run_id, one.fence) == known for one in state.pending)


def trimmable(state: ClaimState) -> int:
    """Records below this number are of no use to anybody who reads the log from its end.

    It is what the last record says, since that is where a reader begins: one that misses a record from there on has to
    take the log for damaged.
    """
    return state.ledger.low


def unspawned(state: ClaimState) -> tuple[Claim, ...]:
    """Claims that were won and that nobody has started yet; no further chunk before they are."""
    return tuple(claim for claim in state.pending if not claim.handed)


def give_back(state: ClaimState) -> tuple[ClaimState, tuple[str, ...]]:
    """For a stopping process: forget what was won and not spawned, and hand its ids to whoever leads next.

    From here on none of them may be spawned. The ids of an append whose fate is unknown are among them: should it
    stand there, its starts are not lost, and else nobody finds what they name.
    """
    flight = state.flight
    unknown = tuple(flight.record.run_id(index) for index in range(len(flight.record.starts))) if flight else ()
    ids = _given_up(state) + unknown
    return replace(state, term=None, flight=None, pending=(), returning=()), ids


def _given_up(state: ClaimState) -> tuple[str, ...]:
    """What was won and not spawned, and what the holder before had handed to us and we did not come to."""
    inherited = state.term.returned if state.term is not None else frozenset()
    if is_open(state):
        inherited &= state.ledger.unstarted.keys()
    ids = (*state.returning, *(claim.run_id for claim in state.pending), *sorted(inherited))
    return tuple(dict.fromkeys(ids))


def step(state: ClaimState, event: Event, now: Instant) -> Result:
    """Take in one event. At most one ``Request`` comes out, and only for ``Ready``."""
    match event:
        case Loaded(definitions):
            return loaded(state, definitions, now), ()
        case Began(returned, fence):
            known = max(state.fence, least_fence(fence, now) - 1)
            return replace(state, term=Term(returned=frozenset(returned)), flight=None, fence=known), ()
        case Ended():
            # Starts of an append whose fate is unknown are dropped with the term; what was won stays (claims.md 3, 7).
            return replace(state, term=None, flight=None), ()
        case Ready():
            return _ready(state, event, now)
        case Looked():
            return _looked(state, event.span), ()
        case Found(number, data):
            return _found(state, number, data, now)
        case Answer():
            return _answered(state, event, now)
        case Spawned(run_id, lives):
            return _spawned(_without(state, run_id), run_id, lives, now), ()
        case Handed(run_id, waits):
            pending = tuple(replace(c, handed=waits) if c.run_id == run_id else c for c in state.pending)
            return replace(state, pending=pending), ()
        case Dropped(run_id, reason):
            return replace(_without(state, run_id), dropped=MappingProxyType({**state.dropped, run_id: reason})), ()
        case _:
            assert_never(event)


def _spawned(state: ClaimState, run_id: str, lives: bool, now: Instant) -> ClaimState:
    if not lives:
        return replace(state, spawning=(*state.spawning, run_id))
    spawning = tuple(one for one in state.spawning if one != run_id)
    begun_at = now.boot if state.begun_at is None else state.begun_at
    return replace(state, spawning=spawning, begun=(*state.begun, run_id), begun_at=begun_at)


def _without(state: ClaimState, run_id: str) -> ClaimState:
    return replace(state, pending=tuple(claim for claim in state.pending if claim.run_id != run_id))


# -- finding the end of the log (claims.md 2) -------------------------------------------------------------------------


def _ready(state: ClaimState, event: Ready, now: Instant) -> Result:
    term = state.term
    if term is None:
        return state, ()
    if (flight := state.flight) is not None:
        if flight.doubted_at is None:
            state = replace(state, flight=replace(flight, doubted_at=now.boot))
        return state, (Append(flight.number, flight.data),)
    match term.phase:
        case Phase.OVER:
            return state, ()
        case Phase.LOOK:
            return state, (Look(),)
        case Phase.READ:
            return state, (Read(term.cursor if term.peek is None else term.peek),)
        case Phase.OPENING:
            return _open(state, term, event.nonce, now)
        case Phase.OPEN:
            return _work(state, term, event, now)
        case _:
            assert_never(term.phase)


def _looked(state: ClaimState, span: Span) -> ClaimState:
    term = state.term
    if term is None or term.phase is not Phase.LOOK:
        return state
    known = max(state.fence, state.ledger.fence)
    state = replace(state, ledger=Ledger(), fence=known, store_at=_later(state.store_at, span.at))
    last = max(term.last, span.last)
    if last == 0:
        # No log, says a listing. Creating number 1 will tell whether that is so.
        return replace(state, term=replace(term, phase=Phase.OPENING, cursor=1, raised=True))
    return replace(
        state,
        term=replace(term, phase=Phase.READ, first=max(1, span.first), last=last, peek=last, unread=0, raised=False),
    )


def _later(before: float | None, at: float | None) -> float | None:
    return before if at is None else at if before is None else max(before, at)


def _found(state: ClaimState, number: int, data: bytes | None, now: Instant) -> Result:
    term = state.term
    if term is None or term.phase is not Phase.READ:
        return state, ()
    if data is None and number <= term.last and not _surely_missing(term, number, now):
        # A network file system may hide a fresh name for a while: what must be there is looked for again.
        doubt = term.doubt if term.doubt is not None and term.doubt[0] == number else (number, now.boot)
        return replace(state, term=replace(term, phase=Phase.LOOK, peek=None, doubt=doubt)), ()
    record, alarms = _readable(number, data, expected=number <= term.last)
    # A hole that is sure is waited for once: the floor covers what others hide, and nobody starts anything meanwhile.
    holed = term.holed or (data is None and number <= term.last)
    term = replace(term, holed=holed, unread=term.unread + 1 if record is None else 0)
    if term.peek is not None:
        if number == term.peek:
            term = _peeked(term, number, record)
        return replace(state, term=term), alarms
    if number != term.cursor:
        return state, ()
    if data is None and number > term.last:
        return replace(state, term=replace(term, phase=Phase.OPENING)), ()
    ledger = replace(state.ledger, last=number) if record is None else claim_records.apply(state.ledger, number, record)
    after = number + 1 if term.unread < PEEKS else max(number + 1, term.last)
    term = replace(term, cursor=after, last=max(term.last, number), raised=term.raised or record is None)
    return replace(state, term=term, ledger=ledger), alarms


def _surely_missing(term: Term, number: int, now: Instant) -> bool:
    return term.holed or (term.doubt is not None and term.doubt[0] == number and now.boot >= term.doubt[1] + DOUBT)


def _readable(number: int, data: bytes | None, *, expected: bool) -> tuple[Record | None, tuple[Alarm, ...]]:
    if data is None:
        text = f"record {number} of the claim log is missing"
        return None, (Alarm("claims-damaged", text),) if expected else ()
    try:
        return claim_records.decode(data), ()
    except claim_records.Damaged as error:
        return None, (Alarm("claims-damaged", f"record {number} of the claim log: {error}"),)


def _peeked(term: Term, number: int, record: Record | None) -> Term:
    """Where to begin: any one record says which is the lowest that counts."""
    if record is not None:
        return replace(term, peek=None, cursor=min(number, max(1, record.head.low)))
    if term.unread >= PEEKS:
        return replace(term, peek=None, cursor=term.last, raised=True)
    if number <= term.first:
        return replace(term, peek=None, cursor=number, raised=True)
    return replace(term, peek=number - 1, raised=True)


# -- opening ----------------------------------------------------------------------------------------------------------


def _open(state: ClaimState, term: Term, nonce: str, now: Instant) -> Result:
    floor = state.ledger.floor
    if term.raised:
        floor = max(floor, raised_floor(now.wall, state.store_at))
    elif _behind(state.ledger, now):
        return _stand_down(state, term, now)
    fence = max(state.ledger.fence, state.fence) + 1
    head = _head(state, Term(nonce=nonce, fence=fence, cursor=term.cursor), nonce, floor, now)
    # Only the lease said so until now, and that is ours from here on: whoever comes after us has to read it.
    inherited = sorted(term.returned.intersection(state.ledger.unstarted) - state.ledger.returned)
    return _send(state, term.cursor, Record(head, returned=tuple(inherited[:SKIPS])))


def least_fence(lease: int, now: Instant) -> int:
    """What a term opens with at least that has just begun, given the fence of its lease; 0 when it began before.

    The store keeps that one above all that any node has seen of the lease, also when lease and log are gone. The clock
    is not asked again where it gave it: what is opened with is not to be ahead of what the others see. A store that
    counts from one says nothing of what was opened by the clock.
    """
    wall = int(now.wall)
    return lease if lease == 0 or lease >= wall - ON_TIME else wall


def raised_floor(wall: float, store_at: float | None) -> EpochSeconds:
    """The floor of a log of which nothing is known: nobody can have claimed a T later than this."""
    return math.floor(max(wall, wall if store_at is None else store_at) + ALLOWANCE)


def next_floor(
    ledger: Ledger, wall: float, store_at: float | None, window: Seconds, waiting: EpochSeconds | None
) -> EpochSeconds:
    """Up to where T need not be listed any more; bound by the slower clock and by what still waits."""
    if store_at is None:
        return ledger.floor
    reach = math.floor(min(wall, store_at) - 2 * window)
    return max(ledger.floor, reach if waiting is None else min(reach, waiting - 1))


def _behind(ledger: Ledger, now: Instant) -> bool:
    return now.wall < ledger.floor - BEHIND


def _stand_down(state: ClaimState, term: Term, now: Instant) -> Result:
    text = (
        f"the wall clock of this node is {state.ledger.floor - now.wall:.0f} s behind what was claimed already: set it "
        "right; if another node's was ahead, set that one right and delete the claim log"
    )
    return replace(state, term=replace(term, phase=Phase.OVER)), (Alarm("clock-behind", text), StandDown(text))


def _head(state: ClaimState, term: Term, nonce: str, floor: EpochSeconds, now: Instant) -> Head:
    return Head(
        nonce=nonce,
        term=term.nonce,
        fence=term.fence,
        node=state.node,
        token=state.token,
        at=int(now.wall),
        floor=floor,
        low=claim_records.lowest(state.ledger, state.ledger.last + 1, floor),
        known=known_now(state, floor),
    )


def _send(state: ClaimState, number: int, record: Record) -> Result:
    data = claim_records.encode(record)
    return replace(state, flight=Flight(number, record, data)), (Append(number, data),)


# -- working ----------------------------------------------------------------------------------------------------------


def _work(state: ClaimState, term: Term, event: Ready, now: Instant) -> Result:
    """What is won comes first; then one record with everything that is to be said and fits."""
    if event.flush:
        return _flush(state, term, event, now)
    if waiting := unspawned(state):
        return state, (Spawn(waiting),)
    if _behind(state.ledger, now):
        return _stand_down(state, term, now)
    if not (state.ledger.unstarted or event.wants.starts or event.wants.skips or _must_flush(state, event.wants, now)):
        # As most of the time: nobody's claim waits, and nothing is wanted.
        return state, ()
    starts, skips = _leftovers(state, term, event.wants)
    told = _told(state, event.wants)
    wanted, refused = _claimable(state.ledger, event.wants.starts, now)
    starts = (*starts, *wanted)[:CHUNK]
    skips = (*skips, *(skip for skip in event.wants.skips if not state.ledger.claimed(skip.job, skip.at)))[:SKIPS]
    commands: tuple[Command, ...] = (Refused(refused, Reason.CLAIM_TAKEN),) if refused else ()
    if not starts and not skips and not told and not _must_flush(state, event.wants, now):
        return state, commands
    floor = next_floor(state.ledger, now.wall, state.store_at, state.window, _oldest(state, event.wants, starts))
    head = _head(state, term, event.nonce, floor, now)
    if state.full:
        state = replace(state, full=False)
        if state.begun or any(at <= floor for at in state.ledger.firsts):
            # Without claims it is small, and lets go of what takes up the room: else a full log is full for good.
            state, sent = _send(state, state.ledger.last + 1, Record(head, begun=state.begun[:CHUNK]))
            return state, (*commands, *sent)
    record = Record(head, starts, skips, (*state.begun, *told)[:SKIPS])
    state, sent = _send(state, state.ledger.last + 1, record)
    return state, (*commands, *sent)


def _flush(state: ClaimState, term: Term, event: Ready, now: Instant) -> Result:
    """A stopping process claims nothing more, but says what it started, what it will not and why, and what others may:

    nobody shall take it for lost, and a successor that dies before it opens shall not take that to its grave.
    """
    unstarted = state.ledger.unstarted
    given_up = _given_up(state)
    state = replace(state, pending=(), returning=given_up)
    returned = tuple(run for run in given_up if run in unstarted and run not in state.ledger.returned)[:SKIPS]
    skips = tuple(Skip(*unstarted[run], reason) for run, reason in state.dropped.items() if run in unstarted)[:SKIPS]
    # What is being made will live: this process does not end before.
    begun = (*state.begun, *(run for run in state.spawning if run in unstarted))[:SKIPS]
    if not begun and not returned and not skips:
        return state, ()
    head = _head(state, term, event.nonce, state.ledger.floor, now)
    return _send(state, state.ledger.last + 1, Record(head, (), skips, begun, returned))


def _must_flush(state: ClaimState, wants: Wants, now: Instant) -> bool:
    """Whether what was started has to be said now, with nothing else to say."""
    if state.begun_at is None:
        return False
    unstarted = state.ledger.unstarted
    reruns = any(run in unstarted and unstarted[run][0] in wants.rerun for run in state.begun)
    gathered = not state.spawning or now.boot >= state.begun_at + GATHER
    return (reruns and gathered) or now.boot >= state.begun_at + FLUSH_AFTER


def _mine(state: ClaimState) -> set[str]:
    """What this process is to start, is starting, or started and did not say yet."""
    return {claim.run_id for claim in state.pending} | {*state.spawning, *state.begun}


def _told(state: ClaimState, wants: Wants) -> tuple[str, ...]:
    """What others started and could not say in the log: it is said for them, and not taken for lost."""
    not_told = _mine(state) | state.dropped.keys() | _returned(state)
    return tuple(sorted(run for run in wants.begun if run in state.ledger.unstarted and run not in not_told))


def _returned(state: ClaimState) -> frozenset[str]:
    """What a holder before gave back: it promised not to spawn that, though its entry may still show it on its way."""
    return state.ledger.returned | (state.term.returned if state.term is not None else frozenset())


def _claimable(ledger: Ledger, starts: tuple[Start, ...], now: Instant) -> tuple[tuple[Start, ...], tuple[Start, ...]]:
    """Of ``starts``, those that nobody claimed yet, and further attempts that somebody did."""
    wanted: list[Start] = []
    taken: list[Start] = []
    for start in starts:
        if start.at > now.wall:
            continue
        if start.attempt == 0:
            if not ledger.claimed(start.job, start.at):
                wanted.append(start)
        elif ledger.attempt(start.job, start.at) < start.attempt:
            wanted.append(start)
        else:
            taken.append(start)
    return tuple(wanted), tuple(taken)


def _leftovers(state: ClaimState, term: Term, wants: Wants) -> tuple[tuple[Start, ...], tuple[Skip, ...]]:
    """Claims that were never started and are nobody's any more: each is started again or gets its reason."""
    mine = _mine(state)
    returned = _returned(state)
    starts: list[Start] = []
    skips: list[Skip] = []
    for run_id, (job, at) in state.ledger.unstarted.items():
        if run_id in mine or (run_id in wants.begun and run_id not in returned):
            continue
        attempt = state.ledger.attempt(job, at)
        if run_id in state.dropped:
            skips.append(Skip(job, at, state.dropped[run_id]))
        elif run_id in returned:
            starts.append(Start(job, at, attempt, late=True))
        elif not wants.settled:
            continue
        elif job in wants.rerun:
            starts.append(Start(job, at, attempt + 1, late=True))
        else:
            skips.append(Skip(job, at, Reason.CLAIMED_NOT_STARTED))
    return tuple(sorted(starts, key=lambda s: s.at)), tuple(skips)


def _oldest(state: ClaimState, wants: Wants, starts: tuple[Start, ...]) -> EpochSeconds | None:
    """The oldest T that is not settled: the floor may not pass it."""
    waiting = [start.at for start in (*starts, *wants.starts) if start.attempt == 0]
    waiting += [at for job, at in state.ledger.unstarted.values() if state.ledger.attempt(job, at) == 0]
    waiting += [claim.start.at for claim in state.pending]
    if wants.waiting is not None:
        waiting.append(wants.waiting)
    return min(waiting, default=None)


# -- answers ----------------------------------------------------------------------------------------------------------


def _answered(state: ClaimState, event: Answer, now: Instant) -> Result:
    flight, term = state.flight, state.term
    if flight is None or term is None:
        return state, ()
    match event.appended:
        case Won(at):
            return _won(replace(state, store_at=_later(state.store_at, at)), term, flight, now)
        case Taken(data):
            if is_mine(data, flight):
                return _won(state, term, flight, now)
            # Somebody wrote what this process has not read: read it all, and open again before anything starts.
            after = replace(term, phase=Phase.LOOK, last=max(term.last, flight.number), peek=None)
            return replace(state, flight=None, term=after), ()
        case Fenced():
            refused = Refused(flight.record.starts, Reason.FENCED)
            return replace(state, flight=None, term=replace(term, phase=Phase.OVER)), (refused,)
        case Full(at):
            alarm = Alarm("log-full", "the claim log has no room: nothing is started until it has")
            if flight.doubted_at is not None and now.boot < flight.doubted_at + STILL_LANDS:
                # That there is no room now says nothing about what was sent while there was (claims.md 3).
                return replace(state, full=True, store_at=_later(state.store_at, at)), (alarm,)
            state = replace(state, flight=None, full=True, store_at=_later(state.store_at, at))
            return state, (Refused(flight.record.starts, Reason.LOG_FULL), alarm)
        case Unknown():
            return replace(state, flight=replace(flight, doubted_at=now.boot)), ()
        case _:
            assert_never(event.appended)


def is_mine(data: bytes, flight: Flight) -> bool:
    """Whether what stands there is this very append: the bytes carry its nonce (claims.md 4)."""
    return data == flight.data


def _won(state: ClaimState, term: Term, flight: Flight, now: Instant) -> Result:
    record = flight.record
    ledger = claim_records.apply(state.ledger, flight.number, record)
    state = replace(state, ledger=ledger, flight=None)
    if record.head.opens:
        opened = replace(
            term, phase=Phase.OPEN, nonce=record.head.nonce, fence=record.head.fence, opened_at=now.wall, raised=False
        )
        state = _own(replace(state, term=opened), opened.fence)
        return state, (Spawn(waiting),) if (waiting := unspawned(state)) else ()
    claims = tuple(Claim(record.run_id(index), start, record.head.fence) for index, start in enumerate(record.starts))
    begun = tuple(run for run in state.begun if run not in record.begun)
    state = replace(
        state,
        pending=(*state.pending, *claims),
        begun=begun,
        begun_at=now.boot if begun else None,
        dropped=MappingProxyType({run: why for run, why in state.dropped.items() if run in ledger.unstarted}),
    )
    commands: list[Command] = [Spawn(claims)] if claims else []
    if record.skips:
        commands.append(Logged(record.skips))
    return state, tuple(commands)


def _own(state: ClaimState, fence: int) -> ClaimState:
    """Of what this process won in earlier terms, keep what nobody decided about since (claims.md 7).

    It is this term that starts it, with its fence: what a later one started before has a higher one than it was won
    with (claims.md 11). What was given back is anybody's, also when it was a clone of this process that did so.
    """
    unstarted = {run: of for run, of in state.ledger.unstarted.items() if run not in state.ledger.returned}
    begun = tuple(run for run in state.begun if run in unstarted)
    return replace(
        state,
        pending=tuple(replace(claim, fence=fence) for claim in state.pending if claim.run_id in unstarted),
        begun=begun,
        begun_at=state.begun_at if begun else None,
        dropped=MappingProxyType({run: why for run, why in state.dropped.items() if run in unstarted}),
    )
