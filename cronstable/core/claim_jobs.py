"""Since when each job is known to the claim log, so that nothing is owed from before (claims.md 13)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cronstable.core.claim_values import ClaimState, JobSet, Known
from cronstable.core.clock import EpochSeconds, Instant
from cronstable.core.values import replace

REMEMBERED_SETS: Final = 8


def loaded(state: ClaimState, definitions: Mapping[str, str], now: Instant) -> ClaimState:
    """Take over a job set; a job that is as it was keeps its ``since``."""
    before = state.sets[0] if state.sets else JobSet()
    since = {
        job: before.since[job] if before.definitions.get(job) == definition else int(now.wall)
        for job, definition in definitions.items()
    }
    text = "\n".join(f"{len(job)}:{job} {definition}" for job, definition in sorted(definitions.items()))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    new = JobSet(digest, MappingProxyType(dict(definitions)), MappingProxyType(since))
    older = tuple(one for one in state.sets if one.digest != digest)
    return replace(state, sets=(new, *older)[:REMEMBERED_SETS])


def known_now(state: ClaimState, floor: EpochSeconds = 0) -> Known:
    """Since when each job of the current set counts, given what the log says.

    A process that still knows the log's set changes only what differs; one that does not counts from when it loaded.
    """
    known = state.ledger.known
    if not state.sets:
        return known
    current = state.sets[0]
    if known.digest == current.digest and not known.changed:
        return known
    changed = dict(known.changed)
    if known.digest != current.digest:
        old = next((one for one in state.sets if one.digest == known.digest), None)
        if old is None:
            since = min(current.since.values(), default=0)
            changed = dict(current.since)
        else:
            since = known.since
            differing = (job for job, what in current.definitions.items() if old.definitions.get(job) != what)
            changed |= {job: current.since[job] for job in differing}
        known = Known(current.digest, since)
    changed = {job: at for job, at in sorted(changed.items()) if at > max(floor, known.since)}
    return replace(known, changed=MappingProxyType(changed))
