"""What a careful reader would remark about a schedule: legal, but perhaps not what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta

from cronstable.core.cronfields import COLUMNS, ColumnName, column_shape, parse_field, values_of
from cronstable.core.schedule import Schedule
from cronstable.core.wording import both_days_must_match, day_words, joined
from cronstable.core.zonewalk import Seam, seams_between

_EPOCH_WALL = datetime(1970, 1, 1)
_SAMPLE_YEAR = 2036
"""The clock-change note looks at this year: it is past the listed history of most zones and shows their standing
rule."""


def schedule_findings(schedule: Schedule, now: int | None = None) -> tuple[str, ...]:
    """All remarks, the gravest first; ``now`` (epoch seconds) allows the remark that everything is past."""
    if schedule.reboot or not schedule.columns:
        return ()
    return (
        *_fires_at_all(schedule, now),
        *_six_columns(schedule),
        *_day_columns(schedule),
        *_short_months(schedule),
        *_every_minute_of_an_hour(schedule),
        *_steps(schedule),
        *_clock_changes(schedule),
    )


def zone_name(schedule: Schedule) -> str:
    """The zone as a person writes it."""
    return str(getattr(schedule.zone, "key", None) or schedule.zone)


def _fires_at_all(schedule: Schedule, now: int | None) -> Iterator[str]:
    if schedule.never_fires:
        yield "never fires: no date matches"
    elif now is not None and schedule.next_after(now) is None:
        yield "never fires again: every occurrence lies in the past"


def _six_columns(schedule: Schedule) -> Iterator[str]:
    words = schedule.text.split()
    if len(words) == 6 and words[5] == "*":
        yield (
            "six columns that look as if they began with seconds: here the first is the minute and the sixth the year; "
            f"with seconds the line has seven columns: {schedule.text} *"
        )


def _day_columns(schedule: Schedule) -> Iterator[str]:
    dom, dow = schedule.columns[3], schedule.columns[5]
    if dom in ("*", "?") or dow in ("*", "?"):
        return
    both = both_days_must_match(schedule)
    words = day_words(dom, dow, both=both)
    if not both:
        yield f"both day columns are restricted, either one is enough: {words}; for both at once say dayMatch: all"
    elif schedule.day_match == "any":
        yield f"one day column starts with *, so both must match: {words}"


def _short_months(schedule: Schedule) -> Iterator[str]:
    field = parse_field("day of month", schedule.columns[3])
    days = values_of("day of month", field)
    months = values_of("month", parse_field("month", schedule.columns[4]))
    if not days or days[0] < 29 or field.last or field.nearest or schedule.columns[5] not in ("*", "?"):
        return
    without = [month for month in months if days[0] > (28 if month == 2 else 30 if month in (4, 6, 9, 11) else 31)]
    if without and len(without) < len(months):
        yield f"months without a day {days[0]} are skipped; L is the last day of every month"


def _every_minute_of_an_hour(schedule: Schedule) -> Iterator[str]:
    minute, hour = schedule.columns[1], schedule.columns[2]
    if minute == "*" and not hour.startswith("*"):
        yield f"runs in every minute of the hours it names; for once an hour write 0 {hour} in the first two columns"


def _steps(schedule: Schedule) -> Iterator[str]:
    for name, text in zip(COLUMNS, schedule.columns, strict=True):
        for item in text.split(","):
            found = re.fullmatch(r"\*/(\d+)", item, re.ASCII)
            if found and name != "year":
                yield from _step(name, item, int(found[1]))


def _step(name: ColumnName, item: str, step: int) -> Iterator[str]:
    shape = column_shape(name)
    size = shape.high - shape.low + 1
    if step >= size:
        yield f"{item} in the {name} column is only ever {shape.low}: the step is not smaller than the column"
    elif name == "day of month":
        if step > 1:
            yield f"{item} in the day of month column starts again on the 1st: the last distance of a month is shorter"
    elif size % step:
        last = shape.low + (size - 1) // step * step
        distance = shape.low + size - last
        yield (
            f"{item} in the {name} column starts again at {shape.low}: {step} does not divide {size}, "
            f"so the distance from {last} to {shape.low} is {distance}"
        )


def _clock_changes(schedule: Schedule) -> Iterator[str]:
    epoch = date(1970, 1, 1)
    start, end = ((date(year, 1, 1) - epoch).days * 86_400 for year in (_SAMPLE_YEAR, _SAMPLE_YEAR + 1))
    said: set[str] = set()
    for seam in seams_between(schedule.zone, start, end):
        times = _times_inside(schedule, seam)
        if not times:
            continue
        words = _gap_words(schedule, seam, times) if seam.is_gap else _fold_words(schedule, seam, times)
        if words and words not in said:
            said.add(words)
            yield words


def _times_inside(schedule: Schedule, seam: Seam) -> list[str]:
    """The first wall clock times of the schedule between the hands of a clock change, on whatever day it happens."""
    calendar = schedule.calendar
    times: list[str] = []
    for wall in range(seam.wall_low, seam.wall_high, 60):
        hour, minute = divmod(wall % 86_400 // 60, 60)
        if calendar.hours >> hour & 1 and calendar.minutes >> minute & 1:
            times.append(f"{hour:02}:{minute:02}")
    return times


def _gap_words(schedule: Schedule, seam: Seam, times: list[str]) -> str:
    low, high = _wall_clock(seam.wall_low), _wall_clock(seam.wall_high)
    verb = "does" if len(times) == 1 else "do"
    if schedule.fixed:
        return (
            f"when the clocks go forward in {zone_name(schedule)} ({low} to {high}) {_some(times)} {verb} not exist: "
            f"the job runs once, at {high}"
        )
    if schedule.columns[2].startswith("*"):
        return ""
    return (
        f"when the clocks go forward in {zone_name(schedule)} ({low} to {high}) {_some(times)} {verb} not exist: "
        "there is no run, because the minute column starts with *"
    )


def _fold_words(schedule: Schedule, seam: Seam, times: list[str]) -> str:
    low, high = _wall_clock(seam.wall_low), _wall_clock(seam.wall_high)
    verb = "occurs" if len(times) == 1 else "occur"
    back = f"when the clocks go back in {zone_name(schedule)} ({high} to {low}) {_some(times)} {verb} twice"
    if schedule.fixed:
        return f"{back}: the job runs the first time only"
    if schedule.columns[2].startswith("*"):
        return ""
    return f"{back}: the job runs both times, because the minute column starts with *"


def _some(times: list[str]) -> str:
    return joined(times) if len(times) <= 3 else f"{times[0]} to {times[-1]}"


def _wall_clock(wall: int) -> str:
    return (_EPOCH_WALL + timedelta(seconds=wall)).strftime("%H:%M")
