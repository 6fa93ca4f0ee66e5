"""A real daemon whose election and state are in a real etcd: no run waits for it, and history comes back from it.

Failover over etcd is in test_failover, ladders that move over it in test_retries_move.
"""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

JOBS = """\
  - name: everywhere
    command: 'echo "$NODE $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)" >> STAMPS'
    schedule: "* * * * * * *"
    clusterPolicy: EveryNode
"""

Etcd = Any
Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]


def finished(port: int) -> list[str]:
    """Ids of the runs that the node knows."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/jobs/everywhere/runs?limit=1000")
        return [run["run_id"] for run in json.loads(connection.getresponse().read())["runs"]]
    finally:
        connection.close()


def kept(etcd: Etcd) -> list[bytes]:
    below = b"cronstable/state/records/runs%2Feverywhere/"
    return list(etcd.values(below, below[:-1] + b"0"))


def test_runs_start_while_etcd_is_away_and_history_comes_back_from_it_after_kill_9(
    make_fleet: Callable[..., Fleet], etcd: Etcd, waiting: Wait
) -> None:
    state = f"state:\n  backend: etcd\n  etcd:\n    endpoints:\n      - {etcd.url}\n"
    fleet = make_fleet(1, backend_of=lambda i: etcd.section(i) + state, jobs=JOBS)
    (node,) = fleet.nodes
    fleet.start()
    waiting(lambda: len(kept(etcd)) >= 3, 60, "the records of three runs")
    etcd.take_away()
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 6, 30, "runs without etcd")
    etcd.give_back()
    waiting(lambda: len(kept(etcd)) >= count + 6, 60, "what was kept back to be written")
    known, written = set(finished(node.port)), len(kept(etcd))
    # Records are written in order, a moment after their run.
    waiting(lambda: len(kept(etcd)) >= written + 3, 30, "the records of these runs")
    node.send(signal.SIGKILL)
    node.wait(10)
    node.start()
    waiting(lambda: node.cluster() is not None and known <= set(finished(node.port)), 60, "the history")
    assert len(known) >= 9
