"""The state store ``etcd``: streams, documents and leases below one prefix (ADR 0032)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from cronstable.api import (
    Damage,
    Document,
    Host,
    LeaseStore,
    PluginError,
    Seconds,
    StoredRecord,
    StoreInfo,
    StoreUnavailable,
    Topology,
)
from cronstable_etcd import wire
from cronstable_etcd.client import Client
from cronstable_etcd.gateway import Credentials, Gateway
from cronstable_etcd.inspect import Inspector
from cronstable_etcd.layout import DIGITS, Layout, decoded, encoded, name_of, number_of, shown
from cronstable_etcd.lease import EtcdLeaseStore
from cronstable_etcd.settings import StateSettings
from cronstable_etcd.tls import Tls
from cronstable_etcd.wire import Comparison, KeyValue

WHERE: Final = "state.etcd"

POST_TIMEOUT: Final[Seconds] = 3.0
"""For one request to one member; the host waits 10 s for an answer, so that three members can be asked."""

LEASE_TTL: Final[Seconds] = 30.0
"""Stands in for the one that a foreign holder did not store."""

LARGEST: Final = 1 << 20
"""Bytes of one record or document; etcd takes 1.5 MiB in a request unless it was told otherwise."""

NONCE: Final = 12
VERSION: Final = b'{"schemaVersion": "v1"}'

TRIES: Final = 50
"""Transactions in one append: each that fails means that another process has added a record."""

NAMES_AT_ONCE: Final = 1000
"""Keys listed or removed in one request."""

FEW: Final = 8
PIECE: Final = 1 << 20
"""Records are read in pieces: so many at first, then as many as make up about so many bytes."""

REMEMBERED: Final = 20_000
"""Streams whose end this process remembers; to forget one costs a request."""

KEPT_ASIDE: Final = 256


def make(settings: object, host: Host) -> EtcdStateStore:
    """The factory of the descriptor. Touches neither files nor the network."""
    if not isinstance(settings, StateSettings):
        raise PluginError(f"cronstable-etcd: {WHERE} was not parsed by this plugin: {type(settings).__name__}")
    tls = Tls(settings.tls, host, WHERE)
    credentials = None
    if settings.username is not None and settings.password is not None:
        credentials = Credentials(settings.username, settings.password)
    gateway = Gateway(
        host,
        settings.endpoints,
        post_timeout=POST_TIMEOUT,
        tls=tls,
        credentials=credentials,
        where=WHERE,
        watch_files=True,
    )
    return EtcdStateStore(host, gateway, tls, settings.prefix, ", ".join(settings.endpoints))


@dataclass(frozen=True, slots=True)
class _End:
    """A stream's end. ``mod``: revision of what says so, 0 when there is no stream: then ``dropped`` counts too."""

    mod: int
    last: int
    dropped: int = 0


