"""The jobs of one file: defaults under their keys, schedules parsed, mistakes placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, overload

from cronstable.config.document import Document, Map
from cronstable.config.merge import Layer, deep_merge, locate
from cronstable.config.model import Findings
from cronstable.config.options import OptionsMaker, Prepared, digest
from cronstable.config.schema import Composed
from cronstable.config.validate import Checked
from cronstable.core.finding import Finding, KeyPath, Problem, Severity
from cronstable.core.job import Job, Json
from cronstable.core.schedule import Schedule, ScheduleError

_IDENTITY: Final = frozenset({"name", "command", "schedule"})
_FIVE: Final = ("minute", "hour", "dayOfMonth", "month", "dayOfWeek")


@dataclass(slots=True)
class FileDefaults:
    """What a file gives its jobs. ``layers``: where it comes from, the last word first. ``key``: its digest."""

    merged: Mapping[str, Json] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()
    key: bytes = b""


@dataclass(slots=True)
class JobSet:
    """Collects the jobs of all files."""

    options: OptionsMaker
    composed: Composed
    findings: Findings
    jobs: list[Job] = field(default_factory=list)
    _places: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add_file(self, document: Document, checked: Checked, defaults: FileDefaults) -> None:
        """Make the jobs of a file; what is wrong with one does not hide what is wrong with the next."""
        jobs = document.root.get("jobs") if document.root is not None else None
        for i, job in enumerate(jobs if isinstance(jobs, list) else ()):
            if not isinstance(job, Map):
                continue
            bad = checked.bad.get(i, ())
            usable: Mapping[str, Json] = {k: v for k, v in job.items() if k not in bad} if bad else job
            own = {key: value for key, value in usable.items() if key not in _IDENTITY}
            key = defaults.key + digest(own)
            prepared = self.options.known(key)
            if prepared is None:
                merged = deep_merge(defaults.merged, own) if defaults.merged else own
                prepared = self.options.prepare(merged, key)
            if prepared.problems:
                layers = (Layer(document, ("jobs", i)), *defaults.layers)
                for problem in prepared.problems:
                    self._note(layers, problem)
            self._add(document, i, usable, prepared, complete=not bad)

    def add_jobs(self, jobs: Iterable[Job]) -> None:
        """Take over jobs that were made elsewhere; their names must be new like all others."""
        for job in jobs:
            file, _, line = job.source.rpartition(":")
            first = self._places.get(job.name)
            if first is None:
                self._places[job.name] = (file, int(line))
            else:
                message = f"there is another job `{job.name}` in {first[0]}:{first[1]}"
                self.findings.add(Finding(file, int(line), 1, (), message, hint="rename one of the files"))
            self.jobs.append(job)

    def _add(self, document: Document, i: int, job: Mapping[str, Json], prepared: Prepared, *, complete: bool) -> None:
        name, command, schedule = job.get("name"), job.get("command"), job.get("schedule")
        line = _line(document, i)
        if isinstance(name, str):
            self._check_name(document, i, name, line)
        parsed = self._schedule(document, i, name if isinstance(name, str) else "", schedule, prepared)
        if not isinstance(command, str | list):
            return
        argv = command if isinstance(command, str) else tuple(str(word) for word in command)
        wrong = _wrong_command(argv)
        if wrong is not None:
            self._job_problem(document, i, Problem(("command",), wrong))
        elif complete and isinstance(name, str) and parsed is not None:
            self.jobs.append(Job(name, argv, parsed, prepared.options, f"{document.file}:{line}"))

    def _check_name(self, document: Document, i: int, name: str, line: int) -> None:
        if not name.strip() or not name.isprintable():
            what = "has control characters in it" if name.strip() else "must not be empty"
            self._job_problem(document, i, Problem(("name",), what))
            return
        first = self._places.get(name)
        if first is None:
            self._places[name] = (document.file, line)
        else:
            where = f"in line {first[1]}" if first[0] == document.file else f"in {first[0]}:{first[1]}"
            message = f"there is another job `{name}` {where}"
            self._job_problem(document, i, Problem(("name",), message, hint="give each job a name of its own"))

    def _schedule(self, document: Document, i: int, name: str, schedule: Json, prepared: Prepared) -> Schedule | None:
        day_match: Literal["any", "all"] = "any"
        if isinstance(schedule, dict):
            problem = _one_field_each(schedule)
            if problem is not None:
                self._job_problem(document, i, problem)
                return None
            day_match = "all" if schedule.get("dayMatch") == "all" else "any"
            expression = _as_line(schedule)
        elif isinstance(schedule, str):
            expression = schedule
        else:
            return None
        try:
            parsed = Schedule.parse(expression, job_name=name, zone=prepared.zone, day_match=day_match)
            if parsed.never_fires or _looks_like_seconds(expression):
                # The whole lint is for `explain`; these two are mistakes more often than not.
                for remark in parsed.findings()[:1]:
                    self._job_problem(document, i, Problem(("schedule",), remark, Severity.ADVISORY))
            return parsed
        except ScheduleError as error:
            where: KeyPath = ("schedule",)
            if isinstance(schedule, dict) and error.field in schedule:
                where = ("schedule", error.field)
            message = str(error)
            if name and name not in message:
                message = f"job `{name}`: {message}"
            self._job_problem(document, i, Problem(where, message, hint=error.hint))
            return None

    def _job_problem(self, document: Document, i: int, problem: Problem) -> None:
        self._note((Layer(document, ("jobs", i)),), problem)

    def _note(self, layers: Sequence[Layer], problem: Problem) -> None:
        layer, line, column = locate(layers, problem.path)
        path = (*layer.prefix, *problem.path)
        owner = self.composed.owner(path)
        self.findings.add(
            Finding(
                layer.document.file,
                line,
                column,
                path,
                problem.message,
                problem.severity,
                problem.allowed,
                problem.hint,
                owner,
            )
        )


def _wrong_command(command: str | tuple[str, ...]) -> str | None:
    empty = not command.strip() if isinstance(command, str) else not (command and command[0])
    if empty:
        return "there is no command to run"
    if "\0" in command if isinstance(command, str) else any("\0" in word for word in command):
        return "has a NUL character in it"
    return None


def _line(document: Document, i: int) -> int:
    return document.place(("jobs", i))[0]


def _looks_like_seconds(expression: str) -> bool:
    words = expression.split()
    return len(words) == 6 and words[5] == "*"


def _one_field_each(schedule: Mapping[str, Json]) -> Problem | None:
    for column, value in schedule.items():
        if column != "dayMatch" and (not isinstance(value, str) or len(value.split()) != 1):
            return Problem(("schedule", column), "must be exactly one cron column")
    return None


def _as_line(schedule: Mapping[str, Json]) -> str:
    """The columns as one line of 5, 6 (year) or 7 (second and year) columns, as many as are used (reference 2.1)."""
    columns = [str(schedule.get(column, "*")) for column in _FIVE]
    if "second" in schedule:
        return " ".join([str(schedule["second"]), *columns, str(schedule.get("year", "*"))])
    if "year" in schedule:
        return " ".join([*columns, str(schedule["year"])])
    return " ".join(columns)


class MergedJobs(Sequence[dict[str, Json]]):
    """The jobs of a file as plugins' checks see them, merged when they are looked at: most checks never do."""

    def __init__(self, jobs: Sequence[Json], defaults: Mapping[str, Json]) -> None:
        self._jobs = jobs
        self._defaults = defaults

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> dict[str, Json]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Json]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Json] | list[dict[str, Json]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        job = self._jobs[index]
        return deep_merge(self._defaults, job) if isinstance(job, dict) else {}
