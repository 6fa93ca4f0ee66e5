"""Cases of single runs as data: what a job says, and what has to come out of a real process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from cronstable.core.job import FailsWhen, Job
from cronstable.core.runs import RunKey, RunRecord
from cronstable.runtime.runner import RunRequest, RunTools, run_job

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

EXTRA = Path(__file__).parents[2] / "cases" / "extra"
OPTIONS = {
    "captureStdout": "capture_stdout",
    "captureStderr": "capture_stderr",
    "saveLimit": "save_limit",
    "maxLineLength": "max_line_length",
    "executionTimeout": "execution_timeout",
    "killTimeout": "kill_timeout",
    "user": "user",
    "group": "group",
}
FAILS = {
    "producesStdout": "produces_stdout",
    "producesStderr": "produces_stderr",
    "nonzeroReturn": "nonzero_return",
    "always": "always",
}
PATIENCE = 60.0
"""Seconds for a case that names no limit of its own."""

Run = Callable[[Mapping[str, Any]], Awaitable[RunRecord]]


def cases() -> list[Any]:
    found = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(EXTRA.glob("exec-*.yaml"))]
    return [pytest.param(case, id=case["id"]) for case in found if case["input"].get("how") == "run"]


@pytest.fixture
def play(tools: RunTools, job_of: Callable[..., Job], tmp_path: Path) -> Run:
    """One run of a case's job, in a directory with the case's files."""

    async def go(given: Mapping[str, Any]) -> RunRecord:
        for name, text in given.get("files", {}).items():
            (tmp_path / name).write_text(text)
        job = given["job"]
        options = {OPTIONS[key]: value for key, value in job.items() if key in OPTIONS}
        if "env_file" in job:
            options["env_file"] = str(tmp_path / job["env_file"])
        if "environment" in job:
            options["environment"] = tuple((entry["key"], entry["value"]) for entry in job["environment"])
        if "failsWhen" in job:
            options["fails_when"] = FailsWhen(**{FAILS[key]: value for key, value in job["failsWhen"].items()})
        made = job_of(job["command"], working_directory=str(tmp_path), **options)
        request = RunRequest(RunKey("run", "job", 60), made)
        return await run_job(replace(request, variables=job.get("variables", {})), tools)

    return go


@pytest.mark.parametrize("case", cases())
async def test_a_run_ends_as_its_case_says(
    case: Mapping[str, Any], play: Run, running: Callable[[str], list[int]]
) -> None:
    expected = case["expected"]
    with anyio.fail_after(expected.get("within_s", PATIENCE)):
        record = await play(case["input"])
    out = record.stdout or ""
    assert record.outcome == expected["outcome"], record
    assert record.exit_code == expected.get("exit_code", record.exit_code)
    assert out == expected.get("stdout", out)
    assert expected.get("captured_contains", "") in out
    assert expected.get("reason_names", "") in (record.fail_reason or "")
    if expected.get("encodes"):
        assert out.encode()
    if "none_left" in expected:
        assert running(expected["none_left"]) == []
    if "lines" in expected:
        lines = out.splitlines()
        assert (len(lines), lines[1]) == (expected["lines"], expected["marker"])
        assert {len(line) for line in lines} == {expected["line_length"], len(expected["marker"])}
