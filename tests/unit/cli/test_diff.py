"""Comparing the jobs of a node with those of a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from cronstable.cli.diff import Difference, compare
from cronstable.cli.places import Places
from cronstable.config import load
from cronstable.core.definition import definitions, seal, sealing_key
from cronstable.core.job import Job
from cronstable.plugin.manager import load_plugins

BASE: dict[str, Any] = {"name": "a", "command": "true", "schedule": "0 3 * * *"}

RETRY = {"initialDelay": 1, "maximumDelay": 300, "backoffMultiplier": 2}
FAILS = {"producesStdout": False, "producesStderr": True, "nonzeroReturn": True, "always": False}


@pytest.fixture
def jobs(tmp_path: Path) -> Any:
    plugins = load_plugins({})

    def made(*written: dict[str, Any], **top: Any) -> tuple[Job, ...]:
        file = tmp_path / "cron.yaml"
        file.write_text(yaml.safe_dump({**top, "jobs": list(written)}, sort_keys=False), encoding="utf-8")
        result = load(str(file), plugins=plugins, environ={}, hostname="node-a")
        assert result.config is not None, result.findings
        return result.config.jobs

    return made


def running(jobs: tuple[Job, ...], token: str | None = None) -> dict[str, Any]:
    """What a node with these jobs answers."""
    key = None if token is None else sealing_key(token.encode(), "n")
    rows = [
        {
            "name": job.name,
            "source": job.source,
            "keys": dict(one.keys),
            "hidden": {k: None if key is None else seal(key, job.name, k, v) for k, v in one.hidden.items()},
        }
        for job, one in definitions(jobs)
    ]
    return {"job_set_id": "old", "nonce": None if token is None else "n", "jobs": rows}


def changes(found: Difference) -> dict[str, dict[str, tuple[Any, Any]]]:
    return {job.name: {".".join(one.path): (one.old, one.new) for one in many} for job, many in found.changed}


def test_equal_jobs_are_no_difference(jobs: Any) -> None:
    same = jobs(BASE)
    assert not compare(running(same), same, "old", None)


def test_what_comes_and_goes_is_named_in_its_order(jobs: Any) -> None:
    old, new = ([{**BASE, "name": name} for name in names] for names in ("zya", "amb"))
    found = compare(running(jobs(*old)), jobs(*new), "new", None)
    assert ([job.name for job in found.added], found.removed, found.changed) == (["m", "b"], ("z", "y"), ())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"command": "false"}, {}, {"command": ("false", "true")}),
        ({"command": ["a", "b"]}, {}, {"command": (["a", "b"], "true")}),
        ({"schedule": "@daily"}, {}, {"schedule": ("@daily", "0 3 * * *")}),
        ({}, {"enabled": False}, {"enabled": (True, False)}),
        ({"executionTimeout": 30}, {"executionTimeout": 30.0}, {}),
        ({}, {"executionTimeout": 30.5}, {"executionTimeout": (None, 30.5)}),
        ({"concurrencyPolicy": "Forbid"}, {}, {"concurrencyPolicy": ("Forbid", "Allow")}),
        ({}, {"concurrencyPolicy": "Allow", "killTimeout": 30, "priority": "normal"}, {}),
        ({}, {"failsWhen": {**FAILS, "producesStderr": False}}, {"failsWhen.producesStderr": (True, False)}),
        ({}, {"workingDirectory": "/tmp"}, {"workingDirectory": (None, "/tmp")}),
        ({}, {"onFailure": {"retry": {**RETRY, "maximumRetries": 0}}}, {}),
        (
            {"onFailure": {"retry": {**RETRY, "maximumRetries": 2}}},
            {"onFailure": {"retry": {**RETRY, "maximumRetries": 3}}},
            {"onFailure.retry.maximumRetries": (2, 3)},
        ),
        (
            {},
            {"environment": [{"key": "A", "value": "x"}]},
            {"environment.A": (None, "<redacted>")},
        ),
        ({"monitorResources": True}, {}, {"monitorResources": (True, None)}),
    ],
)  # fmt: skip
def test_every_key_that_changes_has_its_old_and_new_value(
    jobs: Any, old: dict[str, Any], new: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = compare(running(jobs({**BASE, **old})), jobs({**BASE, **new}), "old", None)
    assert changes(found) == ({"a": expected} if expected else {})


def secretive(pin: str, password: str = "sesame", more: tuple[str, ...] = ()) -> dict[str, Any]:
    environment = [{"key": "PIN", "value": pin}, *({"key": name, "value": "x"} for name in more)]
    mail = {"from": "a@example.org", "to": "b@example.org", "smtpHost": "mail", "password": {"value": password}}
    return {**BASE, "environment": environment, "onFailure": {"report": {"mail": mail}}}


def test_hidden_values_are_compared_with_the_token_and_without_it_that_they_were_not_is_said(jobs: Any) -> None:
    old, same, other = (jobs(secretive(*given)) for given in (("1234",), ("1234",), ("1235", "sesam")))
    assert not compare(running(old, "t"), same, "old", "t").untold
    assert not compare(running(old, "t"), same, "old", "t")
    told = compare(running(old, "t"), other, "new", "t")
    assert [(one.path, one.hidden) for _, many in told.changed for one in many] == [
        (("environment",), True),
        (("onFailure",), True),
    ]
    for token, shown in ((None, None), ("t", None), (None, "t")):
        untold = compare(running(old, shown), other, "old", token)
        assert (untold.untold, untold.changed) == ({"a": ("environment", "onFailure")}, ())
        assert not untold


def test_values_beside_a_new_variable_are_not_said_to_be_equal(jobs: Any) -> None:
    found = compare(running(jobs(secretive("1")), "t"), jobs(secretive("2", more=("NEW",))), "new", "t")
    assert changes(found) == {"a": {"environment.NEW": (None, "<redacted>")}}
    assert found.untold == {"a": ("environment",)}


def test_a_difference_in_what_no_definition_has_is_still_one(jobs: Any) -> None:
    same = jobs(BASE)
    found = compare(running(same), same, "new", None)
    assert found.other
    assert found


def test_a_strange_answer_is_a_node_without_jobs(jobs: Any) -> None:
    for answer in ({}, {"jobs": None}, {"jobs": [3, {"name": "a"}], "nonce": 4}):
        found: Difference = compare(answer, jobs(BASE), "new", "t")  # type: ignore[arg-type]  # what a stranger may send
        assert found


def test_a_key_is_found_where_it_is_written(tmp_path: Path, jobs: Any) -> None:
    (tmp_path / "deep.yaml").write_text("defaults:\n  shell: /bin/bash\n  user: root\n", encoding="utf-8")
    (tmp_path / "base.yaml").write_text("include: [deep.yaml]\ndefaults:\n  shell: /bin/sh\n", encoding="utf-8")
    main = tmp_path / "main.yaml"
    main.write_text(
        """include:
  - base.yaml
