"""Election peer to peer over mutual TLS: the hooks. The rest is imported when ``backend: gossip`` is chosen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import cast

from cronstable.api import (
    Capability,
    CliCommand,
    ConfigFragment,
    ElectionBackend,
    Json,
    JsonSchema,
    Problem,
    ServiceProvider,
    hookimpl,
)
from cronstable_gossip.settings import mesh_problems, parse_mesh, problems

_MESH = "cluster.observability"
_DEFAULT = "gossip"
"""The value of ``cluster.backend`` when it is absent (reference 3.1)."""


@hookimpl
def cronstable_election_backends() -> Iterable[ElectionBackend]:
    """The backend ``gossip``; its keys stand beside ``backend``, not in a section of their own."""
    yield ElectionBackend(
        name="gossip",
        factory="cronstable_gossip.backend:make",
        capabilities=frozenset({Capability.SPREAD}),
    )


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """``cluster.listen|tls|peers|interval|driftAfter``."""
    schemas = {path: schema for path, schema in _schemas().items() if path != _MESH}
    yield ConfigFragment(id="https://cronstable.dev/schema/gossip", schemas=schemas)


@hookimpl
def cronstable_services() -> Iterable[ServiceProvider]:
    """``cluster.observability``: the mesh beside another backend's election."""
    yield ServiceProvider(
        name="observability",
        section=_MESH,
        schema=_schemas()[_MESH],
        parse=parse_mesh,
        factory="cronstable_gossip.mesh:make",
    )


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """Addresses, members and what must be there, when the backend is this one."""
    section = config.get("cluster")
    if isinstance(section, dict):
        gossip = section.get("backend", _DEFAULT) == "gossip"
        yield from problems(section) if gossip else mesh_problems(section)


@hookimpl
def cronstable_cli_commands() -> Iterable[CliCommand]:
    """``cronstable certs``."""
    yield CliCommand(
        name="certs", help="Make certificates for trying out a gossip cluster.", target="cronstable_gossip.certs:certs"
    )


def _schemas() -> dict[str, JsonSchema]:
    text = resources.files("cronstable_gossip").joinpath("schema.json").read_text(encoding="utf-8")
    return cast("dict[str, JsonSchema]", json.loads(text))
