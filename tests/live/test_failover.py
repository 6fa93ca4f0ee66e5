"""Three real daemons, one store, one occurrence a second: kill, stop and freeze the leader, take the store away.

Each story is about who leads and about what becomes of the occurrences, on every backend that keeps claims.
"""

from __future__ import annotations

import base64
import http.client
import json
import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

import pytest

pytestmark = pytest.mark.integration

TTL = 5.0
SLACK = 10.0
"""For a busy two-core machine; what is measured belongs in benchmarks, these tests only must not hang."""

UNRELEASED = "was not released and runs out by itself"

Fleet = Any
Store = Any
Wait = Callable[[Callable[[], object], float, str], None]
WrittenOff = Callable[[Store], set[str]]


def runs(fleet: Fleet) -> list[tuple[str, int, bool, float]]:
    """Node, fence, whether late, and when it ran."""
    rows = [(who.split("/"), at) for who, _, at in fleet.occurrences() if at >= fleet.since]
    return [(node, int(fence), late == "1", at) for (node, fence, late), at in rows]


def logged_since(node: Any, size: int) -> str:
    """What the log of a node gained since it had so many bytes."""
    return str(node.log.read_bytes()[size:].decode())


def grown(fleet: Fleet, by: int) -> Callable[[], object]:
    """Whether so many more occurrences were started since."""
    count = len(fleet.occurrences())
    return lambda: len(fleet.occurrences()) >= count + by


def assert_each_second_once(fleet: Fleet, unstarted: AbstractSet[str] = frozenset()) -> None:
    """Nothing doubled, nothing lost but what the log itself writes off; fences never fall; never two leaders."""
    due, starts = fleet.account()
    assert [at for at, count in starts.items() if count > 1] == []
    assert due - set(starts) <= unstarted
    fences = [fence for _, fence, _, _ in runs(fleet)]
    assert fences == sorted(fences)
    assert fleet.two_leaders_at() == []


def test_a_killed_leader_is_replaced_and_its_occurrences_are_caught_up(
    fleet: Fleet, store: Store, waiting: Wait, rounds: int, written_off: WrittenOff
) -> None:
    for _ in range(rounds):
        old = fleet.wait_for_leader(30)
        old.send(signal.SIGKILL)
        old.wait(10)
        new = fleet.wait_for_leader(store.bound + SLACK, other_than=old)
        assert new is not old
        waiting(grown(fleet, 8), 30, "the new leader to catch up")
        old.start()
        fleet.wait_until_whole()
    assert_each_second_once(fleet, written_off(store))
    assert any(late for _, _, late, _ in runs(fleet)), "an outage of leaders that nobody had to catch up"
    assert len({fence for _, fence, _, _ in runs(fleet)}) >= rounds


def test_a_leader_that_is_told_to_stop_hands_over_at_once_and_loses_nothing(
    fleet: Fleet, store: Store, waiting: Wait, rounds: int
) -> None:
    for _ in range(rounds):
        old = fleet.wait_for_leader(30)
        before = old.log.stat().st_size
        old.send(signal.SIGTERM)
        fleet.wait_for_leader(store.bound + SLACK, other_than=old)
        assert old.wait(20) == 0
        # At once: the survivors saw the release, they did not have to wait for the lease to run out.
        assert UNRELEASED not in logged_since(old, before)
        waiting(grown(fleet, 3), 30, "the new leader to go on")
        old.start()
        fleet.wait_until_whole()
    assert_each_second_once(fleet)


def test_a_leader_frozen_past_its_lease_starts_nothing_when_it_wakes(
    fleet: Fleet, store: Store, waiting: Wait, written_off: WrittenOff
) -> None:
    old = fleet.wait_for_leader(30)
    old.send(signal.SIGSTOP)
    new = fleet.wait_for_leader(store.bound + SLACK, other_than=old)
    waiting(grown(fleet, 8), 30, "the new leader to catch up")
    woken = datetime.now(UTC).timestamp()
    old.send(signal.SIGCONT)
    waiting(grown(fleet, 3), 30, "the new leader to go on")
    assert [at for node, _, _, at in runs(fleet) if node == old.name and at > woken] == []
    assert fleet.leaders() == [new]
    assert_each_second_once(fleet, written_off(store))


def test_a_leader_frozen_for_less_than_its_ttl_catches_up_by_itself(
    fleet: Fleet, store: Store, waiting: Wait, written_off: WrittenOff
) -> None:
    old = fleet.wait_for_leader(30)
    waiting(lambda: runs(fleet), 30, "an occurrence")
    old.send(signal.SIGSTOP)
    waiting(lambda: datetime.now(UTC).timestamp() - runs(fleet)[-1][3] > 2.5, 10, "two seconds without a start")
    old.send(signal.SIGCONT)
    waiting(grown(fleet, 6), 30, "the occurrences of the freeze and some more")
    # A machine so busy that the lease was lost all the same shows another story, which must end as well.
    assert_each_second_once(fleet, set() if fleet.leaders() == [old] else written_off(store))


