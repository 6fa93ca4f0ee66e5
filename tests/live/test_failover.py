"""Three real daemons and one shared directory: kill, stop, freeze and starve them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

TTL = 5.0
TAKEOVER_BOUND = TTL + 1 + max(1.0, TTL / 3)
SLACK = 5.0

Fleet = Any


def post(port: int, path: str) -> int:
    return ask(port, "POST", path)[0]


def ask(port: int, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


Wait = Callable[[Callable[[], object], float, str], None]


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Fleet:
    fleet = make_fleet()
    fleet.start()
    fleet.wait_until_whole()
    return fleet


def test_a_killed_leader_is_replaced_and_never_are_there_two(fleet: Fleet, rounds: int) -> None:
    for _ in range(rounds):
        old = fleet.wait_for_leader(30)
        old.send(signal.SIGKILL)
        old.wait(10)
        new = fleet.wait_for_leader(TAKEOVER_BOUND + SLACK, other_than=old)
        assert new is not old
        old.start()
        fleet.wait_until_whole()
    assert fleet.two_leaders_at() == []


def test_a_leader_that_is_told_to_stop_hands_over_at_once_and_exits_cleanly(fleet: Fleet, rounds: int) -> None:
    for _ in range(rounds):
        old = fleet.wait_for_leader(30)
        old.send(signal.SIGTERM)
        # Well within the ttl: the survivors saw the release, they did not wait for the lease to run out.
        fleet.wait_for_leader(TTL - 1, other_than=old)
        assert old.wait(20) == 0
        old.start()
        fleet.wait_until_whole()
    assert fleet.two_leaders_at() == []


RETRYING = """\
  - name: bad
    command: 'echo "$NODE $CRONSTABLE_ATTEMPT $(date +%s.%N)" >> STAMPS; exit 3'
    schedule: "0 0 1 1 *"
    clusterPolicy: Leader
    onFailure:
      retry: {maximumRetries: -1, initialDelay: 15, maximumDelay: 15, backoffMultiplier: 1}
"""


def test_a_retry_is_abandoned_by_a_node_that_lost_the_job_while_it_waited(
    make_fleet: Callable[..., Fleet], waiting: Wait
) -> None:
    fleet = make_fleet(jobs=RETRYING)
    fleet.start()
    fleet.wait_until_whole()
    old = fleet.wait_for_leader(30)
    assert post(old.port, "/jobs/bad/start") == 200
    waiting(lambda: "retry 1 in 15 s" in old.log.read_text(), 10, "the attempt to be waited for")
    old.send(signal.SIGSTOP)
    fleet.wait_for_leader(TAKEOVER_BOUND + SLACK, other_than=old)
    old.send(signal.SIGCONT)
    waiting(lambda: "retry 1 is abandoned" in old.log.read_text(), 30, "the attempt to be abandoned")
    fleet.wait_until_whole()
    assert [(node, attempt) for node, attempt, _ in fleet.occurrences()] == [(old.name, "0")]
    rows = json.loads(ask(old.port, "GET", "/jobs/bad/runs")[1])["runs"]
    assert [row["outcome"] for row in rows] == ["cancelled", "failure"]


def test_a_leader_frozen_past_its_lease_starts_nothing_when_it_wakes(fleet: Fleet, waiting: Wait) -> None:
    old = fleet.wait_for_leader(30)
    waiting(lambda: any(o[0] == old.name for o in fleet.occurrences()), 10, "the leader to run something")
    old.send(signal.SIGSTOP)
    frozen = time.time()
    new = fleet.wait_for_leader(TAKEOVER_BOUND + SLACK, other_than=old)
    waiting(lambda: time.time() > frozen + 2 * TTL, 3 * TTL, "twice the ttl")
    woken = time.time()
    old.send(signal.SIGCONT)
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 3, 15, "the new leader to go on")
    assert [o for o in fleet.occurrences() if o[0] == old.name and o[2] > woken] == []
    assert fleet.leaders() == [new]
    assert fleet.two_leaders_at() == []


def test_every_occurrence_is_run_by_one_node_while_nothing_fails(fleet: Fleet, waiting: Wait) -> None:
    waiting(lambda: len(fleet.occurrences()) >= 5, 20, "five occurrences")
    times = [scheduled for _, scheduled, _ in fleet.occurrences()]
    assert len(times) == len(set(times))
    assert len({node for node, _, _ in fleet.occurrences()}) == 1


def test_a_shared_directory_that_vanishes_closes_the_gate_and_its_return_opens_it(
    fleet: Fleet, tmp_path: Path, waiting: Wait
) -> None:
    shared, away = tmp_path / "shared", tmp_path / "away"
    fleet.wait_for_leader(30)
    os.rename(shared, away)
    shared.write_text("")
    waiting(lambda: not fleet.leaders(), TTL + SLACK, "the leader to step down")
    waiting(
        lambda: not any((n.cluster() or {}).get("quorate") for n in fleet.nodes), 2 * TTL + SLACK, "quorum to lapse"
    )
    shared.unlink()
    os.rename(away, shared)
    fleet.wait_until_whole(TAKEOVER_BOUND + 2 * SLACK)
    assert fleet.two_leaders_at() == []


def test_a_daemon_that_loses_leadership_can_win_it_again_without_a_restart(fleet: Fleet, waiting: Wait) -> None:
    first = fleet.wait_for_leader(30)
    others = [n for n in fleet.nodes if n is not first]
    first.send(signal.SIGSTOP)
    fleet.wait_for_leader(TAKEOVER_BOUND + SLACK, other_than=first)
    first.send(signal.SIGCONT)
    for node in others:
        node.send(signal.SIGTERM)
        node.wait(20)
    waiting(lambda: fleet.leaders() == [first], TAKEOVER_BOUND + SLACK, "the only node left to lead again")
