"""Classic crontabs, the five-column user format: lines of a schedule and a command, with variables between them.

A variable counts for the lines below it (crontab(5)); ``CRON_TZ`` is the zone of their schedules and ``SHELL`` runs
their commands. Times are UTC otherwise, as everywhere. Only a line feed ends a line.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import basename
from typing import Final

from cronstable.config.model import Findings
from cronstable.config.options import OptionsMaker, account_exists, digest
from cronstable.core.finding import Finding, Severity
from cronstable.core.job import Job, Json
from cronstable.core.schedule import Schedule, ScheduleError

_VARIABLE: Final = re.compile(r"""\s*(["']?)([A-Za-z_][A-Za-z0-9_]*)\1\s*=\s*(.*?)\s*""", re.DOTALL)
_ENTRY: Final = re.compile(r"[ \t]*(@[A-Za-z]+|(?:\S+[ \t]+){4}\S+)(?:[ \t]+(.*))?", re.DOTALL)
_FIRST_COLUMN: Final = re.compile(r"[ \t]*(?:@[A-Za-z]+|[0-9*H][-0-9*,/()H]*)[ \t]")
_PERCENT: Final = re.compile(r"(?<!\\)%")


def is_crontab(path: str) -> bool:
    """By its name, a classic crontab."""
    name = basename(path)
    return name == "crontab" or name.endswith((".crontab", ".cron"))


def looks_like_crontab(text: str) -> bool:
    """By its first line that says anything, for a file whose name says nothing."""
    for line in text.split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            return bool(_FIRST_COLUMN.match(line) or _VARIABLE.fullmatch(line))
    return False


@dataclass(slots=True)
class Crontab:
    """Reads one crontab; what is wrong with a line does not hide what is wrong with the next."""

    file: str
    environ: Mapping[str, str]
    options: OptionsMaker
    findings: Findings
    jobs: list[Job] = field(default_factory=list)
    _variables: dict[str, str] = field(default_factory=dict)
    _zone: str | None = None
    _shell: str | None = None

    def read(self, data: bytes) -> list[Job]:
        """The jobs of the file, named ``<file name>:<line>``."""
        for number, raw in enumerate(data.split(b"\n"), start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
            except UnicodeDecodeError:
                self._note(number, "not UTF-8")
                continue
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            variable = _VARIABLE.fullmatch(line)
            if variable is not None and not _FIRST_COLUMN.match(line):
                self._set(number, variable[2], variable[3])
            else:
                self._entry(number, line)
        return self.jobs

    def _set(self, number: int, name: str, value: str) -> None:
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        if name == "CRON_TZ":
            self._zone = value or None
        elif name == "SHELL":
            self._shell = value
        elif name == "MAILTO":
            message = "`MAILTO` has no effect; reports are configured in YAML"
            self._note(number, message, severity=Severity.ADVISORY)
        else:
            self._variables[name] = value

    def _entry(self, number: int, line: str) -> None:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            self._note(number, "not a line of a crontab", hint="five columns and a command, a nickname, or NAME=value")
            return
        when, command = entry[1], (entry[2] or "").strip()
        if not command:
            self._note(number, "there is no command after the schedule")
            return
        if _PERCENT.search(command):
            hint = "write \\% for the character, or pipe the input in the command"
            self._note(number, "what follows a `%` would be standard input, which is not supported", hint=hint)
            return
        if self._names_a_user(command):
            user = command.split()[0]
            hint = "this is the format of users' crontabs, without a column for the user; take the column out"
            self._note(number, f"the sixth column `{user}` looks like a user name, not a command", hint=hint)
            return
        self._add(number, when, command.replace("\\%", "%"))

    def _names_a_user(self, command: str) -> bool:
        first, *rest = command.split()
        if not rest or not account_exists("user", first):
            return False
        return shutil.which(first, path=self.environ.get("PATH")) is None

    def _add(self, number: int, when: str, command: str) -> None:
        environment: list[Json] = [{"key": key, "value": value} for key, value in self._variables.items()]
        own: dict[str, Json] = {"environment": environment}
        if self._zone is not None:
            own["timezone"] = self._zone
        if self._shell is not None:
            own["shell"] = self._shell
        key = digest(own)
        prepared = self.options.known(key) or self.options.prepare(own, key)
        for problem in prepared.problems:
            self._note(number, problem.message, hint=problem.hint)
        name = f"{basename(self.file)}:{number}"
        expression = "@daily" if when.lower() == "@midnight" else when
        try:
            schedule = Schedule.parse(expression, job_name=name, zone=prepared.zone)
        except ScheduleError as error:
            self._note(number, str(error), hint=error.hint)
            return
        self.jobs.append(Job(name, command, schedule, prepared.options, f"{self.file}:{number}"))

    def _note(self, number: int, message: str, *, hint: str | None = None, severity: Severity = Severity.ERROR) -> None:
        self.findings.add(Finding(self.file, number, 1, (), message, severity, hint=hint))
