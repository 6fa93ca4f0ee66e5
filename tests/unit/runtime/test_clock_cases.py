"""Cases about when a job starts, as data, on virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pytest
import yaml

from cronstable.core.decision import DecisionRing
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import LiveRun, Outcome, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.plugin.protocols import Pause
from cronstable.runtime.bus import EventBus
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import SeededIds

CASES = Path(__file__).parents[2] / "cases"
NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600


class Alone:
    """Stands in for the cluster manager of a node without an election."""

    elects = False

    async def refresh(self) -> None:
        """There is nobody to ask."""

    def view(self) -> None:
        """There is nothing to see."""


def wall_of(time: str) -> float:
    hours, minutes, seconds = (int(part) for part in time.split(":"))
    return NOON - 12 * 3600 + hours * 3600 + minutes * 60 + seconds


def starts(given: Mapping[str, Any]) -> list[float]:
    """Wall instants at which the job of a case starts."""

    async def scenario() -> list[float]:
        clock = VirtualClock.of_loop(wall=wall_of(given["daemon_started_at"]))
        found: list[float] = []

        async def execute(
            request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
        ) -> RunRecord:
            permit()
            now = clock.now().wall
            found.append(now)
            on_started(LiveRun(request.key, 1, now))
            return RunRecord(request.key, Outcome.SUCCESS, 0, now, now, 0.0)

        log = logging.getLogger("test")
        launcher = Launcher(
            execute=execute,
            clock=clock,
            ids=SeededIds(),
            bus=EventBus(log),
            hub=OutputHub(),
            log=log,
            node="node-a",
            decisions=DecisionRing(),
        )
        scheduler = Scheduler(clock=clock, cluster=Alone(), launcher=launcher, log=log)  # type: ignore[arg-type]  # two members of it are used
        schedule = Schedule.parse(given["job"]["schedule"], job_name="a", zone=UTC)
        scheduler.load([Job("a", "true", schedule, JobOptions())])

        async def steps() -> None:
            for one in given["steps"]:
                await clock.sleep(one.get("after_s", 0))
                if "step_clock" in one:
                    clock.step_wall(one["step_clock"])
                if "pause_s" in one:
                    scheduler.pauses = MappingProxyType({"a": Pause("a", clock.now().wall + one["pause_s"])})

        async with anyio.create_task_group() as runs:
            launcher.bind(runs)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(scheduler.run)
                tasks.start_soon(steps)
                await clock.sleep(given["run_s"])
                tasks.cancel_scope.cancel()
            runs.cancel_scope.cancel()
        return found

    return run_virtual(scenario)


def shown(instants: list[float]) -> list[str]:
    return [datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") for at in instants]


def more() -> list[Any]:
    found = [yaml.safe_load(path.read_text()) for path in sorted((CASES / "extra").glob("exec-*.yaml"))]
    return [pytest.param(case, id=case["id"]) for case in found if case["input"].get("how") == "clock"]


@pytest.mark.parametrize("case", more())
def test_a_job_starts_when_its_case_says(case: Mapping[str, Any]) -> None:
    expected, found = case["expected"], starts(case["input"])
    if "starts" in expected:
        assert shown(found) == expected["starts"]
    assert expected.get("starts_at_least", 0) <= len(found) <= expected.get("starts_at_most", len(found))
    early = [at for at in found if at % 3600 > 1]
    assert len(early) <= expected.get("starts_before_the_next_slot_at_most", len(early))


def test_nothing_runs_at_the_start_of_the_daemon() -> None:
    case = yaml.safe_load((CASES / "exec-not-on-startup.yaml").read_text())
    found = starts({**case["input"], "steps": [], "run_s": 500})
    assert shown(found) == [case["expected"]["first_run_at"]]


def test_slots_of_a_long_pause_are_not_made_up() -> None:
    case = yaml.safe_load((CASES / "exec-resume-after-long-pause.yaml").read_text())
    days = 3 * 86_400
    pause = [{"after_s": 10, "pause_s": days}]
    found = starts({"job": case["input"]["job"], "daemon_started_at": "12:01:00", "steps": pause, "run_s": days + 300})
    assert len(found) == case["expected"]["catch_up_runs"] + 1
    assert shown(found) == ["12:05:00"]


def test_a_suspended_laptop_wakes_to_no_burst(caplog: pytest.LogCaptureFixture) -> None:
    case = yaml.safe_load((CASES / "exec-clock-jumps-forward.yaml").read_text())
    jump = [{"after_s": 10, "step_clock": 7200}]
    found = starts({"job": case["input"]["job"], "daemon_started_at": "12:03:10", "steps": jump, "run_s": 60})
    assert len(found) <= case["expected"]["runs_immediately_at_most"]
    assert any(record.levelname == "WARNING" for record in caplog.records)
