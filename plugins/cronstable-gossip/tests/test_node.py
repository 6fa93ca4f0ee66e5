"""One node and its candidacy, told what happened: standing, doubt, silence, and when whom to ask again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cronstable_gossip.candidacy import Candidacy, advance, doubted, hidden, silence
from cronstable_gossip.model import Claim, Failed, Me, Member, Report, Seen
from cronstable_gossip.node import Node, Timing, scheme

MakeMe = Callable[..., Me]
TIMING = Timing(interval=10.0, timeout=4.0)
LAG = 1.0


@pytest.fixture
def node(make_me: MakeMe) -> Node:
    """Node ``b`` of a, b, c at boot second 100."""
    return Node(make_me("b"), ["a:1", "c:1"], TIMING, now=100.0)


def said(name: str, **changes: Any) -> Report:
    lists = (Member(name, f"i-{name}", True), Member("b", "i-b", True))
    report = Report(name, "v1:0", "v1", f"i-{name}", 3, "single-leader", True, lists, frozenset({"b"}))
    return replace(report, **changes)


def pass_time(node: Node, until: float) -> None:
    """The loop runs all the time until then."""
    while node._last_beat < until:
        assert not node.beat(min(until, node._last_beat + 0.9 * LAG))


def claim_of(node: Node) -> Claim:
    return node.candidacy.claim


def hear(node: Node, index: int, at: float, *, name: str = "", **changes: Any) -> None:
    pass_time(node, at)
    node.polled(index, Seen(said(name or "ac"[index], **changes), at, at), at)
    node.settle(at)


def lose(node: Node, index: int, at: float, **how: bool) -> bool:
    pass_time(node, at)
    doubts = node.polled(index, Failed("gone", at, **how), at)
    node.settle(at)
    return doubts


def lead(node: Node) -> None:
    """b leads: a's port is closed, c agrees."""
    lose(node, 0, 100.1, refused=True)
    hear(node, 1, 100.2)
    hear(node, 1, 100.3)
    assert node.view(100.3).is_leader


# -- standing ---------------------------------------------------------------------------------------------------------


def test_an_elected_node_stands_and_leads_only_after_another_answer(node: Node) -> None:
    lose(node, 0, 100.1, refused=True)
    hear(node, 1, 100.2)
    assert node.candidacy == Candidacy(Claim.STANDING, asked=100.2)
    assert not node.view(100.2).is_leader
    assert node.report(100.2, None).claim is Claim.STANDING
    hear(node, 1, 100.3)
    assert node.candidacy == Candidacy(Claim.LEADING, asked=100.2, since=100.3)
    assert node.view(100.3).since == 100.3
    assert node.report(100.3, None).claim is Claim.LEADING


@pytest.mark.parametrize("claim", [Claim.STANDING, Claim.LEADING])
def test_nobody_leads_beside_one_who_claims_and_nobody_stands_against_him(node: Node, claim: Claim) -> None:
    lose(node, 0, 100.1, refused=True)
    hear(node, 1, 100.2, claim=claim)
    assert claim_of(node) is Claim.NONE
    hear(node, 1, 100.3)
    assert claim_of(node) is Claim.STANDING
    hear(node, 1, 100.4, claim=claim)
    assert claim_of(node) is Claim.STANDING
    hear(node, 1, 100.5)
    assert claim_of(node) is Claim.LEADING


def test_the_leader_that_is_shown_while_we_wait_is_the_one_who_leads(node: Node) -> None:
    lose(node, 0, 100.1, refused=True)
    hear(node, 1, 100.2, claim=Claim.LEADING)
    assert node.view(100.2).leader == "c"
    hear(node, 1, 100.3)
    assert node.view(100.3).leader is None


def test_a_lower_name_that_is_eligible_ends_our_term(node: Node) -> None:
    lead(node)
    hear(node, 0, 101.0)
    assert claim_of(node) is Claim.NONE
    assert node.view(101.0).leader == "a"


