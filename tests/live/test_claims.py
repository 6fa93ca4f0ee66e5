"""Three real daemons and one shared directory: a short freeze, and runs that outlive their term.

What becomes of the occurrences when leaders go is in test_failover, on every store.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

pytestmark = pytest.mark.integration

TTL = 5.0
SLACK = 5.0

STAMP = """\
  - name: tick
    command: 'echo "$CRONSTABLE_FENCE/$CRONSTABLE_CATCHUP $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)" >> STAMPS'
    schedule: "* * * * * * *"
    clusterPolicy: Leader
"""

Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet], waiting: Wait) -> Fleet:
    fleet = make_fleet(jobs=STAMP)
    fleet.start()
    fleet.wait_until_whole()
    # A log that just began starts nothing for five seconds.
    waiting(lambda: len(fleet.occurrences()) >= 3, 20, "the first occurrences")
    return fleet


def test_a_leader_frozen_for_less_than_its_ttl_catches_up_by_itself(fleet: Fleet, waiting: Wait) -> None:
    old = fleet.wait_for_leader(30)
    old.send(signal.SIGSTOP)
    waiting(lambda: fleet_stood_still(fleet), 10, "two seconds without a start")
    old.send(signal.SIGCONT)
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 6, 20, "the occurrences of the freeze and some more")
    due, starts = fleet.account()
    assert [at for at, count in starts.items() if count > 1] == []
    assert due - set(starts) == set()


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


def fleet_stood_still(fleet: Fleet) -> bool:
    last: float = fleet.occurrences()[-1][2]
    return datetime.now(UTC).timestamp() - last > 2.5
