"""The cluster section: the chosen backend, and whose keys may stand beside it (reference 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cronstable.config import ClusterConfig, LoadResult, format_findings

Errors = Callable[[LoadResult], list[tuple[str, int, str]]]


def _cluster(result: LoadResult) -> ClusterConfig:
    assert result.config is not None, format_findings(result.findings)
    assert result.config.cluster is not None
    return result.config.cluster


def test_a_lease_backend_is_parsed_and_always_elects(load_files: Any) -> None:
    cluster = _cluster(load_files("cluster:\n  backend: shelf\n  shelf: {place: left}\n"))
    assert cluster.backend.name == "shelf"
    assert cluster.settings == ("parsed", "left", 15)
    assert cluster.node_name == "host-1"
    assert cluster.connect_timeout == 10.0
    assert cluster.elect_leader is True
    assert cluster.distribution == "single-leader"
    assert cluster.section["electLeader"] is False


def test_the_written_values_win_over_the_defaults(load_files: Any) -> None:
    text = "cluster:\n  backend: '${B}'\n  nodeName: n\n  connectTimeout: 2.5\n  shelf: {place: left, ttl: 3}\n"
    cluster = _cluster(load_files(text, environ={"B": "shelf"}))
    assert (cluster.node_name, cluster.connect_timeout) == ("n", 2.5)
    assert cluster.settings == ("parsed", "left", 3)


def test_a_blank_node_name_is_the_host_name(load_files: Any) -> None:
    assert _cluster(load_files("cluster: {backend: shelf, nodeName: ' ', shelf: {place: x}}\n")).node_name == "host-1"


def test_no_section_means_no_cluster(load_files: Any) -> None:
    result = load_files("jobs: []\n")
    assert result.config is not None
    assert result.config.cluster is None


@pytest.mark.parametrize(
    ("text", "line", "path", "says"),
    [
        ("", 1, "cluster", "`gossip` (the default)"),
        ("  {}\n", 1, "cluster", "`gossip` (the default)"),
        ("  backend: gossip\n", 2, "cluster.backend", "pip install cronstable cronstable-gossip"),
        ("  listen: 'a:1'\n  peers: []\n  interval: x\n", 1, "cluster", "`gossip` (the default)"),
        ("  backend: etcd\n  etcd: {endpoints: 5}\n", 2, "cluster.backend", "pip install cronstable cronstable-etcd"),
        ("  backend: kubernetes\n", 2, "cluster.backend", "pip install cronstable cronstable-k8s"),
        ("  backend: shelve\n", 2, "cluster.backend", "did you mean `shelf`?"),
        ("  backend: shelf\n  shelf: {place: x}\n  etcd: {}\n", 4, "cluster.etcd", "belongs to `backend: etcd`"),
        ("  backend: shelf\n  shelf: {}\n", 3, "cluster.shelf", "`place` is missing"),
        ("  backend: shelf\n  shelf: {place: x, ttl: 2}\n", 3, "cluster.shelf.ttl", "must be at least 3"),
        ("  backend: shelf\n  shelf: {place: nowhere}\n", 3, "cluster.shelf.place", "nowhere is not a place"),
        ("  backend: shelf\n  shelf: {place: x}\n  distribution: spread\n", 4, "cluster.distribution", "single-leader"),
        ("  backend: shelf\n  shelf: {place: x}\n  connectTimeout: 0\n", 4, "cluster.connectTimeout", "more than 0"),
        (
            "  backend: shelf\n  shelf: {place: x}\n  observability: {}\n",
            4,
            "cluster.observability",
            "cronstable-gossip",
        ),
        ("  backend: shelf\n  shelf: {place: x}\n  discovery: dns\n", 4, "cluster.discovery", "unknown key"),
    ],
)
def test_a_mistake_in_the_section_is_one_finding(
    load_files: Any, errors: Errors, text: str, line: int, path: str, says: str
) -> None:
    result = load_files("cluster:\n" + text)
    assert errors(result) == [("cronstable.yaml", line, path)]
    assert says in format_findings(result.findings)


def test_a_backend_whose_own_section_is_missing_is_refused(load_files: Any) -> None:
    result = load_files("cluster:\n  backend: shelf\n")
    assert result.config is None
    assert "cluster.shelf  `place` is missing" in format_findings(result.findings)


def test_findings_of_a_backend_carry_its_distribution(load_files: Any) -> None:
    result = load_files("cluster:\n  backend: shelf\n  shelf: {place: nowhere}\n")
    assert [finding.owner for finding in result.findings] == ["acme-shelf"]


def test_gossip_keys_under_a_lease_backend_are_one_advisory(load_files: Any, advisories: Any) -> None:
    result = load_files(
        "cluster:\n  backend: shelf\n  shelf: {place: x}\n"
        "  listen: nonsense\n  tls: {ca: ''}\n  peers: 5\n  interval: 0\n  driftAfter: no\n"
    )
    (advisory,) = advisories(result)
    assert advisory.line == 4
    assert "`listen`, `tls`, `peers`, `interval`, `driftAfter`" in advisory.message
    assert "not protected by this `tls`" in advisory.message
    assert "listen" not in _cluster(result).section


def test_electing_cannot_be_switched_off_under_a_lease(load_files: Any, advisories: Any) -> None:
    result = load_files("cluster:\n  backend: shelf\n  shelf: {place: x}\n  electLeader: no\n")
    assert [(a.line, "ignored" in a.message) for a in advisories(result)] == [(4, True)]
    assert _cluster(result).elect_leader is True
