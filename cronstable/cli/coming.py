"""``cronstable next``: when an expression, a job of a configuration or a job of a running node is due."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from http import HTTPStatus
from itertools import islice
from typing import Final
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import click

from cronstable.cli.ask import NoAnswer, Node, Refusal
from cronstable.cli.main import DEFAULT_CONFIG
from cronstable.cli.node import EPILOG, JOB, URL_VARIABLE, chosen_node
from cronstable.cli.schedule_tools import (
    Fire,
    Refused,
    fires_after,
    fires_of,
    instant,
    now_of,
    print_fires,
    rfc3339,
    said,
    warn_of_unnamed_hash,
    zone_of,
)
from cronstable.core.job import Json
from cronstable.core.lint import zone_name
from cronstable.core.schedule import ClockMark, Schedule, ScheduleError
from cronstable.core.wording import describe

AT_ONCE: Final = 1000
"""Occurrences in one answer of a node."""


@dataclass(frozen=True, slots=True)
class Coming:
    """What was asked for: its headline and its occurrences. ``reboot``: it has none, by its nature."""

    title: str
    fires: list[Fire]
    reboot: bool


@dataclass(frozen=True, slots=True)
class Span:
    """Which occurrences: so many after a time, which is None for now; and the zone to show them in, None for theirs."""

    count: int
    after: int | None
    shown: tzinfo | None


_HELP: Final = """List the next times that an expression or a job is due.

    What is no expression is the name of a job: of the configuration of -c, or else of a running node.

    \b
    cronstable next '30 2 * * *' --tz Europe/Berlin
    cronstable next nightly-backup -c cronstable.yaml
    cronstable next nightly-backup --url http://node-a:8080

    Ends with 0 (also when there are none), with 1 when the expression, job, zone or time is none or the node cannot be
    asked, and with 2 for wrong usage.
    """


@click.command("next", help=_HELP, epilog=EPILOG.replace("--url, --socket and -c", "--url and --socket"))
@click.argument("what", metavar="EXPRESSION|JOB", nargs=-1, required=True, type=JOB)
@click.option("-n", "count", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many.")
@click.option("--from", "start", metavar="RFC3339", help="Strictly after this time, with its offset (default: now).")
@click.option("--tz", "zone", metavar="ZONE", help="The zone of the expression; for a job, the zone to show.")
@click.option("-c", "--config", metavar="PATH", help="Look for JOB in a file or directory, and ask no node.")
@click.option("--url", metavar="URL", help="The node: http://HOST:PORT, https://HOST:PORT or unix:///PATH.")
@click.option("--socket", metavar="PATH", help="The node, by its unix socket.")
@click.option("--token-file", metavar="FILE", help="A file with the token that the node asks for.")
@click.option("--json", "as_json", is_flag=True, help="A list of RFC 3339 times in UTC.")
@click.pass_context
def next_command(
    context: click.Context,
    what: tuple[str, ...],
    count: int,
    start: str | None,
    zone: str | None,
    config: str | None,
    url: str | None,
    socket: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """List the next times that an expression or a job is due."""
    if config is not None and (url is not None or socket is not None):
        raise click.UsageError("-c looks into a configuration, --url and --socket ask a node: give one of them")
    text, span = (
        " ".join(what),
        Span(count, None if start is None else instant(start), None if zone is None else zone_of(zone)),
    )
    try:
        schedule = Schedule.parse(text, job_name="", zone=span.shown or UTC)
    except ScheduleError as wrong:
        if config is not None:
            coming = _of_configuration(context, config, text, span, said(wrong))
        elif url or socket or os.environ.get(URL_VARIABLE) or os.path.exists(DEFAULT_CONFIG):
            node = chosen_node(url=url, socket=socket, config=None, token_file=token_file)
            coming = _of_node(node, text, span, said(wrong))
        else:
            raise Refused(said(wrong)) from None
    else:
        warn_of_unnamed_hash(schedule, "")
        coming = _of_schedule(context, schedule, schedule.text, span)
    if as_json:
        click.echo(json.dumps([rfc3339(fire.t) for fire in coming.fires]))
        return
    click.echo(coming.title)
    print_fires(coming.fires, reboot=coming.reboot)


def _of_schedule(context: click.Context, schedule: Schedule, name: str, span: Span) -> Coming:
    after = int(now_of(context)) if span.after is None else span.after
    found = fires_of(schedule, span.shown or schedule.zone, islice(fires_after(schedule, after), span.count))
    return Coming(f"{name}: {describe(schedule)} ({zone_name(schedule)})", found, schedule.reboot)


def _of_configuration(context: click.Context, path: str, name: str, span: Span, no_expression: str) -> Coming:
    # The configuration brings YAML and JSON Schema along: only a job's name needs them.
    from cronstable.cli.loading import loader, plugins_with_warnings, warn
    from cronstable.config import format_findings

    result = loader(path, plugins_with_warnings(warn))()
    if result.config is None:
        raise Refused(f"{path} cannot be used:\n{format_findings(result.findings, 'text')}")
    schedule = next((job.schedule for job in result.config.jobs if job.name == name), None)
    if schedule is None:
        raise Refused(f"{path} has no job {name!r}, and as an expression: {no_expression}")
    return _of_schedule(context, schedule, f"{name}: {schedule.text}", span)


def _of_node(node: Node, name: str, span: Span, no_expression: str) -> Coming:
    """As the node says; its schedules are those that run."""
    after, rows = span.after, list[Json]()
    while True:
        asked: dict[str, str | int] = {"job": name, "count": min(AT_ONCE, span.count - len(rows))}
        try:
            document = node.get(
                f"/schedule/preview?{urlencode(asked | ({} if after is None else {'after': rfc3339(after)}))}"
            )
        except Refusal as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise
            raise NoAnswer(f"{node.label} has no job {name!r}, and as an expression: {no_expression}") from None
        more = document.get("next")
        found = more if isinstance(more, list) else []
        rows += found
        if len(found) < int(asked["count"]) or len(rows) >= span.count:
            break
        after = _fire(found[-1], None).t
    shown = span.shown or _zone_here(document.get("timezone"))
    title = f"{name}: {document.get('expression')}: {document.get('words')} ({document.get('timezone')})"
    return Coming(title, [_fire(row, shown) for row in rows], document.get("resolved") == "@reboot")


def _fire(row: Json, shown: tzinfo | None) -> Fire:
    """One of ``next``; in the zone that the node computed it in when none is given."""
    match row:
        case {"at": str(at), "local": str(local), "mark": str(mark)}:
            there = datetime.fromisoformat(local)
            moment = there if shown is None else there.astimezone(shown)
            return Fire(int(datetime.fromisoformat(at).timestamp()), None if shown is UTC else moment, ClockMark(mark))
    raise NoAnswer("the node's answer is not that of GET /schedule/preview")


def _zone_here(name: Json) -> tzinfo | None:
    """The zone of that name on this machine, for its abbreviations; None when it has none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(str(name))
    except (KeyError, ValueError, OSError):  # depending on the name, as in ``zone_of``
        return None
