"""The lease state machine: ``step(state, event, now) -> (state, commands)``.

One process's side of one lease. The driver reads the clock, carries out the one request a ``Ready`` yields, and feeds
the answer back; nothing here waits, reads a clock or draws a random number. All instants are boot seconds
of the node's own suspend-counting clock unless they are called wall.

The rules that keep two nodes from leading at once (reference 3.5, claims 9 and 10):

- A term may be acted on until the instant BEFORE its last landed write was sent, plus the granted ttl, minus a margin.
- A failure, a late answer or an unknown outcome never extends it. A read never starts it, whoever's name it bears.
- Every write leaves a nonce. Our token with a nonce that we never sent is a clone of this process: step down, and take
  a new token.
- A record is taken over when it stood still for the ttl its holder stored, on our own clock, and the wall expiry has
  passed (or it stood still for twice as long). The write itself is a compare-and-swap on what was seen.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias, assert_never

from cronstable.core.clock import Instant, Seconds
from cronstable.core.lease_values import (
    Acquire,
    Answered,
    Command,
    Cut,
    Event,
    Failed,
    Finished,
    Gained,
    InFlight,
    LeaseState,
    LeaseTiming,
    Level,
    Loss,
    Lost,
    Note,
    Observe,
    Phase,
    Quorum,
    Ready,
    Release,
    Renew,
    Request,
    Resign,
    Standing,
    Stop,
    Tick,
    Wait,
)
from cronstable.core.store import Grant, Held, Holder, LeaseRecord, Observation, Seen, Unreadable, Vacant
from cronstable.core.values import replace

LONGEST_STORED_TTL: Final = 3600.0
"""Seconds. A stored ttl above this (and above our own) is an accident or an edit: it is honoured for this long only."""

CHALLENGER_MARGIN: Final = 1.0
"""Seconds past a record's wall expiry before a challenger acts on it."""

RETRY_AT_LEAST: Final = 0.5
"""Seconds between requests to a store that fails: at most two a second (L4)."""

RETRY_AT_MOST: Final = 2.0

RELEASE_WITHIN: Final = 5.0
"""Seconds from a stop to the end of the last request, whatever the ttl: a supervisor kills after ten, or thirty."""

REMEMBERED_NONCES: Final = 32
LATE: Final = "the answer came after its deadline"


# -- queries: pure comparisons, nothing cached ------------------------------------------------------------------------


def is_quorate(state: LeaseState, boot: float) -> bool:
    """The store answered within the last ttl."""
    return state.quorum_until is not None and boot < state.quorum_until


def is_leader(state: LeaseState, boot: float) -> bool:
    """This process may act as leader at this instant."""
    return (
        state.phase is Phase.RUNNING
        and state.grant is not None
        and state.deadline is not None
        and boot < state.deadline
        and is_quorate(state, boot)
    )


def available(state: LeaseState, boot: float) -> bool:
    """The never-skip answer for PreferLeader (reference 3.5): run unless another node is known to lead."""
    return not is_quorate(state, boot) or state.grant is not None or state.holder is None


def leader_name(state: LeaseState, boot: float) -> str | None:
    """The display name of the leader: ours while we lead, another's while it is known and we are quorate."""
    if not is_quorate(state, boot):
        return None
    if is_leader(state, boot):
        return state.me.name
    if state.grant is not None or state.holder is None:
        return None
    return state.holder.name


def next_change(state: LeaseState, boot: float) -> float | None:
    """When an answer of this section changes although no event comes: the next deadline ahead."""
    ahead = [at for at in (state.deadline, state.quorum_until) if at is not None and at > boot]
    return min(ahead, default=None)


def stored_ttl(record: LeaseRecord, timing: LeaseTiming) -> Seconds:
    """How long ``record`` must stand still: the ttl its holder stored, within bounds; ours when it stored none."""
    return bounded_ttl(record, timing.ttl, timing.floor)


def bounded_ttl(record: LeaseRecord, own: Seconds, floor: Seconds) -> Seconds:
    """As ``stored_ttl``. ``own``: the ttl of whoever looks; ``floor``: no ttl is shorter."""
    ttl = record.ttl
    if math.isnan(ttl) or ttl <= 0:
        return own
    return min(max(ttl, floor), max(LONGEST_STORED_TTL, own))


