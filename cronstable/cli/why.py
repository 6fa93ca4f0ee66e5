"""``cronstable why``: a running node says why a job ran at a time, was skipped, or waits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

import click

from cronstable.cli.ask import NoAnswer, Node, job_path
from cronstable.cli.node import JOB, node_options
from cronstable.cli.not_due import is_left_out, not_due_words, schedule_at
from cronstable.cli.schedule_tools import now_of, rfc3339
from cronstable.core.job import Json
from cronstable.core.reasons import VERDICTS, because

ALL: Final = 10_000
"""Decisions to ask for: as many as a node remembers. Runs as well, when the newest do not go back far enough."""
FEW: Final = 100
"""Runs to ask for at first."""
MOST_SHOWN: Final = 10
"""Scheduled times in words; a job of each second has sixty in the minute that was asked for."""
WALL: Final = frozenset({"expiry", "first", "last", "until"})
"""Evidence that is a time of day."""
BOOT: Final = frozenset({"boot", "deadline"})
"""Evidence that counts from the start of the node's machine: nothing for people, and in ``--json`` as it is."""

DECISION: Final = ("node", "scheduled_at", "decided_at", "verdict", "reason", "evidence", "run_id")
RUN: Final = ("run_id", "scheduled_at", "attempt", "outcome", "duration", "fail_reason")
ASKED: Final = ("node", "host", "self", "answered", "problem")
"""Keys without which an answer is none of a cronstable 2."""

Row: TypeAlias = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Moment:
    """The scheduled time that was asked about: an instant, or a time of day (``length`` seconds of it)."""

    text: str
    instant: datetime | None = None
    hour: int = 0
    minute: int = 0
    second: int = 0
    length: int = 1

    def spans(self, now: float, zone: tzinfo | None) -> list[tuple[int, int]]:
        """From and up to, in epoch seconds. A time of day is today's in ``zone`` (None: this machine's); it may be
        there twice, when clocks are set back."""
        if self.instant is not None:
            at = int((self.instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1))
            return [(at, at + 1)]
        wall = self._today(now, zone)
        starts = sorted({int(wall.replace(fold=fold).timestamp()) for fold in (0, 1)})
        return [(start, start + self.length) for start in starts]

    def left_out(self, now: float, zone: tzinfo | None) -> bool:
        """Whether no clock in ``zone`` shows it, because clocks are set forward."""
        if self.instant is None:
            return is_left_out(self._today(now, zone))
        wall = self.instant.replace(tzinfo=zone)
        return zone is not None and is_left_out(wall) and wall.utcoffset() == self.instant.utcoffset()

    def _today(self, now: float, zone: tzinfo | None) -> datetime:
        today = datetime.fromtimestamp(now, UTC).astimezone(zone)
        return datetime(today.year, today.month, today.day, self.hour, self.minute, self.second, tzinfo=zone)


@dataclass(frozen=True, slots=True)
class Answer:
    """Decisions, newest first. ``nodes``: who was asked for them; none when the node told only of itself."""

    rows: Sequence[Row]
    channel: Json
    nodes: Sequence[Row]

    def own(self, rows: Iterable[Row]) -> list[Row]:
        """Those of the node that was asked, which knows what came of them."""
        mine = {node["node"] for node in self.nodes if node["self"] is True}
        return [row for row in rows if not self.nodes or row["node"] in mine]

    @property
    def fleet(self) -> dict[str, Json]:
        """What ``--json`` says of the nodes; nothing when only one told of itself."""
        return {"channel": self.channel, "nodes": [dict(node) for node in self.nodes]} if self.nodes else {}


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
    """Ask a running node why JOB ran at T, was skipped, or waits; it asks the other nodes that it sees.

    T is a scheduled time: 2026-11-30T02:30:00Z, or 02:30 for today's in the time zone of the job. Without it the
    newest is shown. Each node decides for itself. Of a time at which JOB was not due, it shows what the schedule has.

    Ends with 0, with 1 when the node cannot be asked or no such decision is remembered, and with 2 for wrong usage.
    """
    moment = None if when is None else _moment(when)
    now = now_of(context)
    entry = node.get(job_path(job))
    answer = _decisions(node, job)
    if moment is None:
        found = [row for group in _by_time(answer.rows)[:1] for row in group]
    else:
        zone = _zone(entry)
        left_out = moment.left_out(now, zone)
        found = [] if left_out and moment.instant is None else _about(answer.rows, moment.spans(now, zone))
        schedule = None if found else _not_due(node, job, moment, now, zone)
        if schedule is not None:
            asked = moment.text if left_out else rfc3339(moment.spans(now, zone)[0][0])
            if as_json:
                _print({"job": job, "decisions": [], "schedule": dict(schedule), **answer.fleet})
            else:
                _say(not_due_words(job, asked, schedule, left_out=left_out))
            return
    if not found:
        raise NoAnswer(_nothing(node, job, moment, answer, entry, now))
    history = _history(node, job, answer.own(found))
    if as_json:
        told: list[Json] = [
            {**row, "because": because(str(row["reason"])), "runs": [dict(run) for run in _runs(row, history, answer)]}
            for row in found
        ]
        _print({"job": job, "decisions": told, **answer.fleet})
        return
    groups = _by_time(found)
    for group in groups[:MOST_SHOWN]:
        _say(_words(job, group, history, answer))
    if len(groups) > MOST_SHOWN:
        click.echo(f"and {len(groups) - MOST_SHOWN} earlier ones; --json shows all")
    _say(_silent(answer))


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _print(document: dict[str, Json]) -> None:
    click.echo(json.dumps(document, indent=2))


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
    return Moment(text, moment)


