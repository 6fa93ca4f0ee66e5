"""Lease stores with one bug each. The contract kit must catch every one; a test proves that it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import anyio.lowlevel

from cronstable.core.clock import Seconds
from cronstable.core.store import (
    Appended,
    Grant,
    Held,
    Holder,
    Observation,
    Seen,
    StoreUnavailable,
    Taken,
    Unreadable,
    Vacant,
    Won,
)
from cronstable.testing.memory import MemoryLeaseStore


class RenewsAnything(MemoryLeaseStore):
    """A renewal overwrites whatever stands there."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        return self._hold(grant.holder, grant.fence, grant.ttl, nonce)


class RenewsByName(MemoryLeaseStore):
    """The holder is recognised by its display name."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        stands = self.lease.look()
        if not isinstance(stands, Seen) or stands.record.holder.name != grant.holder.name:
            return stands
        return self._hold(grant.holder, grant.fence, grant.ttl, nonce)


class RenewsWithoutNonce(MemoryLeaseStore):
    """Token and fence are compared, the nonce is not: a cloned machine goes unnoticed."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        stands = self.lease.look()
        if not isinstance(stands, Seen) or stands.record.holder != grant.holder or stands.record.fence != grant.fence:
            return stands
        return self._hold(grant.holder, grant.fence, grant.ttl, nonce)


class ForgetsTriedNonces(MemoryLeaseStore):
    """A renewal whose answer was lost makes the next one fail."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        return super().commit_renew(replace(grant, tried=()), nonce)


class RenewsAfterRelease(MemoryLeaseStore):
    """A renewal under way while the lease was released brings it back."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        record = self.lease.record
        if self.lease.released and record is not None and grant.owns(record):
            return self._hold(grant.holder, grant.fence, grant.ttl, nonce)
        return super().commit_renew(grant, nonce)


class RecreatesADeletedLease(MemoryLeaseStore):
    """A renewal of nothing writes the record anew."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        if self.lease.record is None and self.lease.garbage is None:
            return self._hold(grant.holder, grant.fence, grant.ttl, nonce)
        return super().commit_renew(grant, nonce)


class NeedsItsOwnMemory(MemoryLeaseStore):
    """A grant is known only to the handle that made it: a lost acquisition can never be made good."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        answer = super().commit_acquire(me, ttl, nonce, over)
        return Held(replace(answer.grant, data="mine")) if isinstance(answer, Held) else answer

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        if grant.data is None:
            return self.lease.look()
        answer = super().commit_renew(grant, nonce)
        return Held(replace(answer.grant, data="mine")) if isinstance(answer, Held) else answer


class KeepsTheOldNonce(MemoryLeaseStore):
    """A renewal moves the time but leaves the first nonce in the record."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        answer = super().commit_renew(grant, nonce)
        if isinstance(answer, Held) and self.lease.record is not None:
            self.lease.record = replace(self.lease.record, nonce=grant.nonce)
        return answer


class FenceStandsStill(MemoryLeaseStore):
    """Every term has the same fence."""

    def _hold(self, holder: Holder, fence: int, ttl: Seconds, nonce: str) -> Held:
        return super()._hold(holder, 1, ttl, nonce)


class FenceStartsOverAfterDeletion(MemoryLeaseStore):
    """The counter lives in the record and dies with it."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        self.lease.last_fence = self.lease.record.fence if self.lease.record is not None else 0
        return super().commit_acquire(me, ttl, nonce, over)


class ReleasesByDeletion(MemoryLeaseStore):
    """A release removes the record, and its fence with it."""

    def commit_release(self, grant: Grant, returned: tuple[str, ...]) -> None:
        if self.lease.record is not None and grant.owns(self.lease.record):
            self.lease.delete()


class ReleasesAnybodysLease(MemoryLeaseStore):
    """A release is not checked against the record."""

    def commit_release(self, grant: Grant, returned: tuple[str, ...]) -> None:
        self.lease.released, self.lease.returned = True, returned


class LosesReturnedRuns(MemoryLeaseStore):
    """Run ids handed back with a release are dropped."""

    def commit_release(self, grant: Grant, returned: tuple[str, ...]) -> None:
        super().commit_release(grant, ())


class TakesOverBlindly(MemoryLeaseStore):
    """``over`` is taken as permission: the record may have been renewed since."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        if over is not None and isinstance(self.lease.look(), Seen):
            return self._hold(me, self.lease.last_fence + 1, ttl, nonce)
        return super().commit_acquire(me, ttl, nonce, over)


class TakesOverWhatIsGone(MemoryLeaseStore):
    """A takeover of a record that was released meanwhile wins."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        return super().commit_acquire(me, ttl, nonce, None if isinstance(self.lease.look(), Vacant) else over)


