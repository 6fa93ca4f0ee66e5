"""The claim log: one key per record, named by its number, created by one transaction and never written again.

Each transaction compares the term as well, so that a term that is over writes nothing (claims.md 1). How far the log
was trimmed stands beside it, and an append compares that it has not moved: a number that is gone is not free again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cronstable.api import Appended, Fenced, Span, StoreUnavailable, Taken, Won, may_be_record
from cronstable_etcd import wire
from cronstable_etcd.record import Bond, Keys
from cronstable_etcd.wire import KeyValue, Transact

DIGITS: Final = 12

TRIM: Final = 1000
"""Records removed by one trim."""

AHEAD: Final = 64
"""Records read at once: a new term reads them all, one number after the other, while nobody starts anything."""

STRAYS: Final = 20
"""Keys among the records that are put aside before somebody has to clean up."""

TRIES: Final = 3
"""Transactions in one call: only a trim of an earlier term can come between."""


class ClaimShelf:
    """The records of one election. All methods raise ``StoreUnavailable``. ``warn``: an operator should read this.

    A key among the records whose name no record has is put aside when its value can be no record either, by any
    version. If it may be one, of a newer version or moved by hand, nobody may claim past it.
    """

    def __init__(self, keys: Keys, transact: Transact, warn: Callable[[str], None]) -> None:
        self._keys = keys
        self._transact = transact
        self._warn = warn
        self._aside: set[bytes] = set()
        self._low = (0, 0)
        """Mod revision of the low mark as it was seen last, and the lowest number that was not trimmed away."""
        self._ahead: dict[int, bytes] = {}

    async def append(self, bond: Bond, number: int, data: bytes) -> Appended:
        """Create record ``number`` while the term of ``bond`` holds."""
        keys, key = self._keys, self._key(number)
        for _ in range(TRIES):
            if number < self._low[1] and number < await self._look_low():
                return Taken(b"")
            answer = await self._transact(
                (wire.absent(key), *bond.holds(keys), wire.modified(keys.low, self._low[0])),
                (wire.put(key, data),),
                (wire.get(key), wire.get(keys.low), wire.get(keys.leader)),
            )
            if answer.succeeded:
                return Won(answer.at)
            there, low, leader = map(_only, answer.found)
            self._note_low(low)
            if not bond.is_of(leader):
                return Fenced()
            if there is not None:
                return Taken(there.value)
        raise self._restless()

    async def read(self, number: int) -> bytes | None:
        """Record ``number``. Records do not change: those behind it are read along, for when they are asked for."""
        found = self._ahead.pop(number, None)
        if found is not None:
            return found
        answer = await self._transact((), (wire.scan(self._key(number), self._key(number + AHEAD)),))
        self._ahead = {}
        for record in answer.found[0]:
            found_number = self._number(record.key)
            if found_number is None:
                self._put_aside(record)
            else:
                self._ahead[found_number] = record.value
        return self._ahead.pop(number, None)

    async def span(self) -> Span:
        """Where the log begins and ends, at one revision."""
        self._ahead = {}
        # What begins with no digit is somebody's note, and no record.
        start, end = self._keys.log + b"0", self._keys.log + b":"
        for _ in range(STRAYS):
            answer = await self._transact(
                (),
                (
                    wire.scan(start, end, limit=1, bare=True),
                    wire.scan(start, end, limit=1, bare=True, newest_first=True),
                    wire.get(self._keys.low),
                ),
            )
            first, last, low = map(_only, answer.found)
            self._note_low(low)
            lowest = self._low[1]
            if first is None or last is None:
                # A log of which nothing is left but how far it was trimmed: the next number is not free to choose.
                return Span(lowest, max(0, lowest - 1), answer.at)
            begins, ends = self._number(first.key), self._number(last.key)
            if begins is not None and ends is not None:
                # Keys that were copied back are older than the mark, and numbers below it are not free either.
                return Span(max(lowest, begins), max(lowest - 1, ends), answer.at)
            if ends is None:
                await self._look_at(last.key)
                end = last.key
            else:
                await self._look_at(first.key)
                start = first.key + b"\0"
        raise StoreUnavailable(f"too many keys below {_shown(self._keys.log)} are no records: delete them")

    async def trim(self, bond: Bond, first: int) -> None:
        """Remove records below ``first``, the oldest first and some at a time, while the term of ``bond`` holds."""
        keys = self._keys
        for _ in range(TRIES):
            mod, low = self._low
            upto = min(first, max(low, 1) + TRIM)
            if upto <= low:
                return
            answer = await self._transact(
                (*bond.holds(keys), wire.modified(keys.low, mod)),
                (wire.put(keys.low, b"%d" % upto), wire.delete_all(self._key(0), self._key(upto))),
                (wire.get(keys.low), wire.get(keys.leader)),
            )
            if answer.succeeded:
                self._low = answer.revision, upto
                return
            found, leader = map(_only, answer.found)
            self._note_low(found)
            if not bond.is_of(leader):
                return
        raise self._restless()

    # -- keys

    def _key(self, number: int) -> bytes:
        return self._keys.log + b"%0*d" % (DIGITS, number)

    def _number(self, key: bytes) -> int | None:
        digits = key.removeprefix(self._keys.log)
        return int(digits) if len(digits) == DIGITS and digits.isdigit() else None

    async def _look_at(self, key: bytes) -> None:
        (found,) = (await self._transact((), (wire.get(key),))).found
        for stray in found:
            self._put_aside(stray)

    def _put_aside(self, stray: KeyValue) -> None:
        """Go on without it, unless it may be a record."""
        if may_be_record(stray.value):
            raise StoreUnavailable(
                f"{_shown(stray.key)} may be a record of the claim log, but no version that this one knows has such a "
                "name: update this node if others run a newer version, else delete the key"
            )
        if stray.key not in self._aside and len(self._aside) < STRAYS:
            self._aside.add(stray.key)
            self._warn(f"{_shown(stray.key)} is no record of the claim log and is left aside: delete the key")

    async def _look_low(self) -> int:
        (found,) = (await self._transact((), (wire.get(self._keys.low),))).found
        self._note_low(_only(found))
        return self._low[1]

    def _note_low(self, found: KeyValue | None) -> None:
        if found is None:
            self._low = (0, 0)
        elif not found.value.isdigit():
            raise StoreUnavailable(
                f"{_shown(self._keys.low)} is damaged: put the number of the lowest record below "
                f"{_shown(self._keys.log)} there"
            )
        else:
            self._low = found.mod, int(found.value)

    def _restless(self) -> StoreUnavailable:
        return StoreUnavailable(f"{_shown(self._keys.low)} keeps changing, and not by us")


def _only(found: Sequence[KeyValue]) -> KeyValue | None:
    return found[0] if found else None


def _shown(key: bytes) -> str:
    return f"the etcd key {key.decode('utf-8', 'replace')}"
