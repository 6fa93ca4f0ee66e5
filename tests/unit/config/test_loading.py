"""Files, directories, includes, defaults and variables (reference 1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cronstable.config import Config, LoadResult, format_findings, load
from cronstable.config.merge import deep_merge
from cronstable.core.finding import Severity
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, FailsWhen, Job
from cronstable.plugin.manager import Plugins

JOB = "  - name: {0}\n    command: echo\n    schedule: '* * * * *'\n"
Errors = Callable[[LoadResult], list[tuple[str, int, str]]]


def _config(result: LoadResult) -> Config:
    assert result.config is not None, format_findings(result.findings)
    return result.config


def _jobs(result: LoadResult) -> dict[str, Job]:
    return {job.name: job for job in _config(result).jobs}


def test_all_typed_keys_reach_the_options(load_files: Any) -> None:
    result = load_files(
        "jobs:\n"
        "  - name: a\n"
        "    command: [echo, '1']\n"
        "    schedule: {minute: 5, year: 2030}\n"
        "    enabled: no\n"
        "    shell: ''\n"
        "    captureStdout: yes\n"
        "    captureStderr: false\n"
        "    saveLimit: 0\n"
        "    maxLineLength: 10\n"
        "    streamPrefix: ''\n"
        "    concurrencyPolicy: Replace\n"
        "    clusterPolicy: EveryNode\n"
        "    executionTimeout: 1.5\n"
        "    killTimeout: 0\n"
        "    failsWhen: {producesStdout: true, producesStderr: false}\n"
        "    environment: [{key: A, value: 1}]\n"
        "    workingDirectory: ~/x\n"
        "    user: 12\n"
        "    group: 13\n"
        "    priority: idle\n"
        "    timezone: Europe/Paris\n"
        "    startingDeadlineSeconds: 60\n",
        environ={"HOME": "/home/cron"},
    )
    job = _jobs(result)["a"]
    options = job.options
    assert job.command == ("echo", "1")
    assert job.schedule.text == "5 * * * * 2030"
    assert job.source.endswith("cronstable.yaml:2")
    assert (options.enabled, options.shell, options.stream_prefix) == (False, "", "")
    assert (options.capture_stdout, options.capture_stderr) == (True, False)
    assert (options.save_limit, options.max_line_length) == (0, 10)
    assert options.concurrency_policy is ConcurrencyPolicy.REPLACE
    assert options.cluster_policy is ClusterPolicy.EVERY_NODE
    assert (options.execution_timeout, options.kill_timeout) == (1.5, 0)
    assert options.fails_when == FailsWhen(produces_stdout=True, produces_stderr=False)
    assert options.environment == (("A", "1"),)
    assert options.working_directory == "/home/cron/x"
    assert (options.user, options.group, options.priority) == (12, 13, "idle")
    assert str(job.schedule.zone) == "Europe/Paris"
    assert options.raw == {"startingDeadlineSeconds": 60}


def test_jobs_that_say_the_same_share_their_options(load_files: Any) -> None:
    jobs = _jobs(load_files("defaults: {killTimeout: 3}\njobs:\n" + "".join(JOB.format(n) for n in "abc")))
    assert len({id(job.options) for job in jobs.values()}) == 1
    assert jobs["a"].options.kill_timeout == 3


def test_all_columns_of_a_schedule_by_name_give_seven_in_order(load_files: Any) -> None:
    columns = "{second: 1, minute: 2, hour: 3, dayOfMonth: 4, month: 5, dayOfWeek: 6, year: 2030, dayMatch: all}"
    job = _jobs(load_files(f"jobs:\n  - name: a\n    command: x\n    schedule: {columns}\n"))["a"]
    assert job.schedule.text == "1 2 3 4 5 6 2030"
    assert job.schedule.day_match == "all"


@pytest.mark.parametrize(
    ("keys", "environ", "zone"),
    [
        ("", {"TZ": "Asia/Tokyo"}, "UTC"),
        ("utc: false", {"TZ": "Asia/Tokyo"}, "Asia/Tokyo"),
        ("utc: false\n  timezone: Europe/Rome", {"TZ": "Asia/Tokyo"}, "Europe/Rome"),
        ("timezone: null", {}, "UTC"),
    ],
)
def test_the_zone_of_a_schedule_is_named_or_utc_or_local(
    load_files: Any, keys: str, environ: dict[str, str], zone: str
) -> None:
    jobs = _jobs(load_files(f"defaults:\n  {keys}\njobs:\n" + JOB.format("a"), environ=environ))
    assert str(jobs["a"].schedule.zone) == zone


def test_merging_joins_lists_and_environment_by_variable() -> None:
    base: Any = {
        "environment": [{"key": "A", "value": "1"}, {"key": "B", "value": "2"}],
        "onFailure": {"retry": {"maximumRetries": 1}, "report": {"shell": {"command": ["a"]}}},
        "sentry": {"fingerprint": ["x"]},
        "sla": {"lateAfterSeconds": 1},
    }
    over: Any = {
        "environment": [{"key": "B", "value": "3"}, {"key": "C", "value": "4"}],
        "onFailure": {"report": {"shell": {"command": ["b"]}}},
        "sentry": {"fingerprint": ["y"]},
        "sla": None,
    }
    assert deep_merge(base, over) == {
        "environment": [{"key": "A", "value": "1"}, {"key": "B", "value": "3"}, {"key": "C", "value": "4"}],
        "onFailure": {"retry": {"maximumRetries": 1}, "report": {"shell": {"command": ["a", "b"]}}},
        "sentry": {"fingerprint": ["y"]},
        "sla": {"lateAfterSeconds": 1},
    }
    assert base["environment"][1]["value"] == "2"


def test_a_file_of_defaults_alone_is_shared_and_the_includers_own_win(load_files: Any) -> None:
    files = {
        "cronstable.yaml": "include: [one.yaml, two.yaml]\ndefaults: {saveLimit: 3}\njobs:\n" + JOB.format("a"),
        "one.yaml": "defaults: {saveLimit: 1, killTimeout: 1, maxLineLength: 1}\n",
        "two.yaml": "defaults: {saveLimit: 2, killTimeout: 2}\n",
    }
    options = _jobs(load_files(files))["a"].options
    assert (options.save_limit, options.kill_timeout, options.max_line_length) == (3, 2, 1)


def test_defaults_of_an_including_file_never_reach_included_jobs(load_files: Any) -> None:
    files = {
        "cronstable.yaml": "include: [child.yaml]\ndefaults: {saveLimit: 3}\njobs:\n" + JOB.format("a"),
        "child.yaml": "jobs:\n" + JOB.format("b"),
    }
    jobs = _jobs(load_files(files))
    assert list(jobs) == ["b", "a"]
    assert (jobs["a"].options.save_limit, jobs["b"].options.save_limit) == (3, 4096)


def test_a_file_that_is_included_twice_counts_once(load_files: Any) -> None:
    files = {
        "cronstable.yaml": "include: [left.yaml, right.yaml]\n",
        "left.yaml": "include: [base.yaml]\njobs:\n" + JOB.format("l"),
        "right.yaml": "include: [./base.yaml]\njobs:\n" + JOB.format("r"),
        "base.yaml": "jobs:\n" + JOB.format("b"),
    }
    assert list(_jobs(load_files(files))) == ["b", "l", "r"]


def test_files_that_include_each_other_are_refused_with_the_whole_circle(load_files: Any, errors: Errors) -> None:
    files = {
        "cronstable.yaml": "include:\n  - a.yaml\n",
        "a.yaml": "jobs: []\ninclude:\n  - sub/b.yaml\n",
        "sub/b.yaml": "include:\n\n  - ../a.yaml\n",
    }
    result = load_files(files)
    assert errors(result) == [("sub/b.yaml", 3, "include[0]")]
    assert "a.yaml -> b.yaml -> a.yaml" in format_findings(result.findings)


def test_a_file_that_includes_itself_is_refused(load_files: Any, errors: Errors) -> None:
    assert errors(load_files("include: [cronstable.yaml]\n")) == [("cronstable.yaml", 1, "include[0]")]


def test_an_included_directory_is_refused(load_files: Any) -> None:
    result = load_files({"cronstable.yaml": "include: [conf.d]\n", "conf.d/a.yaml": ""})
    assert "is a directory" in format_findings(result.findings)


def test_a_directory_is_read_in_name_order_and_files_included_in_it_once(load_files: Any) -> None:
    files = {
        "conf/20.yaml": "jobs:\n" + JOB.format("twenty"),
        "conf/10.yml": "include: [20.yaml]\njobs:\n" + JOB.format("ten"),
        "conf/_part.yaml": "jobs: 5\n",
        "conf/.hidden.yaml": "jobs: 5\n",
        "conf/note.txt": "x",
        "conf/sub.yaml/x": "a directory",
        "conf/30.cron": "@daily echo\n",
    }
    assert list(_jobs(load_files(files, path="conf"))) == ["twenty", "ten", "30.cron:1"]


@pytest.mark.parametrize("section", ["web", "cluster", "state", "logging", "notify"])
def test_a_section_in_two_files_names_both(load_files: Any, section: str) -> None:
    body = {
        "web": "{listen: ['http://127.0.0.1:1']}",
        "cluster": "{backend: shelf, shelf: {place: x}}",
        "state": "{path: /x}",
        "logging": "{version: 1}",
        "notify": "{events: [quorum_loss]}",
    }[section]
    result = load_files({"conf/a.yaml": f"{section}: {body}\n", "conf/b.yaml": f"\n{section}: {body}\n"}, path="conf")
    (finding,) = [f for f in result.findings if f.severity == "error"]
    assert (Path(finding.file).name, finding.line) == ("b.yaml", 2)
    assert "a.yaml:1" in finding.message


def test_two_jobs_of_one_name_in_two_files_name_both(load_files: Any, errors: Errors) -> None:
    files = {"conf/a.yaml": "jobs:\n" + JOB.format("x"), "conf/b.yaml": "jobs:\n\n" + JOB.format("x")}
    result = load_files(files, path="conf")
    assert errors(result) == [("conf/b.yaml", 3, "jobs[0].name")]
    assert "a.yaml:2" in result.findings[0].message


def test_variables_are_expanded_where_they_may_be(load_files: Any) -> None:
    result = load_files(
        "defaults:\n  workingDirectory: ${DIR}/x\n"
        "jobs:\n"
        "  - name: job-${NAME}\n"
        "    command: echo ${DIR} $$\n"
        "    shell: ${DIR}\n"
        "    schedule: '${WHEN:-@daily}'\n"
        "    environment:\n"
        "      - {key: A, value: '${EMPTY:-fallback}'}\n"
        "      - {key: B, value: '${EMPTY}'}\n"
        "      - {key: C, value: 'cost $$5, $HOME, ${}'}\n"
        "    onFailure:\n      report:\n        shell:\n          command: echo ${DIR}\n"
        "        mail: {from: 'x@${NAME}', to: y}\n"
        "logging:\n  version: 1\n  root: {level: '${LEVEL}'}\n",
        environ={"DIR": "/d", "NAME": "n", "EMPTY": ""},
    )
    job = _jobs(result)["job-n"]
    assert job.command == "echo ${DIR} $$"
    assert job.schedule.text == "@daily"
    assert job.options.shell == "${DIR}"
    assert job.options.working_directory == "/d/x"
    assert job.options.environment == (("A", "fallback"), ("B", ""), ("C", "cost $5, $HOME, ${}"))
    report: Any = job.options.raw["onFailure"]
    assert report["report"]["shell"]["command"] == "echo ${DIR}"
    assert report["report"]["mail"]["from"] == "x@n"
    assert _config(result).logging == {"version": 1, "root": {"level": "${LEVEL}"}}


def test_variables_of_the_defaults_are_expanded_when_nothing_else_has_any(load_files: Any) -> None:
    text = "defaults:\n  workingDirectory: ${DIR}\njobs:\n" + JOB.format("a")
    assert _jobs(load_files(text, environ={"DIR": "/d"}))["a"].options.working_directory == "/d"


def test_an_unset_variable_is_named_with_its_place(load_files: Any, errors: Errors) -> None:
    result = load_files("jobs:\n" + JOB.format("a") + "    environment:\n      - {key: A, value: '${NOPE}'}\n")
    assert errors(result) == [("cronstable.yaml", 6, "jobs[0].environment[0].value")]
    assert "NOPE is not set" in result.findings[0].message


def test_an_env_file_stands_beside_its_file_or_in_the_working_directory(
    load_files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "jobs:\n" + JOB.format("a") + "    env_file: x.env\n"
    files = {"conf/c.yaml": text, "conf/x.env": "A=1\n", "x.env": "B=1\n"}
    result = load_files(files, path="conf/c.yaml")
    assert _jobs(result)["a"].options.env_file == str(tmp_path / "conf" / "x.env")
    assert str(tmp_path / "conf" / "x.env") in result.watched
    (tmp_path / "conf" / "x.env").unlink()
    assert _jobs(load_files({}, path="conf/c.yaml"))["a"].options.env_file == "x.env"


def test_a_bad_line_of_an_env_file_is_named_without_its_value(load_files: Any) -> None:
    files = {
        "cronstable.yaml": "jobs:\n" + JOB.format("a") + "    env_file: x.env\n",
        "x.env": "# fine\nA=1\nhunter2\n",
    }
    text = format_findings(load_files(files).findings)
    assert "line 3: not of the form KEY=VALUE" in text
    assert "hunter2" not in text


def test_variables_of_an_env_file_count_for_the_job_set_id_by_name(load_files: Any) -> None:
    files = {"cronstable.yaml": "jobs:\n" + JOB.format("a") + "    env_file: x.env\n", "x.env": "A=1\n"}
    first = _config(load_files(files)).job_set_id
    assert _config(load_files({"x.env": "A=2\n"})).job_set_id == first
    assert _config(load_files({"x.env": "B=2\n"})).job_set_id != first


def test_two_jobs_of_one_name_in_one_line_are_refused(load_files: Any, errors: Errors) -> None:
    job = "{name: a, command: echo, schedule: '@daily'}"
    assert errors(load_files(f"jobs: [{job}, {job}]\n")) == [("cronstable.yaml", 1, "jobs[1].name")]


def test_a_scope_of_the_cluster_needs_a_state_store(load_files: Any) -> None:
    text = "jobs:\n" + JOB.format("a") + "    concurrencyScope: cluster\n    concurrencyPolicy: Forbid\n"
    result = load_files(text)
    assert result.config is None
    assert "needs a `state` section; it is asked for by `a`" in format_findings(result.findings)
    assert _config(load_files(text + "state: {path: /x}\n"))


@pytest.mark.parametrize(
    ("schedule", "says"), [("0 5 2 * * *", "six columns"), ("0 0 31 4 *", "never fires"), ("*/5 * * * *", "")]
)
def test_a_schedule_that_is_probably_a_mistake_is_an_advisory(
    load_files: Any, advisories: Any, schedule: str, says: str
) -> None:
    result = load_files(f"jobs:\n  - name: a\n    command: echo\n    schedule: '{schedule}'\n")
    assert _config(result)
    found = advisories(result)
    assert [(a.line, says in a.message) for a in found] == ([(4, True)] if says else [])


def test_keys_that_have_no_effect_without_a_state_store_say_so(load_files: Any, advisories: Any) -> None:
    text = "jobs:\n" + JOB.format("a") + "    archiveOutput: false\n" + JOB.format("b") + "    onMissed: run-all\n"
    (advisory,) = advisories(load_files(text))
    assert advisory.line == 6
    assert "`onMissed` has no effect without a `state` section; it is asked for by `b`" in advisory.message
    assert advisories(load_files(text + "state: {path: /x}\n")) == []
    assert _config(load_files(text))


def test_an_empty_file_and_empty_keys_are_fine(load_files: Any) -> None:
    assert _config(load_files("")).jobs == ()
    assert _config(load_files("jobs:\ndefaults:\ninclude:\n")).jobs == ()
    assert len(_config(load_files("jobs:\n" + JOB.format("a") + "    environment:\n")).jobs) == 1


@pytest.mark.parametrize("key", ["dags", "mcp", "push", "job"])
def test_a_top_level_key_that_is_not_ours_is_unknown(load_files: Any, errors: Errors, key: str) -> None:
    result = load_files(f"jobs: []\n{key}: {{}}\n")
    assert errors(result) == [("cronstable.yaml", 2, key)]
    assert f"unknown key `{key}`" in result.findings[0].message


def test_a_section_is_parsed_with_defaults_by_its_service(load_files: Any) -> None:
    config = _config(load_files("web:\n  listen: ['http://127.0.0.1:8080']\n"))
    assert config.sections["web"]["ui"] is True
    assert config.settings["web"] is not config.sections["web"]
    assert "web" in config.settings


def test_a_grace_of_less_than_a_day_is_refused(load_files: Any, errors: Errors) -> None:
    result = load_files("state:\n  path: /x\n  gcGraceSeconds: 100\n")
    assert errors(result) == [("cronstable.yaml", 3, "state.gcGraceSeconds")]


def test_everything_that_was_read_is_watched_also_after_a_failure(load_files: Any, tmp_path: Path) -> None:
    result = load_files({"conf/a.yaml": "include: [absent.yaml]\n"}, path="conf")
    names = {str(Path(path).relative_to(tmp_path)) for path in result.watched}
    assert names == {"conf", "conf/a.yaml", "conf/absent.yaml"}
    assert result.config is None


def test_a_directory_without_a_configuration_file_is_valid_and_remarked_on(tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "_skipped.yaml").write_text("jobs: {")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "sub.yaml").mkdir()
    result = load(str(tmp_path), plugins=plugins, environ={}, hostname="h")
    assert result.config is not None
    (finding,) = result.findings
    assert finding.severity is Severity.ADVISORY
    assert finding.file == str(tmp_path)
    assert "*.yaml" in finding.allowed
