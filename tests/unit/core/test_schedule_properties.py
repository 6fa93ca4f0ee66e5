"""The search against an oracle that looks at every minute, written from the rules alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cronstable.core.calendar import DayMatch
from cronstable.core.schedule import Schedule, ScheduleError
from cronstable.core.wording import describe
from cronstable.core.zonewalk import Seam, seams_between

ZONES = {
    name: ZoneInfo(name)
    for name in (
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/Havana",
        "Asia/Beirut",
        "Africa/Casablanca",
        "America/Santiago",
        "Asia/Kathmandu",
        "Pacific/Apia",
        "Africa/Cairo",
        "Europe/Dublin",
    )
}
DAY = 86_400
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
END = int(datetime(2028, 1, 1, tzinfo=UTC).timestamp())


@dataclass(frozen=True)
class Field:
    """A column's text beside the values it stands for, which the parser under test did not compute."""

    text: str
    values: frozenset[int]

    @property
    def star(self) -> bool:
        return self.text.startswith("*")


def column(low: int, high: int) -> st.SearchStrategy[Field]:
    value = st.integers(low, high)
    everything = frozenset(range(low, high + 1))
    star = st.just(Field("*", everything))
    step = st.integers(1, high - low + 4).map(lambda n: Field(f"*/{n}", frozenset(range(low, high + 1, n))))
    single = value.map(lambda v: Field(str(v), frozenset({v})))
    start = st.tuples(value, st.integers(1, 20)).map(
        lambda pair: Field(f"{pair[0]}/{pair[1]}", frozenset(range(pair[0], high + 1, pair[1])))
    )
    span = st.tuples(value, value).map(
        lambda pair: Field(f"{min(pair)}-{max(pair)}", frozenset(range(min(pair), max(pair) + 1)))
    )
    several = st.lists(st.one_of(single, start, span), min_size=2, max_size=3).map(
        lambda fields: Field(",".join(f.text for f in fields), frozenset().union(*(f.values for f in fields)))
    )
    return st.one_of(star, step, single, start, span, several)


@dataclass(frozen=True)
class Line:
    minute: Field
    hour: Field
    dom: Field
    month: Field
    dow: Field

    @property
    def text(self) -> str:
        return " ".join(f.text for f in (self.minute, self.hour, self.dom, self.month, self.dow))

    @property
    def fixed(self) -> bool:
        return not (self.minute.star or self.hour.star)

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minute.values or wall.hour not in self.hour.values:
            return False
        if wall.month not in self.month.values or wall.second:
            return False
        by_date = wall.day in self.dom.values
        by_weekday = wall.isoweekday() % 7 in self.dow.values
        return (by_date and by_weekday) if self.dom.star or self.dow.star else (by_date or by_weekday)


LINES = st.builds(Line, column(0, 59), column(0, 23), column(1, 31), column(1, 12), column(0, 6))
NIGHT = st.one_of(
    st.just(Field("*", frozenset(range(24)))), st.integers(0, 3).map(lambda h: Field(str(h), frozenset({h})))
)
NIGHTLY = st.builds(
    Line,
    column(0, 59),
    st.one_of(NIGHT, column(0, 23)),
    st.just(Field("*", frozenset(range(1, 32)))),
    st.just(Field("*", frozenset(range(1, 13)))),
    st.just(Field("*", frozenset(range(7)))),
)


