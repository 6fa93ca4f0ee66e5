"""What is said on ``GET /decisions``: a node's own newest decisions on one job, built and parsed within caps. Pure.

They are shown to people and nothing is decided on them. An answer with anything odd in it is no data as a whole: half
of what a node decided would mislead whoever looks for the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, cast
from urllib.parse import quote

from cronstable.api import DecisionRecord, Json, Verdict
from cronstable_gossip.payload import MOST_BYTES, NAME_BYTES, BadReport, finite, good_name, read_name, read_object

MOST_DECISIONS: Final = 500
"""Of one job in one answer."""
JOB_BYTES: Final = 512
CODE_BYTES: Final = 64
"""Of a reason and of a run id."""
MOST_FACTS: Final = 32
FACT_BYTES: Final = 512
BIGGEST: Final = 2**64
"""Of a number among the facts: fences and revisions are less."""
LAST_SECOND: Final = 253_402_300_799
"""9999-12-31T23:59:59Z: what a calendar can show."""
_VERDICTS: Final = frozenset(verdict.value for verdict in Verdict)


def path_of(job: str, limit: int) -> str:
    """What to ask a peer for, for a job that is ``askable``."""
    return f"/decisions?job={quote(job, safe='')}&limit={limit}"


def askable(job: str) -> bool:
    """A job of this name can be asked about."""
    try:
        return 0 < len(job.encode()) <= JOB_BYTES
    except UnicodeEncodeError:
        return False


# -- writing ----------------------------------------------------------------------------------------------------------


def build(node_name: str, records: Iterable[DecisionRecord]) -> bytes:
    """The answer: ``records``, newest first, as many as there is room for."""
    rows: list[bytes] = []
    room = MOST_BYTES - 2 * NAME_BYTES
    for record in records:
        row = _dump(_written(record))
        room -= len(row) + 1
        if room < 0 or len(rows) == MOST_DECISIONS:
            break
        rows.append(row)
    return b'{"node_name":%b,"decisions":[%b]}' % (_dump(node_name), b",".join(rows))


def _written(record: DecisionRecord) -> Json:
    decision = record.decision
    facts = [(name, value) for name, value in decision.evidence.items() if name.strip()][:MOST_FACTS]
    return {
        "scheduled_at": record.scheduled_at,
        "decided_at": record.decided_at,
        "verdict": decision.verdict.value,
        "reason": decision.reason.value,
        "evidence": {_printable(name, CODE_BYTES): _fact(value) for name, value in facts},
        "run_id": record.run_id,
        "provisional": record.provisional,
    }


def _fact(value: str | int | float | bool | None) -> Json:
    odd = isinstance(value, int | float) and not isinstance(value, bool) and not _counts(value)
    return _printable(str(value), FACT_BYTES) if odd or isinstance(value, str) else value


def _printable(text: str, most: int) -> str:
    """``text`` on one line and within ``most`` bytes; what cannot be shown is replaced."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
    return shown.encode()[:most].decode(errors="ignore")


def _dump(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


# -- reading ----------------------------------------------------------------------------------------------------------


def parse(body: bytes, node_name: str, limit: int) -> tuple[Mapping[str, Json], ...]:
    """The decisions in ``body``, each as in GET /jobs/{name}/decisions but without ``node``.

    ``node_name``: how the peer calls itself in the exchange; it speaks for nobody else. Raises ``BadReport``.
    """
    if len(body) > MOST_BYTES:
        raise BadReport(f"the answer is longer than {MOST_BYTES} bytes")
    data = read_object(body)
    name = read_name(data, "node_name")
    if name != node_name:
        raise BadReport(f"it answers as {name}, and is known as {node_name}")
    rows = data.get("decisions")
    if not isinstance(rows, list):
        raise BadReport("`decisions` of the answer is no list")
    if len(rows) > limit:
        raise BadReport(f"the answer has more than the {limit} decisions that were asked for")
    return tuple(_read(row) for row in rows)


def _read(row: Json) -> Mapping[str, Json]:
    if not isinstance(row, dict):
        raise BadReport("a decision of the answer is no object")
    due, run_id, provisional = row.get("scheduled_at"), row.get("run_id"), row.get("provisional")
    verdict = row.get("verdict")
    if not isinstance(verdict, str) or verdict not in _VERDICTS or not good_name(row.get("reason"), CODE_BYTES):
        raise BadReport("a decision of the answer has no verdict or no reason")
    if run_id is not None and not good_name(run_id, CODE_BYTES):
        raise BadReport("a decision of the answer has an odd run id")
    if not isinstance(provisional, bool):
        raise BadReport("`provisional` of a decision of the answer is neither true nor false")
    return {
        "scheduled_at": None if due is None else _time(due),
        "decided_at": _time(row.get("decided_at")),
        "verdict": verdict,
        "reason": row["reason"],
        "evidence": _facts(row.get("evidence")),
        "run_id": run_id,
        "provisional": provisional,
    }


def _time(value: Json) -> str:
    if not finite(value) or not 0 <= cast("float", value) <= LAST_SECOND:
        raise BadReport("a decision of the answer has an odd time")
    return datetime.fromtimestamp(cast("float", value), UTC).isoformat()


def _facts(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict) or len(value) > MOST_FACTS:
        raise BadReport("the evidence of a decision of the answer is odd or too long")
    if not all(good_name(name, CODE_BYTES) and _good_fact(fact) for name, fact in value.items()):
        raise BadReport("the evidence of a decision of the answer has an odd fact")
    return dict(value)


def _good_fact(value: Json) -> bool:
    if isinstance(value, str):
        return value.isprintable() and len(value.encode()) <= FACT_BYTES
    return value is None or (isinstance(value, int | float) and _counts(value))


def _counts(value: float) -> bool:
    return abs(value) <= BIGGEST if isinstance(value, int) else math.isfinite(value)
