"""The decisions of all nodes on one job, where nodes can see each other: asked for on demand, and only shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from cronstable.api import DecisionRecord, FleetReport, Json, NodeDecisions, Seconds
from cronstable.builtin.web.shapes import decision_entry, dumps

PATIENCE: Final[Seconds] = 3.0
"""A channel ends by itself after two; one that does not is not waited for."""
NO_CHANNEL: Final = "none"
"""The ``channel`` of nodes that do not see each other."""


async def ask_others(fleet: FleetReport | None, job: str, limit: int) -> tuple[NodeDecisions, ...]:
    """A line for each other node: its newest ``limit`` decisions, or why there are none; none without a channel."""
    if fleet is None:
        return ()
    if fleet.decisions is None:
        return _nothing_of(fleet, "not asked: what the nodes tell each other does not include decisions")
    with anyio.move_on_after(PATIENCE):
        return tuple(await fleet.decisions(job, limit))
    return _nothing_of(fleet, "no answer in time")


def document(
    job: str, node_name: str, own: Sequence[DecisionRecord], fleet: FleetReport | None, others: Sequence[NodeDecisions]
) -> bytes:
    """GET /jobs/{name}/decisions?fleet=true: newest first, and what the nodes decided about one time side by side.

    A row is of the node that answered, whatever it says itself.
    """
    rows: list[Mapping[str, Json]] = [decision_entry(record) for record in own]
    rows += ({**row, "node": other.node} for other in others for row in other.decisions)
    rows.sort(key=_place, reverse=True)
    nodes = [_line(node_name, None, len(own), None, this=True)]
    nodes += (_line(other.node, other.host, len(other.decisions), other.problem) for other in others)
    channel = NO_CHANNEL if fleet is None else fleet.source
    # Row by row: one call of the encoder for all of them would hold every other thread up until it is done.
    return b'{"job":%b,"decisions":[%b],"channel":%b,"nodes":%b}' % (
        dumps(job),
        b",".join(dumps(dict(row)) for row in rows),
        dumps(channel),
        dumps([*nodes]),
    )


def _place(row: Mapping[str, Json]) -> tuple[str, str]:
    """ISO 8601 in UTC, in which the order of texts is that of times."""
    decided = str(row.get("decided_at"))
    return str(row.get("scheduled_at") or decided), decided


def _line(node: str | None, host: str | None, count: int, problem: str | None, *, this: bool = False) -> Json:
    return {
        "node": node,
        "host": host,
        "self": this,
        "answered": problem is None,
        "count": count,
        "problem": problem,
    }


def _nothing_of(fleet: FleetReport, why: str) -> tuple[NodeDecisions, ...]:
    others = (node for node in fleet.nodes if node.get("self") is not True)
    return tuple(NodeDecisions(_text(node.get("node_name")), _text(node.get("host")) or "", (), why) for node in others)


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None
