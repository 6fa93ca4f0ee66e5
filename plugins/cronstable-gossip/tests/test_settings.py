"""The gossip keys: addresses, who is a member, and every error and advisory of the section."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cronstable_gossip import cronstable_check_config
from cronstable_gossip.settings import Address, BadAddress, normalise, parse_address, problems, read, suspicious

from cronstable.api import Severity

TLS = {"ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}


def section(**changes: Any) -> dict[str, Any]:
    base = {
        "listen": "0.0.0.0:8443",
        "tls": dict(TLS),
        "peers": [{"host": "b:8443"}, {"host": "c:8443"}],
        "nodeName": "a",
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


def peers(*hosts: str) -> list[dict[str, str]]:
    return [{"host": host} for host in hosts]


def errors(config: Mapping[str, Any]) -> list[str]:
    return [f"{p.path}: {p.message}" for p in problems(config) if p.severity is Severity.ERROR]


def advisories(config: Mapping[str, Any]) -> list[str]:
    return [p.message for p in problems(config) if p.severity is Severity.ADVISORY]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("cron-b.internal:8443", "cron-b.internal", 8443),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[2001:db8::1]:65535", "2001:db8::1", 65535),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("b", "no port"),
        (":8443", "no host"),
        ("2001:db8::1:8443", "brackets"),
        ("::1:8443", "brackets"),
        ("[::1]8443", r"\[address\]:port"),
        ("[::1", r"\[address\]:port"),
        ("[]:8443", "no host"),
        ("b:", "1 to 65535"),
        ("b:0", "1 to 65535"),
        ("b:65536", "1 to 65535"),
        ("b:+443", "1 to 65535"),
        ("b:٤٤٣", "1 to 65535"),
        ("b:008443", "1 to 65535"),
        ("b c:1", "not a name"),
        ("b/x:1", "not a name"),
        ("u@b:1", "not a name"),
    ],
)
def test_a_bad_address_says_what_is_wrong_with_it(text: str, why: str) -> None:
    with pytest.raises(BadAddress, match=why):
        parse_address(text)
    assert len(errors(section(peers=peers(text, "c:1")))) == 1


def test_a_listener_may_have_no_host() -> None:
    assert parse_address(":8443", listen=True) == Address("", 8443)


@pytest.mark.parametrize(
    ("listen", "hosts", "kept"),
    [
        ("a:1", ["a:1", "b:1"], ["b:1"]),
        ("0.0.0.0:1", ["b:1", "b:1", "c:1"], ["b:1", "c:1"]),
        ("0.0.0.0:1", ["a:1", "b:1"], ["b:1"]),
        ("0.0.0.0:1", ["127.0.0.1:1", "b:1"], ["b:1"]),
        ("0.0.0.0:1", ["[::1]:1", "b:1"], ["[::1]:1", "b:1"]),
        ("[::]:1", ["[::1]:1", "127.0.0.1:1"], ["127.0.0.1:1"]),
        ("*:1", ["[::1]:1", "127.0.0.1:1", "b:1"], ["b:1"]),
        ("0.0.0.0:1", ["a:2", "127.0.0.1:2"], ["a:2", "127.0.0.1:2"]),
        ("0.0.0.0:1", ["a.internal:1", "localhost:1"], ["a.internal:1", "localhost:1"]),
        ("127.0.0.1:1", ["a:1", "127.0.0.1:2"], ["a:1", "127.0.0.1:2"]),
    ],
)
def test_only_what_is_certainly_this_node_is_no_member(listen: str, hosts: list[str], kept: list[str]) -> None:
    found = normalise(parse_address(listen, listen=True), [parse_address(h) for h in hosts], "a")
    assert [str(peer) for peer in found] == kept


@pytest.mark.parametrize("host", ["a.internal:8443", "localhost:8443", "127.0.0.2:8443"])
def test_what_may_be_this_node_counts_and_is_said_in_a_small_cluster(host: str) -> None:
    assert "looks like this node" in " ".join(advisories(section(peers=peers(host))))
    assert advisories(section(peers=peers(host, "b:8443", "c:8443", "d:8443", "e:8443"))) == []
    listen = parse_address("10.0.0.1:8443")
    assert list(suspicious(listen, [parse_address(host)], "a")) == []


@pytest.mark.parametrize("key", ["listen", "tls", "peers"])
def test_what_gossip_needs_is_named_when_it_is_missing(key: str) -> None:
    assert errors(section(**{key: None})) == [f"('cluster',): `backend: gossip` needs `{key}`"]


@pytest.mark.parametrize("key", ["ca", "cert", "key"])
@pytest.mark.parametrize("blank", ["", "   "])
def test_a_blank_tls_path_is_an_error(key: str, blank: str) -> None:
    assert errors(section(tls={**TLS, key: blank})) == [f"('cluster', 'tls', '{key}'): the path is blank"]
    assert errors(section(tls={k: v for k, v in TLS.items() if k != key})) == [
        f"('cluster', 'tls'): `tls` needs `{key}`"
    ]


def test_electing_among_two_is_an_error_also_after_duplicates_and_this_node_are_dropped() -> None:
    for hosts in (["b:1"], ["b:1", "b:1"], ["b:8443", "a:8443"], ["b:8443", "127.0.0.1:8443", "0.0.0.0:8443"]):
        assert "strictly worse than a single replica" in errors(section(peers=peers(*hosts), electLeader=True))[0]
        assert errors(section(peers=peers(*hosts))) == []


def test_electing_among_an_even_number_is_advised_against_and_one_or_three_are_fine() -> None:
    assert advisories(section(peers=peers("b:1", "c:1", "d:1"), electLeader=True)) == [
        "4 members bear no more failures than 3"
    ]
    assert list(problems(section(electLeader=True))) == []
    assert list(problems(section(peers=[], electLeader=True))) == []


def test_the_host_name_stands_for_a_blank_node_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "b")
    assert errors(section(nodeName=" ", peers=peers("b:8443", "c:8443"), electLeader=True))
    assert read(section(nodeName=None), "b").peers == (Address("c", 8443),)


def test_another_backend_is_not_looked_at() -> None:
    assert list(cronstable_check_config({"cluster": {"backend": "filesystem"}})) == []
    assert list(cronstable_check_config({})) == []
    assert len(list(cronstable_check_config({"cluster": {}}))) == 3
    assert len(list(cronstable_check_config({"cluster": {"backend": "gossip"}}))) == 3


def test_the_host_says_all_mistakes_with_their_lines(tmp_path: Path) -> None:
    config = tmp_path / "cronstable.yaml"
    config.write_text(
        "jobs: []\ncluster:\n  electLeader: true\n  listen: '::1:8443'\n  tls: {ca: ca.pem, cert: '', key: key.pem}\n"
        "  peers:\n    - host: b\n    - host: c:1\n  interval: 5\n"
    )
    command = [sys.executable, "-m", "cronstable", "-c", str(config), "--validate-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    for place in (":4:", ":5:", ":7:"):
        assert f"cronstable.yaml{place}" in said
    assert "[cronstable-gossip]" in said
