"""The claim log as the host uses it: what an operator is told when it does not answer."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from cronstable.core.store import Appended, Grant, HeldTerm, Holder, Span, StoreUnavailable, Unknown, Won
from cronstable.runtime.claim_door import ClaimDoor
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost

TTL = 5.0


class Keeper:
    def __init__(self) -> None:
        self.grant: Grant | None = Grant(Holder("a", "t"), 1, "n", TTL, None)
        self.term: HeldTerm | None = HeldTerm(1)
        self.leads = True
        self.store_free = anyio.Lock()

    async def stand_down(self, seconds: float) -> None:
        self.grant = None


class Log:
    """A claim log that answers nothing while ``error`` is set; with ``hangs`` it never comes back."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False

    async def _strike(self) -> None:
        if self.hangs:
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error

    async def append(self, grant: Grant, number: int, record: bytes) -> Appended:
        await self._strike()
        return Won(None)

    async def read(self, number: int) -> bytes | None:
        return None

    async def span(self) -> Span:
        return Span(0, 0, None)

    async def trim(self, grant: Grant, first: int) -> None:
        return None

    async def put_entry(self, entry: bytes) -> None:
        return None

    async def entries(self) -> Sequence[bytes]:
        await self._strike()
        return ()


class Case:
    def __init__(self) -> None:
        self.host = FakeHost(VirtualClock.of_loop(), "a")
        self.keeper, self.log = Keeper(), Log()
        self.door = ClaimDoor(self.log, self.keeper, self.host, op_timeout=2.0, ttl=TTL, worst_handover=9.0)

    async def try_for(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await self.door.append(1, b"x")
            await self.door.entries()
            await anyio.sleep(1.0)

    def warnings(self) -> list[str]:
        return self.host.logged("has not answered")


def test_a_log_that_fails_while_the_lease_is_held_is_told_with_its_reason_once_a_minute() -> None:
    async def story() -> None:
        case = Case()
        case.log.error = StoreUnavailable("the etcd key x/log-low is damaged: put a number there")
        await case.try_for(4)
        assert case.warnings() == []
        await case.try_for(4)
        (text,) = case.warnings()
        assert text == (
            "cluster: this node leads, but its claim log has not answered (an append) for 5 s: "
            "the etcd key x/log-low is damaged: put a number there"
        )
        await case.try_for(60)
        assert len(case.warnings()) == 2

    run_virtual(story)


@pytest.mark.parametrize("hangs", [True, False])
def test_silence_is_told_and_an_answer_ends_it(hangs: bool) -> None:
    async def story() -> None:
        case = Case()
        case.log.hangs, case.log.error = hangs, StoreUnavailable("away")
        assert await case.door.append(1, b"x") == Unknown()
        await anyio.sleep(3)
        case.log.hangs, case.log.error = False, None
        await case.door.append(1, b"x")
        case.log.hangs, case.log.error = hangs, StoreUnavailable("away")
        await anyio.sleep(3)
        await case.door.append(1, b"x")
        assert case.warnings() == []
        await case.try_for(8)
        (text,) = case.warnings()
        assert text.endswith("no answer within 2 s" if hangs else "away")

    run_virtual(story)


def test_of_a_store_that_took_the_lease_along_the_lease_tells() -> None:
    async def story() -> None:
        case = Case()
        case.keeper.leads = False
        case.log.error = StoreUnavailable("away")
        await case.try_for(20)
        assert case.warnings() == []

    run_virtual(story)
