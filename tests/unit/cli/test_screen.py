"""What is shown: columns, spans of time, and text that a terminal must not act on."""

from __future__ import annotations

import pytest

from cronstable.cli.act import seconds_of
from cronstable.cli.screen import Cell, output_line, safe, show_table, span, took


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7_500, "2 h 5 min"),
        (270_000, "3 d 3 h"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, ""), (0.0573, "57 ms"), (3.24, "3.2 s"), (250, "4 min 10 s"), ("x", "")]
)
def test_how_long_a_run_took_is_as_exact_as_it_matters(seconds: float | str | None, words: str) -> None:
    assert took(seconds) == words


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1_800), ("1.5h", 5_400), ("2 d", 172_800), ("1W", 604_800)]
)
def test_a_length_of_time_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1y", "1h30m", "inf", "１h x"])
def test_anything_else_is_no_length_of_time(text: str) -> None:
    with pytest.raises(Exception, match="is not a length of time"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2Jgone\x1b]0;title\x07", "gone"),
        ("two\nlines", "two\\nlines"),
        ("bell\x07", "bell\\u0007"),
        ("ünï 🦀", "ünï 🦀"),
    ],
)
def test_names_never_steer_a_terminal(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_output_keeps_its_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "\x1b[31mred\x1b[0m\x1b[2J\x1b]52;c;x\x07\r\x08 end"
    assert output_line(line) == "red end"
    monkeypatch.setattr("cronstable.cli.screen.on_terminal", lambda: True)
    assert output_line(line) == "\x1b[31mred\x1b[0m end"


def test_columns_are_as_wide_as_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["A", "LONGER"], [[Cell("wide cell"), Cell("x")], [Cell("y"), Cell("")]])
    assert capsys.readouterr().out == "A          LONGER\nwide cell  x\ny\n"


def test_on_a_terminal_it_is_a_table_with_colours_unless_they_are_not_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cronstable.cli.screen.on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    show_table(["A"], [[Cell("failed", "bold red")]])
    assert "\x1b[1;31mfailed" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    show_table(["A"], [[Cell("failed", "bold red")]])
    assert "31m" not in capsys.readouterr().out
