"""Which missed runs are owed: pure rules over schedules, pauses and watermarks."""

from __future__ import annotations

from datetime import UTC
from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.job import Job, JobOptions, Json
from cronstable.core.missed import (
    MOST,
    Checkpoint,
    Gap,
    MissedPolicy,
    OnMissed,
    definition,
    delay,
    gap_of,
    missed_policy,
    owed,
)
from cronstable.core.pauses import Interval, changed, forget, paused_since, record, replay
from cronstable.core.schedule import Schedule

NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600
ONCE, ALL = MissedPolicy(OnMissed.RUN_ONCE), MissedPolicy(OnMissed.RUN_ALL)


def job(text: str = "* * * * *", name: str = "a", **raw: Any) -> Job:
    return Job(name, "true", Schedule.parse(text, job_name=name, zone=UTC), JobOptions(raw=MappingProxyType(raw)))


def never(at: int) -> int | None:
    return None


def run(text: str, gap: Gap, policy: MissedPolicy, now: float, paused: Any = never) -> list[int]:
    return [at - NOON for at in owed(job(text).schedule, gap, policy, now, paused).run]


def test_of_a_long_outage_run_once_owes_the_newest_slot_only() -> None:
    assert run("* * * * *", Gap(NOON - 36_000, NOON), ONCE, NOON) == [0]
    assert run("* * * * *", Gap(NOON, NOON), ONCE, NOON) == []
    assert run("* * * * *", Gap(NOON - 36_000, NOON), MissedPolicy(), NOON) == []


def test_run_all_owes_every_slot_oldest_first_and_a_hundred_at_most() -> None:
    assert run("*/10 * * * *", Gap(NOON - 1800, NOON), ALL, NOON) == [-1200, -600, 0]
    found = owed(job().schedule, Gap(NOON - 36_000, NOON), ALL, NOON, never)
    assert len(found.run) == MOST
    assert found.run[-1] == NOON
    assert found.more
    assert not owed(job().schedule, Gap(NOON - 60 * MOST, NOON), ALL, NOON, never).more


def test_what_is_later_than_the_deadline_is_not_owed() -> None:
    late = MissedPolicy(OnMissed.RUN_ALL, deadline=600.0)
    assert run("*/5 * * * *", Gap(NOON - 36_000, NOON), late, NOON + 10) == [-300, 0]
    assert run("@daily", Gap(NOON - 864_000, NOON), MissedPolicy(OnMissed.RUN_ONCE, deadline=60.0), NOON) == []


def test_a_pause_owes_nothing_and_is_passed_in_one_step() -> None:
    year = 365 * 86_400
    intervals = (Interval(NOON - year, NOON - 5.5),)
    found = run("* * * * * * *", Gap(NOON - year - 2, NOON), ALL, NOON, lambda at: paused_since(intervals, at))
    assert found == [-year - 1, -5, -4, -3, -2, -1, 0]
    assert (
        run("* * * * *", Gap(NOON - 600, NOON), ONCE, NOON, lambda at: paused_since((Interval(0, NOON + 1),), at)) == []
    )


def test_without_a_watermark_nothing_was_missed() -> None:
    one = job()
    assert gap_of(None, one, NOON) is None
    assert gap_of(Checkpoint(definition(one), NOON - 600), one, NOON) == Gap(NOON - 600, NOON)
    assert gap_of(Checkpoint(definition(one), NOON), one, NOON + 30) is None


def test_a_watermark_of_another_schedule_or_zone_says_nothing() -> None:
    one = job()
    assert gap_of(Checkpoint(definition(job("*/2 * * * *")), NOON - 600), one, NOON) is None
    changed_command = Job("a", "false", one.schedule, one.options)
    assert gap_of(Checkpoint(definition(one), NOON - 600), changed_command, NOON) is not None


def test_a_catch_up_that_was_not_finished_goes_on_where_it_stopped() -> None:
    one = job()
    open_ = Checkpoint(definition(one), NOON + 3600, Gap(NOON - 600, NOON))
    assert Checkpoint.of(open_.record(1.5)) == open_
    assert gap_of(open_, one, NOON + 7200) == Gap(NOON - 600, NOON + 7200)


KEYS = st.sampled_from(["definition", "through", "after", "until", "kind"])


@given(st.dictionaries(KEYS, st.none() | st.text() | st.integers()))
def test_any_record_is_a_checkpoint_or_none(found: dict[str, Any]) -> None:
    checkpoint = Checkpoint.of(found)
    assert checkpoint is None or Checkpoint.of(checkpoint.record(1.5)) == checkpoint


@given(st.text(), st.floats(0, 1e6))
def test_jitter_is_the_same_for_a_name_and_within_its_bound(name: str, jitter: float) -> None:
    assert 0 <= delay(name, jitter) <= jitter
    assert delay(name, jitter) == delay(name, jitter)


def test_jitter_spreads_jobs() -> None:
    found = sorted(delay(f"job-{number}", 100.0) for number in range(200))
    assert found[20] < 30
    assert found[-20] > 70


def test_the_policy_of_a_job_is_in_its_keys() -> None:
    raw: dict[str, Json] = {"onMissed": "run-all", "startingDeadlineSeconds": 60, "catchupJitterSeconds": 5}
    assert missed_policy(raw) == MissedPolicy(OnMissed.RUN_ALL, 60.0, 5.0)
    assert missed_policy({}) == MissedPolicy()
    assert missed_policy({"startingDeadlineSeconds": None}) == MissedPolicy()


# -- pauses -----------------------------------------------------------------------------------------------------------


def test_a_pause_that_ended_early_covers_what_it_covered() -> None:
    intervals = changed((), 100, Interval(100, 1000, "tea"))
    intervals = changed(intervals, 400, None)
    assert intervals == (Interval(100, 400, "tea"),)
    assert paused_since(intervals, 100) == 100
    assert paused_since(intervals, 399) == 100
    assert paused_since(intervals, 400) is None
    assert paused_since(intervals, 99) is None
    assert forget(intervals, 399) == intervals
    assert forget(intervals, 400) == ()


def test_a_second_pause_takes_the_place_of_the_first() -> None:
    intervals = changed(changed((), 100, Interval(100, 1000)), 200, Interval(200, 300))
    assert intervals == (Interval(100, 200), Interval(200, 300))
    assert paused_since(intervals, 500) is None


def test_changes_come_to_the_same_intervals_when_they_are_read_again() -> None:
    intervals: tuple[Interval, ...] = ()
    records = []
    for at, pause in [(10.0, Interval(10, 99, "a", "ann", "api")), (20.0, None), (30.0, Interval(30, 40))]:
        intervals = changed(intervals, at, pause)
        records.append(record(at, pause))
    assert replay(records) == (30.0, intervals)
    assert replay([{"kind": "pause"}, {"at": "x"}, {"kind": "pause", "at": 5.0}]) == (5.0, ())
