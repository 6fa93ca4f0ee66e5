"""Classic crontabs: lines of a schedule and a command, with variables between them.

A variable counts for the lines below it (crontab(5)); ``CRON_TZ`` is the zone of their schedules and ``SHELL`` runs
their commands. Times are UTC otherwise, as everywhere. Only a line feed ends a line. The first ``%`` that has no
backslash before it ends the command: what follows is its standard input, in which each further ``%`` ends a line.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
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


_SHELLS: Final = frozenset({"", "sh", "ash", "bash", "dash", "ksh", "mksh", "zsh"})
"""Shells that know here-documents; an empty SHELL is the system's."""


@dataclass(frozen=True, slots=True)
class CronLine:
    """One entry, with what the lines above it set. ``user``: of the format of the system's crontabs."""

    number: int
    when: str
    command: str
    variables: Mapping[str, str]
    zone: str | None = None
    shell: str | None = None
    mailto: str | None = None
    user: str | None = None


Note = Callable[[int, str, str | None, Severity], None]
"""Takes a remark: the line, what is wrong, a hint, and how bad it is."""


@dataclass(slots=True)
class CrontabReader:
    """Reads the lines of one crontab; what is wrong with a line does not hide what is wrong with the next.

    ``system``: the format of /etc/crontab, whose sixth column is a user. ``path``: where programs are looked for.
    """

    note: Note
    system: bool = False
    path: str | None = None
    _variables: dict[str, str] = field(default_factory=dict)
    _zone: str | None = None
    _shell: str | None = None
    _mailto: str | None = None

    def lines(self, data: bytes) -> Iterator[CronLine]:
        """The entries in order."""
        for number, raw in enumerate(data.split(b"\n"), start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
            except UnicodeDecodeError:
                self._error(number, "not UTF-8")
                continue
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            variable = _VARIABLE.fullmatch(line)
            if variable is not None and not _FIRST_COLUMN.match(line):
                self._set(number, variable[2], variable[3])
            else:
                yield from self._entry(number, line)

    def _set(self, number: int, name: str, value: str) -> None:
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        if name == "CRON_TZ":
            self._zone = value or None
        elif name == "SHELL":
            self._shell = value
        elif name == "MAILTO":
            self._mailto = value
            message = "`MAILTO` has no effect; reports are configured in YAML"
            self.note(number, message, None, Severity.ADVISORY)
        else:
            self._variables[name] = value

    def _entry(self, number: int, line: str) -> Iterator[CronLine]:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            self._error(number, "not a line of a crontab", "five columns and a command, a nickname, or NAME=value")
            return
        when, command = entry[1], (entry[2] or "").strip()
        user: str | None = None
        if self.system:
            user, command = [*command.split(None, 1), "", ""][:2]
        if not command:
            self._error(number, f"there is no command after the {'user' if user else 'schedule'}")
            return
        if not self.system and self._names_a_user(command):
            hint = (
                "this is the format of users' crontabs, without a column for the user; take the column out, or let "
                "`cronstable import crontab --system` make YAML of the file"
            )
            message = f"the sixth column `{command.split()[0]}` looks like a user name, not a command"
            self._error(number, message, hint)
            return
        fed = self._with_input(number, command)
        if fed is not None:
            variables = dict(self._variables)
            nickname = "@daily" if when.lower() == "@midnight" else when
            yield CronLine(number, nickname, fed, variables, self._zone, self._shell, self._mailto, user)

    def _with_input(self, number: int, command: str) -> str | None:
        """The command as a shell takes it, its standard input as a here-document."""
        own, *rest = _PERCENT.split(command)
        own = own.replace("\\%", "%")
        if not rest:
            return own
        if basename(self._shell or "") not in _SHELLS:
            hint = "write \\% for the character, or let the command itself read its input"
            self._error(number, f"what follows a `%` is standard input, which {self._shell} cannot be given", hint)
            return None
        text = "\n".join(rest).replace("\\%", "%").removesuffix("\n")
        end = "INPUT"
        while end in text.split("\n"):
            end += "_"
        # Braces on lines of their own, so that a comment at the end of the command ends there.
        body = "" if rest == [""] else f"{text}\n"
        return f"{{ {own.rstrip()}\n}} <<'{end}'\n{body}{end}\n"

    def _names_a_user(self, command: str) -> bool:
        first, *rest = command.split()
        if not rest or not account_exists("user", first):
            return False
        return shutil.which(first, path=self.path) is None

    def _error(self, number: int, message: str, hint: str | None = None) -> None:
        self.note(number, message, hint, Severity.ERROR)


@dataclass(slots=True)
class Crontab:
    """Makes the jobs of one crontab in the format of users."""

    file: str
    environ: Mapping[str, str]
    options: OptionsMaker
    findings: Findings
    jobs: list[Job] = field(default_factory=list)

    def read(self, data: bytes) -> list[Job]:
        """The jobs of the file, named ``<file name>:<line>``."""
        for line in CrontabReader(self._note, path=self.environ.get("PATH")).lines(data):
            self._add(line)
        return self.jobs

    def _add(self, line: CronLine) -> None:
        environment: list[Json] = [{"key": key, "value": value} for key, value in line.variables.items()]
        own: dict[str, Json] = {"environment": environment}
        if line.zone is not None:
            own["timezone"] = line.zone
        if line.shell is not None:
            own["shell"] = line.shell
        key = digest(own)
        prepared = self.options.known(key) or self.options.prepare(own, key)
        for problem in prepared.problems:
            self._note(line.number, problem.message, problem.hint, Severity.ERROR)
        name = f"{basename(self.file)}:{line.number}"
        try:
            schedule = Schedule.parse(line.when, job_name=name, zone=prepared.zone)
        except ScheduleError as error:
            self._note(line.number, str(error), error.hint, Severity.ERROR)
            return
        self.jobs.append(Job(name, line.command, schedule, prepared.options, f"{self.file}:{line.number}"))

    def _note(self, number: int, message: str, hint: str | None, severity: Severity) -> None:
        self.findings.add(Finding(self.file, number, 1, (), message, severity, hint=hint))