class GivesAHeldLeaseAway(MemoryLeaseStore):
    """Whoever asks gets it."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        stands = self.lease.look()
        return super().commit_acquire(me, ttl, nonce, stands if isinstance(stands, Seen) else over)


class GrantsTheHolderAgain(MemoryLeaseStore):
    """A holder that asks again is given a new term over its own living one."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        stands = self.lease.look()
        own = isinstance(stands, Seen) and stands.record.holder == me
        return super().commit_acquire(me, ttl, nonce, stands if own and isinstance(stands, Seen) else over)


class TreatsGarbageAsFree(MemoryLeaseStore):
    """What cannot be read is overwritten."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        if isinstance(self.lease.look(), Unreadable):
            self.lease.delete()
        return super().commit_acquire(me, ttl, nonce, over)


class ChecksThenWrites(MemoryLeaseStore):
    """Between the check and the write of an acquisition somebody else can do the same."""

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        if over is None and isinstance(self.lease.look(), Vacant):
            await anyio.lowlevel.checkpoint()
            return self._hold(me, self.lease.last_fence + 1, ttl, nonce)
        return await super().acquire(me, ttl, nonce=nonce, over=over)


class GrantsMoreThanItStores(MemoryLeaseStore):
    """The holder is told a longer ttl than challengers will honour."""

    def _hold(self, holder: Holder, fence: int, ttl: Seconds, nonce: str) -> Held:
        held = super()._hold(holder, fence, ttl / 2, nonce)
        return Held(replace(held.grant, ttl=ttl))


class SplitsNamesWrongly(MemoryLeaseStore):
    """A name with a ``#`` in it comes back cut."""

    def _hold(self, holder: Holder, fence: int, ttl: Seconds, nonce: str) -> Held:
        name, _, token = str(holder).partition("#")
        held = super()._hold(Holder(name, token), fence, ttl, nonce)
        return Held(replace(held.grant, holder=holder))


class ObservesFromMemory(MemoryLeaseStore):
    """What was read once is answered for ever."""

    _cached: Observation | None = None

    async def observe(self) -> Observation:
        if self._cached is None:
            self._cached = await super().observe()
        return self._cached


class ObservingGrants(MemoryLeaseStore):
    """A read that shows one's own record is reported as holding."""

    async def observe(self) -> Observation:
        answer = await super().observe()
        if isinstance(answer, Seen):
            record = answer.record
            return Held(Grant(record.holder, record.fence, record.nonce, record.ttl))
        return answer


class MarkStandsStill(MemoryLeaseStore):
    """All records have the same mark, so a renewal cannot be told from silence."""

    def _hold(self, holder: Holder, fence: int, ttl: Seconds, nonce: str) -> Held:
        held = super()._hold(holder, fence, ttl, nonce)
        if self.lease.record is not None:
            self.lease.record = replace(self.lease.record, mark="same")
        return held


class OutageLooksVacant(MemoryLeaseStore):
    """A store that cannot be read is reported as free."""

    async def observe(self) -> Observation:
        try:
            return await super().observe()
        except StoreUnavailable:
            return Vacant()


class RaisesItsOwnErrors(MemoryLeaseStore):
    """An outage escapes as the client library's exception."""

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        try:
            return await super().renew(grant, nonce=nonce)
        except StoreUnavailable as error:
            raise ConnectionError(str(error)) from error


class ReleaseHidesAnOutage(MemoryLeaseStore):
    """A release that did not happen is reported as done."""

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        try:
            await super().release(grant, returned)
        except StoreUnavailable:
            return


class ChangesTheFenceOnRenewal(MemoryLeaseStore):
    """A renewal counts as a new term."""

    def commit_renew(self, grant: Grant, nonce: str) -> Observation:
        answer = super().commit_renew(grant, nonce)
        if isinstance(answer, Held):
            return self._hold(grant.holder, grant.fence + 1, grant.ttl, nonce)
        return answer


def _planted() -> Mapping[str, type[MemoryLeaseStore]]:
    kinds = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, MemoryLeaseStore)]
    return MappingProxyType({kind.__name__: kind for kind in kinds if kind is not MemoryLeaseStore})


PLANTED_BUGS: Final[Mapping[str, type[MemoryLeaseStore]]] = _planted()
"""Every broken store of this module by name; each docstring says what is wrong with it."""


class MarksEverythingAgain(MemoryLeaseStore):
    """A mark that is there is reported as made."""

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        await super().mark_reboot(grant, job_set_id, job, nonce=nonce)
        return True


class MarksWithoutScope(MemoryLeaseStore):
    """The job-set id is ignored."""

    async def reboot_marks(self, job_set_id: str) -> frozenset[str]:
        await super().reboot_marks(job_set_id)
        return frozenset(job for _, job in self.lease.marks)


