"""From a store or an archive into a store: only what is not there, and never over what is not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from cronstable.cli.state_archive import Item, Key
from cronstable.core.store import StoreUnavailable
from cronstable.plugin.state_store import StateStore

AT_ONCE: Final = 8
"""Streams and documents under way, as many as a daemon writes to at a time."""
BYTES_AT_ONCE: Final = 64 * 2**20
"""Held in memory for them; a single stream may be larger."""


@dataclass(slots=True)
class Copied:
    """What came of it. ``conflicts``: names of what stands in the target with other contents.

    ``marks``: how much was brought over of each thing, and its digest, for ``verify``.
    """

    written: int = 0
    there: int = 0
    conflicts: list[str] = field(default_factory=list)
    marks: dict[Key, tuple[int, str]] = field(default_factory=dict)


def missing(source: Sequence[bytes], target: Sequence[bytes]) -> Sequence[bytes] | None:
    """The records that have yet to follow, when ``target`` is a beginning of ``source``; None when it is not.

    A record may stand there twice in a row: an append whose answer was lost is made again.
    """
    at = 0
    for data in target:
        if at < len(source) and data == source[at]:
            at += 1
        elif at == 0 or data != source[at - 1]:
            return None
    return source[at:]


async def items(store: StateStore) -> AsyncIterator[Item]:
    """Everything in a store: its streams, then its documents."""
    for name in await store.streams():
        data = tuple(record.data for record in await store.read(name))
        if data:
            yield Item("stream", name, data)
    for name in await store.documents():
        document = await store.get(name)
        if document is not None:
            yield Item("document", name, (document.data,))


async def conflicts(source: Iterable[Item], store: StateStore) -> list[str]:
    """What is in ``store`` and no part of ``source``: an interrupted copy leaves nothing of the kind."""
    known = {item.key: item for item in source}
    found: list[str] = []
    async for there in items(store):
        item = known.get(there.key)
        if item is None or missing(item.data, there.data) is None:
            found.append(f"{there.kind} {there.name!r}")
    return found


async def copy_all(
    source: AsyncIterator[Item], store: StateStore, copied: Copied, step: Callable[[], None], *, replace: bool
) -> None:
    """Bring everything over, some things at a time: a store that syncs each record lets one wait for long.

    The first failure ends it once what is under way is over; begun again, it goes on.
    """
    under_way: list[int] = []
    failed: list[StoreUnavailable] = []
    changed = anyio.Event()

    async def one(item: Item, size: int) -> None:
        nonlocal changed
        try:
            await copy_item(item, store, copied, replace=replace)
            step()
        except StoreUnavailable as error:
            failed.append(error)
        under_way.remove(size)
        waited, changed = changed, anyio.Event()
        waited.set()

    async with anyio.create_task_group() as tasks:
        try:
            async for item in source:
                size = sum(map(len, item.data))
                while len(under_way) >= AT_ONCE or (under_way and sum(under_way) + size > BYTES_AT_ONCE):
                    await changed.wait()
                if failed:
                    break
                under_way.append(size)
                tasks.start_soon(one, item, size)
        except StoreUnavailable as error:
            failed.append(error)
    if failed:
        raise failed[0]


async def each(found: Iterable[Item]) -> AsyncIterator[Item]:
    """What is at hand, for ``copy_all``."""
    for item in found:
        yield item


async def copy_item(item: Item, store: StateStore, copied: Copied, *, replace: bool) -> None:
    """Bring one thing over. ``replace``: also over other contents, which are gone then."""
    written = await (_stream if item.kind == "stream" else _document)(item, store, replace)
    if written is None:
        copied.conflicts.append(f"{item.kind} {item.name!r}")
        return
    copied.marks[item.key] = _mark(item)
    copied.written += written
    copied.there += len(item.data) - written


async def _stream(item: Item, store: StateStore, replace: bool) -> int | None:
    there = [record.data for record in await store.read(item.name)]
    rest = missing(item.data, there)
    if rest is None:
        if not replace:
            return None
        await store.trim(item.name, 0)
        rest = item.data
    for data in rest:
        await store.append(item.name, data)
    return len(rest)


async def _document(item: Item, store: StateStore, replace: bool) -> int | None:
    there = await store.get(item.name)
    if there is not None and there.data == item.data[0]:
        return 0
    if there is not None and not replace:
        return None
    done = await store.put(item.name, item.data[0], there.version if there is not None else None)
    return 1 if done is not None else None


async def verify(copied: Copied, store: StateStore, step: Callable[[], None]) -> list[str]:
    """What is not in ``store`` as it was copied. Records may have followed meanwhile: the store may be in use."""
    wrong: list[str] = []
    for (kind, name), (count, digest) in copied.marks.items():
        step()
        if kind == "document":
            document = await store.get(name)
            there = [document.data] if document is not None else []
        else:
            there = [record.data for record in await store.read(name)]
        if _mark(Item(kind, name, tuple(_once(there)[:count]))) != (count, digest):
            wrong.append(f"{kind} {name!r}")
    return wrong


def _mark(item: Item) -> tuple[int, str]:
    once = tuple(_once(item.data))
    return len(once), Item(item.kind, item.name, once).digest()


def _once(records: Sequence[bytes]) -> list[bytes]:
    """A record that stands there twice in a row counts once: its append was made again."""
    return [data for at, data in enumerate(records) if at == 0 or data != records[at - 1]]