defaults:
  environment:
    - {key: ONE, value: "1"}
  onFailure:
    report: {mail: {from: f@example.org, to: t@example.org,
      smtpHost: mail}}
jobs:
  - name: a
    command: "true"
    schedule: "@daily"
    environment:
      - {key: X, value: "1"}
      - {key: Y, value: "1"}
    onFailure:
      report: {mail: {subject: s}}
  - name: b
    schedule: {minute: "3"}
    command: "true"
""",
        encoding="utf-8",
    )
    result = load(str(main), plugins=load_plugins({}), environ={}, hostname="n")
    assert result.config is not None, result.findings
    a, b = result.config.jobs
    places = Places()

    def where(job: Job, *path: str) -> tuple[str, int]:
        file, line = places.of(job, path)
        return os.path.basename(file), line

    assert where(a, "command") == ("main.yaml", 11)
    assert where(a, "environment", "Y") == ("main.yaml", 15)
    assert where(a, "environment", "ONE") == ("main.yaml", 5)
    assert where(b, "environment", "ONE") == ("main.yaml", 5)
    assert where(a, "onFailure", "report", "mail", "smtpHost") == ("main.yaml", 8)
    assert where(a, "onFailure", "report", "mail", "subject") == ("main.yaml", 17)
    assert where(b, "shell") == ("base.yaml", 3)
    assert where(b, "user") == ("deep.yaml", 3)
    assert where(b, "schedule") == ("main.yaml", 19)
    assert where(b, "group") == ("main.yaml", 18)
    main.unlink()
    assert Places().of(b, ("command",)) == (str(main), 18)