def takeover_at(state: LeaseState, now: Instant) -> float | None:
    """The boot instant at which the standing record may be taken over, None when it never may."""
    standing = state.standing
    if standing is None or state.expires_itself:
        return None
    return dead_at(standing, stored_ttl(standing.record, state.timing), now)


def dead_at(standing: Standing, ttl: Seconds, now: Instant) -> float:
    """The boot instant from which the holder of a record that stands still counts as dead (claims.md 10)."""
    still = standing.since + ttl
    if standing.record.expires_at is None:
        return still
    if not math.isfinite(standing.record.expires_at):
        return standing.since + 2 * ttl
    expired = now.boot + max(0.0, standing.record.expires_at + CHALLENGER_MARGIN - now.wall)
    return max(still, min(expired, standing.since + 2 * ttl))


# -- the machine ------------------------------------------------------------------------------------------------------

Result: TypeAlias = tuple[LeaseState, tuple[Command, ...]]


def step(state: LeaseState, event: Event, now: Instant) -> Result:
    """Take in one event. At most one ``Request``, ``Wait`` or ``Finished`` comes out, and only for ``Ready``."""
    match event:
        case Ready():
            after, commands = _ready(state, event, now)
        case Answered(observation):
            after, commands = _answered(state, observation, now)
        case Failed(detail):
            after, commands = _failed(state, detail, now)
        case Cut():
            after, commands = replace(state, in_flight=None, next_at=now.boot), ()
        case Tick():
            after, commands = state, ()
        case Stop():
            after, commands = _stop(state, now)
        case Resign(seconds):
            after, commands = _resign(state, seconds, now), ()
        case _:
            assert_never(event)
    return _announce(after, commands, now)


def _announce(state: LeaseState, commands: tuple[Command, ...], now: Instant) -> Result:
    leading, quorate = is_leader(state, now.boot), is_quorate(state, now.boot)
    if leading == state.leading and quorate == state.quorate and state.loss is None:
        return state, commands
    notices: list[Command] = []
    if quorate != state.quorate:
        notices.append(Quorum(quorate))
    if leading and not state.leading and state.grant is not None and state.deadline is not None:
        notices.append(Gained(state.grant.fence, state.deadline))
    elif state.leading and not leading:
        notices.append(Lost(state.loss or Loss.DEADLINE))
    return replace(state, leading=leading, quorate=quorate, loss=None), (*notices, *commands)


def _ready(state: LeaseState, event: Ready, now: Instant) -> Result:
    if state.in_flight is not None:
        raise ValueError("Ready while a request is in flight: the driver asks one thing at a time")
    if state.phase is not Phase.RUNNING:
        return _wind_down(state, now)
    if state.rekey:
        state = replace(state, me=Holder(state.me.name, event.token), rekey=False, unsettled=())
    if state.retry_due:
        # Jitter is drawn here, where the driver brings it, and once per failure.
        state = replace(state, retry_due=False, next_at=now.boot + _retry_delay(state, event.jitter))
    request = _due(state, event.nonce, now)
    if isinstance(request, Wait):
        return state, (request,)
    return replace(state, in_flight=InFlight(request, now.boot)), (request,)


def _retry_delay(state: LeaseState, jitter: float) -> Seconds:
    longest = RETRY_AT_LEAST if state.grant is not None else min(RETRY_AT_MOST, state.timing.renew_every)
    base = min(RETRY_AT_LEAST * 2.0 ** min(state.failures - 1, 8), max(RETRY_AT_LEAST, longest))
    return base * (1 + jitter / 2)


