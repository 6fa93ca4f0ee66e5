"""``sla``: when a job counts as late, long, stale or suspiciously short, and when it is worth saying so (reference 2).

Each limit is a check of its own. A check that trips latches: it is told once, and again only after it recovered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.job import Json
from cronstable.core.values import dataclass


class Check(StrEnum):
    """The checks, under the names that reports, the API and metrics call them by."""

    LATE_START = "lateAfter"
    LONG_RUN = "maxRuntime"
    NO_SUCCESS = "maxTimeSinceSuccess"
    SHORT_RUN = "minRuntime"

    @property
    def key(self) -> str:
        """The limit in the configuration."""
        return f"{self.value}Seconds"


Limits = Mapping[Check, Seconds]


def limits_of(keys: Mapping[str, Json]) -> Limits:
    """The limits among the remaining keys of a job (``JobOptions.raw``)."""
    sla = keys.get("sla")
    if not isinstance(sla, dict):
        return {}
    given = ((check, sla.get(check.key)) for check in Check)
    return {check: float(value) for check, value in given if isinstance(value, int | float)}


@dataclass(frozen=True, slots=True)
class Facts:
    """A job at the wall instant ``now``.

    ``due``: the first scheduled time that no run has answered, None when there is none. ``oldest_start``: when the
    longest living run began. ``success_since``: the last success, or else when this node began to watch the job.
    ``last_duration``: how long the last successful run took. ``late_start``, ``long_run``: the worst of the runs that
    started, or ended, since the last look.
    """

    now: float
    due: EpochSeconds | None = None
    oldest_start: float | None = None
    success_since: float | None = None
    last_duration: Seconds | None = None
    late_start: Seconds | None = None
    long_run: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Breach:
    """A check that trips: what was seen against what is allowed, in seconds. ``past``: it is over already."""

    check: Check
    threshold: Seconds
    observed: Seconds
    past: bool = False

    @property
    def words(self) -> str:
        """For people."""
        seen, limit = f"{self.observed:.0f} s", f"{self.check.key}={self.threshold:g}"
        match self.check:
            case Check.LATE_START if self.past:
                return f"a run has started {seen} after its scheduled time ({limit})"
            case Check.LATE_START:
                return f"no run has started {seen} after the scheduled time ({limit})"
            case Check.LONG_RUN if self.past:
                return f"a run took {seen} ({limit})"
            case Check.LONG_RUN:
                return f"a run takes {seen} so far ({limit})"
            case Check.NO_SUCCESS:
                return f"no success for {seen} ({limit})"
            case Check.SHORT_RUN:
                return f"the last success took only {self.observed:g} s ({limit})"


def breaches(limits: Limits, facts: Facts) -> tuple[Breach, ...]:
    """The checks that trip now, in the order of ``Check``."""
    spans = {
        Check.LATE_START: None if facts.due is None else facts.now - facts.due,
        Check.LONG_RUN: None if facts.oldest_start is None else facts.now - facts.oldest_start,
        Check.NO_SUCCESS: None if facts.success_since is None else facts.now - facts.success_since,
    }
    ended = {Check.LATE_START: facts.late_start, Check.LONG_RUN: facts.long_run}
    found = []
    for check, span in spans.items():
        was, limit = ended.get(check), limits.get(check)
        if limit is not None and span is not None and span > limit:
            found.append(Breach(check, limit, span))
        elif limit is not None and was is not None and was > limit:
            found.append(Breach(check, limit, was, past=True))
    least, took = limits.get(Check.SHORT_RUN), facts.last_duration
    if least is not None and took is not None and took < least:
        found.append(Breach(Check.SHORT_RUN, least, took))
    return tuple(found)


def latch(
    latched: frozenset[Check], tripped: Sequence[Breach]
) -> tuple[frozenset[Check], tuple[Breach, ...], tuple[Check, ...]]:
    """What is latched from now on, what is new and has to be told, and what recovered."""
    now = frozenset(breach.check for breach in tripped)
    fresh = tuple(breach for breach in tripped if breach.check not in latched)
    return now, fresh, tuple(check for check in Check if check in latched - now)
