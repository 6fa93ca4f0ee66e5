"""``onLeaseLost`` on real daemons and real processes: gone before the node may not lead any more."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.integration

DEAF = "trap '' TERM; echo $$ > {pids}; while :; do sleep 1; done"
JOBS = """\
  - name: {name}
    command: "{command}"
    schedule: "* * * * * * *"
    concurrencyPolicy: Forbid
    clusterPolicy: Leader
    onLeaseLost: {mode}
    killTimeout: {patience}
"""

Wait = Callable[[Callable[[], object], float, str], None]


def jobs_in(directory: Path, modes: tuple[str, ...], patience: int = 1) -> str:
    return "".join(
        JOBS.format(name=mode, mode=mode, patience=patience, command=DEAF.format(pids=directory / f"{mode}.pid"))
        for mode in modes
    )


def alive(directory: Path, mode: str) -> bool:
    """Whether any process of the job's group lives: the shell is the leader of its group."""
    return group_lives(int((directory / f"{mode}.pid").read_text()))


def group_lives(group: int) -> bool:
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return False


def begun(directory: Path, mode: str) -> bool:
    path = directory / f"{mode}.pid"
    return path.exists() and path.read_text().strip().isdigit()


@pytest.fixture
def no_survivors(tmp_path: Path) -> Any:
    """What is meant to outlive the lease must not outlive the test."""
    yield
    for path in tmp_path.glob("*.pid"):
        text = path.read_text().strip()
        if text.isdigit():
            try:
                os.killpg(int(text), signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.mark.usefixtures("no_survivors")
def test_a_store_that_went_away_ends_the_runs_that_ask_for_it_before_the_node_stops_leading(
    make_fleet: Callable[..., Any], tmp_path: Path, waiting: Wait
) -> None:
    modes = ("continue", "term", "kill")
    fleet = make_fleet(1, jobs=jobs_in(tmp_path, modes))
    fleet.start()
    node = fleet.wait_for_leader(30)
    waiting(lambda: all(begun(tmp_path, mode) for mode in modes), 60, "the three jobs")
    (tmp_path / "shared").rename(tmp_path / "away")
    seen: list[tuple[bool, dict[str, bool]]] = []

    def deposed() -> bool:
        # The processes are looked at after the answer: what leads no more at that moment must have ended them.
        view = node.cluster()
        if view is None:
            return False
        seen.append((bool(view["is_leader"]), {mode: alive(tmp_path, mode) for mode in modes}))
        return not view["is_leader"]

    waiting(deposed, 60, "a leader without a lease")
    assert seen[-1] == (False, {"continue": True, "term": False, "kill": False})


@pytest.mark.usefixtures("no_survivors")
def test_a_run_that_was_cancelled_and_takes_its_time_ends_with_the_lease_all_the_same(
    make_fleet: Callable[..., Any], tmp_path: Path, waiting: Wait
) -> None:
    modes = ("continue", "term", "kill")
    fleet = make_fleet(1, jobs=jobs_in(tmp_path, modes, patience=300))
    fleet.start()
    node = fleet.wait_for_leader(30)
    waiting(lambda: all(begun(tmp_path, mode) for mode in modes), 60, "the three jobs")
    for mode in modes:
        request = urllib.request.Request(f"http://127.0.0.1:{node.port}/jobs/{mode}/cancel", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status < 300
    (tmp_path / "shared").rename(tmp_path / "away")
    seen: list[tuple[bool, dict[str, bool]]] = []

    def deposed() -> bool:
        view = node.cluster()
        if view is None:
            return False
        seen.append((bool(view["is_leader"]), {mode: alive(tmp_path, mode) for mode in modes}))
        return not view["is_leader"]

    waiting(deposed, 60, "a leader without a lease")
    assert seen[0][1] == {"continue": True, "term": True, "kill": True}
    assert seen[-1] == (False, {"continue": True, "term": False, "kill": False})


@pytest.mark.usefixtures("no_survivors")
def test_a_run_to_be_killed_is_gone_before_an_orderly_stop_lets_another_node_lead(
    make_fleet: Callable[..., Any], tmp_path: Path, waiting: Wait
) -> None:
    fleet = make_fleet(2, jobs=jobs_in(tmp_path, ("kill",)))
    fleet.start()
    fleet.wait_until_whole()
    old = fleet.wait_for_leader(30)
    waiting(lambda: begun(tmp_path, "kill"), 60, "the job")
    first = int((tmp_path / "kill.pid").read_text())
    old.send(signal.SIGTERM)
    fleet.wait_for_leader(30, other_than=old)
    assert not group_lives(first)
    assert old.wait(30) == 0


@pytest.mark.usefixtures("no_survivors")
def test_what_a_killed_daemon_left_running_is_ended_by_the_next_one_which_does_not_lead(
    make_fleet: Callable[..., Any], tmp_path: Path, waiting: Wait
) -> None:
    fleet = make_fleet(2, jobs=f"{jobs_in(tmp_path, ('kill', 'continue'))}state:\n  path: {tmp_path / 'state'}\n")
    fleet.start()
    fleet.wait_until_whole()
    old = fleet.wait_for_leader(30)
    waiting(lambda: begun(tmp_path, "kill") and begun(tmp_path, "continue"), 60, "the jobs")
    killed, left = (int((tmp_path / f"{mode}.pid").read_text()) for mode in ("kill", "continue"))
    records = (tmp_path / "state").glob
    waiting(lambda: any(records("*/records/inflight%2Fkill/*.json")), 60, "the record of what runs")
    old.send(signal.SIGKILL)
    old.wait(30)
    fleet.wait_for_leader(60, other_than=old)
    assert group_lives(killed)
    assert group_lives(left)
    old.start()
    waiting(lambda: not group_lives(killed), 60, "the end of the survivor")
    assert group_lives(left)
    os.killpg(left, signal.SIGKILL)
