"""Leases of the state store for small things: a lock for a moment, a slot while runs live.

The leader's lease has a machine of its own (``core.lease``). What is here asks one question at a time, within a
deadline, and remembers the nonces that it wrote and how long another's record has stood still.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, TypeVar

import anyio

from cronstable.core.clock import Clock, Seconds
from cronstable.core.lease import bounded_ttl, dead_at
from cronstable.core.lease_values import Standing
from cronstable.core.slots import SHORTEST_TTL
from cronstable.core.store import Grant, Held, Holder, Observation, Seen, StoreUnavailable, Vacant
from cronstable.core.values import dataclass
from cronstable.plugin.protocols import Ids, LeaseStore

DEADLINE: Final[Seconds] = 10.0
"""For any one answer (reference 4)."""
REMEMBERED: Final = 16
"""Nonces of one lease: more than one lost answer after another is nothing to recover from."""

Answer = TypeVar("Answer")
FindLease = Callable[[str], LeaseStore | None]
"""The lease of that name; None while the store is not open."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is ours until ``until`` (boot seconds)."""

    name: str
    grant: Grant
    until: float


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process has it, or seems to."""


class StoreLeases:
    """Asks leases of the state store in the name of this process. None of its methods raises."""

    def __init__(
        self, *, find: FindLease, clock: Clock, ids: Ids, log: logging.Logger, node: Callable[[], str]
    ) -> None:
        self._find = find
        self._clock = clock
        self._ids = ids
        self._log = log
        self._node = node
        self._token = ids.token(8)
        self._wrote: dict[str, tuple[str, ...]] = {}
        self._standing: dict[str, Standing] = {}

    # -- one question each --------------------------------------------------------------------------------------------

    async def acquire(self, name: str, ttl: Seconds, over: Seen | None = None) -> Observation | None:
        """Ask for the lease; None when no answer came, and then it may be ours all the same."""
        me = Holder(self._node(), self._token)
        nonce = self._nonce(name)
        return await self._ask(name, lambda lease: lease.acquire(me, ttl, nonce=nonce, over=over))

    async def renew(self, name: str, grant: Grant) -> Observation | None:
        """Extend what is held; None as above."""
        known = self.known(name, grant)
        nonce = self._nonce(name)
        return await self._ask(name, lambda lease: lease.renew(known, nonce=nonce))

    def known(self, name: str, grant: Grant) -> Grant:
        """``grant`` with the nonces of all writes whose fate is not known."""
        return replace(grant, tried=self._wrote.get(name, ()))

    async def release(self, name: str, grant: Grant) -> None:
        """Let go; best effort."""
        known = self.known(name, grant)
        await self._ask(name, lambda lease: lease.release(known, ()))

    async def release_own(self, name: str) -> None:
        """Let go of what this process may hold without knowing; best effort."""
        found = await self._ask(name, lambda lease: lease.observe())
        if isinstance(found, Seen) and found.record.nonce in self.wrote(name):
            await self.release(name, _grant_of(found))

    def wrote(self, name: str) -> AbstractSet[str]:
        """The nonces by which a record is known to be this process's own."""
        return frozenset(self._wrote.get(name, ()))

    # -- a lock -------------------------------------------------------------------------------------------------------

    async def lock(self, name: str, ttl: Seconds) -> Lock | Busy | None:
        """Take the lease, also out of dead hands; None when nobody knows whose it is."""
        over: Seen | None = None
        while True:
            sent = self._clock.now().boot
            found = await self.acquire(name, ttl, over)
            if isinstance(found, Seen) and found.record.nonce in self.wrote(name):
                sent = self._clock.now().boot
                found = await self.renew(name, _grant_of(found))
            match found:
                case Held(grant):
                    self._standing.pop(name, None)
                    return Lock(name, grant, sent + min(ttl, grant.ttl))
                case Seen() if over is None and self._is_dead(name, found, ttl):
                    over = found
                case Seen() | Vacant():
                    return Busy()
                case _:
                    return None

    async def unlock(self, lock: Lock) -> None:
        """Give a lock back."""
        await self.release(lock.name, lock.grant)
        self._wrote.pop(lock.name, None)

    def _is_dead(self, name: str, found: Seen, ttl: Seconds) -> bool:
        now = self._clock.now()
        standing = self._standing.get(name)
        if standing is None or standing.record != found.record:
            standing = self._standing[name] = Standing(found.record, now.boot)
        return now.boot >= dead_at(standing, bounded_ttl(found.record, ttl, SHORTEST_TTL), now)

    # -- asking -------------------------------------------------------------------------------------------------------

    def _nonce(self, name: str) -> str:
        nonce = self._ids.token(8)
        self._wrote[name] = (*self._wrote.get(name, ()), nonce)[-REMEMBERED:]
        return nonce

    async def _ask(self, name: str, call: Callable[[LeaseStore], Awaitable[Answer]]) -> Answer | None:
        lease = self._find(name)
        if lease is None:
            return None
        with anyio.move_on_after(DEADLINE):
            try:
                return await call(lease)
            except StoreUnavailable as error:
                self._log.debug("state: the lease %s did not answer: %s", name, error)
            except Exception:  # noqa: BLE001 - a plugin's store may cost a start, never the daemon
                self._log.exception("state: a bug in the store met by the lease %s", name)
        return None


def _grant_of(found: Seen) -> Grant:
    record = found.record
    return Grant(record.holder, record.fence, record.nonce, record.ttl, record.expires_at)
