"""Quorum, election and rendezvous ownership (reference 6.6, 12.6, 12.8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.quorum import elect_leader, hrw_owner, quorum_size

NAMES = st.sets(st.text(alphabet="abcdef-", min_size=1, max_size=6), min_size=2, max_size=8)


@pytest.mark.parametrize(("n", "q"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_quorum_is_a_strict_majority(n: int, q: int) -> None:
    assert quorum_size(n) == q


def test_a_cluster_of_no_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one node"):
        quorum_size(0)


def test_the_documented_spread_example_comes_out_as_documented() -> None:
    nodes = ["cronstable-a", "cronstable-b", "cronstable-c"]
    assert hrw_owner("tick-leader-only", nodes) == "cronstable-a"
    assert hrw_owner("tick-prefer-leader", nodes) == "cronstable-c"


def test_the_lowest_eligible_name_leads_a_quorate_node() -> None:
    assert elect_leader("b", {"a", "b", "c"}, {"a", "c"}, 3) == "a"


def test_a_node_that_is_not_known_to_be_quorate_is_not_elected() -> None:
    assert elect_leader("b", {"a", "b", "c"}, {"c"}, 3) == "b"


def test_without_a_quorum_nobody_is_elected() -> None:
    assert elect_leader("a", {"a"}, set(), 3) is None
    assert elect_leader("a", {"b"}, {"b"}, 4) is None


def test_nobody_owns_a_job_of_no_nodes() -> None:
    assert hrw_owner("job", []) is None


@given(NAMES)
def test_the_owner_does_not_depend_on_the_order_of_nodes(names: set[str]) -> None:
    assert hrw_owner("job", sorted(names)) == hrw_owner("job", sorted(names, reverse=True))


@given(NAMES)
def test_a_node_that_leaves_moves_only_its_own_jobs(names: set[str]) -> None:
    gone = min(names)
    for job in (f"job-{i}" for i in range(20)):
        before = hrw_owner(job, names)
        if before != gone:
            assert hrw_owner(job, names - {gone}) == before