def test_a_leader_that_fell_silent_is_waited_for_from_its_last_question(node: Node) -> None:
    hear(node, 0, 100.1, claim=Claim.LEADING)
    hear(node, 1, 100.2)
    node.called("i-a", 103.0)
    lose(node, 0, 104.1)
    for at in (104.2, 110.0, 116.9):
        hear(node, 1, at)
        assert claim_of(node) is Claim.STANDING
    hear(node, 1, 117.1)
    assert claim_of(node) is Claim.LEADING, "103 + interval + connectTimeout"


def test_one_whose_port_is_closed_is_not_waited_for(node: Node) -> None:
    hear(node, 0, 100.1, claim=Claim.LEADING)
    hear(node, 1, 100.2)
    lose(node, 0, 101.0, refused=True)
    hear(node, 1, 101.1)
    hear(node, 1, 101.2)
    assert node.view(101.2).is_leader


def test_whom_we_elected_may_lead_although_it_never_said_so(node: Node) -> None:
    hear(node, 0, 100.1)
    hear(node, 1, 100.2)
    lose(node, 0, 104.1)
    assert silence(node.peers, lambda _: None, TIMING.patience) == {"a": 100.1 + TIMING.patience}
    assert node.report(104.2, None).waiting_for == {"a"}
    assert node.report(100.1 + TIMING.patience, None).waiting_for == frozenset()


def test_nobody_leads_while_another_waits_for_one_that_fell_silent(node: Node) -> None:
    lose(node, 0, 100.1, refused=True)
    hear(node, 1, 100.2)
    hear(node, 1, 100.3, waiting_for=frozenset({"a"}))
    assert claim_of(node) is Claim.STANDING, "it may have lived on the evidence of c"
    hear(node, 1, 100.4, waiting_for=frozenset({"b"}))
    assert claim_of(node) is Claim.LEADING


def test_a_node_that_only_others_reach_gets_two_intervals_to_hear_of_us(make_me: MakeMe) -> None:
    node = Node(make_me("b"), ["x:1", "c:1"], TIMING, now=100.0)
    node.polled(0, Seen(said("x"), 100.1, 100.1), 100.1)
    hear(node, 1, 100.2, mutual_agreeing=frozenset({"b", "x"}))
    lose(node, 0, 104.0)
    assert hidden(node.peers) == {"x"}
    start = node.candidacy.asked
    for at in (104.1, start + 19.9):
        hear(node, 1, at, mutual_agreeing=frozenset({"b", "x"}))
        assert claim_of(node) is Claim.STANDING
    hear(node, 1, start + 20.1, mutual_agreeing=frozenset({"b", "x"}))
    assert claim_of(node) is Claim.LEADING


def test_the_rounds_of_the_hold_are_counted_from_when_peers_can_ask_us(node: Node) -> None:
    strangers = (Member("c", "i-c", True), Member("b", "of-before", True))
    node.begin(100.5)
    lose(node, 0, 100.6, refused=True)
    for at in (100.7, 101.2, 101.7, 109.0, 110.4):
        hear(node, 1, at, members=strangers)
        assert not node.view(at).available
        assert not node.view(at).settled
    hear(node, 1, 110.5, members=strangers)
    assert node.view(110.5).available


def test_one_alone_leads_at_once_and_two_of_three_silent_never(make_me: MakeMe) -> None:
    alone = Node(make_me("b"), [], TIMING, now=100.0)
    alone.settle(100.0)
    alone.settle(100.0)
    assert alone.view(100.0).is_leader
    cut = Node(make_me("b"), ["a:1", "c:1"], TIMING, now=100.0)
    lose(cut, 0, 100.1)
    lose(cut, 1, 100.2)
    assert not cut.view(100.2).quorate
    assert cut.candidacy.claim is Claim.NONE


def test_without_election_and_under_spread_nobody_stands(make_me: MakeMe) -> None:
    for changes in ({"elect_leader": False}, {"distribution": "spread"}):
        node = Node(make_me("b", **changes), [], TIMING, now=100.0)
        node.settle(100.0)
        node.settle(100.1)
        assert node.candidacy == Candidacy()
        assert not node.view(100.1).is_leader


