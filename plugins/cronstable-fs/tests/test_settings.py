"""The section ``cluster.filesystem``: its rules, its schema, and what the plugin registers."""

from __future__ import annotations

import math
from typing import Any

import cronstable_fs
import jsonschema
import pytest
from cronstable_fs.settings import FilesystemSettings, Topology, parse

from cronstable.api import Capability, InvalidSettings


def test_only_the_path_is_needed() -> None:
    assert parse({"path": "/mnt/x"}) == FilesystemSettings("/mnt/x", "cluster/leader", 15.0, "default", Topology.AUTO)


def test_every_key_is_taken_over() -> None:
    section: Any = {"path": "/s", "electionName": "e", "ttl": 3, "deploymentId": "d", "topology": "shared"}
    assert parse(section) == FilesystemSettings("/s", "e", 3.0, "d", Topology.SHARED)


def test_a_null_deployment_is_the_default_one() -> None:
    assert parse({"path": "/s", "deploymentId": None}).deployment == "default"


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({}, "path"),
        ({"path": ""}, "path"),
        ({"path": " \t"}, "path"),
        ({"path": "a\0b"}, "path"),
        ({"path": "/s", "electionName": " "}, "electionName"),
        ({"path": "/s", "electionName": None}, "electionName"),
        ({"path": "/s", "deploymentId": ""}, "deploymentId"),
        ({"path": "/s", "ttl": 2.99}, "ttl"),
        ({"path": "/s", "ttl": -1}, "ttl"),
        ({"path": "/s", "ttl": math.nan}, "ttl"),
        ({"path": "/s", "ttl": math.inf}, "ttl"),
        ({"path": "/s", "ttl": 1e300}, "ttl"),
        ({"path": "/s", "ttl": 10**400}, "ttl"),
        ({"path": "/s", "ttl": True}, "ttl"),
        ({"path": "/s", "ttl": "15"}, "ttl"),
        ({"path": "/s", "topology": "cloud"}, "topology"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_a_remedy(section: Any, key: str) -> None:
    with pytest.raises(InvalidSettings) as failure:
        parse(section)
    (problem,) = failure.value.problems
    assert problem.path == (key,)
    assert key in problem.message
    assert problem.hint


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(InvalidSettings) as failure:
        parse({"path": "", "ttl": 0, "topology": "x"})
    assert [p.path for p in failure.value.problems] == [("path",), ("ttl",), ("topology",)]


def test_the_hook_describes_the_backend() -> None:
    (backend,) = cronstable_fs.cronstable_election_backends()
    assert (backend.name, backend.factory) == ("filesystem", "cronstable_fs.backend:make")
    assert backend.capabilities == {
        Capability.LEASE,
        Capability.FENCED,
        Capability.REBOOT_MARKS,
        Capability.OCCURRENCE_CLAIMS,
    }
    assert backend.parse is parse


def test_the_schema_stands_alone_and_its_examples_parse() -> None:
    (backend,) = cronstable_fs.cronstable_election_backends()
    schema: Any = backend.schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"]
    assert schema["additionalProperties"] is False
    for example in schema["examples"]:
        jsonschema.Draft202012Validator(schema).validate(example)
        assert parse(example).path == example["path"]


def test_the_defaults_of_schema_and_settings_are_the_same() -> None:
    (backend,) = cronstable_fs.cronstable_election_backends()
    schema: Any = backend.schema
    defaults = {key: value["default"] for key, value in schema["properties"].items() if "default" in value}
    assert parse({"path": "/s", **defaults}) == parse({"path": "/s"})
