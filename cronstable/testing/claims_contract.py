"""The contract of a claim log, for lease stores with the capability OCCURRENCE_CLAIMS.

class TestMyClaims(ClaimLogContract):
    @pytest.fixture
    def door(self, tmp_path):
        return MyDoor(tmp_path)          # the same LeaseDoor as for LeaseStoreContract
"""

from __future__ import annotations

import anyio
import pytest

from cronstable.core.clock import Seconds
from cronstable.core.store import Appended, Fenced, Grant, Seen, StoreUnavailable, Taken, Won
from cronstable.plugin.protocols import ClaimLog, LeaseStore
from cronstable.testing.kit import ContractKit
from cronstable.testing.lease_contract import TTL, A, B, LeaseDoor, granted

RECORD = b'{"n":"nonce of a record"}'
OTHER = b'{"n":"another nonce"}'


def log_of(store: LeaseStore) -> ClaimLog:
    """The store as the keeper of claims that it must be."""
    assert isinstance(store, ClaimLog), "OCCURRENCE_CLAIMS needs append, read, span, trim, put_entry and entries"
    return store


class ClaimLogContract(ContractKit, suite=True):
    """What every claim log must do (claims.md 1, 3 and 4).

    ``lies_in_the_lease``: the log is part of the lease object, and goes when somebody deletes that. Nothing may be left
    of it then: a new log begins with number 1, which tells the host that it knows nothing (claims.md 8).
    """

    ttl: Seconds = TTL
    lies_in_the_lease: bool = False
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The host runs on asyncio."""
        return "asyncio"

    async def leading(self, door: LeaseDoor) -> tuple[LeaseStore, ClaimLog, Grant]:
        """A store whose process leads."""
        store = door.store()
        return store, log_of(store), granted(await store.acquire(A, self.ttl, nonce="n1"))

    async def succeeded(self, door: LeaseDoor) -> tuple[ClaimLog, Grant]:
        """A store whose process took the lease over from whoever had it."""
        store = door.store()
        seen = await store.observe()
        assert isinstance(seen, Seen)
        return log_of(store), granted(await store.acquire(B, self.ttl, nonce="n2", over=seen))

    async def test_there_is_no_log_at_first(self, door: LeaseDoor) -> None:
        _, log, _ = await self.leading(door)
        span = await log.span()
        assert (span.first, span.last) == (0, 0)
        assert await log.read(1) is None

    async def test_a_record_is_read_as_it_was_written_by_all(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        data = bytes(range(256)) * 16
        assert isinstance(await log.append(grant, 1, data), Won)
        assert isinstance(await log.append(grant, 2, RECORD), Won)
        other = log_of(door.store())
        assert [await other.read(number) for number in (1, 2, 3)] == [data, RECORD, None]
        span = await other.span()
        assert (span.first, span.last) == (1, 2)

    async def test_a_number_is_taken_once_and_for_all(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        assert isinstance(await log.append(grant, 1, RECORD), Won)
        assert await log.append(grant, 1, OTHER) == Taken(RECORD)
        assert await log.read(1) == RECORD

    async def test_an_append_that_is_sent_again_is_known_by_its_bytes(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        await log.append(grant, 1, RECORD)
        again = await log.append(grant, 1, RECORD)
        assert isinstance(again, Won) or again == Taken(RECORD)
        assert await log.read(2) is None

    async def test_a_renewal_in_between_does_not_end_the_term(self, door: LeaseDoor) -> None:
        store, log, grant = await self.leading(door)
        granted(await store.renew(grant, nonce="n9"))
        assert isinstance(await log.append(grant, 1, RECORD), Won)

    async def test_appending_does_not_disturb_the_lease(self, door: LeaseDoor) -> None:
        store, log, grant = await self.leading(door)
        await log.append(grant, 1, RECORD)
        await log.put_entry(b"entry")
        granted(await store.renew(grant, nonce="n9"))

    async def test_a_term_that_was_taken_over_appends_nothing(self, door: LeaseDoor) -> None:
        _, log, old = await self.leading(door)
        await log.append(old, 1, RECORD)
        successor, grant = await self.succeeded(door)
        assert await log.append(old, 2, OTHER) == Fenced()
        assert await successor.read(2) is None
        assert isinstance(await successor.append(grant, 2, RECORD), Won)

    async def test_a_term_that_was_released_appends_nothing(self, door: LeaseDoor) -> None:
        store, log, grant = await self.leading(door)
        await store.release(grant, ())
        assert await log.append(grant, 1, RECORD) == Fenced()
        assert await log.read(1) is None

    async def test_a_new_term_of_the_same_process_is_another_one(self, door: LeaseDoor) -> None:
        store, log, old = await self.leading(door)
        await store.release(old, ())
        new = granted(await store.acquire(A, self.ttl, nonce="n2"))
        assert await log.append(old, 1, RECORD) == Fenced()
        assert isinstance(await log.append(new, 1, RECORD), Won)

    async def test_a_deleted_lease_appends_nothing(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        await door.delete()
        assert await log.append(grant, 1, RECORD) == Fenced()

    async def test_the_log_outlives_the_term_and_the_lease(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        await log.append(grant, 1, RECORD)
        await door.delete()
        other = door.store()
        # Some stores show a deleted lease for as long as its holder may act on it.
        shown = await other.observe()
        granted(await other.acquire(B, self.ttl, nonce="n2", over=shown if isinstance(shown, Seen) else None))
        span = await log_of(other).span()
        if self.lies_in_the_lease:
            assert (await log_of(other).read(1), span.first, span.last) == (None, 0, 0)
        else:
            assert (await log_of(other).read(1), span.first, span.last) == (RECORD, 1, 1)

    async def test_the_log_outlives_a_release(self, door: LeaseDoor) -> None:
        store, log, grant = await self.leading(door)
        await log.append(grant, 1, RECORD)
        await store.release(grant, ())
        other = door.store()
        second = granted(await other.acquire(B, self.ttl, nonce="n2"))
        assert await log_of(other).read(1) == RECORD
        assert isinstance(await log_of(other).append(second, 2, OTHER), Won)

    async def test_of_many_appends_of_one_number_exactly_one_lands(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        answers: list[Appended] = []

        async def append(mark: int) -> None:
            answers.append(await log.append(grant, 1, b"record %d" % mark))

        async with anyio.create_task_group() as tasks:
            for mark in range(5):
                tasks.start_soon(append, mark)
        landed = await log.read(1)
        assert sum(isinstance(answer, Won) for answer in answers) == 1
        assert [answer for answer in answers if not isinstance(answer, Won)] == [Taken(landed or b"")] * 4

    async def test_trimmed_numbers_are_gone_and_not_free(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        for number in range(1, 8):
            await log.append(grant, number, b"record %d" % number)
        await log.trim(grant, 5)
        assert [await log.read(number) for number in (5, 7)] == [b"record 5", b"record 7"]
        span = await log_of(door.store()).span()
        assert (span.first, span.last) == (5, 7)
        assert isinstance(await log.append(grant, 2, OTHER), Taken)
        assert await log.read(2) != OTHER
        assert isinstance(await log.append(grant, 8, OTHER), Won)

    async def test_a_term_that_is_over_trims_nothing(self, door: LeaseDoor) -> None:
        _, log, old = await self.leading(door)
        for number in range(1, 4):
            await log.append(old, number, RECORD)
        successor, _ = await self.succeeded(door)
        await log.trim(old, 3)
        assert [await successor.read(number) for number in (1, 2, 3)] == [RECORD] * 3

    async def test_the_store_tells_its_own_clock(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        first = (await log.span()).at
        won = await log.append(grant, 1, RECORD)
        assert isinstance(won, Won)
        assert first is not None, "without a clock of the store the log grows for ever (claims.md 8)"
        assert won.at is not None
        assert abs(won.at - first) < 600

    async def test_each_process_has_one_entry(self, door: LeaseDoor) -> None:
        one, two = log_of(door.store()), log_of(door.store())
        await one.put_entry(b"one")
        await two.put_entry(b"two")
        await one.put_entry(b"one again")
        assert sorted(await two.entries()) == [b"one again", b"two"]
        await two.put_entry(b"")
        assert list(await one.entries()) == [b"one again"]

    async def test_entries_need_no_lease_and_outlive_it(self, door: LeaseDoor) -> None:
        store, log, grant = await self.leading(door)
        await log.put_entry(b"still draining")
        await store.release(grant, ())
        await log.put_entry(b"still draining, refreshed")
        assert list(await log_of(door.store()).entries()) == [b"still draining, refreshed"]

    async def test_an_outage_is_unavailable_and_nothing_else(self, door: LeaseDoor) -> None:
        _, log, grant = await self.leading(door)
        async with door.outage():
            with pytest.raises(StoreUnavailable):
                await log.append(grant, 1, RECORD)
            with pytest.raises(StoreUnavailable):
                await log.read(1)
            with pytest.raises(StoreUnavailable):
                await log.span()
            with pytest.raises(StoreUnavailable):
                await log.entries()
        assert isinstance(await log.append(grant, 1, RECORD), Won)
