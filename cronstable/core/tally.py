"""How often things happened on this node since its daemon started, as values for GET /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

from cronstable.core.clock import Seconds
from cronstable.core.values import dataclass

DURATION_BOUNDS: tuple[Seconds, ...] = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of the buckets of run durations when nobody sets others (reference 7.1)."""
DELAY_BOUNDS: tuple[Seconds, ...] = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0)
"""The same for delays of the daemon's own: of decisions, and of writes to a claim log."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts``: observations per bucket, one more than ``bounds``: the last is for what is above all of them."""

    bounds: tuple[Seconds, ...]
    counts: tuple[int, ...]
    total: Seconds = 0.0

    @staticmethod
    def empty(bounds: Sequence[Seconds]) -> Histogram:
        """Nothing observed yet."""
        return Histogram(tuple(bounds), (0,) * (len(bounds) + 1))


class Observed:
    """A histogram in the making: plain numbers, changed in place."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[Seconds, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: Seconds) -> None:
        """One observation. A bucket holds what is at most its bound."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def join(self, other: Histogram) -> None:
        """What was observed before, if it was counted in the same buckets."""
        if other.bounds == self.bounds:
            self.counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
            self.total += other.total

    def value(self) -> Histogram:
        """What was observed so far."""
        return Histogram(self.bounds, tuple(self.counts), self.total)


@dataclass(frozen=True, slots=True)
class JobTally:
    """One job. Times in wall seconds, None when it did not happen. ``breaches``: by check of ``sla``.

    ``retries``: further attempts that started. ``start_failures``: commands that could not be started.
    ``duration``: of runs that ended by themselves. ``cpu_user``, ``cpu_system``, ``peak_rss``: of sampled runs.
    """

    success: int = 0
    failure: int = 0
    cancelled: int = 0
    skipped: int = 0
    unknown: int = 0
    retries: int = 0
    permanent_failures: int = 0
    start_failures: int = 0
    duration: Histogram | None = None
    last_success: float | None = None
    last_failure: float | None = None
    breaches: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    cpu_user: Seconds = 0.0
    cpu_system: Seconds = 0.0
    peak_rss: int = 0


@dataclass(frozen=True, slots=True)
class NotifierTally:
    """Messages of one notifier: delivered, given up after tries, and dropped because too many waited."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """One node. ``jobs``: those of which there is something to tell.

    ``decisions``: by verdict, reason, and whether it was final. ``decision_delay``: from the scheduled time to the
    decision to run. ``claim_delay``: of writes to the claim log, ``claims``: how they ended, by name of the answer.
    ``catch_ups``: late starts after a handover or an outage. ``loop_lag``: how late the event loop was at the last
    look and at worst in the last minute. ``bounds``: of run durations.
    """

    bounds: tuple[Seconds, ...] = DURATION_BOUNDS
    jobs: Mapping[str, JobTally] = field(default_factory=lambda: MappingProxyType({}))
    decisions: Mapping[tuple[str, str, bool], int] = field(default_factory=lambda: MappingProxyType({}))
    decision_delay: Histogram = field(default_factory=lambda: Histogram.empty(DELAY_BOUNDS))
    claim_delay: Histogram = field(default_factory=lambda: Histogram.empty(DELAY_BOUNDS))
    claims: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    catch_ups: int = 0
    loop_lag: tuple[Seconds, Seconds] = (0.0, 0.0)
    leader_transitions: int = 0
    quorum_transitions: int = 0
    notifiers: Mapping[str, NotifierTally] = field(default_factory=lambda: MappingProxyType({}))
