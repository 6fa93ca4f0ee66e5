"""Every schedule case of tests/cases, as data."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from cronstable.core.calendar import Calendar
from cronstable.core.schedule import Schedule, ScheduleError

CASES = Path(__file__).parents[2] / "cases"
JOB = "nightly-backup"


def load() -> list[dict[str, Any]]:
    found = []
    for path in sorted([*CASES.glob("schedule-*.yaml"), *CASES.glob("extra/schedule-*.yaml")]):
        case = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert case["kind"] == "schedule", path
        found.append(case)
    return found


ALL = load()
REJECTED = [case for case in ALL if case["expected"].get("rejected")]
HASHED = [case for case in ALL if "jobs" in case["input"]]
FIRING = [case for case in ALL if case not in REJECTED and case not in HASHED]


def named(case: dict[str, Any]) -> str:
    return str(case["id"])


def epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def utc(t: int) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(given: dict[str, Any]) -> Schedule:
    return Schedule.parse(
        given["schedule"],
        job_name=JOB,
        zone=ZoneInfo(given["timezone"]),
        day_match=given.get("dayMatch", "any"),
    )


def test_no_case_is_left_out() -> None:
    assert len(ALL) >= 67 + 60
    assert len(REJECTED) >= 10
    assert len(HASHED) >= 3
    assert len({case["id"] for case in ALL}) == len(ALL)


@pytest.mark.parametrize("case", FIRING, ids=named)
def test_a_schedule_fires_exactly_when_the_case_says(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    schedule = parsed(given)
    step = schedule.prev_before if given.get("direction") == "prev" else schedule.next_after
    fires: list[str] = []
    t: int | None = epoch(given["start"])
    while t is not None and len(fires) < given["count"]:
        t = step(t)
        if t is not None:
            fires.append(utc(t))
    assert fires == expected["fires_utc"], case["why"]
    assert schedule.never_fires is expected.get("never_fires", False)
    if expected.get("warning_at_load"):
        assert any(text.startswith("never fires") for text in schedule.findings())


@pytest.mark.parametrize("case", REJECTED, ids=named)
def test_a_rejection_names_job_expression_and_column_and_hints(case: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError) as caught:
        parsed(case["input"])
    error, message = caught.value, str(caught.value)
    for wanted in case["expected"]["message_must_name"]:
        if wanted == "the job name":
            assert JOB in message
        elif wanted == "the offending expression":
            assert case["input"]["schedule"] in message
            assert error.expression == case["input"]["schedule"]
        elif wanted == "the field":
            assert error.field
            assert error.field in message
        elif wanted == "how many fields were found":
            assert f"found {len(case['input']['schedule'].split())} columns" in message
        elif wanted.startswith("a hint"):
            assert error.hint
            assert wanted.removeprefix("a hint").removeprefix(" naming ") in error.hint
        else:
            pytest.fail(f"the case asks for something this test does not know: {wanted}")


def bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


@pytest.mark.parametrize("case", HASHED, ids=named)
def test_hashes_are_the_same_everywhere_and_spread(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    pairs: set[tuple[int, int]] = set()
    days: set[int] = set()
    for i in range(given["jobs"]):
        name = given["name_pattern"].format(i=i)
        calendar: Calendar = Schedule.parse(given["schedule"], job_name=name, zone=ZoneInfo("UTC")).calendar
        pairs.add((bits(calendar.minutes)[0], bits(calendar.hours)[0]))
        days.add(bits(Schedule.parse("0 0 H * *", job_name=name, zone=ZoneInfo("UTC")).calendar.days[-1])[0])
    assert len(pairs) >= expected["distinct_minute_hour_pairs_at_least"]
    low, high = expected.get("day_of_month_H_range", (1, 28))
    assert (min(days), max(days)) == (low, high)
