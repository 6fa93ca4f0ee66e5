"""Classic crontabs (reference 1)."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from cronstable.config import format_findings
from cronstable.config.crontab import is_crontab, looks_like_crontab
from cronstable.core.job import JobOptions


def test_entries_variables_and_nicknames(load_files: Any) -> None:
    text = (
        "# tables\n"
        "A=1\n"
        "*/5 * * * *\techo  one\n"
        "SHELL=/bin/bash\n"
        'B = "two words"\n'
        "@midnight echo two\n"
        "  0 7 * * mon-fri  printf '100\\%'\n"
        "@reboot echo three\r\n"
    )
    result = load_files({"my.crontab": text}, path="my.crontab")
    assert result.config is not None, format_findings(result.findings)
    jobs = result.config.jobs
    assert [job.name for job in jobs] == ["my.crontab:3", "my.crontab:6", "my.crontab:7", "my.crontab:8"]
    assert [job.command for job in jobs] == ["echo  one", "echo two", "printf '100%'", "echo three"]
    assert [job.schedule.text for job in jobs] == ["*/5 * * * *", "@daily", "0 7 * * mon-fri", "@reboot"]
    assert jobs[0].options == JobOptions(environment=(("A", "1"),))
    assert jobs[1].options.environment == (("A", "1"), ("B", "two words"))
    assert jobs[1].options.shell == "/bin/bash"
    assert {str(job.schedule.zone) for job in jobs} == {"UTC"}


def test_only_a_line_feed_ends_a_line(load_files: Any) -> None:
    result = load_files({"crontab": "@daily echo a\u2028b\x0cc\n@daily echo d\n"}, path="crontab")
    assert result.config is not None
    assert [job.name for job in result.config.jobs] == ["crontab:1", "crontab:2"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("61 * * * * echo", "61"),
        ("* * * * *", "no command"),
        ("* * * echo", "not a line of a crontab"),
        ("@fortnightly echo", "fortnightly"),
        ("SHELL=/usr/bin/fish\n@daily cat%hello", "standard input, which /usr/bin/fish cannot be given"),
        ("17 * * * * root run-parts /etc/cron.hourly", "looks like a user name"),
        ("CRON_TZ=Mars/Base\n@daily echo", "unknown timezone"),
    ],
)
def test_a_bad_line_is_named(load_files: Any, line: str, says: str) -> None:
    result = load_files({"c.cron": f"\n{line}\n"}, path="c.cron", environ={"PATH": "/usr/bin:/bin"})
    assert result.config is None
    text = format_findings(result.findings)
    assert says in text
    assert f"c.cron:{2 + line.count(chr(10))}:1" in text


def test_mailto_is_an_advisory(load_files: Any, advisories: Any) -> None:
    result = load_files({"c.cron": "MAILTO=me\n@daily echo\n"}, path="c.cron")
    assert result.config is not None
    assert [a.line for a in advisories(result)] == [1]


def test_a_crontab_can_be_included_and_passed_under_any_name(load_files: Any) -> None:
    files = {"cronstable.yaml": "include: [old.crontab]\n", "old.crontab": "@daily echo\n", "jobs.txt": "@daily echo\n"}
    for path, name in (("cronstable.yaml", "old.crontab:1"), ("jobs.txt", "jobs.txt:1")):
        result = load_files(files, path=path)
        assert result.config is not None, format_findings(result.findings)
        assert [job.name for job in result.config.jobs] == [name]


def test_two_crontabs_of_one_name_are_refused(load_files: Any) -> None:
    files = {"c.yaml": "include: [a/crontab, b/crontab]\n", "a/crontab": "@daily a\n", "b/crontab": "@daily b\n"}
    result = load_files(files, path="c.yaml")
    assert "there is another job `crontab:1`" in format_findings(result.findings)


def test_a_line_that_is_not_utf8_is_named(load_files: Any) -> None:
    result = load_files({"c.cron": b"@daily echo\n@daily \xff\n"}, path="c.cron")
    assert [(f.line, f.message) for f in result.findings] == [(2, "not UTF-8")]


@pytest.mark.parametrize(
    ("text", "crontab"),
    [
        ("# c\n\n*/5 * * * * x\n", True),
        ("PATH=/bin\n", True),
        ("@daily x\n", True),
        ("jobs:\n  - name: a\n", False),
        ("", False),
        ("- a\n", False),
    ],
)
def test_a_file_without_a_telling_name_is_known_by_its_first_line(text: str, crontab: bool) -> None:
    assert looks_like_crontab(text) is crontab


def test_names_of_crontabs() -> None:
    assert [is_crontab(f"/x/{name}") for name in ("crontab", "a.crontab", "a.cron", "a.yaml")] == [True] * 3 + [False]


@pytest.mark.parametrize(
    ("line", "stdin"),
    [
        ("cat%hello", "hello\n"),
        ("cat%hello%world", "hello\nworld\n"),
        ("cat%hello%", "hello\n"),
        ("cat%", ""),
        ("cat % a  b", " a  b\n"),
        ("cat%100\\% of $HOME `x` \\", "100% of $HOME `x` \\\n"),
        ("cat # comment%text", "text\n"),
        ("cat%INPUT%INPUT_", "INPUT\nINPUT_\n"),
        ("printf '%s' a\\%b; true%x", None),
    ],
)
def test_what_follows_a_percent_sign_is_standard_input(load_files: Any, line: str, stdin: str | None) -> None:
    line = line if stdin is not None else line.replace("'%s'", "'\\%s'")
    result = load_files({"c.cron": f"@daily {line}\n"}, path="c.cron", environ={"PATH": "/usr/bin:/bin"})
    assert result.config is not None, format_findings(result.findings)
    command = result.config.jobs[0].command
    assert isinstance(command, str)
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == ("a%b" if stdin is None else stdin)
    assert done.stderr == ""


def test_the_exit_code_is_that_of_the_command_that_was_fed(load_files: Any) -> None:
    result = load_files({"c.cron": "@daily cat > /dev/null; exit 3%x\n"}, path="c.cron")
    assert result.config is not None
    assert subprocess.run(["/bin/sh", "-c", result.config.jobs[0].command], check=False, timeout=20).returncode == 3
