"""The last run of a job and the last verdict on it: kept apart from the rows, out of which twenty skips push it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cronstable.core.runs import Outcome, RunRecord
from cronstable.core.values import dataclass


@dataclass(frozen=True, slots=True)
class LastRun:
    """``run``: the last one that is over. ``judged``: the last one that succeeded or failed, None when none did."""

    run: RunRecord
    judged: RunRecord | None

    @property
    def failing(self) -> bool:
        """Whether the last run that came to a verdict failed; skips, cancelled and unknown ones say nothing."""
        return self.judged is not None and self.judged.outcome is Outcome.FAILURE


def last_run(before: LastRun | None, rows: Iterable[RunRecord], now: float = math.inf) -> LastRun | None:
    """What is known of the last run once ``rows`` are known too, in any order.

    ``now``: wall seconds, where the rows are just written. What was written by a clock that stood ahead of it has
    ended before them all the same.
    """
    run, judged = (None, None) if before is None else (before.run, before.judged)
    for row in rows:
        if row.outcome is Outcome.SKIPPED:
            continue
        run = _later(run, row, now)
        if row.outcome in (Outcome.SUCCESS, Outcome.FAILURE):
            judged = _later(judged, row, now)
    if run is None or (before is not None and run is before.run and judged is before.judged):
        return before
    return LastRun(run, judged)


def _later(old: RunRecord | None, new: RunRecord, now: float) -> RunRecord:
    if old is None:
        return new
    if old.key.run_id and old.key.run_id == new.key.run_id:
        # Who ran it knows how it ended better than who took it for dead.
        return old if new.outcome is Outcome.UNKNOWN else new
    return new if new.finished_at >= old.finished_at or old.finished_at > now else old
