"""Requests that a real server has answered, or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

pytestmark = pytest.mark.integration

Case = Callable[[str], dict[str, Any]]


class Request(Protocol):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


class Endpoint(Protocol):
    url: str
    requests: list[Request]

    def of(self, path: str) -> list[Request]: ...
    def arrived(self, count: int = 1, path: str = "/") -> list[Request]: ...


class Daemon(Protocol):
    text: str

    def wait_for(self, text: str) -> None: ...
    def reload(self, config: str) -> None: ...
    def stop(self) -> int: ...


StartDaemon = Callable[..., Daemon]


def webhook(endpoint: Endpoint, path: str = "/ok", **section: object) -> dict[str, object]:
    return {"report": {"webhook": {"url": {"value": endpoint.url + path}, **section}}}


def job(name: str, command: str, **more: object) -> dict[str, object]:
    return {"name": name, "command": command, "schedule": "@reboot", "captureStdout": True, **more}


def config(*jobs: Mapping[str, object], **sections: object) -> str:
    return json.dumps({"jobs": list(jobs), **sections})


@pytest.mark.parametrize(
    ("name", "hook", "told"),
    [
        ("report-webhook-on-failure-only", "onFailure", "bad"),
        ("extra/report-webhook-on-success-only", "onSuccess", "good"),
    ],
)
def test_a_hook_is_for_its_event_only(
    daemon: StartDaemon, endpoint: Endpoint, case: Case, name: str, hook: str, told: str
) -> None:
    wanted = case(name)["expected"]
    hooks = {hook: webhook(endpoint)}
    running = daemon(config(job("good", "echo fine", **hooks), job("bad", "exit 1", **hooks)))
    endpoint.arrived()
    running.wait_for("job good: success")
    running.wait_for("job bad: failed")
    assert running.stop() == 0
    assert len(endpoint.requests) == wanted["posts"]
    assert told in json.loads(endpoint.requests[0].body)["text"]


def test_every_attempt_is_told_and_its_permanence_once(daemon: StartDaemon, endpoint: Endpoint, case: Case) -> None:
    wanted = case("extra/report-webhook-on-each-attempt")["expected"]
    retry = {"maximumRetries": 1, "initialDelay": 0.1, "maximumDelay": 1, "backoffMultiplier": 1}
    hooks = {
        "onFailure": {"retry": retry, **webhook(endpoint, "/ok/attempt")},
        "onPermanentFailure": webhook(endpoint, "/ok/permanent"),
    }
    running = daemon(config(job("bad", "exit 1", **hooks)))
    endpoint.arrived(1, "/ok/permanent")
    assert running.stop() == 0
    assert [request.path for request in endpoint.requests] == ["/ok/attempt"] * wanted["failures"] + [
        "/ok/permanent"
    ] * wanted["permanent"], "in the order in which it happened"


@pytest.mark.parametrize("name", ["report-webhook-json-escaping", "extra/report-webhook-json-control-bytes"])
def test_output_does_not_break_the_document(daemon: StartDaemon, endpoint: Endpoint, case: Case, name: str) -> None:
    wanted = case(name)
    body = wanted["input"].get("body")
    section = {} if body is None else {"body": body}
    daemon(config(job("loud", wanted["input"]["job"]["command"], onFailure=webhook(endpoint, **section))))
    (request,) = endpoint.arrived()
    document = json.loads(request.body)
    assert wanted["expected"]["body_is_valid_json"]
    if wanted["expected"].get("both_equal"):
        assert document["plain"] == document["whole"]
        assert '</script>\t"\\' in document["plain"]
    else:
        assert 'a"b\\c\x01' in document["text"]


def test_a_template_that_gives_no_json_costs_the_template_not_the_alert(
    daemon: StartDaemon, endpoint: Endpoint, case: Case
) -> None:
    wanted = case("extra/report-webhook-json-broken-template")
    section = {"body": wanted["input"]["body"]}
    running = daemon(config(job("loud", wanted["input"]["job"]["command"], onFailure=webhook(endpoint, **section))))
    (request,) = endpoint.arrived()
    assert "Cron job 'loud' failed" in json.loads(request.body)["text"]
    for words in wanted["expected"]["log_names"]:
        running.wait_for(words)


def test_a_redirect_is_not_followed_and_no_address_is_logged(
    daemon: StartDaemon, endpoint: Endpoint, case: Case
) -> None:
    wanted = case("extra/report-webhook-redirect-keeps-the-secret")
    path = wanted["input"]["report"]["webhook"]["path"]
    running = daemon(config(job("bad", "exit 1", onFailure=webhook(endpoint, path))), level="DEBUG")
    running.wait_for("webhook could not be told: 127.0.0.1 answers 302; redirects are not followed")
    assert running.stop() == 0
    assert len(endpoint.of("/away")) == wanted["expected"]["posts"]
    assert len(endpoint.of("/ok")) == wanted["expected"]["followed"]
    assert "sesame" not in running.text


def test_a_busy_server_is_asked_again(daemon: StartDaemon, endpoint: Endpoint) -> None:
    running = daemon(config(job("bad", "exit 1", onFailure=webhook(endpoint, "/busy/sesame"))), level="DEBUG")
    first, second = endpoint.arrived(2)
    running.wait_for("127.0.0.1 answers 503; tried again in")
    assert running.stop() == 0
    assert first.body == second.body
    assert "sesame" not in running.text
    assert "could not be told" not in running.text


def test_a_refusal_is_an_error_at_once(daemon: StartDaemon, endpoint: Endpoint) -> None:
    running = daemon(config(job("bad", "exit 1", onFailure=webhook(endpoint, "/no/sesame"))))
    running.wait_for("job bad: onFailure: webhook could not be told: 127.0.0.1 answers 403")
    assert running.stop() == 0
    assert len(endpoint.requests) == 1


def test_an_endpoint_that_is_not_there_is_tried_again_and_never_named(daemon: StartDaemon, endpoint: Endpoint) -> None:
    hook = {"report": {"webhook": {"url": {"fromEnvVar": "HOOK"}}}}
    running = daemon(config(job("bad", "exit 1", onFailure=hook)), level="DEBUG", HOOK="http://127.0.0.1:1/sesame")
    running.wait_for("127.0.0.1 cannot be reached (ConnectError); tried again in")
    assert "sesame" not in running.text


def test_a_hanging_endpoint_delays_neither_jobs_nor_others_nor_for_long_the_stop(
    daemon: StartDaemon, endpoint: Endpoint, case: Case
) -> None:
    wanted = case("extra/report-reporter-hang-webhook")
    hang = wanted["input"]["report"]["webhook"]
    stuck = webhook(endpoint, hang["path"], timeout=hang["timeout"])
    steady = {"name": "steady", "command": "true", "schedule": "* * * * * * *", "onSuccess": webhook(endpoint)}
    running = daemon(config(job("bad", "exit 1", onFailure=stuck), steady))
    endpoint.arrived(1, "/hang")
    endpoint.arrived(3, "/ok")
    assert wanted["expected"]["other_jobs_on_time"]
    assert len(endpoint.of("/hang")) == 1, "it still hangs, and the others went on all the while"
    assert running.stop() == 0
    assert "job bad: onFailure: webhook may not have been told, the daemon stops" in running.text


def cluster(directory: Path) -> dict[str, object]:
    return {
        "backend": "filesystem",
        "nodeName": "node-a",
        "filesystem": {"path": str(directory / "shared"), "ttl": 5, "topology": "shared"},
    }


def subjects(endpoint: Endpoint) -> list[str]:
    return [json.loads(request.body)["text"].split("\n")[0] for request in endpoint.requests]


def test_each_transition_is_told_once(daemon: StartDaemon, endpoint: Endpoint, case: Case, tmp_path: Path) -> None:
    wanted = case("extra/report-notify-once-per-transition")["expected"]
    running = daemon(config(cluster=cluster(tmp_path), notify=webhook(endpoint)))
    endpoint.arrived()
    assert running.stop() == 0
    assert subjects(endpoint) == [f"node node-a {words}" for words in wanted["subjects"]]


def test_a_reload_that_ends_the_election_is_told(daemon: StartDaemon, endpoint: Endpoint, tmp_path: Path) -> None:
    running = daemon(config(cluster=cluster(tmp_path), notify=webhook(endpoint)))
    endpoint.arrived()
    running.reload(config(notify=webhook(endpoint)))
    endpoint.arrived(3)
    assert running.stop() == 0
    assert subjects(endpoint) == [
        "node node-a became the leader",
        "node node-a is not quorate",
        "node node-a is no longer the leader",
    ]
