"""The claim log as the host uses it: bound to the term of this process, with a deadline for each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import anyio

from cronstable.core.clock import Seconds
from cronstable.core.store import Appended, Fenced, Grant, Span, StoreUnavailable, Unknown
from cronstable.plugin.protocols import ClaimLog, HeldTerm, Host

T = TypeVar("T")


class TermKeeper(Protocol):
    """Who holds the lease: the ``LeaseBackend``."""

    @property
    def grant(self) -> Grant | None: ...
    @property
    def term(self) -> HeldTerm | None: ...
    @property
    def store_free(self) -> anyio.Lock: ...
    async def stand_down(self, seconds: Seconds) -> None: ...


class ClaimDoor:
    """Implements ``Claims`` over the store of a lease. One writer at a time: it shares the lease's lock.

    ``op_timeout``: seconds that one call may take, beside the wait for the store to be free.
    """

    def __init__(
        self,
        log: ClaimLog,
        keeper: TermKeeper,
        host: Host,
        *,
        op_timeout: Seconds,
        ttl: Seconds,
        worst_handover: Seconds,
    ) -> None:
        self._claim_log = log
        self._keeper = keeper
        self._host = host
        self._op_timeout = op_timeout
        self._ttl = ttl
        self._worst_handover = worst_handover
        self._bugs: set[str] = set()
        self.returned: tuple[str, ...] = ()

    @property
    def worst_handover(self) -> Seconds:
        """See ``Claims.worst_handover``."""
        return self._worst_handover

    @property
    def ttl(self) -> Seconds:
        """See ``Claims.ttl``."""
        return self._ttl

    @property
    def term(self) -> HeldTerm | None:
        """See ``Claims.term``."""
        return self._keeper.term

    async def append(self, number: int, record: bytes) -> Appended:
        """See ``Claims.append``."""
        async with self._keeper.store_free:
            grant = self._keeper.grant
            if grant is None:
                return Fenced()
            answer = await self._ask(lambda: self._claim_log.append(grant, number, record))
            return Unknown() if answer is None else answer[0]

    async def read(self, number: int) -> tuple[bytes | None] | None:
        """See ``Claims.read``."""
        return await self._ask(lambda: self._claim_log.read(number))

    async def span(self) -> Span | None:
        """See ``Claims.span``."""
        answer = await self._ask(self._claim_log.span)
        return None if answer is None else answer[0]

    async def trim(self, first: int) -> None:
        """See ``Claims.trim``."""
        async with self._keeper.store_free:
            grant = self._keeper.grant
            if grant is not None:
                await self._ask(lambda: self._claim_log.trim(grant, first))

    async def put_entry(self, entry: bytes) -> None:
        """See ``Claims.put_entry``."""
        await self._ask(lambda: self._claim_log.put_entry(entry))

    async def entries(self) -> Sequence[bytes] | None:
        """See ``Claims.entries``."""
        answer = await self._ask(self._claim_log.entries)
        return None if answer is None else answer[0]

    def give_back(self, run_ids: Sequence[str]) -> None:
        """See ``Claims.give_back``."""
        self.returned = tuple(run_ids)

    async def stand_down(self, seconds: Seconds) -> None:
        """See ``Claims.stand_down``."""
        await self._keeper.stand_down(seconds)

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> tuple[T] | None:
        """The answer in a tuple, None when there is none in time."""
        with anyio.move_on_after(self._op_timeout):
            try:
                return (await call(),)
            except StoreUnavailable as error:
                self._host.log.debug("cluster: the claim log did not answer: %s", error)
            except Exception as error:
                # A store's bug must cost a claim, never the daemon.
                sort = f"{type(error).__name__}: {error}"[:200]
                if sort not in self._bugs and len(self._bugs) < 20:
                    self._bugs.add(sort)
                    self._host.log.error("cluster: a bug in the claim log of the store", exc_info=error)
        return None
