"""What is known of the last run does not depend on how many skips follow it, nor on the order in which it is learnt."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.last_run import LastRun, last_run
from cronstable.core.runs import Outcome, RunKey, RunRecord


def row(at: float, outcome: Outcome, run_id: str | None = None) -> RunRecord:
    key = RunKey("" if outcome is Outcome.SKIPPED else run_id or f"run-{at}", "a", None)
    return RunRecord(key, outcome, None, None, at, None)


ROWS = st.lists(
    st.builds(row, st.integers(0, 10**6).map(float), st.sampled_from(Outcome)),
    max_size=40,
    unique_by=lambda one: one.finished_at,
)


@given(rows=ROWS, order=st.randoms(use_true_random=False))
def test_the_last_run_is_the_newest_in_whatever_pieces_and_order_it_is_learnt(
    rows: list[RunRecord], order: random.Random
) -> None:
    runs = sorted((one for one in rows if one.outcome is not Outcome.SKIPPED), key=lambda one: one.finished_at)
    judged = [one for one in runs if one.outcome in (Outcome.SUCCESS, Outcome.FAILURE)]
    expected = LastRun(runs[-1], judged[-1] if judged else None) if runs else None
    shuffled = list(rows)
    order.shuffle(shuffled)
    assert last_run(None, rows) == expected
    assert last_run(last_run(None, shuffled[::2]), shuffled[1::2]) == expected
    assert expected is None or expected.failing is (bool(judged) and judged[-1].outcome is Outcome.FAILURE)


@given(rows=ROWS, skips=st.lists(st.integers(0, 2 * 10**6), max_size=40))
def test_skips_say_nothing_and_make_no_new_value(rows: list[RunRecord], skips: list[int]) -> None:
    known = last_run(None, rows)
    assert last_run(known, [row(at, Outcome.SKIPPED) for at in skips]) is known


def test_cancelled_and_unknown_runs_leave_the_verdict() -> None:
    known = last_run(None, [row(1, Outcome.FAILURE), row(2, Outcome.CANCELLED), row(3, Outcome.UNKNOWN)])
    assert known is not None
    assert known.run.outcome is Outcome.UNKNOWN
    assert known.failing
    assert not LastRun(row(1, Outcome.CANCELLED), None).failing


def test_after_a_step_back_of_the_clock_the_newest_run_is_the_one_that_ended_last() -> None:
    before = last_run(None, [row(7200, Outcome.FAILURE)])
    after = last_run(before, [row(3600, Outcome.SUCCESS)], now=3600)
    assert after is not None
    assert (after.run.finished_at, after.failing) == (3600, False)


def test_a_run_of_before_that_is_told_late_does_not_replace_a_newer_one() -> None:
    before = last_run(None, [row(7200, Outcome.FAILURE)])
    assert last_run(before, [row(3600, Outcome.SUCCESS)], now=7300) is before


def test_who_ran_it_knows_better_than_who_took_it_for_dead() -> None:
    told, guessed = row(10, Outcome.FAILURE, "x"), row(50, Outcome.UNKNOWN, "x")
    assert last_run(last_run(None, [told]), [guessed]) == LastRun(told, told)
    assert last_run(last_run(None, [guessed]), [told]) == LastRun(told, told)
