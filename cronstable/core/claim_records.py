"""Claim records as bytes, and what a row of records amounts to. Compact canonical JSON, one object per record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cronstable.core.claim_values import Head, Known, Ledger, Mark, MarkState, Record, Skip, Start
from cronstable.core.clock import EpochSeconds
from cronstable.core.values import replace

VERSION: Final = 1
HIGHEST: Final = 2**62
"""A fence or a floor beyond this was not counted by anybody; the files of a lease have the same bound."""


class Damaged(ValueError):
    """Bytes that are no record of this version."""


def may_be_record(data: bytes) -> bool:
    """Whether these bytes may be a record of this version or of a later one; whatever may be, is never put aside.

    What no version ever gives up, so that an older one can tell: a record is an object of JSON that says its version,
    and stands as it is where the store keeps one value for each record.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "v" in document


def encode(record: Record) -> bytes:
    """The one spelling of ``record``: equal records have equal bytes."""
    head = record.head
    document: dict[str, object] = {
        "v": VERSION,
        "n": head.nonce,
        "o": head.term,
        "f": head.fence,
        "w": [head.node, head.token],
        "t": head.at,
        "fl": head.floor,
        "lo": head.low,
        "k": [head.known.digest, head.known.since, dict(head.known.changed)],
    }
    if record.starts:
        document["s"] = [[start.job, start.at, start.attempt] for start in record.starts]
    if record.skips:
        document["x"] = [[skip.job, skip.at, skip.reason] for skip in record.skips]
    if record.begun:
        document["b"] = list(record.begun)
    if record.returned:
        document["r"] = list(record.returned)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def decode(data: bytes) -> Record:
    """Read a record. Raises ``Damaged`` for anything that ``encode`` cannot have written."""
    try:
        document = json.loads(data.decode("utf-8", "surrogatepass"))
        record = _record(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"not a claim record: {error}") from None
    if encode(record) != data:
        raise Damaged("not a claim record as it is written")
    return record


def _record(document: Mapping[str, object]) -> Record:
    if document["v"] != VERSION:
        raise ValueError(f"version {document['v']!r} is unknown")
    node, token = _list(document["w"], 2)
    digest, since, changed = _list(document["k"], 3)
    if not isinstance(changed, dict):
        raise TypeError("changed jobs are not an object")
    known = Known(_text(digest), _whole(since), MappingProxyType({_text(k): _whole(v) for k, v in changed.items()}))
    head = Head(
        nonce=_text(document["n"]),
        term=_text(document["o"]),
        fence=_counted(document["f"]),
        node=_text(node),
        token=_text(token),
        at=_whole(document["t"]),
        floor=_counted(document["fl"]),
        low=_whole(document["lo"]),
        known=known,
    )
    return Record(
        head,
        tuple(Start(_text(j), _whole(t), _whole(a)) for j, t, a in (_list(r, 3) for r in _rows(document, "s"))),
        tuple(Skip(_text(j), _whole(t), _text(r)) for j, t, r in (_list(r, 3) for r in _rows(document, "x"))),
        tuple(_text(run) for run in _rows(document, "b")),
        tuple(_text(run) for run in _rows(document, "r")),
    )


def _rows(document: Mapping[str, object], key: str) -> list[object]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise TypeError(f"{key} is not a list")
    return rows


def _list(value: object, length: int) -> list[object]:
    if not isinstance(value, list) or len(value) != length:
        raise TypeError(f"a list of {length} was expected")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("a whole number was expected")
    return value


def _counted(value: object) -> int:
    number = _whole(value)
    if not 0 <= number <= HIGHEST:
        raise ValueError("a number is out of bounds")
    return number


# -- what the records amount to ---------------------------------------------------------------------------------------


def apply(ledger: Ledger, number: int, record: Record) -> Ledger:
    """The ledger after record ``number``. Records are applied in the order of their numbers."""
    head = record.head
    unstarted = dict(ledger.unstarted)
    news: dict[EpochSeconds, dict[str, Mark]] = {}

    def put(job: str, at: EpochSeconds, mark: Mark) -> None:
        before = news.get(at, {}).get(job) or ledger.mark(job, at)
        if before is not None:
            unstarted.pop(before.run_id, None)
        if mark.state is MarkState.CLAIMED:
            unstarted[mark.run_id] = (job, at)
        news.setdefault(at, {})[job] = mark

    for run_id in record.begun:
        if run_id in unstarted:
            job, at = unstarted[run_id]
            mark = news.get(at, {}).get(job) or ledger.marks[at][job]
            put(job, at, replace(mark, state=MarkState.STARTED))
    for skip in record.skips:
        attempt = max(0, ledger.attempt(skip.job, skip.at))
        put(skip.job, skip.at, Mark(MarkState.SKIPPED, number, head.at, attempt, reason=skip.reason))
    for index, start in enumerate(record.starts):
        run_id = record.run_id(index)
        put(start.job, start.at, Mark(MarkState.CLAIMED, number, head.at, start.attempt, run_id, head.token))
    floor = max(ledger.floor, head.floor)
    marks, firsts = _merge(ledger, news, number, floor)
    unstarted = {run: of for run, of in unstarted.items() if of[0] in marks.get(of[1], ())}
    return Ledger(
        last=number,
        floor=floor,
        fence=max(ledger.fence, head.fence),
        term=head.term,
        known=head.known,
        marks=MappingProxyType(marks),
        firsts=MappingProxyType(firsts),
        unstarted=MappingProxyType(unstarted),
        returned=ledger.returned.union(record.returned).intersection(unstarted),
        low=head.low,
    )


def _merge(
    ledger: Ledger, news: Mapping[EpochSeconds, Mapping[str, Mark]], number: int, floor: EpochSeconds
) -> tuple[dict[EpochSeconds, Mapping[str, Mark]], dict[EpochSeconds, int]]:
    """Old and new marks without what the floor covers.

    A later attempt at an old T stays for as long as if it had been due when it was claimed.
    """
    marks = dict(ledger.marks)
    firsts = dict(ledger.firsts)
    for at, jobs in news.items():
        marks[at] = MappingProxyType({**marks.get(at, {}), **jobs})
        firsts.setdefault(at, number)
    for at in [at for at in marks if at <= floor]:
        late = _above(marks[at], floor)
        if late:
            marks[at] = MappingProxyType(late)
            firsts[at] = min(mark.number for mark in late.values())
        else:
            del marks[at], firsts[at]
    return marks, firsts


def _above(marks: Mapping[str, Mark], floor: EpochSeconds) -> dict[str, Mark]:
    """Of the marks on a T that the floor covers, those that stay."""
    return {job: mark for job, mark in marks.items() if mark.attempt > 0 and mark.at > floor}


def lowest(ledger: Ledger, number: int, floor: EpochSeconds) -> int:
    """The first record that a reader of record ``number`` must know, which is to be written on top of ``ledger``.

    ``floor``: what it says. What that covers nobody needs to read about any more.
    """
    firsts = [first for at, first in ledger.firsts.items() if at > floor]
    covered = (_above(ledger.marks[at], floor) for at in ledger.firsts if at <= floor)
    return min([*firsts, *(mark.number for late in covered for mark in late.values())], default=number)
