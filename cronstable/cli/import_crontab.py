"""``cronstable import crontab``: a classic crontab as YAML."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC
from typing import BinaryIO

import click

from cronstable.config.crontab import CronLine, CrontabReader
from cronstable.core.finding import Severity
from cronstable.core.schedule import Schedule, ScheduleError

_HEAD = """\
# What cron did is kept: its times are the host's unless CRON_TZ says otherwise, and output is no failure.
defaults:
  utc: false
  failsWhen:
    producesStdout: false
    producesStderr: false
"""
_HOME = """\
  # Where cron starts commands.
  workingDirectory: "~"
"""


@click.group("import")
def import_command() -> None:
    """Make a configuration from what another scheduler reads."""


@import_command.command("crontab")
@click.argument("file", type=click.File("rb"))
@click.option("--system", is_flag=True, help="the format of /etc/crontab and /etc/cron.d: the sixth column is a user")
def crontab_command(file: BinaryIO, system: bool) -> int:
    """Print the jobs of the crontab FILE (``-``: standard input) as YAML.

    Lines that cannot be taken over are named on standard error, and the exit code is 1 then.
    """
    failed = False

    def note(number: int, message: str, hint: str | None, severity: Severity) -> None:
        nonlocal failed
        failed = failed or severity is Severity.ERROR
        remark = f"; {hint}" if hint and severity is Severity.ERROR else ""
        print(f"{file.name}:{number}: {message}{remark}", file=sys.stderr)

    entries: list[CronLine] = []
    for entry in CrontabReader(note, system=system).lines(file.read()):
        try:
            Schedule.parse(entry.when, job_name="", zone=UTC)
        except ScheduleError as error:
            note(entry.number, str(error), error.hint, Severity.ERROR)
            continue
        entries.append(entry)
    sys.stdout.write(as_yaml(entries))
    return 1 if failed else 0


def as_yaml(entries: list[CronLine]) -> str:
    """The entries as a whole configuration."""
    if not entries:
        return "jobs: []\n"
    names: set[str] = set()
    mailto: str | None = None
    lines = ["jobs:\n"]
    for entry in entries:
        if entry.mailto != mailto:
            mailto = entry.mailto
            if mailto:
                lines.append(f"  # MAILTO={mailto}: cron mailed all output there; see onFailure.report.mail\n")
        lines += _job(entry, _name(entry, names))
    # With a column of users each has a home of its own, which is known on the host that runs them.
    home = _HOME if entries[0].user is None else ""
    return _HEAD + home + "".join(lines)


def _job(entry: CronLine, name: str) -> Iterator[str]:
    yield f"  - name: {_text(name)}\n"
    if "\n" in entry.command and all(line.isprintable() for line in entry.command.split("\n")):
        yield "    command: |\n"
        yield from (f"      {line}\n" if line else "\n" for line in entry.command.removesuffix("\n").split("\n"))
    else:
        yield f"    command: {_text(entry.command)}\n"
    yield f"    schedule: {_text(' '.join(entry.when.split()))}\n"
    if entry.zone is not None:
        yield f"    timezone: {_text(entry.zone)}\n"
    if entry.user is not None:
        yield f"    user: {_text(entry.user)}\n"
    if entry.shell is not None:
        yield f"    shell: {_text(entry.shell)}\n"
    if entry.variables.get("HOME"):
        yield f"    workingDirectory: {_literal(entry.variables['HOME'])}\n"
    if entry.variables:
        yield "    environment:\n"
        for key, value in entry.variables.items():
            yield f"      - key: {key}\n        value: {_literal(value)}\n"


def _literal(value: str) -> str:
    """A dollar is cron's own character, and would be read as a variable of the daemon here."""
    return _text(value.replace("$", "$$"))


def _name(entry: CronLine, taken: set[str]) -> str:
    """After the program, with a number where there are several."""
    words = re.sub(r"^\{ ", "", entry.command).split()
    program = next((word for word in words if "=" not in word), "job").rpartition("/")[2]
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", program).strip("-.") or "job"
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}-{n}"
    taken.add(name)
    return name


def _text(text: str) -> str:
    """Plain where that is safe, else in double quotes; what does not show (YAML breaks lines at some) is escaped."""
    plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9/._-]*", text)
    traps = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    if plain and text.lower() not in traps:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
