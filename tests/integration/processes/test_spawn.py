"""The seam itself: what is read after the end, and a process that outlives the run."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from cronstable.runtime.spawn import CHUNK, LAST_DRAIN, PosixSpawner, SpawnSpec
from cronstable.testing.clock import until

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

ENV = {"PATH": os.environ["PATH"]}


async def test_what_is_in_the_pipe_is_read_after_the_output_was_ended(spawner: PosixSpawner) -> None:
    process = spawner.spawn(SpawnSpec(("sh", "-c", "sleep 600 & echo there"), ENV, capture_stdout=True))
    with anyio.fail_after(10):
        await process.wait()
        process.end_output()
        assert await process.read("stdout") == b"there\n"
        assert await process.read("stdout") == b""
    process.signal_group(signal.SIGKILL)
    process.release()


async def test_a_survivor_that_never_stops_writing_is_read_no_further_than_a_pipe_holds(
    spawner: PosixSpawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = spawner.spawn(SpawnSpec(("true",), ENV, capture_stdout=True))
    with anyio.fail_after(10):
        await process.wait()
        process.end_output()
        monkeypatch.setattr(os, "read", lambda fd, size: b"x" * size)
        chunks = 0
        while chunks < 100 and await process.read("stdout"):
            chunks += 1
    process.release()
    assert chunks * CHUNK == LAST_DRAIN


async def test_a_process_that_is_let_go_while_it_lives_is_still_collected(
    spawner: PosixSpawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = spawner.spawn(SpawnSpec(("sleep", "600"), ENV, capture_stdout=True))
    process.release()
    process.release()
    assert spawner.owned() == {process.pid}
    with monkeypatch.context() as patch:
        # From now on the number may be another's at any time.
        patch.setattr(os, "killpg", lambda group, signum: pytest.fail("a signal after the release"))
        process.signal_group(signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: not spawner.owned(), within=10)


async def test_a_reader_is_woken_when_the_output_is_ended(spawner: PosixSpawner) -> None:
    process = spawner.spawn(SpawnSpec(("sleep", "600"), ENV, capture_stdout=True))
    chunks: list[bytes] = []

    async def read() -> None:
        chunks.append(await process.read("stdout"))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            process.end_output()
    assert chunks == [b""]
    process.signal_group(signal.SIGKILL)
    with anyio.fail_after(10):
        assert await process.wait() == -signal.SIGKILL
    process.release()