class MarksAfterItsTerm(MemoryLeaseStore):
    """A leader that was replaced can still mark."""

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        await super().mark_reboot(grant, job_set_id, job, nonce=nonce)
        return self.lease.marks.setdefault((job_set_id, job), nonce) == nonce


class MarksByPresence(MemoryLeaseStore):
    """A mark of one's own whose answer was lost is taken for somebody else's."""

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        there = (job_set_id, job) in self.lease.marks
        return await super().mark_reboot(grant, job_set_id, job, nonce=nonce) and not there


PLANTED_MARK_BUGS: Final[Mapping[str, type[MemoryLeaseStore]]] = MappingProxyType(
    {kind.__name__: kind for kind in (MarksEverythingAgain, MarksWithoutScope, MarksAfterItsTerm, MarksByPresence)}
)
"""The same for ``RebootMarksContract``."""


class AppendsOverOthers(MemoryLeaseStore):
    """A record replaces whatever has its number."""

    def commit_append(self, grant: Grant, number: int, record: bytes) -> Appended:
        if self.holds(grant):
            self.lease.records.pop(number, None)
        return super().commit_append(grant, number, record)


class AppendsWithoutTheTerm(MemoryLeaseStore):
    """Whoever has the number may append, also when the term is over."""

    def holds(self, grant: Grant) -> bool:
        return True


class AppendsByToken(MemoryLeaseStore):
    """The same process in a later term passes for the earlier one."""

    def holds(self, grant: Grant) -> bool:
        stands = self.lease.look()
        return isinstance(stands, Seen) and stands.record.holder == grant.holder


class AppendsByNonce(MemoryLeaseStore):
    """A renewal in between makes the term look foreign."""

    def holds(self, grant: Grant) -> bool:
        stands = self.lease.look()
        return isinstance(stands, Seen) and grant.owns(stands.record)


class AppendsAtTheEnd(MemoryLeaseStore):
    """The number that was asked for does not matter."""

    def commit_append(self, grant: Grant, number: int, record: bytes) -> Appended:
        return super().commit_append(grant, max(self.lease.records, default=0) + 1, record)


class SaysWonForTaken(MemoryLeaseStore):
    """Everything that is in the log counts as landed."""

    def commit_append(self, grant: Grant, number: int, record: bytes) -> Appended:
        answer = super().commit_append(grant, number, record)
        return Won(self.wall()) if number in self.lease.records else answer


class AnswersWithItsOwnRecord(MemoryLeaseStore):
    """What it says stands there is what it was asked to put there."""

    def commit_append(self, grant: Grant, number: int, record: bytes) -> Appended:
        answer = super().commit_append(grant, number, record)
        return replace(answer, record=record) if isinstance(answer, Taken) else answer


class FreesTrimmedNumbers(MemoryLeaseStore):
    """What was trimmed away can be written again."""

    def commit_trim(self, grant: Grant, first: int) -> None:
        super().commit_trim(grant, first)
        self.lease.low = 0


class TrimsForAnybody(MemoryLeaseStore):
    """A term that is over still trims."""

    def commit_trim(self, grant: Grant, first: int) -> None:
        self.lease.records = {n: record for n, record in self.lease.records.items() if n >= first}


class TrimsTooMuch(MemoryLeaseStore):
    """The record that was to stay goes too."""

    def commit_trim(self, grant: Grant, first: int) -> None:
        super().commit_trim(grant, first + 1)


class KeepsClaimsInTheLease(MemoryLeaseStore):
    """The log goes when the lease goes."""

    def commit_acquire(self, me: Holder, ttl: Seconds, nonce: str, over: Seen | None) -> Observation:
        self.lease.records = {}
        return super().commit_acquire(me, ttl, nonce, over)


class KnowsNoTime(MemoryLeaseStore):
    """Appends do not say when they landed."""

    def commit_append(self, grant: Grant, number: int, record: bytes) -> Appended:
        answer = super().commit_append(grant, number, record)
        return Won() if isinstance(answer, Won) else answer


class SharesOneEntry(MemoryLeaseStore):
    """The processes overwrite each other's entry."""

    async def put_entry(self, entry: bytes) -> None:
        self.lease.entries.clear()
        await super().put_entry(entry)


PLANTED_CLAIM_BUGS: Final[Mapping[str, type[MemoryLeaseStore]]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            AppendsOverOthers,
            AppendsWithoutTheTerm,
            AppendsByToken,
            AppendsByNonce,
            AppendsAtTheEnd,
            SaysWonForTaken,
            AnswersWithItsOwnRecord,
            FreesTrimmedNumbers,
            TrimsForAnybody,
            TrimsTooMuch,
            KeepsClaimsInTheLease,
            KnowsNoTime,
            SharesOneEntry,
        )
    }
)
"""Claim logs that ``ClaimLogContract`` must catch, by name."""
