"""Real runs: what a job gets from the daemon, and what becomes of it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from cronstable.core.job import FailsWhen, Job
from cronstable.core.runs import LAUNCH_FAILED, LiveRun, Outcome, RunKey, RunRecord
from cronstable.runtime.runner import HURRIED_KILL, Cancellation, RunRequest, RunTools, run_job
from cronstable.runtime.spawn import PosixSpawner
from cronstable.runtime.start import keep_descriptors_from_children
from cronstable.testing.clock import until

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

Run = Callable[..., Awaitable[RunRecord]]
KEY = RunKey("run", "job", 60)
OURS = f"990.{os.getpid():07d}"
"""With a digit more, how long a sleep of these tests takes that no other process of this machine has."""


async def test_a_successful_run_has_its_output_and_times(run: Run) -> None:
    record = await run("echo hello", capture_stdout=True)
    assert (record.outcome, record.exit_code, record.stdout, record.stderr) == (Outcome.SUCCESS, 0, "hello\n", "")
    assert record.started_at is not None
    assert record.finished_at >= record.started_at
    assert record.duration is not None
    assert record.fail_reason is None


async def test_a_stream_that_is_not_captured_is_no_text(run: Run) -> None:
    record = await run("true", capture_stderr=False)
    assert (record.stdout, record.stderr) == (None, None)


async def test_an_argument_list_runs_without_a_shell(run: Run) -> None:
    record = await run(("printf", "%s", "$HOME; x"), capture_stdout=True)
    assert record.stdout == "$HOME; x"


async def test_an_empty_shell_means_the_system_shell(run: Run) -> None:
    assert (await run("echo $0", capture_stdout=True, shell="")).stdout == "/bin/sh\n"


async def test_a_chosen_shell_gets_the_command_after_dash_c(run: Run, tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    shell.chmod(0o755)
    assert (await run("any thing", capture_stdout=True, shell=str(shell))).stdout == "-c|any thing|"


async def test_the_exit_code_of_a_signal_is_negative(run: Run) -> None:
    record = await run("kill -KILL $$")
    assert (record.exit_code, record.outcome) == (-signal.SIGKILL, Outcome.FAILURE)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (("no-such-command-here",), {}, "cannot start 'no-such-command-here': No such file"),
        (("/etc/passwd",), {}, "Permission denied"),
        ("true", {"working_directory": "/no/such/place"}, "working directory '/no/such/place': No such file"),
        ("true", {"working_directory": "/etc/passwd"}, "working directory '/etc/passwd': Not a directory"),
        ("true", {"env_file": "/no/such.env"}, "env_file '/no/such.env' cannot be used: No such file"),
        (("printf", "a\0b"), {}, "null byte"),
        ("true", {"environment": (("A=B", "c"),)}, "illegal environment variable name"),
        ("x" * 3_000_000, {}, "Argument list too long"),
    ],
)
async def test_what_cannot_start_ends_with_127_and_says_why(
    run: Run, command: Any, options: dict[str, Any], words: str
) -> None:
    record = await run(command, **options)
    assert (record.outcome, record.exit_code) == (Outcome.FAILURE, LAUNCH_FAILED)
    assert words in (record.fail_reason or "")


async def test_a_launch_failure_is_a_failure_even_where_exit_codes_do_not_matter(run: Run) -> None:
    record = await run(("no-such-command-here",), fails_when=FailsWhen(nonzero_return=False))
    assert record.outcome is Outcome.FAILURE


async def test_a_bad_line_of_the_env_file_is_named_without_its_value(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text("A=1\nhunter2\n")
    record = await run("true", env_file=str(file))
    assert record.exit_code == LAUNCH_FAILED
    assert "line 2" in (record.fail_reason or "")
    assert "hunter2" not in (record.fail_reason or "")


async def test_a_changed_env_file_holds_from_the_next_run(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text("A=1\n")
    assert (await run("echo $A", capture_stdout=True, env_file=str(file))).stdout == "1\n"
    file.write_text("A=2\n")
    assert (await run("echo $A", capture_stdout=True, env_file=str(file))).stdout == "2\n"


async def test_the_runs_own_variables_win_over_all_others(tools: RunTools, job_of: Callable[..., Job]) -> None:
    job = job_of("echo $A $B", capture_stdout=True, environment=(("A", "job"), ("B", "job")))
    tools = replace(tools, environ={**tools.environ, "A": "daemon"})
    record = await run_job(RunRequest(KEY, job, variables={"B": "run"}), tools)
    assert record.stdout == "job run\n"


async def test_the_working_directory_is_entered(run: Run, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    record = await run("ls", capture_stdout=True, working_directory=os.fspath(tmp_path), environment=(("A", "b"),))
    assert record.stdout == "here\n"


async def test_lines_reach_the_log_with_their_prefix(run: Run, sink: Any) -> None:
    await run("echo out; echo err >&2", capture_stdout=True)
    assert sorted(sink.logged().splitlines()) == ["[job stderr] err", "[job stdout] out"]
    assert sorted(line.number for batch in sink.batches for line in batch.lines()) == [1, 2]


async def test_an_empty_prefix_is_none(run: Run, sink: Any) -> None:
    await run("echo out", capture_stdout=True, stream_prefix="")
    assert sink.logged() == "out\n"


async def test_output_that_is_not_captured_goes_where_the_daemons_own_goes(
    run: Run, sink: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    await run("echo through; echo also >&2", capture_stderr=False)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("through\n", "also\n")
    assert sink.batches == []


async def test_lines_that_are_too_long_are_warned_of_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cronstable.test"):
        record = await run("echo ok; echo toolong; echo toolong", capture_stdout=True, max_line_length=4)
    assert record.stdout == "ok\n"
    assert len([r for r in caplog.records if "maxLineLength" in r.getMessage()]) == 1


@pytest.mark.parametrize("directory", [None, "/"], ids=["posix_spawn", "Popen"])
async def test_a_child_inherits_nothing_of_the_daemon(run: Run, directory: str | None) -> None:
    read, write = os.pipe()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    # As if whoever started the daemon had left it open.
    os.set_inheritable(read, True)
    keep_descriptors_from_children()
    try:
        record = await run(
            "ls /proc/self/fd; grep -E '^Sig(Blk|Ign)' /proc/self/status",
            capture_stdout=True,
            working_directory=directory,
        )
    finally:
        os.close(read)
        os.close(write)
    lines = (record.stdout or "").split()
    assert blocked == set()
    # 3 is the directory that ls itself reads.
    assert lines[:4] == ["0", "1", "2", "3"]
    assert lines[4:6] == ["SigBlk:", "0" * 16]
    # 32 and 33 belong to the C library: whoever started this suite may have left them ignored, and no program can
    # change that. What was started with nohup stays deaf to a hangup, and so do its children.
    theirs = 0b11 << 31 | (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) << signal.SIGHUP - 1
    assert int(lines[7], 16) & ~theirs == 0


async def test_standard_input_is_empty(run: Run) -> None:
    assert (await run("cat; echo end", capture_stdout=True)).stdout == "end\n"


async def test_a_job_leads_a_session_and_a_group_of_its_own(run: Run) -> None:
    record = await run("cut -d' ' -f1,5,6 /proc/$$/stat", capture_stdout=True)
    pid, group, session = (record.stdout or "").split()
    assert pid == group == session


async def test_on_started_is_told_the_living_process(tools: RunTools, job_of: Callable[..., Job]) -> None:
    seen: list[LiveRun] = []
    job = job_of("echo $$", capture_stdout=True)
    record = await run_job(RunRequest(KEY, job), tools, on_started=seen.append)
    assert [live.key for live in seen] == [KEY]
    assert record.stdout == f"{seen[0].pid}\n"


async def test_a_permit_that_is_refused_spawns_nothing(
    tools: RunTools, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused

    with pytest.raises(Refused):
        await run_job(RunRequest(KEY, job_of(f"touch {tmp_path}/ran")), tools, permit=refuse)
    assert os.listdir(tmp_path) == []


async def test_a_group_that_ignores_sigterm_is_killed(run: Run, running: Callable[[str], list[int]]) -> None:
    command = f"trap '' TERM; sleep {OURS}8 & sleep {OURS}8; sleep {OURS}8"
    record = await run(command, execution_timeout=0.2, kill_timeout=0.2)
    assert record.exit_code == -100
    assert running(f"{OURS}8") == []


async def test_a_stopped_job_still_obeys_its_timeout(run: Run, running: Callable[[str], list[int]]) -> None:
    with anyio.fail_after(20):
        record = await run(f"kill -STOP $$; sleep {OURS}7", execution_timeout=0.2, kill_timeout=30)
    assert record.exit_code == -100
    assert running(f"{OURS}7") == []


async def test_a_hurried_cancellation_does_not_wait_for_the_kill_timeout(
    tools: RunTools, job_of: Callable[..., Job], sink: Any
) -> None:
    cancellation = Cancellation()
    job = job_of("trap '' TERM; echo up; while :; do sleep 0.05; done", capture_stdout=True, kill_timeout=600)
    records: list[RunRecord] = []

    async def go() -> None:
        records.append(await run_job(RunRequest(KEY, job, cancellation), tools))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go)
            await until(lambda: sink.count, within=10)
            cancellation.request("replaced")
            cancellation.request("told twice", grace=HURRIED_KILL)
    assert (records[0].outcome, records[0].fail_reason) == (Outcome.CANCELLED, "replaced")


async def test_a_run_cancelled_before_its_spawn_spawns_nothing(
    tools: RunTools, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    cancellation = Cancellation()
    cancellation.request("too early")
    record = await run_job(RunRequest(KEY, job_of(f"touch {tmp_path}/ran"), cancellation), tools)
    assert (record.outcome, record.started_at, record.fail_reason) == (Outcome.CANCELLED, None, "too early")
    assert os.listdir(tmp_path) == []


async def test_nothing_survives_when_the_daemon_gives_up_on_a_run(
    tools: RunTools, job_of: Callable[..., Job], sink: Any, running: Callable[[str], list[int]], spawner: PosixSpawner
) -> None:
    job = job_of(f"trap '' TERM; echo up; sleep {OURS}6 & sleep {OURS}6", capture_stdout=True)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_job, RunRequest(KEY, job), tools)
            await until(lambda: running(f"sleep\x00{OURS}6"), within=10)
            tasks.cancel_scope.cancel()
    assert running(f"{OURS}6") == []
    assert spawner.owned() == frozenset()


async def test_what_a_finished_job_left_in_the_background_lives_on(
    run: Run, running: Callable[[str], list[int]]
) -> None:
    record = await run(f"sleep {OURS}5 >/dev/null 2>&1 & echo $!", capture_stdout=True)
    left = int(record.stdout or "0")
    try:
        assert running(f"{OURS}5") == [left]
    finally:
        os.kill(left, signal.SIGKILL)


async def test_a_flood_from_a_background_child_does_not_keep_the_run(run: Run) -> None:
    with anyio.fail_after(10):
        record = await run("yes & echo done", capture_stdout=True)
    assert record.outcome is Outcome.SUCCESS


async def test_a_priority_is_the_nice_value_of_the_group(run: Run) -> None:
    record = await run("sleep 0.1; nice", capture_stdout=True, priority="idle")
    assert record.stdout == "19\n"


def children() -> list[str]:
    """Living and dead children of this process."""
    return [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


async def test_no_descriptor_and_no_zombie_is_left_behind(run: Run, spawner: PosixSpawner) -> None:
    await run("echo warm up", capture_stdout=True)
    gc.collect()  # what earlier tests left to it goes now, not in between
    before, others = len(os.listdir("/proc/self/fd")), set(children())
    for _ in range(20):
        await run("echo x; exit 3", capture_stdout=True)
        await run(("no-such-command-here",), capture_stdout=True)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert spawner.owned() == frozenset()
    assert set(children()) <= others


async def test_hundreds_of_runs_at_once_keep_their_exit_codes_apart(
    tools: RunTools, job_of: Callable[..., Job]
) -> None:
    codes: dict[int, int | None] = {}

    async def go(number: int) -> None:
        record = await run_job(RunRequest(KEY, job_of(f"exit {number % 200}")), tools)
        codes[number] = record.exit_code

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(300):
                tasks.start_soon(go, number)
    assert codes == {number: number % 200 for number in range(300)}


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Every descriptor that the limit allows is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    filler: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filler.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for fd in filler:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_running_out_of_descriptors_is_a_failed_launch_with_its_reason(run: Run) -> None:
    with no_descriptor_left():
        record = await run("true", capture_stdout=True)
    assert record.exit_code == LAUNCH_FAILED
    assert "Too many open files" in (record.fail_reason or "")
    assert (await run("true", capture_stdout=True)).outcome is Outcome.SUCCESS
