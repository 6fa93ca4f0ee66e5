"""Records of a state store: their envelope, their kinds, and what is kept of each stream (reference 4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

from cronstable.core.job import Json
from cronstable.core.runs import Outcome, Resources, RunKey, RunRecord, Trigger

SCHEMA_VERSION: Final = "v1"
LONGEST: Final = 1 << 20
"""Bytes of one record at most, as the contract of the stores has it."""


LONGEST_NAME: Final = 512
"""Characters of the name of a stream at most, by the same contract."""


class WriteKind(StrEnum):
    """What a write is about; dropped writes are counted under it (reference 8)."""

    RUN_RECORD = "run-record"
    CHECKPOINT = "checkpoint"
    RETRY = "retry"
    REBOOT_MARKER = "reboot-marker"
    INFLIGHT = "inflight"
    COUNTERS = "counters"
    MANIFEST = "manifest"
    PAUSE = "pause"
    SLOT = "slot"
    LOG = "log"


KEEP: Final[Mapping[WriteKind, int]] = {
    WriteKind.CHECKPOINT: 8,
    WriteKind.RETRY: 8,
    WriteKind.REBOOT_MARKER: 32,
    WriteKind.INFLIGHT: 8,
    WriteKind.COUNTERS: 4,
    WriteKind.MANIFEST: 32,
    WriteKind.PAUSE: 64,
    WriteKind.SLOT: 8,
}
"""Records kept in a stream of that kind; ``maxRunsPerJob`` says it of runs and of archived output."""


def encode(data: Mapping[str, Json]) -> bytes:
    """The bytes of a record."""
    document = {"schemaVersion": SCHEMA_VERSION, "data": data}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def decode(raw: bytes) -> Mapping[str, Json] | None:
    """What a record says; None when it is torn, no record of ours, or of a version that this one cannot read."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("schemaVersion") != SCHEMA_VERSION:
        return None
    data = document.get("data")
    return data if isinstance(data, dict) else None


def stream(prefix: str, *names: str) -> str:
    """The stream ``prefix/name``, in a spelling that every store takes whatever a job is called.

    Stores want no empty part between two ``/`` and 512 characters at most; another name is replaced by its hash.
    """
    text = "/".join((prefix, *names))
    if all(text.split("/")) and len(text) <= LONGEST_NAME:
        return text
    return f"{prefix}/~{hashlib.sha256('/'.join(names).encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


# -- rows of the run history ------------------------------------------------------------------------------------------


def run_row(record: RunRecord, node: str) -> Mapping[str, Json]:
    """What ``runs/<job>`` keeps of a run or a skip: everything but its output. Times are seconds of wall clocks.

    ``node``: who writes it down, and ran it unless the record says otherwise.
    """
    used = record.resources
    row: dict[str, Json] = {
        "runId": record.key.run_id,
        "scheduledAt": record.key.scheduled_at,
        "attempt": record.key.attempt,
        "trigger": record.key.trigger.value,
        "node": record.node or node,
        "outcome": record.outcome.value,
        "exitCode": record.exit_code,
        "startedAt": record.started_at,
        "finishedAt": record.finished_at,
        "duration": record.duration,
        "failReason": record.fail_reason,
        "skipReason": record.skip_reason,
    }
    if used is not None:
        row["resources"] = {
            "cpuUser": used.cpu_user,
            "cpuSystem": used.cpu_system,
            "maxRss": used.max_rss,
            "samples": used.taken,
        }
    return {key: value for key, value in row.items() if value is not None}


def run_of(job: str, row: Mapping[str, Json]) -> RunRecord | None:
    """The run that a row tells of; None when it is not a row as ``run_row`` makes them."""
    try:
        key = RunKey(
            str(row.get("runId", "")),
            job,
            _maybe(row, "scheduledAt", int),
            int(_number(row.get("attempt", 0))),
            Trigger(str(row.get("trigger", "schedule"))),
        )
        return RunRecord(
            key,
            Outcome(str(row["outcome"])),
            _maybe(row, "exitCode", int),
            _maybe(row, "startedAt", float),
            _number(row["finishedAt"]),
            _maybe(row, "duration", float),
            fail_reason=_text(row, "failReason"),
            skip_reason=_text(row, "skipReason"),
            resources=_used(row.get("resources")),
            node=_text(row, "node"),
        )
    except (KeyError, ValueError, TypeError):
        return None


def _used(found: Json) -> Resources | None:
    if not isinstance(found, dict):
        return None
    return Resources(
        cpu_user=_number(found.get("cpuUser", 0)),
        cpu_system=_number(found.get("cpuSystem", 0)),
        max_rss=int(_number(found.get("maxRss", 0))),
        taken=int(_number(found.get("samples", 0))),
    )


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number was expected")
    return float(value)


Kind = TypeVar("Kind", int, float)


def _maybe(row: Mapping[str, Json], key: str, kind: Callable[[float], Kind]) -> Kind | None:
    value = row.get(key)
    return None if value is None else kind(_number(value))


def _text(row: Mapping[str, Json], key: str) -> str | None:
    value = row.get(key)
    return value if isinstance(value, str) else None


def which_row(record: RunRecord) -> tuple[str, int | None, float]:
    """What two rows of a job about the same run or skip have in common."""
    key = record.key
    return (key.run_id, None, 0.0) if key.run_id else ("", key.scheduled_at, record.finished_at)


def merge_rows(limit: int, *sources: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """The last ``limit`` rows of all sources by the time they ended, oldest first, each run once.

    By their times and not by their places: a run that took long is written after a shorter one that began later, and
    records of several nodes, or written twice after a lost answer, stand in any order. Who ran it knows how it ended
    better than who took it for dead.
    """
    found: dict[tuple[str, int | None, float], RunRecord] = {}
    for source in sources:
        for record in source:
            same = which_row(record)
            before = found.get(same)
            if before is None or (before.outcome is Outcome.UNKNOWN and record.outcome is not Outcome.UNKNOWN):
                found[same] = record
    return tuple(sorted(found.values(), key=lambda record: record.finished_at))[max(0, len(found) - limit) :]
