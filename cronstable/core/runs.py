"""Runs: what is asked to start, what lives, and what came out of it."""

from __future__ import annotations

from enum import StrEnum

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.values import dataclass

LAUNCH_FAILED = 127
"""The synthetic exit code of a command that could not be started (reference 2)."""
EXECUTION_TIMEOUT = -100
"""The synthetic exit code of a run ended by ``executionTimeout`` (reference 2)."""


class Outcome(StrEnum):
    """How a run ended, as shown in its history."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


class Trigger(StrEnum):
    """What asked for a run."""

    SCHEDULE = "schedule"
    REBOOT = "reboot"
    MANUAL = "manual"
    RETRY = "retry"
    CATCHUP = "catchup"


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run this is: one attempt at one occurrence of one job.

    ``run_id`` is unique; ``scheduled_at`` is None for manual and @reboot runs; ``attempt`` counts from 0.
    """

    run_id: str
    job: str
    scheduled_at: EpochSeconds | None
    attempt: int = 0
    trigger: Trigger = Trigger.SCHEDULE


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run whose process lives. ``started_at``: wall seconds."""

    key: RunKey
    pid: int
    started_at: float


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """A run at one instant. ``at``: wall seconds; ``cpu``: processor seconds so far; ``rss``: bytes of memory then."""

    at: float
    cpu: Seconds
    rss: int


@dataclass(frozen=True, slots=True)
class Resources:
    """What a run used, as far as samples can tell: processor seconds, and bytes of memory at most and at last.

    ``cpu_percent``: of one processor, between the last two samples. ``taken``: how many samples there were, of which
    ``samples`` are the last.
    """

    cpu_user: Seconds = 0.0
    cpu_system: Seconds = 0.0
    max_rss: int = 0
    rss: int = 0
    cpu_percent: float = 0.0
    taken: int = 0
    samples: tuple[ResourceSample, ...] = ()

    @property
    def cpu(self) -> Seconds:
        """Processor seconds of both kinds."""
        return self.cpu_user + self.cpu_system


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run that is over, or an occurrence that was skipped (then only ``skip_reason`` and the times are set).

    ``stdout``/``stderr``: what was kept of the captured output (``saveLimit``), None when not captured.
    ``resources``: what it used, None when that was not sampled (``monitorResources``).
    ``node``: where it ran or was skipped, as far as the record says.
    """

    key: RunKey
    outcome: Outcome
    exit_code: int | None
    started_at: float | None
    finished_at: float
    duration: Seconds | None
    fail_reason: str | None = None
    skip_reason: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    resources: Resources | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class PendingRetry:
    """The next attempt at a run that failed. ``at``: wall seconds, as foreseen; ``maximum``: None for no limit."""

    attempt: int
    maximum: int | None
    at: float
    delay: Seconds


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a run's output. ``number`` counts from 1 over both streams; ``at`` is wall seconds."""

    number: int
    stream: str
    text: str
    at: float
