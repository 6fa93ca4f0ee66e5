"""The shipped machines keep their promises under every sort of fault, on as many seeds as there is time for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from cronstable.testing.sim import FLAVOURS, Fault, How, Kind, Moment, Setup, simulate
from cronstable.testing.sim.faults import MOMENTS

Make = Callable[..., Setup]


@pytest.mark.parametrize("backend", sorted(FLAVOURS))
def test_no_invariant_breaks_on_any_seed(backend: str, seeds: int, setup_of: Make) -> None:
    struck: Counter[str] = Counter()
    takeovers = 0
    for seed in range(seeds):
        fine = seed % 4 == 3
        setup = setup_of(
            seed,
            backend=backend,
            nodes=(3, 2, 5, 3)[seed % 4],
            ttl=(15.0, 3.0, 6.0, 10.0)[(seed + seed // 4) % 4],
            ttls={1: 20.0} if seed % 5 == 4 else {},
            seconds=120.0 if fine else 240.0,
            run_seconds=(2.0, 8.0)[seed % 2],
            coarse=not fine,
        )
        result = simulate(setup)
        assert not result.violations, f"seed {seed}: {result.violations[0]}\n" + "\n".join(map(str, result.plan))
        assert result.counts.starts > 20
        struck.update(result.counts.moments)
        takeovers += result.counts.terms - 1
    # A set of runs in which nothing happened proves nothing.
    assert takeovers >= seeds
    assert len(struck) >= len(MOMENTS) - 3, f"never struck: {sorted(set(MOMENTS) - set(struck))}"


@pytest.mark.parametrize("backend", sorted(FLAVOURS))
def test_without_faults_everything_is_started_on_time_by_one_leader(backend: str, setup_of: Make) -> None:
    result = simulate(setup_of(1, backend=backend, kinds=(), failing=0.0))
    counts = result.counts
    assert not result.violations
    assert (counts.terms, counts.duplicates, counts.late) == (1, 0, 0)
    assert counts.worst_lateness < 3.0
    # What fell due before there was a log counts as claimed; the very end is not waited for.
    assert counts.misses <= 3
    assert counts.starts == counts.claimed >= counts.due - counts.misses


def test_without_an_election_every_node_starts_every_job(setup_of: Make) -> None:
    one, three = (simulate(setup_of(1, backend="none", nodes=n, kinds=(), failing=0.0)) for n in (1, 3))
    assert one.counts.starts > 50
    # Whatever a run of the same job gets in the way of differs from node to node.
    assert abs(three.counts.starts - 3 * one.counts.starts) < 20


def test_killing_the_leader_again_and_again_loses_nothing_but_what_it_says(setup_of: Make) -> None:
    result = simulate(setup_of("kills", kinds=(Kind.KILL,), seconds=900.0, every=30.0, failing=0.0))
    assert not result.violations
    assert result.counts.terms > 5
    assert result.counts.duplicates == 0
    assert result.counts.misses <= 3


def test_a_stop_right_after_the_first_of_several_spawns_loses_none_of_the_others(setup_of: Make) -> None:
    """What is on its way to a process when its node stops is given back, and nobody takes it for started."""
    stops = tuple(Fault(57.0 + 60.0 * n, How.STOPPED, 0, 5.0, Moment.STARTED) for n in range(9))
    result = simulate(setup_of("stops", seconds=600.0, plan=stops, failing=0.0))
    assert not result.violations
    assert result.counts.terms > 5
    assert result.counts.skips.get("claimed-not-started", 0) == 0
