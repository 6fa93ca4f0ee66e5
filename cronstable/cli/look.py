"""``cronstable list``, ``status`` and ``runs``: the jobs of a running node, how they fare, and how they fared."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import click

from cronstable.cli.ask import Node, job_path
from cronstable.cli.node import EPILOG, JOB, node_options
from cronstable.cli.schedule_tools import now_of
from cronstable.cli.screen import (
    BAD,
    BUSY,
    CARE,
    DIM,
    GOOD,
    OUTCOMES,
    Cell,
    ago,
    at,
    instant,
    on_terminal,
    rich_table,
    safe,
    show_json,
    show_table,
    span,
    took,
)
from cronstable.core.job import Json
from cronstable.core.reasons import because

Row = Mapping[str, Json]

_STATES: Final = {
    "running": BUSY, "failed": BAD, "retrying": BAD, "ok": GOOD, "cancelled": CARE, "unknown": CARE, "paused": CARE,
    "skipped": DIM, "waiting": BUSY, "no run yet": DIM, "disabled": DIM,
}  # fmt: skip
_OUTCOME_STATES: Final = {"success": "ok", "failure": "failed"}

_LIST_HELP: Final = """List the jobs of a running node: what each is and when it runs next.

    PATTERN picks jobs by name, with * and ?; several may be given.

    \b
    cronstable list --url http://node-a:8080
    cronstable list 'backup-*' --json

    Ends with 0, with 1 when the node cannot be asked, and with 2 for wrong usage.
    """


@click.command("list", help=_LIST_HELP, epilog=EPILOG)
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, type=JOB)
@node_options
@click.option("--json", "as_json", is_flag=True, help="The entries of GET /jobs instead of text.")
def list_command(patterns: tuple[str, ...], node: Node, as_json: bool) -> None:
    """List the jobs of a node."""
    entries = _picked(node.get_rows("/jobs?words=true"), patterns)
    if as_json:
        show_json(entries)
        return
    headings = ["JOB", "SCHEDULE", "WHEN", "NEXT", "COMMAND"]
    show_table(headings, [[*_named(entry), _next(entry), Cell(safe(entry.get("command")), DIM)] for entry in entries])


_STATUS_HELP: Final = """Say how the jobs of a running node fare: the failing ones first.

    With --watch the answer is shown anew every SECONDS (2) until Ctrl-C.

    \b
    cronstable status --url http://node-a:8080
    cronstable status --watch 'backup-*'

    Ends with 0, also when jobs fail; with 1 when the node cannot be asked, with 2 for wrong usage, and with 130
    after Ctrl-C.
    """


@click.command("status", help=_STATUS_HELP, epilog=EPILOG)
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, type=JOB)
@node_options
@click.option("--watch", is_flag=True, help="Show it again and again.")
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="How often."
)
@click.option("--json", "as_json", is_flag=True, help="One object: GET /summary and the entries of GET /jobs.")
@click.pass_context
def status_command(
    context: click.Context, patterns: tuple[str, ...], node: Node, watch: bool, interval: float, as_json: bool
) -> None:
    """Say how the jobs of a node fare."""
    if watch and not as_json and on_terminal():
        _watch(context, node, patterns, interval)
        return
    while True:
        summary, entries = node.get("/summary"), _picked(node.get_rows("/jobs?words=true"), patterns)
        if as_json:
            show_json({"summary": summary, "jobs": entries})
        else:
            for cell in _headline(summary):
                click.echo(cell.text)
            show_table(*_status_table(entries, now_of(context)))
        if not watch:
            return
        _pause(interval)


def _watch(context: click.Context, node: Node, patterns: Sequence[str], interval: float) -> None:
    """On a terminal: one picture that changes, in which as many jobs are shown as fit."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            try:
                summary, entries = node.get("/summary"), _picked(node.get_rows("/jobs?words=true"), patterns)
                lines = [Text(cell.text, style=cell.style) for cell in _headline(summary)]
                headings, rows = _status_table(entries, now_of(context))
                room = max(1, console.height - len(lines) - 3)
                more = [Text(f"and {len(rows) - room} more", style=DIM)] if len(rows) > room else []
                table = rich_table(headings, rows[:room])
                live.update(Group(*lines, Text(), table, *more), refresh=True)  # type: ignore[arg-type]  # a renderable
            except click.ClickException as error:
                live.update(Text(error.format_message(), style=BAD), refresh=True)
            _pause(interval)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


_RUNS_HELP: Final = """List the last runs and skips of JOB on a running node, newest first.

    \b
    cronstable runs nightly-backup --url http://node-a:8080
    cronstable runs nightly-backup -n 3 --json

    Ends with 0, with 1 when the node cannot be asked or has no such job, and with 2 for wrong usage.
    """


@click.command("runs", help=_RUNS_HELP, epilog=EPILOG)
@click.argument("job", type=JOB)
@node_options
@click.option("-n", "count", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="The answer of GET /jobs/JOB/runs instead of text.")
def runs_command(job: str, node: Node, count: int, as_json: bool) -> None:
    """List the last runs of a job."""
    document = node.get(job_path(job, f"/runs?limit={count}"))
    if as_json:
        show_json(document)
        return
    rows, stats = document.get("runs"), document.get("stats")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if isinstance(stats, dict) and stats.get("total"):
        rate = stats.get("success_rate")
        said = f", {rate:.0%} successful" if isinstance(rate, int | float) else ""
        click.echo(f"{stats['total']} runs{said}, average {took(stats.get('avg_duration')) or '-'}")
    show_table(["STARTED", "OUTCOME", "EXIT", "TOOK", "BY", "RUN", "REASON"], [_run(row) for row in found])


