"""Months of simulation add up to years, in one process or in several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cronstable.testing.memory import MemoryLeaseStore
from cronstable.testing.sim import Setup
from cronstable.testing.sim.years import MONTH, months, run, total

Make = Callable[..., Setup]
BACKENDS = ("filesystem", "etcd", "kubernetes")


class Broken(MemoryLeaseStore):
    """Nothing can be made of it."""

    def __init__(self, *args: object, **more: object) -> None:
        raise SystemExit(3)


def test_a_year_is_twelve_months_one_after_the_other_each_with_its_own_seed(setup_of: Make) -> None:
    setups = months(setup_of("s"), 1.0, BACKENDS)
    assert [setup.seed for setup in setups] == [f"s/{number}" for number in range(1, 13)]
    assert [setup.backend for setup in setups[:4]] == ["filesystem", "etcd", "kubernetes", "filesystem"]
    assert setups[1].start - setups[0].start == MONTH == setups[11].seconds
    assert sum(setup.seconds for setup in setups) == 365 * 86_400


def test_what_is_left_over_is_a_shorter_month(setup_of: Make) -> None:
    lengths = [setup.seconds / MONTH for setup in months(setup_of("s"), 0.125, ["etcd"])]
    assert lengths == [1.0, 0.5]


def test_every_backend_has_its_share_of_little_time(setup_of: Make) -> None:
    lengths = [round(setup.seconds / MONTH, 6) for setup in months(setup_of("s"), 0.125, BACKENDS)]
    assert lengths == [0.5, 0.5, 0.5]


def test_two_processes_find_what_one_finds(setup_of: Make) -> None:
    setups = [replace(setup, seconds=120.0) for setup in months(setup_of("p"), 0.25, BACKENDS)]
    alone = {month.setup.seed: (month.faults, month.counts, month.events) for month in run(setups)}
    shared = {month.setup.seed: (month.faults, month.counts, month.events) for month in run(setups, 2)}
    assert shared == alone
    assert len(alone) == 3
    counts, faults = total(run(setups))
    assert counts.starts == sum(one.starts for _, one, _ in alone.values()) > 0
    assert faults == sum(number for number, _, _ in alone.values()) > 3


def test_a_process_that_ends_too_soon_is_an_error(setup_of: Make) -> None:
    setups = [replace(setup_of(seed), store=Broken, seconds=30.0) for seed in (1, 2)]
    with pytest.raises(RuntimeError, match="ended with 3"):
        list(run(setups, 2))


def test_the_year_of_the_repository_is_a_whole_configuration() -> None:
    text = (Path(__file__).parents[3] / "cases" / "simulator" / "year.yaml").read_text()
    for policy in ("Forbid", "Queue", "Replace", "PreferLeader", "EveryNode", "rerun"):
        assert policy in text
