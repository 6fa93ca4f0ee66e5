"""The gate, row by row (reference 6.10), and that every answer says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.gate import decide
from cronstable.core.job import ClusterPolicy
from cronstable.core.quorum import hrw_owner
from cronstable.core.view import SPREAD, ClusterView, LeaseView

LEADER, PREFER, EVERY = ClusterPolicy.LEADER, ClusterPolicy.PREFER_LEADER, ClusterPolicy.EVERY_NODE
RUN, SKIP = Verdict.RUN, Verdict.SKIP

LEADING = ClusterView(
    backend="memory",
    node_name="a",
    job_set_id="0",
    quorate=True,
    leader="a",
    is_leader=True,
    available=True,
    deadline=100.0,
    lease=LeaseView("a#1", "a", 5.0, 7),
)
FOLLOWING = replace(LEADING, is_leader=False, leader="b", available=False, deadline=None)
CUT_OFF = replace(LEADING, quorate=False, is_leader=False, leader=None)
CONFLICTED = replace(LEADING, conflict_names=("a",))
SPREAD_VIEW = replace(LEADING, distribution=SPREAD, leader=None, is_leader=False, deadline=None)


def gate(policy: ClusterPolicy, view: ClusterView | None, *, job: str = "job", boot: float = 50.0) -> Decision:
    return decide(policy, job, election_configured=True, view=view, boot=boot)


@pytest.mark.parametrize(
    ("policy", "view", "verdict", "reason"),
    [
        (EVERY, None, RUN, Reason.EVERY_NODE),
        (EVERY, CONFLICTED, RUN, Reason.EVERY_NODE),
        (LEADER, None, SKIP, Reason.MANAGER_ABSENT),
        (PREFER, None, RUN, Reason.MANAGER_ABSENT),
        (LEADER, LEADING, RUN, Reason.LEADER),
        (PREFER, LEADING, RUN, Reason.AVAILABLE),
        (LEADER, FOLLOWING, SKIP, Reason.NOT_LEADER),
        (PREFER, FOLLOWING, SKIP, Reason.NOT_LEADER),
        (LEADER, CUT_OFF, SKIP, Reason.NO_QUORUM),
        (PREFER, CUT_OFF, RUN, Reason.AVAILABLE),
        (LEADER, CONFLICTED, SKIP, Reason.CONFLICT),
        (PREFER, CONFLICTED, RUN, Reason.AVAILABLE),
        (LEADER, replace(LEADING, conflicting_sizes=(5,)), SKIP, Reason.CONFLICT),
        (LEADER, replace(LEADING, conflicting_policies=("electLeader",)), SKIP, Reason.CONFLICT),
        (PREFER, replace(LEADING, settled=False), SKIP, Reason.CONVERGING),
        (LEADER, replace(LEADING, settled=False), RUN, Reason.LEADER),
        (LEADER, replace(CUT_OFF, stale=True), Verdict.DEFER, Reason.STALE_VIEW),
        (PREFER, replace(CUT_OFF, stale=True), RUN, Reason.AVAILABLE),
        (EVERY, replace(CUT_OFF, stale=True), RUN, Reason.EVERY_NODE),
    ],
)
def test_the_gate_answers_as_the_decision_table_says(
    policy: ClusterPolicy, view: ClusterView | None, verdict: Verdict, reason: Reason
) -> None:
    decision = gate(policy, view)
    assert (decision.verdict, decision.reason) == (verdict, reason)


@pytest.mark.parametrize("policy", list(ClusterPolicy))
def test_without_election_every_policy_runs(policy: ClusterPolicy) -> None:
    decision = decide(policy, "job", election_configured=False, view=None, boot=0.0)
    assert (decision.verdict, decision.reason) == (RUN, Reason.NO_ELECTION)


def test_a_view_whose_deadline_has_passed_does_not_start_a_leader_job() -> None:
    assert gate(LEADER, LEADING, boot=99.9).verdict is RUN
    late = gate(LEADER, LEADING, boot=100.0)
    assert (late.verdict, late.reason) == (SKIP, Reason.DEADLINE_PASSED)
    assert late.evidence["deadline"] == 100.0


def test_a_passed_deadline_never_stops_a_prefer_leader_job() -> None:
    assert gate(PREFER, replace(LEADING, available=False), boot=100.0).verdict is RUN


def test_under_spread_the_rendezvous_owner_runs_the_job() -> None:
    view = replace(
        SPREAD_VIEW,
        node_name="cronstable-a",
        owners=("cronstable-a", "cronstable-b", "cronstable-c"),
        available_owners=("cronstable-a", "cronstable-b", "cronstable-c"),
    )
    assert gate(LEADER, view, job="tick-leader-only").reason is Reason.OWNER
    elsewhere = gate(PREFER, view, job="tick-prefer-leader")
    assert (elsewhere.verdict, elsewhere.reason) == (SKIP, Reason.NOT_OWNER)
    assert elsewhere.evidence["owner"] == "cronstable-c"


def test_under_spread_a_quorate_view_without_owners_runs_no_leader_job() -> None:
    assert gate(LEADER, SPREAD_VIEW).reason is Reason.NOT_OWNER


def test_a_skip_names_the_holder_and_its_fence() -> None:
    evidence = gate(LEADER, replace(FOLLOWING, lease=LeaseView("a#1", "b", 5.0, 7))).evidence
    assert (evidence["leader"], evidence["holder"], evidence["fence"]) == ("b", "b", 7)


def test_a_conflict_says_which() -> None:
    assert gate(LEADER, replace(CONFLICTED, conflicting_sizes=(3, 5))).evidence == {"names": "a", "sizes": "3, 5"}


@pytest.mark.parametrize(
    ("due", "verdict", "reason"),
    [
        (49.9, SKIP, Reason.DUE_BEFORE_TERM),
        (50.0, RUN, Reason.LEADER),
        (None, RUN, Reason.LEADER),
    ],
)
def test_what_came_due_before_this_node_led_is_not_its_own(due: float | None, verdict: Verdict, reason: Reason) -> None:
    view = replace(LEADING, since=50.0)
    decision = decide(LEADER, "job", election_configured=True, view=view, boot=51.0, due=due)
    assert (decision.verdict, decision.reason) == (verdict, reason)


def test_under_spread_what_came_due_before_the_owners_were_these_is_skipped() -> None:
    view = replace(SPREAD_VIEW, owners=("a",), since=50.0)
    assert decide(LEADER, "job", election_configured=True, view=view, boot=51.0, due=49.0).verdict is SKIP
    assert decide(LEADER, "job", election_configured=True, view=view, boot=51.0, due=50.5).verdict is RUN


@pytest.mark.parametrize(
    ("before", "since_before", "due", "verdict"),
    [
        (("a", "b"), 20.0, 49.0, RUN),
        (("a", "b"), 20.0, 20.0, RUN),
        (("a", "b"), 20.0, 19.9, SKIP),
        (("a", "b"), None, 49.0, SKIP),
        (("b",), 20.0, 49.0, SKIP),
        ((), 20.0, 49.0, SKIP),
        (("b",), 20.0, 50.0, RUN),
    ],
    ids=["kept", "since then", "before that", "unknown", "another's", "nobody's", "due in its own term"],
)
def test_under_spread_a_job_that_did_not_move_is_not_skipped_when_the_owners_change(
    before: tuple[str, ...], since_before: float | None, due: float, verdict: Verdict
) -> None:
    job = next(f"job-{i}" for i in range(100) if hrw_owner(f"job-{i}", ("a", "b", "c")) == "a")
    view = replace(SPREAD_VIEW, owners=("a", "b", "c"), since=50.0, owners_before=before, since_before=since_before)
    decision = decide(LEADER, job, election_configured=True, view=view, boot=51.0, due=due)
    assert decision.verdict is verdict
    assert decision.reason is (Reason.OWNER if verdict is RUN else Reason.DUE_BEFORE_TERM)


def test_a_twin_that_goes_first_runs_what_it_owns_in_its_own_view() -> None:
    view = replace(SPREAD_VIEW, available_owners=("a",))
    assert gate(PREFER, replace(view, twins=(("a",),))).reason is Reason.NOT_OWNER
    jobs = [f"job-{i}" for i in range(20)]
    twin = replace(view, twins=(("a", "b"),))
    theirs = {name for name in jobs if gate(PREFER, twin, job=name).verdict is SKIP}
    assert theirs == {name for name in jobs if hrw_owner(name, ("a", "b")) == "a"}
    assert 0 < len(theirs) < len(jobs)
