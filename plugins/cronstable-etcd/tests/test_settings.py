"""What the section may say, what it may not, and that no message repeats a password."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cronstable_etcd import cronstable_check_config, cronstable_election_backends, cronstable_state_stores
from cronstable_etcd.settings import EtcdSettings, StateSettings, TlsFiles, parse, parse_state, redacted

from cronstable.api import Capability, InvalidSettings, SecretSource, Severity

SECURE: dict[str, Any] = {"endpoints": ["https://etcd:2379"]}


def refused(section: Mapping[str, Any]) -> dict[tuple[Any, ...], str]:
    with pytest.raises(InvalidSettings) as error:
        parse(section)
    return {problem.path: problem.message for problem in error.value.problems}


def test_an_empty_section_means_an_etcd_on_this_machine() -> None:
    assert parse({}) == EtcdSettings(("http://127.0.0.1:2379",), "cronstable/leader", 15.0, None, None, TlsFiles())


def test_the_descriptor_promises_what_the_store_does() -> None:
    (backend,) = cronstable_election_backends()
    assert backend.name == "etcd"
    assert backend.capabilities == {
        Capability.LEASE,
        Capability.FENCED,
        Capability.EXPIRES_ITSELF,
        Capability.REBOOT_MARKS,
        Capability.OCCURRENCE_CLAIMS,
    }


def test_the_schemas_examples_and_defaults_are_usable() -> None:
    schema = json.loads(resources.files("cronstable_etcd").joinpath("schema.json").read_text())
    for example in schema["examples"]:
        jsonschema.validate(example, schema)
    defaults = {key: value["default"] for key, value in schema["properties"].items()}
    assert parse(defaults) == parse({})


def test_endpoints_lose_their_slash_and_their_doubles() -> None:
    section: Any = {"endpoints": ["http://a:1/", "http://a:1", "https://[::1]:2379"]}
    assert parse(section).endpoints == ("http://a:1", "https://[::1]:2379")


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("etcd:2379", "must begin with http"),
        ("ftp://etcd", "must begin with http"),
        ("http://", "names no host"),
        ("http://a b", "names no host"),
        ("http://etcd:0", "port"),
        ("http://etcd:70000", "port"),
        ("http://etcd:x", "port"),
        ("http://etcd:2379/v3", "nothing may follow"),
        ("http://etcd:2379?a=b", "nothing may follow"),
        ("", "must begin with http"),
    ],
)
def test_an_endpoint_that_is_no_url_of_a_member_is_refused(url: str, wrong: str) -> None:
    assert wrong in refused({"endpoints": ["http://good:1", url]})[("endpoints", 1)]


@pytest.mark.parametrize(
    "url",
    ["http://root:hunter2@etcd", "https://root:hunt/hunter2@etcd:x", "root:hunter2@etcd", "http://hunter2@:70000"],
)
def test_a_password_in_an_endpoint_is_refused_and_not_repeated(url: str) -> None:
    message = refused({"endpoints": [url]})[("endpoints", 0)]
    assert "do not belong into the URL" in message
    assert "hunter2" not in message
    assert "***@" in redacted(url)


@pytest.mark.parametrize("value", [[], None, "http://etcd"])
def test_no_endpoints_at_all_are_refused(value: Any) -> None:
    assert ("endpoints",) in refused({"endpoints": value})


@pytest.mark.parametrize("ttl", [2.99, 0, -1, float("nan"), float("inf"), "15", True, None])
def test_a_ttl_without_room_for_a_renewal_is_refused(ttl: Any) -> None:
    assert ("ttl",) in refused({"ttl": ttl})


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_an_election_name_must_be_a_key(name: str) -> None:
    assert ("electionName",) in refused({"electionName": name})


def test_user_and_password_come_together() -> None:
    assert "no password" in refused({**SECURE, "username": "cron"})[("username",)]
    assert "no username" in refused({**SECURE, "password": {"value": "x"}})[("password",)]
    assert "blank" in refused({**SECURE, "username": " ", "password": {"value": "x"}})[("username",)]
    settings = parse({**SECURE, "username": "cron", "password": {"fromFile": "/run/secrets/p"}})
    assert (settings.username, settings.password) == ("cron", SecretSource(from_file="/run/secrets/p"))
    assert "hunter2" not in repr(parse({**SECURE, "username": "cron", "password": {"value": "hunter2"}}))


def test_a_password_needs_https_everywhere() -> None:
    section: Any = {"endpoints": ["https://a:1", "http://b:1"], "username": "cron", "password": {"value": "x"}}
    assert "in the clear to http://b:1" in refused(section)[("endpoints",)]


def test_certificate_and_key_come_together_and_are_not_blank(tmp_path: Path) -> None:
    assert ("tls", "cert") in refused({**SECURE, "tls": {"cert": "c"}})
    assert ("tls", "key") in refused({**SECURE, "tls": {"key": "k"}})
    assert "blank" in refused({**SECURE, "tls": {"ca": " "}})[("tls", "ca")]
    assert parse({**SECURE, "tls": {"ca": "a", "cert": "c", "key": "k"}}).tls == TlsFiles("a", "c", "k")
    assert not parse({**SECURE, "tls": {}}).tls


def test_tls_needs_an_endpoint_that_uses_it() -> None:
    assert "no effect" in refused({"endpoints": ["http://a:1"], "tls": {"ca": "a"}})[("tls",)]
    mixed: Any = {"endpoints": ["http://a:1", "https://b:1"], "tls": {"ca": "a"}}
    assert parse(mixed).tls.ca == "a"


def test_all_mistakes_come_at_once() -> None:
    section = {"endpoints": ["nonsense"], "ttl": 1, "electionName": "", "username": "x", "tls": {"key": "k"}}
    assert set(refused(section)) >= {("endpoints", 0), ("ttl",), ("electionName",), ("username",), ("tls", "key")}


def test_a_short_ttl_is_worth_a_word_and_nine_seconds_are_not() -> None:
    def said(ttl: Any, backend: str = "etcd") -> list[Any]:
        return list(cronstable_check_config({"cluster": {"backend": backend, "etcd": {"ttl": ttl}}}))

    (problem,) = said(5)
    assert (problem.path, problem.severity) == (("cluster", "etcd", "ttl"), Severity.ADVISORY)
    assert "0.47 s" in problem.message
    assert said(9) == []
    assert said(5, "filesystem") == []
    assert said("x") == []
    assert list(cronstable_check_config({})) == []


# -- state


def test_the_state_store_takes_the_same_connection_and_a_prefix() -> None:
    (store,) = cronstable_state_stores()
    assert (store.name, store.factory) == ("etcd", "cronstable_etcd.state:make")
    (backend,) = cronstable_election_backends()
    assert store.schema is not None
    assert backend.schema is not None
    state, election = store.schema["properties"], backend.schema["properties"]
    shared = set(election) - {"electionName", "ttl"}
    assert set(state) == {*shared, "prefix"}
    assert {key: state[key] for key in shared} == {key: election[key] for key in shared}


def test_state_settings_have_defaults_and_their_mistakes_are_found_together() -> None:
    assert parse_state({}) == StateSettings()
    assert parse_state({"prefix": "here/"}).prefix == "here"
    with pytest.raises(InvalidSettings) as caught:
        parse_state({"prefix": " / ", "endpoints": ["ftp://x"], "username": "u"})
    assert sorted(problem.path for problem in caught.value.problems) == [("endpoints", 0), ("prefix",), ("username",)]
