"""Each injected fault of a network does what it is called, to the server and to the caller."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest

from cronstable.core.clock import Seconds
from cronstable.plugin.protocols import HttpResponse
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.http_faults import (
    STATUSES,
    WITHOUT_AN_ANSWER,
    Cut,
    FaultyHttp,
    HttpFault,
    HttpPlan,
    Late,
    Page,
    Refused,
    Reset,
    Silence,
    Status,
    Twice,
)


class Server:
    """One that counts what it carried out."""

    def __init__(self) -> None:
        self.done = 0

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: Seconds,
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        self.done += 1
        return HttpResponse(200, {}, b"answer %d" % self.done)


def ask(plan: HttpPlan, times: int = 1) -> tuple[list[HttpResponse | Exception], int, float]:
    """What the caller hears, how often the server acted, and how long it took."""

    async def main() -> tuple[list[HttpResponse | Exception], int, float]:
        clock, server = VirtualClock.of_loop(), Server()
        http = FaultyHttp(server, plan, clock)
        start, heard = clock.now().boot, list[HttpResponse | Exception]()
        for _ in range(times):
            try:
                heard.append(await http.request("POST", "https://store.example/v3/kv", timeout=5.0))
            except OSError as error:
                heard.append(error)
        assert len(http.requests) == times
        return heard, server.done, clock.now().boot - start

    return run_virtual(main)


def test_without_a_fault_it_passes_on() -> None:
    heard, done, _ = ask({("GET", 1): Refused(), ("POST", 2): Refused()}, times=2)
    assert (heard[0], done) == (HttpResponse(200, {}, b"answer 1"), 1)
    assert isinstance(heard[1], ConnectionRefusedError)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("committed", [True, False])
def test_a_status_is_answered_in_the_servers_place(status: int, committed: bool) -> None:
    heard, done, _ = ask({("POST", 1): Status(status, b"no", {"retry-after": "3"}, committed)})
    assert heard == [HttpResponse(status, {"retry-after": "3"}, b"no")]
    assert done == committed


@pytest.mark.parametrize(
    ("fault", "error", "done", "took"),
    [
        (Refused(), ConnectionRefusedError, 0, 0),
        (Reset(), ConnectionResetError, 0, 0),
        (Reset(committed=True), ConnectionResetError, 1, 0),
        (Silence(), TimeoutError, 0, 5),
        (Silence(committed=True), TimeoutError, 1, 5),
        (Late(before=9.0), TimeoutError, 0, 5),
        (Late(before=2.0, after=9.0), TimeoutError, 1, 5),
    ],
)
def test_a_lost_request_or_answer_is_the_error_that_a_network_makes(
    fault: HttpFault, error: type[Exception], done: int, took: float
) -> None:
    heard, acted, seconds = ask({("POST", 1): fault})
    assert [type(one) for one in heard] == [error]
    assert acted == done
    assert seconds == pytest.approx(took)


def test_a_late_answer_within_the_timeout_is_an_answer() -> None:
    heard, _, seconds = ask({("POST", 1): Late(before=1.0, after=2.0)})
    assert heard == [HttpResponse(200, {}, b"answer 1")]
    assert seconds == pytest.approx(3)


def test_answers_can_be_repeated_cut_and_replaced() -> None:
    plan: HttpPlan = {("POST", 1): Twice(), ("POST", 2): Cut(after=3), ("POST", 3): Page()}
    heard, done, _ = ask(plan, times=3)
    assert [one.content[:6] for one in heard if isinstance(one, HttpResponse)] == [b"answer", b"ans", b"<html>"]
    assert done == 3


def test_a_plan_can_strike_by_the_address() -> None:
    def plan(method: str, url: str, number: int) -> HttpFault | None:
        return Refused() if url.endswith("/kv") and number > 1 else None

    heard, done, _ = ask(plan, times=2)
    assert isinstance(heard[1], ConnectionRefusedError)
    assert done == 1


def test_the_list_of_what_brings_no_answer_has_each_sort_once() -> None:
    kinds: list[Callable[..., object]] = [type(fault) for fault in WITHOUT_AN_ANSWER]
    assert {Status, Refused, Reset, Silence, Cut, Page} == set(kinds)
    assert len(set(WITHOUT_AN_ANSWER[8:])) == len(WITHOUT_AN_ANSWER) - 8
