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
from functools import partial
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
    """Where nodes elect and keep their state: YAML of node i below ``cluster``, and records of retries by place."""

    section: Callable[[int], str]
    records: Callable[[], Iterable[tuple[str, bytes]]]


KEYS = b"live/state/records/retries"
STATE = "state:\n  backend: {0}\n  slotTtlSeconds: 5\n{1}"


@pytest.fixture
def directory(tmp_path: Path) -> Place:
    """Directories that all nodes see."""
    for name in ("shared", "state"):
        (tmp_path / name).mkdir()
    lease = f"  backend: filesystem\n  filesystem:\n    path: {tmp_path / 'shared'}\n    ttl: 5\n"
    state = STATE.format("filesystem", f"  path: {tmp_path / 'state'}\n  topology: shared\n")

    def records() -> Iterable[tuple[str, bytes]]:
        for path in (tmp_path / "state").glob("*/records/retries*/*.json"):
            with contextlib.suppress(FileNotFoundError):  # trimmed in between
                yield path.parent.name, path.read_bytes()

    return Place(lambda i: lease + state, records)


@pytest.fixture
def keyspace(etcd: Any) -> Place:
    """An etcd that all nodes reach."""
    state = STATE.format("etcd", f"  etcd:\n    endpoints: [{etcd.url}]\n    prefix: live/state\n")
    return Place(lambda i: etcd.section(i) + state, lambda: etcd.pairs(KEYS, KEYS[:-1] + b"t"))


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


@dataclass(frozen=True)
class Step:
    """A record of a ladder: ``waits`` for the attempt, or says what became of it. ``at``: wall seconds."""

    job: str
    host: str
    attempt: int
    waits: bool
    at: float


def steps(place: Place, since: float) -> list[Step]:
    """What was written about ladders since then, oldest first."""
    found = []
    for stream, raw in place.records():
        # Stores put marks of their own before and after what they keep.
        data = json.JSONDecoder().raw_decode(raw[raw.index(b"{") :].decode())[0]["data"]
        at = datetime.fromisoformat(data["at"]).timestamp()
        if at >= since and data["kind"] in ("pending", "settled"):
            name = stream.rpartition("retries")[2].replace("%2F", "/").split("/")[1]
            found.append(Step(name, data["host"], data.get("attempt", 0), data["kind"] == "pending", at))
    return sorted(found, key=lambda step: step.at)


def newest(place: Place, since: float, host: str) -> dict[str, Step]:
    """What a node wrote last about each ladder."""
    return {step.job: step for step in steps(place, since) if step.host == host}


