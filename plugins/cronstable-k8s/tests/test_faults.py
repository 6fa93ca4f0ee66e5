"""Every request of every call, struck by every fault of a network: what a store may say then, and what stands after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from cronstable.api import Fenced, Grant, Held, HttpResponse, Seen, StoreUnavailable, Taken, Vacant, Won
from cronstable.testing.clock import run_virtual
from cronstable.testing.http_faults import WITHOUT_AN_ANSWER, FaultyHttp, HttpFault, Twice

RECORD = b"record"
FAULTS = [*WITHOUT_AN_ANSWER, Twice()]
Call = Callable[[Any, Grant], Awaitable[object]]


async def renew(node: Any, grant: Grant) -> object:
    return await node.store.renew(grant, nonce="n2")


async def append(node: Any, grant: Grant) -> object:
    return await node.store.append(grant, 1, RECORD)


async def release(node: Any, grant: Grant) -> object:
    return await node.store.release(grant, ("run-1",))


async def mark(node: Any, grant: Grant) -> object:
    return await node.store.mark_reboot(grant, "set", "job", nonce="n2")


class Struck:
    """A transport whose request ``number`` from now on meets the fault."""

    def __init__(self, node: Any, fault: HttpFault, number: int) -> None:
        self.http = FaultyHttp(node.line, self._plan, node.host.clock)
        self._fault, self._number = fault, number
        node.store._leases.connect(self, "default")

    def _plan(self, method: str, url: str, number: int) -> HttpFault | None:
        return self._fault if len(self.http.requests) == self._number else None

    async def request(self, method: str, path: str, content: bytes = b"", *, timeout: float) -> HttpResponse:
        return await self.http.request(method, path, content=content, timeout=timeout)


async def said(what: Awaitable[object]) -> object:
    try:
        with anyio.fail_after(60):
            return await what
    except StoreUnavailable as error:
        return error


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_an_acquisition_that_is_struck_is_known_held_or_can_be_found_out(
    server: Any, node: Any, fault: HttpFault, number: int
) -> None:
    async def story() -> None:
        api = server()
        one = node(api, "a")
        struck = Struck(one, fault, number)
        answer = await said(one.store.acquire(one.me, 15.0, nonce="n1"))
        assert len(struck.http.requests) >= number
        found = await node(api, "b").store.observe()
        if isinstance(answer, Held):
            assert isinstance(found, Seen)
            assert (found.record.holder, found.record.nonce) == (one.me, "n1")
        elif isinstance(found, Seen):
            assert isinstance(answer, StoreUnavailable)
            assert answer.ambiguous, "it holds the lease, and was told that it cannot"
            assert found.record.nonce == "n1"

    run_virtual(story)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@pytest.mark.parametrize("call", [renew, append, release, mark])
def test_a_call_under_a_term_that_is_struck_says_nothing_that_is_not_so(
    server: Any, node: Any, call: Call, fault: HttpFault, number: int
) -> None:
    async def story() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        Struck(one, fault, number)
        answer = await said(call(one, grant))
        other = node(api, "b").store
        found = await other.observe()
        if call is renew:
            assert isinstance(found, Seen), "a renewal ended the term"
            assert found.record.fence == grant.fence
            assert not isinstance(answer, Seen | Vacant), "the term stands, and its holder was told that it is over"
            if isinstance(answer, Held):
                assert found.record.nonce == "n2"
        elif call is append:
            stands = await other.read(1)
            assert stands in (None, RECORD)
            assert answer != Fenced()
            if isinstance(answer, Won | Taken):
                assert stands == RECORD
            elif stands is not None:
                assert isinstance(answer, StoreUnavailable)
                assert answer.ambiguous
        elif call is mark:
            stands_there = "job" in await other.reboot_marks("set")
            assert answer is not False
            assert stands_there or answer is not True
            if stands_there and answer is not True:
                assert isinstance(answer, StoreUnavailable)
                assert answer.ambiguous
        elif isinstance(found, Vacant):
            assert found.returned == ("run-1",)

    run_virtual(story)
