"""Sections of reporters: each notifier has its say, at the line where the mistake stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from cronstable.config import LoadResult, format_findings, load
from cronstable.core.finding import Finding, Problem, Severity, key_path
from cronstable.plugin.descriptors import NotifierBackend, Section
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.manager import PluginInfo, Plugins, Provided, load_plugins

JOB = "jobs:\n  - name: a\n    command: x\n    schedule: '* * * * *'\n"
Load = Callable[[str], LoadResult]


def _parse(section: Section) -> object:
    if section.get("number") == "0000":
        raise ValueError("the code sesame is wrong")
    if section.get("number") == "none":
        raise InvalidSettings([Problem(("number",), "nobody has this number", hint="ask somebody")])
    return section


PAGER = NotifierBackend(
    name="pager",
    factory="pager:make",
    parse=_parse,
    schema={
        "$id": "https://example.org/pager",
        "type": "object",
        "properties": {"number": {"type": "string"}},
        "additionalProperties": False,
        "examples": [{"number": "1"}],
    },
)


@pytest.fixture
def with_pager(builtins: Plugins) -> Plugins:
    pager = Provided(PAGER, PluginInfo("pager", "acme-pager", "1.0", "acme_pager", builtin=False))
    return replace(builtins, notifiers=MappingProxyType({**builtins.notifiers, "pager": pager}))


@pytest.fixture
def read(with_pager: Plugins, tmp_path: Path) -> Load:
    def call(text: str) -> LoadResult:
        path = tmp_path / "cronstable.yaml"
        path.write_text(text)
        return load(str(path), plugins=with_pager, environ={}, hostname="host-1")

    return call


def places(result: LoadResult) -> list[tuple[int, str, str]]:
    return [(f.line, key_path(f.path), f.message) for f in result.findings]


def test_a_notifier_is_asked_about_each_of_its_sections(read: Load) -> None:
    result = read(
        JOB
        + "    onFailure:\n      report:\n        pager:\n          number: none\n"
        + "    onSuccess:\n      report:\n        pager:\n          number: none\n"
        + "notify:\n  report:\n    pager:\n      number: none\n"
    )
    assert places(result) == [
        (8, "jobs[0].onFailure.report.pager.number", "nobody has this number"),
        (12, "jobs[0].onSuccess.report.pager.number", "nobody has this number"),
        (16, "notify.report.pager.number", "nobody has this number"),
    ]
    assert all(finding.hint == "ask somebody" for finding in result.findings)
    assert "[acme-pager]" in format_findings(result.findings)


def test_a_mistake_in_the_defaults_is_found_where_it_stands_and_once(read: Load) -> None:
    second = "  - name: b\n    command: x\n    schedule: '* * * * *'\n"
    text = "defaults:\n  onFailure:\n    report:\n      pager:\n        number: none\n" + JOB + second
    assert places(read(text)) == [(5, "defaults.onFailure.report.pager.number", "nobody has this number")]


def test_a_notifier_whose_check_breaks_is_named_and_its_words_are_not(read: Load) -> None:
    (finding,) = read(
        JOB + "    onLate:\n      report:\n        pager: {number: '0000'}\n    sla: {lateAfterSeconds: 5}\n"
    ).findings
    assert finding.message == "plugin pager (acme-pager 1.0) failed on this section: ValueError"


@pytest.mark.parametrize(
    ("report", "path", "words"),
    [
        ("mail: {from: a@x, to: b@x, subject: '{{ name'}", "mail.subject", "the template is not valid"),
        ("mail: {from: a@x, to: b@x, tls: true, starttls: true}", "mail.starttls", "exclude each other"),
        ('mail: {from: "a@x\\nBcc: c@x", to: b@x}', "mail.from", "not a mail address"),
        ("mail: {smtpPort: 70000}", "mail.smtpPort", "at most 65535"),
        ("shell: {command: x, timeout: 0}", "shell.timeout", "more than 0"),
        ("sentry: {level: loud}", "sentry.level", "not one of the allowed values"),
        ("male: {from: a@x}", "male", "unknown key `male`"),
    ],
)
def test_the_mistakes_of_a_section_are_findings(read: Load, report: str, path: str, words: str) -> None:
    (finding,) = read(f"{JOB}    onFailure:\n      report:\n        {report}\n").findings
    assert key_path(finding.path) == f"jobs[0].onFailure.report.{path}"
    assert finding.severity is Severity.ERROR
    assert words in finding.message
    assert finding.line == 7


def test_half_a_section_is_no_mistake_for_the_other_half_can_be_a_job_s(read: Load) -> None:
    text = "defaults:\n  onFailure:\n    report:\n      mail: {smtpHost: mx, from: cron@x}\n" + JOB
    assert read(text).findings == ()
    assert read(text + "    onFailure:\n      report:\n        mail: {to: ops@x}\n").findings == ()


def test_a_secret_that_gives_nothing_is_found_before_it_is_needed(read: Load) -> None:
    text = JOB + "    onFailure:\n      report:\n        sentry:\n          dsn: {fromEnvVar: NO_SUCH_DSN}\n"
    (finding,) = read(text).findings
    assert finding.line == 8
    assert "NO_SUCH_DSN" in finding.message


def test_reports_are_acted_on_and_say_nothing(read: Load) -> None:
    hooks = "".join(
        f"    {hook}:\n      report:\n        pager: {{number: '1'}}\n"
        for hook in ("onFailure", "onPermanentFailure", "onSuccess", "onLate")
    )
    result = read(f"{JOB}{hooks}    sla: {{lateAfterSeconds: 5}}\nnotify:\n  report:\n    pager: {{number: '1'}}\n")
    assert places(result) == []
    assert result.config is not None
    assert result.config.sections["notify"]["events"] == ["leader_change", "quorum_loss"]


@pytest.mark.parametrize("place", ["    onFailure:\n      report:\n", "notify:\n  report:\n"])
def test_a_webhook_without_its_plugin_says_what_to_install(builtins: Plugins, tmp_path: Path, place: str) -> None:
    without = replace(builtins, health=tuple(h for h in builtins.health if h.plugin.builtin))
    path = tmp_path / "cronstable.yaml"
    path.write_text(f"{JOB}{place}        webhook:\n          url: {{value: https://sesame}}\n")
    findings: tuple[Finding, ...] = load(str(path), plugins=without, environ={}, hostname="h").findings
    text = format_findings(findings)
    assert (
        "cronstable-notify-webhook provides it; install it with: pip install cronstable cronstable-notify-webhook"
        in text
    )
    assert "sesame" not in text
    assert len(findings) == 1


def test_a_webhook_with_its_plugin_is_checked_by_it(tmp_path: Path) -> None:
    path = tmp_path / "cronstable.yaml"
    webhook = "webhook: {url: {value: https://sesame}, headers: {'X Y': sesame}, body: '{{', timeout: 601}"
    path.write_text(f"{JOB}    onFailure:\n      report:\n        {webhook}\n")
    text = format_findings(load(str(path), plugins=load_plugins({}), environ={}, hostname="h").findings)
    assert "timeout  must be at most 600" in text
    assert "sesame" not in text
    path.write_text(path.read_text().replace(", timeout: 601", ""))
    text = format_findings(load(str(path), plugins=load_plugins({}), environ={}, hostname="h").findings)
    assert "headers.X Y  is not the name of a header" in text
    assert "body  the template is not valid" in text
    assert "[cronstable-notify-webhook]" in text
    assert "sesame" not in text
