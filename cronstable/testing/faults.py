"""Fault injection around any lease store: lost requests and answers, delays, stale reads, back doors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, assert_never

import anyio

from cronstable.core.clock import Clock, Seconds
from cronstable.core.store import Grant, Holder, Observation, Seen, StoreUnavailable
from cronstable.plugin.protocols import LeaseStore

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
"""Which fault strikes the n-th ``acquire``, ``renew``, ``observe`` or ``release``, each counted from 1."""


class FaultyStore:
    """A ``LeaseStore`` that misbehaves by plan around one that does not.

    ``down`` True: every call fails at once, whatever the plan says. ``calls`` lists (boot seconds, operation).
    """

    def __init__(self, store: LeaseStore, plan: Plan, clock: Clock) -> None:
        self.store = store
        self.plan = plan
        self.clock = clock
        self.down = False
        self.calls: list[tuple[float, str]] = []
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
