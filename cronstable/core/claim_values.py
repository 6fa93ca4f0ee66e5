"""The values of occurrence claims: what a record holds, what a log amounts to, what goes in and out of the machine.

T is an occurrence's scheduled time. A *term* is one win of the lease by one process, a *record* one append (claims.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.store import Appended, Span
from cronstable.core.values import dataclass

CHUNK: Final = 56
"""Claims in one append, at most: what a crash between claim and spawn can lose (claims.md 6).

1,000 jobs of one instant are 18 appends, one more that says what was started last, and now and then a trim: 20 writes
at most (decision 0044).
"""
SKIPS: Final = 150
"""Skips and started ids in one append, at most: they cost room in the record, and nothing when they are lost."""


# -- what a record holds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """Since when the jobs of the set are known to the log (claims.md 13).

    ``digest``: of the set of (name, schedule, zone, enabled); empty: no set was known yet. ``since``: wall seconds from
    which T count for every job; ``changed``: jobs with a later one of their own.
    """

    digest: str = ""
    since: int = 0
    changed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, job: str) -> int:
        """T of ``job`` count only if later than this."""
        return max(self.since, self.changed.get(job, self.since))


@dataclass(frozen=True, slots=True)
class Start:
    """One claim: attempt ``attempt`` at the occurrence of ``job`` at ``at`` is to be started by the claimant.

    ``late``: it was not claimed when it fell due; a job is told so (CRONSTABLE_CATCHUP), the log does not keep it.
    """

    job: str
    at: EpochSeconds
    attempt: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True)
class Skip:
    """One decision not to start, with the public name of its reason."""

    job: str
    at: EpochSeconds
    reason: str


@dataclass(frozen=True, slots=True)
class Head:
    """What every record says about the whole log, so that no reader needs the ones before ``low``.

    ``nonce``: fresh and random, of this record alone. ``term``: the nonce of the term's open record. ``fence``: the
    term's counter. ``at``: the writer's wall clock. ``floor``: every T up to it counts as claimed.
    """

    nonce: str
    term: str
    fence: int
    node: str
    token: str
    at: int
    floor: EpochSeconds
    low: int
    known: Known

    @property
    def opens(self) -> bool:
        """Whether this record opens its term."""
        return self.nonce == self.term


@dataclass(frozen=True, slots=True)
class Record:
    """One append. ``begun``: run ids whose processes were spawned since the record before.

    ``returned``: run ids that their claimant gave up without a start; whoever leads next starts them, as the same
    attempt (claims.md 7).
    """

    head: Head
    starts: tuple[Start, ...] = ()
    skips: tuple[Skip, ...] = ()
    begun: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    def run_id(self, index: int) -> str:
        """The run id of the claim at ``index`` of ``starts``: nobody without this record's nonce can have made it."""
        return hashlib.sha256(f"{self.head.nonce}:{index}".encode()).hexdigest()[:16]


# -- what a log amounts to --------------------------------------------------------------------------------------------


class MarkState(StrEnum):
    """How far a listed occurrence came."""

    CLAIMED = "claimed"
    STARTED = "started"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Mark:
    """The last word on one listed occurrence.

    ``number``: of the record that claimed or skipped it; ``at``: when that was written, wall seconds.
    """

    state: MarkState
    number: int
    at: int
    attempt: int = 0
    run_id: str = ""
    token: str = ""
    reason: str = ""


Listed: TypeAlias = Mapping[EpochSeconds, Mapping[str, Mark]]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything the log says, as far as record ``last``. ``marks``: T to job to the last word on it.

    ``low``: where the last record that could be read tells its readers to begin.

    ``firsts``: T to the number of the first record with a mark on it. ``unstarted``: run id to (job, T) of what is
    claimed and not known to be started; ``returned``: which of them their claimant gave up.
    """

    last: int = 0
    floor: EpochSeconds = 0
    fence: int = 0
    term: str = ""
    known: Known = Known()
    marks: Listed = field(default_factory=lambda: MappingProxyType({}))
    firsts: Mapping[EpochSeconds, int] = field(default_factory=lambda: MappingProxyType({}))
    unstarted: Mapping[str, tuple[str, EpochSeconds]] = field(default_factory=lambda: MappingProxyType({}))
    returned: frozenset[str] = frozenset()
    low: int = 0

    def mark(self, job: str, at: EpochSeconds) -> Mark | None:
        """The last word on a listed occurrence."""
        return self.marks.get(at, _NO_JOBS).get(job)

    def claimed(self, job: str, at: EpochSeconds) -> bool:
        """Whether somebody decided about the occurrence, or is taken to have (claims.md 8)."""
        return at <= self.floor or job in self.marks.get(at, _NO_JOBS)

    def attempt(self, job: str, at: EpochSeconds) -> int:
        """The highest attempt known to have been claimed, -1 when there is none."""
        mark = self.mark(job, at)
        return -1 if mark is None else mark.attempt


_NO_JOBS: Final[Mapping[str, Mark]] = MappingProxyType({})


# -- the machine: state -----------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """Where a term stands. Only OPEN starts anything (claims.md 2)."""

    LOOK = "looking for the log"
    READ = "reading the log"
    OPENING = "writing the open record"
    OPEN = "open"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that was won: to be spawned by this process, under this run id and fence, and by nobody else.

    ``fence``: of the term that starts it, which is another one than it was won in when that ended before the spawn.
    ``handed``: the launcher has it, and it waits there for a run before it; no further chunk is held up for it.
    """

    run_id: str
    start: Start
    fence: int
    handed: bool = False


