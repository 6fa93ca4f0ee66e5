"""Slots: one node at a time runs a job whose ``concurrencyScope`` is ``cluster`` (reference 4.5).

A slot is the lease ``slots/<job>`` of the state store, held from the first local run of the job to its last. How one is
entered is a generator that yields what is to be asked and is sent the answer; what is held is a value.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias, assert_never

from cronstable.core.clock import Instant, Seconds
from cronstable.core.job import Json
from cronstable.core.lease import CHALLENGER_MARGIN, bounded_ttl, dead_at
from cronstable.core.lease_values import Standing
from cronstable.core.store import Grant, Held, Holder, LeaseRecord, Observation, Seen, Unreadable, Vacant
from cronstable.core.values import dataclass

SHORTEST_TTL: Final[Seconds] = 5.0
"""Of ``state.slotTtlSeconds`` (reference 4)."""
LOOK_EVERY: Final[Seconds] = 1.0
"""How often a slot that is waited for is tried for."""
RENEWALS: Final = 3
"""Renewals within one ttl."""


# -- entering ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Try:
    """Ask for the lease; ``over``: in the place of this record, whose holder counts as dead. The answer: ``Answer``."""

    over: Seen | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Renew what this process seems to hold already, after a lost answer. The answer: ``Answer``."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class AskToEnd:
    """Append a cancel record for the holder of this very fence. The answer is worth nothing but its instant."""

    fence: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Come back after so many seconds. The answer is worth nothing but its instant."""

    seconds: Seconds


SlotAsk: TypeAlias = Try | Adopt | AskToEnd | Rest


@dataclass(frozen=True, slots=True)
class Answer:
    """``observation``: None when the store did not answer. ``sent``, ``now``: before and after; ``sent`` in boot."""

    observation: Observation | None
    sent: float
    now: Instant


@dataclass(frozen=True, slots=True)
class Entered:
    """The slot is ours until ``until`` (boot seconds) at least. ``dead``: who had it up to now, and did not let go."""

    grant: Grant
    until: float
    dead: Holder | None = None


