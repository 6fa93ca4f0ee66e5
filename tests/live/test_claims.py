"""Three real daemons and one shared directory: a run that outlives its term.

What becomes of the occurrences when leaders go is in test_failover, on every store.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

BOUND = 8.0
"""Seconds within which a dead leader is replaced at the latest (L1), with a ttl of five."""
SLACK = 10.0
"""For a busy two-core machine; what is measured belongs in benchmarks, these tests only must not hang."""

Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]


LONG = """\
  - name: long
    command: |
      say() { echo "$NODE-$1 $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)" >> STAMPS; }
      say begin; while [ ! -e STAMPS.gate ]; do sleep 0.1; done; say end
    schedule: "*/2 * * * * * *"
    clusterPolicy: Leader
    concurrencyPolicy: Forbid
"""


def test_forbid_is_honoured_against_a_run_that_a_stopping_node_waits_for(
    make_fleet: Callable[..., Fleet], waiting: Wait
) -> None:
    fleet = make_fleet(jobs=LONG)
    fleet.start()
    fleet.wait_until_whole()
    waiting(lambda: fleet.occurrences(), 20, "the first run")
    old = fleet.wait_for_leader(30)
    before = old.log.stat().st_size
    old.send(signal.SIGTERM)
    fleet.wait_for_leader(BOUND + SLACK, other_than=old)
    # Led elsewhere while its run goes on, which ends when it may.
    assert old.alive
    fleet.stamps.with_name("stamps.gate").touch()
    assert old.wait(20) == 0
    # Nobody had to wait for the lease to run out.
    assert "was not released and runs out by itself" not in old.log.read_bytes()[before:].decode()
    waiting(
        lambda: any(row[0].endswith("-begin") and not row[0].startswith(old.name) for row in fleet.occurrences()),
        20,
        "a run elsewhere",
    )
    rows = sorted(fleet.occurrences(), key=lambda row: row[2])
    assert [row[0] for row in rows[:2]] == [f"{old.name}-begin", f"{old.name}-end"]
