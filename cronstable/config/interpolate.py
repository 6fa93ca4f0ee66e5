"""``${VAR}``, ``${VAR:-default}`` and ``$$`` in text, and paths that stand beside the file they are written in.

After schema validation and before merging, so that each text is looked at once and a mistake has one place
(reference 1). Commands and shells are left to the shell, and ``logging`` to Python.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cronstable.config.document import Map, Seq
from cronstable.core.finding import KeyPath, Problem
from cronstable.core.job import Json

_REFERENCE: Final = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\})")
_FOR_THE_SHELL: Final = frozenset({"command", "shell"})
_PATHS: Final = frozenset({"env_file", "fromFile"})


@dataclass(slots=True)
class Interpolator:
    """Works on the nodes of one file in place.

    ``directory``: where the file is. ``problems`` collects what is unset.
    """

    environ: Mapping[str, str]
    directory: str
    exists: Callable[[str], bool] = os.path.exists
    problems: list[Problem] = field(default_factory=list)

    def text(self, text: str, path: KeyPath) -> str:
        """``text`` with its references replaced; one to an unset variable is noted and stays."""
        if "$" not in text:
            return text

        def value(match: re.Match[str]) -> str:
            name, has_default, default = match.groups()
            if name is None:
                return "$"
            found = self.environ.get(name)
            if has_default:
                return found or default
            if found is None:
                self.problems.append(
                    Problem(path, f"the variable {name} is not set", hint=f"set it, or write ${{{name}:-default}}")
                )
                return match[0]
            return found

        return _REFERENCE.sub(value, text)

    def job(self, job: Map, path: KeyPath) -> None:
        """The values of a job, or of ``defaults``."""
        self._mapping(job, path, for_the_shell=True)

    def section(self, key: str, root: Map) -> None:
        """One top-level key that is not a list of jobs."""
        value = root[key]
        if isinstance(value, str):
            root[key] = self.text(value, (key,))
        elif key == "defaults" and isinstance(value, Map):
            self.job(value, (key,))
        elif key != "logging":
            self._inside(key, value, (key,))

    def beside(self, path: str) -> str:
        """A relative path as seen from the file's directory, or from the working directory if only there it exists."""
        candidate = os.path.join(self.directory, path)
        if os.path.isabs(path) or (not self.exists(candidate) and self.exists(path)):
            return path
        return candidate

    def _inside(self, key: str, value: Json, path: KeyPath) -> None:
        if isinstance(value, Map):
            # The key `shell` of a report is a reporter, whose own command and shell are for a shell.
            self._mapping(value, path, for_the_shell=key == "shell")
        elif isinstance(value, Seq):
            for i, item in enumerate(value):
                if isinstance(item, str):
                    value[i] = self.text(item, (*path, i))
                else:
                    self._inside("", item, (*path, i))

    def _mapping(self, node: Map, path: KeyPath, *, for_the_shell: bool) -> None:
        for key, value in node.items():
            if for_the_shell and key in _FOR_THE_SHELL and not isinstance(value, Map):
                continue
            if isinstance(value, str):
                new = self.text(value, (*path, key))
                if key in _PATHS and new:
                    new = self.beside(new)
                if new is not value:
                    node[key] = new
            else:
                self._inside(key, value, (*path, key))
