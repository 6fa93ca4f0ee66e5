"""Errands: in order per job, side by side between jobs, bounded, and quiet about what they carry."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest

from cronstable.runtime.courier import ABREAST, LIMIT, Courier, Refusal
from cronstable.testing.clock import run_virtual


class Bench:
    def __init__(self, limit: int = 100) -> None:
        self.lines: list[tuple[str, str]] = []
        log = logging.Logger("test")
        log.addHandler(_Collect(self.lines))
        self.courier = Courier("check-in", log=log, deadline=5.0, limit=limit)
        self.done: list[str] = []

    def errand(self, name: str, *, takes: float = 0.0, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await anyio.sleep(takes)
            if error is not None:
                raise error
            self.done.append(name)

        return run


class _Collect(logging.Handler):
    def __init__(self, into: list[tuple[str, str]]) -> None:
        super().__init__()
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append((record.levelname, record.getMessage()))


def play(script: Callable[[Bench], Awaitable[None]], limit: int = 100) -> Bench:
    async def scenario() -> Bench:
        bench = Bench(limit)
        async with anyio.create_task_group() as tasks:
            bench.courier.bind(tasks)
            await script(bench)
            with anyio.fail_after(1000):
                await bench.courier.idle()
        return bench

    return run_virtual(scenario)


def test_errands_of_one_job_keep_their_order_and_do_not_wait_for_another_job() -> None:
    async def script(bench: Bench) -> None:
        bench.courier.post("a", bench.errand("a1", takes=3))
        bench.courier.post("a", bench.errand("a2"))
        bench.courier.post("b", bench.errand("b1", takes=1))

    assert play(script).done == ["b1", "a1", "a2"]


def test_an_errand_that_hangs_is_given_up_and_the_next_goes_on() -> None:
    async def script(bench: Bench) -> None:
        bench.courier.post("a", bench.errand("never", takes=1e6))
        bench.courier.post("a", bench.errand("next"))

    bench = play(script)
    assert bench.done == ["next"]
    assert bench.lines == [("WARNING", "check-in of job a: no answer in time")]


def test_more_than_the_limit_is_dropped_and_said_once() -> None:
    async def script(bench: Bench) -> None:
        for i in range(10):
            bench.courier.post(f"job{i}", bench.errand(str(i)))

    bench = play(script, limit=4)
    assert sorted(bench.done) == ["0", "1", "2", "3"]
    assert bench.courier.dropped == 6
    assert len(bench.lines) == 1


def test_jobs_that_start_in_the_same_minute_lose_no_errand_and_open_few_connections() -> None:
    at_once: list[int] = []
    under_way = 0

    async def script(bench: Bench) -> None:
        async def errand() -> None:
            nonlocal under_way
            under_way += 1
            at_once.append(under_way)
            await anyio.sleep(0.2)
            under_way -= 1
            bench.done.append("")

        for i in range(500):
            for _ in ("start", "log", "success"):
                bench.courier.post(f"job{i}", errand)

    bench = play(script, limit=LIMIT)
    assert len(bench.done) == 1500
    assert bench.courier.dropped == 0
    assert max(at_once) == ABREAST


@pytest.mark.parametrize(
    ("error", "text"),
    [(OSError("https://hc.example/secret-uuid refused"), "OSError"), (Refusal("HTTP 404"), "HTTP 404")],
)
def test_a_failure_is_logged_once_per_episode_and_never_with_its_address(error: Exception, text: str) -> None:
    async def script(bench: Bench) -> None:
        for _ in range(3):
            bench.courier.post("a", bench.errand("x", error=error))
        bench.courier.post("a", bench.errand("well"))
        bench.courier.post("a", bench.errand("x", error=error))

    lines = play(script).lines
    assert [level for level, _ in lines] == ["WARNING", "DEBUG", "DEBUG", "WARNING"]
    assert {line for _, line in lines} == {f"check-in of job a: {text}"}
    assert "secret-uuid" not in str(lines)


def test_before_there_is_a_task_group_nothing_is_taken() -> None:
    bench = Bench()
    bench.courier.post("a", bench.errand("x"))
    assert bench.courier.dropped == 0
    assert bench.done == []
