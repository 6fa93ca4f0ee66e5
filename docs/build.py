"""Fills the marked blocks of the pages from their sources: key tables from the schema, code from the examples.

Run by ``make docs``; a test holds the pages to it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb, log10
from pathlib import Path
from typing import Any

from cronstable.api import JobOptions, quorum_size
from cronstable.builtin.web.families import OF_JOBS, OF_NODE
from cronstable.config import compose_schema
from cronstable.plugin.manager import load_plugins

DOCS = Path(__file__).parent
KEYS = re.compile(r"(<!-- keys: ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
METRICS = re.compile(r"(<!-- metrics of the (node|jobs) -->\n).*?(<!-- end -->)", re.DOTALL)
MAJORITY = re.compile(r"(<!-- how often a majority is up -->\n).*?(<!-- end -->)", re.DOTALL)
UP = (0.9, 0.99, 0.999)
"""How much of the time one node is up."""
HOURS = 8760
"""Occurrences a year of an hourly job."""
FILE = re.compile(r"(<!-- file: (\S+) -->\n)```python\n.*?```\n", re.DOTALL)
REPORT = re.compile(r"^(jobs\[\]\.on[A-Za-z]+|notify)\.report")


@dataclass(frozen=True, slots=True)
class Row:
    """One key."""

    key: str
    kind: str
    default: str
    about: str

    def __str__(self) -> str:
        return f"| `{self.key}` | {self.kind} | {self.default} | {self.about} |"


def rows(schema: Mapping[str, Any]) -> Iterator[Row]:
    """All keys below a composed schema, each report block once, ``defaults`` (which mirrors ``jobs[]``) not at all."""
    seen: set[str] = set()
    for key, part in _walk("", schema):
        key = REPORT.sub("report", key)
        if key not in seen and not key.startswith("defaults") and key != "jobs":
            seen.add(key)
            yield Row(key, _kind(part), _default(key, part), " ".join(str(part.get("description", "")).split()))


def _walk(key: str, part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, child in part.get("properties", {}).items():
        below = f"{key}.{name}" if key else name
        yield below, child
        yield from _walk(below, child)
    items = part.get("items", {})
    if "properties" in items:
        yield from _walk(f"{key}[]", items)


def _kind(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return " ".join(f"`{value}`" for value in part["enum"])
    kinds = part.get("type", "any")
    words = {"object": "map", "array": "list", "string": "text", "boolean": "true, false"}
    return " or ".join(words.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _default(key: str, part: Mapping[str, Any]) -> str:
    if "default" in part:
        return f"`{_shown(part['default'])}`"
    name = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key.removeprefix("jobs[].")).lower()
    value = getattr(JobOptions(), name, None) if key.startswith("jobs[].") else None
    return f"`{_shown(value)}`" if isinstance(value, str | int | float) else ""


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def filled(page: str, schema: Mapping[str, Any]) -> str:
    """The page with its blocks written anew."""
    every = list(rows(schema))

    def table(match: re.Match[str]) -> str:
        heads = match[2].split()
        mine = [row for row in every if re.split(r"[.\[]", row.key)[0] in [head.removesuffix("[]") for head in heads]]
        lines = "".join(f"{row}\n" for row in mine)
        return f"{match[1]}| key | value | default | |\n|---|---|---|---|\n{lines}{match[3]}"

    def code(match: re.Match[str]) -> str:
        return f"{match[1]}```python\n{(DOCS.parent / match[2]).read_text(encoding='utf-8')}```\n"

    def metrics(match: re.Match[str]) -> str:
        found = OF_JOBS if match[2] == "jobs" else OF_NODE
        lines = "".join(f"| `{one.shown}` | {one.kind} | {', '.join(one.labels)} | {one.about} |\n" for one in found)
        return f"{match[1]}| metric | kind | labels | |\n|---|---|---|---|\n{lines}{match[3]}"

    def majority(match: re.Match[str]) -> str:
        heads = "".join(f" up {up:g} each: nines | skipped a year |" for up in UP)
        lines = "".join(f"{majority_row(nodes)}\n" for nodes in range(1, 8))
        return (
            f"{match[1]}| nodes | majority | may fail |{heads}\n|---|---|---|{'---|' * 2 * len(UP)}\n{lines}{match[2]}"
        )

    page = MAJORITY.sub(majority, METRICS.sub(metrics, page))
    return FILE.sub(code, KEYS.sub(table, page))


def majority_row(nodes: int) -> str:
    """One line: nines of the time with a majority up, and occurrences of an hourly Leader job skipped in a year."""
    quorum = quorum_size(nodes)
    cells = [f"| {nodes} | {quorum} | {nodes - quorum} |"]
    for up in UP:
        down = sum(comb(nodes, k) * up**k * (1 - up) ** (nodes - k) for k in range(quorum))
        skipped = HOURS * down
        cells.append(
            f" {-log10(down):.2f} | {skipped:.0f} |" if skipped >= 100 else f" {-log10(down):.2f} | {skipped:.3g} |"
        )
    return "".join(cells)


if __name__ == "__main__":
    composed = compose_schema(load_plugins(os.environ))
    for page in sorted(DOCS.glob("*.md")):
        page.write_text(filled(page.read_text(encoding="utf-8"), composed), encoding="utf-8")
