"""Copying a store: many things at a time, and a store that fails in the middle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.cli.state_archive import Item
from cronstable.cli.state_copy import AT_ONCE, BYTES_AT_ONCE, Copied, copy_all, each, items, verify
from cronstable.core.store import StoreUnavailable
from cronstable.testing.clock import VirtualClock, run_virtual

ITEMS = [Item("stream", f"runs/{n}", tuple(b"%d" % i for i in range(n % 7 + 1))) for n in range(40)]
ITEMS += [Item("document", f"d{n}", (b"%d" % n,)) for n in range(5)]


class Slow(MemoryStateStore):
    """Takes a second for each write, and may fail after some. ``most``: how many were under way at a time."""

    def __init__(self, clock: VirtualClock, contents: Contents, writes: int = 10_000) -> None:
        super().__init__(clock, contents)
        self.clock, self.left = clock, writes
        self.inside = self.most = 0

    async def append(self, stream: str, data: bytes) -> str:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.clock.sleep(1.0)
        self.inside -= 1
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("down")
        return await super().append(stream, data)


def play(scene: Callable[[VirtualClock], Awaitable[None]]) -> None:
    async def main() -> None:
        await scene(VirtualClock.of_loop())

    run_virtual(main)


def test_a_copy_is_made_of_several_things_at_a_time_and_each_in_order() -> None:
    async def scene(clock: VirtualClock) -> None:
        store, copied, steps = Slow(clock, Contents()), Copied(), [0]
        begun = clock.now().boot
        await copy_all(each(ITEMS), store, copied, lambda: steps.append(1), replace=False)
        records = sum(len(item.data) for item in ITEMS)
        assert (copied.written, copied.there, copied.conflicts, sum(steps)) == (records, 0, [], len(ITEMS))
        assert store.most == AT_ONCE
        assert clock.now().boot - begun < records / 4
        assert [item async for item in items(store)] == sorted(ITEMS, key=lambda i: (i.kind != "stream", i.name))
        assert await verify(copied, store, lambda: None) == []

    play(scene)


def test_a_store_that_fails_in_the_middle_is_one_error_and_the_next_try_goes_on() -> None:
    async def scene(clock: VirtualClock) -> None:
        contents = Contents()
        with pytest.raises(StoreUnavailable, match="down"):
            await copy_all(each(ITEMS), Slow(clock, contents, 50), Copied(), lambda: None, replace=False)
        copied = Copied()
        store = Slow(clock, contents)
        await copy_all(each(ITEMS), store, copied, lambda: None, replace=False)
        assert copied.there >= 50
        assert copied.written + copied.there == sum(len(item.data) for item in ITEMS)
        assert await verify(copied, store, lambda: None) == []

    play(scene)


def test_a_source_that_fails_is_one_error_too() -> None:
    async def scene(clock: VirtualClock) -> None:
        async def source() -> AsyncIterator[Item]:
            yield ITEMS[0]
            raise StoreUnavailable("the source is down")

        with pytest.raises(StoreUnavailable, match="the source is down"):
            await copy_all(source(), Slow(clock, Contents()), Copied(), lambda: None, replace=False)

    play(scene)


def test_what_is_large_is_held_in_memory_alone() -> None:
    async def scene(clock: VirtualClock) -> None:
        large = b"x" * (BYTES_AT_ONCE // 2 + 1)
        store = Slow(clock, Contents())
        found = [Item("stream", f"logs/{n}", (large,)) for n in range(4)]
        with anyio.fail_after(60):
            await copy_all(each(found), store, Copied(), lambda: None, replace=False)
        assert store.most == 1

    play(scene)