def _due(state: LeaseState, nonce: str, now: Instant) -> Request | Wait:
    by = now.boot + state.timing.op_timeout
    if state.resigning and state.grant is not None:
        return Release(state.grant, by)
    if state.failures == 0 and state.grant is None:
        over = _acquirable(state, now)
        if over is not None:
            return Acquire(state.me, state.timing.ttl, nonce, over[0], by)
    if now.boot < state.next_at:
        until = state.next_at
        if state.failures == 0 and state.grant is None:
            until = min(until, _opens_at(state, now) or until)
        return Wait(until)
    if state.grant is not None:
        return Renew(state.grant, nonce, by)
    # While the store fails, only an answer helps: a watch that is cut short at once would be asked again for ever.
    watches = state.timing.watch > 0 and state.failures == 0
    return Observe(by + state.timing.watch, _opens_at(state, now) if watches else None)


def _opens_at(state: LeaseState, now: Instant) -> float | None:
    """When the lease can be tried for next, going by what was seen last."""
    at = state.vacant_since if state.vacant is not None else takeover_at(state, now)
    return None if at is None else max(at, state.abstain_until)


def _acquirable(state: LeaseState, now: Instant) -> tuple[Seen | None] | None:
    at = _opens_at(state, now)
    if at is None or now.boot < at:
        return None
    if state.vacant is not None:
        return (None,)
    return (Seen(state.standing.record),) if state.standing is not None else None


def _answered(state: LeaseState, observation: Observation | None, now: Instant) -> Result:
    flight = state.in_flight
    if flight is None:
        return state, ()
    request = flight.request
    if isinstance(request, Release):
        return replace(_let_go(state, now), holder=None), ()
    if observation is None:
        return _failed(state, "the store answered nothing", now)
    late = now.boot > request.by
    match observation:
        case Held(grant):
            return _held(state, flight, grant, late, now)
        case Unreadable(detail):
            return _unreadable(state, detail, now)
        case Seen(record):
            after, notes = _seen(_contact(state, now), flight, record, now)
        case Vacant():
            after, notes = _vacant(_contact(state, now), request, observation, now), ()
        case _:
            assert_never(observation)
    if late:
        # What it says against us is believed, the contact is not.
        after = replace(after, quorum_until=state.quorum_until, failures=state.failures + 1, retry_due=True)
        notes = (*notes, Note("round", Level.WARNING, LATE))
    return after, notes


def _contact(state: LeaseState, now: Instant) -> LeaseState:
    until = now.boot + state.timing.ttl
    return replace(state, quorum_until=until, failures=0, retry_due=False, in_flight=None)


def _held(state: LeaseState, flight: InFlight, grant: Grant, late: bool, now: Instant) -> Result:
    request = flight.request
    if not isinstance(request, Acquire | Renew) or grant.nonce != request.nonce or grant.holder.token != state.me.token:
        return _failed(state, "the store says held for a write that was not ours", now)
    if isinstance(request, Renew) and grant.fence != request.grant.fence:
        return _failed(state, "the store changed the fence of a term at its renewal", now)
    notes: list[Command] = []
    if isinstance(request, Acquire) and state.fence is not None and grant.fence <= state.fence:
        notes.append(Note("fence", Level.ERROR, f"the fence went back from {state.fence} to {grant.fence}"))
    known = replace(
        state,
        grant=replace(grant, tried=()) if grant.tried else grant,
        holder=state.me,
        fence=grant.fence,
        expiry=grant.expires_at,
        standing=None,
        vacant=None,
        doubt=None,
        unsettled=(),
    )
    if late:
        # The term is ours in the store, yet nothing says how much of it is left: renew before acting.
        failed, more = _failed(known, LATE, now)
        return failed, (*notes, *more)
    granted = min(grant.ttl, state.timing.ttl)
    usable = granted >= state.timing.floor
    if not usable and not state.short_ttl:
        notes.append(
            Note("ttl", Level.WARNING, f"the store grants {granted:g} s, below {state.timing.floor:g} s: not leading")
        )
    if usable and state.short_ttl:
        notes.append(Note("ttl", Level.INFO, f"the store grants {granted:g} s again"))
    cadence = min(state.timing.renew_every, max(1.0, granted / 3)) if usable else state.timing.renew_every
    after = replace(
        known,
        quorum_until=now.boot + state.timing.ttl,
        failures=0,
        retry_due=False,
        in_flight=None,
        deadline=flight.sent + granted - state.timing.margin if usable else None,
        short_ttl=not usable,
        next_at=max(now.boot, flight.sent + cadence),
        loss=None if usable else Loss.SHORT_TTL,
    )
    return after, tuple(notes)


