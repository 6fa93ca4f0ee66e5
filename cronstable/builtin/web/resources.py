"""GET /jobs/{name}/resources: the samples of living runs and of those that are over (reference 7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cronstable.api import HostSnapshot, Job, Json, Resources, RunRecord
from cronstable.builtin.web.shapes import iso, run_entry, running_resources

_INTERVAL: Final = 1.0


def resources_document(snapshot: HostSnapshot, job: Job, records: Sequence[RunRecord]) -> dict[str, Json]:
    """``records``: the sampled ones of them are shown, newest first."""
    setting = job.options.raw.get("monitorResources", False)
    detailed = setting if isinstance(setting, dict) else {}
    monitored = bool(setting) and detailed.get("enabled", True) is True
    return {
        "name": job.name,
        "monitored": monitored,
        "interval": detailed.get("interval", _INTERVAL) if monitored else None,
        "live": [
            {"started_at": iso(run.started_at), "pid": run.pid, "current": _current(used), "series": _series(used)}
            for run in snapshot.live.get(job.name, ())
            if (used := snapshot.resources.get(run.key.run_id)) is not None
        ],
        "runs": [_run(record) for record in reversed(records) if record.resources is not None],
    }


def _current(used: Resources) -> Json:
    now = running_resources([used])
    return {key: value for key, value in now.items() if key != "instances"} if isinstance(now, dict) else now


def _series(used: Resources) -> list[Json]:
    return [[round(sample.at, 3), round(sample.cpu, 6), sample.rss] for sample in used.samples]


def _run(record: RunRecord) -> Json:
    entry = run_entry(record)
    used = entry["resources"]
    if isinstance(used, dict) and record.resources is not None:
        entry["resources"] = {**used, "series": _series(record.resources)}
    return entry