@dataclass(frozen=True, slots=True)
class Flight:
    """The append under way: the same number and bytes until it is settled (claims.md 3).

    ``doubted_at``: boot instant at which an answer to it last failed to come, None before: it may stand there.
    """

    number: int
    record: Record
    data: bytes
    doubted_at: float | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One win of the lease. ``returned``: run ids that the holder before gave back when it let go.

    ``first``, ``last``: the lowest and the highest number that is known to exist, from a listing or an answer; a
    listing may lag behind. ``peek``: the record that is looked at for where to begin. ``cursor``: the record to read
    next, then the number to open with. ``raised``: the log was absent or damaged, so the floor has to be raised.
    ``doubt``: a record that must be there and was not found, and the boot instant of the first such read; ``holed``:
    one was surely missing. ``unread``: how many in a row were missing or damaged.
    """

    phase: Phase = Phase.LOOK
    returned: frozenset[str] = frozenset()
    nonce: str = ""
    fence: int = 0
    opened_at: float = 0.0
    first: int = 0
    last: int = 0
    peek: int | None = None
    cursor: int = 1
    raised: bool = False
    doubt: tuple[int, float] | None = None
    holed: bool = False
    unread: int = 0


@dataclass(frozen=True, slots=True)
class JobSet:
    """The claimable jobs of the configuration. ``definitions``: name to a digest of (schedule, zone, enabled).

    ``since``: when this process first loaded each of them so, wall seconds.
    """

    digest: str = ""
    definitions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    since: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class ClaimState:
    """Everything one process knows of the claim log. Only ``claim_log.step`` makes the next one.

    ``pending``: claims won and not spawned, kept over terms (claims.md 7). ``dropped``: run id to reason of claims that
    this process will not spawn, until that is in the log. ``returning``: claims that a stopping process gives up.
    ``spawning``: their processes are being made. ``begun``: spawned, not yet in the log; ``begun_at``: the
    boot instant of the oldest. ``store_at``: the store's clock when it last answered.
    ``sets``: the job sets this process loaded, newest first. ``full``: the last append found no room.
    ``fence``: the highest one known, in whichever log it was; the next term opens with a higher one (claims.md 11).
    """

    node: str
    token: str
    window: Seconds
    ledger: Ledger = Ledger()
    term: Term | None = None
    flight: Flight | None = None
    pending: tuple[Claim, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    returning: tuple[str, ...] = ()
    spawning: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    begun_at: float | None = None
    store_at: float | None = None
    sets: tuple[JobSet, ...] = ()
    full: bool = False
    fence: int = 0


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """A job set was read: name to a digest of (schedule, zone, enabled), claimable jobs only."""

    definitions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Began:
    """The lease was won, with these run ids given back by the holder before.

    ``fence``: the lease's own; 0: it is the term of before, which is opened again.
    """

    returned: tuple[str, ...] = ()
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease is not ours any more."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What the sweep wants decided, most urgent first.

    ``waiting``: the oldest T that has to wait for another sweep. ``rerun``: jobs of which a claim that was never
    started may be tried again as a further attempt (``onUnfinishedClaim: rerun``). ``begun``: run ids that other
    processes say they started, and could not say in the log; ``settled``: all that live had the time to say so, and
    what nobody started is lost. ``lost``: (job, T) that left the window undecided, because nobody led for so long:
    nothing is done about them here.
    """

    starts: tuple[Start, ...] = ()
    skips: tuple[Skip, ...] = ()
    waiting: EpochSeconds | None = None
    rerun: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    settled: bool = True
    lost: tuple[tuple[str, EpochSeconds], ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """The driver is idle. ``nonce``: fresh and unguessable.

    ``flush``: the process stops; write the ids of what was started and of what will not be, and claim nothing more.
    From then on nothing is spawned either, whatever becomes of that append.
    """

    nonce: str
    wants: Wants = Wants()
    flush: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """Where the log begins and ends, according to the store."""

    span: Span


@dataclass(frozen=True, slots=True)
class Found:
    """A record was read, None: there is none of that number."""

    number: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
    """How the append under way went."""

    appended: Appended


@dataclass(frozen=True, slots=True)
class Spawned:
    """The process of this run lives. ``lives`` False: it is being made, and nobody else may start the run any more.

    Only what lives is said in the log: a node that is killed in between has started nothing.
    """

    run_id: str
    lives: bool = True


@dataclass(frozen=True, slots=True)
class Handed:
    """The launcher took this run, and it waits there for a run before it; ``waits`` False: it is not there any more."""

    run_id: str
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Dropped:
    """This run will not be spawned, for a reason that holds for good; the next append says so."""

    run_id: str
    reason: str


Event: TypeAlias = Loaded | Began | Ended | Ready | Looked | Found | Answer | Spawned | Handed | Dropped


# -- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the store where the log begins and ends."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read one record."""

    number: int


@dataclass(frozen=True, slots=True)
class Append:
    """Create this record."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start these claims, in this order, after one more look at the deadline."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """These were not claimed, and may be asked for again."""

    starts: tuple[Start, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Logged:
    """These skips are in the log now."""

    skips: tuple[Skip, ...]


@dataclass(frozen=True, slots=True)
class Alarm:
    """An operator should know. ``kind`` is constant per sort of alarm, for rate limiting."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class StandDown:
    """Let go of the lease: this node's clock makes it unfit to lead."""

    text: str


Request: TypeAlias = Look | Read | Append
Command: TypeAlias = Request | Spawn | Refused | Logged | Alarm | StandDown
