"""Three real daemons and one shared directory: a run that outlives its term.

What becomes of the occurrences when leaders go is in test_failover, on every store.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

TTL = 5.0

Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]


LONG = """\
  - name: long
    command: |
      say() { echo "$NODE-$1 $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)" >> STAMPS; }
      say begin; sleep 8; say end
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
    old.send(signal.SIGTERM)
    fleet.wait_for_leader(TTL - 1, other_than=old)
    assert old.wait(20) == 0
    waiting(
        lambda: any(row[0].endswith("-begin") and not row[0].startswith(old.name) for row in fleet.occurrences()),
        20,
        "a run elsewhere",
    )
    rows = sorted(fleet.occurrences(), key=lambda row: row[2])
    assert [row[0] for row in rows[:2]] == [f"{old.name}-begin", f"{old.name}-end"]