def test_under_spread_it_is_told_who_owned_the_jobs_before_and_since_when(make_me: MakeMe) -> None:
    node = Node(make_me("b", distribution="spread"), ["a:1", "c:1"], TIMING, now=100.0)
    alone = frozenset({"b"})
    lose(node, 0, 100.1, refused=True)
    hear(node, 1, 100.2, distribution="spread", mutual_agreeing=alone)
    view = node.view(100.2)
    assert (view.owners, view.since, view.owners_before, view.since_before) == (("b", "c"), 100.2, (), 100.0)
    hear(node, 0, 105.0, distribution="spread", mutual_agreeing=alone)
    view = node.view(105.0)
    assert (view.owners, view.since, view.owners_before, view.since_before) == (
        ("a", "b", "c"),
        105.0,
        ("b", "c"),
        100.2,
    )
    assert node.beat(105.0 + TIMING.timeout + 0.1), "long enough for others to have given our jobs away"
    view = node.view(109.1)
    assert (view.since, view.owners_before, view.since_before) == (109.1, (), 109.1)


def test_who_is_not_elected_claims_nothing(make_me: MakeMe) -> None:
    for before in (Candidacy(), Candidacy(Claim.STANDING, 1.0), Candidacy(Claim.LEADING, 1.0, 2.0)):
        found = advance(before, [], make_me("b"), elected=False, silent_until=0.0, detour=0.0, now=5.0)
        assert found == Candidacy()
        assert doubted(Candidacy(), 5.0) == Candidacy()


# -- doubt ------------------------------------------------------------------------------------------------------------


def test_a_loop_that_stood_still_makes_the_view_stale_until_everybody_in_reach_was_asked(node: Node) -> None:
    lead(node)
    view = node.view(100.3 + LAG + 0.01)
    assert (view.stale, view.is_leader, view.quorate, view.leader) == (True, False, False, None)
    assert node.beat(105.0)
    assert node.view(105.0).stale
    assert node.report(105.0, None).mutual_agreeing == frozenset()
    node.polled(1, Seen(said("c"), 104.9, 105.1), 105.1)
    assert node.view(105.1).stale, "sent before the doubt: no evidence"
    hear(node, 1, 105.2)
    view = node.view(105.2)
    assert (view.stale, view.is_leader, view.since) == (False, True, 100.3)


def test_a_short_lag_is_no_doubt(node: Node) -> None:
    lead(node)
    assert not node.beat(100.3 + LAG)
    assert not node.view(100.3 + LAG).stale


def test_a_leader_that_wakes_beside_another_has_lost_its_term(node: Node) -> None:
    lead(node)
    node.beat(150.0)
    hear(node, 1, 150.1, claim=Claim.LEADING)
    assert not node.view(150.1).is_leader
    hear(node, 1, 150.2)
    assert node.view(150.2).since == 150.2


def test_old_evidence_is_doubted(node: Node) -> None:
    lead(node)
    pass_time(node, 114.2)
    assert not node.view(114.2).stale
    pass_time(node, 114.31)
    assert node.view(114.31).stale, "older than interval + connectTimeout"


def test_a_leader_that_loses_a_peer_asks_the_others_first(make_me: MakeMe) -> None:
    node = Node(make_me("a"), ["b:1", "c:1"], TIMING, now=100.0)
    for at in (100.1, 100.2):
        for index, name in enumerate("bc"):
            lists = (Member(name, f"i-{name}", True), Member("a", "i-a", True))
            node.polled(index, Seen(said(name, members=lists), at, at), at)
            node.settle(at)
    assert node.view(100.2).is_leader
    assert lose(node, 0, 100.3)
    assert node.view(100.3).stale
    assert not lose(node, 0, 100.4), "it was lost before"
    lists = (Member("c", "i-c", True), Member("a", "i-a", True))
    node.polled(1, Seen(said("c", members=lists), 100.5, 100.5), 100.5)
    node.settle(100.5)
    assert node.view(100.5).is_leader
    assert node.view(100.5).since == 100.2


def test_a_follower_that_loses_a_peer_doubts_nothing(node: Node) -> None:
    hear(node, 0, 100.1, claim=Claim.LEADING)
    hear(node, 1, 100.2)
    assert not lose(node, 1, 100.3)
    assert not node.view(100.3).stale


