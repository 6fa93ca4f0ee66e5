"""One column of a cron line: text in, values out.

croniter's ``expand`` reads numbers, names, lists, ranges and steps; it is asked once for each distinct text. What it is
known to misread never reaches it: equal and reversed ranges, ranges that end in Sunday, ``R``, ``L-n``, ``nW``,
``LW``, and a literal next to an nth weekday are handled or refused here.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, TypeAlias

from cronstable.core.values import dataclass

ColumnName: TypeAlias = Literal["second", "minute", "hour", "day of month", "month", "day of week", "year"]
"""What a message calls a column."""

COLUMNS: tuple[ColumnName, ...] = ("second", "minute", "hour", "day of month", "month", "day of week", "year")
"""In the order of a seven-column line."""

FIRST_YEAR = 1970
LAST_YEAR = 2099


@dataclass(frozen=True, slots=True)
class Column:
    """The bounds of a column, and the place of its text in a line that croniter reads."""

    low: int
    high: int
    line: str
    place: int
    hash_high: int


_SHAPES: dict[str, Column] = {
    "second": Column(0, 59, "{} * * * *", 0, 59),
    "minute": Column(0, 59, "{} * * * *", 0, 59),
    "hour": Column(0, 23, "0 {} * * *", 1, 23),
    "day of month": Column(1, 31, "0 0 {} * *", 2, 28),
    "month": Column(1, 12, "0 0 1 {} *", 3, 12),
    "day of week": Column(0, 6, "0 0 * * {}", 4, 6),
    "year": Column(FIRST_YEAR, LAST_YEAR, "0 0 1 1 * 0 {}", 6, LAST_YEAR),
}


class FieldError(ValueError):
    """A text that is not of the dialect: which column, what is wrong, and what to write instead where that is known."""

    def __init__(self, column: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.column = column
        self.hint = hint


@dataclass(frozen=True, slots=True)
class FieldValues:
    """What a column allows.

    ``mask`` has bit v set for each plain value v (years: bit v - 1970; Sunday is 0). ``star``: the text starts with
    ``*``, which decides day matching and DST. The other parts exist in the day columns only: ``last`` holds the n of
    each ``L-n`` (0 for ``L``), ``nearest`` the n of each ``nW`` (0 for ``LW``), ``nth`` a (weekday, n) for each
    ``d#n``, with n = 0 for ``Ld``.
    """

    mask: int
    star: bool
    last: tuple[int, ...] = ()
    nearest: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()


_VALUE = r"(?:[0-9]{1,9}|[a-z]{3})"
_PLAIN = re.compile(rf"(?:\*|(?P<low>{_VALUE})(?:-(?P<high>{_VALUE}))?)(?:/(?P<step>[0-9]{{1,9}}))?", re.ASCII)
_HASH = re.compile(rf"h(?:\((?P<low>{_VALUE})-(?P<high>{_VALUE})\))?(?:/(?P<step>[0-9]{{1,9}}))?", re.ASCII)
_LAST_OFFSET = re.compile(r"l(?:-(?P<offset>[0-9]{1,2}))?", re.ASCII)
_NEAREST = re.compile(r"(?P<day>[0-9]{1,2}|l)w", re.ASCII)
_NTH = re.compile(rf"(?P<day>{_VALUE})#(?P<nth>[0-9]{{1,2}})", re.ASCII)
_LAST_DAY = re.compile(rf"l(?P<day>{_VALUE})", re.ASCII)
_QUARTZ_LAST = re.compile(rf"(?P<day>{_VALUE})l", re.ASCII)


def column_shape(name: ColumnName) -> Column:
    """The bounds of the column called ``name``."""
    return _SHAPES[name]


@lru_cache(maxsize=4096)
def parse_field(column: ColumnName, text: str) -> FieldValues:
    """Read one column whose hashes are resolved.

    Raises FieldError. Pure and memoised: ten thousand jobs share a few hundred distinct texts.
    """
    lowered = text.lower()
    if not text.isascii():
        raise FieldError(column, f"{text!r} has characters outside ASCII", "write the digits 0-9 and plain letters")
    if lowered == "?" and column in ("day of month", "day of week"):
        lowered = "*"
    plain: list[str] = []
    last: set[int] = set()
    nearest: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for item, written in zip(lowered.split(","), text.split(","), strict=True):
        if column == "day of month" and (found := _LAST_OFFSET.fullmatch(item)):
            last.add(_last_offset(item, found["offset"]))
        elif column == "day of month" and (found := _NEAREST.fullmatch(item)):
            nearest.add(0 if found["day"] == "l" else _value(column, found["day"]))
        elif column == "day of week" and (found := _NTH.fullmatch(item)):
            nth.add((_value(column, found["day"]), _nth(item, int(found["nth"]))))
        elif column == "day of week" and (found := _LAST_DAY.fullmatch(item)):
            nth.add((_value(column, found["day"]), 0))
        else:
            plain.append(_safe_item(column, item, written, text))
    mask = _expand(column, ",".join(plain)) if plain else 0
    return FieldValues(mask, lowered.startswith("*"), tuple(sorted(last)), tuple(sorted(nearest)), tuple(sorted(nth)))


def resolve_hash(column: ColumnName, text: str, job_name: str) -> str:
    """Replace each ``H`` item of a column by the values that the job's name hashes to.

    The hash is SHA-256 of the column and the name, so that minute and hour of one job are not correlated and every
    node, in every process, draws the same. A day of month without a range is drawn from 1-28: no month is ever
    skipped. Raises FieldError.
    """
    if "h" not in text and "H" not in text:
        return text
    return ",".join(_resolve_item(column, item, job_name) for item in text.split(","))


def values_of(column: ColumnName, field: FieldValues) -> list[int]:
    """The plain values of a field in ascending order (years as years)."""
    base = FIRST_YEAR if column == "year" else 0
    return [base + bit for bit in range(field.mask.bit_length()) if field.mask >> bit & 1]


def _resolve_item(column: ColumnName, item: str, job_name: str) -> str:
    lowered = item.lower()
    if not lowered.startswith("h"):
        return item
    if column == "year":
        raise FieldError(column, f"{item!r}: a year cannot be hashed", "write the years, or *")
    found = _HASH.fullmatch(lowered)
    if found is None:
        raise FieldError(column, f"{item!r} is not a hash", "the forms are H, H(a-b), H/n and H(a-b)/n")
    shape = _SHAPES[column]
    low, high = shape.low, shape.hash_high
    if found["low"] is not None:
        low, high = _value(column, found["low"]), _value(column, found["high"])
        if low > high:
            raise FieldError(column, f"{item!r}: the range runs backwards", f"write H({found['high']}-{found['low']})")
    size = high - low + 1
    drawn = int.from_bytes(hashlib.sha256(f"{column}\0{job_name}".encode("utf-8", "surrogatepass")).digest()[:8], "big")
    if found["step"] is None:
        return str(low + drawn % size)
    step = int(found["step"])
    if step == 0:
        raise FieldError(column, f"{item!r}: a step of zero never advances", "H alone is one value")
    start = low + drawn % min(step, size)
    return f"{start}-{high}/{step}" if start + step <= high else str(start)


def _last_offset(item: str, offset: str | None) -> int:
    if offset is not None and not 1 <= int(offset) <= 30:
        raise FieldError(
            "day of month", f"{item.upper()!r}: days before the last are 1 to 30", "L alone is the last day"
        )
    return int(offset or 0)


def _nth(item: str, number: int) -> int:
    if not 1 <= number <= 5:
        raise FieldError("day of week", f"{item!r}: a month has a first to a fifth weekday", "write #1 to #5")
    return number


def _value(column: ColumnName, token: str) -> int:
    """The single value that a number or a name stands for, as croniter reads it."""
    mask = _expand(column, token)
    return mask.bit_length() - 1 + (FIRST_YEAR if column == "year" else 0)


def _safe_item(column: ColumnName, item: str, written: str, whole: str) -> str:
    """The same item in a form that croniter reads as this dialect means it."""
    found = _PLAIN.fullmatch(item)
    if found is None:
        raise _refusal(column, item, written, whole)
    low_text, high_text, step_text = found["low"], found["high"], found["step"]
    if step_text is not None and int(step_text) == 0:
        raise FieldError(column, f"{item!r}: a step of zero never advances", "write a step of 1 or more")
    if low_text is None:
        return item
    low = _value(column, low_text)
    if high_text is None:
        if column == "day of week" and step_text is not None and low_text == "7":
            raise FieldError(
                column, f"{item!r} could start at either end of the week", f"write 0/{step_text}, or 7 alone"
            )
        return item
    high = _value(column, high_text)
    if column == "day of week" and low_text == "7" and high != 0:
        raise FieldError(column, f"{item!r} runs backwards", f"write 0-{high}")
    if column == "day of week" and high == 0 and (low > 0 or (low_text != "7" and high_text == "7")):
        return ",".join(str(day % 7) for day in range(low, 8, int(step_text or 1)))
    if low == high:
        return low_text
    if low > high:
        raise FieldError(column, f"{item!r} runs backwards", _unwrapped(column, low, high))
    return item


def _unwrapped(column: ColumnName, low: int, high: int) -> str:
    shape = _SHAPES[column]
    return f"write {low}-{shape.high},{shape.low}-{high} if it should wrap around, {high}-{low} if it was turned"


def _refusal(column: ColumnName, item: str, written: str, whole: str) -> FieldError:
    """Say what is wrong with an item that no rule of the dialect covers."""
    if item == "":
        return FieldError(column, f"{whole!r} has an empty list item", "remove the extra comma")
    if re.fullmatch(r"r(?:\(.*\))?(?:/[0-9]+)?", item):
        hint = f"write H{item[1:]}, which is drawn from the job's name, the same everywhere"
        return FieldError(column, f"{written!r}: a random value would differ between restarts and nodes", hint)
    if column == "day of week":
        if found := _QUARTZ_LAST.fullmatch(item):
            return FieldError(column, f"{written!r} is the Quartz spelling", f"write L{found['day']}")
        if item == "l":
            return FieldError(column, f"{written!r} needs a weekday", "L5 is the last Friday, 6 is every Saturday")
        if item.endswith("w"):
            return FieldError(column, f"{written!r} belongs in the day of month column", "1-5 is every weekday")
    if column == "day of month" and re.fullmatch(r"w[0-9]{1,2}", item):
        return FieldError(column, f"{written!r} is turned", f"write {item[1:]}W")
    if column not in ("day of month", "day of week") and (item == "l" or item.endswith("w")):
        return FieldError(column, f"{written!r} belongs in a day column")
    if "?" in item:
        return FieldError(column, f"{written!r}: ? stands alone, in a day column", "write *")
    if item.startswith("-"):
        return FieldError(column, f"{written!r}: numbers are not negative")
    return FieldError(column, f"{written!r} is not a value, range, list or step", _allowed(column))


def _allowed(column: ColumnName) -> str:
    shape = _SHAPES[column]
    if column == "month":
        return "write 1-12 or jan-dec"
    if column == "day of week":
        return "write 0-7 (0 and 7 are Sunday) or sun-sat"
    return f"write {shape.low}-{shape.high}"


@lru_cache(maxsize=4096)
def _expand(column: ColumnName, text: str) -> int:
    """Ask croniter for the values of a text that is free of its traps, as a bit mask.

    croniter is imported here, on the first schedule, so that importing the public API stays light.
    """
    with _without_windows():
        from croniter import CroniterError, croniter

    shape = _SHAPES[column]
    try:
        values = croniter.expand(shape.line.format(text))[0][shape.place]
    except CroniterError:
        raise FieldError(column, f"{text!r} is outside {shape.low}-{shape.high}", _allowed(column)) from None
    base = FIRST_YEAR if column == "year" else 0
    if "*" in values:
        values = range(shape.low, shape.high + 1)
    mask = 0
    for value in values:
        mask |= 1 << (value - base)
    return mask


@contextmanager
def _without_windows() -> Iterator[None]:
    """Around the import of croniter: dateutil below it looks for the zones of Windows first.

    It would find none, and load ctypes on the way: a third of a MiB in every daemon.
    """
    name = "dateutil.tz.win"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # what Python takes for "there is no such module"
    try:
        yield
    finally:
        sys.modules.pop(name, None)
