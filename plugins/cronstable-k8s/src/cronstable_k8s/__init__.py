"""Election over a Lease of Kubernetes: the hooks. Everything else is imported for ``backend: kubernetes`` only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import cast

from cronstable.api import Capability, ElectionBackend, Json, JsonSchema, Problem, Section, hookimpl

CAPABILITIES = frozenset({Capability.LEASE, Capability.FENCED, Capability.REBOOT_MARKS, Capability.OCCURRENCE_CLAIMS})


@hookimpl
def cronstable_election_backends() -> Iterable[ElectionBackend]:
    """The backend ``kubernetes``."""
    yield ElectionBackend(
        name="kubernetes",
        factory="cronstable_k8s.backend:make",
        schema=_schema(),
        capabilities=CAPABILITIES,
        parse=_parse,
    )


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """What is allowed and yet worth a word."""
    cluster = config.get("cluster")
    if not isinstance(cluster, Mapping) or cluster.get("backend") != "kubernetes":
        return
    from cronstable_k8s.settings import advisories

    section = cluster.get("kubernetes")
    for problem in advisories(section if isinstance(section, Mapping) else {}):
        yield Problem(("cluster", "kubernetes", *problem.path), problem.message, problem.severity, hint=problem.hint)


def _parse(section: Section) -> object:
    from cronstable_k8s.settings import parse

    return parse(section)


def _schema() -> JsonSchema:
    text = resources.files("cronstable_k8s").joinpath("schema.json").read_text(encoding="utf-8")
    return cast("JsonSchema", json.loads(text))
