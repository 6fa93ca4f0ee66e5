"""What commands show: tables with colours on a terminal, plain columns elsewhere, spans of time in words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from cronstable.core.job import Json

_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_]?)")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

GOOD: Final = "green"
BAD: Final = "bold red"
BUSY: Final = "cyan"
CARE: Final = "yellow"
DIM: Final = "dim"

OUTCOMES: Final = {"success": GOOD, "failure": BAD, "cancelled": CARE, "unknown": CARE, "skipped": DIM}
"""The colour of each outcome."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a column, and its colour on a terminal."""

    text: str
    style: str = ""


def on_terminal() -> bool:
    """Whether people look at the output."""
    return sys.stdout.isatty()


def show_json(value: object) -> None:
    """The value as JSON, readable by people too."""
    click.echo(json.dumps(value, indent=2))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """On a terminal a table that fits it; elsewhere columns two blanks apart, whose last one is as long as it is."""
    if on_terminal():
        from rich.console import Console

        Console(highlight=False).print(rich_table(headings, rows))
        return
    lines = [list(headings), *([cell.text for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def rich_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> object:
    """A table for rich. NO_COLOR is rich's own business."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    return table


def safe(text: object) -> str:
    """One line without anything that a terminal would act on."""
    words = _ESCAPE.sub("", str(text))
    return words if words.isprintable() else json.dumps(words, ensure_ascii=False)[1:-1]


def output_line(text: str) -> str:
    """A line of a job's output: with its colours on a terminal, and never with what moves the cursor."""
    colours = on_terminal()
    kept = _ESCAPE.sub(lambda found: found[0] if colours and _COLOUR.fullmatch(found[0]) else "", text)
    return "".join(char for char in kept if char.isprintable() or char in "\t\x1b")


def span(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    whole = max(0, int(seconds))
    for index, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            words = f"{whole // size} {unit}"
            if index + 1 < len(_UNITS):
                smaller, smaller_unit = _UNITS[index + 1]
                rest = whole % size // smaller
                words += f" {rest} {smaller_unit}" if rest else ""
            return words
    return "0 s"


def took(seconds: Json) -> str:
    """How long a run took: 57 ms, 3.2 s, 4 min 10 s."""
    if not isinstance(seconds, int | float):
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def at(iso: Json) -> str:
    """A time as the node sends it, in whole seconds and UTC: 2026-11-30T19:50:00Z; empty for none."""
    moment = instant(iso)
    return "" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(iso: Json) -> datetime | None:
    """A time as the node sends it; None for anything else."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC) if isinstance(iso, str) else None
    except ValueError:
        return None


def ago(iso: Json, now: float) -> str:
    """How long ago a time was, on the clock ``now`` (wall seconds)."""
    moment = instant(iso)
    if moment is None:
        return ""
    passed = now - moment.timestamp()
    return "just now" if passed < 1 else f"{span(passed)} ago"
