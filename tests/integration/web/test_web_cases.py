"""The web cases on one daemon, behind a proxy that serves it below a path: requests, zones, and the tail of a log."""

from __future__ import annotations

import http.client
import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import httpx
import pytest
import yaml

pytestmark = pytest.mark.integration

CASES = Path(__file__).parents[2] / "cases"
FOUND = [yaml.safe_load(path.read_text()) for path in sorted(CASES.glob("**/web-*.yaml"))]
SENT = [case for case in FOUND if case["input"].get("how") == "http"]
TAILED = [case for case in FOUND if "log-tail-reconnect" in (case["id"], case.get("like"))]
SEEN = [case for case in FOUND if case["input"].get("how") == "look"]
PREFIX = "/tools/cron"
DEADLINE = 60.0


class Below(BaseRequestHandler):
    """Takes the prefix off the first line and passes everything else on, as it comes."""

    target = 0

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as inner:
            request = self.request.recv(65536)
            if not request.split(b" ")[1:2] or not request.split(b" ")[1].startswith(PREFIX.encode()):
                return
            inner.sendall(request.replace(PREFIX.encode(), b"", 1))
            while data := inner.recv(65536):
                try:
                    self.request.sendall(data)
                except OSError:
                    return


class Deployment:
    """A daemon with the jobs of all cases, and its proxy."""

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port
        jobs = [{"name": case["id"], **case["input"]["job"]} for case in SENT if "job" in case["input"]]
        look = {"command": "true", "schedule": "*/3 * * * * * *"}
        zones = [{"name": case["id"], **look, **case["input"].get("job", {})} for case in SEEN]
        # Lines come in two halves with a wait between that the test ends, so that a reader is there for some of them.
        tails = [
            {
                "name": case["id"],
                "command": f"seq 1 {half(case)}; while [ ! -e {directory}/{case['id']} ]; do sleep 0.05; done; "
                f"seq {half(case) + 1} {2 * half(case)}",
                "schedule": "@yearly",
                "captureStdout": True,
            }
            for case in TAILED
        ]
        self.directory = directory
        config = directory / "cronstable.yaml"
        web = {"listen": [f"http://127.0.0.1:{self.port}"]}
        config.write_text(yaml.safe_dump({"web": web, "jobs": [*jobs, *zones, *tails]}))
        self.log = (directory / "log").open("w+b")
        command = [sys.executable, "-m", "cronstable", "-c", str(config)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.proxy = ThreadingTCPServer(("127.0.0.1", 0), type("To", (Below,), {"target": self.port}))
        self.proxy.daemon_threads = True
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=DEADLINE)
        self.below = f"http://127.0.0.1:{self.proxy.server_address[1]}{PREFIX}"
        self.until(self.is_ready)

    def is_ready(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def until(self, condition: Any) -> Any:
        deadline = time.monotonic() + DEADLINE
        while not (found := condition()):
            assert time.monotonic() < deadline, (self.directory / "log").read_text()
            select.select([], [], [], 0.05)
        return found

    def close(self) -> None:
        self.http.close()
        self.proxy.shutdown()
        self.proxy.server_close()
        self.process.terminate()
        self.process.wait(DEADLINE)
        self.log.close()


def half(case: dict[str, Any]) -> int:
    lines: int = case["input"].get("lines", 30)
    return lines // 2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("web"), *free_ports(1))
    yield deployment
    deployment.close()


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in SENT])
def test_a_request_is_answered_as_its_case_says(case: dict[str, Any], site: Deployment) -> None:
    for step in case["input"]["requests"]:
        method, target = step["request"].replace("JOB", case["id"]).split(" ")
        given = {
            name: value.replace("HOST", f"127.0.0.1:{site.port}") for name, value in step.get("headers", {}).items()
        }
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE)
        connection.request(method, target, headers=given)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == step["status"], body
        assert answer.getheader("Content-Type", "").startswith(step.get("type", "application/json"))
        if answer.status >= 400:
            assert set(json.loads(body)) == {"error"}
        for key, value in step.get("has", {}).items():
            assert json.loads(body)[key] == (case["id"] if value == "JOB" else value)


def lines_of(site: Deployment, address: str, job: str, last: str, most: int) -> tuple[list[str], str, bool]:
    """At most so many lines of a tail, the id of the last one, and whether the end came."""
    lines: list[str] = []
    with site.http.stream("GET", f"{address}/jobs/{job}/logs", headers={"Last-Event-ID": last}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        kind = ""
        for row in answer.iter_lines():
            name, _, value = row.partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                identity = value
            elif name == "data" and kind == "line":
                lines.append(json.loads(value)["line"])
                last = identity
                if len(lines) == most:
                    return lines, last, False
            elif name == "data" and kind == "end":
                return lines, last, True
    return lines, last, False


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "below-a-path"])
@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in TAILED])
def test_a_tail_that_is_dropped_goes_on_where_it_was(case: dict[str, Any], site: Deployment, proxied: bool) -> None:
    assert case["expected"] == {"no_line_lost_or_doubled": True, "works_behind_path_prefix_proxy": True}
    job, drop_after = case["id"], case["input"].get("drop_after", 10)
    address = site.below if proxied else ""
    gate = site.directory / job
    gate.unlink(missing_ok=True)
    run = site.http.post(f"/jobs/{job}/start").json()["run_id"]
    site.until(lambda: site.http.get(f"/jobs/{job}").json()["running"])
    lines, last, over = lines_of(site, address, job, "", drop_after)
    assert last.startswith(f"{run}:")
    gate.touch()
    if case["input"].get("next_run"):
        site.until(lambda: not site.http.get(f"/jobs/{job}").json()["running"])
        gate.unlink()
        site.http.post(f"/jobs/{job}/start")
        site.until(lambda: site.http.get(f"/jobs/{job}").json()["running"])
    while not over:
        more, last, over = lines_of(site, address, job, last, drop_after)
        lines += more
    gate.touch()
    assert lines == [str(n) for n in range(1, 2 * half(case) + 1)]
    site.until(lambda: not site.http.get(f"/jobs/{job}").json()["running"])


def test_looking_moves_no_slot_and_every_time_has_its_offset(site: Deployment) -> None:
    for case in SEEN:
        job = case["id"]
        for path in case["input"].get("paths", ["/jobs"]) * 3:
            site.http.get(path.replace("JOB", job))
            # Later than the next slot it would have been moved. Negative: due, and not started yet.
            assert site.http.get(f"/jobs/{job}").json()["scheduled_in"] <= 3.0
    for case in SEEN:
        runs = site.until(partial(two_runs, site, case["id"]))
        times = [datetime.fromisoformat(run["scheduled_at"]) for run in runs]
        assert {at.timestamp() % 3 for at in times} == {0.0}
        assert all(newer > older for newer, older in pairwise(times))
        assert {at.utcoffset() for at in times} == {timedelta(0)}


def two_runs(site: Deployment, job: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = site.http.get(f"/jobs/{job}/runs").json()["runs"]
    return runs if len(runs) > 1 else []
