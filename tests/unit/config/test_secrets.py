"""Secrets fail closed and are never repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cronstable.config import format_findings

_SECRET = "hunter2-do-not-print"


def _job(source: str) -> str:
    return (
        "jobs:\n  - name: a\n    command: echo\n    schedule: '@daily'\n"
        "    onFailure:\n      report:\n        mail:\n          from: a\n          to: b\n"
        f"          password: {source}\n"
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{}", "the secret has no source; allowed: value, fromFile, fromEnvVar"),
        ("{value: null, fromFile: null}", "the secret has no source"),
        ("{value: ''}", "the secret is empty"),
        ("{fromFile: ''}", "`fromFile` is empty"),
        ("{fromFile: absent}", "cannot be read: No such file or directory"),
        ("{fromFile: empty}", "is empty"),
        ("{fromFile: binary}", "is not UTF-8"),
        ('{fromFile: "a\\0b"}', "not a usable path"),
        ("{fromFile: .}", "cannot be read: Is a directory"),
        ("{fromEnvVar: UNSET}", "the variable UNSET, which holds the secret, is not set"),
        ("{fromEnvVar: EMPTY}", "the variable EMPTY, which holds the secret, is empty"),
    ],
)
def test_a_source_that_gives_nothing_is_refused(load_files: Any, source: str, says: str) -> None:
    files = {"cronstable.yaml": _job(source), "empty": " \n", "binary": b"\xff\xfe\x00"}
    result = load_files(files, environ={"EMPTY": ""})
    text = format_findings(result.findings)
    assert result.config is None
    assert says in text
    assert "cronstable.yaml:10:" in text


def test_the_first_source_that_is_given_counts(load_files: Any) -> None:
    result = load_files(_job("{value: x, fromFile: absent, fromEnvVar: UNSET}"))
    assert result.config is not None


def test_the_reference_stays_in_the_job_and_the_file_is_watched(load_files: Any, tmp_path: Path) -> None:
    result = load_files({"cronstable.yaml": _job("{fromFile: s}"), "s": "\ufeff" + _SECRET + "\n"})
    assert result.config is not None
    assert _SECRET not in repr(result.config.jobs)
    assert str(tmp_path / "s") in result.watched


@pytest.mark.parametrize(
    "source",
    [
        _SECRET,
        f"[{_SECRET}]",
        f"{{valeu: {_SECRET}}}",
        f"{{value: [{_SECRET}]}}",
        f"{{value: {{x: {_SECRET}}}}}",
        f"{{value: {_SECRET}, fromFile: [x]}}",
    ],
)
def test_a_secret_in_the_wrong_shape_is_not_repeated(load_files: Any, source: str) -> None:
    result = load_files(_job(source))
    assert result.config is None
    for form in ("text", "json"):
        assert _SECRET not in format_findings(result.findings, form)


def test_a_token_of_the_web_section_fails_closed(load_files: Any) -> None:
    result = load_files("web:\n  listen: ['http://127.0.0.1:1']\n  authToken:\n    fromEnvVar: UNSET\n")
    assert result.config is None
    assert "UNSET" in format_findings(result.findings)
