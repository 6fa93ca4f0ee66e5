"""The contract of @reboot marks, for lease stores with the capability REBOOT_MARKS.

class TestMyMarks(RebootMarksContract):
    @pytest.fixture
    def door(self, tmp_path):
        return MyDoor(tmp_path)          # the same LeaseDoor as for LeaseStoreContract
"""

from __future__ import annotations

import anyio
import pytest

from cronstable.core.clock import Seconds
from cronstable.core.store import Grant, Seen, StoreUnavailable
from cronstable.plugin.protocols import LeaseStore, RebootMarks
from cronstable.testing.kit import ContractKit
from cronstable.testing.lease_contract import TTL, A, B, LeaseDoor, granted


def marks_of(store: LeaseStore) -> RebootMarks:
    """The store as the keeper of marks that it must be."""
    assert isinstance(store, RebootMarks), "REBOOT_MARKS needs reboot_marks and mark_reboot"
    return store


class RebootMarksContract(ContractKit, suite=True):
    """What every keeper of @reboot marks must do."""

    ttl: Seconds = TTL
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The host runs on asyncio."""
        return "asyncio"

    async def leading(self, door: LeaseDoor) -> tuple[RebootMarks, Grant]:
        """A store whose process leads."""
        store = door.store()
        return marks_of(store), granted(await store.acquire(A, self.ttl, nonce="n1"))

    async def test_nothing_is_marked_at_first(self, door: LeaseDoor) -> None:
        assert await marks_of(door.store()).reboot_marks("set") == frozenset()

    async def test_a_mark_is_made_once_and_seen_by_all(self, door: LeaseDoor) -> None:
        store, grant = await self.leading(door)
        assert await store.mark_reboot(grant, "set", "job", nonce="m1") is True
        assert await store.mark_reboot(grant, "set", "job", nonce="m2") is False
        assert await marks_of(door.store()).reboot_marks("set") == {"job"}

    async def test_a_mark_whose_answer_was_lost_is_known_by_its_nonce(self, door: LeaseDoor) -> None:
        store, grant = await self.leading(door)
        await store.mark_reboot(grant, "set", "job", nonce="m1")
        assert await store.mark_reboot(grant, "set", "job", nonce="m1") is True

    async def test_job_set_ids_do_not_mix(self, door: LeaseDoor) -> None:
        store, grant = await self.leading(door)
        assert await store.mark_reboot(grant, "old", "job", nonce="m1")
        assert await store.reboot_marks("new") == frozenset()
        assert await store.mark_reboot(grant, "new", "job", nonce="m2")

    async def test_a_job_may_have_any_name(self, door: LeaseDoor) -> None:
        store, grant = await self.leading(door)
        names = {"a/b", "..", "spaced out", "日本", 'q"uo\\te', "x" * 200}
        for name in sorted(names):
            assert await store.mark_reboot(grant, "set", name, nonce=f"m-{len(name)}-{name[:1]}")
        assert await store.reboot_marks("set") == names

    async def test_a_term_that_is_over_marks_nothing(self, door: LeaseDoor) -> None:
        store, old = await self.leading(door)
        other = door.store()
        seen = await other.observe()
        assert isinstance(seen, Seen)
        granted(await other.acquire(B, self.ttl, nonce="n2", over=seen))
        assert await store.mark_reboot(old, "set", "job", nonce="m1") is False
        assert await store.reboot_marks("set") == frozenset()

    async def test_marks_outlive_the_term_that_made_them(self, door: LeaseDoor) -> None:
        store, grant = await self.leading(door)
        await store.mark_reboot(grant, "set", "job", nonce="m1")
        other = door.store()
        await other.release(grant, ())
        granted(await other.acquire(B, self.ttl, nonce="n2"))
        assert await marks_of(other).reboot_marks("set") == {"job"}

    async def test_marking_does_not_disturb_the_lease(self, door: LeaseDoor) -> None:
        store = door.store()
        grant = granted(await store.acquire(A, self.ttl, nonce="n1"))
        await marks_of(store).mark_reboot(grant, "set", "job", nonce="m1")
        granted(await store.renew(grant, nonce="n2"))

    async def test_of_many_marks_at_once_exactly_one_is_made(self, door: LeaseDoor) -> None:
        store, grant = await self.leading(door)
        made: list[bool] = []

        async def mark(number: int) -> None:
            made.append(await store.mark_reboot(grant, "set", "job", nonce=f"m{number}"))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(mark, number)
        assert made.count(True) == 1

    async def test_an_outage_is_unavailable_and_nothing_else(self, door: LeaseDoor) -> None:
        store, grant = await self.leading(door)
        async with door.outage():
            with pytest.raises(StoreUnavailable):
                await store.reboot_marks("set")
            with pytest.raises(StoreUnavailable):
                await store.mark_reboot(grant, "set", "job", nonce="m1")
