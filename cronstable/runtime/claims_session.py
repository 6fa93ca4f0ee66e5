"""One claim log as this process sees it, and what the log has to know of a job."""

from __future__ import annotations

from collections.abc import Mapping

from cronstable.core import claim_log
from cronstable.core.claim_values import ClaimState, Wants
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job, Json
from cronstable.core.missed import definition as definition
from cronstable.core.missed import starting_deadline
from cronstable.core.sweep import Claimable, Horizon, Mode, auto_window
from cronstable.plugin.protocols import Claims, HeldTerm
from cronstable.runtime.handover import Handover


class Session:
    """One claim log as this process sees it, from the start of an election to its end."""

    def __init__(self, claims: Claims, catch_up: Mapping[str, Json], node: str, token: str, handover: Handover) -> None:
        given = catch_up.get("window", "auto")
        window = float(given) if isinstance(given, int | float) else auto_window(claims.worst_handover)
        limit = catch_up.get("limit", 100)
        self.claims = claims
        self.handover = handover
        self.mode = Mode(str(catch_up.get("mode", "all")))
        self.limit = limit if isinstance(limit, int) else 100
        self.horizon = Horizon(window)
        self.state: ClaimState = claim_log.initial(node, token, window)
        self.term: HeldTerm | None = None
        self.trimmed = 0
        self.crowded = False
        self.silent = 0
        self.over_since: float | None = None
        self.left = Wants()
        self.swept_at = float("-inf")
        self.closing = False


def is_claimable(job: Job) -> bool:
    """Whether occurrences of ``job`` are claimed at all (claims.md 14)."""
    return (
        job.options.enabled and not job.schedule.reboot and job.options.cluster_policy is not ClusterPolicy.EVERY_NODE
    )


def claimable(job: Job, order: int) -> Claimable:
    """What the sweep has to know of ``job``."""
    overlap = job.options.concurrency_policy
    coalesce = overlap in (ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE)
    return Claimable(job.name, order, job.schedule, coalesce, starting_deadline(job.options.raw))
