"""The next runs as a calendar (RFC 5545)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from cronstable.api import Job, Outcome, RunRecord, describe
from cronstable.builtin.web.planning import zone_name

LINE: Final = 75
"""Octets of a line without its end (RFC 5545 3.1)."""
SHORTEST: Final = 60
"""Seconds that an event lasts at least: no calendar shows a shorter one."""


def calendar(title: str, events: Iterable[Sequence[str]]) -> bytes:
    """The calendar with these events, each the lines between BEGIN and END."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//cronstable//calendar//EN", "CALSCALE:GREGORIAN"]
    lines += ["METHOD:PUBLISH", f"X-WR-CALNAME:{text(title)}"]
    for event in events:
        lines += ["BEGIN:VEVENT", *event, "END:VEVENT"]
    lines.append("END:VCALENDAR")
    return b"".join(folded(line) for line in lines)


def events_of(job: Job, history: Sequence[RunRecord], span: tuple[int, int], most: int) -> Iterator[list[str]]:
    """The occurrences of ``job`` after the first and up to the second end of ``span``, ``most`` of them.

    An event lasts as long as a run did on average, so that a calendar shows what overlaps.
    """
    if not job.options.enabled or job.schedule.reboot:
        return
    took = [r.duration for r in history if r.outcome is Outcome.SUCCESS and r.duration is not None]
    seconds = max(SHORTEST, round(sum(took) / len(took)) if took else 0)
    about = f"{job.schedule.text} ({zone_name(job.schedule)}): {describe(job.schedule)}"
    for t in job.schedule.fires(span[0], span[1], most):
        identity = hashlib.sha256(f"{job.name}\0{t}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        yield [
            f"UID:{identity}@cronstable",
            f"DTSTAMP:{stamp(span[0])}",
            f"DTSTART:{stamp(t)}",
            f"DURATION:PT{seconds}S",
            f"SUMMARY:{text(job.name)}",
            f"DESCRIPTION:{text(about)}",
            "TRANSP:TRANSPARENT",
        ]


def stamp(t: int) -> str:
    """A time in UTC (RFC 5545 3.3.5, form 2)."""
    return datetime.fromtimestamp(t, UTC).strftime("%Y%m%dT%H%M%SZ")


def text(value: str) -> str:
    """A value of type TEXT (RFC 5545 3.3.11). Control characters but the line feed have no place in it."""
    escaped = value.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,")
    escaped = escaped.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\\n")
    return "".join(char for char in escaped if char >= " " and char != "\x7f")


def folded(line: str) -> bytes:
    """A line of content, folded into pieces of ``LINE`` octets, never within a character (RFC 5545 3.1)."""
    rest, pieces, room = line.encode("utf-8", "replace"), [], LINE
    while len(rest) > room:
        cut = room
        while rest[cut] & 0xC0 == 0x80:
            cut -= 1
        pieces.append(rest[:cut])
        rest, room = rest[cut:], LINE - 1  # the space that a piece begins with counts
    return b"\r\n ".join([*pieces, rest]) + b"\r\n"
