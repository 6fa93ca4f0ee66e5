"""Pauses as intervals: what was paused when, also after it is over (claims.md 15)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cronstable.core.clock import EpochSeconds
from cronstable.core.job import Json
from cronstable.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A pause, from ``since`` to ``until`` wall seconds; it may still last. The texts are for people."""

    since: float
    until: float
    note: str = ""
    by: str = ""
    channel: str = ""

    def covers(self, at: float) -> bool:
        """Whether it was in force at this instant."""
        return self.since <= at < self.until


def changed(intervals: Sequence[Interval], at: float, pause: Interval | None) -> tuple[Interval, ...]:
    """At ``at`` what was in force ends, and ``pause`` begins, if there is one."""
    kept = [replace(one, until=min(one.until, max(one.since, at))) for one in intervals]
    if pause is not None:
        kept.append(pause)
    return tuple(one for one in kept if one.since < one.until)


def forget(intervals: Sequence[Interval], before: float) -> tuple[Interval, ...]:
    """Without those that were over ``before`` then."""
    return tuple(one for one in intervals if one.until > before)


def paused_since(intervals: Iterable[Interval], at: EpochSeconds) -> EpochSeconds | None:
    """When the pause began that covers the occurrence ``at``; None when none does."""
    return min((math.ceil(one.since) for one in intervals if one.covers(at)), default=None)


def record(at: float, pause: Interval | None) -> dict[str, Json]:
    """A change as ``paused/<job>`` keeps it."""
    if pause is None:
        return {"kind": "resume", "at": at}
    return {
        "kind": "pause",
        "at": at,
        "since": pause.since,
        "until": pause.until,
        "note": pause.note,
        "by": pause.by,
        "channel": pause.channel,
    }


def replay(records: Iterable[Mapping[str, Json]]) -> tuple[float, tuple[Interval, ...]]:
    """When the last change was made, and the intervals that all of them come to."""
    intervals: tuple[Interval, ...] = ()
    last = float("-inf")
    for one in records:
        at = one.get("at")
        if not isinstance(at, int | float):
            continue
        last = max(last, at)
        intervals = changed(intervals, at, _interval(one) if one.get("kind") == "pause" else None)
    return last, intervals


def _interval(one: Mapping[str, Json]) -> Interval | None:
    since, until = one.get("since"), one.get("until")
    if not isinstance(since, int | float) or not isinstance(until, int | float):
        return None
    texts = [text if isinstance(text := one.get(key), str) else "" for key in ("note", "by", "channel")]
    return Interval(since, until, *texts)
