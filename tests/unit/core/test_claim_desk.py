"""The desk: the last question before a spawn, and what PreferLeader starts while the store is away."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

from cronstable.core.claim_desk import Desk
from cronstable.core.claim_session import Session
from cronstable.core.claim_values import Claim, Phase, Start, Term
from cronstable.core.clock import Instant
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.handover import Handover
from cronstable.core.job import ClusterPolicy, Job, JobOptions
from cronstable.core.schedule import Schedule

WINDOW = 60.0
AT = 1_800_000_000
CACHE = Job(
    "cache",
    "true",
    Schedule.parse("0 * * * *", job_name="cache", zone=UTC),
    JobOptions(cluster_policy=ClusterPolicy.PREFER_LEADER),
)


def with_a_claim_of_a_past_term() -> Session:
    session = Session("a", "a1", Handover("a1", 15.0), window=WINDOW)
    session.state = replace(session.state, pending=(Claim("run", Start("cache", AT), 7),))
    return session


def test_a_claim_that_was_not_spawned_is_started_alone_while_its_window_is_open() -> None:
    session, now = with_a_claim_of_a_past_term(), Instant(AT + 30.0, 30.0)
    assert Desk().left_alone(session, {"cache": CACHE}, now) == [(CACHE, AT)]


def test_a_claim_of_a_past_term_is_not_started_hours_later_because_the_store_is_away_then() -> None:
    session, now = with_a_claim_of_a_past_term(), Instant(AT + 63_000.0, 63_000.0)
    assert Desk().left_alone(session, {"cache": CACHE}, now) == []


def test_a_claim_on_its_way_to_a_process_with_the_fence_of_an_ended_term_is_launched_anew() -> None:
    """Meanwhile a later term may have started something with a higher one (claims.md 11)."""
    session, now, run = with_a_claim_of_a_past_term(), Instant(AT + 30.0, 30.0), Decision(Verdict.RUN, Reason.LEADER)
    on_its_way = session.state.pending[0]
    carried = replace(on_its_way, fence=9)
    session.state = replace(session.state, term=Term(phase=Phase.OPEN, fence=9), pending=(carried,))
    refused = Desk().permit(session, on_its_way, run, True, now)
    assert (refused.verdict, refused.reason) == (Verdict.DEFER, Reason.FENCED)
    assert session.state.pending == (carried,)
    assert Desk().permit(session, carried, run, True, now) == run