class Story:
    """A fleet, and the stamps and records that tell what it did since the last beginning."""

    def __init__(self, fleet: Fleet, place: Place, waiting: Wait) -> None:
        self.fleet, self.place, self.waiting = fleet, place, waiting
        self.begin()

    def begin(self) -> None:
        self.before, self.since = len(lines(self.fleet.stamps)), time.time()

    def made(self, names: tuple[str, ...], attempt: int) -> list[list[str]]:
        """Attempts with at least that number."""
        return [row for row in lines(self.fleet.stamps)[self.before :] if row[0] in names and int(row[2]) >= attempt]

    def kill_between_attempts(self) -> tuple[Any, set[str]]:
        """Kill the leader while its ladders wait for their second retry, and say which were not waiting after all.

        Seen in the records, not by the clock: on a busy machine an attempt may begin between the look and the kill.
        Such a ladder ends (the guide says so), and a ladder that was missed altogether is begun anew.
        """
        for _ in range(10):
            old = self.fleet.wait_for_leader(30)
            self.begin()
            self.waiting(lambda: len(self.made(DUE, 0)) >= len(DUE), 60, "an occurrence")
            for name in MANUAL:
                assert ask(old.port, "POST", f"/jobs/{name}/start")[0] == 200
            self.waiting(partial(self.all_at_or_beyond, 2, old), 60, "the second retries")
            if self.all_at(2, old):
                old.send(signal.SIGKILL)
                old.wait(10)
                cut = self.cut(old)
                if len(cut) < len(MANUAL):
                    return old, cut
                old.start()
            else:
                self.waiting(lambda: len(self.made(MANUAL, RETRIES)) >= len(MANUAL), 60, "the end of what was missed")
            self.fleet.wait_until_whole(60)
        pytest.fail("ten times no ladder was met while it waited")

    def all_at(self, attempt: int, node: Any) -> bool:
        found = newest(self.place, self.since, node.name)
        return all(name in found and found[name].waits and found[name].attempt == attempt for name in MANUAL)

    def all_at_or_beyond(self, attempt: int, node: Any) -> bool:
        """Whether all wait for it, or one went on already."""
        found = newest(self.place, self.since, node.name)
        beyond = any(step.attempt > attempt for name, step in found.items() if name in MANUAL)
        return beyond or self.all_at(attempt, node)

    def complete(self, killed: Any) -> bool:
        """Whether every ladder came to its end, but for those that were cut off."""
        return {row[0] for row in self.made(MANUAL, RETRIES)} | self.cut(killed) >= set(MANUAL)

    def cut(self, killed: Any) -> set[str]:
        """Ladders of which a dead node wrote last that the attempt begins: nobody knows how that ended."""
        found = newest(self.place, self.since, killed.name)
        return {name for name in MANUAL if name not in found or not found[name].waits}


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
    story = Story(fleet, place, waiting)
    moved, ended, kills = 0, set(), max(1, rounds - 1)
    for kill in range(kills):
        old, cut = story.kill_between_attempts()

        waiting(partial(story.complete, old), 90, "the last retries")
        waiting(lambda: len(story.made(DUE, RETRIES)) >= len(DUE), 90, "the last retries of what is claimed")
        rest = set(MANUAL) - story.cut(old)
        moved += len({row[0] for row in story.made((*MANUAL, *DUE), 2) if row[3] != old.name})
        ended |= {row[1] for row in story.made(MANUAL, 0) if row[0] not in rest}
        print(f"kill {kill + 1}: {len(rest)} ladders were waiting, {len(cut)} were in an attempt; {moved} moved so far")
        if kill + 1 < kills:
            old.start()
            fleet.wait_until_whole(60)
    assert moved > 0
    attempts = Counter((row[1], int(row[2])) for row in lines(fleet.stamps))
    assert [attempt for attempt, count in attempts.items() if count > 1] == []
    # Nothing is left out of a ladder that a person began and that was not met in an attempt.
    for occurrence in {row[1] for row in lines(fleet.stamps) if row[0] in MANUAL} - ended:
        assert {attempt for found, attempt in attempts if found == occurrence} == set(range(RETRIES + 1))


def ended(port: int, job: str) -> bool:
    """No run of the job is left on the node."""
    return not ask(port, "GET", f"/jobs/{job}")[1]["running"]


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
  - name: long
    command: 'exec sleep 300'
    schedule: "0 0 1 1 *"
    clusterPolicy: EveryNode
    concurrencyPolicy: Forbid
    concurrencyScope: cluster
"""


def test_a_slot_keeps_two_nodes_from_running_a_job_at_once_and_replace_reaches_across_nodes(
    make_fleet: Callable[..., Fleet], directory: Place, waiting: Wait
) -> None:
    fleet = make_fleet(2, jobs=SLOTS, backend_of=directory.section)
    fleet.start()
    fleet.wait_until_whole()
    a, b = fleet.nodes
    assert ask(a.port, "POST", "/jobs/long/start")[0] == 200
    assert ask(b.port, "POST", "/jobs/long/start") == (
        409,
        {"error": "node-a runs the job, and its concurrencyScope is cluster"},
    )
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
    # What would outlive its daemon is ended by it.
    for name, node in (("long", a), ("newest", b)):
        assert ask(node.port, "POST", f"/jobs/{name}/cancel") == (200, {"cancelled": name, "instances": 1})
        waiting(partial(ended, node.port, name), 30, f"{name} to end")


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
