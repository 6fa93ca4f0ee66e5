"""All mistakes of all files, at once, in plain words and at their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cronstable.config import LoadResult, compose_schema, format_findings, load
from cronstable.config.explain import problems
from cronstable.config.schema import compose
from cronstable.core.finding import Finding, KeyPath, Severity
from cronstable.plugin.descriptors import ConfigFragment
from cronstable.plugin.manager import PluginHealth, PluginInfo, Plugins, Provided

JOB = "  - name: {0}\n    command: echo\n    schedule: '* * * * *'\n"
Errors = Callable[[LoadResult], list[tuple[str, int, str]]]


def test_ten_mistakes_in_three_files_are_ten_findings(load_files: Any, errors: Errors) -> None:
    files = {
        "conf/a.yaml": (
            "jobs:\n"
            "  - name: one\n"
            "    command: echo\n"
            "    schedule: '61 * * * *'\n"  # 1: line 4
            "    concurrencyPolicy: forbid\n"  # 2: line 5
            "  - name: two\n"  # 3: line 6, no command
            "    schedule: '@daily'\n"
            "    killTimeout: -1\n"  # 4: line 8
        ),
        "conf/b.yaml": (
            "include:\n"
            "  - absent.yaml\n"  # 5: line 2
            "jobs:\n"
            "  - name: one\n"  # 6: line 4, a name of a.yaml
            "    command: echo\n"
            "    schedule: '@daily'\n"
            "    timezone: Mars/Base\n"  # 7: line 7
            "    env_file: none.env\n"  # 8: line 8
        ),
        "conf/c.yaml": (
            "dags: {}\n"  # 9: line 1
            "jobs:\n"
            "  - name: three\n"
            "    command: echo ${UNSET}\n"
            "    schedule: '@daily'\n"
            "    workingDirectory: ${UNSET}/x\n"  # 10: line 6
        ),
    }
    result = load_files(files, path="conf")
    assert result.config is None
    assert errors(result) == [
        ("conf/a.yaml", 4, "jobs[0].schedule"),
        ("conf/a.yaml", 5, "jobs[0].concurrencyPolicy"),
        ("conf/a.yaml", 6, "jobs[1]"),
        ("conf/a.yaml", 8, "jobs[1].killTimeout"),
        ("conf/b.yaml", 2, "include[0]"),
        ("conf/b.yaml", 4, "jobs[0].name"),
        ("conf/b.yaml", 7, "jobs[0].timezone"),
        ("conf/b.yaml", 8, "jobs[0].env_file"),
        ("conf/c.yaml", 1, "dags"),
        ("conf/c.yaml", 6, "jobs[0].workingDirectory"),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("enabled: maybe", "must be true or false, not `maybe`"),
        ("saveLimit: 1.5", "must be a whole number, not `1.5`"),
        ("saveLimit: -1", "must be at least 0, not `-1`"),
        ("executionTimeout: ''", "must be a number, not empty"),
        ("executionTimeout: .", "must be a number, not `.`"),
        ("executionTimeout: nan", "must be a number, not `nan`"),
        ("executionTimeout: .inf", "must be a number, not `.inf`"),
        ("executionTimeout: 1e999", "must be a number, not `1e999`"),
        ("executionTimeout: 0", "must be more than 0, not `0`"),
        ("captureStdout: [true]", "must be true or false, not a list"),
        ("shell: {a: b}", "must be text, not a mapping"),
        ("concurrencyPolicy: Allways", "did you mean `Allow`?"),
        ("priority: 5", "allowed: idle, below-normal, normal, above-normal, high"),
        ("schedual: x", "did you mean `schedule`?"),
        ("capturestdout: true", "did you mean `captureStdout`?"),
        ("environment: {LANG: C}", "write a list of pairs: `- key: LANG`"),
        ("environment: [{key: A}]", "`value` is missing"),
        ("environment: [{key: '', value: x}]", "must not be empty"),
        ("environment: [{key: A=B, value: x}]", "without `=`"),
        ("environment: [{key: '${E:-}', value: x}]", "no process can be given this name"),
        ('environment: [{key: A, value: "x\\0"}]', "no process can be given this name or this value"),
        ("failsWhen: {always: true}", "`producesStdout` is missing"),
        ("monitorResources: {interval: 0.01}", "must be at least 0.1"),
        ("statsd: {prefix: 'a:b', host: h, port: 1}", "Without `:` and `|`."),
        ("statsd: {prefix: a, host: h, port: 70000}", "must be at most 65535"),
        ("onFailure: {retry: {maximumRetries: 1}}", "`initialDelay` is missing"),
        ("command: []", "at least 1 item"),
        ("command: ''", "there is no command to run"),
        ('command: [a, "b\\0"]', "NUL character"),
        ("name: '  '", "must not be empty"),
        ('name: "a\\tb"', "control characters"),
        ("schedule: {minute: '0 1'}", "exactly one cron column"),
        ("user: nobody-of-this-name", "unknown user `nobody-of-this-name`"),
        ("group: nobody-of-this-name", "unknown group `nobody-of-this-name`"),
        ("user: -5", "negative"),
        ("concurrencyScope: cluster", "while concurrencyPolicy is `Allow`"),
        ("concurrencyScope: cluster\n    concurrencyPolicy: Queue", "while concurrencyPolicy is `Queue`"),
        ("onLate: {report: {shell: {command: echo}}}", "without a threshold"),
    ],
)
def test_a_mistake_in_a_job_is_explained_without_jargon(load_files: Any, line: str, says: str) -> None:
    key = line.split(":")[0]
    lines = {"name": "name: a", "command": "command: echo", "schedule": "schedule: '@daily'"} | {key: line}
    result = load_files("jobs:\n  - " + "\n    ".join(lines.values()) + "\n")
    text = format_findings(result.findings)
    assert says in text
    assert f"cronstable.yaml:{2 + list(lines).index(key)}:" in text
    assert not {"oneOf", "instance", "schema", "Traceback"} & set(text.split())


def test_the_same_mistake_in_the_defaults_is_said_once_and_there(load_files: Any, errors: Errors) -> None:
    text = "defaults:\n  timezone: Nowhere/City\njobs:\n" + "".join(JOB.format(n) for n in "abc")
    assert errors(load_files(text)) == [("cronstable.yaml", 2, "defaults.timezone")]


def test_a_mistake_in_included_defaults_is_placed_in_the_included_file(load_files: Any, errors: Errors) -> None:
    files = {
        "cronstable.yaml": "include: [common.yaml]\njobs:\n" + JOB.format("a"),
        "common.yaml": "# shared\n\ndefaults:\n  user: nobody-of-this-name\n",
    }
    assert errors(load_files(files)) == [("common.yaml", 4, "defaults.user")]


def test_a_job_may_not_have_its_identity_from_the_defaults(load_files: Any, errors: Errors) -> None:
    result = load_files("defaults:\n  schedule: '@daily'\n  name: x\n")
    assert errors(result) == [
        ("cronstable.yaml", 2, "defaults.schedule"),
        ("cronstable.yaml", 3, "defaults.name"),
    ]


def test_jobs_as_a_mapping_are_told_the_right_shape(load_files: Any) -> None:
    text = format_findings(load_files("jobs:\n  backup: {command: echo}\n").findings)
    assert "write a list of mappings, each with `name`, `command`, `schedule`" in text


def test_a_job_that_is_not_a_mapping_is_one_finding(load_files: Any, errors: Errors) -> None:
    result = load_files("jobs:\n  - just text\n" + JOB.format("a"))
    assert errors(result) == [("cronstable.yaml", 2, "jobs[0]")]


def test_text_findings_have_place_path_words_and_owner() -> None:
    finding = Finding("f.yaml", 3, 5, ("jobs", 0, "x"), "is wrong", allowed=("a", "b"), hint="did you mean `a`?")
    assert format_findings([finding]) == (
        "f.yaml:3:5  jobs[0].x  is wrong; allowed: a, b; did you mean `a`?  [cronstable]"
    )
    nowhere = Finding("gone.yaml", 0, 0, (), "cannot be read: No such file or directory")
    assert format_findings([nowhere]) == "gone.yaml  cannot be read: No such file or directory  [cronstable]"
    advisory = replace(nowhere, severity=Severity.ADVISORY)
    assert "advisory: cannot" in format_findings([advisory])


def test_json_findings_have_the_same_facts() -> None:
    path: KeyPath = ("jobs", 0, "x")
    finding = Finding("f.yaml", 3, 5, path, "is wrong", allowed=("a",), hint="h", owner="acme")
    assert json.loads(format_findings([finding], "json")) == [
        {
            "file": "f.yaml",
            "line": 3,
            "column": 5,
            "path": "jobs[0].x",
            "severity": "error",
            "message": "is wrong",
            "allowed": ["a"],
            "hint": "h",
            "owner": "acme",
        }
    ]


def test_a_missing_file_is_a_finding(load_files: Any) -> None:
    result = load_files({}, path="absent.yaml")
    assert result.config is None
    assert "cannot be read: No such file" in format_findings(result.findings)
    assert result.watched


def test_a_key_of_a_plugin_is_reported_under_its_name(tmp_path: Path, builtins: Plugins) -> None:
    team = _fragment("acme-team", {"jobs[].team": {"type": "string", "pattern": "^[a-z]+$", "examples": ["x"]}})
    plugins = replace(builtins, fragments=(*builtins.fragments, team))
    (tmp_path / "c.yaml").write_text("jobs:\n" + JOB.format("a") + "    team: Blue\n")
    result = load(str(tmp_path / "c.yaml"), plugins=plugins, environ={}, hostname="h")
    assert [(f.line, f.owner) for f in result.findings] == [(5, "acme-team")]


def test_an_unknown_key_may_come_from_a_plugin_that_is_broken(tmp_path: Path, builtins: Plugins) -> None:
    broken = PluginHealth(PluginInfo("team", "acme-team", "1.0", "acme_team", builtin=False), ok=False, error="it fell")
    plugins = replace(builtins, health=(broken,))
    (tmp_path / "c.yaml").write_text("jobs:\n" + JOB.format("a") + "    teamwork: Blue\n")
    result = load(str(tmp_path / "c.yaml"), plugins=plugins, environ={}, hostname="h")
    text = format_findings(result.findings)
    assert "unknown key `teamwork`" in text
    assert "acme-team 1.0" in text
    assert "it fell" in text


def _fragment(distribution: str, schemas: dict[str, Any]) -> Provided[ConfigFragment]:
    plugin = PluginInfo(distribution, distribution, "1.0", distribution, builtin=False)
    return Provided(ConfigFragment(id=f"https://example.org/{distribution}", schemas=schemas), plugin)


def test_two_owners_of_a_key_are_both_named(builtins: Plugins) -> None:
    one = _fragment("acme-one", {"jobs[].team": {"type": "string"}})
    two = _fragment("acme-two", {"jobs[].team": {"type": "integer"}})
    inside = _fragment("acme-in", {"cluster.catchUp.mode": {"type": "string"}})
    plugins = replace(builtins, fragments=(*builtins.fragments, one, two, inside))
    conflicts = " ".join(compose(plugins).conflicts)
    assert "`jobs[].team` is owned by acme-one and by acme-two" in conflicts
    assert "`cluster.catchUp.mode` is owned by cronstable and by acme-in" in conflicts
    result = load("absent.yaml", plugins=plugins, environ={}, hostname="h")
    assert result.config is None
    assert "acme-two" in format_findings(result.findings)


def test_the_composed_schema_is_a_closed_schema_of_everything(plugins: Plugins) -> None:
    schema: Any = compose_schema(plugins)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) >= {"jobs", "defaults", "include", "logging", "cluster", "state", "web", "notify"}
    cluster = schema["properties"]["cluster"]["properties"]
    assert cluster["shelf"]["required"] == ["place"]
    assert "shelf" in cluster["backend"]["enum"]
    defaults = schema["properties"]["defaults"]
    assert "required" not in defaults
    assert not {"name", "command", "schedule"} & set(defaults["properties"])
    json.dumps(schema)


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({"auth": {"pin": "hunter2"}}, False),
        ({"routingKey": "hunter2"}, False),
        ({"onFailure": {"report": {"webhook": {"tokens": ["hunter2"]}}}}, False),
        ({"size": "https://h/hunter2"}, False),
        ({"size": "password=hunter2"}, False),
        ({"size": "hunter2"}, True),
        ({"onFailure": {"report": {"webhook": {"timeout": "hunter2"}}}}, True),
    ],
)
def test_a_finding_repeats_no_value_that_a_definition_masks(document: dict[str, Any], shown: bool) -> None:
    schema: Any = {
        "if": {"type": ["object", "array"]},
        "then": {"items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}},
        "else": {"type": "integer"},
    }
    (error,) = Draft202012Validator(schema).iter_errors(document)
    (found,) = problems(error)
    assert ("hunter2" in found.message) is shown
