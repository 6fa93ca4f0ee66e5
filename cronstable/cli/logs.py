"""``cronstable logs``: the output of a job's run on a running node, as far as it is there or as it comes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator
from contextlib import closing
from typing import Final
from urllib.parse import quote

import click

from cronstable.cli.ask import Lost, Message, NoAnswer, Node, job_path
from cronstable.cli.node import EPILOG, JOB, node_options
from cronstable.cli.screen import at, instant, output_line
from cronstable.core.clock import Seconds
from cronstable.core.job import Json

SETTLED: Final[Seconds] = 1.0
"""Without ``-f``, so long after its last line a run that lives counts as having said all by now."""
AGAIN: Final[Seconds] = 1.0
"""Between two tries to come back to a node."""
TRIES: Final = 60

_HELP: Final = """Show the output of the run of JOB that lives, or of the last one.

    Output that the job does not capture (captureStdout, captureStderr) is not there. With -f new lines are shown as
    they come, across lost connections, and then those of the next runs, until Ctrl-C.

    \b
    cronstable logs nightly-backup --url http://node-a:8080
    cronstable logs -f charge-cards | grep -i error
    cronstable logs nightly-backup --run 9cc2b32cda5d5de0 --json

    Ends with 0, with 1 when the node cannot be asked, has no such job or falls silent before the end of a run that is
    over, with 2 for wrong usage, and with 130 after Ctrl-C.
    """


@click.command("logs", help=_HELP, epilog=EPILOG)
@click.argument("job", type=JOB)
@node_options
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--run", "run_id", metavar="ID", help="This run, instead of the newest.")
@click.option("-t", "--times", is_flag=True, help="The time before each line, in UTC.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each line of output.")
def logs_command(job: str, node: Node, follow: bool, run_id: str | None, times: bool, as_json: bool) -> None:
    """Show the output of a job's run."""
    # On the clock of the node: a run that never stops talking has said what is older than this.
    begun = None if follow else instant(node.get("/summary").get("generated_at"))
    while True:
        shown = ""
        with closing(_messages(node, job, run_id, follow)) as messages:
            for message in messages:
                if message.event == "line":
                    written = instant(message.data.get("at"))
                    if begun is not None and written is not None and written > begun:
                        return
                    _show(message, times, as_json)
                elif message.event == "run":
                    shown = str(message.data.get("run_id") or "")
                elif message.event == "gap":
                    _say(f"lines {message.data.get('from')} to {message.data.get('to')} are not kept any more")
                elif message.event == "end":
                    _say_why(message.data.get("reason"), shown)
        if not follow or run_id is not None:
            return
        _wait_for_next(node, job, shown)


def _show(message: Message, times: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(message.data))
        return
    when = f"{at(message.data.get('at'))}  " if times else ""
    click.echo(f"{when}{output_line(str(message.data.get('line', '')))}", err=message.data.get("stream") == "stderr")


def _say_why(reason: Json, shown: str) -> None:
    """Say of a stream that ended why there is nothing, or not all."""
    if reason == "no-output":
        _say("no run yet" if not shown else f"run {shown}: no output was kept")
    elif reason == "forgotten":
        _say(f"run {shown}: what followed is not kept any more")


def _say(words: str) -> None:
    click.echo(f"cronstable: {words}", err=True)


def _messages(node: Node, job: str, run_id: str | None, follow: bool) -> Generator[Message, None, None]:
    """What the stream says up to its end. Without ``follow``, of a run that lives, up to where it has come.

    Close it, as all streams here: a Ctrl-C that comes while one is left to be collected would be ignored.
    """
    last, failures, heard = "", 0, False
    settled = None if follow else SETTLED
    while True:
        which = "" if run_id is None else f"?run={quote(run_id, safe='')}"
        try:
            with closing(node.stream(job_path(job, f"/logs{which}"), last, settled)) as stream:
                for message in stream:
                    failures, heard = 0, True
                    last = message.id or last
                    if message.event == "run" and not follow:
                        run_id = str(message.data.get("run_id") or "") or run_id
                    yield message
                    if message.event == "end":
                        return
        except TimeoutError:
            if settled is not None and heard:
                if not _is_over(node, job, run_id):
                    return
                settled = None  # all of it is there and the end comes: a node that is silent for a while is busy
            elif not follow:
                raise NoAnswer(f"{node.label} says nothing more, and the log is not at its end") from None
        except Lost:
            failures += 1
            if not follow or (not last and failures == 1) or failures > TRIES:
                raise
        _pause(AGAIN)


def _is_over(node: Node, job: str, run_id: str | None) -> bool:
    """Whether nothing more will be written by a run: it is in the history, or none of its job is under way."""
    if any(row.get("run_id") == run_id for row in _rows(node, job_path(job, "/runs"))):
        return True
    entry = node.get(job_path(job))
    return not entry.get("running") and not entry.get("queued")


def _wait_for_next(node: Node, job: str, shown: str) -> None:
    """Return once a run other than ``shown`` has begun."""
    failures = 0
    while True:
        try:
            with closing(node.stream("/events?kinds=started")) as stream:
                for message in stream:
                    failures = 0
                    # A run that began before we listened would be waited for in vain.
                    if message.event in ("hello", "reset"):
                        if _newest(node, job) not in ("", shown):
                            return
                    elif message.data.get("job") == job and message.data.get("run_id") != shown:
                        return
        except (Lost, TimeoutError) as error:
            failures += 1
            if failures > TRIES:
                raise NoAnswer(str(error)) from None
        _pause(AGAIN)


def _newest(node: Node, job: str) -> str:
    rows = _rows(node, job_path(job, "/runs?limit=5"))
    return next((str(row["run_id"]) for row in rows if row.get("run_id")), "")


def _rows(node: Node, path: str) -> list[dict[str, Json]]:
    rows = node.get(path).get("runs")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _pause(seconds: Seconds) -> None:
    sys.stdout.flush()
    threading.Event().wait(seconds)
