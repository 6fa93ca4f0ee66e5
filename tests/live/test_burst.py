"""What a real daemon writes to a real store when 1,000 jobs are due at one instant."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

JOBS = 1000
AHEAD = 15
"""Seconds to the first instant: a daemon with a fresh log starts nothing before. Else it is the next minute's."""

Fleet = Any
Store = Any
Wait = Callable[[Callable[[], object], float, str], None]


def jobs(unfinished: str) -> str:
    second = int(time.time() + AHEAD) % 60
    return "".join(
        f'  - name: job-{n}\n    command: ["true"]\n    schedule: "{second} * * * * * *"\n'
        f"    clusterPolicy: Leader\n    onUnfinishedClaim: {unfinished}\n"
        for n in range(JOBS)
    )


def burst(store: Store) -> int | None:
    """How many records claim the jobs of the burst; None: all its claims and starts are not said yet."""
    claimed = started = claims = 0
    for _, data in sorted(store.numbered().items()):
        record = json.loads(data)
        claims += bool(record.get("s"))
        claimed += len(record.get("s", []))
        started += len(record.get("b", []))
        if claimed >= JOBS and started >= JOBS:
            return claims
    return None


@pytest.mark.parametrize("unfinished", ["skip", "rerun"])
def test_a_thousand_jobs_of_one_instant_are_claimed_in_eighteen_writes_and_their_starts_are_recorded(
    make_fleet: Callable[..., Fleet], fresh_store: Store, waiting: Wait, unfinished: str
) -> None:
    fleet = make_fleet(1, backend_of=fresh_store.section, jobs=jobs(unfinished))
    fleet.start()
    waiting(lambda: burst(fresh_store), 150, "the burst and what is said of it")
    # What is said of the starts goes with the last claims and in two writes more, if a machine is quick enough to start
    # all before then; on a slow one it takes more of them, so that only the unit test of the driver counts those too.
    assert burst(fresh_store) == 18
