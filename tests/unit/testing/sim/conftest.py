"""Jobs of every kind, often enough due that a few simulated minutes say something."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC

import pytest

from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job, JobOptions, Json
from cronstable.core.schedule import Schedule
from cronstable.testing.sim import ALL_KINDS, Setup

RETRY: dict[str, Json] = {
    "onFailure": {"retry": {"maximumRetries": 2, "initialDelay": 1}},
    "onUnfinishedClaim": "rerun",
}


def _job(name: str, schedule: str, options: JobOptions) -> Job:
    return Job(name, "true", Schedule.parse(schedule, job_name=name, zone=UTC), options)


@pytest.fixture(scope="session")
def jobs() -> tuple[Job, ...]:
    return (
        _job("sec", "*/5 * * * * * *", JobOptions()),
        _job("min", "* * * * *", JobOptions()),
        _job("forbid", "*/10 * * * * * *", JobOptions(concurrency_policy=ConcurrencyPolicy.FORBID)),
        _job("prefer", "*/15 * * * * * *", JobOptions(cluster_policy=ClusterPolicy.PREFER_LEADER)),
        _job(
            "replace",
            "*/20 * * * * * *",
            JobOptions(concurrency_policy=ConcurrencyPolicy.REPLACE, kill_timeout=2.0),
        ),
        _job("again", "*/7 * * * * * *", JobOptions(raw=RETRY)),
    )


@pytest.fixture(scope="session")
def setup_of(jobs: tuple[Job, ...]) -> Callable[..., Setup]:
    """A few stormy minutes on three nodes."""

    def make(seed: int | str, **more: object) -> Setup:
        given = {"backend": "filesystem", "seconds": 240.0, "kinds": ALL_KINDS, "every": 15.0, **more}
        return Setup(jobs, seed=str(seed), **given)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def seeds() -> int:
    """How many seeds each backend is tried on; ``make endurance`` asks for more."""
    return int(os.environ.get("CRONSTABLE_SIM_SEEDS", "8"))
