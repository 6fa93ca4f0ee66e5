"""The values of the lease state machine: its timing, its state, what goes in and what comes out."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TypeAlias

from cronstable.core.clock import Seconds
from cronstable.core.store import Grant, Holder, LeaseRecord, Observation, Seen, Vacant
from cronstable.core.values import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The cadence and the deadlines of one lease, in seconds.

    ``renew_every``: from one renewal's send to the next. ``round_deadline``: what one round may take, retries included.
    ``op_timeout``: one request. ``poll``: between observations while waiting. ``watch``: how long the store's
    ``observe`` may wait for a change before it answers (0: it answers at once). ``margin``: how long before the granted
    ttl ends the holder stops. ``floor``: a granted ttl below this closes leadership.
    """

    ttl: Seconds
    renew_every: Seconds
    round_deadline: Seconds
    op_timeout: Seconds
    poll: Seconds = 0.3
    watch: Seconds = 0.0
    margin: Seconds = 1.0
    floor: Seconds = 3.0

    def __post_init__(self) -> None:
        for name in ("ttl", "renew_every", "round_deadline", "op_timeout", "poll"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive number of seconds, not {value}")
        if self.renew_every >= self.ttl - self.margin:
            raise ValueError("renew_every must be less than ttl - margin, or leadership lapses between renewals")

    @classmethod
    def for_ttl(cls, ttl: Seconds, connect_timeout: Seconds = 10.0) -> LeaseTiming:
        """The filesystem and etcd cadence of reference 3.5; ``ttl`` at least 3."""
        renew = max(1.0, ttl / 3)
        deadline = max(1.0, ttl - renew - 1)
        return cls(
            ttl=ttl,
            renew_every=renew,
            round_deadline=deadline,
            op_timeout=min(connect_timeout, max(0.5, deadline / 4)),
        )


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The driver is idle. ``nonce`` and ``token`` are fresh and unguessable, ``jitter`` is in [0, 1)."""

    nonce: str
    token: str
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The store answered the request in flight. ``observation`` is None for a release."""

    observation: Observation | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The request in flight gave no usable answer: it may have landed all the same."""

    detail: str


@dataclass(frozen=True, slots=True)
class Cut:
    """The observation in flight was ended by us because something else is due. It says nothing about the store."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Let go. A request in flight was abandoned."""


@dataclass(frozen=True, slots=True)
class Resign:
    """Let go of the term, and do not ask for the lease again for so many seconds."""

    seconds: Seconds


Event: TypeAlias = Ready | Answered | Failed | Cut | Tick | Stop | Resign


# -- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask the store for the lease; an answer after ``by`` is worthless."""

    me: Holder
    ttl: Seconds
    nonce: str
    over: Seen | None
    by: float


@dataclass(frozen=True, slots=True)
class Renew:
    """Extend ``grant``."""

    grant: Grant
    nonce: str
    by: float


@dataclass(frozen=True, slots=True)
class Observe:
    """Read the lease. ``cut``: end the request then without holding it against the store, something else is due."""

    by: float
    cut: float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Let go of ``grant``, best effort."""

    grant: Grant
    by: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again at ``until``."""

    until: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing is left to do after ``Stop``."""


class Loss(StrEnum):
    """Why leadership ended."""

    TAKEN = "another node holds the lease"
    VANISHED = "the lease is gone from the store"
    CLONED = "another process writes under our token (a cloned machine?)"
    DEADLINE = "the deadline passed without a renewal"
    SHORT_TTL = "the store grants too short a ttl"
    STOPPED = "stopping"
    RESIGNED = "this node is not fit to lead"


@dataclass(frozen=True, slots=True)
class Gained:
    """This process leads, until ``deadline``."""

    fence: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Lost:
    """This process no longer leads."""

    reason: Loss


@dataclass(frozen=True, slots=True)
class Quorum:
    """Contact with the store began or ended."""

    quorate: bool


class Level(StrEnum):
    """How loud a ``Note`` is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator should read. ``kind`` is constant per sort of note, for rate limiting."""

    kind: str
    level: Level
    text: str


Request: TypeAlias = Acquire | Renew | Observe | Release
Command: TypeAlias = Request | Wait | Finished | Gained | Lost | Quorum | Note


# -- state ------------------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """Where the life of a process's side of the lease stands."""

    RUNNING = "running"
    STOPPING = "stopping"
    LOOKED = "looked"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Standing:
    """A foreign record and since when (the end of the first read that showed it) it has stood unchanged."""

    record: LeaseRecord
    since: float


@dataclass(frozen=True, slots=True)
class InFlight:
    """The one request under way. ``sent`` was read before it left."""

    request: Request
    sent: float


@dataclass(frozen=True, slots=True)
class LeaseState:
    """Everything a process knows of its lease. Build it with ``initial``; only ``step`` makes the next one.

    ``grant``: the term that is ours as far as we know, renewable although perhaps not to be acted on.
    ``deadline``: until when that term may be acted on. ``quorum_until``: until when the last contact counts.
    ``holder``: the last one known, None when the store said there is none or was never heard.
    ``vacant``, ``vacant_since``: that nobody holds it, and from when on it may be taken. ``doubt``: when it was last
    unreadable, until it reads again. ``unsettled``: nonces of acquisitions whose fate is unknown. ``leading`` and
    ``quorate``: as last announced. ``resigning``: the term is to be released; ``abstain_until``: and none asked for.
    ``stop_by``: when the last request after a stop is to be over.
    """

    me: Holder
    timing: LeaseTiming
    expires_itself: bool = False
    phase: Phase = Phase.RUNNING
    grant: Grant | None = None
    deadline: float | None = None
    quorum_until: float | None = None
    holder: Holder | None = None
    expiry: float | None = None
    fence: int | None = None
    standing: Standing | None = None
    vacant_since: float | None = None
    vacant: Vacant | None = None
    doubt: float | None = None
    unsettled: tuple[str, ...] = ()
    in_flight: InFlight | None = None
    next_at: float = -math.inf
    retry_due: bool = False
    failures: int = 0
    rekey: bool = False
    short_ttl: bool = False
    loss: Loss | None = None
    leading: bool = False
    quorate: bool = False
    resigning: bool = False
    abstain_until: float = -math.inf
    stop_by: float = math.inf


def initial(me: Holder, timing: LeaseTiming, *, expires_itself: bool = False) -> LeaseState:
    """A process that has not asked yet. ``expires_itself``: the store removes a dead holder's record on its own."""
    return LeaseState(me=me, timing=timing, expires_itself=expires_itself)
