"""Events and output lines: fanned out, bounded, complete for a reader that keeps up."""

from __future__ import annotations

import logging

import anyio
import pytest

from cronstable.core.events import LeaderChanged, QuorumChanged
from cronstable.core.runs import Line, RunKey
from cronstable.runtime.bus import BACKLOG, EventBus
from cronstable.runtime.capture import LineBatch
from cronstable.runtime.output import (
    CHARACTERS_OF_FINISHED,
    CHARACTERS_PER_RUN,
    FINISHED_RUNS,
    LONGEST_LINE,
    OutputHub,
)

pytestmark = pytest.mark.anyio


def quorum(n: float) -> QuorumChanged:
    return QuorumChanged(quorate=True, reason="test", at=n, node="a")


async def test_a_subscriber_gets_the_kinds_it_named_and_nothing_else() -> None:
    bus = EventBus(logging.getLogger("test"))
    events = bus.subscribe(QuorumChanged)
    async with anyio.create_task_group() as tasks:
        seen: list[object] = []

        async def read() -> None:
            async for event in events:
                seen.append(event)
                if len(seen) == 2:
                    return

        tasks.start_soon(read)
        await anyio.lowlevel.checkpoint()
        bus.emit(quorum(1))
        bus.emit(LeaderChanged(is_leader=True, leader="a", reason="test", at=1, node="a"))
        bus.emit(quorum(2))
    assert seen == [quorum(1), quorum(2)]


async def test_a_slow_subscriber_loses_the_oldest_and_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus(logging.getLogger("test"))
    events = bus.subscribe()
    seen: list[float] = []

    async def read() -> None:
        async for event in events:
            seen.append(event.at if isinstance(event, QuorumChanged) else -1.0)
            if event == quorum(BACKLOG + 10):
                break

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.lowlevel.checkpoint()
        for n in range(BACKLOG + 10):
            bus.emit(quorum(n))
        while len(seen) < BACKLOG:
            await anyio.lowlevel.checkpoint()
        bus.emit(quorum(BACKLOG + 10))
    assert seen[0] == 10
    assert "10 events dropped" in caplog.text


def batch(run: str, first: int, *texts: str) -> LineBatch:
    return LineBatch(RunKey(run, "job", None), "stdout", "", first, texts, 1.0)


async def test_a_reader_gets_old_lines_then_new_ones_then_the_end() -> None:
    hub = OutputHub()
    hub.open("r")
    hub.extend("r", batch("r", 1, "one", "two"))
    got: list[str] = []

    async def read() -> None:
        async for line in hub.read("r", after=1):
            got.append(line.text)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.lowlevel.checkpoint()
            hub.extend("r", batch("r", 3, "three"))
            await anyio.lowlevel.checkpoint()
            hub.extend("r", batch("r", 4, "four"))
            hub.close("r")
    assert got == ["two", "three", "four"]


async def test_an_unknown_run_has_no_output() -> None:
    assert [line async for line in OutputHub().read("nobody")] == []


async def test_old_finished_runs_are_forgotten_and_living_ones_are_not() -> None:
    hub = OutputHub()
    hub.open("alive")
    hub.extend("alive", batch("alive", 1, "still here"))
    for n in range(FINISHED_RUNS + 5):
        hub.open(str(n))
        hub.extend(str(n), batch(str(n), 1, "x"))
        hub.close(str(n))
    assert [line async for line in hub.read("0")] == []
    assert [line.text async for line in hub.read(str(FINISHED_RUNS + 4))] == ["x"]
    hub.close("alive")
    assert [line.text async for line in hub.read("alive")] == ["still here"]


async def collected(hub: OutputHub, run: str, after: int = 0) -> list[Line]:
    return [line async for line in hub.read(run, after)]


async def test_what_is_kept_of_a_run_is_bounded_in_characters_as_well_and_its_last_line_is_kept_whatever_it_is() -> (
    None
):
    hub = OutputHub()
    hub.open("r")
    for number in range(1, 201):
        hub.extend("r", batch("r", number, "x" * 10_000))
    hub.extend("r", batch("r", 201, "y" * (LONGEST_LINE + 5)))
    hub.close("r")
    kept = await collected(hub, "r")
    assert sum(len(line.text) for line in kept) <= CHARACTERS_PER_RUN
    assert kept[-1].text == "y" * LONGEST_LINE + " [.... 5 characters more]"
    assert [line.number for line in kept] == list(range(kept[0].number, 202))
    assert kept[0].number > 50


async def test_finished_runs_are_forgotten_oldest_first_when_they_are_large_together_and_living_ones_never() -> None:
    hub = OutputHub()
    hub.open("lives")
    hub.extend("lives", batch("lives", 1, "here"))
    runs = [f"r{n}" for n in range(CHARACTERS_OF_FINISHED // CHARACTERS_PER_RUN + 3)]
    for run in runs:
        hub.open(run)
        for number in range(1, 21):
            hub.extend(run, batch(run, number, "x" * (LONGEST_LINE - 1)))
        hub.close(run)
    sizes = [len(await collected(hub, run)) for run in runs]
    assert sizes[0] == 0
    assert sizes[-1] > 0
    assert sizes == sorted(sizes)
    hub.close("lives")
    assert [line.text for line in await collected(hub, "lives")] == ["here"]


async def test_a_reader_takes_hold_of_few_lines_at_once_and_misses_none() -> None:
    hub = OutputHub()
    hub.open("r")
    hub.extend("r", batch("r", 1, *[str(n) for n in range(1, 1_001)]))
    hub.close("r")
    assert [line.number for line in await collected(hub, "r", after=3)] == list(range(4, 1_001))
    assert await collected(hub, "r", after=1_000) == []
    assert await collected(hub, "r", after=5_000) == []
    assert await collected(hub, "unknown") == []
