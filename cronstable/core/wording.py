"""A schedule in plain words, for people who do not read cron."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cronstable.core.cronfields import ColumnName, FieldValues, parse_field, values_of
from cronstable.core.schedule import Schedule

WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_ORDINALS = ("last", "first", "second", "third", "fourth", "fifth")
_MOST_TIMES = 8


def describe(schedule: Schedule) -> str:
    """One line of plain words, without the zone: ``at 02:30 on Monday to Friday``."""
    if schedule.reboot:
        return "once when the daemon starts"
    if not schedule.columns:
        return "never"
    second, minute, hour, dom, month, dow, year = schedule.columns
    parts = [_time_words(second, minute, hour)]
    days = day_words(dom, dow, both=both_days_must_match(schedule))
    if days:
        parts.append(days)
    elif parts[0].startswith("at ") and "every" not in parts[0]:
        parts.append("every day")
    if month != "*":
        months = _plain("month", month)
        parts.append("in " + spans([MONTHS[value - 1] for value in months], months))
    if year != "*":
        years = _plain("year", year)
        parts.append("in " + spans([str(value) for value in years], years))
    return " ".join(parts)


def both_days_must_match(schedule: Schedule) -> bool:
    """Whether a day must satisfy both day columns (the Debian/Vixie rule, or ``dayMatch: all``)."""
    if not schedule.columns:
        return False
    dom, dow = schedule.columns[3], schedule.columns[5]
    return schedule.day_match == "all" or dom[0] in "*?" or dow[0] in "*?"


def day_words(dom: str, dow: str, *, both: bool) -> str:
    """Which days the two day columns mean; empty for every day."""
    by_date = "" if dom in ("*", "?") else _date_words(parse_field("day of month", dom))
    by_weekday = "" if dow in ("*", "?") else _weekday_words(parse_field("day of week", dow))
    if by_date and by_weekday:
        if both:
            return (
                f"{by_date}, provided it is {_weekday_words(parse_field('day of week', dow), 'or').removeprefix('on ')}"
            )
        return f"{by_date} or {by_weekday}"
    return by_date or by_weekday


def spans(words: Sequence[str], values: Sequence[int], last: str = "and") -> str:
    """Join words, writing three or more neighbours in a row as ``first to last``."""
    pieces: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and values[end] == values[end - 1] + 1:
            continue
        run = words[start:end]
        pieces.extend([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)
        start = end
    return joined(pieces, last)


def joined(pieces: Iterable[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    items = list(pieces)
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, ..."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _time_words(second: str, minute: str, hour: str) -> str:
    seconds, minutes, hours = _plain("second", second), _plain("minute", minute), _plain("hour", hour)
    if len(seconds) * len(minutes) * len(hours) <= _MOST_TIMES:
        return "at " + joined(_clock(h, m, s, bool(seconds != [0])) for h in hours for m in minutes for s in seconds)
    inside_minute = _every("second", seconds, 60)
    inside_hour = _every("minute", minutes, 60)
    hourly = _every("hour", hours, 24)
    if seconds == [0]:
        if len(minutes) == 1:
            return f"{hourly} at minute {minutes[0]}" if hourly else f"at minute {minutes[0]} {_during(hours)}"
        words = inside_hour or f"at minutes {_numbers(minutes)}"
        return words if hourly == "every hour" and inside_hour else f"{words} {_of_hours(hours, hourly)}"
    if len(minutes) == 60:
        words = inside_minute or f"at second{'s' * (len(seconds) > 1)} {_numbers(seconds)} of every minute"
    else:
        prefix = inside_minute or f"at second{'s' * (len(seconds) > 1)} {_numbers(seconds)}"
        words = f"{prefix} of minute{'s' * (len(minutes) > 1)} {_numbers(minutes)}"
    return words if len(hours) == 24 and len(minutes) == 60 else f"{words} {_of_hours(hours, hourly)}"


def _of_hours(hours: list[int], hourly: str) -> str:
    return f"of {hourly}" if hourly == "every hour" else _during(hours)


def _during(hours: list[int]) -> str:
    """The hours of the day, as clock spans when they are neighbours."""
    if len(hours) == 24:
        return "of every hour"
    if hours[-1] - hours[0] == len(hours) - 1:
        return f"from {hours[0]:02}:00 to {hours[-1]:02}:59"
    return f"during hour{'s' * (len(hours) > 1)} {_numbers(hours)}"


def _every(unit: str, values: list[int], size: int) -> str:
    """``every 15 minutes`` when the values are an even division that starts at zero, otherwise nothing."""
    if len(values) == size:
        return f"every {unit}"
    if len(values) < 2 or values[0] != 0:
        return ""
    step = values[1]
    return f"every {step} {unit}s" if values == list(range(0, size, step)) and size % step == 0 else ""


def _clock(hour: int, minute: int, second: int, with_seconds: bool) -> str:
    return f"{hour:02}:{minute:02}:{second:02}" if with_seconds else f"{hour:02}:{minute:02}"


def _numbers(values: list[int]) -> str:
    return spans([str(value) for value in values], values)


def _plain(column: ColumnName, text: str) -> list[int]:
    return values_of(column, parse_field(column, text))


def _date_words(field: FieldValues) -> str:
    pieces: list[str] = []
    days = values_of("day of month", field)
    if len(days) == 31:
        return "on every day of the month"
    if days:
        pieces.append(f"day{'s' * (len(days) > 1)} {_numbers(days)} of the month")
    for offset in field.last:
        pieces.append("the last day of the month" if offset == 0 else _before_last(offset))
    for day in field.nearest:
        near = "the last weekday (Monday to Friday) of the month"
        pieces.append(near if day == 0 else f"the weekday (Monday to Friday) nearest to the {ordinal(day)}")
    return "on " + joined(pieces, "or")


def _before_last(offset: int) -> str:
    return f"the day {offset} day{'s' * (offset > 1)} before the last of the month"


def _weekday_words(field: FieldValues, last: str = "and") -> str:
    days = values_of("day of week", field)
    if len(days) == 7:
        return "on every day of the week"
    week = [day or 7 for day in days]
    if 0 in days:
        week = sorted(week)
    pieces = [spans([WEEKDAYS[day % 7] for day in week], week, last)] if week else []
    pieces += [f"the {_ORDINALS[number]} {WEEKDAYS[day]} of the month" for day, number in field.nth]
    return "on " + joined(pieces, "or")
