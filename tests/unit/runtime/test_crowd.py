"""A crowd keeps the promises of a task group."""

from __future__ import annotations

import anyio
import pytest

from cronstable.runtime.crowd import crowd
from cronstable.testing.clock import run_virtual


def test_leaving_the_block_waits_for_all_tasks() -> None:
    async def play() -> list[int]:
        done: list[int] = []

        async def work(number: int) -> None:
            await anyio.sleep(number)
            done.append(number)

        async with crowd() as members:
            for number in (3, 1, 2):
                members.start_soon(work, number)
        return done

    assert run_virtual(play) == [1, 2, 3]


def test_a_task_may_start_others_while_the_block_is_open() -> None:
    async def play() -> list[str]:
        done: list[str] = []
        async with crowd() as members:

            async def first() -> None:
                members.start_soon(second)
                done.append("first")

            async def second() -> None:
                await anyio.sleep(5)
                done.append("second")

            members.start_soon(first)
            await anyio.sleep(1)
        return done

    assert run_virtual(play) == ["first", "second"]


@pytest.mark.parametrize("inner", [True, False])
def test_a_cancellation_ends_every_task_and_lets_each_clean_up(*, inner: bool) -> None:
    async def play() -> tuple[int, float]:
        cleaned = 0

        async def work() -> None:
            nonlocal cleaned
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.move_on_after(10, shield=True):
                    await anyio.sleep(2)
                    cleaned += 1

        with anyio.CancelScope() as outer:
            async with crowd() as members:
                for _ in range(3):
                    members.start_soon(work)
                await anyio.sleep(1)
                (members.cancel_scope if inner else outer).cancel()
                await anyio.sleep_forever()
        return cleaned, anyio.current_time()

    cleaned, at = run_virtual(play)
    assert cleaned == 3
    assert at == pytest.approx(3)


def test_an_error_of_a_task_ends_the_others_and_the_block_and_is_raised() -> None:
    async def play() -> tuple[list[str], BaseException]:
        ended: list[str] = []

        async def breaks() -> None:
            await anyio.sleep(1)
            raise ZeroDivisionError("a defect")

        async def waits() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("other")

        try:
            async with crowd() as members:
                members.start_soon(waits)
                members.start_soon(breaks)
                try:
                    await anyio.sleep_forever()
                finally:
                    ended.append("block")
        except* ZeroDivisionError as group:
            error: BaseException = group
        return ended, error

    ended, error = run_virtual(play)
    assert sorted(ended) == ["block", "other"]
    assert isinstance(error, BaseExceptionGroup)


def test_an_error_of_the_block_ends_the_tasks() -> None:
    async def play() -> list[str]:
        ended: list[str] = []

        async def waits() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("task")

        async def block() -> None:
            async with crowd() as members:
                members.start_soon(waits)
                await anyio.sleep(1)
                raise LookupError("of the block")

        with pytest.raises(ExceptionGroup):
            await block()
        return ended

    assert run_virtual(play) == ["task"]


def test_a_crowd_that_was_left_takes_no_more_tasks() -> None:
    async def play() -> None:
        async with crowd() as members:
            await anyio.sleep(1)
        with pytest.raises(RuntimeError, match="closed"):
            members.start_soon(anyio.sleep, 1)

    run_virtual(play)
