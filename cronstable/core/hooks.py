"""Which hooks of a job follow from the end of a run (reference 2.3), and what an ``onLate`` report says."""

from __future__ import annotations

from typing import Literal, TypeAlias

from cronstable.core.clock import Seconds
from cronstable.core.runs import Outcome
from cronstable.core.values import dataclass

JobEvent: TypeAlias = Literal["onFailure", "onPermanentFailure", "onSuccess", "onLate"]
"""The hooks of a job, under their names in the configuration."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """What a check of ``sla`` found. ``check``: which one, such as ``lateAfter``.

    ``threshold`` and ``observed`` in seconds; ``last_success_at``: wall seconds, None when no success is known;
    ``since``: wall seconds at which it was found first.
    """

    check: str
    threshold: Seconds
    observed: Seconds
    last_success_at: float | None = None
    since: float | None = None


def hooks_of(outcome: Outcome, *, will_retry: bool, stopping: bool = False) -> tuple[JobEvent, ...]:
    """The hooks that fire when a run has ended, in order.

    ``will_retry``: another attempt follows; without one the failure is permanent. ``stopping``: the daemon is on its
    way out, and what fails then most likely fails because of that. A run of unknown outcome counts as failed: nobody
    can say that it succeeded. Cancelled, replaced and skipped runs are nobody's news.
    """
    match outcome:
        case Outcome.SUCCESS:
            return ("onSuccess",)
        case Outcome.FAILURE | Outcome.UNKNOWN:
            if stopping:
                return ()
            return ("onFailure",) if will_retry else ("onFailure", "onPermanentFailure")
        case Outcome.CANCELLED | Outcome.SKIPPED:
            return ()