def _seen(state: LeaseState, flight: InFlight, record: LeaseRecord, now: Instant) -> Result:
    request = flight.request
    ours = record.holder.token == state.me.token
    if state.grant is not None and isinstance(request, Renew):
        tried = _with_tried(state.grant, request.nonce)
        if tried.owns(record):
            # Refused, yet it still stands as ours: a race inside the store. No loss, and no extension either.
            return _again(replace(state, grant=tried)), (Note("round", Level.WARNING, "the store refused to renew"),)
        state = replace(state, grant=None, deadline=None, loss=Loss.CLONED if ours else Loss.TAKEN)
    if ours:
        return _own_token(_shown(state, record), flight, record, now)
    if isinstance(request, Acquire) and request.over is not None and _same(request.over.record, record):
        note = Note("round", Level.WARNING, "the store refused a takeover of an unchanged record")
        return _again(_shown(state, record)), (note,)
    return _watching(state, flight, record, now), ()


def _shown(state: LeaseState, record: LeaseRecord) -> LeaseState:
    return replace(state, holder=record.holder, fence=max(record.fence, state.fence or 0), expiry=record.expires_at)


def _own_token(state: LeaseState, flight: InFlight, record: LeaseRecord, now: Instant) -> Result:
    """Our token in a record that we do not hold knowingly: a lost acquisition of ours, or a clone of this process."""
    request = flight.request
    tried = (*state.unsettled, request.nonce) if isinstance(request, Acquire) else state.unsettled
    if record.nonce in tried:
        grant = Grant(record.holder, record.fence, record.nonce, record.ttl, record.expires_at)
        adopted = replace(state, grant=grant, deadline=None, standing=None, vacant=None, next_at=now.boot)
        return adopted, (Note("adopt", Level.INFO, "an acquisition without an answer had landed: renewing it"),)
    note = Note("clone", Level.ERROR, f"{Loss.CLONED}: taking a new token")
    return replace(_watching(state, flight, record, now), rekey=True), (note,)


def _watching(state: LeaseState, flight: InFlight, record: LeaseRecord, now: Instant) -> LeaseState:
    standing = state.standing
    if standing is None or not _same(standing.record, record):
        standing = Standing(record, now.boot)
    raced = isinstance(flight.request, Acquire)
    # A watch that answered after a while is asked again at once; one that answers in no time must not make us spin.
    waited = state.timing.watch > 0 and now.boot - flight.sent >= state.timing.poll
    pause = max(RETRY_AT_LEAST, state.timing.poll) if raced else state.timing.poll
    next_at = now.boot if waited and not raced else now.boot + pause
    return replace(
        state,
        holder=record.holder,
        fence=max(record.fence, state.fence or 0),
        expiry=record.expires_at,
        standing=standing,
        vacant=None,
        doubt=None,
        next_at=next_at,
    )


def _same(one: LeaseRecord, other: LeaseRecord) -> bool:
    return one.mark == other.mark if one.mark and other.mark else one == other


def _vacant(state: LeaseState, request: Request, answer: Vacant, now: Instant) -> LeaseState:
    raced = isinstance(request, Acquire)
    opens = _vacancy_opens(state, answer, raced, now)
    # While the last holder may still act, PreferLeader jobs leave the work to it, as they do beside a silent record.
    held_over = opens > now.boot and not raced and state.grant is None
    return replace(
        state,
        grant=None,
        deadline=None,
        holder=state.holder if held_over else None,
        expiry=None,
        fence=state.fence if answer.fence is None else max(answer.fence, state.fence or 0),
        standing=None,
        vacant=answer,
        vacant_since=opens,
        next_at=now.boot + state.timing.poll,
        loss=Loss.VANISHED if state.grant is not None else None,
    )


