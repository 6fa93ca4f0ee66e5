"""``cronstable explain`` and ``cronstable next``: what an expression means, and when it is due."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

import click

from cronstable.core.clock import Clock
from cronstable.core.lint import zone_name
from cronstable.core.schedule import ClockMark, Schedule, ScheduleError
from cronstable.core.wording import describe

_FEW = 5
_MARKS = {
    ClockMark.NONE: "",
    ClockMark.MOVED: "DST: this wall time is missing today, moved to the end of the gap",
    ClockMark.FIRST_PASS: "DST: this wall time occurs twice, first time",
    ClockMark.SECOND_PASS: "DST: this wall time occurs twice, second time",
}


class Refused(click.ClickException):
    """Something the user wrote that cannot be used: the reason on stderr, exit code 1."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose occurrences were asked for, and the zone to show them in."""

    schedule: Schedule
    shown: tzinfo
    title: str


@click.command("explain")
@click.argument("expression", nargs=-1, required=True)
@click.option("--tz", "zone", metavar="ZONE", default="UTC", show_default=True, help="The zone of the schedule.")
@click.option("--job", "job_name", metavar="NAME", default="", help="The job's name, from which H draws its values.")
@click.option("--day-match", type=click.Choice(["any", "all"]), default="any", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One object instead of text.")
@click.pass_context
def explain_command(
    context: click.Context, expression: tuple[str, ...], zone: str, job_name: str, day_match: str, as_json: bool
) -> None:
    """Say in plain words what EXPRESSION means, what is remarkable about it, and when it is due next.

    Ends with 0, or with 1 when the expression or the zone is none.
    """
    schedule = _parse(" ".join(expression), _zone(zone), job_name, "all" if day_match == "all" else "any")
    _warn_of_unnamed_hash(schedule, job_name)
    now = int(now_of(context))
    fires = list(islice(_fires(schedule, now), _FEW))
    findings = schedule.findings(now)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "expression": schedule.text,
                    "resolved": schedule.resolved,
                    "timezone": zone_name(schedule),
                    "dayMatch": schedule.day_match,
                    "words": describe(schedule),
                    "findings": list(findings),
                    "never_fires": schedule.never_fires,
                    "uses_seconds": schedule.uses_seconds,
                    "next": [rfc3339(t) for t in fires],
                },
                indent=2,
            )
        )
        return
    click.echo(f"{schedule.text}\n  {describe(schedule)} ({zone_name(schedule)})")
    if schedule.resolved != schedule.text:
        click.echo(f"  the same as {schedule.resolved}" + (f" for the job {job_name!r}" if job_name else ""))
    for finding in findings:
        click.echo(f"  note: {finding}")
    if not schedule.reboot:
        _print_fires(Wanted(schedule, schedule.zone, ""), fires)


