"""Virtual time: the loop skips its waits, the clock does what a test says, and a deadlock is an error."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from cronstable.testing.clock import Deadlock, VirtualClock, always, run_virtual, until


def test_a_day_passes_on_the_loop_without_waiting() -> None:
    async def story() -> float:
        await anyio.sleep(86_400)
        return anyio.current_time()

    assert run_virtual(story) == pytest.approx(86_400)


def test_timers_fire_in_order_and_deadlines_strike() -> None:
    seen: list[str] = []

    async def note(name: str, after: float) -> None:
        await anyio.sleep(after)
        seen.append(name)

    async def story() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note, "second", 2)
            tasks.start_soon(note, "first", 1)
            with anyio.move_on_after(1.5) as scope:
                await anyio.sleep_forever()
            assert scope.cancelled_caught
            seen.append("deadline")

    run_virtual(story)
    assert seen == ["first", "deadline", "second"]


def test_tasks_that_all_wait_for_nothing_are_a_deadlock() -> None:
    async def story() -> None:
        await anyio.Event().wait()

    with pytest.raises(Deadlock, match="no timer"):
        run_virtual(story)


def test_a_clock_of_the_loop_moves_with_it() -> None:
    async def story() -> None:
        clock = VirtualClock.of_loop(wall=100.0, boot=5.0)
        await clock.sleep(10)
        assert [clock.now().wall, clock.now().boot] == pytest.approx([110.0, 15.0])

    run_virtual(story)


def test_a_clock_alone_stands_still_until_it_is_advanced() -> None:
    async def story() -> None:
        clock = VirtualClock(wall=100.0, boot=5.0)
        woken: list[float] = []

        async def sleeper() -> None:
            await clock.sleep(3)
            woken.append(clock.now().boot)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeper)
            await anyio.sleep(100)
            clock.advance(2.9)
            await anyio.sleep(1)
            assert woken == []
            clock.advance(0.2)
        assert woken == [pytest.approx(8.1)]

    run_virtual(story)


def test_the_wall_steps_and_the_boot_clock_does_not() -> None:
    clock = VirtualClock(wall=100.0, boot=5.0)
    clock.step_wall(-60)
    assert (clock.now().wall, clock.now().boot) == (40.0, 5.0)


def test_a_suspended_machine_sees_both_clocks_jump() -> None:
    async def story() -> None:
        clock = VirtualClock.of_loop(wall=100.0, boot=5.0)
        clock.advance(3600)
        assert (clock.now().wall, clock.now().boot) == (3700.0, 3605.0)

    run_virtual(story)


def test_a_frozen_boot_clock_goes_on_from_where_it_stopped() -> None:
    clock = VirtualClock(wall=100.0, boot=5.0)
    clock.freeze_boot()
    clock.advance(50)
    assert (clock.now().wall, clock.now().boot) == (150.0, 5.0)
    clock.thaw_boot()
    clock.advance(1)
    assert clock.now().boot == 6.0


def test_until_fails_by_name_when_its_time_is_up() -> None:
    async def story() -> None:
        await until(lambda: False, within=3, what="the moon")

    with pytest.raises(AssertionError, match="the moon did not come true within 3 s"):
        run_virtual(story)


def test_always_says_when_it_ceased_to_be_true() -> None:
    async def story() -> None:
        loop_started = anyio.current_time()
        await always(lambda: anyio.current_time() - loop_started < 2, during=10, what="calm")

    with pytest.raises(AssertionError, match="calm ceased to be true after 2"):
        run_virtual(story)
