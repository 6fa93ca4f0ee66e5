"""``cronstable why``: a running node says why a job ran at a time, was skipped, or waits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

import click

from cronstable.cli.ask import NoAnswer, Node, job_path
from cronstable.cli.node import JOB, node_options
from cronstable.cli.schedule_tools import now_of, rfc3339
from cronstable.core.job import Json
from cronstable.core.reasons import VERDICTS, because

ALL: Final = 10_000
"""Decisions to ask for: as many as a node remembers."""
MOST_SHOWN: Final = 10
"""Decisions in words; a job of each second has sixty in the minute that was asked for."""
WALL: Final = frozenset({"expiry", "first", "last", "until"})
"""Evidence that is a time of day."""
BOOT: Final = frozenset({"boot", "deadline"})
"""Evidence that counts from the start of the node's machine: nothing for people, and in ``--json`` as it is."""

DECISION: Final = ("node", "scheduled_at", "decided_at", "verdict", "reason", "evidence", "run_id")
RUN: Final = ("run_id", "scheduled_at", "attempt", "outcome", "duration", "fail_reason")
"""Keys without which an answer is none of a cronstable 2."""

Row: TypeAlias = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Moment:
    """The scheduled time that was asked about: an instant, or a time of day (``length`` seconds of it)."""

    text: str
    instant: int | None = None
    hour: int = 0
    minute: int = 0
    second: int = 0
    length: int = 1

    def spans(self, now: float, zone: tzinfo | None) -> list[tuple[int, int]]:
        """From and up to, in epoch seconds. A time of day is today's in ``zone`` (None: this machine's); it may be
        there twice, when clocks are set back."""
        if self.instant is not None:
            return [(self.instant, self.instant + 1)]
        today = datetime.fromtimestamp(now, UTC).astimezone(zone)
        wall = datetime(today.year, today.month, today.day, self.hour, self.minute, self.second, tzinfo=zone)
        starts = sorted({int(wall.replace(fold=fold).timestamp()) for fold in (0, 1)})
        return [(start, start + self.length) for start in starts]


@click.command("why")
@click.argument("job", type=JOB)
@click.argument("when", metavar="[T]", required=False)
@node_options
@click.option("--json", "as_json", is_flag=True, help="One object instead of text.")
@click.pass_context
def why_command(
    context: click.Context,
    job: str,
    when: str | None,
    node: Node,
    as_json: bool,
) -> None:
    """Ask a running node why JOB ran at T, was skipped, or waits.

    T is a scheduled time: 2026-11-30T02:30:00Z, or 02:30 for today's in the time zone of the job. Without it the
    newest decision is shown. Each node decides for itself: ask the one you wonder about.

    Ends with 0, with 1 when the node cannot be asked or remembers no such decision, and with 2 for wrong usage.
    """
    moment = None if when is None else _moment(when)
    now = now_of(context)
    entry = node.get(job_path(job))
    rows = _rows(node.get(job_path(job, f"/decisions?limit={ALL}")), "decisions", DECISION)
    found = rows[:1] if moment is None else _about(rows, moment.spans(now, _zone(entry)))
    if not found:
        raise NoAnswer(_nothing(node, job, moment, rows, entry, now))
    history = _rows(node.get(job_path(job, "/runs")), "runs", RUN)
    if as_json:
        told = [{**row, "because": because(str(row["reason"])), "runs": _runs(row, history)} for row in found]
        click.echo(json.dumps({"job": job, "decisions": told}, indent=2))
        return
    for row in found[:MOST_SHOWN]:
        for line in _words(job, row, _runs(row, history)):
            click.echo(line)
    if len(found) > MOST_SHOWN:
        click.echo(f"and {len(found) - MOST_SHOWN} earlier ones; --json shows all")


# -- what is asked ----------------------------------------------------------------------------------------------------


def _moment(text: str) -> Moment:
    parts = text.split(":")
    if len(parts) in (2, 3) and all(len(part) == 2 and part.isascii() and part.isdigit() for part in parts):
        hour, minute, second = (*map(int, parts), 0)[:3]
        if hour > 23 or minute > 59 or second > 59:
            raise click.UsageError(f"{text!r} is not a time of day (hint: 02:30)")
        return Moment(text, None, hour, minute, second, 60 if len(parts) == 2 else 1)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a time (hint: 2026-01-01T02:30:00Z, or 02:30 for today)") from None
    if moment.tzinfo is None:
        raise click.UsageError(f"{text!r} has no offset (hint: {text}Z is UTC)")
    return Moment(text, int((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)))


# -- what is found ----------------------------------------------------------------------------------------------------


def _rows(document: Mapping[str, Json], key: str, needed: Sequence[str]) -> list[Row]:
    rows = document.get(key)
    if not isinstance(rows, list):
        raise NoAnswer(f"the answer has no {key}: is this the API of a cronstable 2?")
    found: list[Row] = [row for row in rows if isinstance(row, dict) and all(name in row for name in needed)]
    if len(found) < len(rows):
        raise NoAnswer(f"some {key} lack {', '.join(needed)}: is this the API of a cronstable 2?")
    return found


