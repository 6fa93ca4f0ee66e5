"""``cronstable pressure``, ``duplicates``, ``suggest`` and ``calendar``: the schedules of a running node as a whole."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import click

from cronstable.cli.ask import Node, job_path
from cronstable.cli.node import EPILOG, JOB, node_options
from cronstable.cli.screen import BUSY, CARE, DIM, Cell, at, safe, show_json, show_table
from cronstable.core.job import Json

_PARTLY: Final = "the schedules are too many to look at all of them: the figures are too low"

_PRESSURE_HELP: Final = """Show the minutes of the next day in which most jobs start.

    \b
    cronstable pressure --url http://node-a:8080
    cronstable pressure -n 3 --json

    Ends with 0, with 1 when the node cannot be asked, and with 2 for wrong usage.
    """


@click.command("pressure", help=_PRESSURE_HELP, epilog=EPILOG)
@node_options
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many minutes.")
@click.option("--json", "as_json", is_flag=True, help="The answer of GET /schedule/pressure instead of text.")
def pressure_command(node: Node, count: int, as_json: bool) -> None:
    """Show the fullest minutes of the next day."""
    document = node.get(f"/schedule/pressure?count={count}")
    if as_json:
        show_json(document)
        return
    minutes = [number for number in _list(document.get("minutes")) if isinstance(number, int)]
    click.echo(
        f"{sum(minutes)} starts in {sum(1 for number in minutes if number)} minutes until {at(document.get('until'))}"
    )
    _warn_of_part(document)
    rows = [
        [Cell(at(row.get("at"))), Cell(str(row.get("count")), BUSY), Cell(_names(row), DIM)]
        for row in _rows(document.get("busiest"))
    ]
    show_table(["MINUTE", "STARTS", "JOBS"], rows)


_DUPLICATES_HELP: Final = """List the commands that more than one enabled job runs.

    \b
    cronstable duplicates --url http://node-a:8080
    cronstable duplicates --json

    Ends with 0, also when there are some; with 1 when the node cannot be asked, and with 2 for wrong usage.
    """


@click.command("duplicates", help=_DUPLICATES_HELP, epilog=EPILOG)
@node_options
@click.option("--json", "as_json", is_flag=True, help="The answer of GET /schedule/duplicates instead of text.")
def duplicates_command(node: Node, as_json: bool) -> None:
    """List the commands that more than one job runs."""
    document = node.get("/schedule/duplicates")
    if as_json:
        show_json(document)
        return
    groups = _rows(document.get("groups"))
    if not groups:
        click.echo("every enabled job runs a command of its own")
        return
    rows = [
        [
            Cell("the same", CARE) if group.get("same_schedule") else Cell("different", DIM),
            Cell(_names(group)),
            Cell(safe(group.get("command")), DIM),
        ]
        for group in groups
    ]
    show_table(["SCHEDULES", "JOBS", "COMMAND"], rows)


_SUGGEST_HELP: Final = """Suggest schedules for a new job: the emptiest slots of the next day.

    \b
    cronstable suggest --url http://node-a:8080
    cronstable suggest --every hour -n 3

    Ends with 0, with 1 when the node cannot be asked or the zone is none, and with 2 for wrong usage.
    """


@click.command("suggest", help=_SUGGEST_HELP, epilog=EPILOG)
@node_options
@click.option(
    "--every", type=click.Choice(["hour", "day"]), default="day", show_default=True, help="How often it runs."
)
@click.option("--tz", "zone", metavar="ZONE", default="UTC", show_default=True, help="The zone of the new job.")
@click.option("-n", "count", type=click.IntRange(1, 60), default=5, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="The answer of GET /schedule/suggest instead of text.")
def suggest_command(node: Node, every: str, zone: str, count: int, as_json: bool) -> None:
    """Suggest schedules for a new job."""
    document = node.get(f"/schedule/suggest?{urlencode({'every': every, 'timezone': zone, 'count': count})}")
    if as_json:
        show_json(document)
        return
    _warn_of_part(document)
    rows = [
        [Cell(str(row.get("schedule")), BUSY), Cell(str(row.get("load")))] for row in _rows(document.get("suggestions"))
    ]
    show_table(["SCHEDULE", "STARTS THEN"], rows)


_CALENDAR_HELP: Final = """Print the next runs as a calendar (iCalendar): of every job, or of JOB.

    \b
    cronstable calendar --url http://node-a:8080 > jobs.ics
    cronstable calendar nightly-backup --days 31

    Ends with 0, with 1 when the node cannot be asked or has no such job, and with 2 for wrong usage.
    """


@click.command("calendar", help=_CALENDAR_HELP, epilog=EPILOG)
@click.argument("job", required=False, type=JOB)
@node_options
@click.option("--days", type=click.IntRange(1, 366), default=7, show_default=True, help="How far ahead.")
@click.option(
    "--limit", type=click.IntRange(1, 5000), default=100, show_default=True, help="At most so many events of one job."
)
def calendar_command(job: str | None, node: Node, days: int, limit: int) -> None:
    """Print the next runs as a calendar."""
    where = "/calendar.ics" if job is None else job_path(job, "/calendar.ics")
    click.echo(node.get_bytes(f"{where}?days={days}&limit={limit}", "text/calendar"), nl=False)


def _warn_of_part(document: dict[str, Json]) -> None:
    if document.get("whole") is False:
        click.echo(f"note: {_PARTLY}", err=True)


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _rows(value: Json) -> list[dict[str, Json]]:
    return [row for row in _list(value) if isinstance(row, dict)]


def _names(row: dict[str, Json]) -> str:
    return ", ".join(safe(name) for name in _list(row.get("jobs")))
