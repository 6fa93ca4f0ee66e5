"""The same seed gives the same log, byte for byte; a violation is shrunk to the faults that it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from cronstable.testing.sim import Setup, shrink, simulate
from cronstable.testing.sim.bugs import BUGS

PROGRAM = """
from datetime import UTC
from cronstable.core.job import Job, JobOptions
from cronstable.core.schedule import Schedule
from cronstable.testing.sim import ALL_KINDS, Setup, simulate
jobs = [Job(n, "true", Schedule.parse(t, job_name=n, zone=UTC), JobOptions())
        for n, t in {"a": "*/5 * * * * * *", "b": "* * * * *", "c": "*/20 * * * * * *"}.items()]
for backend in ("filesystem", "etcd", "kubernetes"):
    result = simulate(Setup(jobs, backend=backend, nodes=4, seconds=120.0, seed="replay", kinds=ALL_KINDS, every=15.0))
    print(backend, len(result.log), result.digest)
"""


def replay(hash_seed: str) -> str:
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_with_other_hashes_write_the_same_log() -> None:
    first = replay("1")
    assert first.count("\n") == 3
    assert replay("4711") == first


def test_another_seed_gives_another_log(setup_of: Callable[..., Setup]) -> None:
    assert simulate(setup_of(1)).digest == simulate(setup_of(1)).digest != simulate(setup_of(2)).digest


def test_a_violation_is_shrunk_to_what_it_takes(setup_of: Callable[..., Setup]) -> None:
    bug = next(bug for bug in BUGS if bug.name == "takeover-by-own-ttl")
    with bug.planted():
        found = next(r for seed in range(50) if (r := simulate(bug.setup(setup_of(seed)))).violations)
        least = shrink(found)
        again = simulate(least.setup)
    assert least.violations[0].invariant == found.violations[0].invariant
    assert len(least.plan) <= 2 < len(found.plan)
    assert least.setup.seconds <= found.setup.seconds
    assert again.digest == least.digest


def test_a_run_without_a_violation_is_left_as_it_is(setup_of: Callable[..., Setup]) -> None:
    fine = simulate(setup_of(1, seconds=60.0))
    assert shrink(fine) is fine
