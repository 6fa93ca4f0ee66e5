"""How an attempt is taken from its record, taken over, and given away: one owner through all of it (invariant S6).

Each move is a generator that yields what is to be asked of the store and is sent the answer, so that the daemon and a
model of three nodes run the very same steps. A move holds the lock ``retry-claim/<job>``; what it writes is sent
only while enough of the lock is left for the store to take or refuse it. So whoever reads under the lock sees
all that was decided under it before.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import Final, TypeAlias

from cronstable.core.clock import Seconds
from cronstable.core.retry_records import Handoff, Pending, RetryRecord, Settled, spent, still_mine
from cronstable.core.values import dataclass

LOCK_TTL: Final[Seconds] = 30.0
"""Of the lease ``retry-claim/<job>`` (reference 4.2)."""
ASK_WITHIN: Final[Seconds] = 10.0
"""One question to the store (reference 4)."""


class Locked(Enum):
    """Whether the lock could be had."""

    YES = "yes"
    BUSY = "busy"
    UNKNOWN = "unknown"


class Written(Enum):
    """What became of a record."""

    YES = "yes"
    NOT_SENT = "not sent"
    """Too little of the lock was left."""
    UNKNOWN = "unknown"
    """No answer came: it may be there, or come to be there."""


@dataclass(frozen=True, slots=True)
class Lock:
    """Take the lock. The answer: ``Locked``."""


@dataclass(frozen=True, slots=True)
class Look:
    """Read the last records. The answer: ``Tail``, or None when none came."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The last records of a job's stream, oldest first."""

    records: tuple[RetryRecord, ...] = ()

    @property
    def newest(self) -> RetryRecord | None:
        """The one that decides."""
        return self.records[-1] if self.records else None


@dataclass(frozen=True, slots=True)
class Write:
    """Append a record. ``locked``: only while there is enough of the lock. The answer: ``Written``."""

    record: RetryRecord
    locked: bool = True


@dataclass(frozen=True, slots=True)
class Unlock:
    """Let go of the lock. The answer is worth nothing."""


Ask: TypeAlias = Lock | Look | Write | Unlock
Answered: TypeAlias = Locked | Tail | Written | None


class Taken(Enum):
    """What an attempt that is due may do."""

    GO = "go"
    LATER = "later"
    GONE = "gone"
    """Another process has it, or had it: say nothing and write nothing."""


def take_alone(launched: Settled, *, fail_closed: bool) -> Generator[Ask, Answered, Taken]:
    """Take an attempt out of the store where no other node can want it: write down that it is launched, first."""
    written = yield Write(launched, locked=False)
    return Taken.GO if written is Written.YES or not fail_closed else Taken.LATER


def take(
    mine: Pending, launched: Settled, *, tries: Sequence[Settled], landed: bool, fail_closed: bool
) -> Generator[Ask, Answered, Taken]:
    """Take an attempt out of a store that other nodes look into.

    ``tries``: earlier ``launched`` without an answer. ``landed``: the store acknowledged ``mine``; if it never did, its
    absence says nothing. Without an answer of the store: ``fail_closed`` waits, otherwise the attempt goes ahead.
    """
    unsure = Taken.LATER if fail_closed else Taken.GO
    locked = yield Lock()
    if locked is Locked.BUSY or (locked is not Locked.YES and fail_closed):
        return Taken.LATER
    tail = yield Look()
    if not isinstance(tail, Tail):
        taken = unsure
    elif not _is_ours(tail, mine, tries, landed=landed):
        taken = Taken.GONE
    else:
        match (yield Write(launched, locked=locked is Locked.YES)):
            case Written.YES:
                taken = Taken.GO
            case Written.NOT_SENT:
                taken = Taken.LATER
            case _:
                taken = unsure
    if locked is Locked.YES:
        yield Unlock()
    return taken


def _is_ours(tail: Tail, mine: Pending, tries: Sequence[Settled], *, landed: bool) -> bool:
    if spent(tail.records, mine.place, tries):
        return False
    return still_mine(tail.records, mine, tries) or (not landed and mine not in tail.records)


def claim(seen: RetryRecord, record: Pending | Settled, obsolete: Settled) -> Generator[Ask, Answered, Written | None]:
    """Put ``record`` in the place of ``seen``, if that is still the newest; None when it is not, or cannot be had now.

    An attempt that was launched after all gets ``obsolete`` instead. Without an answer nothing is taken over: the next
    scan looks again.
    """
    if (yield Lock()) is not Locked.YES:
        return None
    written: Answered = None
    tail = yield Look()
    if isinstance(tail, Tail) and tail.newest == seen:
        if isinstance(record, Pending) and spent(tail.records, record.place):
            yield Write(obsolete)
        else:
            written = yield Write(record)
    yield Unlock()
    return written if isinstance(written, Written) else None


def let_go(
    mine: Pending, record: Handoff | Settled, tries: Sequence[Settled]
) -> Generator[Ask, Answered, Written | None]:
    """Hand an attempt over, or write down that it is not to be made, if it is still ours; None when it is not.

    Also None when the lock cannot be had: the attempt is as it was, and whoever owns the job finds it overdue.
    """
    if (yield Lock()) is not Locked.YES:
        return None
    written: Answered = None
    tail = yield Look()
    if isinstance(tail, Tail) and still_mine(tail.records, mine, tries):
        written = yield Write(record)
    yield Unlock()
    return written if isinstance(written, Written) else None