def _run(row: Row) -> list[Cell]:
    outcome, code = str(row.get("outcome")), row.get("exit_code")
    attempt = row.get("attempt")
    by = f"{row.get('trigger') or ''}{f' #{attempt}' if attempt else ''}"
    skipped, failed = row.get("skip_reason"), row.get("fail_reason")
    reason = f"{because(str(skipped))} ({skipped})" if skipped else "" if failed == outcome else failed or ""
    return [
        Cell(at(row.get("started_at")) or at(row.get("finished_at"))),
        Cell(outcome, OUTCOMES.get(outcome, "")),
        Cell("" if code is None else str(code)),
        Cell(took(row.get("duration"))),
        Cell(by),
        Cell(str(row.get("run_id") or ""), DIM),
        Cell(safe(reason)),
    ]


# -- what is shown of a job -------------------------------------------------------------------------------------------


def state_of(entry: Row) -> str:
    """What a job is doing, in a word or two."""
    last = entry.get("last_run")
    if entry.get("running"):
        return "running"
    if entry.get("enabled") is False:
        return "disabled"
    if entry.get("paused"):
        return "paused"
    if entry.get("retry"):
        return "retrying"
    if entry.get("queued") or entry.get("rebootPending"):
        return "waiting"
    if not isinstance(last, dict):
        return "no run yet"
    outcome = str(last.get("outcome"))
    return _OUTCOME_STATES.get(outcome, outcome)


def _picked(entries: list[dict[str, Json]], patterns: Sequence[str]) -> list[dict[str, Json]]:
    if not patterns:
        return entries
    found = [e for e in entries if any(fnmatchcase(str(e.get("name")), pattern) for pattern in patterns)]
    if not found:
        raise click.ClickException(f"no job is called {' or '.join(map(repr, patterns))}")
    return found


def _named(entry: Row) -> list[Cell]:
    zone = entry.get("timezone")
    words = f"{entry.get('schedule_words') or ''}{'' if zone in (None, 'UTC') else f', {zone}'}"
    return [Cell(safe(entry.get("name")), "bold"), Cell(str(entry.get("schedule"))), Cell(words)]


def _next(entry: Row) -> Cell:
    left = entry.get("scheduled_in")
    if entry.get("enabled") is False:
        return Cell("disabled", DIM)
    if entry.get("never_fires"):
        return Cell("never", CARE)
    if not isinstance(left, int | float):
        return Cell("at a start", DIM)
    return Cell("now" if left <= 0 else f"in {span(left + 0.999)}")


def _status_table(entries: Sequence[Row], now: float) -> tuple[list[str], list[list[Cell]]]:
    order = list(_STATES)
    by_state = sorted(
        ((state_of(entry), entry) for entry in entries),
        key=lambda pair: (_urgency(pair[0], order), str(pair[1].get("name"))),
    )
    return ["STATE", "JOB", "LAST", "EXIT", "TOOK", "NEXT", "NOTE"], [_status(s, entry, now) for s, entry in by_state]


def _urgency(state: str, order: list[str]) -> int:
    first = ("failed", "retrying", "running", "waiting")
    return first.index(state) if state in first else len(first) + (order.index(state) if state in order else 0)


def _status(state: str, entry: Row, now: float) -> list[Cell]:
    last = entry.get("last_run")
    run: Row = last if isinstance(last, dict) else {}
    code = run.get("exit_code")
    return [
        Cell(state, _STATES.get(state, "")),
        Cell(safe(entry.get("name")), "bold"),
        Cell(ago(run.get("finished_at"), now)),
        Cell("" if code is None else str(code), BAD if run.get("outcome") == "failure" else ""),
        Cell(took(run.get("duration"))),
        _next(entry),
        Cell(safe(_note(entry, run)), CARE),
    ]


def _note(entry: Row, run: Row) -> str:
    paused, sla = entry.get("paused"), entry.get("sla")
    notes = []
    if isinstance(paused, dict):
        until, note = instant(paused.get("until")), paused.get("note")
        notes.append(f"until {until:%Y-%m-%dT%H:%M:%SZ}{f': {note}' if note else ''}" if until else str(note or ""))
    if isinstance(sla, dict) and sla.get("state") == "late":
        notes.append("late")
    if run.get("skip_reason"):
        notes.append(str(run["skip_reason"]))
    elif run.get("outcome") == "failure" and run.get("fail_reason"):
        notes.append(str(run["fail_reason"]))
    return "; ".join(notes)


def _headline(summary: Row) -> list[Cell]:
    jobs, cluster, reload = summary.get("jobs"), summary.get("cluster"), summary.get("reload")
    counts = jobs if isinstance(jobs, dict) else {}
    words = ", ".join(f"{counts[key]} {key}" for key in ("running", "failing", "paused", "disabled") if counts.get(key))
    lines = [Cell(f"{summary.get('node_name')}: {counts.get('total', 0)} jobs{f', {words}' if words else ''}", "bold")]
    if isinstance(cluster, dict) and cluster.get("enabled"):
        lines.append(_cluster_line(cluster))
    if isinstance(reload, dict) and reload.get("ok") is False:
        lines.append(Cell(f"the configuration could not be read again: {reload.get('error')}", BAD))
    return lines


def _cluster_line(cluster: Row) -> Cell:
    if not cluster.get("quorate"):
        return Cell("no quorum: Leader jobs do not run on this node", BAD)
    if cluster.get("distribution") == "spread":
        return Cell("quorate; jobs are spread over the nodes", GOOD)
    if cluster.get("is_leader"):
        return Cell("this node leads", GOOD)
    leader = cluster.get("leader")
    return Cell(f"{safe(leader)} leads", GOOD) if leader else Cell("nobody leads", BAD)
