"""The cases about single runs, each with real processes."""

from __future__ import annotations

import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cronstable.core.job import Job
from cronstable.core.runs import EXECUTION_TIMEOUT, Outcome, RunKey, RunRecord
from cronstable.runtime.runner import Cancellation, RunRequest, RunTools, run_job
from cronstable.testing.clock import until

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

Run = Callable[..., Awaitable[RunRecord]]
Cases = Callable[[str], dict[str, Any]]
SLACK = 15.0
"""Seconds more than a case allows, for a busy machine: what is told apart is ten minutes and more."""


async def test_a_background_child_that_holds_the_pipe_does_not_keep_the_run(run: Run, case: Cases) -> None:
    wanted = case("exec-background-child-holds-pipe")
    with anyio.fail_after(wanted["expected"]["run_finishes_within_s"]):
        record = await run(wanted["input"]["job"]["command"], capture_stdout=True)
    assert record.outcome is Outcome.SUCCESS
    assert record.stdout == wanted["expected"]["stdout"] + "\n"


async def test_explicit_environment_wins_over_the_file(run: Run, case: Cases, tmp_path: Path) -> None:
    wanted = case("exec-env-precedence")
    file = tmp_path / "x.env"
    file.write_text(wanted["input"]["files"]["x.env"])
    job = wanted["input"]["job"]
    pairs = tuple((entry["key"], entry["value"]) for entry in job["environment"])
    record = await run(job["command"], capture_stdout=True, env_file=str(file), environment=pairs)
    assert record.stdout == wanted["expected"]["stdout"] + "\n"


async def test_undecodable_output_is_replaced(run: Run, case: Cases) -> None:
    wanted = case("exec-invalid-utf8-output")
    record = await run(wanted["input"]["job"]["command"], capture_stdout=True)
    assert record.outcome == wanted["expected"]["outcome"]
    assert wanted["expected"]["captured_contains"] in (record.stdout or "")


async def test_output_on_stderr_means_failure_by_default(run: Run, case: Cases) -> None:
    wanted = case("exec-stderr-means-failure-by-default")
    record = await run(wanted["input"]["job"]["command"])
    assert record.outcome == wanted["expected"]["outcome"]
    assert wanted["expected"]["reason_names"] in (record.fail_reason or "")


async def test_a_timeout_kills_the_whole_tree(run: Run, case: Cases, running: Callable[[str], list[int]]) -> None:
    wanted = case("exec-timeout-kills-whole-tree")
    job = wanted["input"]["job"]
    # The fraction tells this sleep from any other on the machine; the case's trap is a shell with a child.
    command = f"{job['command']}.1875{os.getpid():07d}; true"
    with anyio.fail_after(wanted["expected"]["ends_within_s"] + SLACK):
        record = await run(command, execution_timeout=job["executionTimeout"], kill_timeout=job["killTimeout"])
    assert record.outcome == wanted["expected"]["outcome"]
    assert record.exit_code == EXECUTION_TIMEOUT
    assert "executionTimeout of 2 s" in (record.fail_reason or "")
    assert running(f"999.1875{os.getpid():07d}") == []


async def test_two_million_lines_pass_in_bounded_memory(tools: RunTools, sink: Any, run: Run, case: Cases) -> None:
    wanted = case("exec-two-million-lines")
    job = wanted["input"]["job"]
    sink.keep = False
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command = f"echo first; {job['command']}; echo last"
    record = await run(command, capture_stdout=True, save_limit=job["saveLimit"])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    lines = (record.stdout or "").splitlines()
    marker = [line for line in lines if line.startswith("[....")]
    assert sink.count == 2_000_002
    assert marker == [f"[.... {2_000_002 - job['saveLimit']} lines discarded ...]"]
    assert len(lines) - 1 <= wanted["expected"]["retained_lines_at_most"]
    assert (lines[0], lines[-1]) == ("first", "last")
    assert grown < wanted["expected"]["memory_growth_below_mib"]


async def test_cancelling_reaches_the_group_and_not_only_the_shell(
    tools: RunTools, sink: Any, job_of: Callable[..., Job], case: Cases
) -> None:
    wanted = case("signal-term-reaches-group-not-only-shell")
    command = wanted["input"]["job"]["command"].replace('trap "echo got', 'echo up; trap "echo got')
    cancellation = Cancellation()
    request = RunRequest(RunKey("r", "job", 60), job_of(command, capture_stdout=True), cancellation)
    records = []

    async def go() -> None:
        records.append(await run_job(request, tools))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go)
            await until(lambda: sink.count, within=10, what="the job is up")
            cancellation.request("cancelled by a test")
    assert records[0].outcome is Outcome.CANCELLED
    assert wanted["expected"]["stdout_contains"] in (records[0].stdout or "")
