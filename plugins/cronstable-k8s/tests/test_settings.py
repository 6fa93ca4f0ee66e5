"""The section ``cluster.kubernetes``: every rule of the table, each mistake with its key."""

from __future__ import annotations

from typing import Any

import pytest
from cronstable_k8s import cronstable_check_config, cronstable_election_backends
from cronstable_k8s.settings import ClientLibrary, KubernetesSettings, parse
from jsonschema import Draft202012Validator

from cronstable.api import InvalidSettings, Severity


def problems(**section: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidSettings) as caught:
        parse(section)
    return [(".".join(map(str, problem.path)), problem.message) for problem in caught.value.problems]


def test_everything_has_a_default() -> None:
    found = parse({})
    assert found == KubernetesSettings("cronstable-leader", None, 15, 10.0, 2.0, None, None, None, ClientLibrary.AUTO)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("leaseName", "Upper"),
        ("leaseName", "a_b"),
        ("leaseName", "a..b"),
        ("leaseName", "-a"),
        ("leaseName", "a" * 254),
        ("leaseName", ""),
        ("leaseNamespace", "a.b"),
        ("leaseNamespace", "a" * 64),
        ("leaseNamespace", ""),
        ("leaseDurationSeconds", 2),
        ("leaseDurationSeconds", 15.5),
        ("leaseDurationSeconds", True),
        ("renewDeadlineSeconds", 0),
        ("renewDeadlineSeconds", float("nan")),
        ("renewDeadlineSeconds", float("inf")),
        ("retryPeriodSeconds", -1),
        ("retryPeriodSeconds", "2"),
        ("identity", "  "),
        ("kubeconfig", ""),
        ("apiServer", "http://10.0.0.1"),
        ("apiServer", "https://"),
        ("apiServer", "https://host:0"),
        ("apiServer", "https://host:99999"),
        ("apiServer", "https://host/?a=b"),
        ("clientLibrary", "grpc"),
    ],
)
def test_a_value_that_cannot_be_is_named(key: str, value: Any) -> None:
    assert [path for path, _ in problems(**{key: value})] == [key]


@pytest.mark.parametrize("name", ["a", "a.b-c.d", "0", "a" * 253])
def test_a_lease_may_have_any_name_that_kubernetes_allows(name: str) -> None:
    assert parse({"leaseName": name}).name == name


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"retryPeriodSeconds": 10}, "retryPeriodSeconds"),
        ({"leaseDurationSeconds": 10}, "leaseDurationSeconds"),
        ({"leaseDurationSeconds": 12}, "renewDeadlineSeconds"),
        ({"renewDeadlineSeconds": 20}, "leaseDurationSeconds"),
        ({"renewDeadlineSeconds": 13, "retryPeriodSeconds": 2}, "renewDeadlineSeconds"),
    ],
)
def test_the_times_must_fit_together(section: dict[str, Any], key: str) -> None:
    assert [path for path, _ in problems(**section)] == [key]
    assert parse({"leaseDurationSeconds": 13}).duration == 13


def test_a_password_in_the_url_is_not_shown() -> None:
    ((key, message),) = problems(apiServer="https://admin:hunter2@10.0.0.1:6443")
    assert key == "apiServer"
    assert "hunter2" not in message
    assert "https://***@10.0.0.1:6443" in message


def test_every_mistake_is_told_at_once() -> None:
    found = problems(leaseName="A", retryPeriodSeconds=0, apiServer="ftp://x", clientLibrary="x")
    assert {path for path, _ in found} == {"leaseName", "retryPeriodSeconds", "apiServer", "clientLibrary"}


def test_the_schema_stands_alone_and_knows_every_key() -> None:
    (backend,) = cronstable_election_backends()
    assert backend.schema is not None
    Draft202012Validator.check_schema(backend.schema)
    for example in backend.schema["examples"]:
        Draft202012Validator(backend.schema).validate(example)
        assert backend.parse is not None
        assert isinstance(backend.parse(example), KubernetesSettings)
    assert set(backend.schema["examples"][1]) == set(backend.schema["properties"])


def test_a_very_short_retry_period_is_worth_a_word() -> None:
    section = {"backend": "kubernetes", "kubernetes": {"retryPeriodSeconds": 0.1}}
    (advice,) = cronstable_check_config({"cluster": section})  # type: ignore[dict-item]
    assert (advice.severity, advice.path) == (Severity.ADVISORY, ("cluster", "kubernetes", "retryPeriodSeconds"))
    assert list(cronstable_check_config({"cluster": {"backend": "etcd"}})) == []
