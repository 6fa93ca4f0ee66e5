"""When a job is due: the schedule language and the search for the next and the previous occurrence.

The dialect is that of reference 2.1, the choices are those of design 5: the Debian/Vixie rule for two restricted day
columns, a sixth column is a year, seven columns begin with seconds, and a fixed-time job runs exactly once on a day
when the clocks change.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from enum import StrEnum

from cronstable.core.calendar import NO_CALENDAR, Calendar, DayMatch, compile_calendar
from cronstable.core.cronfields import COLUMNS, FieldError, resolve_hash
from cronstable.core.values import dataclass
from cronstable.core.zonewalk import EARLIEST, next_fire, offset_at, prev_fire, seam_of_wall

NICKNAMES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""The five columns that each nickname stands for. ``@reboot`` has none."""

_MAP_COLUMNS = ("second", "minute", "hour", "dayOfMonth", "month", "dayOfWeek", "year")


class ScheduleError(ValueError):
    """An expression that is not of the dialect.

    The message names the job, the expression and the column. ``field``: which column; ``hint``: what to write instead,
    not part of the message, so that whoever shows it decides how.
    """

    def __init__(self, message: str, *, expression: str, field: str = "", hint: str | None = None) -> None:
        super().__init__(message)
        self.expression = expression
        self.field = field
        self.hint = hint


class ClockMark(StrEnum):
    """How a clock change touches one occurrence: its wall time is missing that day, or occurs twice."""

    NONE = "none"
    MOVED = "moved"
    FIRST_PASS = "first pass"
    SECOND_PASS = "second pass"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a job is due. Build one with ``parse``; one that was built by hand without a calendar never fires.

    ``text``: as written, with white space collapsed (the job-set ID uses it). ``resolved``: the columns after nicknames
    and ``H`` were replaced, or ``text`` itself. ``fixed``: neither minute nor hour starts with ``*``, so that clock
    changes neither drop nor repeat an occurrence.
    """

    text: str
    zone: tzinfo
    reboot: bool = False
    day_match: DayMatch = "any"
    resolved: str = ""
    fixed: bool = True
    calendar: Calendar = NO_CALENDAR

    @staticmethod
    def parse(text: str, *, job_name: str, zone: tzinfo, day_match: DayMatch = "any") -> Schedule:
        """Read an expression. ``job_name`` feeds ``H`` and names the job in messages. Raises ScheduleError."""
        words = text.split()
        collapsed = " ".join(words)
        try:
            if collapsed.startswith("@"):
                nickname = collapsed.lower()
                if nickname == "@reboot":
                    return Schedule(collapsed, zone, reboot=True, day_match=day_match, resolved=nickname)
                words = _nickname(nickname).split()
            columns = _seven_columns(words)
            if "h" in collapsed or "H" in collapsed:
                columns = tuple(resolve_hash(name, word, job_name) for name, word in zip(COLUMNS, columns, strict=True))
            calendar = compile_calendar(columns, day_match)
        except FieldError as wrong:
            raise _named(wrong, text, job_name) from None
        return Schedule(
            text=collapsed,
            zone=zone,
            day_match=day_match,
            resolved=_joined(columns, len(words), collapsed),
            fixed=not (columns[1].startswith("*") or columns[2].startswith("*")),
            calendar=calendar,
        )

    def next_after(self, t: int) -> int | None:
        """The first occurrence strictly after ``t`` (whole epoch seconds, UTC); None when there is none.

        Where the year column is free the search covers the 400 years after which the calendar repeats.
        """
        return next_fire(self.calendar, self.zone, self.fixed, t) if self.calendar.days else None

    def prev_before(self, t: int) -> int | None:
        """The last occurrence strictly before ``t``, the exact reverse of ``next_after``; none lies before 1970."""
        return prev_fire(self.calendar, self.zone, self.fixed, t) if self.calendar.days else None

    def fires(self, after: int, until: int, limit: int) -> tuple[int, ...]:
        """The occurrences T with ``after`` < T <= ``until``, oldest first, at most ``limit`` of them."""
        found: list[int] = []
        t = self.next_after(after)
        while t is not None and t <= until and len(found) < limit:
            found.append(t)
            t = self.next_after(t)
        return tuple(found)

    def mark_at(self, t: int) -> ClockMark:
        """What a clock change has to do with the occurrence ``t``, for people who wonder about its time."""
        wall = t + offset_at(t, self.zone)
        if self.fixed and self.calendar.next_wall(wall - 1) != wall:
            return ClockMark.MOVED
        seam = seam_of_wall(wall, self.zone)
        if seam is None or seam.is_gap:
            return ClockMark.NONE
        return ClockMark.FIRST_PASS if t < seam.at else ClockMark.SECOND_PASS

    @property
    def columns(self) -> tuple[str, ...]:
        """The seven column texts (second to year) with nicknames and ``H`` resolved; empty for ``@reboot``."""
        return () if self.reboot or not self.resolved else _seven_columns(self.resolved.split())

    @property
    def is_hashed(self) -> bool:
        """Whether some column was drawn from the job's name."""
        return self.resolved != self.text and not self.text.startswith("@")

    @property
    def uses_seconds(self) -> bool:
        """Whether an occurrence can fall on another second than the first of a minute."""
        return self.calendar.seconds > 1

    @property
    def never_fires(self) -> bool:
        """Whether no occurrence exists at all. Legal; ``@reboot`` is not meant."""
        if self.reboot:
            return False
        if self.calendar.years is None:
            return not self.calendar.days or not self.calendar.has_any_day()
        return self.next_after(EARLIEST) is None

    def findings(self, now: int | None = None) -> tuple[str, ...]:
        """What a careful reader would remark about this expression, in plain words; empty when nothing.

        ``now`` (epoch seconds) adds the remark that all occurrences lie in the past.
        """
        from cronstable.core.lint import schedule_findings

        return schedule_findings(self, now)


