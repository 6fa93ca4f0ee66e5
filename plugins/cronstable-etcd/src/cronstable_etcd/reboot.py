"""Reboot marks: one key per job-set id and job, created once and never rewritten (claims.md 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cronstable.api import Grant
from cronstable_etcd import wire
from cronstable_etcd.record import Bond, Keys, decoded, mark_document, nonce_of
from cronstable_etcd.wire import Transact

KEPT: Final = 512
"""Marks kept over all job-set ids, the newest (reference 3.5)."""

AT_ONCE: Final = 100
"""Keys deleted in one transaction; etcd allows 128 operations."""


class RebootShelf:
    """The marks of one election."""

    def __init__(self, keys: Keys, transact: Transact) -> None:
        self._keys = keys
        self._transact = transact
        self._prune_due = False

    async def names(self, job_set_id: str) -> frozenset[str]:
        """Jobs marked under this id."""
        prefix = self._keys.marks_of(job_set_id)
        marks = await self._all()
        if self._prune_due:
            await self._prune(marks, prefix)
            self._prune_due = False
        mine = (decoded(key.removeprefix(prefix)) for key in marks if key.startswith(prefix))
        return frozenset(name for name in mine if name is not None)

    async def create(self, bond: Bond, grant: Grant, job_set_id: str, job: str, nonce: str) -> bool:
        """Make the mark while the term lasts; True when it is there with ``nonce`` inside."""
        key = self._keys.mark(job_set_id, job)
        answer = await self._transact(
            (wire.absent(key), *bond.holds(self._keys)),
            (wire.put(key, mark_document(grant, job_set_id, job, nonce)),),
            (wire.get(key),),
        )
        if answer.succeeded:
            # Not now: a mark that is made but not reported in time is a job that never runs.
            self._prune_due = True
            return True
        there = answer.found[0]
        return bool(there) and nonce_of(there[0].value) == nonce

    async def _all(self) -> list[bytes]:
        """Keys of all marks, oldest first."""
        answer = await self._transact((), (wire.names(self._keys.marks),))
        return [found.key for ranged in answer.found for found in ranged]

    async def _prune(self, marks: Sequence[bytes], prefix: bytes) -> None:
        """Drop the oldest marks of other job-set ids beyond ``KEPT``: those of the live one are still asked for."""
        surplus = max(0, len(marks) - KEPT)
        old = [key for key in marks if not key.startswith(prefix)][:surplus]
        if old:
            await self._transact((), [wire.delete(key) for key in old[:AT_ONCE]])
