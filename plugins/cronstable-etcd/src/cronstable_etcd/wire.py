"""etcd's v3 JSON: what a transaction looks like on the way out and on the way back.

The gateway writes 64-bit numbers as strings and bytes in base64, and leaves out whatever is zero, false or empty.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cronstable.api import Json

Operation: TypeAlias = Mapping[str, Json]
"""One element of ``success`` or ``failure``."""

Comparison: TypeAlias = Mapping[str, Json]


class Malformed(Exception):
    """This is no answer of etcd."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it stands. ``lease``: 0 when it hangs on none. ``create``, ``mod``: revisions, never 0."""

    key: bytes
    value: bytes
    create: int
    mod: int
    lease: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A transaction's outcome: at which revision, and what each range found, in order.

    ``counts``: how many keys each range has, whatever its limit. ``at``: the clock of the member that answered, wall
    seconds, None when it did not say.
    """

    succeeded: bool
    revision: int
    found: tuple[tuple[KeyValue, ...], ...]
    counts: tuple[int, ...] = ()
    at: float | None = None


class Transact(Protocol):
    """Carries out a transaction. Raises ``StoreUnavailable`` only."""

    async def __call__(
        self,
        compare: Sequence[Comparison],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> Answer: ...


def absent(key: bytes) -> Comparison:
    """True when ``key`` does not exist."""
    return created(key, 0)


def created(key: bytes, revision: int) -> Comparison:
    """True when ``key`` was created at ``revision``; 0: when it does not exist."""
    return {"target": "CREATE", "result": "EQUAL", "key": b64(key), "create_revision": str(revision)}


def modified(key: bytes, revision: int) -> Comparison:
    """True when ``key`` was last written at ``revision``; 0: when it does not exist."""
    return {"target": "MOD", "result": "EQUAL", "key": b64(key), "mod_revision": str(revision)}


def leased(key: bytes, lease: int) -> Comparison:
    """True when ``key`` hangs on ``lease``; 0: when it hangs on none."""
    return {"target": "LEASE", "result": "EQUAL", "key": b64(key), "lease": str(lease)}


def put(key: bytes, value: bytes, lease: int = 0) -> Operation:
    """Write ``key``, hanging on ``lease``."""
    return {"request_put": {"key": b64(key), "value": b64(value), "lease": str(lease)}}


def get(key: bytes) -> Operation:
    """Read ``key``."""
    return {"request_range": {"key": b64(key)}}


def names(prefix: bytes) -> Operation:
    """All keys that begin with ``prefix``, without their values, oldest first."""
    order = {"sort_order": "ASCEND", "sort_target": "CREATE"}
    return {"request_range": {"key": b64(prefix), "range_end": b64(after(prefix)), "keys_only": True, **order}}


def scan(start: bytes, end: bytes, *, limit: int = 0, bare: bool = False, newest_first: bool = False) -> Operation:
    """Keys from ``start`` to before ``end`` in their order. ``limit`` 0: all; ``bare``: without their values."""
    request: dict[str, Json] = {"key": b64(start), "range_end": b64(end), "limit": str(limit), "keys_only": bare}
    if newest_first:
        request |= {"sort_order": "DESCEND", "sort_target": "KEY"}
    return {"request_range": request}


def count(start: bytes, end: bytes) -> Operation:
    """How many keys there are from ``start`` to before ``end``."""
    return {"request_range": {"key": b64(start), "range_end": b64(end), "count_only": True}}


def delete(key: bytes) -> Operation:
    """Remove ``key``."""
    return {"request_delete_range": {"key": b64(key)}}


def delete_all(start: bytes, end: bytes) -> Operation:
    """Remove all keys from ``start`` to before ``end``."""
    return {"request_delete_range": {"key": b64(start), "range_end": b64(end)}}


def transaction(
    compare: Sequence[Comparison], success: Sequence[Operation], failure: Sequence[Operation] = ()
) -> dict[str, Json]:
    """The body of ``/v3/kv/txn``."""
    return {"compare": _plain(compare), "success": _plain(success), "failure": _plain(failure)}


def answer(body: Mapping[str, Json], at: float | None = None) -> Answer:
    """Read the answer to a transaction, given at ``at``. Raises ``Malformed``."""
    found: list[tuple[KeyValue, ...]] = []
    counts: list[int] = []
    for response in _items(body.get("responses")):
        ranged = response.get("response_range")
        if isinstance(ranged, Mapping):
            found.append(tuple(_key_value(kv) for kv in _items(ranged.get("kvs"))))
            counts.append(number(ranged.get("count")))
    return Answer(body.get("succeeded") is True, revision(body), tuple(found), tuple(counts), at)


def revision(body: Mapping[str, Json]) -> int:
    """The store's revision in an answer's header. Raises ``Malformed``: a proxy's page has none."""
    header = body.get("header")
    if not isinstance(header, Mapping):
        raise Malformed("the answer has no header")
    return number(header.get("revision"))


def number(value: Json) -> int:
    """A 64-bit number; one that is missing is 0. Raises ``Malformed``."""
    try:
        return int(value) if isinstance(value, str | int) else _zero(value)
    except ValueError:
        raise Malformed(f"{value!r:.60} is not a number") from None


def document(data: bytes) -> Mapping[str, Json]:
    """A JSON object. Raises ``Malformed``."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("the answer is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("the answer is not a JSON object")
    return value


def b64(data: bytes) -> str:
    """Bytes as JSON text."""
    return base64.b64encode(data).decode("ascii")


def after(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``, which ends in a byte below 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _zero(value: Json) -> int:
    if value is None:
        return 0
    raise Malformed(f"{value!r:.60} is not a number")


def _key_value(kv: Mapping[str, Json]) -> KeyValue:
    return KeyValue(
        key=_bytes(kv.get("key")),
        value=_bytes(kv.get("value")),
        create=number(kv.get("create_revision")),
        mod=number(kv.get("mod_revision")),
        lease=number(kv.get("lease")),
    )


def _bytes(value: Json) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "", validate=True)
    except ValueError:
        raise Malformed("a key or value is not base64") from None


def _items(value: Json) -> list[Mapping[str, Json]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Malformed("a list of objects was expected")
    return [item for item in value if isinstance(item, dict)]


def _plain(entries: Sequence[Mapping[str, Json]]) -> list[Json]:
    return [dict(entry) for entry in entries]
