"""The contract of a lease store. A backend author subclasses ``LeaseStoreContract`` and gives it one fixture.

    class TestMyLease(LeaseStoreContract):
        @pytest.fixture
        def door(self, tmp_path):
            return MyDoor(tmp_path)          # a LeaseDoor, see below

Each test runs on a fresh, empty lease and on the real event loop. The back door looks at the store, and meddles with
it, by other means than the code under test.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

import anyio
import pytest

from cronstable.core.clock import Seconds
from cronstable.core.store import Grant, Held, Holder, LeaseRecord, Observation, Seen, StoreUnavailable, Vacant
from cronstable.plugin.protocols import LeaseStore
from cronstable.testing.kit import ContractKit

TTL: Seconds = 15.0
A = Holder("node-a", "aaaaaaaaaaaa")
B = Holder("node-b", "bbbbbbbbbbbb")


class LeaseDoor(Protocol):
    """One lease in one store, by the front door and by the back door."""

    def store(self) -> LeaseStore:
        """A new handle on the lease, as another process would have."""
        ...

    async def record(self) -> LeaseRecord | None:
        """What stands in the store, read by other means; None when nobody holds the lease. ``mark`` may be empty."""
        ...

    async def delete(self) -> None:
        """Remove the lease as an operator would."""
        ...

    async def garble(self) -> None:
        """Put bytes there that are no lease."""
        ...

    def outage(self) -> AbstractAsyncContextManager[None]:
        """While it is entered the store cannot be used at all, through any handle."""
        ...


def granted(answer: Observation) -> Grant:
    """The grant of an answer that must be ``Held``."""
    assert isinstance(answer, Held), f"expected to hold the lease, the store says {answer}"
    return answer.grant


def shown(answer: Observation) -> LeaseRecord:
    """The record of an answer that must be ``Seen``."""
    assert isinstance(answer, Seen), f"expected to see a record, the store says {answer}"
    return answer.record


class LeaseStoreContract(ContractKit, suite=True):
    """What every lease store must do. ``ttl``: seconds asked for in the tests; all of them end well within it."""

    ttl: Seconds = TTL
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The host runs on asyncio."""
        return "asyncio"

    # -- vacant, held -------------------------------------------------------------------------------------------------

    async def test_an_empty_store_is_vacant(self, door: LeaseDoor) -> None:
        assert isinstance(await door.store().observe(), Vacant)
        assert await door.record() is None

    async def test_a_free_lease_goes_to_who_asks(self, door: LeaseDoor) -> None:
        grant = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        assert (grant.holder, grant.nonce, grant.tried) == (A, "n1", ())
        assert 0 < grant.ttl <= self.ttl
        stands = await door.record()
        assert stands is not None
        assert (stands.holder, stands.nonce, stands.fence) == (A, "n1", grant.fence)

    async def test_a_held_lease_is_not_given_to_another(self, door: LeaseDoor) -> None:
        grant = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        record = shown(await door.store().acquire(B, self.ttl, nonce="n2"))
        assert (record.holder, record.fence, record.nonce) == (A, grant.fence, "n1")
        stands = await door.record()
        assert stands is not None
        assert (stands.holder, stands.nonce) == (A, "n1")

    async def test_a_holder_that_asks_again_is_shown_its_own_record(self, door: LeaseDoor) -> None:
        store = door.store()
        granted(await store.acquire(A, self.ttl, nonce="n1"))
        assert shown(await store.acquire(A, self.ttl, nonce="n2")).nonce == "n1"

    async def test_of_many_that_ask_at_once_exactly_one_wins(self, door: LeaseDoor) -> None:
        answers: list[Observation] = []

        async def ask(number: int) -> None:
            me = Holder(f"node-{number}", f"{number:012x}")
            answers.append(await door.store().acquire(me, self.ttl, nonce=f"n{number}"))

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(ask, number)
        winners = [answer.grant for answer in answers if isinstance(answer, Held)]
        assert len(winners) == 1
        stands = await door.record()
        assert stands is not None
        assert stands.holder == winners[0].holder

    async def test_a_name_may_hold_any_character(self, door: LeaseDoor) -> None:
        odd = Holder('a#b "c" \\ 日本 {x}', "cccccccccccc")
        granted(await door.store().acquire(odd, self.ttl, nonce="n1"))
        assert shown(await door.store().observe()).holder == odd

    async def test_the_record_keeps_the_ttl_that_was_granted(self, door: LeaseDoor) -> None:
        grant = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        assert shown(await door.store().observe()).ttl == grant.ttl

    # -- observe ------------------------------------------------------------------------------------------------------

    async def test_observing_shows_what_stands_there_and_never_grants(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        record = shown(await store.observe())
        assert (record.holder, record.fence, record.nonce) == (A, grant.fence, "n1")
        assert grant.owns(record)

    async def test_another_handles_write_is_seen_at_once(self, door: LeaseDoor) -> None:
        watcher, holder = door.store(), door.store()
        assert isinstance(await watcher.observe(), Vacant)
        grant = granted(await holder.acquire(A, self.ttl, nonce="n1"))
        assert shown(await watcher.observe()).nonce == "n1"
        granted(await holder.renew(grant, nonce="n2"))
        assert shown(await watcher.observe()).nonce == "n2"

    async def test_the_mark_moves_with_every_write_and_not_without(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        first = shown(await store.observe())
        assert shown(await door.store().observe()) == first
        granted(await store.renew(grant, nonce="n2"))
        second = shown(await store.observe())
        assert (first.mark, first.nonce) != (second.mark, second.nonce)
        if first.mark or second.mark:
            assert first.mark != second.mark

    # -- renew --------------------------------------------------------------------------------------------------------

    async def test_a_renewal_keeps_the_term_and_moves_the_nonce(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        renewed = granted(await store.renew(grant, nonce="n2"))
        assert (renewed.holder, renewed.fence, renewed.nonce) == (A, grant.fence, "n2")
        stands = await door.record()
        assert stands is not None
        assert (stands.nonce, stands.fence) == ("n2", grant.fence)

    async def test_a_term_can_be_renewed_many_times(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n0"))
        for number in range(1, 8):
            grant = granted(await store.renew(grant, nonce=f"n{number}"))
        assert shown(await door.store().observe()).nonce == "n7"

    async def test_a_renewal_whose_answer_was_lost_is_recognised_by_its_nonce(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        granted(await store.renew(grant, nonce="n2"))
        unsure = replace(grant, tried=("n2",))
        assert granted(await store.renew(unsure, nonce="n3")).nonce == "n3"

    async def test_a_nonce_that_is_not_ours_stops_the_renewal(self, door: LeaseDoor) -> None:
        grant = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        granted(await door.store().renew(grant, nonce="clone"))
        record = shown(await door.store().renew(grant, nonce="n2"))
        assert record.nonce == "clone"
        stands = await door.record()
        assert stands is not None
        assert stands.nonce == "clone"

    async def test_the_same_name_under_another_token_is_somebody_else(self, door: LeaseDoor) -> None:
        old = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        twin = Holder(A.name, "dddddddddddd")
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        granted(await door.store().acquire(twin, self.ttl, nonce="n2", over=seen))
        assert shown(await door.store().renew(old, nonce="n3")).holder == twin

    async def test_a_deleted_lease_is_not_renewed(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await door.delete()
        assert isinstance(await store.renew(grant, nonce="n2"), Vacant)
        assert await door.record() is None

    async def test_a_released_lease_is_not_renewed(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.release(grant, ())
        assert not isinstance(await store.renew(grant, nonce="n2"), Held)
        assert await door.record() is None

    async def test_a_grant_rebuilt_from_the_record_can_be_renewed(self, door: LeaseDoor) -> None:
        await door.store().acquire(A, self.ttl, nonce="n1")
        store = door.store()
        record = shown(await store.observe())
        rebuilt = Grant(record.holder, record.fence, record.nonce, record.ttl, record.expires_at)
        assert granted(await store.renew(rebuilt, nonce="n2")).nonce == "n2"

    # -- release ------------------------------------------------------------------------------------------------------

    async def test_a_release_frees_the_lease_at_once(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.release(grant, ())
        assert isinstance(await door.store().observe(), Vacant)
        granted(await door.store().acquire(B, self.ttl, nonce="n2"))

    async def test_a_release_after_a_lost_answer_works_all_the_same(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        granted(await store.renew(grant, nonce="n2"))
        await store.release(replace(grant, tried=("n2",)), ())
        assert isinstance(await door.store().observe(), Vacant)

    async def test_releasing_twice_does_no_harm(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.release(grant, ())
        await store.release(grant, ())
        granted(await store.acquire(A, self.ttl, nonce="n2"))

    async def test_a_term_that_is_over_cannot_release_its_successors(self, door: LeaseDoor) -> None:
        old = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        granted(await door.store().acquire(B, self.ttl, nonce="n2", over=seen))
        await door.store().release(old, ())
        assert shown(await door.store().observe()).holder == B

    async def test_returned_run_ids_reach_the_successor_once(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.release(grant, ("run-1", "run-2"))
        vacant = await door.store().observe()
        assert isinstance(vacant, Vacant)
        assert tuple(vacant.returned) == ("run-1", "run-2")
        second = granted(await store.acquire(B, self.ttl, nonce="n2"))
        await store.release(second, ())
        vacant = await door.store().observe()
        assert isinstance(vacant, Vacant)
        assert tuple(vacant.returned) == ()

    # -- takeover -----------------------------------------------------------------------------------------------------

    async def test_a_record_that_still_stands_can_be_taken_over(self, door: LeaseDoor) -> None:
        old = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        new = granted(await door.store().acquire(B, self.ttl, nonce="n2", over=seen))
        assert new.fence > old.fence
        assert shown(await door.store().renew(old, nonce="n3")).holder == B

    async def test_a_record_that_was_renewed_meanwhile_cannot_be_taken_over(self, door: LeaseDoor) -> None:
        grant = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        granted(await door.store().renew(grant, nonce="n2"))
        assert shown(await door.store().acquire(B, self.ttl, nonce="n3", over=seen)).nonce == "n2"
        stands = await door.record()
        assert stands is not None
        assert stands.holder == A

    async def test_a_takeover_of_what_is_gone_takes_nothing(self, door: LeaseDoor) -> None:
        grant = granted(await door.store().acquire(A, self.ttl, nonce="n1"))
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        await door.store().release(grant, ())
        assert isinstance(await door.store().acquire(B, self.ttl, nonce="n2", over=seen), Vacant)
        assert await door.record() is None

    async def test_of_many_takeovers_at_once_exactly_one_wins(self, door: LeaseDoor) -> None:
        await door.store().acquire(A, self.ttl, nonce="n0")
        seen = await door.store().observe()
        assert isinstance(seen, Seen)
        answers: list[Observation] = []

        async def challenge(number: int) -> None:
            me = Holder(f"node-{number}", f"{number:012x}")
            answers.append(await door.store().acquire(me, self.ttl, nonce=f"n{number}", over=seen))

        async with anyio.create_task_group() as tasks:
            for number in range(1, 6):
                tasks.start_soon(challenge, number)
        assert sum(isinstance(answer, Held) for answer in answers) == 1

    # -- fences -------------------------------------------------------------------------------------------------------

    async def test_the_fence_grows_with_every_term_however_the_last_one_ended(self, door: LeaseDoor) -> None:
        store = door.store()
        fences = []
        for number in range(8):
            over: Seen | None = None
            if number % 3 == 1:
                seen = await store.observe()
                assert isinstance(seen, Seen)
                over = seen
            holder = (A, B)[number % 2]
            grant = granted(await store.acquire(holder, self.ttl, nonce=f"n{number}", over=over))
            fences.append(grant.fence)
            if number % 3 == 1:
                await store.release(grant, ())
            elif number % 3 == 2:
                await door.delete()
        assert all(later > earlier for earlier, later in itertools.pairwise(fences)), fences

    async def test_a_vacant_lease_remembers_its_fence_after_a_release(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await store.release(grant, ())
        vacant = await door.store().observe()
        assert isinstance(vacant, Vacant)
        assert vacant.fence is not None
        assert vacant.fence >= grant.fence

    # -- bad days -----------------------------------------------------------------------------------------------------

    async def test_garbage_is_neither_free_nor_ours(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await door.garble()
        assert not isinstance(await door.store().observe(), Vacant | Held)
        assert not isinstance(await door.store().acquire(B, self.ttl, nonce="n2"), Held)
        assert not isinstance(await store.renew(grant, nonce="n3"), Held)

    async def test_a_store_that_is_down_says_unavailable_and_nothing_else(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        seen = await store.observe()
        assert isinstance(seen, Seen)
        async with door.outage():
            with pytest.raises(StoreUnavailable):
                await store.observe()
            with pytest.raises(StoreUnavailable):
                await store.renew(grant, nonce="n2")
            with pytest.raises(StoreUnavailable):
                await store.acquire(B, self.ttl, nonce="n3")
            with pytest.raises(StoreUnavailable):
                await store.release(grant, ())

    async def test_after_an_outage_the_same_handle_works_again(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        async with door.outage():
            with pytest.raises(StoreUnavailable):
                await store.renew(grant, nonce="n2")
        unsure = replace(grant, tried=("n2",))
        assert granted(await store.renew(unsure, nonce="n3")).nonce == "n3"
