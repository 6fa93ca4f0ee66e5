"""Records of a state store: their envelope, their kinds, and what is kept of each stream (reference 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from cronstable.core.job import Json

SCHEMA_VERSION: Final = "v1"
LONGEST: Final = 1 << 20
"""Bytes of one record at most, as the contract of the stores has it."""


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
