"""The ``cluster`` section: which backend, and whose keys may stand beside it (reference 3.4)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cronstable.config.explain import close_match
from cronstable.config.fill import fill_defaults
from cronstable.config.model import ClusterConfig
from cronstable.core.finding import Problem, Severity
from cronstable.core.job import Json
from cronstable.plugin import hints
from cronstable.plugin.descriptors import Capability, ElectionBackend, JsonSchema, Section
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.manager import Plugins

DEFAULT_BACKEND: Final = "gossip"
_DEFAULT_TIMEOUT: Final = 10.0


@dataclass(slots=True)
class ClusterCheck:
    """What was made of the section. ``usable``: its keys that go before the schema, without those of others.

    ``problems`` have paths from the root of the file.
    """

    backend: ElectionBackend | None
    usable: dict[str, Json]
    problems: list[Problem]


def check(cluster: Mapping[str, Json], chosen: str, plugins: Plugins) -> ClusterCheck:
    """Look up the backend ``chosen`` and say which keys do not belong to it.

    It comes before the schema, which would call such keys unknown; values are still text.
    """
    provided = plugins.election_backends.get(chosen)
    problems: list[Problem] = []
    foreign = set(_foreign(cluster, chosen, plugins))
    if provided is None:
        problems.append(_missing(cluster, chosen, plugins))
        # Without its plugin nothing is known of the keys that may be the backend's own; the one finding says enough.
        skipped = foreign | _hinted(cluster) | ({chosen} & cluster.keys())
        return ClusterCheck(None, {k: v for k, v in cluster.items() if k not in skipped}, problems)
    backend = provided.descriptor
    for key in sorted(foreign):
        problems.append(
            Problem(
                ("cluster", key),
                f"the section `{key}` belongs to `backend: {key}`, but the backend is `{chosen}`",
                hint="only the section of the chosen backend may stand here",
            )
        )
    skipped = foreign
    if chosen != DEFAULT_BACKEND:
        strays = [key for key in cluster if key in hints.GOSSIP_KEYS]
        skipped |= set(strays)
        if strays:
            problems.append(_strays(strays, chosen))
    if "observability" in cluster and not _owned("cluster.observability", plugins):
        skipped.add("observability")
        reason = plugins.why_missing("configuration key", "cluster.observability")
        problems.append(Problem(("cluster", "observability"), "no plugin provides this key", hint=reason))
    usable = {k: v for k, v in cluster.items() if k not in skipped}
    if backend.schema is not None:
        # Absent, it is still held against its schema, which can require something.
        usable.setdefault(chosen, {})
    return ClusterCheck(backend, usable, problems)


def make(
    cluster: dict[str, Json], backend: ElectionBackend, schema: JsonSchema, hostname: str, services: Collection[str]
) -> ClusterConfig:
    """The section as the daemon needs it. Raises ``InvalidSettings``, with paths from the backend's own section.

    ``services``: the keys of ``cluster`` that are sections of services.
    """
    filled = fill_defaults(schema, cluster)
    section = {key: value for key, value in filled.items() if key not in services}
    own = section.get(backend.name)
    settings_section: Section = own if isinstance(own, dict) else {}
    settings: object = backend.parse(settings_section) if backend.parse is not None else settings_section
    name = section.get("nodeName")
    timeout = section.get("connectTimeout")
    return ClusterConfig(
        backend=backend,
        node_name=name.strip() if isinstance(name, str) and name.strip() else hostname,
        connect_timeout=float(timeout) if isinstance(timeout, int | float) else _DEFAULT_TIMEOUT,
        elect_leader=_is_lease(backend) or section.get("electLeader") is True,
        distribution=str(section.get("distribution", "single-leader")),
        settings=settings,
        section=section,
        beside={key: filled[key] for key in services if key in cluster},
    )


def settings_problems(error: InvalidSettings, backend: ElectionBackend) -> Iterator[Problem]:
    """The problems of a backend's ``parse`` with paths from the root."""
    for problem in error.problems:
        path = ("cluster", backend.name, *problem.path)
        yield Problem(path, problem.message, problem.severity, problem.allowed, problem.hint)


def _is_lease(backend: ElectionBackend) -> bool:
    return Capability.LEASE in backend.capabilities


def _foreign(cluster: Mapping[str, Json], chosen: str, plugins: Plugins) -> Iterator[str]:
    known = {name for kind, name in hints.PROVIDERS if kind == hints.ELECTION_BACKEND} | set(plugins.election_backends)
    for key in cluster:
        if key in known and key != chosen and not _owned(f"cluster.{key}", plugins, by_fragment=True):
            yield key


def _hinted(cluster: Mapping[str, Json]) -> set[str]:
    return {key for key in cluster if hints.path_provider(f"cluster.{key}") is not None}


def _owned(path: str, plugins: Plugins, *, by_fragment: bool = False) -> bool:
    """True when a fragment has a schema for ``path`` or for something below it."""
    paths = [p for fragment in plugins.fragments for p in fragment.descriptor.schemas]
    paths += [service.descriptor.section for service in plugins.services.values()]
    return any(p == path or (not by_fragment and p.startswith(f"{path}.")) for p in paths)


def _missing(cluster: Mapping[str, Json], chosen: str, plugins: Plugins) -> Problem:
    known = sorted(name for name in plugins.election_backends if name != "none")
    reason = plugins.why_missing(hints.ELECTION_BACKEND, chosen)
    default = " (the default)" if "backend" not in cluster else ""
    hintable = sorted({*known, *(name for kind, name in hints.PROVIDERS if kind == hints.ELECTION_BACKEND)})
    path = ("cluster", "backend") if "backend" in cluster else ("cluster",)
    meant = close_match(chosen, hintable) if hints.provider(hints.ELECTION_BACKEND, chosen) is None else None
    return Problem(
        path,
        f"there is no election backend `{chosen}`{default} in this installation",
        allowed=tuple(known),
        hint=f"did you mean `{meant}`?" if meant else reason,
    )


def _strays(strays: list[str], chosen: str) -> Problem:
    keys = ", ".join(f"`{key}`" for key in strays)
    note = "; the connection to the store is not protected by this `tls`" if "tls" in strays else ""
    return Problem(
        ("cluster", strays[0]),
        f"without effect under `backend: {chosen}`: {keys}{note}",
        severity=Severity.ADVISORY,
        hint="these keys are for `backend: gossip`; take them out",
    )


def lease_rules(cluster: Mapping[str, Json], backend: ElectionBackend) -> Iterator[Problem]:
    """What a lease backend cannot do, and what goes without saying under it; values are converted."""
    spread = cluster.get("distribution") == "spread"
    if _is_lease(backend):
        if spread and Capability.SPREAD not in backend.capabilities:
            yield Problem(
                ("cluster", "distribution"),
                f"`spread` does not work with `backend: {backend.name}`: who holds the lease runs all Leader jobs",
                allowed=("single-leader",),
                hint="use the gossip backend to give each job its own node",
            )
        if cluster.get("electLeader") is False:
            yield Problem(
                ("cluster", "electLeader"),
                f"`backend: {backend.name}` always elects a leader, so `false` is ignored",
                severity=Severity.ADVISORY,
            )
    elif spread and cluster.get("electLeader") is not True:
        yield Problem(
            ("cluster", "distribution"),
            "`spread` has no effect without `electLeader: true`",
            severity=Severity.ADVISORY,
        )
