"""Has anything changed that a configuration was read from? Stats only, but for small files: their bytes count too.

A ConfigMap or a mounted secret is replaced by swapping a symbolic link of a directory above the file, and a rotated
secret can keep size and time; following links and hashing what is small sees both.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from typing import Final, TypeAlias

from cronstable.core.values import dataclass

_SMALL: Final = 64 * 1024
"""Bytes up to which a file's content is read for its signature."""

_Entry: TypeAlias = tuple[str, str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Signature:
    """What the watched paths looked like at one time. Equal signatures: nothing changed."""

    entries: tuple[_Entry, ...]

    def changed(self, other: Signature) -> tuple[str, ...]:
        """The paths that differ, for the log."""
        before = {entry[0]: entry for entry in self.entries}
        after = {entry[0]: entry for entry in other.entries}
        return tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))


def signature(paths: Iterable[str]) -> Signature:
    """Look at every path; what is missing or unreadable is part of the answer. Blocking: not for the event loop."""
    return Signature(tuple(_entry(path) for path in sorted(set(paths))))


def _entry(path: str) -> _Entry:
    try:
        facts = os.stat(path)
        real = os.path.realpath(path)
        if stat.S_ISDIR(facts.st_mode):
            # Not the directory's own times: a file that we skip may come and go in it.
            return path, real, (), "\n".join(sorted(os.listdir(path)))
        seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino, facts.st_dev)
        return path, real, seen, _digest(path) if stat.S_ISREG(facts.st_mode) and facts.st_size <= _SMALL else ""
    except (OSError, ValueError) as error:
        return path, "", (), f"unreadable: {getattr(error, 'errno', None)}"


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(_SMALL + 1)).hexdigest()
