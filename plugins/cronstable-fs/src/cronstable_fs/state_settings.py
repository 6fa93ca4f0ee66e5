"""The filesystem store's keys of ``state`` as a value (reference 4)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cronstable.api import InvalidSettings, JsonSchema, Problem, Section
from cronstable_fs.settings import DEFAULT_DEPLOYMENT, Topology, deployment_of, path_of, topology_of

SCHEMAS: Final[MappingProxyType[str, JsonSchema]] = MappingProxyType(
    {
        "state.path": {
            "type": "string",
            "pattern": "\\S",
            "description": "A directory of our own, created with mode 0700.",
            "examples": ["/var/lib/cronstable"],
        },
        "state.topology": {
            "type": "string",
            "enum": [topology.value for topology in Topology],
            "default": Topology.AUTO.value,
            "description": "Is the directory shared with other hosts? auto asks the mount table.",
        },
        "state.deploymentId": {
            "type": ["string", "null"],
            "description": "Keeps deployments that share a directory apart; null means default.",
            "examples": ["production"],
        },
    }
)


@dataclass(frozen=True, slots=True)
class StateSettings:
    """``path``: the directory. ``deployment``: the namespace below it."""

    path: str
    deployment: str = DEFAULT_DEPLOYMENT
    topology: Topology = Topology.AUTO


def parse_state(section: Section) -> StateSettings:
    """Check what JSON Schema cannot say. Raises ``InvalidSettings`` with every mistake at once."""
    problems: list[Problem] = []
    path = path_of(problems, section, "name a directory that only cronstable writes to")
    deployment = deployment_of(problems, section)
    topology = topology_of(problems, section)
    if problems:
        raise InvalidSettings(problems)
    return StateSettings(path, deployment, topology)
