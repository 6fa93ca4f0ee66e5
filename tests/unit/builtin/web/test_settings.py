"""The section ``web``: what is accepted, and how each mistake is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cronstable.api import InvalidSettings, Problem, ServiceProvider, Severity
from cronstable.builtin import web
from cronstable.builtin.web.settings import (
    ALL_SCOPES,
    Metrics,
    NodeHistory,
    Secret,
    Tcp,
    Tls,
    Unix,
    normal_origin,
    parse,
    read_text_file,
    resolve_secret,
)

HTTP: Any = ["http://127.0.0.1:8080"]
HTTPS: Any = ["https://127.0.0.1:8443"]
TLS: Any = {"cert": "/c.pem", "key": "/k.pem"}


def problems(**section: Any) -> list[Problem]:
    with pytest.raises(InvalidSettings) as caught:
        parse({"listen": HTTP, **section})
    return list(caught.value.problems)


def test_every_form_of_listener_is_understood() -> None:
    settings = parse(
        {
            "listen": ["http://[::1]:80/", "https://Host.example:8443", "unix:///run/c.sock", "http://0.0.0.0:0"],
            "tls": TLS,
        }
    )
    assert settings.listen == (
        Tcp("::1", 80, tls=False),
        Tcp("host.example", 8443, tls=True),
        Unix("/run/c.sock"),
        Tcp("0.0.0.0", 0, tls=False),
    )
    assert [str(item) for item in settings.listen][:3] == [
        "http://[::1]:80",
        "https://host.example:8443",
        "unix:///run/c.sock",
    ]
    assert settings.tls == Tls("/c.pem", "/k.pem")


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("http://127.0.0.1", "needs a port"),
        ("http://:8080", "needs a host"),
        ("http://", "needs a host and a port"),
        ("127.0.0.1:8080", "no known scheme"),
        ("ftp://h:1", "no known scheme"),
        ("http://h:99999", "not an address"),
        ("http://h:port", "not an address"),
        ("http://[::1", "not an address"),
        ("http://h:1/path", "must end after the port"),
        ("http://h:1?x", "must end after the port"),
        ("unix://run/c.sock", "absolute path"),
        ("unix:///", "absolute path"),
        ("", "no known scheme"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named_with_its_place(listen: str, says: str) -> None:
    (problem,) = problems(listen=[*HTTP, listen])
    assert problem.path == ("listen", 1)
    assert says in problem.message
    assert problem.allowed


@pytest.mark.parametrize("listen", ["http://user:hunter2@h:1", "http://user:hunter2@h", "gopher://user:hunter2@h:1"])
def test_credentials_in_an_address_are_refused_and_not_repeated(listen: str) -> None:
    (problem,) = problems(listen=[listen])
    assert "hunter2" not in problem.message


def test_the_same_address_twice_is_a_mistake() -> None:
    assert problems(listen=[*HTTP, *HTTP])[0].path == ("listen", 1)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"listen": HTTPS}, ("listen",)),
        ({"listen": HTTP, "tls": TLS}, ("tls",)),
        ({"listen": HTTPS, "tls": {"cert": "/c.pem"}}, ("tls",)),
        ({"listen": HTTPS, "tls": {"key": "/c.pem"}}, ("tls",)),
        ({"listen": HTTPS, "tls": {**TLS, "clientCa": "  "}}, ("tls", "clientCa")),
        ({"listen": HTTPS, "tls": {**TLS, "cert": ""}}, ("tls", "cert")),
    ],
)
def test_https_and_tls_come_together_and_whole(section: dict[str, Any], path: tuple[str, ...]) -> None:
    assert [problem.path for problem in problems(**section)] == [path]


def test_tokens_are_read_from_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_bytes("\ufeff  from file \n".encode())
    monkeypatch.setenv("WEB_TEST_TOKEN", "from env")
    settings = parse(
        {
            "listen": HTTP,
            "authToken": {"fromFile": str(tmp_path / "token")},
            "authTokens": [{"fromEnvVar": "WEB_TEST_TOKEN", "scopes": ["control"], "label": "ci"}],
            "anonymousScopes": ["view"],
        }
    )
    assert [(t.label, t.scopes, t.secret) for t in settings.tokens] == [
        ("authToken", ALL_SCOPES, b"from file"),
        ("ci", ALL_SCOPES, b"from env"),
    ]
    assert settings.anonymous == {"view"}
    assert "from" not in repr(settings.tokens)


def test_a_rotated_token_makes_different_settings(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    section: Any = {"listen": HTTP, "authToken": {"fromFile": str(token)}}
    before, same = parse(section), parse(section)
    token.write_text("second")
    assert before == same
    assert before != parse(section)


def test_the_first_source_wins_and_a_secret_is_not_in_its_repr() -> None:
    secret = Secret(("authToken",), "literal", "/no/such", "NOPE")
    assert resolve_secret(secret) == "literal"
    assert "literal" not in repr(secret)


@pytest.mark.parametrize(
    ("source", "key", "says"),
    [
        ({"value": "  "}, "value", "empty"),
        ({"fromFile": "/no/such/file"}, "fromFile", "No such file"),
        ({"fromFile": "/\0"}, "fromFile", "cannot be read"),
        ({"fromEnvVar": "CRONSTABLE_TEST_NOT_SET"}, "fromEnvVar", "not set"),
        ({"value": None, "fromFile": None}, None, "no source"),
    ],
)
def test_a_token_that_is_configured_and_missing_is_an_error(source: dict[str, Any], key: str | None, says: str) -> None:
    (single,) = problems(authToken=source)
    (listed,) = problems(authTokens=[{**source, "scopes": ["view"]}])
    tail = () if key is None else (key,)
    assert (single.path, listed.path) == (("authToken", *tail), ("authTokens", 0, *tail))
    assert says in single.message
    assert single.severity is Severity.ERROR


def test_an_undecodable_or_empty_token_file_is_an_error(tmp_path: Path) -> None:
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"\xff\xfe\xfd")
    empty.write_text("\n")
    assert "not UTF-8" in problems(authToken={"fromFile": str(binary)})[0].message
    assert "empty" in problems(authToken={"fromFile": str(empty)})[0].message
    with pytest.raises(UnicodeDecodeError):
        read_text_file(str(binary))


def test_a_token_from_a_device_that_never_ends_is_an_error() -> None:
    (problem,) = problems(authToken={"fromFile": "/dev/zero"})
    assert "more than" in problem.message


def test_tokens_and_labels_are_distinct_and_anonymous_is_reserved() -> None:
    twice = [{"value": "same", "scopes": ["view"]}, {"value": "same", "scopes": ["view"]}]
    labels = [{"value": "a", "scopes": ["view"], "label": "x"}, {"value": "b", "scopes": ["view"], "label": "x"}]
    reserved = [{"value": "a", "scopes": ["view"], "label": "anonymous"}]
    assert problems(authTokens=twice)[0].path == ("authTokens", 1)
    assert "same" not in problems(authTokens=twice)[0].message.replace("the same as", "")
    assert problems(authTokens=labels)[0].path == ("authTokens", 1, "label")
    assert "reserved" in problems(authTokens=reserved)[0].message


def test_anonymous_scopes_need_a_token() -> None:
    assert problems(anonymousScopes=["view"])[0].path == ("anonymousScopes",)


def test_all_mistakes_are_reported_at_once() -> None:
    found = problems(
        listen=["http://h"],
        socketMode="0999",
        headers={"bad name": "x", "X-Ok": "two\r\nlines", "Content-Length": "3"},
        allowedOrigins=["https://ok.example", "not an origin"],
        authToken={"value": ""},
        metrics={"durationBuckets": [1, 1]},
    )
    assert {problem.path for problem in found} == {
        ("listen", 0),
        ("socketMode",),
        ("headers", "bad name"),
        ("headers", "X-Ok"),
        ("headers", "Content-Length"),
        ("allowedOrigins", 1),
        ("authToken", "value"),
        ("metrics", "durationBuckets"),
    }


@pytest.mark.parametrize("buckets", [[2, 1], [1, float("inf")], [float("nan")], [0, 1], [-1]])
def test_buckets_are_finite_positive_and_rising(buckets: list[float]) -> None:
    assert problems(metrics={"durationBuckets": buckets})[0].path == ("metrics", "durationBuckets")


@pytest.mark.parametrize(("text", "mode"), [("0660", 0o660), ("600", 0o600), ("0o777", 0o777), (None, None)])
def test_the_socket_mode_is_octal(text: str | None, mode: int | None) -> None:
    assert parse({"listen": HTTP, "socketMode": text}).socket_mode == mode


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Ops.Example", "https://ops.example:443"),
        ("http://h:8080/", "http://h:8080"),
        ("null", None),
        ("https://h/path", None),
        ("https://h:x", None),
        ("", None),
    ],
)
def test_origins_are_compared_in_one_form(text: str, origin: str | None) -> None:
    assert normal_origin(text) == origin


def test_the_schema_accepts_every_documented_key_and_its_own_examples() -> None:
    validator = jsonschema.Draft202012Validator(web.schema())
    validator.check_schema(web.schema())
    full = {
        "listen": HTTP,
        "headers": {"X": "y"},
        "allowedOrigins": ["*"],
        "authToken": {"value": "a"},
        "authTokens": [{"fromFile": "/f", "scopes": ["view", "control"], "label": "l"}],
        "anonymousScopes": ["view"],
        "socketMode": "0660",
        "tls": {**TLS, "clientCa": "/ca.pem"},
        "ui": False,
        "metrics": {"enabled": True, "public": True, "durationBuckets": [0.1, 1]},
        "nodeHistory": {"enabled": True, "interval": 5.0, "points": 720},
    }
    assert list(validator.iter_errors(full)) == []
    examples = web.schema()["examples"]
    assert len(examples) == 2
    assert [list(validator.iter_errors(example)) for example in examples] == [[], []]


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"listen": []},
        {"listen": HTTP, "port": 1},
        {"listen": HTTP, "anonymousScopes": ["control"]},
        {"listen": HTTP, "authTokens": [{"value": "x", "scopes": ["root"]}]},
        {"listen": HTTP, "authTokens": [{"value": "x", "scopes": []}]},
        {"listen": HTTP, "authTokens": [{"value": "x"}]},
        {"listen": HTTP, "nodeHistory": {"points": 9}},
        {"listen": HTTP, "nodeHistory": {"interval": 0.5}},
    ],
)
def test_the_schema_refuses_what_is_not_documented(section: dict[str, Any]) -> None:
    assert list(jsonschema.Draft202012Validator(web.schema()).iter_errors(section))


def test_the_plugin_provides_one_service_for_the_key_web() -> None:
    (provider,) = web.cronstable_services()
    assert isinstance(provider, ServiceProvider)
    assert (provider.name, provider.section, provider.factory) == ("web", "web", "cronstable.builtin.web.service:make")
    assert provider.parse is parse


@pytest.mark.parametrize(
    ("extra", "metrics", "history"),
    [
        ({}, Metrics(), NodeHistory()),
        ({"metrics": True, "nodeHistory": True}, Metrics(), NodeHistory()),
        ({"metrics": False, "nodeHistory": False}, Metrics(enabled=False), NodeHistory(enabled=False)),
        ({"metrics": {}, "nodeHistory": {}}, Metrics(), NodeHistory()),
        (
            {"metrics": {"public": True, "durationBuckets": [1, 2.5]}, "nodeHistory": {"interval": 2, "points": 10}},
            Metrics(public=True, buckets=(1.0, 2.5)),
            NodeHistory(interval=2.0, points=10),
        ),
        (
            {"metrics": {"enabled": False}, "nodeHistory": {"enabled": False}},
            Metrics(enabled=False),
            NodeHistory(enabled=False),
        ),
    ],
)
def test_metrics_and_the_history_of_the_node_are_on_unless_something_else_is_said(
    extra: dict[str, Any], metrics: Metrics, history: NodeHistory
) -> None:
    settings = parse({"listen": HTTP, **extra})
    assert (settings.metrics, settings.node_history) == (metrics, history)