@dataclass(frozen=True, slots=True)
class Occupied:
    """Another node runs the job: ``holder``, by name."""

    holder: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nobody knows whose the slot is, so nobody is denied and nothing is held."""


Entry: TypeAlias = Entered | Occupied | NoAnswer


class Patience(Enum):
    """What whoever wants the slot does about a holder that lives."""

    NONE = "none"
    """Give up at once: ``Forbid``."""
    END_IT = "end it"
    """Ask it to end its runs, and wait: ``Replace``."""
    WAIT = "wait"
    """Wait for it: a run that outlived its daemon, whose old slot is about to run out."""


def entering(
    patience: Patience, ttl: Seconds, standing: Standing | None, wrote: AbstractSet[str], begun: Instant
) -> Generator[SlotAsk, Answer, tuple[Entry, Standing | None]]:
    """Get the slot for the first local run. ``standing``: what was seen there last; the new one comes out.

    ``wrote``: nonces of this process; nothing else says that a record is its own.

    A living holder is waited for up to twice ``ttl``, if at all. One whose record has run out by the wall clock is
    waited for as long as claims.md 10 wants it to stand still.
    """
    over: Seen | None = None
    asked: int | None = None
    limit = 2 * ttl
    while True:
        answer = yield Try(over)
        boot = answer.now.boot
        match answer.observation:
            case Held(grant):
                dead = over.record.holder if over is not None else None
                return Entered(grant, answer.sent + min(grant.ttl, ttl), dead), None
            case Vacant():
                standing = None
                holder = "a node that just let go"
            case Seen(record) if record.nonce in wrote:
                adopted = yield Adopt(Grant(record.holder, record.fence, record.nonce, record.ttl, record.expires_at))
                if isinstance(adopted.observation, Held):
                    grant = adopted.observation.grant
                    return Entered(grant, adopted.sent + min(grant.ttl, ttl)), None
                return NoAnswer(), None
            case Seen(record):
                refused = over is not None and _same(over.record, record)
                if standing is None or not _same(standing.record, record):
                    standing = Standing(record, boot)
                at = dead_at(standing, bounded_ttl(record, ttl, SHORTEST_TTL), answer.now)
                if boot >= at and not refused:
                    over = Seen(record)
                    continue
                holder = record.holder.name
                if patience is Patience.NONE:
                    if not _ran_out(record, answer.now):
                        return Occupied(holder), standing
                    limit = 2 * bounded_ttl(record, ttl, SHORTEST_TTL) + CHALLENGER_MARGIN
                elif patience is Patience.END_IT and asked != record.fence:
                    asked = record.fence
                    yield AskToEnd(record.fence)
            case Unreadable() | None:
                return NoAnswer(), standing
            case _:
                assert_never(answer.observation)
        if boot >= begun.boot + limit:
            return Occupied(holder), standing
        over = None
        yield Rest(LOOK_EVERY)


def _same(a: LeaseRecord, b: LeaseRecord) -> bool:
    return (a.holder, a.fence, a.nonce, a.mark) == (b.holder, b.fence, b.nonce, b.mark)


def _ran_out(record: LeaseRecord, now: Instant) -> bool:
    """Whether its holder should have renewed it long since, going by the wall clock: a hint, and no proof."""
    return record.expires_at is not None and not now.wall <= record.expires_at + CHALLENGER_MARGIN


# -- holding ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """What this node has of one slot. ``refs``: local runs that count on it.

    ``grant``: None as long as nothing is held; ``until``: boot seconds up to which it surely stands. ``lost``: runs
    live here and the slot is another's, or nobody knows; ``holder``: the other one, by name, where that is known.
    """

    refs: int = 0
    grant: Grant | None = None
    until: float = float("-inf")
    lost: bool = False
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """It is ours as before."""


@dataclass(frozen=True, slots=True)
class Lost:
    """It is not ours any more, for now; the runs go on, and may overlap with those of another node. Said once."""

    holder: str | None


@dataclass(frozen=True, slots=True)
class Regained:
    """It is ours again: nobody had it in between."""


Renewal: TypeAlias = Kept | Lost | Regained


def enter(slot: Slot, entered: Entered | None) -> Slot:
    """One more local run; ``entered`` when it brought the slot with it."""
    if entered is None:
        return replace(slot, refs=slot.refs + 1)
    return Slot(slot.refs + 1, entered.grant, entered.until)


def leave(slot: Slot) -> tuple[Slot, Grant | None]:
    """One local run less; with the last one goes the grant, which is to be released."""
    if slot.refs > 1:
        return replace(slot, refs=slot.refs - 1), None
    return Slot(holder=slot.holder if slot.lost else None), slot.grant


def renewed(
    slot: Slot, observation: Observation | None, ttl: Seconds, sent: float, boot: float
) -> tuple[Slot, Renewal]:
    """After a renewal that left at ``sent`` and came back at ``boot``, both boot seconds."""
    grant = slot.grant
    match observation:
        case Held(new):
            kept = replace(slot, grant=new, until=sent + min(new.ttl, ttl), lost=False, holder=None)
            return kept, Regained() if slot.lost else Kept()
        case Seen(record) if grant is not None and not grant.owns(record):
            gone = replace(slot, grant=None, lost=True, holder=record.holder.name)
            return gone, Kept() if slot.lost and slot.holder == gone.holder else Lost(gone.holder)
        case Vacant():
            return replace(slot, grant=None, lost=True), Kept() if slot.lost else Lost(None)
        case Seen() | Unreadable() | None:
            if slot.lost or boot < slot.until:
                return slot, Kept()
            # Somebody may have it by now, or not: it is tried for on, and the grant may still turn out to be good.
            return replace(slot, lost=True), Lost(None)
        case _:
            assert_never(observation)


# -- cancel records (stream ``slots/<job>``) --------------------------------------------------------------------------


def cancel_record(fence: int, by: str, at: float) -> Mapping[str, Json]:
    """Asks the holder of ``fence`` to end its runs. ``by``: the node that wants to run; ``at``: wall seconds."""
    return {"kind": "cancel", "fence": fence, "by": by, "at": at}


def asked_to_end(record: Mapping[str, Json] | None, fence: int) -> str | None:
    """Who wants the runs under ``fence`` ended, going by the newest record; None when nobody does."""
    if record is None or record.get("kind") != "cancel" or record.get("fence") != fence:
        return None
    return str(record.get("by", "another node"))
