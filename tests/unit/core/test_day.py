"""What is counted of a day stands in its quarter, is bounded, and claims to be complete only since when it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cronstable.core.clock import Instant
from cronstable.core.day import COUNTED, QUARTER, QUARTERS, Day, quarter
from cronstable.core.runs import Outcome, RunKey, RunRecord

NOON = 1_800_000_000.0
HOUR = 3600.0


def row(at: float, outcome: Outcome = Outcome.SUCCESS) -> RunRecord:
    return RunRecord(RunKey("r", "a", None), outcome, None, None, at, None)


def told(day: Day, now: Instant) -> dict[int, Counter[Outcome]]:
    return {
        start // QUARTER: Counter({o: n for o, n in zip(COUNTED, counts, strict=True) if n})
        for start, counts in day.quarters(now.wall)
    }


@dataclass
class Model:
    """All that ever ended, each with its quarter; and a clock that may step."""

    now: Instant = field(default_factory=lambda: Instant(NOON, 50.0))
    ends: list[tuple[int, Outcome]] = field(default_factory=list)
    day: Day = field(init=False)

    def __post_init__(self) -> None:
        self.day = Day(self.now)

    def move(self, passes: float, steps: float = 0.0) -> None:
        self.now = Instant(self.now.wall + passes + steps, self.now.boot + passes)

    def end(self, outcome: Outcome = Outcome.SUCCESS, ago: float = 0.0) -> None:
        current = quarter(self.now.wall)
        self.ends = [(min(at, current), one) for at, one in self.ends]
        self.ends.append((min(quarter(self.now.wall - ago), current), outcome))
        self.day = self.day.counting(row(self.now.wall - ago, outcome), self.now)

    def seen(self) -> dict[int, Counter[Outcome]]:
        current, found = quarter(self.now.wall), dict[int, Counter[Outcome]]()
        for at, outcome in self.ends:
            if min(at, current) > current - QUARTERS:
                found.setdefault(min(at, current), Counter())[outcome] += 1
        return found


MOVES = st.lists(
    st.tuples(
        st.sampled_from((0.0, 1.0, 60.0, 899.0, HOUR, 5 * HOUR, 30 * HOUR)),
        st.sampled_from((0.0, 0.0, 0.0, -1.0, -HOUR, -26 * HOUR, HOUR, 26 * HOUR, 1e7, -1e7)),
        st.sampled_from(Outcome),
        st.integers(0, 10),
    ),
    max_size=25,
)


@given(moves=MOVES)
@example(moves=[(899.0, step, Outcome.SUCCESS, 10) for step in (0.0, 0.0, 0.0, 0.0, 0.0, 1e7, 0.0, -1e7, 0.0, HOUR)])
def test_whatever_the_clock_does_a_day_is_bounded_invents_nothing_and_is_complete_since_it_says(
    moves: list[tuple[float, float, Outcome, int]],
) -> None:
    model = Model()
    for passes, steps, outcome, ends in moves:
        model.move(passes, steps)
        for _ in range(ends):
            model.end(outcome)
            model.move(QUARTER / 2)
        day, now = model.day, model.now
        since, seen, expected = day.since(now), told(day, now), model.seen()
        assert len(day.packed) <= QUARTERS * 14
        assert since <= now.wall
        assert all(quarter(now.wall) - QUARTERS < at <= quarter(now.wall) for at in seen)
        for at, counts in seen.items():
            assert counts <= expected[at]
        for at, counts in expected.items():
            assert at * QUARTER < since or seen[at] == counts


@given(ends=st.lists(st.tuples(st.floats(0.0, 3 * HOUR), st.sampled_from(Outcome)), max_size=100))
def test_while_the_clock_only_goes_on_nothing_of_the_last_24_hours_is_missing(
    ends: list[tuple[float, Outcome]],
) -> None:
    model = Model()
    for passes, outcome in ends:
        model.move(passes)
        model.end(outcome)
        assert told(model.day, model.now) == model.seen()
        begins = (quarter(model.now.wall) - QUARTERS + 1) * QUARTER
        assert model.day.since(model.now) <= max(NOON, begins)


def test_a_job_of_every_minute_shows_24_hours_and_a_failure_at_night() -> None:
    model = Model()
    for minute in range(3 * 24 * 60):
        model.end(Outcome.FAILURE if minute == 3 * 24 * 60 - 600 else Outcome.SUCCESS)
        model.move(60.0)
    seen = told(model.day, model.now)
    assert sum(sum(counts.values()) for counts in seen.values()) in range(1425, 1441)
    assert [counts[Outcome.FAILURE] for counts in seen.values()].count(1) == 1
    assert model.day.since(model.now) == (quarter(model.now.wall) - QUARTERS) * QUARTER


def test_hours_that_the_clock_jumps_over_are_known_to_be_empty() -> None:
    model = Model()
    model.end(Outcome.FAILURE)
    model.move(60.0, steps=10 * HOUR)
    model.end()
    assert model.day.since(model.now) == NOON
    assert list(told(model.day, model.now)) == [quarter(NOON), quarter(NOON + 10 * HOUR + 60)]


def test_after_a_step_back_what_was_ahead_counts_into_the_quarter_under_way() -> None:
    model = Model()
    model.move(HOUR)
    model.end(Outcome.FAILURE)
    model.move(60.0, steps=-6 * HOUR)
    assert told(model.day, model.now) == {quarter(model.now.wall): Counter({Outcome.FAILURE: 1})}
    # It has counted for an hour and a minute, whatever the clock said meanwhile.
    assert model.day.since(model.now) == model.now.wall - HOUR - 60
    model.end()
    assert told(model.day, model.now) == {quarter(model.now.wall): Counter({Outcome.FAILURE: 1, Outcome.SUCCESS: 1})}


def test_what_a_wild_clock_pushed_out_is_not_said_to_be_known() -> None:
    model = Model()
    for _ in range(QUARTERS):
        model.end()
        model.move(QUARTER)
    model.move(0.0, steps=1e7)
    model.end()
    model.move(0.0, steps=-1e7)
    assert model.day.since(model.now) == NOON + QUARTER
    assert min(told(model.day, model.now)) == quarter(NOON) + 1


def test_what_is_told_late_counts_when_it_ended() -> None:
    model = Model()
    model.move(10 * HOUR)
    model.end()
    model.end(Outcome.CANCELLED, ago=3 * HOUR)
    assert told(model.day, model.now) == model.seen()


def test_rows_of_before_move_the_beginning_back_once() -> None:
    now = Instant(NOON + 60, 110.0)
    day = Day(Instant(NOON, 50.0)).counting(row(NOON + 30), now)
    rows = [row(NOON - 30 * HOUR), row(NOON - HOUR, Outcome.FAILURE), row(NOON - HOUR), row(NOON + 30)]
    recalled = day.recalling(rows, now)
    assert told(recalled, now) == {
        quarter(NOON - HOUR): Counter({Outcome.FAILURE: 1, Outcome.SUCCESS: 1}),
        quarter(NOON): Counter({Outcome.SUCCESS: 1}),
    }
    assert recalled.since(now) == NOON - 30 * HOUR
    assert recalled.recalling([row(NOON - 40 * HOUR)], now) is recalled
    assert day.recalling([row(NOON + 10)], now) is day


@given(st.lists(st.floats(-40 * HOUR, 2 * HOUR), max_size=200), st.floats(0.0, 30 * HOUR))
def test_rows_of_before_are_each_counted_once_or_outside_of_what_is_said_to_be_known(
    ends: list[float], passes: float
) -> None:
    now = Instant(NOON + passes, 50.0 + passes)
    day = Day(Instant(NOON, 50.0)).recalling([row(NOON + end) for end in ends], now)
    before = [NOON + end for end in ends if NOON + end < NOON]
    first = quarter(now.wall) - QUARTERS
    expected = Counter(quarter(at) for at in before if quarter(at) > first)
    assert {at: sum(counts.values()) for at, counts in told(day, now).items()} == expected
    assert day.since(now) >= min(before, default=NOON)


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -float("inf"), 1e300, -1e300])
def test_a_time_that_no_clock_shows_does_no_harm(at: float) -> None:
    now = Instant(NOON, 50.0)
    day = Day(now).counting(row(at), now).recalling([row(at)], now)
    assert sum(sum(counts) for _, counts in day.quarters(NOON)) <= 1
    assert 0 <= day.since(now) <= NOON


def test_a_count_stops_at_its_limit() -> None:
    now = Instant(NOON, 50.0)
    day = Day(now)
    for _ in range(70_000):
        day = day.counting(row(NOON), now)
    assert list(day.quarters(NOON)) == [(int(NOON), (65_535, 0, 0, 0, 0))]
