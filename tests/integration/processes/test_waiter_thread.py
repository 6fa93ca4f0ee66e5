"""The same seam where the kernel has no pidfd: a thread waits, everything else stays (the platform is faked)."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from cronstable.core.job import Job
from cronstable.core.runs import RunKey
from cronstable.runtime import spawn
from cronstable.runtime.runner import RunRequest, RunTools, run_job
from cronstable.runtime.spawn import PosixSpawner, SpawnSpec

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

KEY = RunKey("run", "job", 60)
OURS = f"990.{os.getpid():07d}"
"""With a digit more, how long a sleep of these tests takes that no other process of this machine has."""


def refuse(_: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.fixture(params=["no pidfd at all", "no descriptor left for one", "no descriptor left to watch it"])
def threaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PosixSpawner:
    if request.param == "no descriptor left to watch it":
        monkeypatch.setattr(select, "epoll", lambda: refuse(0))
        return PosixSpawner()
    return PosixSpawner(pidfd_open=None if request.param == "no pidfd at all" else refuse)


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM)])
async def test_the_exit_code_is_the_same(
    tools: RunTools, job_of: Callable[..., Job], threaded: PosixSpawner, command: str, code: int
) -> None:
    with anyio.fail_after(10):
        record = await run_job(RunRequest(KEY, job_of(command)), replace(tools, spawner=threaded))
    assert record.exit_code == code
    assert threaded.owned() == frozenset()


async def test_a_timeout_kills_the_group(
    tools: RunTools, job_of: Callable[..., Job], threaded: PosixSpawner, running: Callable[[str], list[int]]
) -> None:
    job = job_of(f"sleep {OURS}4; true", execution_timeout=0.2)
    with anyio.fail_after(10):
        record = await run_job(RunRequest(KEY, job), replace(tools, spawner=threaded))
    assert record.exit_code == -100
    assert running(f"{OURS}4") == []


async def test_without_waitid_the_thread_collects_the_child(
    monkeypatch: pytest.MonkeyPatch, threaded: PosixSpawner
) -> None:
    monkeypatch.delattr(os, "waitid")
    process = threaded.spawn(SpawnSpec(("sh", "-c", "exit 5"), {"PATH": os.environ["PATH"]}))
    with anyio.fail_after(10):
        assert await process.wait() == 5
    process.release()
    assert threaded.owned() == frozenset()


async def test_without_proc_the_group_is_found_through_the_process_table(
    monkeypatch: pytest.MonkeyPatch, threaded: PosixSpawner, tools: RunTools, job_of: Callable[..., Job]
) -> None:
    monkeypatch.setattr(spawn, "HAS_PROC", False)
    job = job_of(f"trap 'sleep 0.2; exit' TERM; sleep {OURS}3 & wait", execution_timeout=0.2)
    with anyio.fail_after(10):
        record = await run_job(RunRequest(KEY, job), replace(tools, spawner=threaded))
    assert record.exit_code == -100


def steal(pid: int) -> None:
    """Take the exit status as a careless library would."""
    os.waitpid(pid, 0)


async def test_a_status_that_somebody_else_took_is_unknown_and_not_invented(spawner: PosixSpawner) -> None:
    process = spawner.spawn(SpawnSpec(("sh", "-c", "exit 5"), {"PATH": os.environ["PATH"]}))
    steal(process.pid)
    with anyio.fail_after(10):
        assert await process.wait() is None
    process.release()
    assert spawner.owned() == frozenset()
