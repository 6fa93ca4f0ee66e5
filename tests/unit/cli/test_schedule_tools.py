"""``explain`` and ``next`` from the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner, Result

from cronstable.cli.coming import next_command
from cronstable.cli.schedule_tools import explain_command
from cronstable.core.clock import Instant

NEW_YEAR = 1_767_225_600  # 2026-01-01T00:00:00Z


@dataclass(frozen=True)
class StoppedClock:
    wall: float = NEW_YEAR

    def now(self) -> Instant:
        return Instant(self.wall, 0.0)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here may wait")


def run(command: Command, *arguments: str, wall: float = NEW_YEAR) -> Result:
    result = CliRunner().invoke(command, list(arguments), obj=StoppedClock(wall))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_next_prints_json_times_in_utc() -> None:
    result = run(next_command, "*/15 * * * *", "-n", "2", "--from", "2026-01-01T00:00:00Z", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == ["2026-01-01T00:15:00Z", "2026-01-01T00:30:00Z"]
    assert result.stderr == ""


def test_next_reads_from_in_any_offset_and_is_strictly_after_it() -> None:
    result = run(next_command, "0 * * * *", "-n", "1", "--from", "2026-01-01T03:00:00.5+02:00", "--json")
    assert json.loads(result.stdout) == ["2026-01-01T02:00:00Z"]


def test_next_starts_now_by_the_clock_it_is_given() -> None:
    result = run(next_command, "0 0 * * *", "-n", "1", "--json", wall=NEW_YEAR + 0.5)
    assert json.loads(result.stdout) == ["2026-01-02T00:00:00Z"]


def test_next_takes_an_expression_without_quotes() -> None:
    result = run(next_command, "0", "0", "1", "1", "5", "-n", "1", "--json")
    assert json.loads(result.stdout) == ["2026-01-02T00:00:00Z"]


def test_next_shows_both_zones_and_marks_what_a_clock_change_moved() -> None:
    result = run(next_command, "30 2 * * *", "--tz", "Europe/Berlin", "-n", "2", "--from", "2026-03-28T12:00:00Z")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()[1:]
    assert first.split("  ")[1:] == [
        "2026-03-29T01:00:00Z",
        "Sun 2026-03-29 03:00:00 CEST",
        "DST: this wall time is missing today, moved to the end of the gap",
    ]
    assert second.split("  ")[1:] == ["2026-03-30T00:30:00Z", "Mon 2026-03-30 02:30:00 CEST"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("61 * * * *",), "minute: '61' is outside 0-59"),
        (("0 0 * * 5L",), "(hint: write L5)"),
        (("* * * * *", "--tz", "Mars/Base"), "unknown timezone 'Mars/Base'"),
        (("* * * * *", "--tz", "../etc/passwd"), "unknown timezone"),
        (("* * * * *", "--from", "yesterday"), "'yesterday' is not a time"),
        (("* * * * *", "--from", "2026-01-01T00:00:00"), "has no offset"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_next_says_on_stderr_why_it_cannot(arguments: tuple[str, ...], reason: str, form: tuple[str, ...]) -> None:
    result = run(next_command, *arguments, *form)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert reason in result.stderr


@pytest.mark.parametrize("arguments", [(), ("* * * * *", "-n", "0"), ("* * * * *", "--nonsense")])
def test_wrong_usage_of_next_is_code_2(arguments: tuple[str, ...]) -> None:
    assert run(next_command, *arguments).exit_code == 2


def test_a_schedule_without_occurrences_is_an_empty_list() -> None:
    assert json.loads(run(next_command, "0 0 31 2 *", "--json").stdout) == []
    assert "no occurrence" in run(next_command, "0 0 31 2 *").stdout
    assert "only when the daemon starts" in run(next_command, "@reboot").stdout


def test_a_hash_without_a_job_is_noted() -> None:
    assert "none was given" in run(next_command, "H * * * *", "--json").stderr
    assert run(explain_command, "H * * * *", "--job", "backup").stderr == ""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "cronstable.yaml"
    path.write_text(
        "jobs:\n  - name: nightly backup\n    command: backup\n    schedule: '30 2 * * *'\n"
        "    timezone: Europe/Berlin\n",
        encoding="utf-8",
    )
    return str(path)


def test_next_finds_a_job_of_a_configuration(config: str) -> None:
    result = run(next_command, "nightly backup", "-c", config, "-n", "1", "--json")
    assert json.loads(result.stdout) == ["2026-01-01T01:30:00Z"]
    shown = run(next_command, "nightly backup", "-c", config, "-n", "1", "--tz", "Asia/Tokyo")
    assert "Thu 2026-01-01 10:30:00 JST" in shown.stdout


def test_next_says_that_there_is_no_such_job(config: str) -> None:
    result = run(next_command, "weekly", "-c", config)
    assert result.exit_code == 1
    assert "has no job 'weekly'" in result.stderr


def test_next_shows_what_is_wrong_with_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("jobs:\n  - name: a\n    command: x\n    schedule: '61 * * * *'\n", encoding="utf-8")
    result = run(next_command, "a", "-c", str(path))
    assert result.exit_code == 1
    assert f"{path}:4" in result.stderr


def test_explain_says_words_remarks_and_next_times() -> None:
    result = run(explain_command, "0 0 13 * 5", "--tz", "Europe/Berlin")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "0 0 13 * 5"
    assert lines[1] == "  at 00:00 on day 13 of the month or on Friday (Europe/Berlin)"
    assert lines[2].startswith("  note: both day columns are restricted")
    assert lines[3] == "  2026-01-01T23:00:00Z  Fri 2026-01-02 00:00:00 CET"


def test_explain_prints_one_json_object() -> None:
    result = run(explain_command, "H 2 * * *", "--job", "backup", "--json")
    found = json.loads(result.stdout)
    assert found["expression"] == "H 2 * * *"
    assert found["resolved"].endswith(" 2 * * *")
    assert found["timezone"] == "UTC"
    assert found["findings"] == []
    assert found["never_fires"] is False
    assert len(found["next"]) == 5


def test_explain_asks_for_both_days_when_told() -> None:
    result = run(explain_command, "0 0 13 * 5", "--day-match", "all", "--json")
    assert json.loads(result.stdout)["next"][0] == "2026-02-13T00:00:00Z"


@pytest.mark.parametrize("arguments", [("1,,2 * * * *",), ("* * * * *", "--tz", "Nowhere")])
def test_explain_refuses_with_code_1(arguments: tuple[str, ...]) -> None:
    result = run(explain_command, *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr
