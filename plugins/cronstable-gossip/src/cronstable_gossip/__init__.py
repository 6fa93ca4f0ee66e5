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
    hookimpl,
)
from cronstable_gossip.settings import problems

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
    text = resources.files("cronstable_gossip").joinpath("schema.json").read_text(encoding="utf-8")
    schemas = cast("dict[str, JsonSchema]", json.loads(text))
    yield ConfigFragment(id="https://cronstable.dev/schema/gossip", schemas=schemas)


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """Addresses, members and what must be there, when the backend is this one."""
    section = config.get("cluster")
    if isinstance(section, dict) and section.get("backend", _DEFAULT) == "gossip":
        yield from problems(section)


@hookimpl
def cronstable_cli_commands() -> Iterable[CliCommand]:
    """``cronstable certs``."""
    yield CliCommand(
        name="certs", help="Make certificates for trying out a gossip cluster.", target="cronstable_gossip.certs:certs"
    )
