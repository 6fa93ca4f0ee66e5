"""What becomes of a run whose node may lead no more: ``onLeaseLost``.

A node that cannot renew knows the instant from which another one may lead. A job that asks for it is ended before that,
not after: the process group is gone by the deadline.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.core.job import ClusterPolicy, Job
from cronstable.core.values import dataclass

MARGIN: Final[Seconds] = 0.5
"""From the last signal to the deadline: for the kernel, and for a loop that is late."""
PART: Final = 1 / 3
"""Of a term, at most: how long before the deadline SIGTERM may come. In all the time before that a renewal that comes
late spares the run."""


class OnLeaseLost(StrEnum):
    """Values of the key, as users write them."""

    CONTINUE = "continue"
    TERM = "term"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Ending:
    """``ask_at``: boot instant of the first signal, unless the lease is renewed before.

    ``gone_by``: boot instant of SIGKILL to what is left of the group.
    """

    ask_at: float
    gone_by: float


def on_lease_lost(job: Job) -> OnLeaseLost:
    """What ``job`` asks for. A run that every node has of its own has no lease to lose."""
    if "onLeaseLost" not in job.options.raw:
        return OnLeaseLost.CONTINUE
    if job.options.cluster_policy is ClusterPolicy.EVERY_NODE:
        return OnLeaseLost.CONTINUE
    return OnLeaseLost(str(job.options.raw.get("onLeaseLost", OnLeaseLost.CONTINUE)))


def ending(mode: OnLeaseLost, *, deadline: float, term: Seconds, kill_timeout: Seconds) -> Ending:
    """When a run that does not continue has to be ended, given the deadline as it stands.

    ``term``: seconds from a renewal to the deadline that it gave. SIGTERM comes ``kill_timeout`` before the end, but no
    sooner than in the last third of the term.
    """
    gone_by = deadline - MARGIN
    notice = min(kill_timeout, term * PART) if mode is OnLeaseLost.TERM else 0.0
    return Ending(gone_by - notice, gone_by)
