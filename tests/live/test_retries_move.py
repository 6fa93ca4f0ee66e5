"""Ladders, slots and boot markers on real daemons that share a directory: killed, started again, and never doubled."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]
RETRIES = 3
MANUAL = tuple(f"manual-{n}" for n in range(4))
DUE = ("due-0", "due-1")


def ask(port: int, method: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@dataclass
class Place:
    """Where nodes elect and keep their state: YAML of node i below ``cluster``, and the records of retries."""

    section: Callable[[int], str]
    records: Callable[[], Iterable[bytes]]


KEYS = b"live/state/records/retries"
STATE = "state:\n  backend: {0}\n  slotTtlSeconds: 5\n{1}"


@pytest.fixture
def directory(tmp_path: Path) -> Place:
    """Directories that all nodes see."""
    for name in ("shared", "state"):
        (tmp_path / name).mkdir()
    lease = f"  backend: filesystem\n  filesystem:\n    path: {tmp_path / 'shared'}\n    ttl: 5\n"
    state = STATE.format("filesystem", f"  path: {tmp_path / 'state'}\n  topology: shared\n")

    def records() -> Iterable[bytes]:
        for path in (tmp_path / "state").glob("*/records/retries*/*.json"):
            with contextlib.suppress(FileNotFoundError):  # trimmed in between
                yield path.read_bytes()

    return Place(lambda i: lease + state, records)


@pytest.fixture
def keyspace(etcd: Any) -> Place:
    """An etcd that all nodes reach."""
    state = STATE.format("etcd", f"  etcd:\n    endpoints: [{etcd.url}]\n    prefix: live/state\n")
    return Place(lambda i: etcd.section(i) + state, lambda: etcd.values(KEYS, KEYS[:-1] + b"t"))


def ladder(name: str, schedule: str) -> str:
    """A job that fails each time, after it wrote which attempt at which occurrence it is."""
    return f"""\
  - name: {name}
    command: 'echo "{name} $CRONSTABLE_OCCURRENCE_ID $CRONSTABLE_ATTEMPT $NODE" >> STAMPS; exit 3'
    schedule: "{schedule}"
    clusterPolicy: Leader
    onFailure:
      retry: {{maximumRetries: {RETRIES}, initialDelay: 4, maximumDelay: 4, backoffMultiplier: 1}}
"""


LADDERS = "".join([ladder(name, "0 0 1 1 *") for name in MANUAL] + [ladder(name, "*/20 * * * * * *") for name in DUE])


def all_armed(place: Place, since: float) -> Callable[[], bool]:
    """Whether every ladder waits for its second retry, begun since then, going by the records."""

    def armed(raw: bytes) -> bool:
        # Stores put marks of their own before and after what they keep.
        data = json.JSONDecoder().raw_decode(raw[raw.index(b"{") :].decode())[0]["data"]
        second = (data["kind"], data["attempt"]) == ("pending", 2)
        return second and datetime.fromisoformat(data["armedAt"]).timestamp() >= since

    return lambda: sum(map(armed, place.records())) >= len(MANUAL) + len(DUE)


PLACES = ["directory"] if int(os.environ.get("CRONSTABLE_ENDURANCE_ROUNDS", "2")) <= 2 else ["directory", "keyspace"]
"""The steps are the same on every store, and the contract kit holds the stores: once is enough for each commit."""


@pytest.mark.parametrize("where", PLACES)
def test_a_ladder_goes_on_elsewhere_after_its_node_was_killed_and_no_attempt_is_made_twice(
    make_fleet: Callable[..., Fleet], where: str, request: pytest.FixtureRequest, waiting: Wait, rounds: int
) -> None:
    """Killed while it waits: an attempt that is under way with its daemon ends the ladder, for nobody knows its end."""
    place: Place = request.getfixturevalue(where)
    fleet = make_fleet(jobs=LADDERS, backend_of=place.section)
    fleet.start()
    fleet.wait_until_whole()
    moved = 0
    kills = max(1, rounds - 1)
    for kill in range(kills):
        old = fleet.wait_for_leader(30)
        before, since = len(lines(fleet.stamps)), time.time()

        def made(names: tuple[str, ...], attempt: int, since: int = before) -> list[list[str]]:
            rows = lines(fleet.stamps)[since:]
            return [row for row in rows if row[0] in names and int(row[2]) >= attempt]

        waiting(lambda: len(made(DUE, 0)) >= len(DUE), 60, "an occurrence")
        for name in MANUAL:
            assert ask(old.port, "POST", f"/jobs/{name}/start")[0] == 200
        waiting(all_armed(place, since), 30, "retries to be waited for")
        old.send(signal.SIGKILL)
        old.wait(10)
        waiting(lambda: len(made(MANUAL, RETRIES)) >= len(MANUAL), 60, "the last retries")
        waiting(lambda: len(made(DUE, RETRIES)) >= len(DUE), 60, "the last retries of what is claimed")
        moved += len({row[0] for row in made((*MANUAL, *DUE), 2) if row[3] != old.name})
        if kill + 1 < kills:
            old.start()
            fleet.wait_until_whole()
    assert moved > 0
    attempts = Counter((row[1], int(row[2])) for row in lines(fleet.stamps))
    assert [attempt for attempt, count in attempts.items() if count > 1] == []
    # Nothing is left out of a ladder that a person began: each attempt was made, here or there.
    for occurrence in {row[1] for row in lines(fleet.stamps) if row[0] in MANUAL}:
        assert {attempt for found, attempt in attempts if found == occurrence} == set(range(RETRIES + 1))


SLOTS = """\
  - name: alone
    command: 'echo "start $NODE $(date +%s.%N)" >> STAMPS; sleep 0.7; echo "end $NODE $(date +%s.%N)" >> STAMPS'
    schedule: "* * * * * * *"
    clusterPolicy: EveryNode
    concurrencyPolicy: Forbid
    concurrencyScope: cluster
  - name: newest
    command: 'echo "newest $NODE" >> STAMPS; exec sleep 300'
    schedule: "0 0 1 1 *"
    clusterPolicy: EveryNode
    concurrencyPolicy: Replace
    concurrencyScope: cluster
    killTimeout: 1
