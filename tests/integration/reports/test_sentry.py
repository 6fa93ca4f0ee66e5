"""Events that Sentry's own SDK has handed to a real server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any, Protocol

import pytest

pytestmark = pytest.mark.integration


class Request(Protocol):
    path: str
    headers: dict[str, str]
    body: bytes


class Endpoint(Protocol):
    url: str
    requests: list[Request]

    def arrived(self, count: int = 1, path: str = "/") -> list[Request]: ...


class Daemon(Protocol):
    text: str

    def wait_for(self, text: str) -> None: ...
    def stop(self) -> int: ...


StartDaemon = Callable[..., Daemon]


def config(**sentry: Any) -> str:
    job = {
        "name": "loud",
        "command": "echo 12 files; echo disk full >&2; exit 3",
        "schedule": "@reboot",
        "captureStdout": True,
        "onFailure": {"report": {"sentry": {"dsn": {"fromEnvVar": "DSN"}, **sentry}}},
    }
    return json.dumps({"jobs": [job]})


def event_of(request: Request) -> dict[str, Any]:
    body = gzip.decompress(request.body) if request.headers.get("Content-Encoding") == "gzip" else request.body
    lines = [json.loads(line) for line in body.splitlines()]
    return next(line for line in lines if "event_id" in line and "logger" in line)


def test_an_event_has_the_reason_the_output_and_what_the_section_adds(daemon: StartDaemon, endpoint: Endpoint) -> None:
    text = config(
        level="warning",
        environment="production",
        fingerprint=["cron", "{{ name }}"],
        extra={"team": "ops-{{ exit_code }}"},
    )
    dsn = endpoint.url.replace("http://", "http://sesame@") + "/1"
    running = daemon(text, level="DEBUG", DSN=dsn)
    (request,) = endpoint.arrived(1, "/api/1/envelope")
    assert running.stop() == 0
    event = event_of(request)
    assert (event["level"], event["environment"], event["fingerprint"]) == ("warning", "production", ["cron", "loud"])
    message = event.get("message") or event["logentry"]["message"]
    for words in ("Cron job 'loud' failed", "failsWhen=nonzeroReturn and retcode=3", "12 files", "disk full"):
        assert words in message
    assert event["extra"]["team"] == "ops-3"
    assert event["extra"]["stderr"] == "disk full\n"
    assert "sesame" not in running.text
    assert len(endpoint.requests) == 1


def test_a_redirect_is_not_followed_and_no_part_of_the_dsn_is_logged(daemon: StartDaemon, endpoint: Endpoint) -> None:
    dsn = endpoint.url.replace("http://", "http://sesame@") + "/away/hush/1"
    running = daemon(config(), level="DEBUG", DSN=dsn)
    running.wait_for("sentry could not be told: the event was not taken")
    running.stop()
    assert {request.path for request in endpoint.requests} == {"/away/hush/api/1/envelope/"}
    assert "sesame" not in running.text
    assert "hush" not in running.text


def test_the_usual_fingerprint_is_machine_and_job(daemon: StartDaemon, endpoint: Endpoint) -> None:
    dsn = endpoint.url.replace("http://", "http://sesame@") + "/1"
    daemon(config(), DSN=dsn, HOSTNAME="host-1")
    (request,) = endpoint.arrived(1, "/api/1/envelope")
    assert event_of(request)["fingerprint"] == ["cronstable", "host-1", "loud"]


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("sesame", "the DSN is not one that Sentry's SDK understands"),
        ("http://sesame@127.0.0.1:1/1", "the event was not taken (network)"),
    ],
)
def test_what_sentry_does_not_take_is_an_error_without_the_dsn(daemon: StartDaemon, dsn: str, words: str) -> None:
    running = daemon(config(), DSN=dsn)
    running.wait_for(words)
    assert "sesame" not in running.text


def test_a_refusal_is_an_error(daemon: StartDaemon, endpoint: Endpoint) -> None:
    # The path of a DSN is the prefix of the server's own.
    running = daemon(config(), DSN=endpoint.url.replace("http://", "http://sesame@") + "/no/1")
    running.wait_for("the event was not taken (status_403)")
