"""What happened, as values on the event bus."""

from __future__ import annotations

from typing import TypeAlias

from cronstable.core.decision import DecisionRecord
from cronstable.core.runs import LiveRun, RunRecord
from cronstable.core.values import dataclass


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A process was spawned."""

    run: LiveRun


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A run is over and its record final."""

    record: RunRecord


@dataclass(frozen=True, slots=True)
class Decided:
    """An occurrence was decided on this node."""

    record: DecisionRecord


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """This node gained or lost leadership.

    ``at``: wall seconds; ``leader``: display name, if known; ``node``: the name it took part under, which a reload may
    have changed since.
    """

    is_leader: bool
    leader: str | None
    reason: str
    at: float
    node: str


@dataclass(frozen=True, slots=True)
class QuorumChanged:
    """This node became or ceased to be quorate. ``at``: wall seconds; ``node``: as above."""

    quorate: bool
    reason: str
    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The configuration was read again. ``error``: the findings as text when the old set was kept."""

    ok: bool
    error: str | None
    job_set_id: str
    at: float


Event: TypeAlias = RunStarted | RunFinished | Decided | LeaderChanged | QuorumChanged | Reloaded
