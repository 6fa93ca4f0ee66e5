"""The real clock's sleep, on a loop that skips its waits."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from cronstable.runtime.system import SystemClock
from cronstable.testing.clock import Deadlock, run_virtual


def test_a_sleep_lasts_as_long_as_it_is_told() -> None:
    async def scene() -> float:
        await SystemClock().sleep(3600.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(scene) == 3600.0


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_sleep_at_all_still_lets_others_run(seconds: float) -> None:
    async def scene() -> tuple[list[str], float]:
        told: list[str] = []

        async def other() -> None:
            told.append("other")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await SystemClock().sleep(seconds)
            told.append("sleeper")
        return told, asyncio.get_running_loop().time()

    assert run_virtual(scene) == (["other", "sleeper"], 0.0)


def test_a_sleep_of_no_number_is_over_at_once_and_waits_for_no_timer_of_another() -> None:
    async def scene() -> float:
        asyncio.get_running_loop().call_later(5.0, list)
        await SystemClock().sleep(float("nan"))
        return asyncio.get_running_loop().time()

    assert run_virtual(scene) == 0.0


def test_a_sleep_that_is_cancelled_leaves_no_timer_behind() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def scene() -> None:
        loops.append(asyncio.get_running_loop())
        with anyio.move_on_after(1.0):
            await SystemClock().sleep(1000.0)
        await anyio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(scene)
    assert loops[0].time() == 1.0


def test_a_sleep_that_is_cancelled_as_it_ends_is_no_error() -> None:
    complaints: list[dict[str, Any]] = []

    async def scene() -> bool:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        with anyio.move_on_after(5.0) as scope:
            await SystemClock().sleep(5.0)
        await SystemClock().sleep(1.0)
        return scope.cancelled_caught

    assert run_virtual(scene)
    assert complaints == []
