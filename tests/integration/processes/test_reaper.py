"""Orphans are collected by the daemon as PID 1 or subreaper, and no exit code is stolen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cronstable.runtime import reaper

pytestmark = pytest.mark.integration

# Runs jobs that leave orphans and jobs that exit with 7, as subreaper or as PID 1, and prints what came out of it.
CASES = Path(__file__).parents[2] / "cases"

PROGRAM = """
import ctypes, json, logging, os, subprocess, sys
import anyio
from pathlib import Path
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import RunKey
from cronstable.runtime.reaper import Reaper, must_reap
from cronstable.runtime.runner import RunRequest, RunTools, run_job
from cronstable.runtime.spawn import PosixSpawner
from cronstable.runtime.system import SystemClock
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.clock import until

RUNS = int(sys.argv[2])
COUNTED = sys.argv[4] if len(sys.argv) > 4 else "exit 7"

class Sink:
    def write(self, batch): pass
    async def ready(self): pass

def children():
    return [int(p) for f in Path("/proc/self/task").glob("*/children") for p in f.read_text().split()]

async def main():
    if sys.argv[1] == "subreaper":
        before = must_reap()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    else:
        before = None
    spawner, clock = PosixSpawner(), SystemClock()
    tools = RunTools(spawner, clock, ThreadLanes(), Sink(), logging.getLogger(), dict(os.environ))
    reaper = Reaper(spawner.owned, clock, patience=0.2)
    gate = anyio.Semaphore(16)
    codes = []

    async def one(command):
        job = Job("j", command, None, JobOptions())
        async with gate:
            record = await run_job(RunRequest(RunKey("r", "j", 60), job), tools)
        if command == COUNTED:
            codes.append(record.exit_code)

    # A library's own child, and a thread that waits for it, as many libraries do.
    own = subprocess.Popen(["sh", "-c", "sleep 1; exit 9"], start_new_session=True)
    async with anyio.create_task_group() as tasks:
        await tasks.start(reaper.run)
        async with anyio.create_task_group() as runs:
            runs.start_soon(anyio.to_thread.run_sync, own.wait)
            for number in range(RUNS):
                runs.start_soon(one, COUNTED)
                if number % 10 == 0:
                    runs.start_soon(one, sys.argv[3])
        await until(lambda: not children(), within=30, what="no child is left")
        tasks.cancel_scope.cancel()
    print(json.dumps({
        "pid": os.getpid(), "before": before, "must": must_reap(), "codes": sorted(set(codes)), "runs": len(codes),
        "own": own.returncode, "collected": reaper.collected,
    }))

anyio.run(main)
"""


def outcome(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def orphan(case: Callable[[str], dict[str, Any]]) -> str:
    """A command that leaves a process behind."""
    command: str = case("exec-zombies-reaped-as-pid-1")["input"]["job"]["command"]
    return command


def can_have_a_pid_namespace() -> bool:
    unshare = shutil.which("unshare")
    command = [unshare or "unshare", "--fork", "--pid", "--mount-proc", "true"]
    return unshare is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_subreaper_collects_orphans_and_steals_nothing(case: Callable[[str], dict[str, Any]]) -> None:
    wanted = case("exec-reaper-does-not-steal-exit-codes")
    result = outcome(sys.executable, "-c", PROGRAM, "subreaper", str(wanted["input"]["runs"]), orphan(case))
    assert (result["before"], result["must"]) == (False, True)
    assert result["codes"] == [wanted["expected"]["all_exit_codes"]]
    assert (result["runs"], result["own"]) == (500, 9)
    assert result["collected"] >= 50


def more() -> list[Any]:
    found = [yaml.safe_load(path.read_text()) for path in sorted((CASES / "extra").glob("exec-*.yaml"))]
    return [pytest.param(case, id=case["id"]) for case in found if case["input"].get("how") == "subreaper"]


@pytest.mark.parametrize("wanted", more())
def test_no_exit_code_is_lost_whatever_dies_around_it(wanted: dict[str, Any]) -> None:
    given = wanted["input"]
    runs, command = str(given["runs"]), given["job"]["command"]
    result = outcome(sys.executable, "-c", PROGRAM, "subreaper", runs, given["orphans"], command)
    assert result["codes"] == [wanted["expected"]["all_exit_codes"]]
    assert (result["runs"], result["own"]) == (given["runs"], 9)


def test_as_pid_1_orphans_are_collected_and_no_exit_code_is_stolen(case: Callable[[str], dict[str, Any]]) -> None:
    if not can_have_a_pid_namespace():
        pytest.skip("this machine lets nobody make a PID namespace")
    wanted = case("exec-reaper-does-not-steal-exit-codes")
    namespace = ("unshare", "--fork", "--pid", "--mount-proc")
    result = outcome(*namespace, sys.executable, "-c", PROGRAM, "init", str(wanted["input"]["runs"]), orphan(case))
    assert (result["pid"], result["must"]) == (1, True)
    assert result["codes"] == [wanted["expected"]["all_exit_codes"]]
    assert (result["runs"], result["own"]) == (500, 9)
    assert result["collected"] >= 50


@pytest.mark.parametrize("look", [reaper._children, reaper._children_by_parent])
def test_children_are_found_with_and_without_the_kernels_list(look: Callable[[], list[int]]) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert child.pid in look()
        assert not reaper._is_zombie(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid in look()
        assert reaper._is_zombie(child.pid)
    finally:
        child.kill()
        child.wait()
    assert child.pid not in look()
    assert not reaper._is_zombie(child.pid)
