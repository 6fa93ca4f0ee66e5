"""What a real daemon does when its surroundings are odd: renamed nodes, closed and clogged outputs."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
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


def test_thousands_of_half_open_connections_cost_no_run_and_who_is_connected_is_answered(
    waiting: Wait, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    descriptors, strangers = 256, 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * strangers:
        pytest.skip(f"this process may open {hard} files, and the test needs {2 * strangers}")
    out, log, config = tmp_path / "out", tmp_path / "log", tmp_path / "c.yaml"
    (port,) = free_ports(1)
    config.write_text(
        f"web:\n  listen: ['http://127.0.0.1:{port}']\n"
        f"jobs:\n- name: tick\n  command: 'echo $CRONSTABLE_SCHEDULED_AT >> {out}; echo said'\n"
        '  captureStdout: true\n  captureStderr: true\n  schedule: "* * * * * * *"\n'
    )
    shell = f'ulimit -S -n {descriptors}; exec "{sys.executable}" -m cronstable -c "{config}"'
    with log.open("wb") as file:
        daemon = subprocess.Popen(
            ["/bin/sh", "-c", shell], start_new_session=True, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )

    def runs() -> list[str]:
        return out.read_text().split() if out.exists() else []

    def served() -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as fresh:
            try:
                fresh.request("GET", "/healthz")
                return fresh.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    crowd: list[socket.socket] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * strangers, hard))
        waiting(lambda: len(runs()) >= 2 and served(), 20, "two runs")
        old = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        old.request("GET", "/healthz")
        assert old.getresponse().read() == b'{"status":"ok"}'
        for _ in range(strangers):
            crowd.append(socket.create_connection(("127.0.0.1", port), 10))
            with contextlib.suppress(ConnectionError):  # it was closed at once
                crowd[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        so_far = len(runs())
        waiting(lambda: len(runs()) >= so_far + 3, 20, "three more runs")
        old.request("GET", "/healthz")
        assert old.getresponse().read() == b'{"status":"ok"}', "on the connection that was there before"
        old.close()
        waiting(served, 40, "room for others, once the time for a head is over")
        assert log.read_text().count("refused a connection, 128 are open") == 1
        seconds = [datetime.fromisoformat(text).timestamp() for text in runs()]
        assert seconds == [seconds[0] + n for n in range(len(seconds))], "every second, once"
        daemon.terminate()
        assert daemon.wait(30) == 0
        assert "failed" not in log.read_text()
    finally:
        for one in crowd:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait(10)
        print(log.read_text()[-3000:])
