"""One request per message; what an answer means; what no error ever says."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from cronstable_notify_webhook.notifier import make
from cronstable_notify_webhook.settings import parse

from cronstable.api import HttpResponse, InvalidSettings, NotDelivered
from cronstable.testing.host import FakeHost

Send = Callable[..., NotDelivered | None]


class Network(Protocol):
    answers: list[HttpResponse | Exception]
    requests: list[tuple[str, str, dict[str, str], bytes, float]]


def answer(status: int, **headers: str) -> HttpResponse:
    return HttpResponse(status, {name.replace("_", "-"): value for name, value in headers.items()}, b"")


def test_the_usual_request_is_a_post_of_slack_s_text(send: Send, network: Network) -> None:
    assert send() is None
    ((method, url, headers, content, timeout),) = network.requests
    assert (method, timeout) == ("POST", 10)
    assert url.startswith("https://user:sesame@hooks.example.org/")
    assert headers["Content-Type"] == "application/json"
    text = json.loads(content)["text"]
    assert text.startswith("node node-a is not quorate\n\nNode node-a is not quorate any more (the view changed).")


def test_method_type_headers_body_and_timeout_are_the_section_s(
    send: Send, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGER_TOKEN", "Bearer abc")
    headers = {"X-Team": "ops", "Authorization": {"fromEnvVar": "PAGER_TOKEN"}}
    assert send(method="PUT", contentType="text/plain", headers=headers, body="{{ name }}!", timeout=3) is None
    ((method, _, sent, content, timeout),) = network.requests
    assert (method, content, timeout) == ("PUT", b"node-a!", 3)
    assert (sent["X-Team"], sent["Authorization"], sent["Content-Type"]) == ("ops", "Bearer abc", "text/plain")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_method_without_a_body_sends_none_unless_it_is_given_one(send: Send, network: Network, method: str) -> None:
    assert send(method=method) is None
    assert send(method=method, body='{"a": 1}') is None
    (_, _, bare, nothing, _), (_, _, full, something, _) = network.requests
    assert (nothing, something) == (b"", b'{"a": 1}')
    assert "Content-Type" not in bare
    assert full["Content-Type"] == "application/json"


def test_the_signature_covers_exactly_the_bytes_that_are_sent(send: Send, network: Network) -> None:
    assert send(body='{"s": "{{ subject }} \u00e4"}', signature={"secret": {"value": "key"}}) is None
    assert send(signature={"secret": {"value": "key"}, "header": "X-Hub-Signature-256"}) is None
    for name, (_, _, headers, content, _) in zip(
        ("X-Cronstable-Signature", "X-Hub-Signature-256"), network.requests, strict=True
    ):
        assert headers[name] == "sha256=" + hmac.new(b"key", content, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("status", [200, 201, 204])
def test_a_2xx_is_a_delivery(send: Send, network: Network, status: int) -> None:
    network.answers = [answer(status)]
    assert send() is None


@pytest.mark.parametrize(
    ("given", "retry", "words"),
    [
        (answer(500), True, "answers 500"),
        (answer(503, retry_after="7"), True, "answers 503"),
        (answer(429, retry_after="7"), True, "answers 429"),
        (answer(408), True, "answers 408"),
        (answer(404), False, "answers 404"),
        (answer(401), False, "answers 401"),
        (answer(302, location="https://elsewhere.example.org/sesame"), False, "redirects are not followed"),
        (TimeoutError("https://hooks.example.org/sesame"), True, "no answer within 10 s"),
        (ConnectionRefusedError("https://hooks.example.org/sesame"), True, "cannot be reached (ConnectionRefusedError"),
    ],
)
def test_what_an_answer_means(
    send: Send, network: Network, fake_host: FakeHost, given: HttpResponse | Exception, retry: bool, words: str
) -> None:
    network.answers = [given]
    error = send()
    assert error is not None
    assert error.retry is retry
    assert words in str(error)
    assert "hooks.example.org" in str(error)
    assert "sesame" not in str(error) + repr(fake_host.log_lines)
    assert len(network.requests) == 1


@pytest.mark.parametrize(("asked", "after"), [("7", 7.0), ("Wed, 21 Oct 2026", None), ("-1", None), ("\u0663", None)])
def test_the_pause_that_a_server_asks_for_is_passed_on(
    send: Send, network: Network, asked: str, after: float | None
) -> None:
    network.answers = [answer(429, retry_after=asked)]
    error = send()
    assert error is not None
    assert error.after == after


@pytest.mark.parametrize(
    "url",
    ["ftp://hooks.example.org/sesame", "sesame", "https:///sesame", "http://h:99999/sesame", "http://h/a b sesame"],
)
def test_an_address_that_is_none_is_refused_without_being_quoted(send: Send, network: Network, url: str) -> None:
    error = send(url={"value": url})
    assert str(error) == "the address is not a URL that begins with http:// or https://"
    assert network.requests == []


def test_a_header_value_from_a_secret_cannot_begin_another_header(send: Send, network: Network) -> None:
    error = send(headers={"X-Token": {"value": "sesame\r\nX-Evil: 1"}})
    assert error is not None
    assert "X-Token" in str(error)
    assert "sesame" not in str(error)
    assert network.requests == []


def test_a_template_that_fails_sends_the_usual_body_and_is_logged_by_key(
    send: Send, network: Network, fake_host: FakeHost
) -> None:
    for body in ('{"a": {{ name }} }', "{{ 1 // 0 }}"):
        assert send(body=body) is None
    assert [json.loads(content)["text"].split("\n")[0] for _, _, _, content, _ in network.requests] == [
        "node node-a is not quorate"
    ] * 2
    assert len(fake_host.logged("node node-a: the template `body` of webhook failed")) == 2


def test_one_try_may_take_its_timeout_and_what_reading_secrets_takes(fake_host: FakeHost) -> None:
    settings = parse({"url": {"value": "https://x"}, "contentType": "text/plain", "timeout": 100})
    assert make(settings, fake_host).longest_send > 100  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", [None, {}, {"value": None}])
def test_without_an_address_nobody_is_told(url: Any) -> None:
    assert parse({"url": url, "contentType": "application/json"}) is None


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"headers": {"X Y": "a"}}, ("headers", "X Y")),
        ({"headers": {"Content-Type": "a"}}, ("headers", "Content-Type")),
        ({"headers": {"X-A": {}}}, ("headers", "X-A")),
        ({"contentType": "text/plain\nX-Evil: 1"}, ("contentType",)),
        ({"body": "{{ name"}, ("body",)),
        ({"signature": {"secret": {}}}, ("signature", "secret")),
        ({"signature": {"secret": {"value": "k"}, "header": "a b"}}, ("signature", "header")),
    ],
)
def test_a_mistake_is_a_finding_with_its_path(section: Any, path: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSettings) as raised:
        parse({"url": {"value": "https://x"}, "contentType": "application/json", **section})
    assert [problem.path for problem in raised.value.problems] == [path]


def test_settings_do_not_show_their_secrets() -> None:
    settings = parse(
        {
            "url": {"value": "https://sesame"},
            "contentType": "application/json",
            "headers": {"X-A": "sesame"},
            "signature": {"secret": {"value": "sesame"}},
        }
    )
    assert "sesame" not in repr(settings)
