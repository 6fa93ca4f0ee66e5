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


def burst(store: Store) -> list[int] | None:
    """Numbers of the first record of the burst and of the one with which all its starts are said; None: not yet."""
    claimed = started = first = 0
    for number, data in sorted(store.numbered().items()):
        record = json.loads(data)
        claimed += len(record.get("s", []))
        started += len(record.get("b", []))
        first = first or (number if claimed else 0)
        if claimed >= JOBS and started >= JOBS:
            return [first, number]
    return None


@pytest.mark.parametrize("unfinished", ["skip", "rerun"])
def test_a_thousand_jobs_of_one_instant_are_twenty_writes_with_the_record_of_their_starts(
    make_fleet: Callable[..., Fleet], fresh_store: Store, waiting: Wait, unfinished: str
) -> None:
    fleet = make_fleet(1, backend_of=fresh_store.section, jobs=jobs(unfinished))
    fleet.start()
    waiting(lambda: burst(fresh_store), 150, "the burst and what is said of it")
    found = burst(fresh_store)
    assert found is not None
    assert fresh_store.writes(*found) <= 20