def test_a_store_that_is_away_for_ten_seconds_closes_the_gate_and_its_return_makes_everything_up(
    fleet: Fleet, store: Store, waiting: Wait, written_off: WrittenOff
) -> None:
    fleet.wait_for_leader(30)
    store.take_away()
    gone = datetime.now(UTC).timestamp()
    waiting(lambda: not fleet.leaders(), TTL + SLACK, "the leader to step down")
    waiting(
        lambda: not any((n.cluster() or {}).get("quorate") for n in fleet.nodes), 2 * TTL + SLACK, "quorum to lapse"
    )
    waiting(lambda: datetime.now(UTC).timestamp() > gone + 10, 15, "ten seconds")
    count = len(fleet.occurrences())
    store.give_back()
    fleet.wait_until_whole(store.bound + 2 * SLACK)
    waiting(lambda: len(fleet.occurrences()) >= count + 12, 30, "what was due meanwhile, and some more")
    assert_each_second_once(fleet, written_off(store))


# -- etcd alone -----------------------------------------------------------------------------------------------------


only_etcd = pytest.mark.parametrize("store", ["etcd"], indirect=True)


@only_etcd
def test_an_etcd_that_is_back_before_the_deadline_changes_no_leader_and_costs_no_occurrence(
    fleet: Fleet, store: Store, waiting: Wait, written_off: WrittenOff
) -> None:
    (old,) = fleet.leaders()
    before = old.log.stat().st_size
    store.take_away()
    store.give_back()
    waiting(lambda: store.leader is not None, 30, "etcd to answer")
    waiting(grown(fleet, int(TTL) + 1), 30, "a ttl's worth of occurrences")
    if "leadership lost" in logged_since(old, before):
        # Etcd was not back before the deadline, on so busy a machine: another story, which must end as well.
        assert_each_second_once(fleet, written_off(store))
        return
    assert fleet.leaders() == [old]
    # The key is what an operator looks at, and names the only one who runs anything.
    assert all(node.cluster()["leader"] == old.name for node in fleet.nodes)
    assert old.cluster()["lease"]["leaseId"]
    assert {node for node, _, _, _ in runs(fleet)} == {old.name}
    assert len({fence for _, fence, _, _ in runs(fleet)}) == 1
    assert_each_second_once(fleet)


@only_etcd
def test_a_leader_key_that_is_deleted_by_hand_begins_a_new_term_with_a_higher_fence(
    fleet: Fleet, store: Store, waiting: Wait, written_off: WrittenOff
) -> None:
    waiting(lambda: runs(fleet), 30, "an occurrence")
    before = runs(fleet)[-1][1]
    key = base64.b64encode(store.election.encode()).decode()
    assert store.call("/v3/kv/deleterange", {"key": key})
    waiting(lambda: runs(fleet)[-1][1] > before, 30, "an occurrence of the new term")
    # What is on time goes before what is late: the second of the deletion comes a little after its successor.
    waiting(grown(fleet, 4), 30, "the new term to catch up")
    assert_each_second_once(fleet, written_off(store))


# -- what does not depend on the store -------------------------------------------------------------------------------


RETRYING = """\
  - name: bad
    command: 'echo "$NODE $CRONSTABLE_ATTEMPT $(date +%s.%N)" >> STAMPS; exit 3'
    schedule: "0 0 1 1 *"
    clusterPolicy: Leader
    onFailure:
      retry: {maximumRetries: -1, initialDelay: 8, maximumDelay: 8, backoffMultiplier: 1}
"""


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


def test_a_retry_is_abandoned_by_a_node_that_lost_the_job_while_it_waited_and_the_node_can_lead_again(
    make_fleet: Callable[..., Fleet], waiting: Wait
) -> None:
    fleet = make_fleet(jobs=RETRYING)
    fleet.start()
    fleet.wait_until_whole()
    old = fleet.wait_for_leader(30)
    assert post(old.port, "/jobs/bad/start") == 200
    waiting(lambda: "retry 1 in 8 s" in old.log.read_text(), 10, "the attempt to be waited for")
    old.send(signal.SIGSTOP)
    fleet.wait_for_leader(TTL + 4 + SLACK, other_than=old)
    old.send(signal.SIGCONT)
    waiting(lambda: "retry 1 is abandoned" in old.log.read_text(), 30, "the attempt to be abandoned")
    fleet.wait_until_whole()
    assert [(node, attempt) for node, attempt, _ in fleet.occurrences()] == [(old.name, "0")]
    rows = json.loads(ask(old.port, "GET", "/jobs/bad/runs")[1])["runs"]
    assert [row["outcome"] for row in rows] == ["cancelled", "failure"]
    others = [node for node in fleet.nodes if node is not old]
    for node in others:
        node.send(signal.SIGTERM)
        node.wait(20)
    waiting(lambda: fleet.leaders() == [old], TTL + 4 + SLACK, "the only node left to lead again")