@click.command("next")
@click.argument("what", metavar="EXPRESSION|JOB", nargs=-1, required=True)
@click.option("-n", "count", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many.")
@click.option("--from", "start", metavar="RFC3339", help="Strictly after this time, with its offset (default: now).")
@click.option("--tz", "zone", metavar="ZONE", help="The zone of the expression; for a job, the zone to show.")
@click.option("-c", "--config", "path", metavar="PATH", help="Where to look for JOB: a file or directory.")
@click.option("--json", "as_json", is_flag=True, help="A list of RFC 3339 times in UTC.")
@click.pass_context
def next_command(
    context: click.Context,
    what: tuple[str, ...],
    count: int,
    start: str | None,
    zone: str | None,
    path: str | None,
    as_json: bool,
) -> None:
    """List the next times that an expression, or with -c a job of a configuration, is due.

    Ends with 0 (also when there are none), or with 1 when the expression, job, zone or time is none.
    """
    wanted = _wanted(" ".join(what), zone, path)
    after = int(now_of(context)) if start is None else instant(start)
    fires = list(islice(_fires(wanted.schedule, after), count))
    if as_json:
        click.echo(json.dumps([rfc3339(t) for t in fires]))
        return
    click.echo(f"{wanted.title}: {describe(wanted.schedule)} ({zone_name(wanted.schedule)})")
    _print_fires(wanted, fires)


def _wanted(text: str, zone: str | None, path: str | None) -> Wanted:
    shown = None if zone is None else _zone(zone)
    try:
        schedule = Schedule.parse(text, job_name="", zone=shown or UTC)
    except ScheduleError as wrong:
        if path is None:
            raise _refused(wrong) from None
        found = _job_schedule(path, text)
        if found is None:
            raise Refused(f"{path} has no job {text!r}, and as an expression: {_said(wrong)}") from None
        return Wanted(found, shown or found.zone, f"{text}: {found.text}")
    _warn_of_unnamed_hash(schedule, "")
    return Wanted(schedule, schedule.zone, schedule.text)


def _warn_of_unnamed_hash(schedule: Schedule, job_name: str) -> None:
    if schedule.is_hashed and not job_name:
        click.echo("note: H draws its values from the job's name, and none was given", err=True)


def _job_schedule(path: str, name: str) -> Schedule | None:
    """The schedule of the job ``name``; None when the configuration has no such job."""
    # The configuration brings YAML and JSON Schema along: only a job's name needs them.
    from cronstable.cli.loading import loader, plugins_with_warnings, warn
    from cronstable.config import format_findings

    result = loader(path, plugins_with_warnings(warn))()
    if result.config is None:
        raise Refused(f"{path} cannot be used:\n{format_findings(result.findings, 'text')}")
    return next((job.schedule for job in result.config.jobs if job.name == name), None)


def _parse(text: str, zone: tzinfo, job_name: str, day_match: str) -> Schedule:
    try:
        return Schedule.parse(text, job_name=job_name, zone=zone, day_match="all" if day_match == "all" else "any")
    except ScheduleError as wrong:
        raise _refused(wrong) from None


def _refused(wrong: ScheduleError) -> Refused:
    return Refused(_said(wrong))


def _said(wrong: ScheduleError) -> str:
    return f"{wrong} (hint: {wrong.hint})" if wrong.hint else str(wrong)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Depending on the name, zoneinfo says that it is not found, malformed, a directory or not readable.
        raise Refused(f"unknown timezone {name!r} (hint: a name such as Europe/Berlin or UTC)") from None


def instant(text: str) -> int:
    """Whole seconds of an RFC 3339 time, rounded down."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"--from: {text!r} is not a time (hint: 2026-01-01T00:00:00Z)") from None
    if moment.tzinfo is None:
        raise Refused(f"--from: {text!r} has no offset (hint: {text}Z is UTC)")
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() // 1)


def now_of(context: click.Context) -> float:
    """Wall seconds now, by the clock in the context, or this machine's."""
    clock: Clock | None = context.obj
    if clock is None:
        from cronstable.runtime.system import SystemClock

        clock = SystemClock()
    return clock.now().wall


def _fires(schedule: Schedule, after: int) -> Iterator[int]:
    t = schedule.next_after(after)
    while t is not None:
        yield t
        t = schedule.next_after(t)


def _print_fires(wanted: Wanted, fires: list[int]) -> None:
    """A line for each occurrence: in UTC, in the zone of the schedule, and with the mark of a clock change."""
    if wanted.schedule.reboot:
        click.echo("  only when the daemon starts")
    elif not fires:
        click.echo("  no occurrence")
    for t in fires:
        mark = _MARKS[wanted.schedule.mark_at(t)]
        there = datetime.fromtimestamp(t, wanted.shown).strftime("%a %Y-%m-%d %H:%M:%S %Z")
        columns = [rfc3339(t)] if wanted.shown is UTC else [rfc3339(t), there]
        click.echo("  " + "  ".join([*columns, mark]).rstrip())


def rfc3339(t: int) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