def test_under_spread_a_long_standstill_begins_the_ownership_anew_and_a_short_one_does_not(make_me: MakeMe) -> None:
    node = Node(make_me("b", distribution="spread"), ["c:1"], TIMING, now=100.0)
    hear(node, 0, 100.2, name="c", distribution="spread", cluster_size=2)
    since = node.view(100.2).since
    node.beat(103.0)
    hear(node, 0, 103.1, name="c", distribution="spread", cluster_size=2)
    assert node.view(103.1).since == since
    node.beat(110.0)
    hear(node, 0, 110.1, name="c", distribution="spread", cluster_size=2)
    assert node.view(110.1).since == 110.0
    assert node.report(120.0, None).mutual_agreeing == {"c"}, "all would own all if those who doubt had no candidates"


# -- when to ask ------------------------------------------------------------------------------------------------------


def test_peers_are_asked_start_to_start_and_up_to_a_tenth_earlier(node: Node) -> None:
    hear(node, 0, 100.1, claim=Claim.LEADING)
    hear(node, 1, 100.1)
    assert node.wait(0, 100.1, 102.1, 0.0) == pytest.approx(8.0)
    assert node.wait(0, 100.1, 102.1, 0.999) == pytest.approx(7.0, abs=0.01)
    assert node.wait(0, 100.1, 200.0, 0.5) == 0.0


def test_who_has_yet_to_notice_us_is_asked_often_for_a_while(node: Node) -> None:
    hear(node, 1, 100.1, members=())
    assert node.wait(1, 100.1, 100.1, 0.0) == pytest.approx(TIMING.fast)
    late = 100.1 + 2 * TIMING.interval + TIMING.timeout
    assert node.wait(1, late, late, 0.0) == pytest.approx(TIMING.interval)


def test_who_stands_asks_at_once(node: Node) -> None:
    lose(node, 0, 100.1, refused=True)
    hear(node, 1, 100.2)
    assert node.wait(1, 100.2, 100.2, 0.0) < 0.01


@pytest.mark.parametrize(("interval", "fast"), [(0.01, 0.01), (0.2, 0.05), (1.0, 0.1), (30.0, 0.5)])
def test_often_is_a_tenth_of_the_interval_within_bounds(interval: float, fast: float) -> None:
    assert Timing(interval, 10.0).fast == pytest.approx(fast)


@pytest.mark.parametrize(("timeout", "lag"), [(2.0, 0.5), (10.0, 1.0)])
def test_the_lag_bound_is_a_quarter_of_the_timeout_and_a_second_at_most(timeout: float, lag: float) -> None:
    assert Timing(30.0, timeout).lag == lag


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_the_ran_set_is_that_of_the_live_job_set_and_bounded(node: Node) -> None:
    assert node.mark_ran("v1:0", ["x"])
    assert not node.mark_ran("v1:0", ["x"])
    assert not node.mark_ran("v1:1", ["y"])
    node.mark_ran("v1:0", [f"j{i}" for i in range(1000)])
    assert len(node.ran()) == 512
    node.adopt("v1:1")
    assert node.ran() == set()


def test_callers_are_remembered_up_to_a_bound_and_the_first_call_of_each_is_told(node: Node) -> None:
    assert [node.called("i-a", 100.2), node.called("i-a", 100.2)] == [True, False]
    for i in range(5000):
        assert node.called(f"x{i}", 100.3)
    assert len(node._callers) == 4096


def test_a_process_is_known_while_there_is_news_of_it(node: Node) -> None:
    assert not node.knows("i-a")
    hear(node, 0, 100.1)
    assert node.knows("i-a")
    lose(node, 0, 100.2)
    assert not node.knows("i-a")


@pytest.mark.parametrize(("text", "version"), [("v1:00", "v1"), ("v2:00", "v2"), ("00", "v1"), (":00", "v1")])
def test_the_scheme_is_the_prefix_of_the_job_set_id(text: str, version: str) -> None:
    assert scheme(text) == version