def _about(rows: list[Row], spans: list[tuple[int, int]]) -> list[Row]:
    """The decisions on scheduled times within ``spans``: also one that covers several occurrences at once."""
    return [
        row
        for row in rows
        for first, last in _covered(row)
        if any(first < end and start <= last for start, end in spans)
    ]


def _covered(row: Row) -> Iterator[tuple[int, int]]:
    scheduled_at, evidence = row.get("scheduled_at"), row.get("evidence")
    if not isinstance(scheduled_at, str):
        return
    at = _epoch(scheduled_at)
    first = evidence.get("first") if isinstance(evidence, dict) else None
    yield (int(first) if isinstance(first, int | float) and first < at else at), at


def _runs(row: Row, history: list[Row]) -> list[Row]:
    """What is known of the run that was decided on and of its retries, which are decided on no more; oldest first."""
    due = row["scheduled_at"]
    mine = [
        run for run in history if run["run_id"] == row["run_id"] or (due is not None and run["scheduled_at"] == due)
    ]
    return [run for run in reversed(mine) if run["run_id"] is not None]


def _zone(entry: Mapping[str, Json]) -> tzinfo | None:
    """The zone of the job's schedule; None is the local time of the machine."""
    name = entry.get("timezone")
    try:
        return ZoneInfo(name) if isinstance(name, str) else None
    except (KeyError, ValueError, OSError):
        raise NoAnswer(f"the job's time zone {name!r} is not known here; give T with an offset") from None


def _nothing(
    node: Node, job: str, moment: Moment | None, rows: list[Row], entry: Mapping[str, Json], now: float
) -> str:
    """Why there is nothing to tell."""
    wait = entry.get("scheduled_in")
    due = f"; it is due next at {rfc3339(round(now + wait))}" if isinstance(wait, int | float) else ""
    if entry.get("enabled") is False:
        due = "; the job is disabled"
    if moment is None:
        return f"{node.label} has not decided about {job!r} yet{due}"
    start, _ = moment.spans(now, _zone(entry))[0]
    if start > now:
        return f"{job!r} at {rfc3339(start)}: that time has not come{due}"
    since = f" (it remembers {len(rows)}, back to {_short(rows[-1]['decided_at'])})" if rows else " (it remembers none)"
    return f"{node.label} remembers no decision about {job!r} at {rfc3339(start)}{since}{due}"


# -- how it is said ---------------------------------------------------------------------------------------------------


def _words(job: str, row: Row, runs: list[Row]) -> Iterator[str]:
    due = "asked for by hand or at boot" if row["scheduled_at"] is None else f"due {_short(row['scheduled_at'])}"
    verdict, reason = str(row["verdict"]), str(row["reason"])
    yield f"{job}, {due}"
    yield f"  {VERDICTS.get(verdict, verdict)} on {row['node']}: {because(reason)} ({reason})"
    if row["run_id"] is not None and row["run_id"] not in [run["run_id"] for run in runs]:
        yield f"  run {row['run_id']}: it lives, or is older than the node's history"
    for run in runs:
        again = f" (attempt {run['attempt']})" if run["attempt"] else ""
        yield f"  run {run['run_id']}{again}: {_ended(run)}"
    evidence = row.get("evidence")
    facts = [(k, v) for k, v in evidence.items() if k not in BOOT] if isinstance(evidence, dict) else []
    if facts:
        yield f"  {', '.join(f'{name}: {_fact(name, value)}' for name, value in facts)}"
    yield f"  decided {_short(row['decided_at'])}"
    if verdict == "skip" and isinstance(evidence, dict):
        other = evidence.get("owner") or evidence.get("leader")
        if other and other != row["node"]:
            yield f"  ask {other} what it did"


def _ended(run: Row) -> str:
    outcome, duration, reason = run["outcome"], run["duration"], run["fail_reason"]
    took = f" in {duration:g} s" if isinstance(duration, int | float) else ""
    return f"{outcome}{took}" + (f": {reason}" if reason and reason != outcome else "")


def _fact(name: str, value: Json) -> str:
    if name in WALL and isinstance(value, int | float):
        return _wall(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _wall(seconds: float) -> str:
    """A time of day; one that no calendar holds (an edited lease file) as the number that it is."""
    try:
        return rfc3339(int(seconds))
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def _short(iso: Json) -> str:
    """A time as the node sends it, in whole seconds."""
    return rfc3339(_epoch(iso)) if isinstance(iso, str) else str(iso)


def _epoch(iso: str) -> int:
    try:
        return int(datetime.fromisoformat(iso).timestamp() // 1)
    except ValueError:
        raise NoAnswer(f"the node sends {iso!r} for a time") from None
