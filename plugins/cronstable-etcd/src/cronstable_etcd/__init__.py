"""Election and state over etcd: the hooks. Everything else is imported when ``backend: etcd`` is chosen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import cast

from cronstable.api import Capability, ElectionBackend, Json, JsonSchema, Problem, StateStoreBackend, hookimpl
from cronstable_etcd.settings import advisories, parse, parse_state

CAPABILITIES = frozenset(
    {
        Capability.LEASE,
        Capability.FENCED,
        Capability.EXPIRES_ITSELF,
        Capability.REBOOT_MARKS,
        Capability.OCCURRENCE_CLAIMS,
    }
)


@hookimpl
def cronstable_election_backends() -> Iterable[ElectionBackend]:
    """The backend ``etcd``."""
    yield ElectionBackend(
        name="etcd",
        factory="cronstable_etcd.backend:make",
        schema=_schema("schema.json"),
        capabilities=CAPABILITIES,
        parse=parse,
    )


@hookimpl
def cronstable_state_stores() -> Iterable[StateStoreBackend]:
    """The store ``etcd``."""
    yield StateStoreBackend(
        name="etcd", factory="cronstable_etcd.state:make", schema=_schema("state.schema.json"), parse=parse_state
    )


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """What is allowed and yet worth a word (reference 3.4)."""
    cluster = config.get("cluster")
    if not isinstance(cluster, Mapping) or cluster.get("backend") != "etcd":
        return
    section = cluster.get("etcd")
    for problem in advisories(section if isinstance(section, Mapping) else {}):
        yield Problem(("cluster", "etcd", *problem.path), problem.message, problem.severity, hint=problem.hint)


def _schema(name: str) -> JsonSchema:
    text = resources.files("cronstable_etcd").joinpath(name).read_text(encoding="utf-8")
    return cast("JsonSchema", json.loads(text))
