"""L, L-n, nW, LW, Ld and d#n on every month of 28 years, against the standard library's calendar."""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta

import pytest

from cronstable.core.schedule import Schedule

YEARS = range(2024, 2052)
NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def days_of(year: int, month: int) -> list[date]:
    return [date(year, month, day) for day in range(1, calendar.monthrange(year, month)[1] + 1)]


def workdays(days: list[date]) -> list[date]:
    return [day for day in days if day.isoweekday() <= 5]


def nearest(days: list[date], number: int) -> list[date]:
    """The work day of the month with the least distance; a Saturday's Friday wins over its Monday, and so on."""
    if number > len(days):
        return []
    wanted = days[number - 1]
    return [min(workdays(days), key=lambda day: abs((day - wanted).days))]


def on(days: list[date], weekday: int) -> list[date]:
    return [day for day in days if day.isoweekday() % 7 == weekday]


Rule = Callable[[list[date]], list[date]]
RULES: dict[str, Rule] = {
    "L * *": lambda days: days[-1:],
    "LW * *": lambda days: workdays(days)[-1:],
    "L,15 * *": lambda days: [days[14], days[-1]],
}
for _n in range(1, 31):
    RULES[f"L-{_n} * *"] = lambda days, n=_n: days[-1 - n : -n]  # type: ignore[misc]  # the default binds n
for _n in range(1, 32):
    RULES[f"{_n}W * *"] = lambda days, n=_n: nearest(days, n)  # type: ignore[misc]
for _w in range(7):
    RULES[f"* * L{_w}"] = lambda days, w=_w: on(days, w)[-1:]  # type: ignore[misc]
    RULES[f"* * L{NAMES[_w]}"] = RULES[f"* * L{_w}"]
    for _n in range(1, 6):
        RULES[f"* * {NAMES[_w]}#{_n}"] = lambda days, w=_w, n=_n: on(days, w)[n - 1 : n]  # type: ignore[misc]


def expected(rule: Rule) -> Iterator[date]:
    for year in YEARS:
        for month in range(1, 13):
            yield from rule(days_of(year, month))


@pytest.mark.parametrize("columns", RULES)
def test_a_special_day_is_that_day_in_every_month(columns: str) -> None:
    schedule = Schedule.parse(f"0 0 {columns}", job_name="job", zone=UTC)
    start = int(datetime(YEARS[0], 1, 1, tzinfo=UTC).timestamp()) - 1
    end = int(datetime(YEARS[-1] + 1, 1, 1, tzinfo=UTC).timestamp()) - 1
    found = [date(1970, 1, 1) + timedelta(seconds=t) for t in schedule.fires(start, end, 100_000)]
    assert found == list(expected(RULES[columns]))
