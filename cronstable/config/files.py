"""Which files make up a configuration: a file or a directory, and what they include, each parsed once."""

from __future__ import annotations

import os
import os.path
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cronstable.config.document import Document, Map, parse
from cronstable.config.model import Findings
from cronstable.core.finding import Finding

_YAML: Final = (".yml", ".yaml")


def is_crontab(path: str) -> bool:
    """By its name, a classic crontab."""
    name = os.path.basename(path)
    return name == "crontab" or name.endswith((".crontab", ".cron"))


@dataclass(slots=True)
class Source:
    """A file of the configuration. ``includes`` are its included files in order, each with its own."""

    path: str
    document: Document
    includes: list[Source] = field(default_factory=list)


@dataclass(slots=True)
class Reader:
    """Reads files by real path, once each. ``watched`` collects all that was read or looked for."""

    findings: Findings
    watched: dict[str, None] = field(default_factory=dict)
    _read: dict[str, Source] = field(default_factory=dict)

    def entries(self, path: str) -> Iterator[str]:
        """The files that ``path`` stands for: itself, or the configuration files of a directory in name order."""
        self.watched[path] = None
        if not os.path.isdir(path):
            yield path
            return
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            self._unreadable(path, error)
            return
        for name in names:
            entry = os.path.join(path, name)
            if not name.startswith(("_", ".")) and name.endswith(_YAML) and not os.path.isdir(entry):
                yield entry

    def read(self, path: str) -> Source | None:
        """Read and parse a file; None when it cannot be read. The second time it gives the same object."""
        key = os.path.realpath(path)
        if key in self._read:
            return self._read[key]
        self.watched[path] = None
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError) as error:
            self._unreadable(path, error)
            return None
        source = self._read[key] = Source(path, parse(path, data))
        for finding in source.document.findings:
            self.findings.add(finding)
        return source

    def _unreadable(self, path: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        self.findings.add(Finding(path, 0, 0, (), f"cannot be read: {reason}"))


def includes(root: Map) -> Iterator[tuple[int, str]]:
    """The paths under ``include`` with their numbers, as far as they are text."""
    listed = root.get("include")
    for i, path in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(path, str):
            yield i, path