def local(t: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(t, UTC).astimezone(zone)


def oracle(line: Line, zone: tzinfo, start: int, end: int) -> list[int]:
    """The occurrences in (start, end], minute by minute."""
    found = []
    t = start // 60 * 60
    previous = local(t - 60, zone)
    while t <= end:
        now = local(t, zone)
        before, after = previous.utcoffset(), now.utcoffset()
        assert before is not None
        assert after is not None
        due = line.matches(now.replace(tzinfo=None))
        if line.fixed:
            due = due and now.fold == 0
            if after > before:
                missing = now.replace(tzinfo=None) - (after - before)
                while missing < now.replace(tzinfo=None):
                    due = due or line.matches(missing)
                    missing += timedelta(minutes=1)
        if due and t > start:
            found.append(t)
        previous = now
        t += 60
    return found


def walk(schedule: Schedule, start: int, end: int) -> Iterator[int]:
    t = schedule.next_after(start)
    while t is not None and t <= end:
        yield t
        t = schedule.next_after(t)


def walk_back(schedule: Schedule, start: int, end: int) -> Iterator[int]:
    t = schedule.prev_before(end + 1)
    while t is not None and t > start:
        yield t
        t = schedule.prev_before(t)


def parse(line: Line, zone: tzinfo) -> Schedule:
    return Schedule.parse(line.text, job_name="job", zone=zone)


SEAMS: dict[str, tuple[Seam, ...]] = {name: seams_between(zone, START, END) for name, zone in ZONES.items()}
CHANGES = [(name, seam) for name, seams in SEAMS.items() for seam in seams]


def test_the_zones_have_gaps_and_folds_to_test_with() -> None:
    assert {seam.is_gap for _, seam in CHANGES} == {True, False}
    assert len(CHANGES) >= 30
    assert SEAMS["UTC"] == ()


@settings(max_examples=250, deadline=None)
@given(line=NIGHTLY, change=st.sampled_from(CHANGES), shift=st.integers(-3 * 3600, 3 * 3600))
def test_around_a_clock_change_both_directions_agree_with_the_oracle(
    line: Line, change: tuple[str, Seam], shift: int
) -> None:
    name, seam = change
    start, end = seam.at + shift, seam.at + 5 * 3600
    schedule = parse(line, ZONES[name])
    expected = oracle(line, ZONES[name], start, end)
    assert list(walk(schedule, start, end)) == expected
    assert list(walk_back(schedule, start, end)) == expected[::-1]


@settings(max_examples=150, deadline=None)
@given(line=LINES, name=st.sampled_from(sorted(ZONES)), start=st.integers(START, END))
def test_any_two_days_agree_with_the_oracle(line: Line, name: str, start: int) -> None:
    end = start + 2 * DAY
    schedule = parse(line, ZONES[name])
    expected = oracle(line, ZONES[name], start, end)
    assert list(walk(schedule, start, end)) == expected
    assert list(walk_back(schedule, start, end)) == expected[::-1]


@settings(max_examples=300, deadline=None)
@given(line=LINES, name=st.sampled_from(sorted(ZONES)), t=st.integers(0, 4_000_000_000))
def test_the_next_occurrence_is_the_first_matching_day_of_the_calendar(line: Line, name: str, t: int) -> None:
    schedule = parse(line, ZONES[name])
    found = schedule.next_after(t)
    if found is None:
        assert schedule.never_fires
        return
    assert found > t
    assert schedule.prev_before(found + 1) == found
    back = schedule.prev_before(found)
    assert back is None or back <= t
    assert back is None or schedule.next_after(back) == found
    if not line.fixed:
        assert line.matches(local(found, ZONES[name]).replace(tzinfo=None))


@settings(max_examples=300, deadline=None)
@given(
    second=column(0, 59),
    line=NIGHTLY,
    change=st.sampled_from(CHANGES),
    shift=st.integers(-600, 600),
)
def test_second_by_second_around_a_clock_change(
    second: Field, line: Line, change: tuple[str, Seam], shift: int
) -> None:
    name, seam = change
    zone = ZONES[name]
    start, end = seam.at + shift, seam.at + shift + 400
    schedule = Schedule.parse(f"{second.text} {line.text} *", job_name="job", zone=zone)
    expected = []
    for t in range(start + 1, end + 1):
        wall = local(t, zone)
        due = wall.second in second.values and line.matches(wall.replace(second=0, tzinfo=None))
        if line.fixed:
            due = due and wall.fold == 0
            if t == seam.at and seam.is_gap:
                top = wall.replace(tzinfo=None)
                minutes = (seam.after - seam.before) // 60
                due = due or any(line.matches(top - timedelta(minutes=back)) for back in range(1, minutes + 1))
        if due:
            expected.append(t)
    assert list(walk(schedule, start, end)) == expected
    assert list(walk_back(schedule, start, end)) == expected[::-1]


ITEMS = st.sampled_from(
    [
        "*",
        "*/2",
        "1",
        "5-9",
        "31",
        "29",
        "30",
        "L",
        "L-3",
        "LW",
        "15W",
        "1W",
        "31W",
        "0",
        "7",
        "2",
        "6-7",
        "sat-sun",
        "5#5",
        "mon#1",
        "L5",
        "Lsun",
        "?",
        "H",
        "H/7",
        "H(2-5)",
        "feb",
        "12",
        "2/3",
        "4,6,9,11",
        "2-2",
        "2098-2099",
    ]
)


def parsed_or_refused(text: str, zone: tzinfo, day_match: DayMatch = "any") -> Schedule | None:
    """The schedule, or None when it was refused as it should be."""
    refused: ScheduleError | None = None
    try:
        return Schedule.parse(text, job_name="the-job", zone=zone, day_match=day_match)
    except ScheduleError as wrong:
        refused = wrong
    assert refused.field
    assert refused.field in str(refused)
    assert "the-job" in str(refused)
    return None


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    columns=st.lists(ITEMS, min_size=4, max_size=8),
    name=st.sampled_from(sorted(ZONES)),
    t=st.integers(-(10**12), 10**12),
    all_days=st.booleans(),
)
def test_no_expression_hangs_or_fails_with_anything_but_a_schedule_error(
    columns: list[str], name: str, t: int, all_days: bool
) -> None:
    schedule = parsed_or_refused(" ".join(columns), ZONES[name], "all" if all_days else "any")
    if schedule is None:
        return
    following, earlier = schedule.next_after(t), schedule.prev_before(t)
    assert following is None or following > t
    assert earlier is None or earlier < t
    if following is not None and earlier is not None:
        assert schedule.next_after(earlier) == following
        assert schedule.prev_before(following) in (earlier, t)
    assert describe(schedule)
    assert all(schedule.findings(0))


@settings(max_examples=500, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    schedule = parsed_or_refused(text, UTC)
    if schedule is None:
        return
    assert schedule.text == " ".join(text.split())


@settings(max_examples=100, deadline=None)
@given(line=LINES, hours=st.integers(-12, 14), t=st.integers(0, 3_000_000_000))
def test_a_fixed_offset_is_a_zone_without_changes(line: Line, hours: int, t: int) -> None:
    shifted = parse(line, timezone(timedelta(hours=hours))).next_after(t)
    plain = parse(line, UTC).next_after(t + hours * 3600)
    assert shifted == (None if plain is None else plain - hours * 3600)


@settings(max_examples=60, deadline=None)
@given(line=NIGHTLY, change=st.sampled_from(CHANGES), flips=st.lists(st.integers(-DAY, DAY), min_size=1, max_size=20))
def test_nodes_that_take_over_at_any_moment_compute_the_same_occurrences(
    line: Line, change: tuple[str, Seam], flips: list[int]
) -> None:
    name, seam = change
    start, end = seam.at - DAY, seam.at + DAY
    whole = parse(line, ZONES[name]).fires(start, end, 10_000)
    pieces: list[int] = []
    edges = [start, *sorted(seam.at + flip for flip in flips), end]
    for low, high in pairwise(edges):
        pieces.extend(parse(line, ZONES[name]).fires(low, high, 10_000))
    assert tuple(pieces) == whole
