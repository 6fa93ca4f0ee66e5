"""What a due run does about runs of the same job that still live: ``concurrencyPolicy`` (reference 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from cronstable.core.job import ConcurrencyPolicy
from cronstable.core.runs import LiveRun
from cronstable.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Start beside whatever lives."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not start; ``reason`` names the run that is in the way."""

    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Cancel ``victims``, oldest first, wait until they are over, then start."""

    victims: tuple[LiveRun, ...]


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Start once whatever lives is over."""

    behind: LiveRun


@dataclass(frozen=True, slots=True)
class Full:
    """Do not start: one run waits already, and no more than one may."""

    waiting: LiveRun


Overlap: TypeAlias = Start | Skip | Replace | Enqueue | Full


def decide_overlap(policy: ConcurrencyPolicy, live: Sequence[LiveRun], *, waiting: LiveRun | None = None) -> Overlap:
    """Decide for one job, given all its ``live`` runs in the order they started, the ``waiting`` one included.

    The caller serialises this per job with the registration of the new run; else two starts at one instant both pass
    (reference 13, row 52).
    """
    if not live:
        return Start()
    match policy:
        case ConcurrencyPolicy.ALLOW:
            return Start()
        case ConcurrencyPolicy.FORBID:
            return Skip(f"concurrencyPolicy=Forbid and run {live[0].key.run_id} still lives")
        case ConcurrencyPolicy.REPLACE:
            return Replace(tuple(live))
        case ConcurrencyPolicy.QUEUE:
            return Enqueue(live[-1]) if waiting is None else Full(waiting)
        case _:
            assert_never(policy)
