"""One epoll hears of all ends, with pipes in the place of pidfds: both are readable from an end on."""

from __future__ import annotations

import asyncio
import errno
import os

import anyio
import pytest

from cronstable.runtime.exits import Exits


async def heard(exits: Exits) -> bool:
    """Watch one end, let it come, and say whether it was told."""
    reading, writing = os.pipe()
    over = anyio.Event()
    try:
        exits.watch(reading, over.set)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with anyio.move_on_after(10):
        await over.wait()
    return over.is_set()


@pytest.mark.anyio
async def test_a_loop_that_can_watch_nothing_more_for_a_moment_costs_later_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no watch left")

    exits = Exits()
    with monkeypatch.context() as for_now:
        for_now.setattr(asyncio.get_running_loop(), "add_reader", full)
        with pytest.raises(OSError, match="no watch left"):
            await heard(exits)
    assert await heard(exits)


@pytest.mark.anyio
async def test_an_end_that_breaks_keeps_no_other_from_being_told() -> None:
    exits, told = Exits(), anyio.Event()
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: broken.append(context["exception"]))

    def breaks() -> None:
        raise RuntimeError("broken")

    pipes = [os.pipe() for _ in range(2)]
    for (reading, _), call in zip(pipes, (breaks, told.set), strict=True):
        exits.watch(reading, call)
    for _, writing in pipes:
        os.close(writing)
    with anyio.fail_after(10):
        await told.wait()
    assert [str(error) for error in broken] == ["broken"]
    assert await heard(exits)
