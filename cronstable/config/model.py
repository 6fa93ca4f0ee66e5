"""A configuration that was read and found good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cronstable.core.clock import Seconds
from cronstable.core.finding import Finding
from cronstable.core.job import Job, Json
from cronstable.plugin.descriptors import ElectionBackend, Section, StateStoreBackend


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The ``cluster`` section.

    ``settings``: what the backend's ``parse`` made of its own section, or that section. ``section``: all of
    ``cluster``, defaults filled in, without ``beside``: the keys that belong to services. ``connect_timeout`` in
    seconds. ``elect_leader`` is always true under a lease.
    """

    backend: ElectionBackend
    node_name: str
    connect_timeout: float
    elect_leader: bool
    distribution: str
    settings: object
    section: Mapping[str, Json]
    beside: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateConfig:
    """The ``state`` section (reference 4).

    ``settings``: what the store's ``parse`` made of its own keys. ``section``: all of ``state``, defaults filled in.
    ``max_runs_per_job``: None for no bound. ``fail_closed``: what ``onStoreUnavailable`` says. ``gc_grace``: None for
    never. ``max_ops_per_second``: 0 for no bound.
    """

    backend: StateStoreBackend
    settings: object
    section: Mapping[str, Json]
    max_runs_per_job: int | None = 1000
    fail_closed: bool = False
    gc_grace: Seconds | None = 604_800.0
    max_ops_per_second: float = 0.0
    slot_ttl: Seconds = 30.0


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the daemon needs to know.

    ``jobs`` are in the order of the files, included ones first. ``sections``: the other top-level sections, such as
    ``web``, by name. ``settings``: what the service of a section made of it. ``logging``: for ``dictConfig``.
    ``watched``: every file and directory that was read or referred to; a change of one calls for a reload.
    """

    jobs: tuple[Job, ...]
    cluster: ClusterConfig | None
    sections: Mapping[str, Section]
    settings: Mapping[str, object]
    logging: Mapping[str, Json] | None
    job_set_id: str
    watched: tuple[str, ...]
    state: StateConfig | None = None


@dataclass(slots=True)
class LoadResult:
    """``config`` is None exactly when a finding is an error; advisories come with a configuration.

    ``findings`` are sorted by file, line and column. ``watched`` is known even when the load failed.
    """

    config: Config | None
    findings: tuple[Finding, ...] = ()
    watched: tuple[str, ...] = ()


@dataclass(slots=True)
class Findings:
    """Collects findings; the same one from two jobs that share a default counts once."""

    _found: dict[Finding, None] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Note it, unless it is there."""
        self._found.setdefault(finding)

    def sorted(self) -> tuple[Finding, ...]:
        """By file (in order of first mention), then line and column."""
        order: dict[str, int] = {}
        for finding in self._found:
            order.setdefault(finding.file, len(order))
        return tuple(sorted(self._found, key=lambda f: (order[f.file], f.line, f.column)))
