"""Looking over a state store in etcd for what operators, restores and copies leave behind: keys that do not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from cronstable.api import Damage
from cronstable_etcd import wire
from cronstable_etcd.client import Client
from cronstable_etcd.layout import DIGITS, Layout, decoded, name_of, number_of, shown
from cronstable_etcd.wire import KeyValue

AT_ONCE: Final = 1000


@dataclass(slots=True)
class _Found:
    """A stream as its records tell it."""

    name: bytes
    highest: int


class Inspector:
    """One look at one store. Raises ``StoreUnavailable``."""

    def __init__(self, client: Client, layout: Layout, *, repair: bool) -> None:
        self._client = client
        self._layout = layout
        self._repair = repair

    async def run(self) -> AsyncIterator[Damage]:
        """Everything that is wrong. Names alone are read, and the numbers of the streams."""
        dropped = await self._one(self._layout.dropped)
        if dropped is not None and number_of(dropped) is None:
            # How high it was nobody knows; any number that is in use is a bound for those that are.
            yield await self._rewritten(dropped, await self._highest_of_all(), "is no number")
        below = self._layout.documents
        async for key in self._keys(below):
            if not _is_name(key.removeprefix(below)):
                yield self._foreign(key)
        async for damage in self._streams():
            yield damage

    async def _streams(self) -> AsyncIterator[Damage]:
        with_records: set[bytes] = set()
        async for one in self._streams_with_records():
            if isinstance(one, Damage):
                yield one
                continue
            with_records.add(one.name)
            marker = self._layout.streams + one.name
            end = await self._one(marker)
            if end is None:
                yield await self._made(marker, one)
            elif (number_of(end) or 0) < one.highest:
                yield await self._rewritten(end, one.highest, f"ends before its record {name_of(one.highest)}")
        async for key in self._keys(self._layout.streams):
            name = key.removeprefix(self._layout.streams)
            if not _is_name(name):
                yield self._foreign(key)
            elif name not in with_records:
                end = await self._one(key)
                if end is not None:
                    yield await self._removed(end)

    async def _streams_with_records(self) -> AsyncIterator[_Found | Damage]:
        below = self._layout.records
        found: _Found | None = None
        async for key in self._keys(below):
            name, _, digits = key.removeprefix(below).rpartition(b"/")
            if not _is_name(name) or len(digits) != DIGITS or not digits.isdigit():
                yield self._foreign(key)
                continue
            if found is not None and found.name != name:
                yield found
                found = None
            found = _Found(name, int(digits))
        if found is not None:
            yield found

    async def _highest_of_all(self) -> int:
        highest = 0
        async for one in self._streams_with_records():
            if isinstance(one, _Found):
                highest = max(highest, one.highest)
        return highest

    # -- what is done about it

    async def _made(self, marker: bytes, stream: _Found) -> Damage:
        what = f"stream {decoded(stream.name)}"
        detail = f"has records, and {shown(marker)} is missing"
        if not self._repair:
            return Damage(what, detail)
        answer = await self._client.transact((wire.absent(marker),), (wire.put(marker, b"%d" % stream.highest),))
        return Damage(what, detail, repaired=answer.succeeded)

    async def _rewritten(self, found: KeyValue, number: int, detail: str) -> Damage:
        if not self._repair:
            return Damage(shown(found.key), detail)
        stands = (wire.modified(found.key, found.mod),)
        answer = await self._client.transact(stands, (wire.put(found.key, b"%d" % number),))
        return Damage(shown(found.key), detail, repaired=answer.succeeded)

    async def _removed(self, end: KeyValue) -> Damage:
        what = f"stream {decoded(end.key.removeprefix(self._layout.streams))}"
        detail = f"{shown(end.key)} names a stream that has no records"
        if not self._repair:
            return Damage(what, detail)
        dropped = await self._one(self._layout.dropped)
        stands = (
            wire.modified(end.key, end.mod),
            wire.modified(self._layout.dropped, 0 if dropped is None else dropped.mod),
        )
        highest = max(number_of(end) or 0, 0 if dropped is None else number_of(dropped) or 0)
        answer = await self._client.transact(
            stands, (wire.delete(end.key), wire.put(self._layout.dropped, b"%d" % highest))
        )
        return Damage(what, detail, repaired=answer.succeeded)

    def _foreign(self, key: bytes) -> Damage:
        """Not ours: nobody reads it, and nobody but its owner may remove it."""
        return Damage(shown(key), "is no key of this store")

    # -- reading

    async def _keys(self, below: bytes) -> AsyncIterator[bytes]:
        start, stop = below, wire.after(below)
        while True:
            answer = await self._client.transact((), (wire.scan(start, stop, limit=AT_ONCE, bare=True),))
            for found in answer.found[0]:
                yield found.key
            if len(answer.found[0]) < AT_ONCE:
                return
            start = answer.found[0][-1].key + b"\0"

    async def _one(self, key: bytes) -> KeyValue | None:
        answer = await self._client.transact((), (wire.get(key),))
        return answer.found[0][0] if answer.found[0] else None


def _is_name(encoded_name: bytes) -> bool:
    return decoded(encoded_name) is not None and encoded_name != b""
