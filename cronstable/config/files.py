"""Which files make up a configuration: a file or a directory, and what they include, each parsed once."""

from __future__ import annotations

import os
import os.path
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cronstable.config.crontab import is_crontab, looks_like_crontab
from cronstable.config.document import Document, Map, parse
from cronstable.config.model import Findings
from cronstable.config.reading import LONGEST_CONFIG, read_up_to
from cronstable.core.finding import Finding, Severity

_YAML: Final = (".yml", ".yaml")
_KINDS: Final = ("*.yaml", "*.yml", "*.crontab", "*.cron", "crontab")


@dataclass(slots=True)
class Source:
    """A file of the configuration: a document, or the bytes of a classic crontab."""

    path: str
    document: Document
    crontab: bytes | None = None


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
        entries = [os.path.join(path, name) for name in names if _is_configuration(name)]
        files = [entry for entry in entries if not os.path.isdir(entry)]
        if not files:
            # Valid, yet more often a volume that is not mounted or a wrong path than a wish.
            message = "no configuration file is in this directory, so there are no jobs"
            self.findings.add(Finding(path, 0, 0, (), message, Severity.ADVISORY, _KINDS))
        yield from files

    def read(self, path: str) -> Source | None:
        """Read and parse a file; None when it cannot be read. The second time it gives the same object."""
        key = os.path.realpath(path)
        if key in self._read:
            return self._read[key]
        self.watched[path] = None
        try:
            data = read_up_to(path, LONGEST_CONFIG)
        except (OSError, ValueError) as error:
            self._unreadable(path, error)
            return None
        if is_crontab(path) or (not path.endswith(_YAML) and looks_like_crontab(data.decode("utf-8", "replace"))):
            self._read[key] = Source(path, Document(path), data)
            return self._read[key]
        source = self._read[key] = Source(path, parse(path, data))
        for finding in source.document.findings:
            self.findings.add(finding)
        return source

    def forget(self) -> None:
        """Let go of the documents; what was read stays known by its path."""
        self._read.clear()

    def _unreadable(self, path: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        self.findings.add(Finding(path, 0, 0, (), f"cannot be read: {reason}"))


def _is_configuration(name: str) -> bool:
    return not name.startswith(("_", ".")) and (name.endswith(_YAML) or is_crontab(name))


def includes(root: Map) -> Iterator[tuple[int, str]]:
    """The paths under ``include`` with their numbers, as far as they are text."""
    listed = root.get("include")
    for i, path in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(path, str):
            yield i, path
