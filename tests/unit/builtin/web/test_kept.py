"""Answers that are kept as bytes: to everybody as if they were made for him, and never those of another time."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import anyio
import pytest

pytestmark = pytest.mark.anyio

KEPT = ("/version", "/status", "/jobs", "/cluster", "/metrics")


async def talk(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """The next answer on a connection that stays open: its headers, the status line under the empty name, and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    assert len(headers) == len([line for line in head[1:] if line]), "no header is sent twice"
    return {"": head[0], **headers}, await reader.readexactly(int(headers.get("content-length", 0)))


async def ask(call: Any, path: str, *more: str, times: int = 1) -> list[tuple[dict[str, str], bytes]]:
    """The answers to the same request, sent ``times`` times at once over one connection that stays open."""
    lines = [f"GET {path} HTTP/1.1", "Host: x", *more, "", ""]
    reader, writer = await call.open()
    try:
        writer.write("\r\n".join(lines).encode() * times)
        return [await talk(reader) for _ in range(times)]
    finally:
        writer.close()


@pytest.mark.parametrize("path", KEPT)
async def test_a_kept_answer_is_that_of_a_connection_that_ends_after_it(
    serve: Any, host: Any, make_job: Any, path: str
) -> None:
    host.add(make_job("a"))
    headers = {"X-Site": "ours", "cache-control": "no-store", "Content-Type": "nonsense"}
    async with serve(headers=headers) as call:
        single = await call("GET", path)
        (kept, body), again = await ask(call, path, times=2)
    assert again == (kept, body)
    assert kept.pop("") == "HTTP/1.1 200 OK"
    assert single.headers.pop("connection") == "close"
    assert single.headers.keys() == kept.keys()
    assert single.body == body
    # The clock of the answer is the host's where it is kept, and the library's where it is not.
    assert (kept.pop("date"), single.headers.pop("date") != "") == ("Fri, 15 Jan 2027 08:00:00 GMT", True)
    assert single.headers == kept
    assert (kept["x-site"], kept["cache-control"], kept["server"]) == ("ours", "no-store", "cronstable")
    assert kept["content-type"] != "nonsense"


async def test_each_form_that_a_request_can_ask_for_is_kept_apart(serve: Any, host: Any, make_job: Any) -> None:
    host.add(*(make_job(f"job {n}") for n in range(50)))
    async with serve() as call:
        for path in ("/metrics", "/jobs"):
            (plain, text), (packed, bytes_) = [
                (await ask(call, path, f"Accept-Encoding: {coding}"))[0] for coding in ("identity", "gzip")
            ]
            assert "content-encoding" not in plain
            assert packed["content-encoding"] == "gzip"
            assert gzip.decompress(bytes_) == text
        (lines, _), (listed, _) = [
            (await ask(call, "/status", f"Accept: {kind}"))[0] for kind in ("*/*", "application/json")
        ]
        ((unchanged, nothing),) = await ask(call, "/jobs", f"If-None-Match: {plain['etag']}")
    assert (lines["content-type"], listed["content-type"]) == ("text/plain; charset=utf-8", "application/json")
    assert (unchanged[""], nothing) == ("HTTP/1.1 304 Not Modified", b"")


async def test_who_may_not_look_gets_nothing_that_was_kept_for_another(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve(authToken={"value": "sesame"}) as call:
        for path in KEPT:
            allowed = await ask(call, path, "Authorization: Bearer sesame")
            without = await call("GET", path)
            wrong = await call("GET", path, {"Authorization": "Bearer sesam"})
            assert allowed[0][0][""] == "HTTP/1.1 200 OK"
            assert (without.status, wrong.status) == (401, 401)
            assert without.json == wrong.json == {"error": "a valid token is needed"}


async def test_a_kept_answer_carries_the_time_at_which_it_is_sent(serve: Any, host: Any) -> None:
    async with serve() as call:
        dates = []
        for _ in range(3):
            dates.append((await ask(call, "/version"))[0][0]["date"][-12:])
            host.clock.advance(1)
    assert dates == ["08:00:00 GMT", "08:00:01 GMT", "08:00:02 GMT"]


async def test_one_kept_answer_is_sent_whole_to_many_who_read_at_their_own_pace(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(*(make_job(f"job {n}", command="x" * 9000) for n in range(500)))
    async with serve() as call:
        slow = [await call.open() for _ in range(4)]
        for _, writer in slow:
            writer.transport.pause_reading()
            writer.write(b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
            await writer.drain()
        ((_, whole),) = await ask(call, "/jobs")
        taken: list[bytes] = []
        for reader, writer in slow:
            writer.transport.resume_reading()
            taken += [(await talk(reader))[1] for _ in range(2)]
            writer.close()
    assert len(whole) > 4_000_000
    assert taken == [whole] * 8


async def test_a_request_with_a_body_and_an_old_one_are_answered_as_ever(serve: Any) -> None:
    async with serve() as call:
        reader, writer = await call.open()
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi" + b"HEAD /version HTTP/1.1\r\n")
        writer.write(b"Host: x\r\n\r\nGET /version HTTP/1.0\r\n\r\n")
        with anyio.fail_after(20):
            heads = (await reader.read()).split(b"\r\n\r\n")
        writer.close()
    assert [head.rpartition(b"HTTP/1.")[2][:6] for head in heads[:3]] == [b"1 200 ", b"1 200 ", b"0 200 "]
    assert [heads[1].startswith(b"2.0.0"), heads[2].startswith(b"HTTP/1.0"), heads[3]] == [True, True, b"2.0.0"]
