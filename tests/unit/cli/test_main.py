"""Which command was meant, what wrong usage answers, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cronstable.cli.main import COMMANDS, run

GOOD = "jobs:\n  - name: a\n    command: 'true'\n    schedule: '* * * * *'\n"


def write(directory: Path, text: str) -> str:
    file = directory / "cronstable.yaml"
    file.write_text(text)
    return str(file)


def test_a_mistyped_command_is_answered_with_the_nearest_one_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exlain", "* * * * *"]) == 2
    assert "did you mean 'explain'?" in capsys.readouterr().err


def test_an_unknown_log_level_is_a_usage_error_that_lists_the_levels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["-c", write(tmp_path, GOOD), "-l", "loud"]) == 2
    assert "debug, info, warning" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(["--frobnicate"])
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name}" not in text] == []


def test_a_missing_default_configuration_is_said_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cronstable.cli.main.DEFAULT_CONFIG", str(tmp_path / "none"))
    assert run(["-v"]) == 1
    error = capsys.readouterr().err
    assert "cronstable init" in error
    assert "usage:" in error


def test_validation_answers_0_for_a_good_file_and_1_with_findings_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["-v", "-c", write(tmp_path, GOOD)]) == 0
    assert "valid, 1 jobs" in capsys.readouterr().out
    assert run(["-v", "--format", "json", "-c", write(tmp_path, GOOD.replace("* * * * *", "61 * * * *"))]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["line"] == 4


def test_the_job_set_id_is_printed_and_depends_on_the_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--job-set-id", "-c", write(tmp_path, GOOD)]) == 0
    one = capsys.readouterr().out
    assert run(["--job-set-id", "-c", write(tmp_path, GOOD.replace("true", "false"))]) == 0
    two = capsys.readouterr().out
    assert one.startswith("v1:")
    assert one != two


def test_init_writes_a_valid_starter_once_and_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "conf"
    assert run(["init", str(target)]) == 0
    (file,) = target.iterdir()
    file.write_text(file.read_text() + "# mine\n")
    assert run(["-v", "-c", str(target)]) == 0
    assert run(["init", str(target)]) == 1
    assert file.read_text().endswith("# mine\n")
    assert "nothing was written" in capsys.readouterr().err


def test_the_schema_is_json_and_names_its_fragments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert "jobs" in schema["properties"]


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m cronstable schema | head -n 1"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr
