"""How an occurrence is named to the job itself, so that the job can fence itself (DESIGN 4)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import lru_cache

from cronstable.core.clock import EpochSeconds
from cronstable.core.runs import RunKey


def occurrence_id(deployment: str, job: str, scheduled_at: EpochSeconds) -> str:
    """A stable name of (deployment, job, T): 32 hex digits, equal on every node and for every attempt."""
    # Lengths go first so that no choice of names makes two different triples read the same.
    at = str(scheduled_at)
    text = f"{len(deployment.encode())}:{deployment}{len(job.encode())}:{job}{len(at)}:{at}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@lru_cache(maxsize=16)
def scheduled_at_text(scheduled_at: EpochSeconds | None) -> str:
    """T in RFC 3339, UTC, whole seconds (``2026-01-01T00:00:00Z``); empty for a run that has no T."""
    if scheduled_at is None:
        return ""
    return datetime.fromtimestamp(scheduled_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def occurrence_env(
    key: RunKey,
    node: str,
    deployment: str,
    catchup: bool,
    fence: int | None = None,
    *,
    first_run_id: str | None = None,
) -> dict[str, str]:
    """The ``CRONSTABLE_*`` variables of one run.

    ``deployment``: what tells this fleet from others that share a store. ``catchup``: the run starts late, by a sweep
    or ``onMissed``. ``fence``: the fence of the term that claimed the run; CRONSTABLE_FENCE is left out when it is
    None, because a fence that cannot be promised is worse than none. ``first_run_id``: for a retry of a run without
    T, the run id of its attempt 0, which then names the occurrence.
    """
    if key.scheduled_at is None:
        occurrence = hashlib.sha256(f"run:{first_run_id or key.run_id}".encode()).hexdigest()[:32]
    else:
        occurrence = occurrence_id(deployment, key.job, key.scheduled_at)
    variables = {
        "CRONSTABLE_JOB_NAME": key.job,
        "CRONSTABLE_SCHEDULED_AT": scheduled_at_text(key.scheduled_at),
        "CRONSTABLE_OCCURRENCE_ID": occurrence,
        "CRONSTABLE_ATTEMPT": str(key.attempt),
        "CRONSTABLE_RUN_ID": key.run_id,
        "CRONSTABLE_NODE": node,
        "CRONSTABLE_CATCHUP": "1" if catchup else "0",
    }
    if fence is not None:
        variables["CRONSTABLE_FENCE"] = str(fence)
    return variables
