"""The contract of a lease store and of a claim log while things go wrong.

    class TestMyLeaseFaults(LeaseFaultContract):
        @pytest.fixture
        def door(self, tmp_path):
            return MyDoor(tmp_path)          # the same LeaseDoor as for LeaseStoreContract

What goes wrong on the way is played by calling the store as a network would: an answer that was lost is a call whose
answer is not looked at, a repeated request the same call again, a late one a call after something else has happened.
What goes wrong in the store comes through the back door. A door may have more than the five methods of ``LeaseDoor``:

- ``rollback()``, an async context manager: what is written while it is entered is gone afterwards, as after a restore.
- ``expire_now()``: the lease runs out at once, for stores that remove a dead holder's record (EXPIRES_ITSELF).

A door without them is asked to say so: its class sets ``rolls_back`` or ``expires_itself`` to False.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import pytest

from cronstable.core.clock import Seconds
from cronstable.core.store import Fenced, Grant, Held, LeaseRecord, Seen, StoreUnavailable, Taken, Vacant, Won
from cronstable.testing.claims_contract import OTHER, RECORD, log_of
from cronstable.testing.kit import ContractKit
from cronstable.testing.lease_contract import TTL, A, B, LeaseDoor, granted, shown


@runtime_checkable
class RollbackDoor(Protocol):
    """A door to a store that can be restored from an older copy."""

    def rollback(self) -> AbstractAsyncContextManager[None]:
        """What is written while it is entered is gone afterwards."""
        ...


@runtime_checkable
class ExpiryDoor(Protocol):
    """A door to a store that removes a dead holder's record by itself."""

    async def expire_now(self) -> None:
        """The lease runs out at once."""
        ...


def _grant_of(record: LeaseRecord) -> Grant:
    """What a process that knows its own nonce makes of a record: it adopts the term."""
    return Grant(record.holder, record.fence, record.nonce, record.ttl, record.expires_at)