def _vacancy_opens(state: LeaseState, answer: Vacant, raced: bool, now: Instant) -> float:
    """From when on a vacant lease may be taken: at once, unless it looks deleted or rolled back rather than released.

    The holder of a record that vanished may act on it for up to its ttl more (reference 13, row 37). A release keeps
    the fence, so a fence below the one last seen is no release of that record.
    """
    if state.vacant is not None and state.vacant_since is not None and not raced:
        return state.vacant_since
    opens = now.boot + max(RETRY_AT_LEAST, state.timing.poll) if raced else now.boot
    standing = state.standing
    released = answer.fence is not None and (standing is None or answer.fence >= standing.record.fence)
    if not released and not state.expires_itself:
        if standing is not None:
            opens = now.boot + stored_ttl(standing.record, state.timing)
        if state.doubt is not None:
            opens = max(opens, state.doubt + state.timing.ttl)
    return opens


def _unreadable(state: LeaseState, detail: str, now: Instant) -> Result:
    after, _ = _failed(state, detail, now)
    text = f"the lease cannot be read, and is left alone: {detail}"
    standing = None if state.standing is None else Standing(state.standing.record, now.boot)
    return replace(after, standing=standing, vacant=None, doubt=now.boot), (Note("unreadable", Level.ERROR, text),)


def _failed(state: LeaseState, detail: str, now: Instant) -> Result:
    flight = state.in_flight
    if flight is None:
        return state, ()
    after = _settle_unknown(state, flight.request)
    if isinstance(flight.request, Release):
        note = Note("release", Level.WARNING, f"the lease was not released and runs out by itself: {detail}")
        return _let_go(after, now), (note,)
    return _again(after), (Note("round", Level.WARNING, detail),)


def _again(state: LeaseState) -> LeaseState:
    return replace(state, in_flight=None, failures=state.failures + 1, retry_due=True)


def _settle_unknown(state: LeaseState, request: Request) -> LeaseState:
    """A write without an answer may have landed: its nonce stays ours."""
    match request:
        case Acquire(nonce=nonce) if state.grant is None:
            return replace(state, unsettled=(*state.unsettled, nonce)[-REMEMBERED_NONCES:], vacant=None)
        case Renew(nonce=nonce) if state.grant is not None:
            return replace(state, grant=_with_tried(state.grant, nonce))
        case Acquire() | Renew() | Observe() | Release():
            return state
        case _:
            assert_never(request)


def _with_tried(grant: Grant, nonce: str) -> Grant:
    if nonce == grant.nonce:
        return grant
    return replace(grant, tried=(*grant.tried, nonce)[-REMEMBERED_NONCES:])


def _resign(state: LeaseState, seconds: Seconds, now: Instant) -> LeaseState:
    if state.phase is not Phase.RUNNING or state.grant is None:
        return state
    return replace(
        state,
        resigning=True,
        abstain_until=now.boot + seconds,
        deadline=None,
        next_at=now.boot,
        retry_due=False,
        loss=Loss.RESIGNED,
    )


def _let_go(state: LeaseState, now: Instant) -> LeaseState:
    """A release went out, whatever became of it."""
    phase = state.phase if state.phase is Phase.RUNNING else Phase.STOPPED
    return replace(state, in_flight=None, grant=None, resigning=False, next_at=now.boot, phase=phase)


def _stop(state: LeaseState, now: Instant) -> Result:
    if state.phase is not Phase.RUNNING:
        return state, ()
    if state.in_flight is not None:
        state = replace(_settle_unknown(state, state.in_flight.request), in_flight=None)
    stop_by = now.boot + min(2 * state.timing.op_timeout, RELEASE_WITHIN)
    return replace(state, phase=Phase.STOPPING, deadline=None, loss=Loss.STOPPED, stop_by=stop_by), ()


def _wind_down(state: LeaseState, now: Instant) -> Result:
    """After ``Stop``: release what is ours; an acquisition of unknown fate is looked for once."""
    by = min(now.boot + state.timing.op_timeout, state.stop_by)
    request: Request
    if state.phase is not Phase.STOPPED and state.grant is not None:
        request = Release(state.grant, by)
    elif state.phase is Phase.STOPPING and state.unsettled:
        state, request = replace(state, phase=Phase.LOOKED), Observe(by)
    else:
        return replace(state, phase=Phase.STOPPED), (Finished(),)
    return replace(state, in_flight=InFlight(request, now.boot)), (request,)
