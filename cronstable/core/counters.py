"""Counts of jobs as records, so that they go on where they were when a daemon comes back (reference 4.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from cronstable.core.job import Json
from cronstable.core.tally import Histogram, JobTally

PARTS: Final = 16
"""Jobs are spread over so many streams: ten thousand in one record would be too long, and few change at a time."""

_COUNTS: Final = (
    "success",
    "failure",
    "cancelled",
    "skipped",
    "unknown",
    "retries",
    "permanent_failures",
    "start_failures",
    "peak_rss",
)
_TIMES: Final = ("last_success", "last_failure")


def part_of(job: str) -> int:
    """The number of the stream in which ``job`` is counted."""
    return hashlib.sha256(job.encode("utf-8", "surrogatepass")).digest()[0] % PARTS


def record(jobs: Mapping[str, JobTally]) -> dict[str, Json]:
    """The counts of these jobs; what is 0 is left out."""
    return {"jobs": {name: _job(tally) for name, tally in jobs.items()}}


def _job(tally: JobTally) -> Json:
    found: dict[str, Json] = {key: value for key in _COUNTS if (value := getattr(tally, key))}
    found |= {key: value for key in _TIMES if (value := getattr(tally, key)) is not None}
    if tally.duration is not None and any(tally.duration.counts):
        found["duration"] = [list(tally.duration.bounds), list(tally.duration.counts), tally.duration.total]
    if tally.breaches:
        found["breaches"] = dict(tally.breaches)
    if tally.cpu_user or tally.cpu_system:
        found["cpu"] = [tally.cpu_user, tally.cpu_system]
    return found


def jobs_of(data: Mapping[str, Json]) -> Mapping[str, JobTally]:
    """What a record counts; a job that cannot be read is left out."""
    jobs = data.get("jobs")
    if not isinstance(jobs, dict):
        return MappingProxyType({})
    found = ((name, _tally(job)) for name, job in jobs.items())
    return MappingProxyType({name: tally for name, tally in found if tally is not None})


def _tally(job: Json) -> JobTally | None:
    if not isinstance(job, dict):
        return None
    try:
        counts = {key: _whole(job.get(key, 0)) for key in _COUNTS}
        times = {key: None if job.get(key) is None else _number(job.get(key)) for key in _TIMES}
        cpu = _numbers(job.get("cpu", [0.0, 0.0]), 2)
        breaches = job.get("breaches", {})
        if not isinstance(breaches, dict):
            return None
        return JobTally(
            **counts,
            last_success=times["last_success"],
            last_failure=times["last_failure"],
            duration=_histogram(job.get("duration")),
            breaches=MappingProxyType({key: _whole(value) for key, value in breaches.items()}),
            cpu_user=cpu[0],
            cpu_system=cpu[1],
        )
    except (TypeError, ValueError):
        return None


def _histogram(value: Json) -> Histogram | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    bounds, counts, total = value
    if not isinstance(bounds, list) or not isinstance(counts, list) or len(counts) != len(bounds) + 1:
        return None
    return Histogram(tuple(map(_number, bounds)), tuple(map(_whole, counts)), _number(total))


def _whole(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("a count was expected")
    return value


def _number(value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("a number was expected")
    return float(value)


def _numbers(value: Json, length: int) -> Sequence[float]:
    if not isinstance(value, list) or len(value) != length:
        raise TypeError(f"{length} numbers were expected")
    return [_number(one) for one in value]


def by_part(jobs: Iterable[str]) -> Mapping[int, Sequence[str]]:
    """Names by the stream in which they are counted."""
    found: dict[int, list[str]] = {}
    for name in jobs:
        found.setdefault(part_of(name), []).append(name)
    return found
