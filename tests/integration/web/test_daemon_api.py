"""The control API of a real daemon: the web cases, and stopping it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

pytestmark = pytest.mark.integration

TOKEN = {"Authorization": "Bearer test-token"}


class Daemon:
    """A daemon with its API on a port of the loopback address."""

    def __init__(self, config: Path, port: int) -> None:
        code = "import sys; from cronstable.cli import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "-c", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self.serving = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.serving.wait(30), self.log
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10, headers=TOKEN)
        self.until(lambda: self.http.get("/readyz").status_code == 200)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if "web: listening" in line:
                self.serving.set()
        self.process.stderr.close()

    def until(self, condition: Callable[[], Any], within: float = 20) -> Any:
        """What ``condition`` gives once it is true; every look is a request, so nothing spins."""
        deadline = time.monotonic() + within
        while not (found := condition()):
            assert time.monotonic() < deadline, self.log
        return found

    def stop(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def daemon(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[Callable[..., Daemon]]:
    running: list[Daemon] = []

    def start(*jobs: dict[str, Any]) -> Daemon:
        (port,) = free_ports(1)
        web = {"listen": [f"http://127.0.0.1:{port}"], "authToken": {"value": "test-token"}}
        config = tmp_path / "cronstable.yaml"
        config.write_text(yaml.safe_dump({"jobs": [{"name": "a", **job} for job in jobs], "web": web}))
        running.append(Daemon(config, port))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def case(repo: Path) -> Callable[[str], dict[str, Any]]:
    def load(name: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((repo / "tests" / "cases" / f"web-{name}.yaml").read_text())
        return found

    return load


def test_a_second_start_of_a_forbid_job_is_refused_and_cancel_ends_the_first(daemon: Any, case: Any) -> None:
    wanted = case("start-forbidden-overlap")
    one = daemon({"command": "sleep 60", "schedule": "@yearly", **wanted["input"]["job"]})
    first, second = one.http.post("/jobs/a/start"), one.http.post("/jobs/a/start")
    assert first.status_code == 200
    assert second.status_code == wanted["expected"]["second"]["status"]
    assert set(second.json()) == {"error"}
    assert one.http.get("/status", headers={"Accept": "application/json"}).json()[0]["status"] == "running"
    assert one.http.post("/jobs/a/cancel").json() == {"cancelled": "a", "instances": 1}
    one.until(lambda: "cancelled" in [run["outcome"] for run in one.http.get("/jobs/a/runs").json()["runs"]])
    assert one.http.get("/jobs/a").json()["running"] is False


def test_a_page_of_another_site_starts_nothing(daemon: Any, case: Any) -> None:
    wanted = case("cross-origin-post-refused")
    one = daemon({"command": "true", "schedule": "@yearly"})
    request, origin = wanted["input"]["request"].split(" with Origin: ")
    method, target = request.split()
    reply = one.http.request(method, target, headers={"Origin": origin})
    assert reply.status_code == wanted["expected"]["status"]
    assert one.http.get("/jobs/a/runs").json()["runs"] == []


def test_a_request_without_accept_is_answered(daemon: Any, case: Any) -> None:
    wanted = case("no-accept-header")
    one = daemon({"command": "true", "schedule": "@yearly"})
    request = one.http.build_request("GET", "/status")
    del request.headers["Accept"]
    assert one.http.send(request).status_code == wanted["expected"]["status"]


def test_the_next_run_shown_is_the_instant_of_the_run_and_looking_does_not_move_it(daemon: Any, case: Any) -> None:
    zone = case("one-zone-everywhere")["input"]["job"]["timezone"]
    assert case("reading-does-not-move-next-run")["expected"]["actual_fire_unchanged"]
    one = daemon(
        {"command": "true", "schedule": "*/3 * * * * * *", "timezone": zone},
        {"name": "far", "command": "true", "schedule": "@yearly"},
    )
    shown = one.http.get("/summary").json()
    promised = datetime.fromisoformat(shown["next_fire"]["at"])
    waits = [one.http.get("/jobs").json()[1]["scheduled_in"] for _ in range(50)]
    (run,) = one.until(
        lambda: [
            run
            for run in one.http.get("/jobs/a/runs").json()["runs"]
            if datetime.fromisoformat(run["scheduled_at"]) == promised
        ]
    )
    started = datetime.fromisoformat(run["started_at"])
    assert started >= promised
    assert promised.utcoffset() == started.utcoffset() == timedelta(0)
    assert waits == sorted(waits, reverse=True)
    assert json.loads(one.http.get("/jobs/a").text)["timezone"] == zone


def test_shutdown_over_the_api_ends_the_daemon_with_success(daemon: Any) -> None:
    one = daemon({"command": "true", "schedule": "@yearly"})
    assert one.http.post("/shutdown", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert one.http.post("/shutdown").json() == {"shuttingDown": True}
    assert one.process.wait(20) == 0


def test_sigterm_ends_the_daemon_at_once_although_a_client_holds_its_connection(daemon: Any) -> None:
    one = daemon({"command": "true", "schedule": "@yearly"})
    assert one.http.get("/version").status_code == 200
    one.process.terminate()
    assert one.process.wait(20) == 0
    assert not [line for line in one.log if "did not stop" in line or "Traceback" in line]


READERS = 200
WRITTEN = 3_000_000
MOST_EACH = 512 * 1024
"""Bytes of memory that a reader may cost: what waits for it, what is being sent, and what Python adds to both."""


def peak(daemon: Daemon) -> int:
    """Bytes of memory that the daemon ever had."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text("ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def drain(reader: socket.socket, told: bytearray) -> None:
    """Take in what a stream says until it ends."""
    while b"event: end" not in told[-200:] and (got := reader.recv(1 << 16)):
        told += got


def test_two_hundred_readers_who_take_nothing_cost_a_bounded_amount_of_memory(daemon: Callable[..., Daemon]) -> None:
    line = "a line of a job that writes a lot for all of those who read along"
    one = daemon({"schedule": "@yearly", "captureStdout": True, "command": f"yes '{line}' | head -c {WRITTEN}"})
    first = one.http.post("/jobs/a/start").json()["run_id"]  # what the output itself costs is no reader's
    one.until(lambda: one.http.get("/jobs/a/runs").json()["runs"], within=60)
    before = peak(one)
    with ExitStack() as open_now:
        address = (one.http.base_url.host, one.http.base_url.port)
        readers = [open_now.enter_context(socket.create_connection(address, 30)) for _ in range(READERS)]
        second = one.http.post("/jobs/a/start").json()["run_id"]
        head = f"GET /jobs/a/logs?run={second} HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN['Authorization']}\r\n\r\n"
        for reader in readers:
            reader.sendall(head.encode())
        for reader in readers:
            assert reader.recv(12) == b"HTTP/1.1 200"
        told = bytearray()
        # Who takes nothing is let go after a while: one more reads along, and it alone knows the end for certain.
        taker = open_now.enter_context(socket.create_connection(address, 30))
        taker.sendall(head.encode())
        reading = threading.Thread(target=drain, args=(taker, told))
        reading.start()
        one.until(lambda: len(one.http.get("/jobs/a/runs").json()["runs"]) == 2, within=60)
        grown = peak(one) - before
        reading.join(60)
    print(f"{READERS} readers: {grown / READERS / 1024:.0f} KiB each, of {WRITTEN / 1024:.0f} KiB written")
    assert first != second
    assert f"id: {second}:".encode() in told
    assert b"event: end" in told[-200:]
    assert grown < READERS * MOST_EACH
