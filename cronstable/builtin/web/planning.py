"""Tools that look at schedules: what comes, how crowded it is, who is the same, where there is room. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final, TypeAlias

from cronstable.api import Job, Json, Schedule, describe
from cronstable.builtin.web.shapes import iso

DAY: Final = 86_400
MINUTES: Final = 1_440
LOOKS: Final = 50_000
"""Occurrences that are looked at for one picture of the next day; a schedule more and it says that it is not whole."""
SHOWN: Final = 10
"""Jobs that are named for one minute."""
_COLUMNS: Final = ("second", "minute", "hour", "dayOfMonth", "month", "dayOfWeek", "year")


@dataclass(frozen=True, slots=True)
class Pressure:
    """How many jobs start in each of the ``MINUTES`` after ``start`` (whole minutes), and which.

    ``whole``: False when the schedules were too many to look at all of them.
    """

    start: int
    counts: Sequence[int]
    jobs: Mapping[int, Sequence[str]]
    whole: bool


_Times: TypeAlias = tuple[str, str, str]
"""What makes two schedules the same: columns, zone, and how days match."""


def zone_name(schedule: Schedule) -> str:
    """The zone as a person writes it."""
    return str(getattr(schedule.zone, "key", None) or schedule.zone)


def preview(schedule: Schedule, after: int, count: int) -> dict[str, Json]:
    """What an expression means, what is remarkable about it, and its next times."""
    return {
        "expression": schedule.text,
        "resolved": schedule.resolved,
        "timezone": zone_name(schedule),
        "dayMatch": schedule.day_match,
        "words": describe(schedule),
        "findings": [{"message": text} for text in schedule.findings(after)],
        "never_fires": schedule.never_fires,
        "uses_seconds": schedule.uses_seconds,
        "next": [occurrence(schedule, t) for t in _next(schedule, after, count)],
    }


def occurrence(schedule: Schedule, t: int) -> dict[str, Json]:
    """One time in UTC and in the zone of its schedule, and what a clock change has to do with it."""
    return {"at": iso(t), "local": local(t, schedule.zone), "mark": schedule.mark_at(t).value}


def local(t: int, zone: tzinfo) -> str:
    """ISO 8601 in ``zone``, with the offset of then."""
    return datetime.fromtimestamp(t, zone).isoformat()


def pressure(jobs: Iterable[Job], now: int) -> Pressure:
    """How the next day fills up. A job counts once a minute, however often it starts in it."""
    start = now - now % 60
    names: dict[_Times, list[str]] = {}
    plans: dict[_Times, Schedule] = {}
    for job in jobs:
        schedule = job.schedule
        if job.options.enabled and not schedule.reboot:
            key = _times(schedule)
            names.setdefault(key, []).append(job.name)
            plans.setdefault(key, schedule)
    counts, who, looks = [0] * MINUTES, dict[int, list[str]](), 0
    for key, schedule in plans.items():
        if looks >= LOOKS:
            return Pressure(start, counts, who, whole=False)
        for minute in _minutes(schedule, start):
            looks += 1
            counts[minute] += len(names[key])
            named = who.setdefault(minute, [])
            named += names[key][: max(0, SHOWN - len(named))]
    return Pressure(start, counts, who, whole=True)


def pressure_document(found: Pressure, busiest: int) -> dict[str, Json]:
    """GET /schedule/pressure: a number for each minute, and the fullest ones with their jobs."""
    full = sorted((m for m in range(MINUTES) if found.counts[m]), key=lambda m: (-found.counts[m], m))[:busiest]
    return {
        "from": iso(found.start),
        "until": iso(found.start + DAY),
        "whole": found.whole,
        "minutes": [*found.counts],
        "busiest": [
            {"at": iso(found.start + 60 * m), "count": found.counts[m], "jobs": [*found.jobs[m]]} for m in full
        ],
    }


def suggestions(found: Pressure, every: str, zone: tzinfo, count: int) -> dict[str, Json]:
    """GET /schedule/suggest: the emptiest slots for a job that runs every ``hour`` or ``day``, in ``zone``."""
    offset = int((datetime.fromtimestamp(found.start, zone).utcoffset() or timedelta()).total_seconds()) // 60
    first = found.start // 60 + offset
    load: dict[int, int] = {}
    period = 60 if every == "hour" else MINUTES
    for m, number in enumerate(found.counts):
        slot = (first + m) % period
        load[slot] = load.get(slot, 0) + number

    def crowd(slot: int) -> tuple[int, int, int]:
        near = sum(load[(slot + d) % period] for d in (-2, -1, 1, 2))
        return load[slot], near, slot

    best: list[Json] = []
    for slot in sorted(load, key=crowd)[:count]:
        text = f"{slot} * * * *" if every == "hour" else f"{slot % 60} {slot // 60} * * *"
        best.append({"schedule": text, "load": load[slot]})
    name = str(getattr(zone, "key", None) or zone)
    return {"every": every, "timezone": name, "whole": found.whole, "suggestions": best}


def duplicates(jobs: Iterable[Job]) -> dict[str, Json]:
    """GET /schedule/duplicates: enabled jobs that run the same command, and those that also do it at the same times."""
    commands: dict[str | tuple[str, ...], list[Job]] = {}
    for job in jobs:
        if job.options.enabled:
            commands.setdefault(job.command, []).append(job)
    groups: list[Json] = []
    for same in commands.values():
        if len(same) > 1:
            times = {_times(job.schedule) for job in same}
            command = same[0].command if isinstance(same[0].command, str) else " ".join(same[0].command)
            groups.append({"command": command, "jobs": [job.name for job in same], "same_schedule": len(times) == 1})
    return {"groups": groups}


def why_not(job: Job, t: int) -> dict[str, Json]:
    """GET /schedule/why: whether the schedule of ``job`` has ``t``, column by column, and what is around it."""
    schedule = job.schedule
    before = schedule.prev_before(t)
    return {
        "job": job.name,
        "schedule": schedule.text,
        "words": describe(schedule),
        "timezone": zone_name(schedule),
        "at": iso(t),
        "local": local(t, schedule.zone),
        "fires": schedule.next_after(t - 1) == t,
        "mark": schedule.mark_at(t).value if schedule.next_after(t - 1) == t else "none",
        "columns": dict(_columns(schedule, t)),
        "previous": None if before is None else occurrence(schedule, before),
        "next": next((occurrence(schedule, n) for n in _next(schedule, t, 1)), None),
    }


def _times(schedule: Schedule) -> _Times:
    return schedule.resolved, zone_name(schedule), schedule.day_match


def _columns(schedule: Schedule, t: int) -> Iterator[tuple[str, Json]]:
    """Each column by itself: does the time have what it asks for? The two of days are one question."""
    columns = schedule.columns
    if not columns:
        return
    for i, name in enumerate(_COLUMNS):
        if name == "dayOfWeek":
            continue
        alone = ["*"] * 7
        alone[i] = columns[i]
        if name == "dayOfMonth":
            alone[5] = columns[5]
            name = "day"
        single = Schedule.parse(" ".join(alone), job_name="", zone=schedule.zone, day_match=schedule.day_match)
        yield name, single.next_after(t - 1) == t


def _minutes(schedule: Schedule, start: int) -> Iterator[int]:
    """The minutes of the day after ``start`` in which it is due."""
    t = schedule.next_after(start - 1)
    while t is not None and t < start + DAY:
        minute = (t - start) // 60
        yield minute
        t = schedule.next_after(start + 60 * minute + 59)


def _next(schedule: Schedule, after: int, count: int) -> Iterator[int]:
    t = None if schedule.reboot else schedule.next_after(after)
    while t is not None and count > 0:
        yield t
        count -= 1
        t = schedule.next_after(t)
