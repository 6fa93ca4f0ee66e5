"""From wall-clock matches to instants: the Debian rule for clock changes, forwards and backwards.

A *fixed* schedule (neither minute nor hour starts with ``*``) is owed once for every wall time it names: what falls
into a gap is run once, at the end of the gap, and a wall time that occurs twice counts in the first pass only. Every
other schedule follows the wall clock: nothing in a gap, both passes of a fold. The seconds column does not decide; a
fixed schedule with several seconds inside a gap runs once. Whatever the size of the change, the rule is the same.

Instants are whole epoch seconds (UTC); wall times are those of ``cronstable.core.calendar``. All knowledge about the
zone comes from the ``tzinfo`` passed in (PEP 495).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache

from cronstable.core.calendar import Calendar
from cronstable.core.values import dataclass

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WALL = datetime(1970, 1, 1)
EARLIEST = -86_400
"""No search looks further back than the day before the epoch (a wall clock east of UTC may read 1970 by then)."""
LATEST = 253_000_000_000
"""No search starts later than this (year 9987)."""


@dataclass(frozen=True, slots=True)
class Seam:
    """A clock change: the first instant with the new offset, and both offsets in seconds east of UTC."""

    at: int
    before: int
    after: int

    @property
    def is_gap(self) -> bool:
        """Whether wall times are missing (otherwise they occur twice)."""
        return self.after > self.before

    @property
    def wall_low(self) -> int:
        """The first wall time that is missing or doubled."""
        return self.at + min(self.before, self.after)

    @property
    def wall_high(self) -> int:
        """The first wall time past the change."""
        return self.at + max(self.before, self.after)


def offset_at(instant: int, zone: tzinfo) -> int:
    """Seconds east of UTC at an instant."""
    return _seconds((_EPOCH + timedelta(seconds=instant)).astimezone(zone).utcoffset())


@lru_cache(maxsize=256)
def next_fire(calendar: Calendar, zone: tzinfo, fixed: bool, after: int) -> int | None:
    """The first instant strictly after ``after`` at which the calendar fires in ``zone``.

    Remembered for a while: jobs that are due together mostly have the same schedule.
    """
    after = max(after, EARLIEST)
    if after > LATEST:
        return None
    if isinstance(zone, timezone):
        offset = _seconds(zone.utcoffset(None))
        found = calendar.next_wall(after + offset)
        return None if found is None else found - offset
    wall = after + offset_at(after, zone)
    seam = _seam(wall, zone)
    inside = seam if isinstance(seam, Seam) and not seam.is_gap else None
    return (
        _next_fixed(calendar, zone, wall, after, inside) if fixed else _next_wild(calendar, zone, wall, after, inside)
    )


def prev_fire(calendar: Calendar, zone: tzinfo, fixed: bool, before: int) -> int | None:
    """The last instant strictly before ``before`` at which the calendar fires in ``zone``."""
    before = min(before, LATEST)
    if before < EARLIEST:
        return None
    if isinstance(zone, timezone):
        offset = _seconds(zone.utcoffset(None))
        found = calendar.prev_wall(before + offset)
        return None if found is None else found - offset
    wall = before + offset_at(before, zone)
    seam = _seam(wall, zone)
    inside = seam if isinstance(seam, Seam) and not seam.is_gap else None
    return (
        _prev_fixed(calendar, zone, wall, before, inside) if fixed else _prev_wild(calendar, zone, wall, before, inside)
    )


@lru_cache(maxsize=64)
def seams_between(zone: tzinfo, start: int, end: int) -> tuple[Seam, ...]:
    """The clock changes of a zone in (start, end], found by looking at every sixth hour."""
    found = []
    low, old = start, offset_at(start, zone)
    while low < end:
        high = min(low + 21_600, end)
        new = offset_at(high, zone)
        if new != old:
            found.append(Seam(_change(low, high, old, zone), old, new))
        low, old = high, new
    return tuple(found)


def seam_of_wall(wall: int, zone: tzinfo) -> Seam | None:
    """The clock change that makes a wall time missing or doubled, if one does."""
    seam = _seam(wall, zone)
    return seam if isinstance(seam, Seam) else None


def _next_fixed(calendar: Calendar, zone: tzinfo, wall: int, after: int, fold: Seam | None) -> int | None:
    if fold is not None and after >= fold.at:
        wall = fold.wall_high - 1
    found = calendar.next_wall(wall)
    if found is None:
        return None
    seam = _seam(found, zone)
    if not isinstance(seam, Seam):
        return found - seam
    return seam.at if seam.is_gap else found - seam.before


def _prev_fixed(calendar: Calendar, zone: tzinfo, wall: int, before: int, fold: Seam | None) -> int | None:
    if fold is not None and before >= fold.at:
        wall = fold.wall_high
    found = calendar.prev_wall(wall)
    while found is not None:
        seam = _seam(found, zone)
        if not isinstance(seam, Seam):
            return found - seam
        if not seam.is_gap:
            return found - seam.before
        if seam.at < before:
            return seam.at
        found = calendar.prev_wall(seam.wall_low)
    return None


def _next_wild(calendar: Calendar, zone: tzinfo, wall: int, after: int, fold: Seam | None) -> int | None:
    found = calendar.next_wall(wall)
    if fold is not None:
        in_first_pass = after < fold.at
        if found is not None and found < fold.wall_high:
            return found - (fold.before if in_first_pass else fold.after)
        if in_first_pass:
            again = calendar.next_wall(fold.wall_low - 1)
            if again is not None and again < fold.wall_high:
                return again - fold.after
    while found is not None:
        seam = _seam(found, zone)
        if not isinstance(seam, Seam):
            return found - seam
        if not seam.is_gap:
            return found - seam.before
        found = calendar.next_wall(seam.wall_high - 1)
    return None


def _prev_wild(calendar: Calendar, zone: tzinfo, wall: int, before: int, fold: Seam | None) -> int | None:
    found = calendar.prev_wall(wall)
    if fold is not None:
        in_first_pass = before < fold.at
        if found is not None and found >= fold.wall_low:
            return found - (fold.before if in_first_pass else fold.after)
        if not in_first_pass:
            earlier = calendar.prev_wall(fold.wall_high)
            if earlier is not None and earlier >= fold.wall_low:
                return earlier - fold.before
    while found is not None:
        seam = _seam(found, zone)
        if not isinstance(seam, Seam):
            return found - seam
        if not seam.is_gap:
            return found - seam.after
        found = calendar.prev_wall(seam.wall_low)
    return None


def _seam(wall: int, zone: tzinfo) -> Seam | int:
    """The offset of a wall time that occurs once, or the clock change around one that does not."""
    naive = _EPOCH_WALL + timedelta(seconds=wall)
    before = _seconds(zone.utcoffset(naive))
    after = _seconds(zone.utcoffset(naive.replace(fold=1)))
    if before == after:
        return before
    low, high = sorted((wall - before, wall - after))
    return Seam(_change(low, high, before, zone), before, after)


def _change(low: int, high: int, old: int, zone: tzinfo) -> int:
    """The first instant in (low, high] whose offset is no longer ``old``."""
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(middle, zone) == old:
            low = middle
        else:
            high = middle
    return high


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset.days * 86_400 + offset.seconds
