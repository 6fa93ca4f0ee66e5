"""concurrencyPolicy, by table."""

from __future__ import annotations

import pytest

from cronstable.core.job import ConcurrencyPolicy
from cronstable.core.overlap import Enqueue, Full, Replace, Skip, Start, decide_overlap
from cronstable.core.runs import LiveRun, RunKey

OLD = LiveRun(RunKey("old", "j", 60), 10, 60.0)
NEW = LiveRun(RunKey("new", "j", 120), 11, 120.0)


@pytest.mark.parametrize("policy", list(ConcurrencyPolicy))
def test_a_job_with_no_living_run_starts_under_every_policy(policy: ConcurrencyPolicy) -> None:
    assert decide_overlap(policy, []) == Start()


def test_allow_starts_beside_others() -> None:
    assert decide_overlap(ConcurrencyPolicy.ALLOW, [OLD, NEW]) == Start()


def test_forbid_skips_and_names_the_run_in_the_way() -> None:
    assert decide_overlap(ConcurrencyPolicy.FORBID, [OLD]) == Skip("concurrencyPolicy=Forbid and run old still lives")


def test_replace_cancels_all_living_runs_oldest_first() -> None:
    assert decide_overlap(ConcurrencyPolicy.REPLACE, [OLD, NEW]) == Replace((OLD, NEW))


def test_queue_waits_behind_the_newest_and_only_one_waits() -> None:
    assert decide_overlap(ConcurrencyPolicy.QUEUE, [OLD]) == Enqueue(OLD)
    assert decide_overlap(ConcurrencyPolicy.QUEUE, [OLD, NEW], waiting=NEW) == Full(NEW)
