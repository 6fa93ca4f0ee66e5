"""Every ``config-*.yaml`` case: files as a user writes them, and what has to come out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from os.path import normpath
from pathlib import Path
from typing import Any

import pytest
import yaml

from cronstable.cli.main import run
from cronstable.config import LoadResult, format_findings, load, write_starter
from cronstable.core.finding import Severity, key_path
from cronstable.plugin.manager import Plugins

_CASES = Path(__file__).resolve().parents[2] / "cases"


def _cases() -> Iterator[Any]:
    for path in sorted([*_CASES.glob("config-*.yaml"), *(_CASES / "extra").glob("config-*.yaml")]):
        case = yaml.safe_load(path.read_text("utf-8"))
        if isinstance(case["input"]["command"], str):
            yield pytest.param(case, id=case["id"])


def _run(case: Mapping[str, Any], directory: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> LoadResult:
    for name, text in case["input"]["files"].items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, "utf-8")
    monkeypatch.chdir(directory)
    target = shlex.split(case["input"]["command"])[-1]
    return load(target, plugins=plugins, environ=case["input"].get("env", {}), hostname="host-1")


@pytest.mark.parametrize("case", list(_cases()))
def test_a_case_of_the_configuration_is_judged_as_it_says(
    case: Mapping[str, Any], tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = _run(case, tmp_path, plugins, monkeypatch)
    expected = case["expected"]
    if "either" in expected:
        text = format_findings(result.findings)
        assert "user" in text, text
    elif expected.get("rejected"):
        _check_rejected(case, result)
    else:
        _check_accepted(expected, result)


def _check_rejected(case: Mapping[str, Any], result: LoadResult) -> None:
    expected = case["expected"]
    assert result.config is None
    text = format_findings(result.findings)
    named = expected["message_names"]
    found = [f for f in result.findings if f.severity is Severity.ERROR and key_path(f.path) == named["key_path"]]
    assert found, text
    tolerance = expected.get("line_tolerance", 0)
    assert any(abs(finding.line - named["line"]) <= tolerance for finding in found), text
    assert all(normpath(finding.file) in case["input"]["files"] for finding in found)
    for value in expected.get("lists_allowed_values", ()):
        assert value in text
    if "hint_contains_close_match" in expected:
        assert any(expected["hint_contains_close_match"] in (finding.hint or "") for finding in found)
    for word in expected.get("says", ()):
        assert word in text
    for word in expected.get("never_says", ()):
        assert word not in text


def _check_accepted(expected: Mapping[str, Any], result: LoadResult) -> None:
    assert result.config is not None, format_findings(result.findings)
    jobs = {job.name: job for job in result.config.jobs}
    if "jobs_loaded" in expected:
        assert sorted(jobs) == sorted(expected["jobs_loaded"])
    for name, facts in expected.get("jobs", {}).items():
        assert str(jobs[name].schedule.zone) == facts["timezone"]
    if "job_timezones" in expected:
        assert [str(job.schedule.zone) for job in jobs.values()] == expected["job_timezones"]
    if "effective_timezone" in expected:
        assert {str(job.schedule.zone) for job in jobs.values()} == {expected["effective_timezone"]}
    if "job_name" in expected:
        assert list(jobs) == [expected["job_name"]]
    if "schedule_as_text" in expected:
        assert [job.schedule.text for job in jobs.values()] == [expected["schedule_as_text"]]
    if "process_environment" in expected:
        (job,) = jobs.values()
        assert dict(job.options.environment) == expected["process_environment"]
    if "advisories" in expected:
        assert [key_path(f.path) for f in result.findings] == expected["advisories"]


def _dialogues() -> Iterator[Any]:
    for path in sorted([*_CASES.glob("config-*.yaml"), *(_CASES / "extra").glob("config-*.yaml")]):
        case = yaml.safe_load(path.read_text("utf-8"))
        if isinstance(case["input"]["command"], list):
            yield pytest.param(case, id=case["id"])


@pytest.mark.parametrize("case", list(_dialogues()))
def test_a_case_of_several_commands_goes_as_it_says(
    case: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: Mapping[str, str] = case["input"].get("files", {})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    codes = [run(shlex.split(command)[1:]) for command in case["input"]["command"]]
    assert codes == case["expected"]["exit_codes"]
    assert {name: (tmp_path / name).read_text("utf-8") for name in files} == files


def test_the_starter_is_valid_and_never_overwritten(tmp_path: Path, plugins: Plugins) -> None:
    directory = tmp_path / "conf"
    path = Path(write_starter(str(directory)))
    result = load(str(directory), plugins=plugins, environ={}, hostname="host-1")
    assert result.config is not None
    assert result.findings == ()
    path.write_text("jobs: []\n", "utf-8")
    with pytest.raises(FileExistsError):
        write_starter(str(directory))
    assert path.read_text("utf-8") == "jobs: []\n"
