"""The launcher meets a defect: it costs the run that met it, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC

import anyio
import pytest

from cronstable.core.decision import Decision, DecisionRing, Reason, Verdict
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import LiveRun, Outcome, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.runtime.bus import EventBus
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest
from cronstable.testing.clock import VirtualClock, run_virtual

LOG = logging.getLogger("test")
GO = Decision(Verdict.RUN, Reason.MANUAL)


class Ids:
    def __init__(self) -> None:
        self._n = 0

    def token(self, nbytes: int = 6) -> str:
        self._n += 1
        return f"{self._n:0{nbytes * 2}x}"


class Heard:
    """A listener that remembers, and breaks when told to."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.records: list[RunRecord] = []
        self.starts: list[str] = []

    def started(self, job: Job, run: LiveRun) -> None:
        self.starts.append(run.key.job)
        if self.breaks:
            raise RuntimeError("a listener broke")

    def finished(self, job: Job, record: RunRecord) -> None:
        self.records.append(record)
        if self.breaks:
            raise RuntimeError("a listener broke")


def job(name: str) -> Job:
    return Job(name, "true", Schedule.parse("* * * * *", job_name=name, zone=UTC), JobOptions())


def play(*listeners: Heard, spawned: bool = False) -> Launcher:
    """Runs of ``bad`` and ``good`` side by side; the runner breaks in the first. ``spawned``: after its spawn."""

    async def scenario() -> Launcher:
        clock = VirtualClock.of_loop(wall=1_800_000_000)

        async def execute(
            request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
        ) -> RunRecord:
            permit()
            now = clock.now().wall
            broken = request.job.name == "bad"
            if spawned or not broken:
                on_started(LiveRun(request.key, 4711, now))
            await clock.sleep(5.0 if broken else 10.0)
            if broken:
                raise ZeroDivisionError("something secret")
            return RunRecord(request.key, Outcome.SUCCESS, 0, now, clock.now().wall, clock.now().wall - now)

        launcher = Launcher(
            execute=execute,
            clock=clock,
            ids=Ids(),
            bus=EventBus(LOG),
            hub=OutputHub(),
            log=LOG,
            node="node-a",
            decisions=DecisionRing(),
        )
        launcher.listeners = listeners
        async with anyio.create_task_group() as runs:
            launcher.bind(runs)
            for name in ("bad", "good"):
                launcher.start(job(name), GO, scheduled_at=None, trigger=Trigger.MANUAL, recheck=lambda: GO)
            await launcher.idle()
        return launcher

    return run_virtual(scenario)


@pytest.mark.parametrize("spawned", [False, True])
def test_a_defect_in_one_run_costs_that_run_only(caplog: pytest.LogCaptureFixture, *, spawned: bool) -> None:
    heard = Heard()
    launcher = play(heard, spawned=spawned)
    (bad,) = launcher.history()["bad"]
    (good,) = launcher.history()["good"]
    assert (bad.outcome, bad.exit_code) == (Outcome.UNKNOWN, None)
    assert bad.fail_reason == "a defect of cronstable: ZeroDivisionError"
    assert bad.duration == (5.0 if spawned else None)
    assert good.outcome is Outcome.SUCCESS
    assert [record.key.job for record in heard.records] == ["bad", "good"]
    assert launcher.busy == 0
    (said,) = [record for record in caplog.records if record.exc_info]
    assert "job bad: the run met a defect of cronstable" in said.getMessage()


def test_a_listener_that_breaks_costs_neither_the_daemon_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    launcher = play(Heard(breaks=True), heard, spawned=True)
    assert [run.outcome for run in launcher.history()["good"]] == [Outcome.SUCCESS]
    assert heard.starts == ["bad", "good"]
    assert [record.key.job for record in heard.records] == ["bad", "good"]
    assert sum("a listener of runs broke" in record.getMessage() for record in caplog.records) == 4


def test_a_run_that_ended_in_a_defect_frees_its_job_for_the_next() -> None:
    launcher = play()
    assert launcher.busy == 0
    assert launcher.live() == {}
