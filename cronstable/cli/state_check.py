"""What ``cronstable state check`` looks at: the store's own look over itself, every envelope, and the fences."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Final

from cronstable.core.records import SCHEMA_VERSION, decode
from cronstable.core.store import Seen, Unreadable, Vacant
from cronstable.plugin.state_store import Damage, Inspectable, StateStore

FENCED: Final = "slots/"
"""Streams whose records name fences of the lease of the same name (reference 4.5)."""


async def damage_of(store: StateStore, *, repair: bool) -> AsyncIterator[Damage]:
    """Everything that is wrong. Raises ``StoreUnavailable``."""
    told: list[str] = []
    if isinstance(store, Inspectable):
        async for damage in store.inspect(repair=repair):
            told.append(damage.what)
            yield damage
    for name in await store.streams():
        # Reading would put a torn record aside, which is repair.
        if repair or not any(repr(name) in what for what in told):
            async for damage in _stream(store, name, repair):
                yield damage


async def _stream(store: StateStore, name: str, repair: bool) -> AsyncIterator[Damage]:
    highest = 0
    for record in await store.read(name):
        data = decode(record.data)
        if data is None:
            if repair:
                await store.put_aside(name, record.name)
            yield Damage(f"stream {name!r}, {record.name}", _envelope(record.data), repaired=repair)
            continue
        fence = data.get("fence")
        if isinstance(fence, int) and not isinstance(fence, bool):
            highest = max(highest, fence)
    if name.startswith(FENCED) and highest:
        stands = await store.lease(name).observe()
        fence = _fence(stands)
        if fence is not None and fence < highest:
            detail = f"its fence is {fence}, but its records know {highest}: was the lease restored from an old copy?"
            yield Damage(f"lease {name!r}", detail)


def _fence(stands: object) -> int | None:
    match stands:
        case Seen(record):
            return record.fence
        case Vacant(fence):
            return fence or 0
        case Unreadable():
            return None
    return None


def _envelope(data: bytes) -> str:
    """What is wrong with the bytes of a record that arrived whole."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return "it is no JSON"
    version = document.get("schemaVersion") if isinstance(document, dict) else None
    if version is None:
        return "it is no record of cronstable: there is no schemaVersion"
    if version != SCHEMA_VERSION:
        return f"its version is {version!r}, and this cronstable reads {SCHEMA_VERSION!r}"
    return "its data are no object"
