"""The end of a leader's process is proven on a local disk, so that nobody waits for its ttl of a minute (ADR 0042)."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Fleet = Any
Node = Any
Wait = Callable[[Callable[[], object], float, str], None]
TTL = 60
SOON = 15.0
"""Seconds: a busy machine takes some, and no ttl has passed yet."""
SAID = "the holder's process has ended: its lease is let go"


@pytest.fixture
def fleet_of(make_fleet: Any, tmp_path: Path) -> Callable[[int], Fleet]:
    """So many daemons over one local directory, at work."""

    def make(count: int) -> Fleet:
        section = f"  backend: filesystem\n  filesystem:\n    path: {tmp_path / 'shared'}\n    ttl: {TTL}\n"
        fleet: Fleet = make_fleet(count, backend_of=lambda i: section)
        fleet.start()
        fleet.wait_until_whole()
        return fleet

    return make


def fence(node: Node) -> int:
    view = node.cluster()
    assert view is not None
    found = view["lease"]["fence"]
    assert isinstance(found, int)
    return found


def kill(node: Node) -> None:
    node.send(signal.SIGKILL)
    node.wait(10)


def signs(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "shared/default/life").glob("*/*"))


def ran_on(fleet: Fleet, node: Node) -> Callable[[], object]:
    return lambda: [name for name, _, _ in fleet.occurrences() if name == node.name]


def test_a_killed_leader_is_replaced_at_once_again_and_again(
    fleet_of: Callable[[int], Fleet], tmp_path: Path, waiting: Wait
) -> None:
    fleet = fleet_of(3)
    fences = []
    for _ in range(3):
        old = fleet.wait_for_leader(SOON)
        fences.append(fence(old))
        waiting(ran_on(fleet, old), 30, "an occurrence of the old leader")
        kill(old)
        new = fleet.wait_for_leader(SOON, other_than=old)
        waiting(ran_on(fleet, new), 30, "an occurrence of the new leader")
        assert fence(new) > fences[-1]
        old.start()
        fleet.wait_until_whole()
    starts = [scheduled for _, scheduled, _ in fleet.occurrences()]
    assert len(set(starts)) == len(starts)
    assert fleet.two_leaders_at() == []
    assert sum(node.log.read_text().count(SAID) for node in fleet.nodes) == 3
    assert len(signs(tmp_path)) <= 3


def test_a_frozen_leader_keeps_the_lease_and_a_killed_follower_changes_nothing(
    fleet_of: Callable[[int], Fleet], waiting: Wait
) -> None:
    fleet = fleet_of(3)
    leader = fleet.wait_for_leader(SOON)
    waiting(ran_on(fleet, leader), 30, "an occurrence of the leader")
    before = fence(leader)
    leader.send(signal.SIGSTOP)
    one, other = (node for node in fleet.nodes if node is not leader)
    count = len(one.answers)
    waiting(lambda: len(one.answers) >= count + 100, 60, "a hundred answers of a follower")
    kill(other)
    count = len(one.answers)
    waiting(lambda: len(one.answers) >= count + 100, 60, "a hundred more")
    assert not any(answer.leads for answer in one.answers)
    leader.send(signal.SIGCONT)
    waiting(lambda: fleet.leaders() == [leader], 30, "the old leader to go on")
    assert fence(leader) == before
    assert not any(SAID in node.log.read_text() for node in fleet.nodes)


def test_a_single_daemon_that_is_started_again_goes_on_at_once(
    fleet_of: Callable[[int], Fleet], tmp_path: Path, waiting: Wait
) -> None:
    fleet = fleet_of(1)
    (node,) = fleet.nodes
    waiting(ran_on(fleet, node), 30, "an occurrence")
    before = fence(node)
    kill(node)
    node.start()
    waiting(lambda: fleet.leaders() == [node], SOON, "the daemon to lead again")
    assert fence(node) > before
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) > count, 30, "an occurrence of its new term")
    (lease,) = (tmp_path / "shared/default/leases").glob("*.lease")
    assert [path.name for path in signs(tmp_path)] == [json.loads(lease.read_bytes())["life"]["file"]]
    node.send(signal.SIGTERM)
    node.wait(30)
    assert signs(tmp_path) == []
