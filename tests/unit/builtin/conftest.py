"""Messages as notifiers get them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC

import pytest

from cronstable.core.hooks import JobEvent, Lateness
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import Outcome, RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.plugin.protocols import Report
from cronstable.testing.clock import VirtualClock
from cronstable.testing.host import FakeHost

WALL = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


@pytest.fixture
def make_report() -> Callable[..., Report]:
    """``make_report("onFailure", stdout=..., command=...)``."""

    def make(
        event: JobEvent = "onFailure",
        *,
        name: str = "backup",
        command: str | tuple[str, ...] = "backup --all",
        stdout: str | None = None,
        stderr: str | None = None,
        environment: tuple[tuple[str, str], ...] = (),
        facts: Lateness | None = None,
    ) -> Report:
        options = JobOptions(environment=environment)
        job = Job(name, command, Schedule.parse("0 2 * * *", job_name=name, zone=UTC), options)
        good = event == "onSuccess"
        record = RunRecord(
            key=RunKey("r1", name, int(WALL)),
            outcome=Outcome.SUCCESS if good else Outcome.FAILURE,
            exit_code=0 if good else 3,
            started_at=WALL,
            finished_at=WALL + 1.5,
            duration=1.5,
            fail_reason=None if good else "failsWhen=nonzeroReturn and retcode=3",
            stdout=stdout,
            stderr=stderr,
        )
        return Report(event, job, record, "host-1", facts)

    return make


@pytest.fixture
def fake_host() -> FakeHost:
    """A host whose clock stands still at the start of 2026."""
    return FakeHost(VirtualClock(wall=WALL))
