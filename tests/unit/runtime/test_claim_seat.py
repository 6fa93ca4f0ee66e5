"""The claims driver is there when a backend with a claim log runs, and not a moment before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from cronstable.core.decision import Decision
from cronstable.core.job import Job
from cronstable.runtime.claim_seat import ClaimSeat
from cronstable.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Cluster:
    """The cluster manager's part."""

    claims: object | None = None


class Driver:
    """A driver that owns everything and notes what it is told."""

    window = 60.0
    has_swept = True

    def __init__(self) -> None:
        self.told: list[str] = []
        self.runs = anyio.Event()

    def owns(self, job: Job) -> bool:
        return True

    def takes(self, job: Job, scheduled_at: int) -> bool:
        return True

    def retry(self, job: Job, scheduled_at: int, attempt: int, first_run_id: str) -> bool:
        return True

    def catch_up(self, job: Job, at: int, over: Callable[[Decision | None], None]) -> bool:
        return True

    def forget_retries(self, job: str) -> None:
        self.told.append(job)

    def started(self, job: Job, run: object) -> None:
        self.told.append("started")

    def load(self) -> None:
        self.told.append("load")

    def poke(self) -> None:
        self.told.append("poke")

    async def run(self) -> None:
        self.runs.set()

    async def stop(self) -> None:
        self.told.append("stop")

    async def drain(self) -> None:
        self.told.append("drain")

    async def leave(self) -> None:
        self.told.append("leave")


def seat() -> tuple[ClaimSeat, Any, list[Driver]]:
    cluster: Any = Cluster()
    made: list[Driver] = []

    def make() -> Any:
        made.append(Driver())
        return made[-1]

    return ClaimSeat(VirtualClock(), cluster, make), cluster, made


async def ask_everything(claims: ClaimSeat) -> tuple[object, ...]:
    job: Any = "job"
    run: Any = "run"
    claims.poke()
    claims.load()
    claims.forget_retries("forgotten")
    claims.started(job, run)
    answers = (claims.owns(job), claims.takes(job, 1), claims.retry(job, 1, 2, "r"), claims.catch_up(job, 1, print))
    await claims.stop()
    await claims.drain()
    await claims.leave()
    return (*answers, claims.window, claims.has_swept)


async def test_without_a_claim_log_nothing_is_claimed_and_nothing_is_made() -> None:
    claims, _, made = seat()
    assert await ask_everything(claims) == (False, False, False, False, 0.0, False)
    assert made == []


async def test_with_a_claim_log_the_one_driver_answers_and_keeps_its_place() -> None:
    claims, cluster, made = seat()
    cluster.claims = object()
    claims.load()
    assert await ask_everything(claims) == (True, True, True, True, 60.0, True)
    assert made[0].told == ["load", "poke", "load", "forgotten", "started", "stop", "drain", "leave"]
    cluster.claims = None
    assert claims.window == 60.0, "what it began under the log before is still its to end"
    assert len(made) == 1


@pytest.mark.parametrize("how", ["poked", "asked"])
async def test_it_runs_from_the_moment_that_an_election_with_a_claim_log_does(how: str) -> None:
    claims, cluster, made = seat()
    job: Any = "job"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(claims.run)
        claims.poke()
        await anyio.wait_all_tasks_blocked()
        assert made == [], "a change of leadership without a log is none of its business"
        cluster.claims = object()
        if how == "poked":
            claims.poke()
        else:
            assert claims.owns(job)
        await anyio.wait_all_tasks_blocked()
        assert made[0].runs.is_set()
        tasks.cancel_scope.cancel()


async def test_an_occurrence_stays_open_for_the_window_and_for_good_while_the_log_is_not_being_read() -> None:
    claims, cluster, made = seat()
    job: Any = "job"
    assert claims.window_of(job) == 0.0
    cluster.claims = object()
    claims.load()
    assert claims.window_of(job) == 60.0
    made[0].window = 0.0
    assert claims.window_of(job) == float("inf")
