"""Delays by table, and the ladder under every order of events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.retry import (
    Abandon,
    Action,
    Admitted,
    Answer,
    Arm,
    Defer,
    Dropped,
    Due,
    Failed,
    GiveUp,
    Ladder,
    Nothing,
    Refused,
    Relaunch,
    Resumed,
    RetryEvent,
    RetryPolicy,
    Settled,
    Spent,
    Succeeded,
    Wait,
    moved,
    retry_policy,
    step,
)
from cronstable.core.runs import RunKey, Trigger
from cronstable.core.view import SPREAD, ClusterView

CASES = Path(__file__).resolve().parents[2] / "cases"
THREE = RetryPolicy(maximum=3, initial=2.0, longest=300.0, multiplier=2.0)
FIRST = RunKey("r0", "job", 60)


def retry(n: int) -> RunKey:
    return RunKey(f"r{n}", "job", 60, n, Trigger.RETRY)


def manual(run_id: str = "m") -> RunKey:
    return RunKey(run_id, "job", None, 0, Trigger.MANUAL)


def walk(*events: RetryEvent, ladder: Ladder | None = None, now: float = 100.0) -> tuple[Ladder | None, Action]:
    action: Action = Nothing()
    for event in events:
        ladder, action = step(ladder, event, now)
    return ladder, action


@pytest.mark.parametrize("name", ["exec-retry-backoff", "extra/exec-retry-shrinking", "extra/exec-retry-constant"])
def test_the_delays_of_a_case_are_the_ones_it_wants(name: str) -> None:
    case = yaml.safe_load((CASES / f"{name}.yaml").read_text())
    policy = retry_policy({"onFailure": case["input"]["job"]["onFailure"]})
    wanted = case["expected"]["delays_s"]
    assert [policy.delay(n) for n in range(1, len(wanted) + 1)] == wanted
    assert policy.allows(len(wanted))
    assert not policy.allows(len(wanted) + 1)


def test_a_job_without_the_key_is_not_tried_again() -> None:
    assert not retry_policy({}).allows(1)
    assert not retry_policy({"onFailure": {"report": {}}}).allows(1)


def test_minus_one_is_for_ever_and_no_delay_overflows() -> None:
    policy = RetryPolicy(-1, 1.0, 300.0, 10.0)
    assert policy.allows(10**9)
    assert policy.attempts is None
    assert policy.delay(100_000) == 300.0


@given(st.floats(0, 1e6), st.floats(0.001, 1e6), st.floats(0.001, 100, exclude_min=True), st.integers(1, 10_000))
def test_every_delay_is_between_nothing_and_the_cap(initial: float, cap: float, factor: float, attempt: int) -> None:
    assert 0 <= RetryPolicy(-1, initial, cap, factor).delay(attempt) <= cap


def test_jitter_makes_a_delay_shorter_by_its_part_at_most_and_spreads_those_of_many() -> None:
    policy = retry_policy({"onFailure": {"retry": {"maximumRetries": 3, "initialDelay": 10, "jitter": 0.4}}})
    delays = [policy.delay(1, f"run{i}") for i in range(500)]
    assert 6.0 < min(delays) < 6.2
    assert 9.8 < max(delays) <= 10.0
    assert len(set(delays)) == 500
    assert policy.delay(1, "run7") == delays[7]
    assert replace(policy, jitter=0.0).delay(1, "run7") == 10.0


def test_the_runs_of_a_ladder_choose_its_pauses() -> None:
    policy = RetryPolicy(5, 10.0, 10.0, 1.0, 1.0)
    found = []
    for run_id in ("a", "b"):
        key = RunKey(run_id, "job", 60)
        ladder, _ = step(None, Admitted(key, policy), 0.0)
        _, action = step(ladder, Failed(key), 0.0)
        assert isinstance(action, Arm)
        found.append(action.wait.delay)
    assert found == [policy.delay(1, "a"), policy.delay(1, "b")]
    assert found[0] != found[1]


def test_a_failure_arms_the_next_attempt_after_its_delay() -> None:
    ladder, action = walk(Admitted(FIRST, THREE), Failed(FIRST))
    assert isinstance(action, Arm)
    assert (action.wait.attempt, action.wait.due, action.wait.delay) == (1, 102.0, 2.0)
    assert ladder is not None
    assert ladder.waiting == action.wait


def test_a_ladder_ends_with_exactly_one_final_failure() -> None:
    events: list[RetryEvent] = [Admitted(FIRST, THREE), Failed(FIRST)]
    for n in (1, 2, 3):
        events += [Due(Answer.GO), Admitted(retry(n), THREE), Failed(retry(n))]
    ladder: Ladder | None = None
    actions = []
    for event in events:
        ladder, action = step(ladder, event, 0.0)
        actions.append(action)
    assert [a.attempt for a in actions if isinstance(a, Relaunch)] == [1, 2, 3]
    assert [a.wait.delay for a in actions if isinstance(a, Arm)] == [2.0, 4.0, 8.0]
    assert [a for a in actions if isinstance(a, GiveUp)] == [GiveUp()]
    assert ladder is None


def test_success_ends_the_ladder() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE), Failed(FIRST), Due(Answer.GO), Admitted(retry(1), THREE))
    assert walk(Succeeded(retry(1)), ladder=ladder) == (None, Nothing())


def test_a_scheduled_fire_resets_the_ladder_and_the_older_run_counts_no_more() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE))
    newer = RunKey("n", "job", 120)
    ladder, _ = walk(Admitted(newer, THREE), ladder=ladder)
    assert walk(Failed(FIRST), ladder=ladder) == (ladder, GiveUp())
    after, action = walk(Failed(newer), ladder=ladder)
    assert isinstance(action, Arm)
    assert after is not None
    assert after.first == newer


def test_a_scheduled_fire_drops_an_attempt_that_was_waited_for() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE), Failed(FIRST), Admitted(RunKey("n", "job", 120), THREE))
    assert walk(Due(Answer.GO), ladder=ladder) == (ladder, Nothing())


def test_a_manual_start_shares_the_state_and_does_not_reset_it() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE), Failed(FIRST), Due(Answer.GO), Admitted(retry(1), THREE))
    ladder, action = walk(Admitted(manual(), THREE), Failed(manual()), ladder=ladder)
    assert isinstance(action, Arm)
    assert action.wait.attempt == 2
    after, action = walk(Failed(retry(1)), ladder=ladder)
    assert action == Nothing(), "one attempt is waited for already"
    assert after is not None
    assert ladder is not None
    assert after.waiting == ladder.waiting


def test_a_manual_success_settles_what_was_waited_for() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE), Failed(FIRST), Admitted(manual(), THREE), Succeeded(manual()))
    assert ladder is None


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_run_that_was_cancelled_or_replaced_is_never_tried_again(attempt: int) -> None:
    events: list[RetryEvent] = [Admitted(FIRST, THREE)]
    key = FIRST
    if attempt:
        key = retry(1)
        events += [Failed(FIRST), Due(Answer.GO), Admitted(key, THREE)]
    assert walk(*events, Dropped(key)) == (None, Nothing())


def test_a_denial_defers_for_the_delay_but_at_least_a_second_and_says_so_once() -> None:
    quick = RetryPolicy(3, 0.0, 300.0, 2.0)
    ladder, action = walk(Admitted(FIRST, quick), Failed(FIRST), Due(Answer.NOT_NOW))
    assert isinstance(action, Defer)
    assert (action.wait.due, action.again) == (101.0, False)
    ladder, action = walk(Due(Answer.NOT_NOW), ladder=ladder, now=101.0)
    assert isinstance(action, Defer)
    assert (action.wait.due, action.wait.attempt, action.again) == (102.0, 1, True)


def test_an_attempt_that_overlap_refuses_is_waited_for_again() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE), Failed(FIRST), Due(Answer.GO))
    ladder, action = walk(Refused(None, Answer.NOT_NOW), ladder=ladder)
    assert isinstance(action, Defer)
    assert (action.wait.attempt, action.wait.due) == (1, 102.0)
    assert walk(Due(Answer.GO), ladder=ladder)[1] == Relaunch(1)


def test_an_attempt_stopped_before_its_spawn_is_waited_for_again_or_abandoned() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE), Failed(FIRST), Due(Answer.GO), Admitted(retry(1), THREE))
    assert isinstance(walk(Refused(retry(1), Answer.NOT_NOW), ladder=ladder)[1], Defer)
    assert walk(Refused(retry(1), Answer.MOVED), ladder=ladder) == (None, Abandon(1))


def test_ownership_that_moved_ends_the_ladder_without_a_final_failure() -> None:
    assert walk(Admitted(FIRST, THREE), Failed(FIRST), Due(Answer.MOVED)) == (None, Abandon(1))


def test_a_ladder_goes_on_where_it_was_with_the_next_number() -> None:
    ladder, action = walk(Resumed(FIRST, THREE, 2, 30.0))
    assert action == Nothing()
    assert ladder is not None
    assert (ladder.first, ladder.waiting) == (FIRST, Wait(2, 130.0, 4.0))
    ladder, action = walk(Due(Answer.GO), ladder=ladder, now=130.0)
    assert action == Relaunch(2)
    ladder, action = walk(Admitted(retry(2), THREE), Failed(retry(2)), ladder=ladder, now=140.0)
    assert action == Arm(Wait(3, 148.0, 8.0))


def test_a_ladder_that_is_under_way_is_newer_than_one_that_comes_back() -> None:
    ladder, _ = walk(Admitted(FIRST, THREE))
    assert walk(Resumed(retry(1), THREE, 2, 0.0), ladder=ladder) == (ladder, Nothing())


def test_a_number_that_is_used_up_makes_way_for_the_next_one() -> None:
    ladder, _ = walk(Resumed(FIRST, THREE, 2, 0.0), Due(Answer.GO))
    ladder, action = walk(Spent(), ladder=ladder)
    assert action == Arm(Wait(3, 108.0, 8.0))
    assert walk(Due(Answer.GO), Spent(), ladder=ladder) == (None, GiveUp())
    assert walk(Spent()) == (None, Nothing())


def test_a_late_start_has_no_ladder() -> None:
    key = RunKey("c", "job", 60, 0, Trigger.CATCHUP)
    assert walk(Admitted(key, THREE), Failed(key)) == (None, GiveUp())


KEYS = [FIRST, RunKey("s2", "job", 120), manual("m1"), manual("m2"), *(retry(n) for n in range(1, 6))]
EVENTS = st.one_of(
    st.sampled_from(KEYS).map(lambda key: Admitted(key, THREE)),
    st.sampled_from(KEYS).map(Failed),
    st.sampled_from(KEYS).map(Succeeded),
    st.sampled_from(KEYS).map(Dropped),
    st.sampled_from(list(Answer)).map(Due),
    st.sampled_from([None, *KEYS]).flatmap(lambda key: st.sampled_from(list(Answer)).map(lambda a: Refused(key, a))),
    st.just(Settled()),
)


@given(st.lists(EVENTS, max_size=40))
def test_in_any_order_of_events_no_budget_is_exceeded_and_one_attempt_at_most_is_under_way(
    events: list[RetryEvent],
) -> None:
    ladder: Ladder | None = None
    for i, event in enumerate(events):
        before, (ladder, action) = ladder, step(ladder, event, float(i))
        if isinstance(action, Relaunch):
            assert before is not None
            assert before.waiting is not None
            assert ladder is not None
            assert ladder.waiting is None, "what is launched is not waited for as well"
            assert action.attempt <= THREE.maximum
        if isinstance(action, Arm):
            assert before is None or before.waiting is None
            assert action.wait.attempt <= THREE.maximum
        if isinstance(action, Arm | Defer):
            assert ladder is not None
            assert ladder.waiting == action.wait
        if isinstance(action, GiveUp | Abandon) and isinstance(event, Due | Settled):
            assert ladder is None


def view(**facts: object) -> ClusterView:
    base: dict[str, object] = {"quorate": True, "settled": True, "available": False}
    return ClusterView(backend="x", node_name="a", job_set_id="v1:0", **{**base, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({}, True),
        ({"available": True}, False),
        ({"quorate": False}, False),
        ({"settled": False}, False),
        ({"conflict_names": ("x",)}, False),
        ({"distribution": SPREAD, "available_owners": ("b",)}, True),
        ({"distribution": SPREAD, "available_owners": ("a",)}, False),
        ({"distribution": SPREAD, "available_owners": ()}, False),
    ],
)
def test_a_job_has_moved_only_when_that_is_certain(facts: dict[str, object], wanted: bool) -> None:
    assert moved("job", view(**facts)) is wanted


def test_without_a_view_nothing_has_moved() -> None:
    assert not moved("job", None)
