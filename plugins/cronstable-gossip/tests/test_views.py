"""The pure view: what one poll does to a peer, and the scenarios of scenarios.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cronstable_gossip.derive import MOST_CANDIDATES, Derived, agreeing, cluster_size, derive, owners, settled
from cronstable_gossip.model import Failed, Me, Member, Peer, Report, Seen, observe
from cronstable_gossip.summaries import fleet, own_entry

from cronstable.api import PeerStatus

MakeMe = Callable[..., Me]
KEYWORDS = ("attests", "lists", "silent", "mutual", "vouched", "size", "spread", "observes", "as", "members")


# -- scenarios --------------------------------------------------------------------------------------------------------


def scenarios() -> Iterator[tuple[str, list[str], str]]:
    text = Path(__file__).with_name("scenarios.txt").read_text(encoding="utf-8")
    for block in text.split("\n## ")[1:]:
        lines = [line for line in block.splitlines() if line.strip()]
        yield lines[0], lines[1:-1], lines[-1].removeprefix("= ")


def words(line: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    key = ""
    for word in line.split()[2:]:
        if word in KEYWORDS:
            key = word
            found[key] = []
        else:
            found[key].append(word)
    return found


def peer_of(line: str, me: Me) -> Peer:
    host, status = line.split()[:2]
    said = words(line)
    name, _, instance = said.get("as", [f"{host}#i-{host}"])[0].partition("#")
    own = Member(name, instance, True)
    lists: tuple[Member, ...] | None = (own,)
    if "attests" in said or "lists" in said:
        lists = (own, Member(me.name, me.instance_id, "attests" in said))
    if "members" in said:
        lists = tuple(Member(m, me.instance_id if m == me.name else f"i-{m}", True) for m in said["members"])
    if "silent" in said:
        lists = None
    report = Report(
        name,
        me.job_set_id,
        "v1",
        instance,
        int(said["size"][0]) if "size" in said else None,
        "spread" if "spread" in said else "single-leader",
        "observes" not in said,
        lists,
        frozenset(said.get("mutual", [])),
        frozenset(said.get("vouched", [])),
    )
    fresh = status not in ("unknown", "unreachable", "untrusted")
    return Peer(host, PeerStatus(status), report if fresh else None, name, instance, me.job_set_id)


def told(view: Derived, me: Me) -> str:
    facts = [
        f"quorate {len(view.live)} of {view.size}" if view.quorate else "not quorate",
        f"elects {view.elected or 'nobody'}",
        f"available {min(view.available)}",
        f"owners {' '.join(sorted(owners(view, me))) or 'nobody'}",
    ]
    for name in ("names", "sizes", "policies", "swapped"):
        values = getattr(view, {"names": "conflict_names", "swapped": "swapped"}.get(name, f"conflicting_{name}"))
        facts += [f"{name} {'; '.join(map(str, values))}"] if values else []
    return ", ".join(facts)


@pytest.mark.parametrize(("lines", "expected"), [pytest.param(x, y, id=title) for title, x, y in scenarios()])
def test_a_view_leads_to_what_its_scenario_says(lines: list[str], expected: str, make_me: MakeMe) -> None:
    me = make_me("b")
    peers = tuple(peer_of(line, me) for line in lines)
    assert told(derive(peers, me), me) == expected
    assert told(derive(peers[::-1], me), me) == expected
    assert derive(peers, me).conflict == any(word in expected for word in ("names", "sizes", "policies"))


# -- one poll ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def me(make_me: MakeMe) -> Me:
    return make_me("b")


def seen(**changes: Any) -> Seen:
    return Seen(replace(Report("a", "v1:0", "v1", "i-a"), **changes), sent=5.0, wall=100.0)


FAILED = Failed("no route", 6.0)


def test_a_peer_with_our_job_set_agrees(me: Me) -> None:
    peer = observe(Peer("a:1"), seen(), me)
    assert (peer.status, peer.streak, peer.last_seen, peer.evidence) == (PeerStatus.AGREED, 0, 100.0, 5.0)


def test_another_job_set_is_syncing_until_it_has_been_so_three_times(me: Me) -> None:
    peer = Peer("a:1")
    found = []
    for _ in range(4):
        peer = observe(peer, seen(job_set_id="v1:1"), me)
        found.append((peer.status, peer.streak))
    assert found == [
        (PeerStatus.SYNCING, 1),
        (PeerStatus.SYNCING, 2),
        (PeerStatus.DRIFTED, 3),
        (PeerStatus.DRIFTED, 4),
    ]
    assert observe(peer, seen(), me).streak == 0


def test_a_failure_neither_advances_nor_clears_the_streak(me: Me) -> None:
    peer = observe(Peer("a:1"), seen(job_set_id="v1:1"), me)
    peer = observe(observe(peer, FAILED, me), seen(job_set_id="v1:1"), me)
    assert peer.streak == 2
    conflict = observe(replace(peer, streak=2), seen(node_name="b", instance_id="other"), me)
    assert (conflict.status, conflict.streak) == (PeerStatus.CONFLICT, 2)


def test_another_scheme_is_drifted_at_once(me: Me) -> None:
    assert observe(Peer("a:1"), seen(scheme_version="v2", job_set_id="v2:0"), me).status is PeerStatus.DRIFTED


def test_our_own_name_with_our_instance_or_none_is_ourselves_for_good(me: Me) -> None:
    for instance in ("i-b", None):
        peer = observe(Peer("a:1", streak=2), seen(node_name="b", instance_id=instance), me)
        assert (peer.status, peer.streak, peer.is_self) == (PeerStatus.SELF, 0, True)
        assert observe(peer, FAILED, me).status is PeerStatus.SELF
    assert cluster_size([peer, Peer("c:1")]) == 2


def test_a_failure_drops_what_was_fresh_and_keeps_who_it_was(me: Me) -> None:
    before = observe(Peer("a:1"), seen(summaries={"j": 1}), me)
    peer = observe(before, FAILED, me)
    assert (peer.status, peer.report, peer.last_error) == (PeerStatus.UNREACHABLE, None, "no route")
    assert (peer.node_name, peer.instance_id, peer.summaries) == ("a", "i-a", {"j": 1})
    assert (peer.last_seen, peer.evidence, peer.sent) == (100.0, 5.0, 6.0)
    assert observe(before, replace(FAILED, untrusted=True), me).status is PeerStatus.UNTRUSTED
    assert observe(peer, seen(), me).last_error is None


def test_what_a_peer_repeats_goes_on_to_count_down_from_when_it_said_it(me: Me) -> None:
    jobs: Any = {"j": {"scheduled_in": 90.0, "running": 0}, "k": {"scheduled_in": None}, "l": "of another version"}
    said = seen(summaries=jobs)
    peer = observe(Peer("a:1"), said, me)
    own = own_entry("b", "b:1", 0.0, {}, truncated=False)

    def shown(peer: Peer, now: float) -> Any:
        return fleet(own, [peer], now)[1]["jobs"]

    assert shown(peer, 5.0) == jobs
    peer = observe(peer, replace(said, sent=35.0, wall=130.0), me)
    assert shown(peer, 50.0)["j"] == {"scheduled_in": 45.0, "running": 0}
    peer = observe(observe(peer, FAILED, me), replace(said, sent=65.0, wall=160.0), me)
    assert shown(peer, 70.0)["j"]["scheduled_in"] == 25.0, "also over a failure"
    assert shown(peer, 500.0)["j"]["scheduled_in"] == 0
    assert shown(peer, 500.0)["k"] == {"scheduled_in": None}
    peer = observe(peer, replace(seen(summaries={"j": {"scheduled_in": 80.0}}), sent=95.0), me)
    assert shown(peer, 100.0) == {"j": {"scheduled_in": 75.0}}


# -- counting ---------------------------------------------------------------------------------------------------------


def test_a_node_that_is_listed_twice_is_one_member_also_when_it_dies(me: Me) -> None:
    twice = [observe(Peer(host), seen(), me) for host in ("a:1", "a:2")]
    assert cluster_size(twice) == 2
    assert cluster_size([observe(peer, FAILED, me) for peer in twice]) == 2


def test_a_reload_here_ends_the_agreement_before_the_next_poll(me: Me) -> None:
    peer = observe(Peer("a:1"), seen(), me)
    assert agreeing([peer], me, 2)
    assert not agreeing([peer], replace(me, job_set_id="v1:1"), 2)


def test_a_name_that_one_peer_alone_calls_double_closes_nothing_and_two_do(me: Me) -> None:
    lie = (Member("c", "x", True), Member("c", "y", True))
    liar = observe(Peer("a:1"), seen(members=lie), me)
    honest = observe(Peer("d:1"), seen(node_name="d", instance_id="i-d", members=()), me)
    assert derive((liar, honest), me).conflict_names == ()
    second = observe(Peer("d:1"), seen(node_name="d", instance_id="i-d", members=lie), me)
    assert derive((liar, second), me).conflict_names == ("c",)


def test_the_conflict_of_a_peer_that_fell_silent_is_over(me: Me) -> None:
    peer = observe(Peer("a:1"), seen(cluster_size=9, distribution="spread"), me)
    assert derive((peer,), me).conflict
    assert not derive((observe(peer, FAILED, me),), me).conflict


def test_more_candidates_than_fit_are_cut_at_the_lowest_names_and_counted(me: Me) -> None:
    names = frozenset(f"n{i:04}" for i in range(MOST_CANDIDATES + 88))
    peer = observe(Peer("a:1"), seen(members=(Member("b", "i-b", True),), mutual_agreeing=names), me)
    view = derive((peer,), me)
    assert view.truncated == MOST_CANDIDATES + 89
    assert view.vouched[0] == "a"
    assert len(view.vouched) == MOST_CANDIDATES
    assert view.vouched[-1] < max(names)


def test_a_twin_that_goes_first_is_told_with_whom_it_agrees(me: Me) -> None:
    for instance, twins in (("a-lower", (("a", "b"),)), ("z-higher", ())):
        twin = observe(Peer("x:1"), seen(node_name="b", instance_id=instance, mutual_agreeing=frozenset({"a"})), me)
        assert derive((twin,), me).twins == twins


# -- the convergence hold ---------------------------------------------------------------------------------------------


def test_a_fresh_view_settles_when_everybody_was_polled_and_those_who_agree_know_us(me: Me) -> None:
    known = observe(Peer("a:1"), seen(members=(Member("b", "i-b", False),)), me)
    stranger = observe(Peer("a:1"), seen(members=(Member("b", "of-before", True),)), me)
    assert not settled([Peer("a:1")], me, 30.0)
    assert not settled([known, Peer("c:1")], me, 30.0)
    assert settled([known], me, 30.0)
    assert not settled([stranger], me, 30.0)
    assert settled([observe(Peer("a:1"), FAILED, me)], me, 30.0), "alone after the first round"
    assert settled([observe(Peer("a:1"), seen(members=None), me)], me, 30.0), "an older build"
    assert settled([], me, 30.0)


def test_one_who_does_not_know_us_is_waited_for_until_the_third_round_however_often_it_was_asked(me: Me) -> None:
    stranger = Peer("a:1")
    for second in range(30):
        stranger = observe(stranger, replace(seen(members=(Member("b", "of-before", True),)), sent=float(second)), me)
        assert not settled([stranger], me, 30.0)
    assert settled([replace(stranger, sent=30.0)], me, 30.0)
