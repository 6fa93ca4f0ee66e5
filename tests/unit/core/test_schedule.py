"""The public surface of the schedule language, and what the dialect refuses and accepts in detail."""

from __future__ import annotations

import ast
import tracemalloc
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import cronstable.core
from cronstable.core.schedule import NICKNAMES, ClockMark, Schedule, ScheduleError, schedule_from_map
from cronstable.core.zonewalk import EARLIEST, LATEST, seams_between

BERLIN = ZoneInfo("Europe/Berlin")
LINE_NICKNAMES = sorted(NICKNAMES)


def parse(text: str, zone: tzinfo = UTC, name: str = "job") -> Schedule:
    return Schedule.parse(text, job_name=name, zone=zone)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def test_a_schedule_is_a_small_frozen_value() -> None:
    schedule = parse("0 2 * * *")
    with pytest.raises(FrozenInstanceError):
        schedule.text = "x"  # type: ignore[misc]  # the assignment is what must fail
    assert not hasattr(schedule, "__dict__")
    assert parse("0 2 * * *") == schedule
    assert hash(parse("0 2 * * *")) == hash(schedule)


def test_the_text_is_kept_as_written_but_for_white_space() -> None:
    assert parse(" 0\t2  * * MON ").text == "0 2 * * MON"
    assert parse("@Daily").text == "@Daily"


@pytest.mark.parametrize("nickname", LINE_NICKNAMES)
def test_a_nickname_is_its_five_columns(nickname: str) -> None:
    spelled, short = parse(NICKNAMES[nickname]), parse(nickname)
    assert short.resolved == NICKNAMES[nickname]
    assert short.fires(0, 400 * 86_400, 100) == spelled.fires(0, 400 * 86_400, 100) != ()


def test_reboot_has_no_occurrence_and_is_not_one_that_never_fires() -> None:
    schedule = parse("@reboot")
    assert schedule.reboot
    assert schedule.next_after(0) is None
    assert schedule.prev_before(10**9) is None
    assert schedule.fires(0, 10**10, 5) == ()
    assert not schedule.never_fires
    assert not schedule.uses_seconds
    assert schedule.findings() == ()


def test_a_schedule_built_by_hand_without_a_calendar_never_fires() -> None:
    assert Schedule("* * * * *", UTC).next_after(0) is None
    assert Schedule("* * * * *", UTC).never_fires


def test_fires_are_after_the_start_up_to_and_with_the_end_and_limited() -> None:
    hourly = parse("0 * * * *")
    assert hourly.fires(0, 7200, 10) == (3600, 7200)
    assert hourly.fires(0, 7199, 10) == (3600,)
    assert hourly.fires(-1, 7200, 2) == (0, 3600)
    assert hourly.fires(0, 7200, 0) == ()
    assert hourly.fires(7200, 0, 10) == ()


def test_seconds_are_used_only_where_one_is_named() -> None:
    assert parse("*/15 * * * * * *").uses_seconds
    assert parse("30 * * * * * *").uses_seconds
    assert not parse("0 * * * * * *").uses_seconds
    assert not parse("* * * * *").uses_seconds


def test_no_search_looks_before_1970_or_past_the_calendar() -> None:
    every_minute = parse("* * * * *", BERLIN)
    assert every_minute.next_after(-(10**15)) == -3600  # midnight of 1970 in Berlin
    assert every_minute.prev_before(-3600) is None
    assert every_minute.prev_before(EARLIEST) is None
    assert every_minute.next_after(LATEST + 1) is None
    assert every_minute.next_after(10**15) is None
    assert every_minute.prev_before(10**15) is not None


@pytest.mark.parametrize("day_match", ["any", "all"])
def test_the_line_that_makes_other_searches_hang_is_answered(day_match: str) -> None:
    schedule = Schedule.parse("* * 29 2 1", job_name="job", zone=UTC, day_match="all" if day_match == "all" else "any")
    found = schedule.next_after(at("2026-03-01T00:00:00Z"))
    assert found == at("2044-02-29T00:00:00Z" if day_match == "all" else "2027-02-01T00:00:00Z")


