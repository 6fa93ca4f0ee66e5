"""The section ``cluster.filesystem`` as a value (reference 3.5, filesystem table)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cronstable.api import InvalidSettings, Json, Problem, Seconds, Section

MIN_TTL: Final = 3.0
"""Seconds. A holder acts until ttl - 1 s and renews every max(1 s, ttl / 3): less leaves no room for a renewal."""

MAX_TTL: Final = 366 * 86_400.0
"""Seconds. A year without a leader is an accident, and times far beyond it cannot be written to the lease."""

DEFAULT_TTL: Final = 15.0
DEFAULT_ELECTION: Final = "cluster/leader"
DEFAULT_DEPLOYMENT: Final = "default"


class Topology(StrEnum):
    """Who else sees the directory. ``AUTO`` asks the mount table."""

    AUTO = "auto"
    SINGLE_NODE = "single-node"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class FilesystemSettings:
    """``path``: the shared directory. ``ttl`` in seconds. ``deployment``: the namespace below ``path``."""

    path: str
    election: str = DEFAULT_ELECTION
    ttl: Seconds = DEFAULT_TTL
    deployment: str = DEFAULT_DEPLOYMENT
    topology: Topology = Topology.AUTO


def parse(section: Section) -> FilesystemSettings:
    """Check what JSON Schema cannot say. Raises ``InvalidSettings`` with every mistake at once."""
    problems: list[Problem] = []
    path = path_of(problems, section, "name a directory on a mount that every node shares")
    election = _text(problems, section, "electionName", DEFAULT_ELECTION, "leave the key out for cluster/leader")
    deployment = deployment_of(problems, section)
    ttl = _ttl(problems, section.get("ttl", DEFAULT_TTL))
    topology = topology_of(problems, section)
    if problems:
        raise InvalidSettings(problems)
    return FilesystemSettings(path, election, ttl, deployment, topology)


def path_of(problems: list[Problem], section: Section, hint: str) -> str:
    """The key ``path``; what is wrong with it goes to ``problems``."""
    return _text(problems, section, "path", None, hint)


def deployment_of(problems: list[Problem], section: Section) -> str:
    """The key ``deploymentId``, with its default."""
    return _text(problems, section, "deploymentId", DEFAULT_DEPLOYMENT, "leave the key out for default")


def _text(problems: list[Problem], section: Section, key: str, default: str | None, hint: str) -> str:
    value = section.get(key)
    if value is None and default is not None and (key == "deploymentId" or key not in section):
        return default
    if value is None:
        problems.append(Problem((key,), f"{key} is missing", hint=hint))
    elif not isinstance(value, str) or not value.strip():
        problems.append(Problem((key,), f"{key} must not be blank", hint=hint))
    elif "\0" in value:
        problems.append(Problem((key,), f"{key} contains a NUL character", hint=hint))
    else:
        return value
    return ""


def _ttl(problems: list[Problem], value: Json) -> Seconds:
    allowed = (f"a number of seconds from {MIN_TTL:g} to {MAX_TTL:.0f}",)
    hint = "use 15, or a little more than the longest hiccup of the mount that must not cost the leadership"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Asked as one range, since NaN passes every comparison that asks "is it too small?".
    if number and MIN_TTL <= value <= MAX_TTL:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    problems.append(Problem(("ttl",), f"ttl {value!r} is not usable", allowed=allowed, hint=hint))
    return DEFAULT_TTL


def topology_of(problems: list[Problem], section: Section) -> Topology:
    """The key ``topology``, with its default."""
    value = section.get("topology", Topology.AUTO.value)
    try:
        return Topology(str(value))
    except ValueError:
        names = tuple(t.value for t in Topology)
        hint = "use auto, or shared where the mount table cannot tell"
        problems.append(Problem(("topology",), f"unknown topology {value!r}", allowed=names, hint=hint))
        return Topology.AUTO
