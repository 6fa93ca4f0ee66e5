"""The limits of ``sla`` one by one, and the latch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.sla import Breach, Check, Facts, breaches, latch, limits_of

ALL = {Check.LATE_START: 60.0, Check.LONG_RUN: 100.0, Check.NO_SUCCESS: 1000.0, Check.SHORT_RUN: 10.0}
NOW = 10_000.0


@pytest.mark.parametrize(
    ("facts", "check", "observed"),
    [
        (Facts(NOW, due=9_900), Check.LATE_START, 100.0),
        (Facts(NOW, oldest_start=9_899.0), Check.LONG_RUN, 101.0),
        (Facts(NOW, success_since=8_999.0), Check.NO_SUCCESS, 1_001.0),
        (Facts(NOW, last_duration=9.5), Check.SHORT_RUN, 9.5),
        (Facts(NOW, late_start=61.0), Check.LATE_START, 61.0),
        (Facts(NOW, long_run=100.5), Check.LONG_RUN, 100.5),
        (Facts(NOW, oldest_start=9_899.0, long_run=500.0), Check.LONG_RUN, 101.0),
    ],
)
def test_each_limit_is_a_check_of_its_own(facts: Facts, check: Check, observed: float) -> None:
    assert [(b.check, b.threshold, b.observed) for b in breaches(ALL, facts)] == [(check, ALL[check], observed)]
    assert breaches({c: s for c, s in ALL.items() if c is not check}, facts) == ()


@pytest.mark.parametrize(
    "facts",
    [
        Facts(NOW),
        Facts(NOW, due=9_940),
        Facts(NOW, oldest_start=9_900.0),
        Facts(NOW, success_since=9_000.0),
        Facts(NOW, last_duration=10.0),
        Facts(NOW, late_start=60.0, long_run=100.0),
        Facts(NOW, due=10_060, oldest_start=10_060.0, success_since=10_060.0),
    ],
)
def test_a_limit_that_is_just_reached_is_kept(facts: Facts) -> None:
    assert breaches(ALL, facts) == ()


def test_the_words_name_the_key_and_what_was_seen() -> None:
    found = breaches(ALL, Facts(NOW, due=9_900, oldest_start=9_800.0, success_since=1.0, last_duration=1.0))
    assert [b.check for b in found] == list(Check)
    for breach in found:
        assert f"{breach.check.key}={breach.threshold:g}" in breach.words


def test_the_limits_of_a_job_are_the_keys_that_it_has() -> None:
    assert limits_of({}) == {}
    assert limits_of({"sla": {"lateAfterSeconds": 5}}) == {Check.LATE_START: 5.0}


@given(st.lists(st.sets(st.sampled_from(list(Check))), max_size=30))
def test_a_check_is_told_once_until_it_recovers(rounds: list[set[Check]]) -> None:
    latched: frozenset[Check] = frozenset()
    told: set[Check] = set()
    for tripped in rounds:
        latched, fresh, over = latch(latched, [Breach(c, 1.0, 2.0) for c in sorted(tripped)])
        new = {breach.check for breach in fresh}
        assert not new & told
        assert set(over) <= told
        told = (told | new) - set(over)
        assert latched == tripped == told


def test_the_words_tell_what_is_over_from_what_goes_on() -> None:
    over = [b.words for b in breaches(ALL, Facts(NOW, late_start=61.0, long_run=101.0))]
    assert over == [
        "a run has started 61 s after its scheduled time (lateAfterSeconds=60)",
        "a run took 101 s (maxRuntimeSeconds=100)",
    ]