def test_the_year_column_bounds_the_search_and_a_free_one_does_not() -> None:
    assert parse("0 0 1 1 * *").next_after(at("2500-06-01T00:00:00Z")) == at("2501-01-01T00:00:00Z")
    assert parse("0 0 1 1 * 1970-2099").next_after(at("2099-06-01T00:00:00Z")) is None
    assert parse("0 0 1 1 * 2030").prev_before(at("2026-01-01T00:00:00Z")) is None


def test_a_change_of_offset_is_found_to_the_second() -> None:
    (spring, autumn) = seams_between(BERLIN, at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"))
    assert (spring.at, spring.is_gap) == (at("2026-03-29T01:00:00Z"), True)
    assert (autumn.at, autumn.is_gap) == (at("2026-10-25T01:00:00Z"), False)
    assert (autumn.wall_high - autumn.wall_low) == 3600


@pytest.mark.parametrize(
    ("line", "time", "mark"),
    [
        ("30 2 * * *", "2026-03-29T01:00:00Z", ClockMark.MOVED),
        ("0 2,3 * * *", "2026-03-29T01:00:00Z", ClockMark.NONE),
        ("30 2 * * *", "2026-03-30T00:30:00Z", ClockMark.NONE),
        ("30 2 * * *", "2026-10-25T00:30:00Z", ClockMark.FIRST_PASS),
        ("*/30 2 * * *", "2026-10-25T01:30:00Z", ClockMark.SECOND_PASS),
    ],
)
def test_an_occurrence_says_how_a_clock_change_touches_it(line: str, time: str, mark: ClockMark) -> None:
    schedule = parse(line, BERLIN)
    assert schedule.next_after(at(time) - 1) == at(time)
    assert schedule.mark_at(at(time)) is mark


class TestHash:
    def test_known_names_draw_known_values_in_every_process(self) -> None:
        assert parse("H H H H H", name="backup").resolved == GOLDEN_HASHES["backup"]
        assert parse("H H H H H", name="näher").resolved == GOLDEN_HASHES["näher"]

    def test_the_text_stays_as_written(self) -> None:
        schedule = parse("H H * * *", name="backup")
        assert schedule.text == "H H * * *"
        assert schedule.is_hashed
        assert not parse("1 2 * * thu").is_hashed
        assert not parse("@daily").is_hashed

    @pytest.mark.parametrize("n", range(50))
    def test_a_range_and_a_step_bound_what_is_drawn(self, n: int) -> None:
        name = f"job{n}"
        minute, hour, dom, month, dow = parse("H(10-20) H/6 H(29-31) H(jun-aug) H(1-5)", name=name).resolved.split()
        assert 10 <= int(minute) <= 20
        first, _, step = hour.partition("-23/")
        assert 0 <= int(first) < 6
        assert step == "6"
        assert 29 <= int(dom) <= 31
        assert 6 <= int(month) <= 8
        assert 1 <= int(dow) <= 5

    def test_a_step_wider_than_the_range_leaves_one_value_anywhere_in_it(self) -> None:
        drawn = {parse("H(0-9)/50 * * * *", name=f"job{n}").resolved.split()[0] for n in range(200)}
        assert drawn == {str(value) for value in range(10)}

    def test_a_list_may_hold_a_hash_and_the_second_has_its_own(self) -> None:
        second, minute, *_ = parse("H H,H(0-5) * * * * *", name="backup").resolved.split()
        assert second != minute.split(",")[0]
        assert 0 <= int(minute.split(",")[1]) <= 5


GOLDEN_HASHES = {"backup": "52 16 22 3 4", "näher": "22 15 5 8 3"}


class TestMapForm:
    @pytest.mark.parametrize(
        ("mapping", "line"),
        [
            ({}, "* * * * *"),
            ({"minute": "5"}, "5 * * * *"),
            ({"minute": "0", "hour": "2", "dayOfMonth": "1", "month": "jan", "dayOfWeek": "?"}, "0 2 1 jan ?"),
            ({"minute": "0", "year": "2030"}, "0 * * * * 2030"),
            ({"second": "*/10"}, "*/10 * * * * * *"),
            ({"second": "5", "year": "2030", "hour": "H"}, "5 * H * * * 2030"),
            ({"minute": " 7 ", "dayMatch": "all"}, "7 * * * *"),
        ],
    )
    def test_it_becomes_a_line_with_as_many_columns_as_are_used(self, mapping: dict[str, str], line: str) -> None:
        assert schedule_from_map(mapping) == line
        assert parse(line).text == line

    @pytest.mark.parametrize(
        ("mapping", "field"),
        [
            ({"minute": "1 2"}, "minute"),
            ({"hour": ""}, "hour"),
            ({"hour": 5}, "hour"),
            ({"hours": "5"}, "hours"),
            ({"dayMatch": "both"}, "dayMatch"),
        ],
    )
    def test_each_value_is_exactly_one_column(self, mapping: dict[str, object], field: str) -> None:
        with pytest.raises(ScheduleError, match=field) as caught:
            schedule_from_map(mapping)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("0 0 * * 5L", "write L5"),
        ("0 0 * * friL", "write Lfri"),
        ("R * * * *", "write H, which is drawn from the job's name, the same everywhere"),
        ("0 0 W15 * *", "write 15W"),
        ("10-5 * * * *", "write 10-59,0-5 if it should wrap around, 5-10 if it was turned"),
        ("0 0 * * 7-3", "write 0-3"),
        ("0 0 * * 7/2", "write 0/2, or 7 alone"),
        ("@every 5m", "for an interval write a step: */5 * * * * is every five minutes"),
        ("0 0 ? ? *", "write *"),
    ],
)
def test_a_refusal_says_what_to_write_instead(line: str, hint: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(line)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "line",
    [
        "0 0 15W-20 * *",
        "0 L * * *",
        "0 0 * * 15W",
        "0 0 1-L * *",
        "0 0 * * 1-5#2",
        "5- * * * *",
        "1/5/5 * * * *",
        "*-5 * * * *",
        "*/ * * * *",
        "/5 * * * *",
        "0 0 * * #2",
        "0 0 L- * *",
        "0 0 LL * *",
        "9999999999 * * * *",
        "5.0 * * * *",
        "\x00 * * * *",
    ],
)
def test_what_is_not_of_the_dialect_is_refused(line: str) -> None:
    with pytest.raises(ScheduleError, match="job 'job'"):
        parse(line)