class _Faults(ContractKit):
    """What both suites share."""

    ttl: Seconds = TTL
    rolls_back: ClassVar[bool] = True
    expires_itself: ClassVar[bool] = False
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The host runs on asyncio."""
        return "asyncio"


class LeaseFaultContract(_Faults, suite=True):
    """What a lease store must do when requests are lost, late or repeated, and when the lease is meddled with."""

    # -- on the way ---------------------------------------------------------------------------------------------------

    async def test_an_acquisition_whose_answer_was_lost_is_shown_with_its_nonce_and_can_be_renewed(
        self, door: LeaseDoor
    ) -> None:
        await door.store().acquire(A, self.ttl, nonce="n1")
        record = shown(await door.store().observe())
        assert (record.holder, record.nonce) == (A, "n1")
        from_record = granted(await door.store().renew(_grant_of(record), nonce="n2"))
        assert from_record.fence == record.fence

    async def test_a_repeated_acquisition_gives_no_second_term(self, door: LeaseDoor) -> None:
        store = door.store()
        first = granted(await store.acquire(A, self.ttl, nonce="n1"))
        again = await store.acquire(A, self.ttl, nonce="n1")
        if isinstance(again, Held):
            assert again.grant.fence == first.fence, "the same request made a second term"
        else:
            assert shown(again).fence == first.fence

    async def test_a_renewal_whose_answer_was_lost_is_no_loss(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.renew(grant, nonce="n2")
        assert granted(await store.renew(replace(grant, tried=("n2",)), nonce="n3")).fence == grant.fence

    async def test_a_renewal_that_arrives_twice_does_no_harm(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        granted(await store.renew(grant, nonce="n2"))
        await store.renew(grant, nonce="n2")
        record = shown(await door.store().observe())
        assert (record.holder, record.fence, record.nonce) == (A, grant.fence, "n2")

    async def test_a_renewal_that_arrives_after_a_takeover_changes_nothing(self, door: LeaseDoor) -> None:
        old = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        new = granted(await door.store().acquire(B, self.ttl, nonce="n2", over=seen))
        assert not isinstance(await door.store().renew(old, nonce="n3"), Held)
        record = shown(await door.store().observe())
        assert (record.holder, record.fence, record.nonce) == (B, new.fence, "n2")

    async def test_a_renewal_after_the_release_does_not_bring_the_lease_back(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.release(grant, ())
        assert not isinstance(await store.renew(grant, nonce="n2"), Held)
        assert await door.record() is None

    async def test_a_release_that_arrives_after_a_takeover_leaves_the_new_holder_alone(self, door: LeaseDoor) -> None:
        old = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        granted(await door.store().acquire(B, self.ttl, nonce="n2", over=seen))
        await door.store().release(old, ("run-1",))
        record = await door.record()
        assert record is not None
        assert record.holder == B

    async def test_a_release_that_arrives_twice_does_not_end_the_next_term(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.release(grant, ())
        granted(await door.store().acquire(B, self.ttl, nonce="n2"))
        await store.release(grant, ())
        record = await door.record()
        assert record is not None
        assert record.holder == B

    async def test_a_takeover_by_a_stale_look_takes_nothing(self, door: LeaseDoor) -> None:
        grant = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        stale = await door.store().observe()
        assert isinstance(stale, Seen)
        await door.store().release(grant, ())
        newer = granted(await door.store().acquire(B, self.ttl, nonce="n2"))
        assert not isinstance(await door.store().acquire(A, self.ttl, nonce="n3", over=stale), Held)
        record = shown(await door.store().observe())
        assert (record.holder, record.fence) == (B, newer.fence)

    async def test_what_was_refused_during_an_outage_does_not_arrive_afterwards(self, door: LeaseDoor) -> None:
        store = door.store()
        async with door.outage():
            with pytest.raises(StoreUnavailable) as caught:
                await store.acquire(A, self.ttl, nonce="n1")
        if not caught.value.ambiguous:
            assert await door.record() is None
            assert isinstance(await door.store().observe(), Vacant)

    # -- in the store -------------------------------------------------------------------------------------------------

    async def test_a_deleted_lease_is_not_renewed_into_being(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await door.delete()
        assert not isinstance(await store.renew(grant, nonce="n2"), Held)
        assert await door.record() is None

    async def test_a_term_of_before_a_deletion_is_over_for_good(self, door: LeaseDoor) -> None:
        old = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        await door.delete()
        # A store may show a deleted term until the host has judged it: its holder may still act.
        seen = await door.store().observe()
        over = seen if isinstance(seen, Seen) else None
        new = granted(await door.store().acquire(B, self.ttl, nonce="n2", over=over))
        assert new.fence >= old.fence
        assert not isinstance(await door.store().renew(old, nonce="n3"), Held)
        await door.store().release(old, ())
        record = await door.record()
        assert record is not None
        assert (record.holder, record.nonce) == (B, "n2")

    async def test_an_edited_lease_is_believed_by_nobody_who_does_not_know_the_edit(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await door.garble()
        assert not isinstance(await store.renew(grant, nonce="n2"), Held)
        await store.release(grant, ())
        assert not isinstance(await door.store().acquire(B, self.ttl, nonce="n3"), Held), "a release made it free"

    async def test_a_lease_that_ran_out_early_is_lost_for_its_holder(self, door: LeaseDoor) -> None:
        if not self.expires_itself:
            assert not isinstance(door, ExpiryDoor), "the door can expire the lease: set expires_itself = True"
            return
        assert isinstance(door, ExpiryDoor), "expires_itself needs a door with expire_now"
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await door.expire_now()
        assert not isinstance(await store.renew(grant, nonce="n2"), Held)
        new = granted(await door.store().acquire(B, self.ttl, nonce="n3"))
        assert new.fence > grant.fence

    async def test_a_lease_that_is_kept_too_long_is_not_taken_without_being_judged(self, door: LeaseDoor) -> None:
        granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        for number in range(3):
            assert not isinstance(await door.store().acquire(B, self.ttl, nonce=f"b{number}"), Held)

    async def test_a_store_that_was_rolled_back_gives_the_term_of_then_to_nobody_else(self, door: LeaseDoor) -> None:
        if not self.rolls_back:
            assert not isinstance(door, RollbackDoor), "the door can roll back: leave rolls_back at True"
            return
        assert isinstance(door, RollbackDoor), "rolls_back needs a door with rollback, or to be set to False"
        old = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        async with door.rollback():
            seen = await door.store().observe()
            assert isinstance(seen, Seen)
            new = granted(await door.store().acquire(B, self.ttl, nonce="n2", over=seen))
        assert not isinstance(await door.store().renew(new, nonce="n3"), Held), "a term that was rolled back goes on"
        stranger = replace(old, nonce="n9", data=None)
        assert not isinstance(await door.store().renew(stranger, nonce="n4"), Held)


class ClaimFaultContract(_Faults, suite=True):
    """What a claim log must do when appends are lost, late or repeated, and when the lease is meddled with."""

    async def test_an_append_that_arrives_twice_lands_once(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        log = log_of(store)
        assert isinstance(await log.append(grant, 1, RECORD), Won)
        again = await log.append(grant, 1, RECORD)
        assert isinstance(again, Won) or again == Taken(RECORD)
        assert isinstance(await log.append(grant, 2, OTHER), Won)
        assert [await log.read(number) for number in (1, 2)] == [RECORD, OTHER]

    async def test_an_append_that_arrives_after_a_takeover_does_not_land(self, door: LeaseDoor) -> None:
        store = door.store()
        old = granted(await store.acquire(A, self.ttl, nonce="n1"))
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        other = door.store()
        new = granted(await other.acquire(B, self.ttl, nonce="n2", over=seen))
        assert await log_of(store).append(old, 1, RECORD) == Fenced()
        assert isinstance(await log_of(other).append(new, 1, OTHER), Won)
        assert await log_of(store).read(1) == OTHER

    async def test_an_append_that_arrives_after_the_release_does_not_land(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await log_of(store).append(grant, 1, RECORD)
        await store.release(grant, ())
        assert await log_of(store).append(grant, 2, OTHER) == Fenced()
        assert await log_of(door.store()).read(2) is None

    async def test_an_append_under_a_deleted_or_edited_lease_does_not_land(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await door.garble()
        try:
            answer = await log_of(store).append(grant, 1, RECORD)
        except StoreUnavailable:
            answer = None
        assert not isinstance(answer, Won)
        await door.delete()
        assert await log_of(store).append(grant, 1, RECORD) == Fenced()
        assert await log_of(door.store()).read(1) is None

    async def test_an_append_that_was_refused_does_not_arrive_afterwards(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        async with door.outage():
            with pytest.raises(StoreUnavailable) as caught:
                await log_of(store).append(grant, 1, RECORD)
        if not caught.value.ambiguous:
            assert await log_of(door.store()).read(1) is None
        settled = await log_of(store).append(grant, 1, RECORD)
        assert isinstance(settled, Won) or settled == Taken(RECORD)

    async def test_the_record_of_a_lost_answer_is_found_by_whoever_leads_next(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await log_of(store).append(grant, 1, RECORD)
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        other = door.store()
        new = granted(await other.acquire(B, self.ttl, nonce="n2", over=seen))
        assert await log_of(other).read(1) == RECORD
        assert await log_of(other).append(new, 1, OTHER) == Taken(RECORD)
