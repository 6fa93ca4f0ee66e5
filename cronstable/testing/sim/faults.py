"""Faults of a simulation: what strikes whom, when and for how long. A plan is drawn before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.testing.sim.dice import Dice


class Kind(StrEnum):
    """What ``--faults`` names."""

    KILL = "kill"
    PAUSE = "pause"
    PARTITION = "partition"
    CLOCK = "clock"
    STORE = "store"


ALL_KINDS: Final = tuple(Kind)


class How(StrEnum):
    """What exactly happens."""

    KILLED = "killed"
    STOPPED = "told to stop"
    PAUSED = "paused"
    CUT_SILENT = "cut off, silently"
    CUT_REFUSED = "cut off, with errors"
    CUT_ANSWERS = "hears no answers"
    STEPPED = "wall clock stepped"
    DRIFTS = "clocks drift"
    FROZEN = "machine frozen, clocks and all"
    REFUSES = "store refuses"
    HANGS = "store hangs"
    SLOW = "store is slow"
    LOSES_ANSWERS = "store loses answers"
    LATE = "requests arrive late"
    REPEATED = "requests arrive twice"
    DELETED = "lease deleted by hand"
    EXPIRED_EARLY = "lease expires early"
    KEPT = "lease kept too long"
    LAGS = "fresh records are not seen"
    FULL = "the claim log has no room"


VARIANTS: Final[dict[Kind, tuple[How, ...]]] = {
    Kind.KILL: (How.KILLED, How.KILLED, How.STOPPED),
    Kind.PAUSE: (How.PAUSED,),
    Kind.PARTITION: (How.CUT_SILENT, How.CUT_REFUSED, How.CUT_ANSWERS),
    Kind.CLOCK: (How.STEPPED, How.DRIFTS, How.FROZEN),
    Kind.STORE: (
        How.REFUSES,
        How.HANGS,
        How.SLOW,
        How.LOSES_ANSWERS,
        How.LATE,
        How.REPEATED,
        How.DELETED,
        How.EXPIRED_EARLY,
        How.KEPT,
        How.LAGS,
        How.FULL,
    ),
}


class Moment(StrEnum):
    """An awkward instant that a fault waits for; it then strikes the node that is at it."""

    RENEWING = "as a renewal leaves"
    OPENING = "as the open record leaves"
    CLAIMING = "as a claim leaves"
    LANDED = "as an append has landed and was not answered"
    CLAIMED = "between claim and spawn"
    SPAWNING = "right before a spawn"
    STARTED = "right after a spawn"
    RELEASING = "as the lease is released"


MOMENTS: Final = tuple(Moment)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``at``: world seconds; with a ``moment``, the first such one after ``at``.

    ``node``: index of the node, where it strikes one. ``seconds``: how long it lasts, or how long the node stays down.
    ``value``: seconds of a step, the rate of a drift.
    """

    at: Seconds
    how: How
    node: int
    seconds: Seconds
    moment: Moment | None = None
    value: float = 0.0

    def __str__(self) -> str:
        where = "" if self.how in VARIANTS[Kind.STORE] else f" node {self.node + 1}"
        when = f" {self.moment}" if self.moment is not None else ""
        value = f" ({self.value:+g})" if self.value else ""
        who = " whoever is there" if self.moment is not None and where else where
        return f"t={self.at:.3f}{who}: {self.how}{value} for {self.seconds:.3f} s{when}"


@dataclass(frozen=True, slots=True)
class Weather:
    """How a plan is drawn. ``every``: seconds from one fault to the next, on average; from one bad spell to the next
    when ``spell`` is more than 1: up to so many faults close together, as one trouble brings another.

    ``spans``: (from, to) in world seconds with faults; between them there is calm. ``due``: the next instant after one
    that is worth aiming at.
    """

    kinds: Sequence[Kind]
    every: Seconds
    spans: Sequence[tuple[Seconds, Seconds]]
    nodes: int
    ttl: Seconds
    due: Callable[[Seconds], Seconds | None] = lambda after: None
    spell: int = 1


AIMED: Final = 0.5
"""So many faults wait for a moment or strike about a scheduled time: blind ones find little (reliability 4)."""
DRIFT: Final = 0.02
"""A clock that is further off than this, one fast and one slow, breaks what a lease of 15 s less 1 s can promise."""


def draw(dice: Dice, weather: Weather) -> tuple[Fault, ...]:
    """A plan. Everything in it is over when its span is."""
    faults: list[Fault] = []
    if not weather.kinds:
        return ()
    for start, end in weather.spans:
        at = start + weather.every * dice.between(0.2, 1.8)
        while at < end:
            for _ in range(1 + dice.below(weather.spell) if weather.spell > 1 else 1):
                faults.append(_one(dice, weather, at, end))
                at = min(at + weather.ttl * dice.between(0.1, 2.0) if weather.spell > 1 else at, end - 1.0)
            at += weather.every * dice.between(0.2, 1.8)
    return tuple(faults)


def _one(dice: Dice, weather: Weather, at: Seconds, end: Seconds) -> Fault:
    how = dice.one_of(VARIANTS[dice.one_of(weather.kinds)])
    moment = dice.one_of(MOMENTS) if dice.chance(AIMED) and how not in (How.STEPPED, How.DRIFTS) else None
    if moment is None and dice.chance(AIMED):
        near = weather.due(at)
        if near is not None and near < end:
            at = max(0.0, near + dice.between(-0.02, 0.02))
    value = 0.0
    if how is How.STEPPED:
        value = dice.one_of((-3600.0, -30.0, -5.0, -1.0, 1.0, 5.0, 30.0, 3600.0))
    elif how is How.DRIFTS:
        value = dice.one_of((1 - DRIFT, 1 + DRIFT))
    return Fault(at, how, dice.below(weather.nodes), min(_length(dice, weather, how), end - at), moment, value)


def _length(dice: Dice, weather: Weather, how: How) -> Seconds:
    ttl = weather.ttl
    around = (0.1, 1.0, ttl - 1 - 0.05, ttl - 1 + 0.05, ttl, ttl + 1, 1.5 * ttl, 3 * ttl)
    match how:
        case How.KILLED | How.STOPPED:
            return dice.one_of((0.5, 2.0, ttl, 2 * ttl))
        case How.DRIFTS | How.STEPPED:
            return dice.between(ttl, 8 * ttl)
        case How.REFUSES | How.HANGS:
            return dice.one_of((0.3, 2.0, ttl / 2, ttl, 1.5 * ttl))
        case _:
            return dice.one_of(around)
