"""Programs that plugins run through the host: their end, their output, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from cronstable.runtime.processes import OUTPUT_KEPT, HostProcesses
from cronstable.runtime.spawn import PosixSpawner
from cronstable.runtime.system import SystemClock
from cronstable.testing.clock import until

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


@pytest.fixture
def processes(spawner: PosixSpawner) -> HostProcesses:
    return HostProcesses(spawner, SystemClock(), {"PATH": os.environ["PATH"], "A": "daemon", "B": "daemon"})


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def test_variables_lie_over_those_of_the_daemon(processes: HostProcesses) -> None:
    end = await processes.run(sh("echo $A $B $C; exit 7"), env={"B": "mine", "C": "too"}, timeout=10)
    assert (end.exit_code, end.timed_out, end.output) == (7, False, b"daemon mine too\n")


async def test_both_streams_are_kept_to_their_end_and_stdin_is_empty(processes: HostProcesses) -> None:
    end = await processes.run(sh("head -c 1000000 /dev/zero; cat; echo oops >&2; echo last"), timeout=10)
    assert end.exit_code == 0
    assert len(end.output) == OUTPUT_KEPT
    assert b"oops" in end.output
    assert b"last" in end.output


async def test_a_program_that_cannot_be_started_is_an_os_error(processes: HostProcesses) -> None:
    with pytest.raises(OSError, match="/no/such/program"):
        await processes.run(["/no/such/program"], timeout=10)


async def test_at_the_timeout_the_whole_group_is_ended(
    processes: HostProcesses, spawner: PosixSpawner, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 300 & echo $$ $! > {pids}; sleep 300"
    end = await processes.run(sh(script), timeout=3)
    assert end.timed_out
    assert end.exit_code == -9
    assert [pid for pid in map(int, pids.read_text().split()) if lives(pid)] == []
    assert spawner.owned() == frozenset()


async def test_a_caller_that_is_cancelled_leaves_nothing(
    processes: HostProcesses, spawner: PosixSpawner, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            await processes.run(sh(f"sleep 300 & echo $$ $! > {pids}; wait"), timeout=300)

        tasks.start_soon(call)
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 2, within=10)
        tasks.cancel_scope.cancel()
    assert [pid for pid in map(int, pids.read_text().split()) if lives(pid)] == []
    assert spawner.owned() == frozenset()


async def test_a_child_that_holds_the_pipes_is_not_waited_for(processes: HostProcesses, tmp_path: Path) -> None:
    with anyio.fail_after(30):
        end = await processes.run(sh("sleep 60 & echo $!"), timeout=60)
    os.kill(int(end.output), signal.SIGKILL)
    assert (end.exit_code, end.timed_out) == (0, False)