"""


def test_a_slot_keeps_two_nodes_from_running_a_job_at_once_and_replace_reaches_across_nodes(
    make_fleet: Callable[..., Fleet], directory: Place, waiting: Wait
) -> None:
    fleet = make_fleet(2, jobs=SLOTS, backend_of=directory.section)
    fleet.start()
    fleet.wait_until_whole()
    a, b = fleet.nodes
    assert ask(a.port, "POST", "/jobs/newest/start")[0] == 200
    waiting(lambda: ["newest", "node-a"] in lines(fleet.stamps), 30, "the run that is to be replaced")
    assert ask(b.port, "POST", "/jobs/newest/start")[0] == 200
    waiting(lambda: ["newest", "node-b"] in lines(fleet.stamps), 60, "the run that replaces it")
    rows = ask(a.port, "GET", "/jobs/newest/runs")[1]["runs"]
    assert [row["outcome"] for row in rows if row["node"] == "node-a"] == ["cancelled"]

    def runs() -> list[tuple[float, str, str]]:
        return sorted((float(row[2]), row[0], row[1]) for row in lines(fleet.stamps) if row[0] in ("start", "end"))

    waiting(lambda: len(runs()) >= 12, 60, "some runs")
    waiting(lambda: "slot-held" in a.log.read_text() + b.log.read_text(), 60, "a run that found the slot held")
    for first, second in zip(runs()[::2], runs()[1::2], strict=False):
        assert (first[1], second[1], first[2]) == ("start", "end", second[2])


REBOOT = """\
  - name: once
    command: 'echo "once $NODE" >> STAMPS'
    schedule: "@reboot"
    clusterPolicy: EveryNode
  - name: stays
    command: 'echo "stays $NODE" >> STAMPS; exec sleep 300'
    schedule: "@reboot"
    clusterPolicy: EveryNode
"""


def test_a_daemon_that_is_started_again_does_not_run_reboot_jobs_of_this_boot_again(
    make_fleet: Callable[..., Fleet], directory: Place, waiting: Wait
) -> None:
    fleet = make_fleet(1, jobs=REBOOT, backend_of=directory.section)
    fleet.start()
    (node,) = fleet.nodes
    waiting(lambda: len(lines(fleet.stamps)) >= 2, 30, "both runs")

    def said(text: str) -> Callable[[], bool]:
        return lambda: text in node.log.read_text()

    node.send(signal.SIGKILL)
    node.wait(10)
    node.start()
    waiting(said("job once: @reboot ran in this boot already"), 30, "the daemon to say so")
    waiting(said("job stays: @reboot"), 30, "a word on the other one")
    assert sorted(lines(fleet.stamps)) == [["once", "node-a"], ["stays", "node-a"]]
    ask(node.port, "POST", "/jobs/stays/cancel")
