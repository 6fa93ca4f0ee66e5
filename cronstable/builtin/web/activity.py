"""GET /activity: the newest runs of every job, and what ended in its last 24 hours."""

from __future__ import annotations

from cronstable.api import Day, HostSnapshot, Instant, LastRun, Outcome, RunRecord
from cronstable.builtin.web.shapes import dumps, iso

_Facts = tuple[int | None, tuple[int, ...], tuple[RunRecord, ...], LastRun | None, Day | None]


class ActivityDocument:
    """An entry is made again only when something of its job ended, or another quarter of an hour began."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[_Facts, bytes, bytes]] = {}

    def make(self, snapshot: HostSnapshot, limit: int | None, now: Instant) -> bytes:
        """The document with ``limit`` runs of each job at most. Threads may call it at the same time."""
        before, entries = self._entries, dict[str, tuple[_Facts, bytes, bytes]]()
        for name in snapshot.jobs:
            last, day = snapshot.last_runs.get(name), snapshot.days.get(name)
            if last is None and day is None:
                continue
            times = () if day is None else (int(now.wall // Day.QUARTER), int(day.since(now)))
            facts = (limit, times, snapshot.history.get(name, ()), last, day)
            entry = before.get(name)
            entries[name] = entry if entry is not None and entry[0] == facts else _entry(name, facts, now)
        self._entries = entries
        runs = b",".join(runs for _, runs, _ in entries.values() if runs)
        days = b",".join(day for _, _, day in entries.values() if day)
        return b'{"jobs":{%b},"days":{%b}}' % (runs, days)


def _entry(name: str, facts: _Facts, now: Instant) -> tuple[_Facts, bytes, bytes]:
    limit, times, rows, last, day = facts
    key = dumps(name)
    # Skips are no runs, and may have pushed the last one out of the rows.
    runs = [row for row in rows if row.outcome is not Outcome.SKIPPED] or ([] if last is None else [last.run])
    told = dumps(
        [
            {"started_at": iso(r.started_at), "finished_at": iso(r.finished_at), "outcome": r.outcome.value}
            for r in reversed(runs if limit is None else runs[-limit:])
        ]
    )
    quarters = [] if day is None else [b"[%d,%d,%d,%d,%d,%d]" % (at, *counts) for at, counts in day.quarters(now.wall)]
    since = dumps(iso(times[-1])) if quarters else b""
    return (
        facts,
        b"%b:%b" % (key, told) if runs else b"",
        b'%b:{"since":%b,"quarters":[%b]}' % (key, since, b",".join(quarters)) if quarters else b"",
    )