def _decisions(node: Node, job: str) -> Answer:
    """What the node and those that it sees decided; one that does not know how to ask them tells its own."""
    document = node.get(job_path(job, f"/decisions?limit={ALL}&fleet=true"))
    nodes = _rows(document, "nodes", ASKED) if "nodes" in document else []
    return Answer(_rows(document, "decisions", DECISION), document.get("channel"), nodes)


def _history(node: Node, job: str, found: Sequence[Row]) -> list[Row]:
    """The runs of the node, newest first, as far back as what is known of ``found``; a hundred, or all of them."""
    rows = _rows(node.get(job_path(job, f"/runs?limit={FEW}")), "runs", RUN)
    ids = {row["run_id"] for row in rows}
    told = [_epoch(row["scheduled_at"]) for row in rows if isinstance(row["scheduled_at"], str)]
    since = min(told, default=0)
    enough = len(rows) < FEW or all(
        row["run_id"] in ids or (row["run_id"] is None and _due(row) >= since) for row in found
    )
    return rows if enough else _rows(node.get(job_path(job, f"/runs?limit={ALL}")), "runs", RUN)


def _not_due(node: Node, job: str, moment: Moment, now: float, zone: tzinfo | None) -> Mapping[str, Json] | None:
    """What the schedule has instead, of a time that has come; None when the job was due then."""
    spans = moment.spans(now, zone)
    if spans[0][0] > now:
        return None
    if moment.instant is None and moment.left_out(now, zone):
        # Its spans are an hour to either side, and what is due then is no answer.
        return schedule_at(node, job, spans[0][0], spans[0][0])
    found = [schedule_at(node, job, start, end) for start, end in spans]
    return found[0] if all(one is not None for one in found) else None


# -- what is found ----------------------------------------------------------------------------------------------------


def _rows(document: Mapping[str, Json], key: str, needed: Sequence[str]) -> list[Row]:
    rows = document.get(key)
    if not isinstance(rows, list):
        raise NoAnswer(f"the answer has no {key}: is this the API of a cronstable 2?")
    found: list[Row] = [row for row in rows if isinstance(row, dict) and all(name in row for name in needed)]
    if len(found) < len(rows):
        raise NoAnswer(f"some {key} lack {', '.join(needed)}: is this the API of a cronstable 2?")
    return found


def _about(rows: Iterable[Row], spans: list[tuple[int, int]]) -> list[Row]:
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


def _due(row: Row) -> float:
    """The scheduled time in epoch seconds; of what has none, the end of time."""
    return _epoch(row["scheduled_at"]) if isinstance(row["scheduled_at"], str) else float("inf")


def _by_time(rows: Iterable[Row]) -> list[list[Row]]:
    """What was decided about one scheduled time, side by side; what has none, alone."""
    groups: list[list[Row]] = []
    for row in rows:
        same = bool(groups) and row["scheduled_at"] is not None and groups[-1][0]["scheduled_at"] == row["scheduled_at"]
        if same:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _runs(row: Row, history: list[Row], answer: Answer) -> list[Row]:
    """What is known of the run that was decided on and of its retries, which are decided on no more; oldest first."""
    if not answer.own([row]):
        return []
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


def _nothing(node: Node, job: str, moment: Moment | None, answer: Answer, entry: Mapping[str, Json], now: float) -> str:
    """Why there is nothing to tell."""
    rows = answer.own(answer.rows)
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


def _words(job: str, group: Sequence[Row], history: list[Row], answer: Answer) -> Iterator[str]:
    """What the nodes decided about one scheduled time."""
    due = group[0]["scheduled_at"]
    yield f"{job}, {'asked for by hand or at boot' if due is None else f'due {_short(due)}'}"
    for row in group:
        yield from _decision(row, _runs(row, history, answer), answer)
    decided = {row["node"] for row in group}
    for node in answer.nodes if due is not None else ():
        if node["answered"] is True and node["node"] not in decided:
            rows = [row for row in answer.rows if row["node"] == node["node"]]
            since = f"it tells {len(rows)}, back to {_short(rows[-1]['decided_at'])}" if rows else "it tells none"
            yield f"  no decision of {node['node']} ({since})"


def _decision(row: Row, runs: list[Row], answer: Answer) -> Iterator[str]:
    verdict, reason = str(row["verdict"]), str(row["reason"])
    yield f"  {VERDICTS.get(verdict, verdict)} on {row['node']}: {because(reason)} ({reason})"
    if row["run_id"] is not None and row["run_id"] not in [run["run_id"] for run in runs]:
        here = bool(answer.own([row]))
        yield f"    run {row['run_id']}: " + (
            "it lives, or is older than the node's history" if here else f"ask {row['node']} what came of it"
        )
    for run in runs:
        again = f" (attempt {run['attempt']})" if run["attempt"] else ""
        yield f"    run {run['run_id']}{again}: {_ended(run)}"
    evidence = row.get("evidence")
    facts = [(k, v) for k, v in evidence.items() if k not in BOOT] if isinstance(evidence, dict) else []
    if facts:
        yield f"    {', '.join(f'{name}: {_fact(name, value)}' for name, value in facts)}"
    yield f"    decided {_short(row['decided_at'])}"
    if verdict == "skip" and isinstance(evidence, dict):
        other = evidence.get("owner") or evidence.get("leader")
        told = {node["node"] for node in answer.nodes if node["answered"] is True}
        if other and other != row["node"] and other not in told:
            yield f"    ask {other} what it did"


def _silent(answer: Answer) -> Iterator[str]:
    """The nodes that told nothing, and why."""
    for node in answer.nodes:
        if node["answered"] is not True:
            yield f"no answer from {node['node'] or node['host']}: {node['problem']}"


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
