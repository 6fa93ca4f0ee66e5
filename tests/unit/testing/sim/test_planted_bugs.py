"""The simulator finds every protocol bug that is planted in the machines, and leaves the machines as they were."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from cronstable.core import claim_log, lease
from cronstable.testing.sim import Setup, simulate
from cronstable.testing.sim.bugs import BUGS, Bug

WITHIN = 2000
"""Seeds within which each bug has to be found."""
FIRST = {
    "deadline-from-the-answer": 37,
    "no-margin": 9,
    "takeover-by-wall-clock": 13,
    "taken-counts-as-mine": 69,
    "keeps-what-was-decided-since": 21,
    "unknown-counts-as-lost": 9,
    "fenced-counts-as-won": 3,
    "carries-its-old-fence": 82,
    "fence-by-the-clock": 180,
    "store-fence-dies-with-the-lease": 19,
    "store-says-won-for-taken": 3,
    "rerun-with-the-same-number": 7,
}
"""A seed that is known to find a bug is tried first: for the time it saves, not for what it proves."""


def seeds_for(bug: Bug) -> range:
    if "CRONSTABLE_SIM_SEEDS" in os.environ:
        return range(WITHIN)
    first = FIRST.get(bug.name, 0)
    return range(first, first + WITHIN)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_simulator_finds(bug: Bug, setup_of: Callable[..., Setup]) -> None:
    with bug.planted():
        found = next(
            (result for seed in seeds_for(bug) if (result := simulate(bug.setup(setup_of(seed)))).violations), None
        )
    assert found is not None
    clean = simulate(Bug("none", "", kinds=bug.kinds, nodes=bug.nodes, ttl=bug.ttl, ttls=bug.ttls).setup(found.setup))
    assert not clean.violations, "found without the bug as well: it is the check that is wrong"


def test_a_planted_bug_is_dug_out_again(setup_of: Callable[..., Setup]) -> None:
    before = lease.step, lease.is_leader, claim_log.step, claim_log._looked
    for bug in BUGS:
        with bug.planted():
            pass
    assert (lease.step, lease.is_leader, claim_log.step, claim_log._looked) == before


def test_there_are_enough_of_them_and_each_has_its_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
