"""The answers in ``docs/http-api.md`` have the keys that a running daemon sends."""

from __future__ import annotations

import http.client
import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
DEADLINE = 60.0
ANSWER = re.compile(r"^### GET (\S+)\n(?:(?!^###).)*?```json\n(.*?)```", re.DOTALL | re.MULTILINE)
ANSWERS = ANSWER.findall(PAGE.read_text(encoding="utf-8"))


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_ready(port: int) -> bool:
    try:
        status, body = get(port, "/jobs/refresh-cache")
    except OSError:
        return False
    return status == 200 and json.loads(body)["last_run"] is not None


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]) -> Iterator[int]:
    """A daemon that leads and has run its job at least once."""
    directory = tmp_path_factory.mktemp("documented")
    (number,) = free_ports(1)
    config = directory / "cronstable.yaml"
    config.write_text(
        f"cluster: {{backend: filesystem, nodeName: node-a, filesystem: {{path: {directory}/shared, ttl: 5}}}}\n"
        f"web: {{listen: ['http://127.0.0.1:{number}']}}\n"
        "jobs:\n"
        "  - {name: refresh-cache, command: 'true', schedule: '* * * * * * *', clusterPolicy: PreferLeader}\n"
        "  - {name: charge-cards, command: 'true', schedule: '@yearly'}\n",
        encoding="utf-8",
    )
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "cronstable", "-c", str(config)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE
        while not is_ready(number):
            assert daemon.poll() is None, (directory / "log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline, (directory / "log").read_text(encoding="utf-8")
            select.select([], [], [], 0.1)
        yield number
    finally:
        daemon.terminate()
        daemon.wait(timeout=DEADLINE)


def keys(value: Any) -> Any:
    """The names in a document, without what stands under them.

    The facts of a decision differ from reason to reason, as the page says: which ones the newest has is not its shape.
    """
    if isinstance(value, dict):
        return {name: None if name == "evidence" else keys(inside) for name, inside in value.items()}
    if isinstance(value, list):
        # A list of words is long or empty as the machine has it; a list of documents shows what one looks like.
        return [keys(value[0])] if value and isinstance(value[0], dict | list) else []
    return None


# The fleet takes more than one node: tests/live/test_gossip.py asks it.
@pytest.mark.parametrize(("path", "text"), [pytest.param(p, t, id=p) for p, t in ANSWERS if p != "/fleet"])
def test_a_documented_answer_has_the_keys_of_a_real_one(port: int, path: str, text: str) -> None:
    status, body = get(port, path.replace("{name}", "refresh-cache"))
    assert status == 200
    real, documented = json.loads(body), json.loads(text)
    assert keys(real) == keys(documented)


def test_eight_answers_are_documented_in_full() -> None:
    of_a_job = ["/jobs/{name}", "/jobs/{name}/runs", "/jobs/{name}/decisions"]
    assert [path for path, _ in ANSWERS] == [*of_a_job, "/activity", "/cluster", "/fleet", "/node", "/summary"]


def test_a_daemon_without_a_token_refuses_to_be_shut_down_over_http(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("POST", "/shutdown")
        answer = connection.getresponse()
        body = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == 403
    assert f"`{body}`" in PAGE.read_text(encoding="utf-8")


def test_the_facts_of_a_claimed_run_are_the_documented_ones(port: int) -> None:
    """``keys`` leaves evidence out, because it differs by reason: here is the documented reason's own."""
    (documented,) = [json.loads(text)["decisions"][0] for path, text in ANSWERS if path == "/jobs/{name}/decisions"]
    deadline = time.monotonic() + DEADLINE
    same: list[dict[str, Any]] = []
    while not same:
        assert time.monotonic() < deadline, "no run was claimed"
        _, body = get(port, "/jobs/refresh-cache/decisions?limit=100")
        same = [d for d in json.loads(body)["decisions"] if d["reason"] == documented["reason"]]
        select.select([], [], [], 0.1)
    assert set(same[0]["evidence"]) == set(documented["evidence"])
