"""Fault injection around any lease or state store: lost requests and answers, delays, stale reads, back doors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, assert_never

import anyio

from cronstable.core.clock import Clock, Seconds
from cronstable.core.store import Grant, Holder, Observation, Seen, StoreUnavailable
from cronstable.plugin.protocols import LeaseStore
from cronstable.plugin.state_store import Document, StateStore, StoredRecord, StoreInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The request never reaches the store; the caller hears so at once."""


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The store does it, the caller hears an ambiguous failure."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing comes back, ever. ``committed``: the store did it all the same."""

    committed: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """The request takes ``before`` seconds to get there and its answer ``after`` seconds to come back."""

    before: Seconds = 0.0
    after: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Stale:
    """A read answers what the last one did (the first one is honest). Writes are let through."""


@dataclass(frozen=True, slots=True)
class Raise:
    """The call raises this: for the wrong kind of exception."""

    error: Exception


@dataclass(frozen=True, slots=True)
class BackDoor:
    """Somebody does ``act`` just before the request gets there: deletes, edits or rolls back the record."""

    act: Callable[[], object]


Fault: TypeAlias = LoseRequest | LoseAnswer | Hang | Delay | Stale | Raise | BackDoor

Plan: TypeAlias = "Mapping[tuple[str, int], Fault] | Callable[[str, int], Fault | None]"
"""Which fault strikes the n-th call of an operation (the name of its method), each counted from 1."""


class Faulty:
    """What faulty stores share. ``down`` True: every call fails at once, whatever the plan says.

    ``calls`` lists (boot seconds, operation).
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan = plan
        self.clock = clock
        self.down = False
        self.calls: list[tuple[float, str]] = []

    def count(self, operation: str) -> int:
        """How often ``operation`` was asked for."""
        return sum(1 for _, name in self.calls if name == operation)

    def _strikes(self, operation: str) -> Fault | None:
        self.calls.append((self.clock.now().boot, operation))
        if self.down:
            return LoseRequest()
        number = self.count(operation)
        if isinstance(self.plan, Mapping):
            return self.plan.get((operation, number))
        return self.plan(operation, number)

    async def _through(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._with(self._strikes(operation), call)

    async def _with(self, fault: Fault | None, call: Callable[[], Awaitable[T]]) -> T:
        match fault:
            case None | Stale():
                return await call()
            case LoseRequest():
                raise StoreUnavailable("injected: the request was lost")
            case LoseAnswer():
                await call()
                raise StoreUnavailable("injected: the answer was lost", ambiguous=True)
            case Hang(committed):
                if committed:
                    await call()
                await anyio.sleep_forever()
            case Delay(before, after):
                await self.clock.sleep(before)
                answer = await call()
                await self.clock.sleep(after)
                return answer
            case Raise(error):
                raise error
            case BackDoor(act):
                act()
                return await call()
            case _:
                assert_never(fault)
        raise StoreUnavailable("injected: the request hung")


class FaultyStore(Faulty):
    """A ``LeaseStore`` that misbehaves by plan around one that does not."""

    def __init__(self, store: LeaseStore, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        self.store = store
        self._last_read: Observation | None = None

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """See ``LeaseStore.acquire``."""
        return await self._through("acquire", lambda: self.store.acquire(me, ttl, nonce=nonce, over=over))

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """See ``LeaseStore.renew``."""
        return await self._through("renew", lambda: self.store.renew(grant, nonce=nonce))

    async def observe(self) -> Observation:
        """See ``LeaseStore.observe``."""
        fault = self._strikes("observe")
        if isinstance(fault, Stale) and self._last_read is not None:
            return self._last_read
        self._last_read = await self._with(fault, self.store.observe)
        return self._last_read

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """See ``LeaseStore.release``."""
        await self._through("release", lambda: self.store.release(grant, returned))


class FaultyStateStore(Faulty):
    """A ``StateStore`` that misbehaves by plan around one that does not; so do its leases, with this one's plan.

    ``Stale`` lets calls through.
    """

    def __init__(self, store: StateStore, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        self.store = store

    async def open(self) -> StoreInfo:
        """See ``StateStore.open``."""
        return await self._through("open", self.store.open)

    async def aclose(self) -> None:
        """See ``StateStore.aclose``; never struck."""
        await self.store.aclose()

    async def append(self, stream: str, data: bytes) -> str:
        """See ``StateStore.append``."""
        return await self._through("append", lambda: self.store.append(stream, data))

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        """See ``StateStore.read``."""
        return await self._through("read", lambda: self.store.read(stream, limit=limit, after=after))

    async def trim(self, stream: str, keep: int) -> None:
        """See ``StateStore.trim``."""
        await self._through("trim", lambda: self.store.trim(stream, keep))

    async def put_aside(self, stream: str, name: str) -> None:
        """See ``StateStore.put_aside``."""
        await self._through("put_aside", lambda: self.store.put_aside(stream, name))

    async def get(self, document: str) -> Document | None:
        """See ``StateStore.get``."""
        return await self._through("get", lambda: self.store.get(document))

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        """See ``StateStore.put``."""
        return await self._through("put", lambda: self.store.put(document, data, expect))

    async def delete(self, document: str, expect: str) -> bool:
        """See ``StateStore.delete``."""
        return await self._through("delete", lambda: self.store.delete(document, expect))

    async def streams(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.streams``."""
        return await self._through("streams", lambda: self.store.streams(prefix))

    async def documents(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.documents``."""
        return await self._through("documents", lambda: self.store.documents(prefix))

    def lease(self, name: str) -> LeaseStore:
        """See ``StateStore.lease``."""
        return _FaultyLease(self.store.lease(name), self)


class _FaultyLease(FaultyStore):
    """A lease of a ``FaultyStateStore``: it is down when the store is, and counts there."""

    def __init__(self, store: LeaseStore, owner: FaultyStateStore) -> None:
        super().__init__(store, owner.plan, owner.clock)
        self._owner = owner

    def _strikes(self, operation: str) -> Fault | None:
        return self._owner._strikes(operation)