class EtcdStateStore:
    """Implements ``StateStore`` and ``Inspectable``. ``location``: the members, for people.

    A stream has a key that says where it ends, and its records carry numbers; both are written in one transaction, so
    a number is given once and nobody reads a record before one with a lower number. What is written begins with a
    nonce: a request that was sent twice is told from one of somebody else.
    """

    def __init__(self, host: Host, gateway: Gateway, tls: Tls, prefix: str, location: str) -> None:
        self._host = host
        self._gateway = gateway
        self._tls = tls
        self._prefix = prefix
        self._location = location
        self._client = Client(host, gateway)
        self._layout = Layout.of(prefix)
        self._ends: dict[str, _End] = {}

    async def open(self) -> StoreInfo:
        """See ``StateStore.open``."""
        try:
            await self._tls.load()
        except PluginError as error:
            raise StoreUnavailable(str(error)) from None
        answer = await self._client.transact(
            (wire.absent(self._layout.meta),), (wire.put(self._layout.meta, VERSION),), (wire.get(self._layout.meta),)
        )
        if not answer.succeeded:
            there = _only(answer.found[0])
            if there is None or there.value != VERSION:
                raise StoreUnavailable(f"{shown(self._layout.meta)} is not of this version: {_value_of(there)!r:.60}")
        self._ends.clear()
        return StoreInfo("etcd", Topology.SHARED, f"{self._location} below {self._prefix}")

    async def aclose(self) -> None:
        """See ``StateStore.aclose``. The connections are the host's."""

    # -- streams

    async def append(self, stream: str, data: bytes) -> str:
        """See ``StateStore.append``. One request while nobody else appends to the stream."""
        nonce, end = self._nonce(), self._ends.get(stream)
        value, marker = _sized(stream, nonce + data), self._layout.end_of(stream)
        if end is None:
            answer = await self._client.transact((), (wire.get(marker), wire.get(self._layout.dropped)))
            end = _end(answer.found)
        for _ in range(TRIES):
            number = end.last + 1
            key = self._layout.record(stream, name_of(number))
            answer = await self._client.transact(
                (*self._ends_so(marker, end), wire.absent(key)),
                (wire.put(marker, b"%d" % number), wire.put(key, value)),
                (wire.get(marker), wire.get(self._layout.dropped), wire.get(key)),
            )
            if answer.succeeded:
                self._remember(stream, _End(answer.revision, number))
                return name_of(number)
            before, end = end, _end(answer.found)
            there = _only(answer.found[2])
            if there is not None and there.value.startswith(nonce):
                # It had landed, and only the answer was lost.
                self._remember(stream, end)
                return name_of(number)
            if there is not None and before == end:
                raise StoreUnavailable(f"{shown(marker)} is damaged: the stream has records behind {end.last}")
        raise StoreUnavailable(f"{shown(marker)} changes faster than one can append")

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        """See ``StateStore.read``. A limit is served from the end: what is not wanted is not read."""
        start, stop = self._layout.records_of(stream)
        if after:
            start = self._layout.record(stream, after + "\0")
        if limit is None:
            return [record async for record in self._records(start, stop)]
        if limit <= 0:
            return []
        answer = await self._client.transact((), (wire.get(self._layout.end_of(stream)),))
        last = _number(_only(answer.found[0]))
        newest = max(start, self._layout.record(stream, name_of(max(0, last - limit + 1))))
        found = [record async for record in self._records(newest, stop)]
        if len(found) < limit and newest > start:
            # Records were put aside, so the newest ones reach further back.
            found = [record async for record in self._records(start, stop)]
        return found[-limit:]

    async def _records(self, start: bytes, stop: bytes) -> AsyncIterator[StoredRecord]:
        count = FEW
        while True:
            answer = await self._client.transact((), (wire.scan(start, stop, limit=count),))
            found = answer.found[0]
            for record in found:
                yield StoredRecord(record.key[-DIGITS:].decode("utf-8", "replace"), _data(record.value))
            if len(found) < count:
                return
            start = found[-1].key + b"\0"
            size = sum(len(record.value) for record in found)
            count = max(1, min(NAMES_AT_ONCE, count * PIECE // max(1, size)))

    async def trim(self, stream: str, keep: int) -> None:
        """See ``StateStore.trim``."""
        first, stop = self._layout.records_of(stream)
        at_once = 1
        while True:
            # Counted and listed at one revision: what is surplus then is so for ever.
            answer = await self._client.transact(
                (), (wire.count(first, stop), wire.scan(first, stop, limit=at_once, bare=True))
            )
            surplus = answer.counts[0] - max(keep, 0)
            if at_once == 1 and surplus > 1:
                # Most often there is nothing to drop: a thousand names are asked for only where there is.
                at_once = min(NAMES_AT_ONCE, surplus)
                continue
            keys = [record.key for record in answer.found[1]][: max(0, surplus)]
            if surplus <= len(keys) and keep <= 0:
                await self._drop(stream)
                return
            if not keys:
                return
            await self._client.transact((), (wire.delete_all(first, keys[-1] + b"\0"),))
            if surplus <= len(keys):
                return

    async def _drop(self, stream: str) -> None:
        """Remove a stream with what is left in it; its numbers are not given again."""
        marker, records = self._layout.end_of(stream), self._layout.records_of(stream)
        self._ends.pop(stream, None)
        for _ in range(TRIES):
            answer = await self._client.transact((), (wire.get(marker), wire.get(self._layout.dropped)))
            there, dropped = map(_only, answer.found)
            if there is None:
                return
            highest = max(_number(there), _number(dropped))
            answer = await self._client.transact(
                (wire.modified(marker, there.mod), wire.modified(self._layout.dropped, _mod(dropped))),
                (
                    wire.put(self._layout.dropped, b"%d" % highest),
                    wire.delete(marker),
                    wire.delete_all(*records),
                ),
            )
            if answer.succeeded:
                return
        raise StoreUnavailable(f"{shown(marker)} changes faster than one can remove it")

    async def put_aside(self, stream: str, name: str) -> None:
        """See ``StateStore.put_aside``. The newest 256 of a store are kept, below ``aside``."""
        if len(name) != DIGITS or not name.isdigit():
            return
        key = self._layout.record(stream, name)
        answer = await self._client.transact((), (wire.get(key),))
        there = _only(answer.found[0])
        if there is None:
            return
        aside = self._layout.aside + key.removeprefix(self._layout.records)
        await self._client.transact((wire.modified(key, there.mod),), (wire.put(aside, there.value), wire.delete(key)))
        answer = await self._client.transact(
            (), (wire.count(*self._layout.records_of(stream)), wire.names(self._layout.aside))
        )
        if not answer.counts[0]:
            await self._drop(stream)
        old = [record.key for record in answer.found[1]][:-KEPT_ASIDE]
        if old:
            await self._client.transact((), [wire.delete(key) for key in old[:100]])

    async def streams(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.streams``. The records are not touched: a stream has one key that says that it is there."""
        return await self._names(self._layout.streams, prefix)

    # -- documents

    async def get(self, document: str) -> Document | None:
        """See ``StateStore.get``."""
        answer = await self._client.transact((), (wire.get(self._layout.document(document)),))
        there = _only(answer.found[0])
        return None if there is None else Document(_data(there.value), str(there.mod))

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        """See ``StateStore.put``. The version is etcd's mod revision."""
        key, nonce = self._layout.document(document), self._nonce()
        value = _sized(document, nonce + data)
        stands = wire.absent(key) if expect is None else _is_version(key, expect)
        if stands is None:
            return None
        answer = await self._client.transact((stands,), (wire.put(key, value),), (wire.get(key),))
        if answer.succeeded:
            return Document(data, str(answer.revision))
        there = _only(answer.found[0])
        if there is not None and there.value.startswith(nonce):
            return Document(data, str(there.mod))
        return None

    async def delete(self, document: str, expect: str) -> bool:
        """See ``StateStore.delete``. False too when a first request had removed it and its answer was lost."""
        key = self._layout.document(document)
        stands = _is_version(key, expect)
        return stands is not None and (await self._client.transact((stands,), (wire.delete(key),))).succeeded

    async def documents(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.documents``."""
        return await self._names(self._layout.documents, prefix)

    def lease(self, name: str) -> LeaseStore:
        """See ``StateStore.lease``."""
        return EtcdLeaseStore(self._host, self._gateway, self._layout.lease(name), ttl=LEASE_TTL)

    def inspect(self, *, repair: bool) -> AsyncIterator[Damage]:
        """See ``Inspectable.inspect``."""
        return Inspector(self._client, self._layout, repair=repair).run()

    # -- keys

    def _ends_so(self, marker: bytes, end: _End) -> tuple[Comparison, ...]:
        """True while the stream ends there. One that is new begins above what any dropped one had."""
        there = wire.modified(marker, end.mod)
        return (there,) if end.mod else (there, wire.modified(self._layout.dropped, end.dropped))

    async def _names(self, below: bytes, prefix: str) -> Sequence[str]:
        start = below + encoded(prefix)
        stop = wire.after(start)
        names: list[str] = []
        while True:
            answer = await self._client.transact((), (wire.scan(start, stop, limit=NAMES_AT_ONCE, bare=True),))
            found = answer.found[0]
            # What somebody else put there is none of ours; ``inspect`` names it.
            names += [name for one in found if (name := decoded(one.key.removeprefix(below))) is not None]
            if len(found) < NAMES_AT_ONCE:
                return sorted(names)
            start = found[-1].key + b"\0"

    def _nonce(self) -> bytes:
        return self._host.ids.token(NONCE // 2).encode("ascii") + b" "

    def _remember(self, stream: str, end: _End) -> None:
        if len(self._ends) >= REMEMBERED:
            self._ends.clear()
        self._ends[stream] = end


def _end(found: Sequence[Sequence[KeyValue]]) -> _End:
    """From what stands at a stream's end and at ``dropped``."""
    marker, dropped = _only(found[0]), _only(found[1])
    if marker is None:
        return _End(0, _number(dropped), _mod(dropped))
    return _End(marker.mod, _number(marker))


def _number(found: KeyValue | None) -> int:
    if found is None:
        return 0
    number = number_of(found)
    if number is None:
        raise StoreUnavailable(f"{shown(found.key)} is damaged: it must be a number, not {found.value!r:.60}")
    return number


def _mod(found: KeyValue | None) -> int:
    return 0 if found is None else found.mod


def _only(found: Sequence[KeyValue]) -> KeyValue | None:
    return found[0] if found else None


def _value_of(found: KeyValue | None) -> bytes:
    return b"" if found is None else found.value


def _data(value: bytes) -> bytes:
    """What was written, without the nonce; as it is when somebody else put it there."""
    return value[NONCE + 1 :] if value[NONCE : NONCE + 1] == b" " else value


def _sized(name: str, value: bytes) -> bytes:
    if len(value) > LARGEST + NONCE + 1:
        raise StoreUnavailable(f"{name}: {len(value) - NONCE - 1} bytes are more than the {LARGEST} that a store keeps")
    return value


def _is_version(key: bytes, version: str) -> Comparison | None:
    """True while ``key`` stands in ``version``; None for what no version can be."""
    usable = version.isascii() and version.isdigit() and len(version) < 19 and int(version) > 0
    return wire.modified(key, int(version)) if usable else None
