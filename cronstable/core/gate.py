"""The cluster gate: may this node start this job now? A comparison; no I/O, no lock (reference 6.10)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, assert_never

from cronstable.core.decision import Decision, Evidence, Reason, Verdict
from cronstable.core.job import ClusterPolicy
from cronstable.core.quorum import hrw_owner
from cronstable.core.view import SPREAD, ClusterView

NO_ELECTION: Final = Decision(Verdict.RUN, Reason.NO_ELECTION)
"""The answer for every job where no election is configured."""


def decide(
    policy: ClusterPolicy,
    job: str,
    *,
    election_configured: bool,
    view: ClusterView | None,
    boot: float,
    due: float | None = None,
) -> Decision:
    """The gate's answer for one job at the boot instant ``boot``, with the facts that led to it.

    ``view`` None: election is configured and no manager runs; Leader jobs fail closed, PreferLeader jobs run.
    ``view`` must have been taken at ``boot`` or before; its deadline is compared again here.
    ``due``: boot seconds at which the occurrence came due; None when there is none. DEFER: ask again after a refresh.
    """
    if not election_configured:
        return NO_ELECTION
    if policy is ClusterPolicy.EVERY_NODE:
        return _run(Reason.EVERY_NODE)
    if view is None:
        prefer = policy is ClusterPolicy.PREFER_LEADER
        return Decision(Verdict.RUN if prefer else Verdict.SKIP, Reason.MANAGER_ABSENT)
    match policy:
        case ClusterPolicy.PREFER_LEADER:
            return _prefer_leader(job, view, boot)
        case ClusterPolicy.LEADER:
            return _leader(job, view, boot, due)
        case _:
            assert_never(policy)


def _leader(job: str, view: ClusterView, boot: float, due: float | None) -> Decision:
    if view.stale:
        return Decision(Verdict.DEFER, Reason.STALE_VIEW, _frozen(_quorum(view)))
    if view.conflict:
        return _skip(Reason.CONFLICT, **_conflict(view))
    if not view.quorate:
        return _skip(Reason.NO_QUORUM, **_quorum(view))
    late = view.deadline is not None and boot >= view.deadline
    if late:
        return _skip(Reason.DEADLINE_PASSED, deadline=view.deadline, boot=boot, **_holder(view))
    if view.distribution == SPREAD:
        owner = hrw_owner(job, view.owners)
        mine = owner is not None and owner == view.node_name
        return (
            (_before_move(job, view, due) or _run(Reason.OWNER, owner=owner))
            if mine
            else _skip(Reason.NOT_OWNER, owner=owner)
        )
    if view.is_leader:
        return _before_term(view, due) or _run(Reason.LEADER, deadline=view.deadline, **_holder(view))
    return _skip(Reason.NOT_LEADER, **_holder(view))


def _before_term(view: ClusterView, due: float | None) -> Decision | None:
    """The skip of what came due before this node led: whoever led then has decided it."""
    if due is None or view.since is None or due >= view.since:
        return None
    return _skip(Reason.DUE_BEFORE_TERM, late_by=view.since - due)


def _before_move(job: str, view: ClusterView, due: float | None) -> Decision | None:
    """The skip of what came due before the owners were these, unless the job was this node's then as well."""
    before = _before_term(view, due)
    if before is None or due is None or view.since_before is None or due < view.since_before:
        return before
    return None if hrw_owner(job, view.owners_before) == view.node_name else before


def _prefer_leader(job: str, view: ClusterView, boot: float) -> Decision:
    if not view.settled:
        return _skip(Reason.CONVERGING, backend=view.backend)
    if view.distribution == SPREAD:
        owner = hrw_owner(job, view.available_owners)
        mine = owner is None or owner == view.node_name
        if mine and any(hrw_owner(job, names) == view.node_name for names in view.twins):
            return _skip(Reason.NOT_OWNER, owner=owner, twin=True)
        return _run(Reason.OWNER, owner=owner) if mine else _skip(Reason.NOT_OWNER, owner=owner)
    # Never skip on doubt: a view whose own deadline has passed meanwhile says nothing against this node.
    if view.available or (view.is_leader and view.deadline is not None and boot >= view.deadline):
        return _run(Reason.AVAILABLE, **_quorum(view), **_holder(view))
    return _skip(Reason.NOT_LEADER, **_quorum(view), **_holder(view))


def _run(reason: Reason, **evidence: str | float | bool | None) -> Decision:
    return Decision(Verdict.RUN, reason, _frozen(evidence))


def _skip(reason: Reason, **evidence: str | float | bool | None) -> Decision:
    return Decision(Verdict.SKIP, reason, _frozen(evidence))


def _frozen(evidence: dict[str, str | float | bool | None]) -> Evidence:
    return MappingProxyType(evidence)


def _holder(view: ClusterView) -> dict[str, str | float | bool | None]:
    facts: dict[str, str | float | bool | None] = {"leader": view.leader}
    if view.lease is not None:
        facts |= {"holder": view.lease.holder, "fence": view.lease.fence, "expiry": view.lease.expiry}
    return facts


def _quorum(view: ClusterView) -> dict[str, str | float | bool | None]:
    facts: dict[str, str | float | bool | None] = {"quorate": view.quorate, "need": view.quorum}
    if view.peers:
        facts["seen"] = 1 + sum(peer.status == "agreed" for peer in view.peers)
    return facts


def _conflict(view: ClusterView) -> dict[str, str | float | bool | None]:
    kinds = {
        "names": ", ".join(view.conflict_names),
        "sizes": ", ".join(str(size) for size in view.conflicting_sizes),
        "policies": ", ".join(view.conflicting_policies),
    }
    return {kind: text for kind, text in kinds.items() if text}
