"""Every graph of who reaches whom: whom do converged views elect, and when are it two?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from cronstable_gossip.derive import Derived, derive, owners
from cronstable_gossip.model import Seen, observe
from hypothesis import given
from hypothesis import strategies as st

from cronstable.api import hrw_owner

JOBS = [f"job-{i}" for i in range(5)]
LIST = Path(__file__).parent.parent / "thin-bridges.txt"


def subsets(pairs: list[tuple[str, str]]) -> Iterator[frozenset[tuple[str, str]]]:
    for bits in range(1 << len(pairs)):
        yield frozenset(pair for i, pair in enumerate(pairs) if bits >> i & 1)


def both_ways(links: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    return links | {(y, x) for x, y in links}


def leaders(views: dict[str, Derived]) -> list[str]:
    return [name for name, view in views.items() if view.elected == name]


def job_owners(net: Any, views: dict[str, Derived], job: str) -> list[str]:
    return [name for name, view in views.items() if hrw_owner(job, owners(view, net.me[name])) == name]


def thin(views: dict[str, Derived], links: frozenset[tuple[str, str]], one: str, other: str) -> bool:
    """Fewer than quorum - 1 members have both at their side."""
    mates = [{x for pair in links for x in pair if name in pair} - {name} for name in (one, other)]
    return (one, other) not in links and len(mates[0] & mates[1]) < views[one].quorum - 1


def test_no_directed_graph_of_four_nodes_has_two_leaders_or_none_or_two_owners_of_a_job(graph: Any) -> None:
    for edges in subsets(list(permutations("abcd", 2))):
        net = graph("abcd", edges)
        views = net.converge()
        quorate = [name for name, view in views.items() if view.quorate]
        assert len(leaders(views)) == (1 if quorate else 0), sorted(edges)
        for job in JOBS:
            assert len(job_owners(net, views, job)) <= 1, (job, sorted(edges))


def test_a_link_that_works_one_way_counts_for_nothing(graph: Any) -> None:
    for edges in subsets(list(permutations("abc", 2))):
        mutual = frozenset((x, y) for x, y in edges if (y, x) in edges)
        views, plain = graph("abc", edges).converge(), graph("abc", mutual).converge()
        assert {n: (v.live, v.elected) for n, v in views.items()} == {n: (v.live, v.elected) for n, v in plain.items()}


def test_two_leaders_among_five_need_a_thin_bridge_and_all_such_graphs_are_listed(graph: Any) -> None:
    lines = []
    for links in subsets(list(combinations("abcde", 2))):
        net = graph("abcde", both_ways(links))
        views = net.converge()
        found = leaders(views)
        assert bool(found) == any(view.quorate for view in views.values())
        assert all(thin(views, links, x, y) for x, y in combinations(found, 2))
        if len(found) > 1:
            lines.append(f"{' '.join(found)}: {' '.join(sorted(x + y for x, y in links))}\n")
        for job in JOBS:
            assert len(job_owners(net, views, job)) <= 1, "spread defers to whoever is vouched for"
    text = "".join(lines)
    if os.environ.get("CRONSTABLE_WRITE_SNAPSHOTS"):
        LIST.write_text(text, encoding="utf-8")
    assert text == LIST.read_text(encoding="utf-8")


@st.composite
def networks(draw: st.DrawFn) -> tuple[str, frozenset[tuple[str, str]]]:
    names = "abcdefghi"[: draw(st.integers(3, 9))]
    pairs = list(permutations(names, 2))
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    dense = draw(st.booleans())
    edges = frozenset(pair for pair, keep in zip(pairs, kept, strict=True) if keep)
    return names, edges | both_ways(frozenset(draw(st.sets(st.sampled_from(pairs))))) if dense else edges


@given(networks())
def test_a_node_elects_only_whom_it_knows_to_be_quorate_and_never_without_a_quorum(
    graph: Any, network: tuple[str, frozenset[tuple[str, str]]]
) -> None:
    names, edges = network
    views = graph(names, edges).converge()
    for view in views.values():
        assert (view.elected is None) == (not view.quorate)
        if view.elected is not None:
            assert views[view.elected].quorate
    assert bool(leaders(views)) == any(view.quorate for view in views.values())


@given(networks())
def test_two_leaders_never_reach_each_other(graph: Any, network: tuple[str, frozenset[tuple[str, str]]]) -> None:
    names, edges = network
    views = graph(names, edges).converge()
    links = frozenset((x, y) for x, y in edges if (y, x) in edges)
    assert all(thin(views, links, x, y) for x, y in combinations(leaders(views), 2))


@given(networks())
def test_no_job_has_two_owners_in_any_network_thin_bridges_or_not(
    graph: Any, network: tuple[str, frozenset[tuple[str, str]]]
) -> None:
    """Whoever is vouched for is deferred to: where two would lead, a job may have no owner, and never two."""
    names, edges = network
    net = graph(names, edges, distribution="spread")
    views = net.converge()
    for job in JOBS:
        assert len(job_owners(net, views, job)) <= 1


@given(st.integers(3, 9))
def test_a_full_mesh_has_one_leader_and_one_owner_for_each_job(graph: Any, count: int) -> None:
    names = "abcdefghi"[:count]
    net = graph(names, frozenset(permutations(names, 2)), distribution="spread")
    views = net.converge()
    assert leaders(views) == ["a"]
    for job in JOBS:
        assert len(job_owners(net, views, job)) == 1


@given(networks(), st.randoms(use_true_random=False))
def test_the_order_of_the_peers_makes_no_difference(
    graph: Any, network: tuple[str, frozenset[tuple[str, str]]], random: Any
) -> None:
    names, edges = network
    net = graph(names, edges)
    net.converge()
    for name in names:
        shuffled = list(net.peers[name])
        random.shuffle(shuffled)
        assert derive(tuple(shuffled), net.me[name]) == derive(net.peers[name], net.me[name])


def test_a_node_that_leaves_moves_only_its_own_jobs() -> None:
    jobs = [f"job-{i}" for i in range(200)]
    before = {job: hrw_owner(job, "abcde") for job in jobs}
    after = {job: hrw_owner(job, "abde") for job in jobs}
    assert {job for job in jobs if before[job] != after[job]} == {job for job in jobs if before[job] == "c"}


@pytest.mark.parametrize("lie", ["", "0", "\x00"])
def test_a_majority_defers_to_no_name_that_nobody_vouches_for(graph: Any, lie: str) -> None:
    net = graph("abc", frozenset(permutations("abc", 2)))
    net.converge()
    report = net.report("b")
    lying = type(report)(**{f: getattr(report, f) for f in report.__slots__} | {"quorate_vouched": frozenset({lie})})
    peers = tuple(observe(p, Seen(lying, 0.0, 0.0), net.me["a"]) if p.host == "b" else p for p in net.peers["a"])
    assert derive(peers, net.me["a"]).elected == "a"
