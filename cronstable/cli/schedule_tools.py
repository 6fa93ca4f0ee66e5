"""``cronstable explain``: what an expression means; and what it shares with the other commands about schedules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
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
class Fire:
    """One occurrence: wall seconds, the same in the zone that is shown (None: UTC), and what a clock change did."""

    t: int
    there: datetime | None
    mark: ClockMark


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
    schedule = parse(" ".join(expression), zone_of(zone), job_name, "all" if day_match == "all" else "any")
    warn_of_unnamed_hash(schedule, job_name)
    now = int(now_of(context))
    fires = list(islice(fires_after(schedule, now), _FEW))
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
        print_fires(fires_of(schedule, schedule.zone, fires), reboot=False)


def warn_of_unnamed_hash(schedule: Schedule, job_name: str) -> None:
    if schedule.is_hashed and not job_name:
        click.echo("note: H draws its values from the job's name, and none was given", err=True)


def parse(text: str, zone: tzinfo, job_name: str, day_match: str) -> Schedule:
    try:
        return Schedule.parse(text, job_name=job_name, zone=zone, day_match="all" if day_match == "all" else "any")
    except ScheduleError as wrong:
        raise Refused(said(wrong)) from None


def said(wrong: ScheduleError) -> str:
    return f"{wrong} (hint: {wrong.hint})" if wrong.hint else str(wrong)


def zone_of(name: str) -> tzinfo:
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


def fires_after(schedule: Schedule, after: int) -> Iterator[int]:
    t = schedule.next_after(after)
    while t is not None:
        yield t
        t = schedule.next_after(t)


def fires_of(schedule: Schedule, shown: tzinfo, times: Iterable[int]) -> list[Fire]:
    """Occurrences of ``schedule``, to be shown in a zone."""
    return [Fire(t, None if shown is UTC else datetime.fromtimestamp(t, shown), schedule.mark_at(t)) for t in times]


def print_fires(fires: Sequence[Fire], *, reboot: bool) -> None:
    """A line for each occurrence: in UTC, in the zone of the schedule, and with the mark of a clock change."""
    if reboot:
        click.echo("  only when the daemon starts")
    elif not fires:
        click.echo("  no occurrence")
    for fire in fires:
        there = [] if fire.there is None else [fire.there.strftime("%a %Y-%m-%d %H:%M:%S %Z")]
        click.echo("  " + "  ".join([rfc3339(fire.t), *there, _MARKS[fire.mark]]).rstrip())


def rfc3339(t: int) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
