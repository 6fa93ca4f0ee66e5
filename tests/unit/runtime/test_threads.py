"""Blocking calls: results and errors come back, a hung call costs its caller a timeout and nobody else anything."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import anyio
import pytest

from cronstable.runtime.threads import IDLE_EXIT, ThreadLanes

pytestmark = pytest.mark.anyio


async def test_the_result_of_a_call_comes_back() -> None:
    assert await ThreadLanes().run(lambda: 6 * 7, timeout=10) == 42


async def test_an_error_of_a_call_comes_back_as_itself() -> None:
    def fail() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        await ThreadLanes().run(fail, timeout=10)


async def test_a_hung_call_times_out_and_the_loop_goes_on_meanwhile() -> None:
    release = threading.Event()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.lowlevel.checkpoint()
            ticks += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        with pytest.raises(TimeoutError):
            await ThreadLanes().run(lambda: release.wait(30), timeout=0.05)
        tasks.cancel_scope.cancel()
    release.set()
    assert ticks > 1


async def test_a_lane_full_of_hung_calls_refuses_by_timeout_and_never_starts_the_call() -> None:
    lanes, release, started = ThreadLanes(), threading.Event(), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await lanes.run(lambda: release.wait(30), timeout=0.01, lane="mount")
    with pytest.raises(TimeoutError):
        await lanes.run(started.set, timeout=0.01, lane="mount")
    release.set()
    assert await lanes.run(lambda: "healthy again", timeout=10, lane="mount") == "healthy again"
    assert not started.is_set()


async def test_a_hung_lane_does_not_touch_another_lane() -> None:
    lanes, release = ThreadLanes(), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await lanes.run(lambda: release.wait(30), timeout=0.01, lane="mount")
    assert await lanes.run(lambda: "fine", timeout=10, lane="config") == "fine"
    release.set()


async def test_a_thread_for_a_rare_call_ends_with_it_and_another_one_serves_the_next() -> None:
    class Probe:
        """Lives as long as the thread that it is local to."""

    lanes, local = ThreadLanes(), threading.local()

    def look() -> weakref.ref[Probe]:
        local.probe = probe = Probe()
        return weakref.ref(probe)

    with anyio.fail_after(IDLE_EXIT * 0.9):
        for _ in range(2):
            seen = await lanes.run(look, timeout=IDLE_EXIT, lane="config")
            while seen() is not None:
                await anyio.lowlevel.checkpoint()


async def test_in_a_lane_for_long_calls_one_runs_at_a_time_and_holds_up_no_other_lane() -> None:
    lanes, release, begun, second = ThreadLanes(), threading.Event(), threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        release.wait(30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(lanes.run, long, timeout=30, lane="definitions"))
        assert await lanes.run(lambda: begun.wait(10), timeout=10, lane="web")
        with pytest.raises(TimeoutError):
            await lanes.run(second.set, timeout=0.01, lane="definitions")
        assert await lanes.run(lambda: "packed", timeout=10, lane="web") == "packed"
        assert not second.is_set()
        release.set()
    assert await lanes.run(lambda: "next", timeout=10, lane="definitions") == "next"


def no_threads(*given: object) -> int:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("lane", ["config", "mount"])
async def test_a_lane_that_could_start_no_thread_starts_one_again_once_the_machine_lets_it(
    monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    lanes, ran = ThreadLanes(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr("cronstable.runtime.threads.start_new_thread", no_threads)
        for _ in range(3):
            with pytest.raises(TimeoutError, match="can't start new thread"):
                await lanes.run(ran.set, timeout=10, lane=lane)
    for n in range(3):
        assert await lanes.run(partial(abs, -n), timeout=10, lane=lane) == n
    assert not ran.is_set(), "whoever asked for it was told that it failed"


async def test_a_call_for_which_no_thread_can_be_started_is_left_to_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes, release, begun = ThreadLanes(), threading.Event(), threading.Event()
    results: list[int] = []

    def busy() -> bool:
        begun.set()
        return release.wait(30)

    async def second() -> None:
        results.append(await lanes.run(lambda: 7, timeout=10, lane="mount"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(lanes.run, busy, timeout=10, lane="mount"))
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        with monkeypatch.context() as patch:
            patch.setattr("cronstable.runtime.threads.start_new_thread", no_threads)
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
        release.set()
    assert results == [7]


async def test_many_calls_at_once_all_come_back() -> None:
    lanes, results = ThreadLanes(), []

    async def one(n: int) -> None:
        results.append(await lanes.run(lambda: n * n, timeout=30))

    async with anyio.create_task_group() as tasks:
        for n in range(200):
            tasks.start_soon(one, n)
    assert sorted(results) == [n * n for n in range(200)]


async def test_a_call_that_waits_behind_hung_ones_is_forgotten_when_its_caller_gives_up() -> None:
    """A mount may hang for days, and it is asked again and again meanwhile."""

    class Payload:
        pass

    lanes, release = ThreadLanes(), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await lanes.run(lambda: release.wait(30), timeout=0.01, lane="mount")
    held = []
    for _ in range(5):
        payload = Payload()
        held.append(weakref.ref(payload))
        with pytest.raises(TimeoutError):
            await lanes.run(partial(id, payload), timeout=0.01, lane="mount")
    del payload
    gc.collect()
    # The last failure is remembered by the event loop until the next one.
    assert [ref() for ref in held[:-1]] == [None] * 4
    release.set()
