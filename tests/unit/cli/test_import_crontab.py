"""``cronstable import crontab``: what it prints is a configuration that does what the crontab did."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cronstable.cli.import_crontab import as_yaml
from cronstable.cli.main import run
from cronstable.config import LoadResult, load
from cronstable.config.crontab import CronLine, CrontabReader
from cronstable.core.finding import Severity
from cronstable.plugin.manager import load_plugins

USER = """\
CRON_TZ=Europe/Warsaw
0 7 * * * echo w # not a comment of the crontab
CRON_TZ=America/Chicago
MAILTO=ops@example.org
PRICE=5$ ${HOME}
0 7 * * * cat%Hello,%"world"%
@midnight /usr/local/bin/backup --all
@reboot /usr/local/bin/backup --check
"""


def loaded(text: str, directory: Path) -> LoadResult:
    file = directory / "made.yaml"
    file.write_text(text)
    return load(str(file), plugins=load_plugins(os.environ), environ={}, hostname="host")


def imported(capsys: pytest.CaptureFixture[str], directory: Path, text: str, *flags: str) -> tuple[int, str, str]:
    file = directory / "tab"
    file.write_text(text)
    code = run(["import", "crontab", *flags, str(file)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_crontab_becomes_a_configuration_without_findings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = imported(capsys, tmp_path, USER)
    assert code == 0
    assert "MAILTO" in err
    assert "# MAILTO=ops@example.org" in out
    result = loaded(out, tmp_path)
    assert result.findings == ()
    assert result.config is not None
    jobs = result.config.jobs
    assert [job.name for job in jobs] == ["echo", "cat", "backup", "backup-2"]
    assert [job.schedule.text for job in jobs] == ["0 7 * * *", "0 7 * * *", "@daily", "@reboot"]
    assert [str(job.schedule.zone) for job in jobs] == ["Europe/Warsaw", *["America/Chicago"] * 3]
    assert jobs[0].command == "echo w # not a comment of the crontab"
    assert jobs[0].options.environment == ()
    assert jobs[1].options.environment == (("PRICE", "5$ ${HOME}"),)
    assert not jobs[1].options.fails_when.produces_stderr


def test_standard_input_survives_the_import(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = loaded(imported(capsys, tmp_path, USER)[1], tmp_path)
    assert result.config is not None
    command = result.config.jobs[1].command
    assert isinstance(command, str)
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == 'Hello,\n"world"\n'


def test_commands_start_where_cron_starts_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = imported(capsys, tmp_path, "@daily bin/backup\nHOME=/srv/a$b\n@daily bin/backup\n")[1]
    file = tmp_path / "made.yaml"
    file.write_text(out)
    result = load(str(file), plugins=load_plugins(os.environ), environ={"HOME": "/home/ann"}, hostname="host")
    assert result.findings == ()
    assert result.config is not None
    assert [job.options.working_directory for job in result.config.jobs] == ["/home/ann", "/srv/a$b"]


def test_the_columns_of_a_schedule_have_one_space_between_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = imported(capsys, tmp_path, "17 *\t* *   * true\n")[1]
    assert [job["schedule"] for job in yaml.safe_load(out)["jobs"]] == ["17 * * * *"]


def test_without_cron_tz_times_stay_those_of_the_host(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = loaded(imported(capsys, tmp_path, "0 7 * * * true\n")[1], tmp_path)
    assert result.config is not None
    assert not result.config.jobs[0].options.utc


def test_the_user_column_of_a_system_crontab_becomes_user(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "SHELL=/bin/bash\n17 * * * *\troot    cd / && run-parts /etc/cron.hourly\n@daily root true\n"
    code, out, _ = imported(capsys, tmp_path, text, "--system")
    assert code == 0
    result = loaded(out, tmp_path)
    assert result.config is not None
    assert [job.options.user for job in result.config.jobs] == ["root", "root"]
    assert result.config.jobs[0].command == "cd / && run-parts /etc/cron.hourly"
    assert result.config.jobs[0].options.shell == "/bin/bash"


def test_a_user_column_that_was_not_announced_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = imported(capsys, tmp_path, "17 * * * * root run-parts /etc/cron.hourly\n")
    assert code == 1
    assert out == "jobs: []\n"
    assert "tab:1: the sixth column `root` looks like a user name" in err


def test_a_line_that_cannot_be_taken_over_is_named_and_the_rest_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = imported(capsys, tmp_path, "61 * * * * true\n@daily true\n@daily root\n", "--system")
    assert code == 1
    assert "tab:1:" in err
    assert "tab:3: there is no command after the user" in err
    assert out.count("- name:") == 0
    code, out, err = imported(capsys, tmp_path, "61 * * * * true\n@daily true\n")
    assert code == 1
    assert out.count("- name:") == 1


def test_standard_input_can_be_imported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"@daily on\n")))
    assert run(["import", "crontab", "-"]) == 0
    assert '  - name: "on"\n' in capsys.readouterr().out


TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=40)


@given(
    command=TEXT | st.text("\u2028\u2029\u00a0\ufeff\U0001f600\U000e0001 a'\"\\\\#:{}", max_size=8),
    value=TEXT,
    zone=st.sampled_from([None, "Europe/Warsaw"]),
    user=st.sampled_from([None, "root"]),
)
def test_whatever_a_line_says_comes_back_from_the_yaml(
    command: str, value: str, zone: str | None, user: str | None
) -> None:
    command = command.strip() or "true"
    line = CronLine(1, "*/5 * * * *", command, {"A": value}, zone, "/bin/sh", None, user)
    (job,) = yaml.safe_load(as_yaml([line]))["jobs"]
    assert job["command"] == command
    assert job["environment"] == [{"key": "A", "value": value.replace("$", "$$")}]
    assert (job.get("timezone"), job.get("user")) == (zone, user)
    assert job["schedule"] == "*/5 * * * *"


@given(st.lists(TEXT | st.text("\u2028 \ta\\\\", max_size=5), min_size=1, max_size=5))
def test_whatever_is_fed_to_a_command_comes_back_from_the_yaml(texts: list[str]) -> None:
    fed = "%".join(text.replace("%", "\\%") for text in texts)
    lines = list(CrontabReader(refuse).lines(f"@daily cat%{fed}".encode()))
    (job,) = yaml.safe_load(as_yaml(lines))["jobs"]
    assert job["command"] == lines[0].command


def refuse(number: int, message: str, hint: str | None, severity: Severity) -> None:
    raise AssertionError(message)


@pytest.mark.parametrize("arguments", [["import", "crontab", "/nowhere/tab"], ["import", "crontab"]])
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err
