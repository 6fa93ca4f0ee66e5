"""``env_file``: what a line may be."""

from __future__ import annotations

import pytest

from cronstable.config.envfile import EnvFileError, parse_env_file


def test_lines_comments_export_and_quotes() -> None:
    text = "\ufeff# a comment\n\nA=1\n export B = two words \nC='it # stays'\r\nD=\"x=y\"\nE=\nA=2\nF='half\n"
    assert parse_env_file(text) == {"A": "2", "B": "two words", "C": "it # stays", "D": "x=y", "E": "", "F": "'half"}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("A=1\nsecret-alone\n", 2, "KEY=VALUE"),
        ("1A=secret\n", 1, "name of a variable"),
        ("=secret\n", 1, "name of a variable"),
        ("A B=secret\n", 1, "name of a variable"),
        ("A=sec\0ret\n", 1, "NUL"),
    ],
)
def test_any_other_line_is_an_error_that_does_not_repeat_it(text: str, line: int, says: str) -> None:
    with pytest.raises(EnvFileError, match=says) as caught:
        parse_env_file(text)
    assert caught.value.line == line
    assert "secret" not in str(caught.value)
