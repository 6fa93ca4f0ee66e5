"""Three real daemons and one real etcd: kill, stop and freeze the leader, take the store away."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

TTL = 5.0
TAKEOVER_BOUND = TTL + 2
"""L1 for the etcd backend (DESIGN 6), in seconds."""
SLACK = 5.0
ELECTION = "live/leader"

Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]


class Etcd:
    """One member on free ports, whose data outlives its process."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary, self._directory = binary, directory
        with socket.socket() as one, socket.socket() as other:
            for s in (one, other):
                s.bind(("127.0.0.1", 0))
            self.port, self._peer_port = one.getsockname()[1], other.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [self._binary, "--name", "m", "--data-dir", str(self._directory / "etcd"), "--log-level", "error"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=None)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def call(self, path: str, body: dict[str, str]) -> dict[str, Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("POST", path, json.dumps(body))
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    @property
    def leader(self) -> str | None:
        """What ``etcdctl get`` shows."""
        found = self.call("/v3/kv/range", {"key": base64.b64encode(ELECTION.encode()).decode()}) or {}
        return next((base64.b64decode(kv["value"]).decode() for kv in found.get("kvs", [])), None)


@pytest.fixture
def etcd(tmp_path: Path, waiting: Wait) -> Iterator[Etcd]:
    binary = shutil.which("etcd") or shutil.which("etcd", path="/usr/bin")
    if binary is None:
        pytest.skip("no etcd on this machine: Debian's etcd-server makes these tests run")
    server = Etcd(binary, tmp_path)
    server.start()
    try:
        waiting(lambda: server.call("/v3/kv/range", {"key": "eA=="}), 30, "etcd to answer")
        yield server
    finally:
        server.kill()


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet], etcd: Etcd) -> Fleet:
    section = f"    endpoints:\n      - {etcd.url}\n    electionName: {ELECTION}\n    ttl: {TTL:g}\n"
    fleet = make_fleet(backend_of=lambda _: f"  backend: etcd\n  etcd:\n{section}")
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
        fleet.wait_for_leader(TTL - 2, other_than=old)
        assert old.wait(20) == 0
        old.start()
        fleet.wait_until_whole()
    assert fleet.two_leaders_at() == []


def test_the_key_names_the_leader_and_every_occurrence_is_run_by_it(fleet: Fleet, etcd: Etcd, waiting: Wait) -> None:
    waiting(lambda: len(fleet.occurrences()) >= 5, 20, "five occurrences")
    times = [scheduled for _, scheduled, _ in fleet.occurrences()]
    assert len(times) == len(set(times))
    (leader,) = fleet.leaders()
    assert {node for node, _, _ in fleet.occurrences()} == {leader.name}
    assert etcd.leader == leader.name
    assert leader.cluster()["lease"]["leaseId"]
    assert all(node.cluster()["leader"] == leader.name for node in fleet.nodes)


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


def test_an_etcd_that_is_killed_closes_the_gate_and_its_return_opens_it(
    fleet: Fleet, etcd: Etcd, waiting: Wait
) -> None:
    fleet.wait_for_leader(30)
    etcd.kill()
    waiting(lambda: not fleet.leaders(), TTL + SLACK, "the leader to step down")
    waiting(
        lambda: not any((n.cluster() or {}).get("quorate") for n in fleet.nodes), 2 * TTL + SLACK, "quorum to lapse"
    )
    etcd.start()
    fleet.wait_until_whole(TAKEOVER_BOUND + 2 * SLACK)
    assert fleet.two_leaders_at() == []


def test_an_etcd_that_is_back_before_the_deadline_changes_no_leader(fleet: Fleet, etcd: Etcd, waiting: Wait) -> None:
    (old,) = fleet.leaders()
    etcd.kill()
    etcd.start()
    waiting(lambda: etcd.leader == old.name, 30, "etcd to answer")
    began = time.monotonic()
    waiting(lambda: time.monotonic() > began + TTL + 1, 3 * TTL, "one ttl and a second")
    assert fleet.leaders() == [old]
    assert {node.name for node in fleet.nodes if any(leads for _, leads in node.answers)} == {old.name}
