"""Three real daemons whose election and state are in one real etcd: work moves with it, and no run waits for it."""

from __future__ import annotations

import http.client
import json
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

RETRIES = 3
JOBS = f"""\
  - name: ladder
    command: 'echo "ladder-$CRONSTABLE_ATTEMPT-$NODE $CRONSTABLE_OCCURRENCE_ID $(date +%s.%N)" >> STAMPS; exit 3'
    schedule: "0 0 1 1 *"
    clusterPolicy: Leader
    onFailure:
      retry: {{maximumRetries: {RETRIES}, initialDelay: 3, maximumDelay: 3, backoffMultiplier: 1}}
  - name: everywhere
    command: 'echo "everywhere-0-$NODE $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)" >> STAMPS'
    schedule: "* * * * * * *"
    clusterPolicy: EveryNode
"""

Etcd = Any
Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]


def ask(port: int, method: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet], etcd: Etcd) -> Fleet:
    state = f"state:\n  backend: etcd\n  etcd:\n    endpoints:\n      - {etcd.url}\n"
    fleet = make_fleet(backend_of=lambda i: etcd.section(i) + state, jobs=JOBS)
    fleet.start()
    fleet.wait_until_whole()
    return fleet


def rows(fleet: Fleet, job: str) -> list[tuple[int, str, str]]:
    """Attempt, node and occurrence of each run."""
    words = [(who.split("-", 2), occurrence) for who, occurrence, _ in fleet.occurrences()]
    return [(int(attempt), node, occurrence) for (name, attempt, node), occurrence in words if name == job]


def kept(etcd: Etcd, stream: str) -> list[bytes]:
    below = f"cronstable/state/records/{stream}/".encode()
    return list(etcd.values(below, below[:-1] + b"0"))


def test_a_ladder_moves_with_its_record_history_comes_back_and_no_run_waits_for_an_etcd_that_is_away(
    fleet: Fleet, etcd: Etcd, waiting: Wait
) -> None:
    old = fleet.wait_for_leader(30)
    assert ask(old.port, "POST", "/jobs/ladder/start")[0] == 200
    waiting(lambda: any(b'"pending"' in record for record in kept(etcd, "retries%2Fladder")), 30, "the pending record")
    old.send(signal.SIGKILL)
    old.wait(10)
    waiting(lambda: any(attempt == RETRIES for attempt, _, _ in rows(fleet, "ladder")), 90, "the last retry elsewhere")
    made = rows(fleet, "ladder")
    assert len({occurrence for _, _, occurrence in made}) == 1
    assert Counter(attempt for attempt, _, _ in made) == dict.fromkeys(range(RETRIES + 1), 1)
    assert made[-1][1] != old.name

    # Away: each node goes on with what is its own, second by second.
    before = len(kept(etcd, "runs%2Feverywhere"))
    assert before > 0
    etcd.take_away()
    count = len(rows(fleet, "everywhere"))
    waiting(lambda: len(rows(fleet, "everywhere")) >= count + 12, 30, "runs on two nodes")
    etcd.give_back()
    waiting(lambda: len(kept(etcd, "runs%2Feverywhere")) > before, 60, "what was kept back to be written")

    # A node that begins with nothing knows what the others ran.
    old.start()
    fleet.wait_until_whole(60)
    outcomes = [run["outcome"] for run in ask(old.port, "GET", "/jobs/ladder/runs")[1]["runs"]]
    assert outcomes.count("failure") >= 1
