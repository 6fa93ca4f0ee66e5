"""Commands that are told by a real daemon, and ended when they do not end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest

pytestmark = pytest.mark.integration

Case = Callable[[str], dict[str, Any]]
Wait = Callable[[Callable[[], object], Callable[[], object]], None]


class Daemon(Protocol):
    text: str

    def wait_for(self, text: str) -> None: ...
    def stop(self) -> int: ...


StartDaemon = Callable[..., Daemon]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


@pytest.mark.parametrize("name", ["report-reporter-hang-bounded", "extra/report-reporter-leaves-a-child"])
def test_a_command_that_hangs_is_ended_with_its_children_and_delays_nobody(
    daemon: StartDaemon, case: Case, tmp_path: Path, wait_until: Wait, name: str
) -> None:
    wanted = case(name)
    # On a busy machine its children need a while to be there before they are ended.
    shell = {**wanted["input"]["report"]["shell"], "timeout": 5}
    pids, ticks = tmp_path / "pids", tmp_path / "ticks"
    # The group of the command, whatever it starts.
    command = f"echo $$ > {pids}; {shell['command']}"
    jobs = [
        {
            "name": "bad",
            "command": "exit 1",
            "schedule": "@reboot",
            "onFailure": {"report": {"shell": {**shell, "command": command}}},
        },
        {"name": "steady", "command": f"echo $CRONSTABLE_SCHEDULED_AT >> {ticks}", "schedule": "* * * * * * *"},
    ]
    running = daemon(json.dumps({"jobs": jobs}))
    wait_until(lambda: pids.exists() and pids.read_text().strip(), lambda: running.text)
    group = int(pids.read_text())
    members = [int(p) for p in os.listdir("/proc") if p.isdigit() and _group(int(p)) == group]
    assert group in members
    running.wait_for(f"job bad: onFailure: shell could not be told: the command was ended after {shell['timeout']:g} s")
    assert wanted["expected"]["reporter_tree_killed"]
    assert alive(members) == []
    wait_until(lambda: len(ticks.read_text().split()) >= 3, lambda: running.text)
    at = [datetime.fromisoformat(word) for word in sorted(ticks.read_text().split())]
    assert wanted["expected"]["other_jobs_on_time"]
    assert [(b - a).total_seconds() for a, b in pairwise(at)] == [1.0] * (len(at) - 1), "no occurrence is missing"
    assert running.stop() == 0


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def test_a_command_finds_the_facts_in_its_environment(daemon: StartDaemon, tmp_path: Path, wait_until: Wait) -> None:
    facts = tmp_path / "facts"
    tell = f"env -0 > {facts}.new; mv {facts}.new {facts}"
    job = {
        "name": "bad",
        "command": "echo out; echo err >&2; exit 3",
        "schedule": "@reboot",
        "captureStdout": True,
        "onPermanentFailure": {"report": {"shell": {"command": tell}}},
    }
    running = daemon(json.dumps({"jobs": [job]}), OF_THE_DAEMON="yes")
    wait_until(facts.exists, lambda: running.text)
    found = dict(line.split("=", 1) for line in facts.read_text().split("\0") if line)
    assert found["CRONSTABLE_EVENT"] == "onPermanentFailure"
    assert (found["CRONSTABLE_STDOUT"], found["CRONSTABLE_STDERR"]) == ("out\n", "err\n")
    assert (found["CRONSTABLE_RETCODE"], found["CRONSTABLE_FAILED"]) == ("3", "1")
    assert found["OF_THE_DAEMON"] == "yes"
    assert running.stop() == 0


def test_a_command_that_fails_is_an_error_with_the_end_of_what_it_said(daemon: StartDaemon) -> None:
    job = {
        "name": "bad",
        "command": "exit 1",
        "schedule": "@reboot",
        "onFailure": {"report": {"shell": {"command": "echo no route to pager >&2; exit 4"}}},
    }
    running = daemon(json.dumps({"jobs": [job]}))
    running.wait_for("job bad: onFailure: shell could not be told: the command ended with 4: no route to pager")


def test_a_report_that_waits_is_delivered_before_the_daemon_is_gone(daemon: StartDaemon, tmp_path: Path) -> None:
    told = tmp_path / "told"
    job = {
        "name": "bad",
        "command": "exit 1",
        "schedule": "@reboot",
        "onFailure": {"report": {"shell": {"command": f"sleep 1; touch {told}"}}},
    }
    running = daemon(json.dumps({"jobs": [job]}))
    running.wait_for("job bad: failed")
    assert running.stop() == 0
    assert told.exists()
