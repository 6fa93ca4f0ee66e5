"""The description of the API holds for a running daemon, whatever is asked of it within it and outside."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.integration

DEADLINE = 60.0
ENDLESS = ("/jobs/{name}/logs", "/events")
"""Streams: a request for one ends when its reader goes."""
EXAMPLES = 5
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


class Site:
    """A daemon with one job that ran, and what it says of itself."""

    def __init__(self, directory: Path, port: int) -> None:
        config = directory / "cronstable.yaml"
        config.write_text(
            f"web: {{listen: ['http://127.0.0.1:{port}']}}\n"
            f"cluster: {{backend: filesystem, nodeName: node-a, filesystem: {{path: {directory}/shared, ttl: 5}}}}\n"
            f"state: {{path: {directory}/state}}\n"
            "jobs:\n"
            "  - {name: a, command: 'echo hello', schedule: '* * * * * * *', captureStdout: true,\n"
            "     monitorResources: true, clusterPolicy: PreferLeader, sla: {lateAfterSeconds: 5}}\n"
            "  - {name: b, command: 'sleep 60', schedule: 'H 3 * * *'}\n"
        )
        self.log = (directory / "log").open("w+b")
        command = [sys.executable, "-m", "cronstable", "-c", str(config)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.address = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.address, trust_env=False, timeout=DEADLINE)
        self.until(self.is_ready)
        # A fresh leader waits for a term before it starts what is due; a manual start waits for nobody.
        assert self.http.post("/jobs/a/start").status_code == 200
        self.until(lambda: bool(self.http.get("/jobs/a/runs").json()["runs"]))
        self.document: dict[str, Any] = self.http.get("/openapi.json").json()

    def is_ready(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            log = Path(self.log.name).read_text()
            assert time.monotonic() < deadline, log
            assert self.process.poll() is None, log
            select.select([], [], [], 0.1)

    def close(self) -> None:
        self.http.close()
        self.process.terminate()
        self.process.wait(DEADLINE)
        self.log.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("openapi"), *free_ports(1))
    yield made
    made.close()


ASKED = {
    "/schedule/preview": "?expression=*/5+*+*+*+*",
    "/schedule/why": "?job=a&at=2027-01-15T08:00:00Z",
}


def resolver(document: Mapping[str, Any], answer: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**answer, "components": document["components"]})


def test_every_answer_of_a_running_daemon_is_as_described_and_has_no_other_field(site: Site) -> None:
    seen = []
    for path, operations in site.document["paths"].items():
        answers = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "application/json" not in answers or path in ENDLESS:
            continue
        for name in ("a", "b"):
            target = path.replace("{name}", name) + ASKED.get(path, "")
            answer = site.http.get(target, headers={"Accept": "application/json"})
            assert answer.status_code == 200, (target, answer.text)
            resolver(site.document, answers["application/json"]["schema"]).validate(answer.json())
        seen.append(path)
    assert len(seen) > 20


def test_every_endpoint_of_the_page_is_described_and_no_other(site: Site) -> None:
    page = (Path(__file__).parents[3] / "docs/http-api.md").read_text("utf-8")
    documented = {
        (method.lower(), path) for method, path in re.findall(r"^\| (GET|POST) `([^`]+)`", page, re.MULTILINE)
    }
    described = {(method, path) for path, found in site.document["paths"].items() for method in found}
    assert described == documented - {("get", "/")}


def closed_values(schema: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Values that a parameter says it takes, its bounds among them, and some that it says it does not."""
    match schema:
        case {"type": "integer", "minimum": low, "maximum": high}:
            return [low, high], [low - 1, high + 1, "x"]
        case {"enum": list(values)}:
            return values, ["x", ""]
        case {"type": "boolean"}:
            return ["true", "false"], ["x", ""]
    return [], []


def is_closed(operation: Mapping[str, Any]) -> bool:
    """Whether the description says all of what is taken. Of a text it does not: a time zone has to exist."""
    queries = [one["schema"] for one in operation.get("parameters", ()) if one["in"] == "query"]
    return "requestBody" not in operation and all(any(closed_values(schema)) for schema in queries)


def test_every_value_that_a_parameter_says_it_takes_is_taken_and_none_beside_them(site: Site) -> None:
    seen = []
    for path, operations in site.document["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            taken, refused = closed_values(parameter["schema"])
            for values, status in ((taken, 200), (refused, 400)):
                for value in values:
                    given = httpx.QueryParams({parameter["name"]: value})
                    target = path.replace("{name}", "b") + ASKED.get(path, "?") + f"&{given}"
                    answer = site.http.get(target)
                    assert answer.status_code == status, (target, answer.text)
                    seen.append((path, parameter["name"]))
    assert len(set(seen)) >= 10


def test_the_description_is_one_by_its_own_standard(site: Site) -> None:
    identities = [found["operationId"] for one in site.document["paths"].values() for found in one.values()]
    assert len(set(identities)) == len(identities)
    text = json.dumps(site.document)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert named <= set(site.document["components"]["schemas"])
    for shape in site.document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(shape)


def test_no_request_within_the_description_or_beside_it_gets_another_answer(site: Site) -> None:
    schema = schemathesis.openapi.from_dict(site.document)
    tried: list[str] = []
    limits = settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        if operation.path in ENDLESS:
            continue

        @limits
        @given(case=operation.as_strategy())
        def play(case: Any) -> None:
            tried.append(case.operation.path)
            closed = is_closed(site.document["paths"][case.operation.path][case.operation.method.lower()])
            checks = [*CHECKS, positive_data_acceptance] if closed else list(CHECKS)
            answer = case.call(base_url=site.address, timeout=DEADLINE)
            case.validate_response(answer, checks=checks)
            if "name" in case.path_parameters:
                case.path_parameters["name"] = "a"
                case.validate_response(case.call(base_url=site.address, timeout=DEADLINE), checks=checks)

        play()
    assert len(set(tried)) == len(site.document["paths"]) - len(ENDLESS)
