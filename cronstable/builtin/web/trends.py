"""GET /jobs/{name}/trends: how a job did in windows of time up to now (reference 7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cronstable.api import HostSnapshot, Json, RunRecord
from cronstable.builtin.web.shapes import iso, stats_of

WINDOWS: Final = (("1h", 3_600.0), ("24h", 86_400.0), ("7d", 604_800.0), ("30d", 2_592_000.0), ("all", None))
"""Names and lengths in seconds; the last has no length."""
MOST: Final = 10_000
"""Runs that are looked at."""


def trends_document(name: str, snapshot: HostSnapshot, records: Sequence[RunRecord], wall: float) -> dict[str, Json]:
    """``records``: newest first. A run belongs to the windows that it ended in."""
    windows: dict[str, Json] = {}
    for label, length in WINDOWS:
        within = [r for r in records if length is None or r.finished_at >= wall - length]
        windows[label] = stats_of(within[::-1])
    return {"name": name, "source": source_of(snapshot), "generated_at": iso(wall), "windows": windows}


def source_of(snapshot: HostSnapshot) -> str:
    """Where runs are remembered: ``durable`` while a state store answers, else ``memory``."""
    state = snapshot.state
    return "durable" if state is not None and state.info is not None and state.error is None else "memory"
