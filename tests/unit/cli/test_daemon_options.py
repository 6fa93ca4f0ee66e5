"""The options of the daemon that are checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cronstable.cli import serve
from cronstable.cli.main import run
from cronstable.cli.serve import Wishes


@pytest.fixture
def wishes(monkeypatch: pytest.MonkeyPatch) -> list[Wishes]:
    """What the daemon would have been started with."""
    seen: list[Wishes] = []

    def remember(wish: Wishes) -> int:
        seen.append(wish)
        return 0

    monkeypatch.setattr(serve, "serve", remember)
    monkeypatch.delenv("CRONSTABLE_LOG_FORMAT", raising=False)
    monkeypatch.delenv("CRONSTABLE_SHUTDOWN_GRACE", raising=False)
    return seen


def test_without_options_the_log_is_text_and_a_stop_waits(wishes: list[Wishes], tmp_path: Path) -> None:
    assert run(["-c", str(tmp_path)]) == 0
    assert wishes == [Wishes(str(tmp_path), "INFO", "text", "text", None)]


def test_options_and_variables_say_the_same_and_the_option_wins(
    wishes: list[Wishes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(["-c", str(tmp_path), "--log-format", "json", "--shutdown-grace", "2.5"]) == 0
    monkeypatch.setenv("CRONSTABLE_LOG_FORMAT", "json")
    monkeypatch.setenv("CRONSTABLE_SHUTDOWN_GRACE", "0")
    assert run(["-c", str(tmp_path)]) == 0
    assert run(["-c", str(tmp_path), "--log-format", "text", "--shutdown-grace", "9"]) == 0
    assert [(w.log_format, w.grace) for w in wishes] == [("json", 2.5), ("json", 0.0), ("text", 9.0)]


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "inf", "1e999"])
def test_a_deadline_that_is_none_is_a_usage_error(
    wishes: list[Wishes], tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert run(["-c", str(tmp_path), f"--shutdown-grace={seconds}"]) == 2
    assert "number of seconds" in capsys.readouterr().err
    assert wishes == []


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_log_format_that_is_none_is_a_usage_error(
    wishes: list[Wishes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, how: Any
) -> None:
    arguments = ["-c", str(tmp_path)]
    if how == "option":
        arguments += ["--log-format", "xml"]
    else:
        monkeypatch.setenv("CRONSTABLE_LOG_FORMAT", "xml")
    assert run(arguments) == 2
    assert "one of: text, json" in capsys.readouterr().err
    assert wishes == []
