"""Something wrong, or worth saying, about a configuration."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from cronstable.core.values import dataclass

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where in a document: ``("jobs", 1, "schedule")`` is ``jobs[1].schedule``."""


class Severity(StrEnum):
    """An error refuses the configuration, an advisory is said once and does not."""

    ERROR = "error"
    ADVISORY = "advisory"


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding without its place in a file: the config layer adds file, line and column from ``path``.

    ``message`` says what is wrong; ``allowed`` what would be right; ``hint`` what to do about it.
    """

    path: KeyPath
    message: str
    severity: Severity = Severity.ERROR
    allowed: tuple[str, ...] = ()
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with its place. ``line`` and ``column`` count from 1; 0 when there is none.

    ``owner``: whose schema or check said so, such as ``cronstable`` or ``cronstable-fs``.
    """

    file: str
    line: int
    column: int
    path: KeyPath
    message: str
    severity: Severity = Severity.ERROR
    allowed: tuple[str, ...] = ()
    hint: str | None = None
    owner: str = "cronstable"


def key_path(path: KeyPath) -> str:
    """``("jobs", 1, "name")`` as ``jobs[1].name``; the root is the empty string."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{part}" if out else part
    return out
