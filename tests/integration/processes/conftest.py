"""Real runs: the seams of this machine, and jobs built in a line."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.runtime.capture import LineBatch
from cronstable.runtime.runner import RunRequest, RunTools, run_job
from cronstable.runtime.spawn import PosixSpawner
from cronstable.runtime.system import SystemClock
from cronstable.runtime.threads import ThreadLanes

Case = dict[str, Any]
JobOf = Callable[..., Job]


class RecordingSink:
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.batches: list[LineBatch] = []
        self.keep = True
        self.count = 0

    def write(self, batch: LineBatch) -> None:
        self.count += len(batch.texts)
        if self.keep:
            self.batches.append(batch)

    async def ready(self) -> None:
        return None

    def logged(self) -> str:
        return "".join(batch.logged() for batch in self.batches)


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def spawner() -> PosixSpawner:
    return PosixSpawner()


@pytest.fixture
def tools(sink: RecordingSink, spawner: PosixSpawner) -> RunTools:
    return RunTools(spawner, SystemClock(), ThreadLanes(), sink, logging.getLogger("cronstable.test"), dict(os.environ))


@pytest.fixture
def job_of() -> JobOf:
    """``job_of("echo hi", capture_stdout=True)``: a job with these options."""

    def build(command: str | tuple[str, ...], name: str = "job", **options: Any) -> Job:
        return Job(name, command, Schedule("* * * * *", ZoneInfo("UTC")), JobOptions(**options))

    return build


@pytest.fixture
def run(tools: RunTools, job_of: JobOf) -> Callable[..., Awaitable[RunRecord]]:
    """``await run("echo hi", capture_stdout=True)``: the record of one run."""

    async def go(command: str | tuple[str, ...], **options: Any) -> RunRecord:
        return await run_job(RunRequest(RunKey("run", "job", 60), job_of(command, **options)), tools)

    return go


@pytest.fixture
def case(repo: Path) -> Callable[[str], Case]:
    """``case("exec-env-precedence")``: a case file of the suite."""

    def load(name: str) -> Case:
        loaded: Case = yaml.safe_load((repo / "tests" / "cases" / f"{name}.yaml").read_text(encoding="utf-8"))
        return loaded

    return load


@pytest.fixture
def running() -> Callable[[str], list[int]]:
    """``running(marker)``: processes with ``marker`` in their command line, zombies left out (they have none)."""

    def find(marker: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(int(entry.name))
        return found

    return find
