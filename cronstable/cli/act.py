"""``cronstable run``, ``cancel``, ``pause`` and ``resume``: what an operator does to a job of a running node."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from datetime import UTC, datetime
from typing import Final

import click

from cronstable.cli.ask import Lost, NoAnswer, Node, job_path
from cronstable.cli.node import EPILOG, JOB, node_options
from cronstable.cli.screen import at, show_json, took
from cronstable.core.clock import Seconds
from cronstable.core.job import Json

AGAIN: Final[Seconds] = 1.0
"""Between two looks at a run while its node cannot tell by itself that it is over."""
TRIES: Final = 60

_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?")
_SIZES: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}

_RUN_HELP: Final = """Start JOB here and now, on the node that is asked, whoever leads.

    Its concurrencyPolicy is obeyed. With --wait the command ends when the run does.

    \b
    cronstable run nightly-backup --url http://node-a:8080
    cronstable run nightly-backup --wait && echo fine

    Ends with 0 (with --wait: after a success), with 1 when it was refused, the node cannot be asked or forgot the run,
    or the run did not succeed, and with 2 for wrong usage.
    """


@click.command("run", help=_RUN_HELP, epilog=EPILOG)
@click.argument("job", type=JOB)
@node_options
@click.option("--wait", is_flag=True, help="Until the run is over; then say how it ended.")
@click.option("--json", "as_json", is_flag=True, help="The answer, or with --wait the row of the run, instead of text.")
def run_command(job: str, node: Node, wait: bool, as_json: bool) -> int:
    """Start a job."""
    answer = node.post(job_path(job, "/start"))
    run_id = answer.get("run_id")
    if not wait:
        _tell(answer, as_json, f"started {job}{f', run {run_id}' if run_id else ''}")
        return 0
    if not isinstance(run_id, str):
        raise NoAnswer(f"{node.label} started {job!r} and did not say which run it is")
    if not as_json:
        click.echo(f"started {job}, run {run_id}; waiting for its end", err=True)
    run = _end_of(node, job, run_id)
    outcome, reason = run.get("outcome"), run.get("fail_reason")
    words = (
        f"{job}: {outcome} in {took(run.get('duration')) or '?'}{f': {reason}' if reason and reason != outcome else ''}"
    )
    _tell(run, as_json, words)
    return 0 if outcome == "success" else 1


def _end_of(node: Node, job: str, run_id: str) -> dict[str, Json]:
    """The row of a run in the history, once it is over; ``NoAnswer`` when the node started anew and has lost it."""
    failures, begun, mark, anew = 0, False, "", False
    while True:
        try:
            # The stream says hello first: what ended before it was listened to is in the history by then.
            with closing(node.stream("/events?kinds=finished")) as stream:
                for message in stream:
                    failures = 0
                    before, mark = mark, message.id.partition(":")[0]
                    anew = anew or (begun and mark != before)
                    told = message.data.get("run_id") == run_id or (anew and message.data.get("job") == job)
                    if told or message.event in ("hello", "reset"):
                        found = _row(node, job, run_id)
                        if found is None and anew:
                            found = _unless_forgotten(node, job, run_id)
                        if found is not None:
                            return found
                    begun = True
        except (Lost, TimeoutError) as error:
            begun = True
            failures += 1
            if failures > TRIES:
                raise NoAnswer(str(error)) from None
        threading.Event().wait(AGAIN)


def _unless_forgotten(node: Node, job: str, run_id: str) -> dict[str, Json] | None:
    """The row of a run, None while it may come; ``NoAnswer`` when a node that started anew does not know of it.

    Without a state store nothing is left of a run whose daemon ended.
    """
    entry = node.get(job_path(job))
    if entry.get("running") or entry.get("queued") or entry.get("retry"):
        return None
    found = _row(node, job, run_id)  # it may have ended since it was looked for
    if found is None:
        raise NoAnswer(f"{node.label} started anew, and the node forgot the run {run_id} of {job!r}")
    return found


def _row(node: Node, job: str, run_id: str) -> dict[str, Json] | None:
    rows = node.get(job_path(job, "/runs")).get("runs")
    found = rows if isinstance(rows, list) else []
    return next((row for row in found if isinstance(row, dict) and row.get("run_id") == run_id), None)


_CANCEL_HELP: Final = """End the living runs of JOB on the node that is asked.

    They get SIGTERM, and SIGKILL after killTimeout; they are neither reported nor retried.

    \b
    cronstable cancel charge-cards --url http://node-a:8080

    Ends with 0, with 1 when it does not run there or the node cannot be asked, and with 2 for wrong usage.
    """


@click.command("cancel", help=_CANCEL_HELP, epilog=EPILOG)
@click.argument("job", type=JOB)
@node_options
@click.option("--json", "as_json", is_flag=True, help="The answer instead of text.")
def cancel_command(job: str, node: Node, as_json: bool) -> None:
    """End the living runs of a job."""
    answer = node.post(job_path(job, "/cancel"))
    count = answer.get("instances")
    _tell(answer, as_json, f"cancelled {job}: {count} {'run' if count == 1 else 'runs'}")


_PAUSE_HELP: Final = """Skip what comes due of JOB for a while.

    It can still be started by hand. The length is a number with s, m, h, d or w behind it, at most 30 days; without
    --for and --until it is an hour.

    \b
    cronstable pause sync --for 2h --note 'the database moves' --url http://node-a:8080
    cronstable pause sync --until 2026-12-01T06:00:00Z

    Ends with 0, with 1 when the node cannot be asked or has no such job, and with 2 for wrong usage.
    """


@click.command("pause", help=_PAUSE_HELP, epilog=EPILOG)
@click.argument("job", type=JOB)
@node_options
@click.option("--for", "length", metavar="LENGTH", help="How long: 90s, 30m, 2h, 1d.")
@click.option("--until", metavar="RFC3339", help="Until when, with its offset.")
@click.option("--note", metavar="TEXT", help="Why; shown wherever the pause is.")
@click.option("--json", "as_json", is_flag=True, help="The answer instead of text.")
def pause_command(job: str, node: Node, length: str | None, until: str | None, note: str | None, as_json: bool) -> None:
    """Pause a job."""
    if length is not None and until is not None:
        raise click.UsageError("--for and --until exclude each other")
    body: dict[str, Json] = {} if note is None else {"note": note}
    if length is not None:
        body["durationSeconds"] = seconds_of(length)
    if until is not None:
        body["until"] = _moment(until)
    answer = node.post(job_path(job, "/pause"), body)
    paused = answer.get("paused")
    end = at(paused.get("until")) if isinstance(paused, dict) else ""
    _tell(answer, as_json, f"paused {job}{f' until {end}' if end else ''}")


_RESUME_HELP: Final = """End the pause of JOB.

    \b
    cronstable resume sync --url http://node-a:8080

    Ends with 0, also when it was not paused; with 1 when the node cannot be asked or has no such job, and with 2 for
    wrong usage.
    """


@click.command("resume", help=_RESUME_HELP, epilog=EPILOG)
@click.argument("job", type=JOB)
@node_options
@click.option("--json", "as_json", is_flag=True, help="The answer instead of text.")
def resume_command(job: str, node: Node, as_json: bool) -> None:
    """End the pause of a job."""
    _tell(node.post(job_path(job, "/resume")), as_json, f"resumed {job}")


def seconds_of(text: str) -> float:
    """Seconds of a length such as 90s, 30m or 2h. Raises ``click.UsageError`` for anything else."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None:
        raise click.UsageError(f"{text!r} is not a length of time (hint: 90s, 30m, 2h, 1d)")
    return float(found[1]) * _SIZES[found[2] or "s"]


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--until: {text!r} is not a time (hint: 2026-01-01T06:00:00Z)") from None
    if moment.tzinfo is None:
        raise click.UsageError(f"--until: {text!r} has no offset (hint: {text}Z is UTC)")
    return moment.astimezone(UTC).isoformat()


def _tell(answer: dict[str, Json], as_json: bool, words: str) -> None:
    if as_json:
        show_json(answer)
    else:
        click.echo(words)
