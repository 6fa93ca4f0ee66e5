"""@reboot marks as the text of one annotation: ``{"jobSetId", "jobs"}`` (reference 3.5), plus what else we need.

``nonces``: by job, of the marks made last, so that a lost answer is made good. ``others``: the same for earlier
job-set ids, newest first, since nodes of two configurations share the Lease while one is rolled out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cronstable.api import Json

KEPT: Final = 512
"""Marks kept over all job-set ids: those of the one in use, then the newest of others (reference 3.5)."""

NONCES: Final = 16
"""An answer that is lost is asked for again within seconds."""


@dataclass(frozen=True, slots=True)
class _Shelf:
    job_set_id: str
    jobs: tuple[str, ...]
    nonces: Mapping[str, str]


def of(text: str | None, job_set_id: str) -> frozenset[str]:
    """Jobs marked under this id."""
    return frozenset(job for shelf in _read(text) if shelf.job_set_id == job_set_id for job in shelf.jobs)


def nonce_of(text: str | None, job_set_id: str, job: str) -> str | None:
    """The nonce of a mark that was made lately."""
    return next((s.nonces.get(job) for s in _read(text) if s.job_set_id == job_set_id), None)


def added(text: str | None, job_set_id: str, job: str, nonce: str) -> str:
    """The annotation with one more mark."""
    shelves = _read(text)
    mine = next((shelf for shelf in shelves if shelf.job_set_id == job_set_id), _Shelf(job_set_id, (), {}))
    nonces = dict([*mine.nonces.items(), (job, nonce)][-NONCES:])
    kept = [_Shelf(job_set_id, (*mine.jobs, job), nonces)]
    room = KEPT - len(kept[0].jobs)
    for shelf in shelves:
        if shelf.job_set_id != job_set_id and room > 0:
            jobs = shelf.jobs[-room:]
            kept.append(_Shelf(shelf.job_set_id, jobs, shelf.nonces))
            room -= len(jobs)
    first, *others = [_plain(shelf) for shelf in kept]
    return json.dumps({**first, "others": list(others)} if others else first, ensure_ascii=False)


def _plain(shelf: _Shelf) -> dict[str, Json]:
    return {"jobSetId": shelf.job_set_id, "jobs": list(shelf.jobs), "nonces": dict(shelf.nonces)}


def _read(text: str | None) -> list[_Shelf]:
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict):
        return []
    others = document.get("others")
    documents = [document, *(others if isinstance(others, list) else [])]
    return [shelf for one in documents if (shelf := _shelf(one)) is not None]


def _shelf(document: Json) -> _Shelf | None:
    if not isinstance(document, dict):
        return None
    job_set_id, jobs, nonces = (document.get(key) for key in ("jobSetId", "jobs", "nonces"))
    if not isinstance(job_set_id, str) or not isinstance(jobs, list):
        return None
    known = nonces if isinstance(nonces, dict) else {}
    return _Shelf(
        job_set_id,
        tuple(job for job in jobs if isinstance(job, str)),
        {job: nonce for job, nonce in known.items() if isinstance(nonce, str)},
    )
