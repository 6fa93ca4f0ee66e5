"""Which children the reaper takes, and when; the process table is faked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from cronstable.runtime import reaper
from cronstable.runtime.reaper import Reaper, must_reap
from cronstable.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Table:
    """Children of this process: number to whether it is a zombie."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: dict[int, bool] = {}
        self.taken: list[int] = []
        monkeypatch.setattr(reaper, "_children", lambda: sorted(self.children))
        monkeypatch.setattr(reaper, "_is_zombie", lambda pid: self.children[pid])
        monkeypatch.setattr(os, "waitpid", self.waitpid)

    def waitpid(self, pid: int, flags: int) -> tuple[int, int]:
        assert pid > 0, "a wait for any child steals exit codes"
        assert flags == os.WNOHANG
        if self.children.pop(pid, None) is None:
            raise ChildProcessError
        self.taken.append(pid)
        return pid, 0


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def test_a_stranger_is_taken_once_it_was_a_zombie_for_long_enough(table: Table) -> None:
    clock = VirtualClock()
    taker = Reaper(frozenset, clock, patience=2.0)
    table.children = {7: True}
    assert taker.collect()
    clock.advance(1.9)
    assert taker.collect()
    assert table.taken == []
    clock.advance(0.1)
    assert not taker.collect()
    assert (table.taken, taker.collected) == ([7], 1)


def test_a_process_of_the_spawner_is_never_taken(table: Table) -> None:
    clock = VirtualClock()
    taker = Reaper(lambda: {7}, clock, patience=2.0)
    table.children = {7: True, 8: True}
    taker.collect()
    clock.advance(100)
    taker.collect()
    assert table.taken == [8]


def test_a_living_child_is_left_alone(table: Table) -> None:
    clock = VirtualClock()
    taker = Reaper(frozenset, clock)
    table.children = {7: False}
    assert not taker.collect()
    clock.advance(100)
    assert not taker.collect()
    assert table.taken == []


def test_a_number_that_comes_back_has_a_time_of_its_own(table: Table) -> None:
    clock = VirtualClock()
    taker = Reaper(frozenset, clock, patience=2.0)
    table.children = {7: True}
    taker.collect()
    table.children = {}
    clock.advance(1.5)
    taker.collect()
    table.children = {7: True}
    clock.advance(1.5)
    assert taker.collect()
    assert table.taken == []


def test_one_whose_own_was_faster_is_no_error(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    taker = Reaper(frozenset, clock, patience=0.0)
    monkeypatch.setattr(reaper, "_children", lambda: [7])
    monkeypatch.setattr(reaper, "_is_zombie", lambda pid: True)
    assert not taker.collect()
    assert taker.collected == 0


async def test_an_exit_is_noticed_at_once_and_taken_after_the_nap(table: Table) -> None:
    clock = VirtualClock()
    taker = Reaper(frozenset, clock, patience=2.0)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(taker.run)
            await anyio.wait_all_tasks_blocked()
            table.children = {7: True}
            os.kill(os.getpid(), signal.SIGCHLD)
            while not table.taken:
                await anyio.wait_all_tasks_blocked()
                clock.advance(2.0)
            tasks.cancel_scope.cancel()
    assert table.taken == [7]


@pytest.mark.parametrize(("handed", "taken"), [(True, [7]), (False, [])])
async def test_who_is_handed_orphans_is_asked_when_a_stranger_shows(
    table: Table, handed: bool, taken: list[int]
) -> None:
    clock, asked = VirtualClock(), 0

    def needed() -> bool:
        nonlocal asked
        asked += 1
        return handed

    taker = Reaper(lambda: {6}, clock, patience=2.0)
    table.children = {6: False}
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run_where_needed, needed)
            for _ in range(3):
                await anyio.wait_all_tasks_blocked()
                clock.advance(reaper.LONG_ROUND)
            assert asked == 0, "children of the spawner are no strangers"
            table.children[7] = True
            for _ in range(3):
                await anyio.wait_all_tasks_blocked()
                clock.advance(reaper.LONG_ROUND)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert (asked, table.taken) == (1, taken)


def test_without_a_child_no_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> None:
        raise ChildProcessError

    def walked(path: Path) -> Iterator[Path]:
        raise AssertionError(f"{path} is walked through")

    monkeypatch.setattr(os, "waitid", none)
    monkeypatch.setattr(Path, "iterdir", walked)
    assert reaper._children() == []


async def test_without_a_proc_the_kernel_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> list[int]:
        raise FileNotFoundError("/proc/self/task")

    monkeypatch.setattr(reaper, "_children", hidden)
    asked: list[bool] = []

    def needed() -> bool:
        asked.append(True)
        return False

    await Reaper(frozenset, VirtualClock()).run_where_needed(needed)
    assert asked == [True]


async def test_pid_1_collects_without_asking(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    clock = VirtualClock()
    table.children = {7: True}
    taker = Reaper(frozenset, clock, patience=2.0)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run_where_needed)
            while not table.taken:
                await anyio.wait_all_tasks_blocked()
                clock.advance(2.0)
            tasks.cancel_scope.cancel()
    assert table.taken == [7]


def test_an_ordinary_process_is_handed_no_orphans() -> None:
    assert not must_reap()


def test_pid_1_is_handed_all_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert must_reap()
