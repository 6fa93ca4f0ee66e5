"""Why a job did not run at a time for which it never was due: what its schedule says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from cronstable.cli.ask import NoAnswer, Node, Refusal
from cronstable.cli.schedule_tools import rfc3339
from cronstable.core.job import Json

COLUMNS: Final = {"day": "day of the month or week"}
"""Columns whose name in the answer is not what people call them."""
MARKS: Final = {
    "moved": "moved to the end of what clocks leave out",
    "first pass": "clocks go back: the first of two",
    "second pass": "clocks go back: the second of two",
}


def schedule_at(node: Node, job: str, start: int, end: int) -> Mapping[str, Json] | None:
    """What the schedule of ``job`` says of ``start``, if it is not due from then up to ``end`` (epoch seconds).

    With ``end`` no later than ``start``, in any case. None: it is due, or the node does not know the question.
    """
    try:
        found = node.get(f"/schedule/why?job={quote(job, safe='')}&at={rfc3339(start)}")
    except Refusal as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    if not isinstance(found.get("fires"), bool):
        return None
    following = _instant(found.get("next"))
    due = start < end and (found["fires"] is True or (following is not None and following < end))
    return None if due else found


def is_left_out(wall: datetime) -> bool:
    """Whether the clocks of its zone (none: of this machine) leave this time out, because they are set forward."""
    there = datetime.fromtimestamp(wall.timestamp(), UTC).astimezone(wall.tzinfo)
    return there.replace(tzinfo=None) != wall.replace(tzinfo=None)


def not_due_words(job: str, asked: str, found: Mapping[str, Json], *, left_out: bool) -> Iterator[str]:
    """Which column does not match, and when it is due before and after; ``left_out``: by a change of the clocks."""
    yield f"{job}, {asked}"
    yield f"  was not due, by the schedule it has now: {found.get('schedule')} ({found.get('words')})"
    if left_out:
        yield "  clocks are set forward on that day and leave this time out"
    else:
        yield f"  that is {found.get('local')} in its time zone, {found.get('timezone')}"
        columns = found.get("columns")
        each = columns.items() if isinstance(columns, dict) else ()
        if odd := [COLUMNS.get(name, name) for name, has in each if has is False]:
            yield f"  does not match: {', '.join(odd)}"
    for name, title in (("previous", "before"), ("next", "after")):
        yield f"  due {title}: {_occurrence(found.get(name))}"


def _occurrence(value: Json) -> str:
    at = _instant(value)
    if at is None or not isinstance(value, dict):
        return "never"
    mark = str(value.get("mark"))
    note = "" if mark == "none" else f", {MARKS.get(mark, mark)}"
    return f"{rfc3339(at)} ({value.get('local')}{note})"


def _instant(value: Json) -> int | None:
    text = value.get("at") if isinstance(value, dict) else None
    if not isinstance(text, str):
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        raise NoAnswer(f"the node sends {text!r} for a time") from None
