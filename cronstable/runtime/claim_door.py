"""The claim log as the host uses it: bound to the term of this process, with a deadline for each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import anyio

from cronstable.core.clock import Seconds
from cronstable.core.store import Appended, Fenced, Grant, HeldTerm, Span, StoreUnavailable, Unknown
from cronstable.plugin.protocols import ClaimLog, Host

T = TypeVar("T")

QUIET: Seconds = 60.0
"""How often it is said that the log does not answer although the lease does."""


class TermKeeper(Protocol):
    """Who holds the lease: the ``LeaseBackend``."""

    @property
    def grant(self) -> Grant | None: ...
    @property
    def term(self) -> HeldTerm | None: ...
    @property
    def leads(self) -> bool: ...
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
        self._silent: dict[str, float] = {}
        self._said = -QUIET
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
            answer = await self._ask("an append", lambda: self._claim_log.append(grant, number, record))
            return Unknown() if answer is None else answer[0]

    async def read(self, number: int) -> tuple[bytes | None] | None:
        """See ``Claims.read``."""
        return await self._ask("a read", lambda: self._claim_log.read(number))

    async def span(self) -> Span | None:
        """See ``Claims.span``."""
        answer = await self._ask("a look", self._claim_log.span)
        return None if answer is None else answer[0]

    async def trim(self, first: int) -> None:
        """See ``Claims.trim``."""
        async with self._keeper.store_free:
            grant = self._keeper.grant
            if grant is not None:
                await self._ask("a trim", lambda: self._claim_log.trim(grant, first))

    async def put_entry(self, entry: bytes) -> None:
        """See ``Claims.put_entry``."""
        await self._ask("unfinished runs", lambda: self._claim_log.put_entry(entry))

    async def entries(self) -> Sequence[bytes] | None:
        """See ``Claims.entries``."""
        answer = await self._ask("unfinished runs elsewhere", self._claim_log.entries)
        return None if answer is None else answer[0]

    def give_back(self, run_ids: Sequence[str]) -> None:
        """See ``Claims.give_back``."""
        self.returned = tuple(run_ids)

    async def stand_down(self, seconds: Seconds) -> None:
        """See ``Claims.stand_down``."""
        await self._keeper.stand_down(seconds)

    async def _ask(self, what: str, call: Callable[[], Awaitable[T]]) -> tuple[T] | None:
        """The answer in a tuple, None when there is none in time. ``what``: for an operator, constant for each call."""
        why = f"no answer within {self._op_timeout:g} s"
        with anyio.move_on_after(self._op_timeout):
            try:
                answer = (await call(),)
            except StoreUnavailable as error:
                why = str(error)
            except Exception as error:
                # A store's bug must cost a claim, never the daemon.
                why = f"{type(error).__name__}: {error}"[:200]
                if why not in self._bugs and len(self._bugs) < 20:
                    self._bugs.add(why)
                    self._host.log.error("cluster: a bug in the claim log of the store", exc_info=error)
            else:
                self._silent.pop(what, None)
                return answer
        self._complain(what, why)
        return None

    def _complain(self, what: str, why: str) -> None:
        """Of a store that is away the lease tells. One that renews the lease and nothing else would stop all unseen."""
        self._host.log.debug("cluster: the claim log did not answer (%s): %s", what, why)
        if not self._keeper.leads:
            self._silent.clear()
            return
        boot = self._host.clock.now().boot
        since = self._silent.setdefault(what, boot)
        if boot >= since + self._ttl and boot >= self._said + QUIET:
            self._said = boot
            self._host.log.warning(
                "cluster: this node leads, but its claim log has not answered (%s) for %.0f s: %s",
                what,
                boot - since,
                why,
            )