def test_without_a_job_name_the_message_starts_with_the_schedule() -> None:
    with pytest.raises(ScheduleError, match=r"^schedule '61 \* \* \* \*': minute: "):
        parse("61 * * * *", name="")


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("UTC"), timezone(timedelta(hours=5, minutes=30)), BERLIN])
def test_any_tzinfo_is_a_zone(zone: tzinfo) -> None:
    found = parse("30 5 * * *", zone).next_after(at("2026-06-01T12:00:00Z"))
    assert found is not None
    assert datetime.fromtimestamp(found, zone).strftime("%H:%M") == "05:30"


def test_distinct_schedules_share_their_parts() -> None:
    parse("0 0 * * *")
    tracemalloc.start()
    try:
        kept = [parse(f"{n % 60} {n // 60} * * *", BERLIN) for n in range(1440)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len({schedule.text for schedule in kept}) == 1440
    assert size / len(kept) < 1000


def test_croniter_is_imported_by_one_module_and_only_when_a_schedule_is_read() -> None:
    importers: dict[str, list[int]] = {}
    root = Path(cronstable.core.__file__).parent
    for path in root.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            if any(name.split(".")[0] == "croniter" for name in names):
                importers.setdefault(path.name, []).append(node.col_offset)
    assert list(importers) == ["cronfields.py"]
    assert all(offset > 0 for offset in importers["cronfields.py"])