def schedule_from_map(mapping: Mapping[str, object]) -> str:
    """The crontab line of the map form of ``schedule`` (reference 2.1), with as many columns as are used.

    A missing column is ``*``; ``second`` makes seven columns, ``year`` six. The key ``dayMatch`` is not part of the
    line. Raises ScheduleError when a value is not exactly one column or a key is unknown.
    """
    shown = ", ".join(f"{key}: {value!r}" for key, value in mapping.items())
    texts = {"second": "0"}
    for key, value in mapping.items():
        if key == "dayMatch":
            if value not in ("any", "all"):
                raise _map_error(shown, key, f"{value!r} is neither any nor all")
            continue
        if key not in _MAP_COLUMNS:
            raise _map_error(shown, key, "there is no such column", f"the columns are {', '.join(_MAP_COLUMNS)}")
        if not isinstance(value, str):
            raise _map_error(shown, key, f"{value!r} is not a string", f'"{value}" in quotes')
        if len(value.split()) != 1:
            raise _map_error(shown, key, f"{value!r} must be exactly one column", "no spaces, and not empty")
        texts[key] = value.strip()
    order = [key for key in _MAP_COLUMNS if key not in ("second", "year")]
    if "second" in mapping:
        order = ["second", *order, "year"]
    elif "year" in mapping:
        order.append("year")
    return " ".join(texts.get(key, "*") for key in order)


def _map_error(shown: str, key: str, problem: str, hint: str | None = None) -> ScheduleError:
    return ScheduleError(f"schedule {{{shown}}}: {key}: {problem}", expression=shown, field=key, hint=hint)


def _nickname(text: str) -> str:
    if (columns := NICKNAMES.get(text)) is not None:
        return columns
    known = ", ".join(["@reboot", *NICKNAMES])
    hint = f"one of {known}"
    if text.startswith("@every"):
        hint = "for an interval write a step: */5 * * * * is every five minutes"
    raise FieldError("nickname", f"{text.split()[0]!r} is not one of this dialect", hint)


def _seven_columns(words: list[str]) -> tuple[str, ...]:
    """All seven columns of a line of five, six or seven."""
    if len(words) == 5:
        return ("0", *words, "*")
    if len(words) == 6:
        return ("0", *words)
    if len(words) == 7:
        return tuple(words)
    if not words:
        raise FieldError("columns", "the expression is empty", "* * * * * is every minute")
    raise FieldError("columns", f"found {len(words)} columns, a line has 5, 6 (with a year) or 7 (with seconds too)")


def _joined(columns: tuple[str, ...], count: int, text: str) -> str:
    """The resolved line in as many columns as were written; the text itself when nothing was replaced."""
    line = " ".join(columns[0 if count == 7 else 1 : 6 if count == 5 else 7])
    return text if line == text else line


def _named(wrong: FieldError, expression: str, job_name: str) -> ScheduleError:
    hint = wrong.hint
    if wrong.column == "year" and hint is not None and len(expression.split()) == 6:
        hint = f"{hint}; the sixth column is the year, seconds need seven columns"
    prefix = f"job {job_name!r}: " if job_name else ""
    message = f"{prefix}schedule {expression!r}: {wrong.column}: {wrong}"
    return ScheduleError(message, expression=expression, field=wrong.column, hint=hint)
