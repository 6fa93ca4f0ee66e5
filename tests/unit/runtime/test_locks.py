"""Leases of the state store as locks: had by one, taken out of dead hands, found again after a lost answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.core.store import Grant, StoreUnavailable, Vacant
from cronstable.runtime.locks import Busy, Lock, StoreLeases
from cronstable.testing.clock import VirtualClock, run_virtual

TTL = 30.0


class Ids:
    def __init__(self, name: str) -> None:
        self._name, self._n = name, 0

    def token(self, nbytes: int = 6) -> str:
        self._n += 1
        return f"{self._name}{self._n}"


class Door:
    """One process's way to the store. ``deaf``: what it asks is done, and the answer is lost."""

    def __init__(self, store: MemoryStateStore, clock: VirtualClock, name: str) -> None:
        self.deaf = False
        self.open = True
        self._store = store
        self.leases = StoreLeases(
            find=self._find, clock=clock, ids=Ids(name), log=logging.getLogger("test"), node=lambda: name
        )

    def _find(self, name: str) -> Any:
        if not self.open:
            return None
        lease, door = self._store.lease(name), self

        class Through:
            def __getattr__(self, what: str) -> Any:
                async def call(*args: Any, **more: Any) -> Any:
                    answer = await getattr(lease, what)(*args, **more)
                    if door.deaf:
                        raise StoreUnavailable("lost", ambiguous=True)
                    return answer

                return call

        return Through()

    async def lock(self) -> Lock | Busy | None:
        return await self.leases.lock("retry-claim/job", TTL)


def play(script: Callable[[Door, Door, VirtualClock], Awaitable[None]]) -> None:
    async def scenario() -> None:
        clock = VirtualClock.of_loop()
        store = MemoryStateStore(clock, Contents())
        await script(Door(store, clock, "a"), Door(store, clock, "b"), clock)

    run_virtual(scenario)


def test_a_lock_is_had_by_one_and_lasts_from_before_the_question() -> None:
    async def script(a: Door, b: Door, clock: VirtualClock) -> None:
        asked = clock.now().boot
        held = await a.lock()
        assert isinstance(held, Lock)
        assert held.until == asked + TTL
        assert isinstance(await b.lock(), Busy)
        await a.leases.unlock(held)
        assert isinstance(await b.lock(), Lock)

    play(script)


def test_a_lock_is_taken_out_of_dead_hands_once_it_has_stood_still() -> None:
    async def script(a: Door, b: Door, clock: VirtualClock) -> None:
        assert isinstance(await a.lock(), Lock)
        for _ in range(6):
            assert isinstance(await b.lock(), Busy)
            await anyio.sleep(5)
        await anyio.sleep(2)
        assert isinstance(await b.lock(), Lock)

    play(script)


def test_a_lock_whose_answer_was_lost_is_found_again_by_its_own_process() -> None:
    async def script(a: Door, b: Door, clock: VirtualClock) -> None:
        a.deaf = True
        assert await a.lock() is None
        a.deaf = False
        assert isinstance(await b.lock(), Busy)
        assert isinstance(await a.lock(), Lock)

    play(script)


def test_a_store_that_is_not_open_answers_nothing() -> None:
    async def script(a: Door, b: Door, clock: VirtualClock) -> None:
        a.open = False
        assert await a.lock() is None
        assert await a.leases.renew("retry-claim/job", Grant(a_holder(), 1, "n", TTL)) is None
        await a.leases.release_own("retry-claim/job")

    def a_holder() -> Any:
        return None

    play(script)


def test_what_is_held_without_knowing_can_be_let_go_and_what_another_one_holds_cannot() -> None:
    async def script(a: Door, b: Door, clock: VirtualClock) -> None:
        a.deaf = True
        assert await a.leases.acquire("slots/job", TTL) is None
        a.deaf = False
        await b.leases.release_own("slots/job")
        assert not isinstance(await b.leases.acquire("slots/job", TTL), Vacant)
        assert isinstance(await b.leases.lock("slots/job", TTL), Busy)
        await a.leases.release_own("slots/job")
        assert isinstance(await b.leases.lock("slots/job", TTL), Lock)

    play(script)
