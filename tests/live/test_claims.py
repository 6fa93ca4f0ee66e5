"""Three real daemons, one shared directory, one occurrence a second: what happens to each of them when leaders go."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

TTL = 5.0
TAKEOVER_BOUND = TTL + 1 + max(1.0, TTL / 3)
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


def account(fleet: Fleet) -> tuple[set[str], Counter[str]]:
    """Every second from the first start to the last, and how often each was started."""
    starts = Counter(scheduled for _, scheduled, _ in fleet.occurrences())
    times = sorted(datetime.fromisoformat(text) for text in starts)
    seconds = int((times[-1] - times[0]).total_seconds())
    due = {(times[0] + timedelta(seconds=n)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for n in range(seconds)}
    return due, starts


def grown(fleet: Fleet, by: int) -> Callable[[], object]:
    """Whether so many more occurrences were started since."""
    count = len(fleet.occurrences())
    return lambda: len(fleet.occurrences()) >= count + by


def written_off(shared: Path) -> set[str]:
    """What the log itself calls claimed and not started."""
    found = set()
    for record in shared.glob("default/claims/*/" + "[0-9]" * 12):
        for _, at, reason in json.loads(record.read_bytes()).get("x", []):
            if reason == "claimed-not-started":
                found.add(datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    return found


def test_killed_leaders_cost_no_occurrence_and_double_none(
    fleet: Fleet, waiting: Wait, tmp_path: Path, rounds: int
) -> None:
    for _ in range(max(3, rounds)):
        old = fleet.wait_for_leader(30)
        old.send(signal.SIGKILL)
        old.wait(10)
        fleet.wait_for_leader(TAKEOVER_BOUND + SLACK, other_than=old)
        waiting(grown(fleet, 8), 30, "the new leader to catch up")
        old.start()
        fleet.wait_until_whole()
    due, starts = account(fleet)
    assert [at for at, count in starts.items() if count > 1] == []
    assert due - set(starts) <= written_off(tmp_path / "shared")
    late = [row for row in fleet.occurrences() if row[0].endswith("/1")]
    assert late, "an outage of leaders that nobody had to catch up"
    fences = [int(row[0].partition("/")[0]) for row in fleet.occurrences()]
    assert fences == sorted(fences)
    assert len(set(fences)) > 3


def test_leaders_that_are_told_to_stop_lose_nothing_at_all(fleet: Fleet, waiting: Wait, rounds: int) -> None:
    for _ in range(max(3, rounds)):
        old = fleet.wait_for_leader(30)
        old.send(signal.SIGTERM)
        fleet.wait_for_leader(TTL - 1, other_than=old)
        assert old.wait(20) == 0
        waiting(grown(fleet, 3), 20, "the new leader to go on")
        old.start()
        fleet.wait_until_whole()
    due, starts = account(fleet)
    assert [at for at, count in starts.items() if count > 1] == []
    assert due - set(starts) == set()


def test_a_leader_frozen_for_less_than_its_ttl_catches_up_by_itself(fleet: Fleet, waiting: Wait) -> None:
    old = fleet.wait_for_leader(30)
    old.send(signal.SIGSTOP)
    waiting(lambda: fleet_stood_still(fleet), 10, "two seconds without a start")
    old.send(signal.SIGCONT)
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 6, 20, "the occurrences of the freeze and some more")
    due, starts = account(fleet)
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
