"""Missed runs: which occurrences of an outage are owed, and which of them are started after all (reference 4.4).

A job's watermark is the last occurrence that somebody decided about, whatever the decision was. What lies between it
and the start of the daemon was missed. Without a watermark nothing was: a job's first run is never a missed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.job import Job, Json
from cronstable.core.schedule import Schedule
from cronstable.core.values import dataclass

MOST: Final = 100
"""Runs that ``run-all`` catches up after one start (reference 4.4)."""


class OnMissed(StrEnum):
    """The key ``onMissed``."""

    SKIP = "skip"
    RUN_ONCE = "run-once"
    RUN_ALL = "run-all"


@dataclass(frozen=True, slots=True)
class MissedPolicy:
    """What a job wants of its missed runs. ``deadline``: seconds after which a run is not worth starting any more."""

    mode: OnMissed = OnMissed.SKIP
    deadline: Seconds | None = None
    jitter: Seconds = 0.0


def missed_policy(raw: Mapping[str, Json]) -> MissedPolicy:
    """The policy in the keys of a job."""
    jitter = raw.get("catchupJitterSeconds", 0)
    return MissedPolicy(
        OnMissed(str(raw.get("onMissed", OnMissed.SKIP))),
        starting_deadline(raw),
        float(jitter) if isinstance(jitter, int | float) else 0.0,
    )


def starting_deadline(raw: Mapping[str, Json]) -> Seconds | None:
    """``startingDeadlineSeconds``; None for no deadline."""
    deadline = raw.get("startingDeadlineSeconds")
    return float(deadline) if isinstance(deadline, int | float) else None


def delay(job: str, jitter: Seconds) -> Seconds:
    """How long ``job`` waits before it catches up: the same after every start, and spread over jobs."""
    digest = hashlib.sha256(f"catchup:{job}".encode("utf-8", "surrogatepass")).digest()
    return jitter * int.from_bytes(digest[:6], "big") / 2**48


def definition(job: Job) -> str:
    """What makes ``job`` another one when it changes: occurrences of a schedule that was not in force are not owed."""
    zone = getattr(job.schedule.zone, "key", None) or str(job.schedule.zone)
    return f"{job.schedule.text}|{job.schedule.day_match}|{zone}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Occurrences later than ``after`` and not later than ``until``."""

    after: EpochSeconds
    until: EpochSeconds


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a job has come. ``through``: everything up to it is decided, but for what lies in ``gap``.

    ``gap``: what a catch-up still has to decide about: whoever finds it goes on with it.
    """

    definition: str
    through: EpochSeconds
    gap: Gap | None = None

    def record(self, at: float) -> dict[str, Json]:
        """As it is kept in ``catchup/<job>``. ``at``: wall seconds of now, for whoever collects what is old."""
        kind = "close" if self.gap is None else "open"
        found: dict[str, Json] = {"kind": kind, "at": at, "definition": self.definition, "through": self.through}
        if self.gap is not None:
            found |= {"after": self.gap.after, "until": self.gap.until}
        return found

    @classmethod
    def of(cls, record: Mapping[str, Json]) -> Checkpoint | None:
        """The checkpoint in a record; None when it is none."""
        known, through = record.get("definition"), record.get("through")
        if not isinstance(known, str) or not isinstance(through, int):
            return None
        after, until = record.get("after"), record.get("until")
        gap = Gap(after, until) if isinstance(after, int) and isinstance(until, int) else None
        return cls(known, through, gap)


def gap_of(checkpoint: Checkpoint | None, job: Job, start: EpochSeconds) -> Gap | None:
    """What was missed before ``start``, when the daemon began; None when nothing can have been."""
    if checkpoint is None or checkpoint.definition != definition(job):
        return None
    after = checkpoint.through if checkpoint.gap is None else min(checkpoint.gap.after, checkpoint.through)
    last = job.schedule.prev_before(start + 1)
    return Gap(after, start) if last is not None and last > after else None


@dataclass(frozen=True, slots=True)
class Owed:
    """``run``: what is to be started, oldest first. ``more``: there would be more, were there no bound to it."""

    run: tuple[EpochSeconds, ...] = ()
    more: bool = False


PausedSince = Callable[[EpochSeconds], EpochSeconds | None]
"""When the pause began in which an occurrence lies; None when it lies in none."""


def owed(schedule: Schedule, gap: Gap, policy: MissedPolicy, now: float, paused_since: PausedSince) -> Owed:
    """What of ``gap`` is started now: the newest one, or the newest hundred."""
    if policy.mode is OnMissed.SKIP:
        return Owed()
    limit = 1 if policy.mode is OnMissed.RUN_ONCE else MOST
    found: list[EpochSeconds] = []
    at = schedule.prev_before(gap.until + 1)
    while at is not None and at > gap.after and (policy.deadline is None or now - at <= policy.deadline):
        since = paused_since(at)
        if since is not None:
            # Backwards, and over a pause in one step: it may have lasted for years of a job that runs every second.
            at = schedule.prev_before(min(at, since))
            continue
        if len(found) == limit:
            return Owed(tuple(reversed(found)), more=policy.mode is OnMissed.RUN_ALL)
        found.append(at)
        at = schedule.prev_before(at)
    return Owed(tuple(reversed(found)))
