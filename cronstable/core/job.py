"""A job as the user described it, after defaults, includes and interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from cronstable.core.schedule import Schedule
from cronstable.core.values import dataclass

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
"""What a validated YAML document consists of."""


class ClusterPolicy(StrEnum):
    """Who runs a job once election is configured (seed, 'Per-job policy')."""

    LEADER = "Leader"
    PREFER_LEADER = "PreferLeader"
    EVERY_NODE = "EveryNode"


class ConcurrencyPolicy(StrEnum):
    """What happens when a run is due while one of the same job still lives."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"
    QUEUE = "Queue"


@dataclass(frozen=True, slots=True)
class FailsWhen:
    """Which facts about an ended process make its run a failure (reference 2.3)."""

    produces_stdout: bool = False
    produces_stderr: bool = True
    nonzero_return: bool = True
    always: bool = False


@dataclass(frozen=True, slots=True)
class JobOptions:
    """All of a job but its name, command and schedule. Shared between jobs that say the same.

    ``raw`` is the merged and validated mapping of the remaining job keys, under their YAML names, with secrets still
    as references (``{"fromEnvVar": ...}``); features that own a key without a field here read it from there.
    Durations are in seconds.
    """

    enabled: bool = True
    shell: str = "/bin/sh"
    capture_stdout: bool = False
    capture_stderr: bool = True
    save_limit: int = 4096
    max_line_length: int = 16 * 1024 * 1024
    stream_prefix: str = "[{job_name} {stream_name}] "
    concurrency_policy: ConcurrencyPolicy = ConcurrencyPolicy.ALLOW
    cluster_policy: ClusterPolicy = ClusterPolicy.LEADER
    execution_timeout: float | None = None
    kill_timeout: float = 30.0
    fails_when: FailsWhen = FailsWhen()
    environment: tuple[tuple[str, str], ...] = ()
    env_file: str | None = None
    working_directory: str | None = None
    user: str | int | None = None
    group: str | int | None = None
    priority: str = "normal"
    utc: bool = True
    timezone: str | None = None
    raw: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the job set.

    ``command``: a string is run by the shell (``[shell, "-c", command]``), a tuple is executed directly.
    ``source``: ``file:line`` of the definition, for messages.
    """

    name: str
    command: str | tuple[str, ...]
    schedule: Schedule
    options: JobOptions
    source: str = ""
