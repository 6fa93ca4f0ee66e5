"""What a real daemon does when its surroundings are odd: renamed nodes, closed and clogged outputs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], object], float, str], None]


def test_a_node_that_is_renamed_by_a_reload_runs_its_jobs_under_the_new_name(
    make_fleet: Callable[..., Any], waiting: Wait, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fleet = make_fleet(
        1, jobs=f"  - name: tell\n    command: 'echo $CRONSTABLE_NODE >> {out}'\n    schedule: \"* * * * * * *\"\n"
    )
    (node,) = fleet.nodes
    fleet.start()
    waiting(lambda: out.exists() and "node-a" in out.read_text(), 20, "a run under the first name")
    node.config.write_text(node.config.read_text().replace("nodeName: node-a", "nodeName: another"))
    node.send(signal.SIGHUP)
    waiting(lambda: (node.cluster() or {}).get("leader") == "another", 20, "the election under the new name")
    waiting(lambda: "another" in out.read_text(), 20, "a run under the new name")


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_daemon_started_with_closed_outputs_serves_and_writes_into_nothing_else(
    waiting: Wait, tmp_path: Path, closed: str
) -> None:
    out, config = tmp_path / "out", tmp_path / "c.yaml"
    config.write_text(
        f"web:\n  listen: ['unix://{tmp_path}/c.sock']\n"
        f"jobs:\n- name: tell\n  command: 'echo line; echo run >> {out}'\n  captureStdout: true\n"
        '  schedule: "* * * * * * *"\n'
    )
    shell = f'exec "{sys.executable}" -m cronstable -c "{config}" {closed}'
    daemon = subprocess.Popen(["/bin/sh", "-c", shell], start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        waiting(lambda: out.exists() and out.read_text().count("run") >= 2, 20, "two runs")
        for fd in re.findall(r"(\d)[<>]", closed):
            assert os.readlink(f"/proc/{daemon.pid}/fd/{fd}") == os.devnull
        daemon.terminate()
        assert daemon.wait(20) == 0
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait(10)


def test_a_job_that_floods_an_output_nobody_reads_still_ends(waiting: Wait, tmp_path: Path) -> None:
    done, config = tmp_path / "done", tmp_path / "c.yaml"
    config.write_text(
        f"jobs:\n- name: flood\n  command: 'seq 6000000; touch {done}'\n  captureStdout: true\n  schedule: '@reboot'\n"
    )
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "cronstable", "-c", str(config)]
    daemon = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
    try:
        waiting(done.exists, 60, "the end of the flood")
        daemon.terminate()
        assert daemon.wait(30) == 0
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait(10)
        os.close(reading)
        os.close(writing)


def test_a_reload_that_is_asked_for_while_the_daemon_starts_does_not_end_it(
    make_fleet: Callable[..., Any], waiting: Wait
) -> None:
    (node,) = make_fleet(1).nodes
    node.start()

    def minds_hangups() -> bool:
        status = Path(f"/proc/{node.process.pid}/status").read_text()
        masks = dict(re.findall(r"^(SigIgn|SigCgt):\s*(\w+)", status, re.MULTILINE))
        return any(int(mask, 16) & 1 for mask in masks.values())

    waiting(minds_hangups, 30, "the first lines of the program")

    def ready() -> bool:
        node.send(signal.SIGHUP)
        return node.cluster() is not None

    waiting(ready, 30, "an answer")
    assert node.alive
