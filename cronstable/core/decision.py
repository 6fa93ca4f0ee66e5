"""The decision record: why a job ran, was skipped or waits, for one scheduled time on one node (DESIGN 4, 'Why')."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.values import dataclass

Evidence: TypeAlias = Mapping[str, "str | int | float | bool | None"]


class Verdict(StrEnum):
    """What was decided for one occurrence on one node."""

    RUN = "run"
    SKIP = "skip"
    DEFER = "defer"


class Reason(StrEnum):
    """Why. The values are public: they appear in the API, in metrics and in ``cronstable why``."""

    NO_ELECTION = "no-election"
    EVERY_NODE = "every-node"
    LEADER = "leader"
    OWNER = "owner"
    AVAILABLE = "available"
    MANAGER_ABSENT = "manager-absent"
    MANUAL = "manual"
    NOT_LEADER = "not-leader"
    NOT_OWNER = "not-owner"
    NO_QUORUM = "no-quorum"
    CONFLICT = "conflict"
    CONVERGING = "converging"
    DEADLINE_PASSED = "deadline-passed"
    STALE_VIEW = "stale-view"
    DUE_BEFORE_TERM = "due-before-term"
    GATE_ERROR = "gate-error"
    CONCURRENCY_FORBID = "concurrency-forbid"
    QUEUED = "queued"
    QUEUE_FULL = "queue-full"
    PAUSED = "paused"
    DISABLED = "disabled"
    STOPPING = "stopping"
    LATE_RESYNC = "late-resync"
    REBOOT_DEFERRED = "reboot-deferred"
    REBOOT_ALREADY_RAN = "reboot-already-ran"
    START_FAILED = "start-failed"
    CATCH_UP = "catch-up"
    CATCH_UP_OFF = "catch-up-off"
    CLAIM_TAKEN = "claim-taken"
    CLAIMED_NOT_STARTED = "claimed-not-started"
    COALESCED = "coalesced"
    FENCED = "fenced"
    LOG_FULL = "log-full"
    OUTSIDE_WINDOW = "outside-window"
    RETRY_SETTLED = "retry-settled"
    SLOT_HELD = "slot-held"
    STARTED_UNCLAIMED = "started-unclaimed"
    STARTING_DEADLINE = "starting-deadline"
    STORE_UNAVAILABLE = "store-unavailable"
    LAST_NOT_SUCCEEDED = "last-not-succeeded"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reason and the facts that led to it."""

    verdict: Verdict
    reason: Reason
    evidence: Evidence = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The decision of ``node`` about ``job`` at scheduled time ``scheduled_at`` (None: a manual or @reboot run).

    ``provisional``: may be replaced by a later record for the same occurrence (a DEFER always is).
    ``run_id``: the run that was started, for verdict RUN.
    """

    node: str
    job: str
    scheduled_at: EpochSeconds | None
    decided_at: float
    decision: Decision
    run_id: str | None = None
    provisional: bool = False


def settled(record: DecisionRecord, wall: float, window: Seconds) -> DecisionRecord:
    """``record`` as it is to be told at ``wall``: a skip is final once its T is older than the catch-up ``window``.

    Until then whoever leads may start the occurrence late, and the word of that may reach this node (invariant O1).
    """
    waits = record.decision.verdict is not Verdict.SKIP or record.scheduled_at is None
    if not record.provisional or waits or wall - (record.scheduled_at or 0) <= window:
        return record
    return replace(record, provisional=False)


_Key: TypeAlias = tuple[str, EpochSeconds | None, int]
"""Job, scheduled time, and a serial number where there is none."""


class DecisionRing:
    """A bounded memory of decision records, oldest dropped first.

    One terminal record per (job, T): adding a second replaces a provisional one and is ignored otherwise
    (invariant O1). Records without a T are all kept.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        if capacity < 1:
            raise ValueError("a decision ring needs a capacity of at least 1")
        self._capacity = capacity
        self._records: OrderedDict[_Key, DecisionRecord] = OrderedDict()
        self._of_job: dict[str, list[_Key]] = {}
        self._serial = 0

    def add(self, record: DecisionRecord) -> bool:
        """Remember ``record``; False when a terminal record for the occurrence is already there."""
        if record.scheduled_at is None:
            self._serial += 1
            key: _Key = (record.job, None, self._serial)
        else:
            key = (record.job, record.scheduled_at, 0)
            old = self._records.get(key)
            if old is not None and not old.provisional:
                return False
        if key not in self._records:
            self._of_job.setdefault(record.job, []).append(key)
        self._records[key] = record
        if len(self._records) > self._capacity:
            self._drop_oldest()
        return True

    def get(self, job: str, scheduled_at: EpochSeconds) -> DecisionRecord | None:
        """The record of one occurrence, if it is still remembered."""
        return self._records.get((job, scheduled_at, 0))

    def for_job(self, job: str) -> Iterator[DecisionRecord]:
        """All remembered records of ``job``, newest first; costs no more than what is taken of them."""
        return (self._records[key] for key in reversed(self._of_job.get(job, ())))

    def _drop_oldest(self) -> None:
        """The oldest of all is also the first of its job: both orders are those of the first addition.

        Lists, although their head is taken off: thousands of jobs have one each, mostly short, and moving even
        10,000 pointers takes microseconds, while a deque or another ordered dict would take a multiple of the memory.
        """
        (job, _, _), _ = self._records.popitem(last=False)
        keys = self._of_job[job]
        del keys[0]
        if not keys:
            del self._of_job[job]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[DecisionRecord]:
        return iter(reversed(self._records.values()))
