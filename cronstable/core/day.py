"""What ended in the last 24 hours of one job: how many of each outcome in each quarter of an hour, and since when.

Rows are few and skips push them out; this is as small as it is complete: fourteen bytes for each quarter in which
anything ended, ninety-six quarters at most. Where knowledge begins is part of it, because a quarter in which nothing
is known to have ended looks like one in which nothing did.

Quarters are of the wall clock, which may step. A step forward leaves a gap, in which nothing ended. After a step back
what was counted ahead of the clock counts into the quarter that it stands in: nothing is lost, and nothing stands in
the future.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from cronstable.core.clock import Instant, Seconds
from cronstable.core.runs import Outcome, RunRecord
from cronstable.core.values import dataclass, replace

QUARTER: Final = 900
"""Seconds."""
QUARTERS: Final = 96
"""Of 24 hours, the one under way among them."""
COUNTED: Final = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.CANCELLED, Outcome.UNKNOWN, Outcome.SKIPPED)
"""The order in which the counts of a quarter stand."""

_PLACE: Final = {outcome: place for place, outcome in enumerate(COUNTED)}
_ROW: Final = struct.Struct("<i5H")
_AT: Final = struct.Struct("<i")
_COUNT: Final = struct.Struct("<H")
_MOST: Final = 0xFFFF
_NEVER: Final = -(1 << 31)
_STEP: Final[Seconds] = 1.0
"""By how much the two clocks must have moved apart to be called a step: they are not read at quite the same time."""

Counts = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Day:
    """``begun``: from then on everything was counted. ``recalled``: wall seconds of the first row of before that was
    counted too, None without one. ``dropped``: the quarter before which some had to be given up. ``packed``: the
    quarters in which anything ended, oldest first.
    """

    QUARTER: ClassVar[int] = QUARTER
    COUNTED: ClassVar[tuple[Outcome, ...]] = COUNTED

    begun: Instant
    recalled: float | None = None
    dropped: int = _NEVER
    packed: bytes = b""

    def counting(self, record: RunRecord, now: Instant) -> Day:
        """With a row that was just written; ``now`` may be later than its end."""
        current = quarter(now.wall)
        at = min(quarter(record.finished_at), current)
        end = len(self.packed) - _ROW.size
        last = _AT.unpack_from(self.packed, end)[0] if self.packed else _NEVER
        if last < at or not self.packed:
            return self._kept(self.packed + _ROW.pack(at, *_one(record.outcome)), self.dropped)
        if last == at:
            place = end + _AT.size + _COUNT.size * _PLACE[record.outcome]
            count = _COUNT.pack(min(_MOST, _COUNT.unpack_from(self.packed, place)[0] + 1))
            packed = self.packed[:place] + count + self.packed[place + _COUNT.size :]
            return Day(self.begun, self.recalled, self.dropped, packed)
        found = dict(self._folded(current))
        found[at] = _sum(found.get(at, _NONE), _one(record.outcome))
        return self._kept(_pack(found), min(self.dropped, current + 1))

    def recalling(self, rows: Iterable[RunRecord], now: Instant) -> Day:
        """With rows of before ``begun``, each once; those that were counted by then must not be among them."""
        current, begins = quarter(now.wall), self.since(now)
        before = [row for row in rows if row.finished_at < begins]
        if self.recalled is not None or not before:
            return self
        found = dict(self._folded(current))
        for row in before:
            at = quarter(row.finished_at)
            if at > current - QUARTERS:
                found[at] = _sum(found.get(at, _NONE), _one(row.outcome))
        day = replace(self, recalled=max(0.0, min(row.finished_at for row in before)))
        return day._kept(_pack(found), min(day.dropped, current + 1))

    def quarters(self, wall: float) -> Iterator[tuple[int, Counts]]:
        """Of the 24 hours that end with the quarter of ``wall``: those in which anything ended, oldest first.

        Each with its beginning in wall seconds, and counts in the order of ``COUNTED``.
        """
        current = quarter(wall)
        for at, counts in self._folded(current):
            if at > current - QUARTERS:
                yield at * QUARTER, counts

    def since(self, now: Instant) -> float:
        """Wall seconds since when everything that ended is counted, by the clock as it stands; never after ``now``."""
        ago = now.wall - (now.boot - self.begun.boot)
        begins = ago if ago < self.begun.wall - _STEP else self.begun.wall
        if self.recalled is not None:
            begins = min(begins, self.recalled)
        return min(now.wall, max(begins, float(self.dropped * QUARTER)))

    def _folded(self, current: int) -> Iterator[tuple[int, Counts]]:
        ahead: Counts | None = None
        for at, a, b, c, d, e in _ROW.iter_unpack(self.packed):
            if at < current:
                yield at, (a, b, c, d, e)
            else:
                ahead = _sum(ahead or _NONE, (a, b, c, d, e))
        if ahead is not None:
            yield current, ahead

    def _kept(self, packed: bytes, dropped: int) -> Day:
        surplus = len(packed) - QUARTERS * _ROW.size
        if surplus > 0:
            # The clock stands in the newest of 96 quarters or after it, so that this one is over for 24 hours.
            (gone,) = _AT.unpack_from(packed, surplus - _ROW.size)
            packed, dropped = packed[surplus:], max(dropped, gone + 1)
        return replace(self, packed=packed, dropped=dropped)


_NONE: Final[Counts] = (0, 0, 0, 0, 0)


def quarter(wall: float) -> int:
    """Which quarter of an hour since the epoch ``wall`` falls into; the first and the last for what no row can hold."""
    return int(max(_NEVER, min(wall // QUARTER, -_NEVER - 1)))


def _one(outcome: Outcome) -> Counts:
    place = _PLACE[outcome]
    return (place == 0, place == 1, place == 2, place == 3, place == 4)


def _sum(one: Iterable[int], two: Iterable[int]) -> Counts:
    a, b, c, d, e = (min(_MOST, x + y) for x, y in zip(one, two, strict=True))
    return a, b, c, d, e


def _pack(found: dict[int, Counts]) -> bytes:
    return b"".join(_ROW.pack(at, *found[at]) for at in sorted(found))
