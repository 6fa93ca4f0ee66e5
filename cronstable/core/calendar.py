"""Wall-clock times that match a cron line, on a calendar that knows no zones.

A wall time is an integer: seconds since 1970-01-01 00:00:00 as a clock on the wall would read, without an offset. The
search walks years and months by bit mask, days by a mask of the month's shape, then hours, minutes and seconds; its
cost does not depend on how far away the next match is by more than one step for each month in between.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from typing import Literal, TypeAlias

from cronstable.core.cronfields import FIRST_YEAR, FieldValues, parse_field
from cronstable.core.values import dataclass

DayMatch: TypeAlias = Literal["any", "all"]
"""``any``: the Debian/Vixie rule. ``all``: both day columns must match, always."""

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAY = 86_400
_CYCLE_YEARS = 400
_LAST_SEARCHED_YEAR = 9_990
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class Calendar:
    """A compiled cron line.

    ``seconds``, ``minutes``, ``hours``: bit v is value v; ``months``: bits 1 to 12; ``years``: bit 0 is 1970, None
    allows every year. ``days``: for each month shape (length 28 to 31, weekday of the first with Sunday 0) the
    matching days as bits 1 to 31.
    """

    seconds: int
    minutes: int
    hours: int
    months: int
    years: int | None
    days: tuple[int, ...]

    def next_wall(self, wall: int) -> int | None:
        """The first matching wall time strictly after ``wall``; None when the calendar has no more."""
        day, second = divmod(wall + 1, _DAY)
        if day < 0:
            day, second = 0, 0
        found = self._next_day(day)
        if found is None:
            return None
        if found == day:
            of_day = self._time_from(second)
            if of_day is not None:
                return day * _DAY + of_day
            found = self._next_day(day + 1)
            if found is None:
                return None
        return found * _DAY + _lowest(self.hours) * 3600 + _lowest(self.minutes) * 60 + _lowest(self.seconds)

    def prev_wall(self, wall: int) -> int | None:
        """The last matching wall time strictly before ``wall`` and not before 1970; None when there is none."""
        day, second = divmod(wall - 1, _DAY)
        found = self._prev_day(day)
        if found is None:
            return None
        if found == day:
            of_day = self._time_to(second)
            if of_day is not None:
                return day * _DAY + of_day
            found = self._prev_day(day - 1)
            if found is None:
                return None
        return found * _DAY + _highest(self.hours) * 3600 + _highest(self.minutes) * 60 + _highest(self.seconds)

    def has_any_day(self) -> bool:
        """Whether some day of the calendar matches. The Gregorian calendar repeats after 400 years."""
        return self._next_day(0) is not None

    def _next_day(self, day: int) -> int | None:
        start = date.fromordinal(min(day + _EPOCH_ORDINAL, date.max.toordinal()))
        year, month, floor = start.year, start.month, start.day
        last_year = min(year + _CYCLE_YEARS, _LAST_SEARCHED_YEAR)
        while year <= last_year:
            if not self._has_year(year):
                next_year = self._year_after(year)
                if next_year is None:
                    return None
                year, month, floor = next_year, 1, 0
                continue
            rest = self.months >> month
            if not rest:
                year, month, floor = year + 1, 1, 0
                continue
            if not rest & 1:
                month, floor = month + _lowest(rest), 0
            first = date(year, month, 1).toordinal()
            matching = self._days_of(year, month, first) >> floor << floor
            if matching:
                return first + _lowest(matching) - 1 - _EPOCH_ORDINAL
            month, floor = month + 1, 0
        return None

    def _prev_day(self, day: int) -> int | None:
        if day < 0:
            return None
        start = date.fromordinal(min(day + _EPOCH_ORDINAL, date.max.toordinal()))
        year, month, ceiling = start.year, start.month, start.day
        last_year = max(FIRST_YEAR, year - _CYCLE_YEARS)
        while year >= last_year:
            rest = self.months & ((2 << month) - 1) if self._has_year(year) else 0
            if not rest:
                year, month, ceiling = year - 1, 12, 31
                continue
            if not rest >> month & 1:
                month, ceiling = _highest(rest), 31
            first = date(year, month, 1).toordinal()
            matching = self._days_of(year, month, first) & ((2 << ceiling) - 1)
            if matching:
                return first + _highest(matching) - 1 - _EPOCH_ORDINAL
            month, ceiling = month - 1, 31
        return None

    def _days_of(self, year: int, month: int, first: int) -> int:
        length = 29 if month == 2 and _is_leap(year) else _LENGTHS[month - 1]
        return self.days[(length - 28) * 7 + first % 7]

    def _has_year(self, year: int) -> bool:
        return self.years is None or (year >= FIRST_YEAR and bool(self.years >> (year - FIRST_YEAR) & 1))

    def _year_after(self, year: int) -> int | None:
        if self.years is None:
            return year + 1
        rest = self.years >> (year + 1 - FIRST_YEAR)
        return year + 1 + _lowest(rest) if rest else None

    def _time_from(self, second: int) -> int | None:
        """The first matching second of the day at or after ``second``."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (seconds := self.seconds >> second):
                return hour * 3600 + minute * 60 + second + _lowest(seconds)
            if minutes := self.minutes >> (minute + 1):
                return hour * 3600 + (minute + 1 + _lowest(minutes)) * 60 + _lowest(self.seconds)
        if hours := self.hours >> (hour + 1):
            return (hour + 1 + _lowest(hours)) * 3600 + _lowest(self.minutes) * 60 + _lowest(self.seconds)
        return None

    def _time_to(self, second: int) -> int | None:
        """The last matching second of the day at or before ``second``."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (seconds := self.seconds & ((2 << second) - 1)):
                return hour * 3600 + minute * 60 + _highest(seconds)
            if minutes := self.minutes & ((1 << minute) - 1):
                return hour * 3600 + _highest(minutes) * 60 + _highest(self.seconds)
        if hours := self.hours & ((1 << hour) - 1):
            return _highest(hours) * 3600 + _highest(self.minutes) * 60 + _highest(self.seconds)
        return None


NO_CALENDAR = Calendar(0, 0, 0, 0, 0, ())
"""Matches nothing: the calendar of ``@reboot``."""


@lru_cache(maxsize=512)
def compile_calendar(columns: tuple[str, ...], day_match: DayMatch) -> Calendar:
    """Compile the seven column texts, hashes resolved. Raises FieldError.

    Pure and memoised, so that jobs with the same line share one calendar; the bound is small because a set of ten
    thousand different lines gains nothing from it and would pay with memory. Their parts are shared all the same.
    """
    second, minute, hour, dom, month, dow, year = columns
    return Calendar(
        parse_field("second", second).mask,
        parse_field("minute", minute).mask,
        parse_field("hour", hour).mask,
        parse_field("month", month).mask,
        None if year == "*" else parse_field("year", year).mask,
        _month_days(dom, dow, day_match),
    )


@lru_cache(maxsize=4096)
def _month_days(dom_text: str, dow_text: str, day_match: DayMatch) -> tuple[int, ...]:
    dom, dow = parse_field("day of month", dom_text), parse_field("day of week", dow_text)
    by_date, by_weekday = _date_masks(dom), _weekday_masks(dow)
    if day_match == "all" or dom.star or dow.star:
        return tuple(map(int.__and__, by_date, by_weekday))
    return tuple(map(int.__or__, by_date, by_weekday))


@lru_cache(maxsize=1024)
def _date_masks(dom: FieldValues) -> tuple[int, ...]:
    return tuple(_by_date(dom, length, first) for length in (28, 29, 30, 31) for first in range(7))


@lru_cache(maxsize=1024)
def _weekday_masks(dow: FieldValues) -> tuple[int, ...]:
    return tuple(_by_weekday(dow, length, first) for length in (28, 29, 30, 31) for first in range(7))


def _by_date(dom: FieldValues, length: int, first: int) -> int:
    mask = dom.mask & ((2 << length) - 2)
    for offset in dom.last:
        if offset < length:
            mask |= 1 << (length - offset)
    for day in dom.nearest:
        if day <= length:
            mask |= 1 << _nearest_weekday(day or length, length, first)
    return mask


def _nearest_weekday(day: int, length: int, first: int) -> int:
    """The Monday to Friday nearest to ``day`` without leaving the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _by_weekday(dow: FieldValues, length: int, first: int) -> int:
    mask = 0
    for day in range(1, length + 1):
        weekday = (first + day - 1) % 7
        last = 0 if day + 7 > length else -1
        if dow.mask >> weekday & 1 or any((weekday, number) in dow.nth for number in ((day + 6) // 7, last)):
            mask |= 1 << day
    return mask


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _highest(bits: int) -> int:
    return bits.bit_length() - 1
