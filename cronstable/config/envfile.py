"""``env_file``: lines of ``KEY=VALUE``. Read when the configuration is checked and again at each start of a run."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class EnvFileError(ValueError):
    """A line that is not of the form. ``line`` counts from 1. The message never repeats a value."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


def parse_env_file(text: str) -> dict[str, str]:
    """The variables of the file; a later line wins.

    Blank lines and lines that begin with ``#`` are skipped, ``export`` before a name is allowed, and one pair of
    quotes around a value is taken off. Nothing is expanded. Raises ``EnvFileError`` for any other line.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        name = name.strip().removeprefix("export ").strip()
        value = value.strip()
        if not equals:
            raise EnvFileError(number, "not of the form KEY=VALUE")
        if not _NAME.fullmatch(name):
            raise EnvFileError(number, "what is left of `=` is not the name of a variable")
        if "\0" in value:
            raise EnvFileError(number, f"the value of {name} has a NUL character in it")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        variables[name] = value
    return variables
