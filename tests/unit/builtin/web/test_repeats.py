"""Requests that come again byte for byte: the same answer without the library, and none for what is no such request."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from cronstable.builtin.web import repeats
from cronstable.builtin.web.repeats import LONGEST, MOST, RENEWED, WRITE_TIMEOUT, Repeats, whole
from cronstable.testing.clock import run_virtual

pytestmark = pytest.mark.anyio

VERSION = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
KEPT = ("/version", "/status", "/jobs", "/cluster", "/metrics")


class Talk:
    """One connection that stays open, on which one thing is sent after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def take(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer."""
        with anyio.fail_after(20):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            return int(first.split()[1]), headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def __call__(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """The answer to ``data``."""
        self.writer.write(data)
        return await self.take()


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


@pytest.fixture
async def talks() -> AsyncIterator[Callable[[Any], Awaitable[Talk]]]:
    opened: list[Talk] = []

    async def talk(call: Any) -> Talk:
        opened.append(Talk(*await call.open()))
        return opened[-1]

    yield talk
    for one in opened:
        one.writer.close()
        with suppress(ConnectionError):  # it may have been the daemon that ended it
            await one.writer.wait_closed()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the library was given to read."""
    given: list[bytes] = []
    original = web.RequestHandler.data_received

    def spy(self: Any, data: bytes) -> None:
        given.append(data)
        original(self, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", spy)
    return given


@pytest.mark.parametrize("path", KEPT)
@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_a_request_that_comes_again_has_the_same_answer_without_being_read(
    serve: Any, host: Any, make_job: Any, talks: Any, read: list[bytes], path: str, coding: str
) -> None:
    host.add(*(make_job(f"job {n}") for n in range(50)))
    asked = get(path, f"Accept-Encoding: {coding}")
    async with serve(headers={"X-Site": "ours"}) as call:
        talk = await talks(call)
        first = await talk(asked)
        again = [await talk(asked) for _ in range(5)]
        other = await (await talks(call))(asked)
        assert read.count(asked) == 2, "the first on each connection"
    assert (first[0], first[1]["x-site"]) == (200, "ours")
    assert [*again, other] == [first] * 6


async def test_each_form_of_an_answer_is_that_of_its_own_request(
    serve: Any, host: Any, make_job: Any, talks: Any
) -> None:
    host.add(*(make_job(f"job {n}") for n in range(50)))
    async with serve() as call:
        talk = await talks(call)
        for _ in range(3):
            lines, listed = await talk(get("/status")), await talk(get("/status", "Accept: application/json"))
            plain, packed = await talk(get("/jobs")), await talk(get("/jobs", "Accept-Encoding: gzip"))
            worded = await talk(get("/jobs?words=true", "Accept-Encoding: gzip"))
            etag = plain[1]["etag"]
            unchanged = await talk(get("/jobs", f"If-None-Match: {etag}"))
            assert (lines[1]["content-type"], listed[1]["content-type"]) == (
                "text/plain; charset=utf-8",
                "application/json",
            )
            assert gzip.decompress(packed[2]) == plain[2]
            assert b'"schedule_words":' in gzip.decompress(worded[2])
            assert b'"schedule_words":' not in plain[2]
            assert (unchanged[0], unchanged[2]) == (304, b"")


async def test_what_changed_is_in_the_very_next_answer(serve: Any, host: Any, make_job: Any, talks: Any) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        talk = await talks(call)
        for path in ("/status", "/jobs", "/cluster"):
            old = [await talk(get(path)) for _ in range(3)][-1]
            host.add(make_job(f"one more {path}"))
            host.set(cluster_configured=True, cluster_error=f"broken {path}")
            new = await talk(get(path))
            assert path.encode() in new[2]
            assert path.encode() not in old[2]
            host.clock.advance(1)
            later = await talk(get(path))
            assert later[1]["date"] != new[1]["date"]


async def test_the_bytes_of_an_allowed_request_help_nobody_who_has_not_got_all_of_them(
    serve: Any, host: Any, make_job: Any, talks: Any
) -> None:
    host.add(make_job("a"))
    async with serve(authToken={"value": "sesame"}) as call:
        for path in KEPT:
            asked = get(path, "Authorization: Bearer sesame")
            talk = await talks(call)
            allowed = [(await talk(asked))[0] for _ in range(3)]
            refused = [(await talk(get(path, *line)))[0] for line in ([], ["Authorization: Bearer sesam"])] * 2
            again = await talk(asked)
            assert (allowed, refused, again[0]) == ([200] * 3, [401] * 4, 200)


@pytest.mark.parametrize(
    "before",
    [
        [b"POST /jobs/a/pause HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(VERSION)],
        [b"GET /whoami HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(VERSION)],
        [b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(VERSION)],
        [
            b"GET /whoami HTTP/1.1\r\nHost: x\r\n\r\nGET /whoami HTTP/1.1\r\nHost: x\r\n",
            b"Content-Length: %d\r\n\r\n" % len(VERSION),
        ],
    ],
)
async def test_a_body_that_looks_like_a_known_request_is_a_body(
    serve: Any, host: Any, make_job: Any, talks: Any, read: list[bytes], before: list[bytes]
) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        known = await talks(call)
        assert [(await known(VERSION))[2] for _ in range(2)] == [b"2.0.0"] * 2
        talk = await talks(call)
        assert (await talk(VERSION))[2] == b"2.0.0"
        for piece in before:
            seen = len(read)
            talk.writer.write(piece)
            with anyio.fail_after(20):
                while len(read) == seen:
                    await anyio.lowlevel.checkpoint()
        heads = b"".join(before).count(b"HTTP/1.1")
        answers = [await talk(VERSION)] + [await talk.take() for _ in range(heads - 1)]
        after = await talk(get("/whoami"))
    if b"/version" not in before[0]:
        assert b"2.0.0" not in [body for _, _, body in answers]
    assert after[2].startswith(b'{"authenticated":')


async def test_requests_sent_at_once_or_in_pieces_are_answered_in_their_order(
    serve: Any, host: Any, talks: Any, read: list[bytes]
) -> None:
    async with serve() as call:
        known = await talks(call)
        assert [(await known(VERSION))[2] for _ in range(2)] == [b"2.0.0"] * 2
        for pieces in ([get("/whoami") + VERSION, VERSION], [VERSION[:20], VERSION[20:] + get("/whoami"), VERSION]):
            talk = await talks(call)
            for piece in pieces:
                seen = len(read)
                talk.writer.write(piece)
                with anyio.fail_after(20):
                    while len(read) == seen:
                        await anyio.lowlevel.checkpoint()
            found = [(await talk.take())[2][:6] for _ in range(3)]
            assert sorted(found) == sorted([b"2.0.0", b"2.0.0", b'{"auth'])
            assert found[2] == b"2.0.0"


async def test_other_answers_on_a_connection_leave_it_quick(
    serve: Any, host: Any, talks: Any, read: list[bytes]
) -> None:
    async with serve() as call:
        talk = await talks(call)
        for path, status in (("/version", 200), ("/whoami", 200), ("/jobs/none", 404), ("/nowhere", 404)):
            assert (await talk(get(path)))[0] == status
        read.clear()
        assert (await talk(get("/version")))[0] == 200
        assert read == []


async def test_a_known_request_that_fails_is_answered_and_logged_as_any_other(
    serve: Any, host: Any, talks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve() as call:
        talk = await talks(call)
        assert [(await talk(get("/status")))[0] for _ in range(2)] == [200, 200]
        host.broken = True
        failed = await talk(get("/status"))
        host.broken = False
        mended = await talk(get("/status"))
    assert (failed[0], mended[0]) == (500, 200)
    assert b"a secret detail" not in failed[2]
    assert "'/status' failed" in caplog.text


async def test_a_connection_is_shown_to_the_library_now_and_then_or_it_would_end_it(
    serve: Any, host: Any, talks: Any, read: list[bytes]
) -> None:
    async with serve() as call:
        talk = await talks(call)
        for seconds, expected in ((0, 1), (RENEWED / 2, 1), (RENEWED / 2, 2), (RENEWED / 2, 2), (RENEWED, 3)):
            host.clock.advance(seconds)
            assert (await talk(VERSION))[2] == b"2.0.0"
            assert len(read) == expected


async def test_a_reader_of_a_known_answer_that_takes_nothing_is_dropped_at_the_deadline(
    serve: Any,
    host: Any,
    make_job: Any,
    talks: Any,
    read: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(repeats, "WRITE_TIMEOUT", 0.05)
    host.add(*(make_job(f"job {n}", command="x" * 9000) for n in range(1000)))
    async with serve() as call:
        talk = await talks(call)
        # Else it may grow while the first list is read, until it holds the second one whole.
        talk.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        assert (await talk(get("/version")))[0] == 200
        whole_list = await talk(get("/jobs"))
        read.clear()
        talk.writer.transport.pause_reading()
        talk.writer.write(get("/jobs"))
        with anyio.fail_after(10):
            while "does not take its answer" not in caplog.text:
                await anyio.lowlevel.checkpoint()
        assert read == []
        talk.writer.transport.resume_reading()
        with pytest.raises((ConnectionError, EOFError)):
            await talk.reader.readexactly(len(whole_list[2]))
        fine = await (await talks(call))(VERSION)
    assert fine[0] == 200


async def test_a_reader_that_takes_a_long_known_answer_in_time_keeps_its_connection(
    serve: Any, host: Any, make_job: Any, talks: Any
) -> None:
    host.add(*(make_job(f"job {n}", command="x" * 9000) for n in range(1000)))
    async with serve() as call:
        talk = await talks(call)
        answers = [await talk(get("/jobs")) for _ in range(4)]
        talk.writer.transport.pause_reading()
        talk.writer.write(get("/jobs"))
        await anyio.lowlevel.checkpoint()
        talk.writer.transport.resume_reading()
        assert [*answers, await talk.take()] == [answers[0]] * 5


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b"\r\n\r\n" + VERSION,
        VERSION * 2,
        VERSION[:-2],
        VERSION + b"\r\n",
        VERSION.replace(b"Host: x\r\n", b"Host: x\nX: y\r\n"),
        VERSION.replace(b"Host: x\r\n", b"Host: x\rX: y\r\n"),
        b"GET /version HTTP/1.1\r\nHost: x\n\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_only_one_head_from_end_to_end_is_a_whole_request(piece: bytes) -> None:
    assert whole(VERSION)
    assert not whole(piece)


class Library(asyncio.Protocol):
    """Only remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.made = self.lost = 0

    def data_received(self, data: bytes) -> None:
        self.given.append(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


class Pipe(asyncio.Transport):
    """Only remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Any] = []
        self.waiting = 0
        self.closing = False
        self.aborted = False
        self.tls: object = None
        self.fills: asyncio.Protocol | None = None

    def write(self, data: Any) -> None:
        self.written.append(data)
        if self.fills is not None:
            self.waiting = len(data)
            self.fills.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.tls


class Wire:
    """A connection between the two."""

    def __init__(self, service: Repeats) -> None:
        self.library, self.pipe, self.service = Library(), Pipe(), service
        self.connection = service.before(lambda: self.library)
        self.request: Any = SimpleNamespace(protocol=self.library)
        self.connection.connection_made(self.pipe)

    def first(self, piece: bytes, answer: Any = b"kept") -> None:
        """A request that is read by the library, and remembered."""
        self.connection.data_received(piece)
        self.service.learn(self.request, lambda: answer)
        self.service.settled(self.request)


class Timers:
    """Stands for the timers of a loop, on the clock that a test moves."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.waiting: list[Timer] = []
        self.made = 0

    def later(self, seconds: float, call: Callable[[], None]) -> Any:
        self.made += 1
        self.waiting.append(Timer(self, self._clock.boot + seconds, call))
        return self.waiting[-1]

    def advance(self, seconds: float) -> None:
        """Let time pass, as far as the next timer each."""
        until = self._clock.boot + seconds
        while due := [one for one in self.waiting if one.at <= until]:
            first = min(due, key=lambda one: one.at)
            self.waiting.remove(first)
            self._clock.advance(max(0, first.at - self._clock.boot))
            first.call()
        self._clock.advance(until - self._clock.boot)


class Timer:
    """One of them."""

    def __init__(self, timers: Timers, at: float, call: Callable[[], None]) -> None:
        self.timers, self.at, self.call = timers, at, call

    def cancel(self) -> None:
        self.timers.waiting.remove(self)


@pytest.fixture
def timers(host: Any) -> Timers:
    return Timers(host.clock)


@pytest.fixture
def service(host: Any, timers: Timers) -> Repeats:
    contexts: Any = SimpleNamespace(outdated=lambda transport: transport.get_extra_info("sslcontext") == "old")
    # Bytes stand for answers.
    return Repeats(host, contexts, lambda kept: kept, timers.later)  # type: ignore[arg-type,return-value]


@pytest.fixture
def wire(service: Repeats) -> Iterator[Wire]:
    made = Wire(service)
    yield made
    made.connection.connection_lost(None)
    assert service.connections == {}


def test_a_known_request_is_written_and_not_handed_on(wire: Wire) -> None:
    wire.first(VERSION)
    wire.connection.data_received(VERSION)
    assert (wire.library.given, wire.pipe.written) == ([VERSION], [b"kept"])


@pytest.mark.parametrize("hindrance", [{"waiting": 1}, {"closing": True}, {"tls": "old"}])
def test_what_hinders_a_quick_answer_is_the_librarys_to_see_to(wire: Wire, hindrance: dict[str, Any]) -> None:
    wire.first(VERSION)
    for name, value in hindrance.items():
        setattr(wire.pipe, name, value)
    wire.connection.data_received(VERSION)
    assert (wire.library.given, wire.pipe.written) == ([VERSION] * 2, [])


def test_an_answer_that_takes_longer_to_find_out_is_the_librarys(wire: Wire) -> None:
    wire.first(VERSION, None)
    wire.connection.data_received(VERSION)
    assert (wire.library.given, wire.pipe.written) == ([VERSION] * 2, [])


def test_nothing_is_answered_before_an_earlier_request_is(wire: Wire) -> None:
    wire.first(VERSION)
    wire.connection.data_received(get("/slow"))
    wire.connection.data_received(VERSION)
    wire.service.settled(wire.request)
    wire.connection.data_received(VERSION)
    assert (len(wire.library.given), wire.pipe.written) == (4, [])


def test_so_many_requests_are_remembered_and_none_that_is_very_long(wire: Wire, service: Repeats) -> None:
    for n in range(MOST + 1):
        wire.first(get(f"/{n}"))
    wire.first(get("/" + "x" * LONGEST))
    wire.first(get(f"/{MOST}"))
    assert list(service.known) == [get(f"/{n}") for n in range(1, MOST + 1)]


def test_what_is_asked_for_again_outlives_any_number_that_are_sent_once(wire: Wire, service: Repeats) -> None:
    wire.first(VERSION)
    for n in range(2 * MOST):
        wire.first(get("/version", f"X-Request-Id: {n}"))
        wire.connection.data_received(VERSION)
    assert wire.pipe.written == [b"kept"] * 2 * MOST
    assert len(service.known) == MOST


@pytest.mark.parametrize("more", [[], [b"G"], [b"G", b"E", VERSION], [get("/other")]])
def test_a_slow_reader_of_a_known_answer_has_one_deadline_whatever_it_sends(wire: Wire, more: list[bytes]) -> None:
    async def scene() -> list[bool]:
        wire.first(VERSION)
        wire.pipe.fills = wire.connection
        wire.connection.data_received(VERSION)
        for piece in more:
            wire.connection.data_received(piece)
        found = []
        for seconds in (WRITE_TIMEOUT - 1, 2):
            await asyncio.sleep(seconds)
            found.append(wire.pipe.aborted)
        return found

    assert run_virtual(scene) == [False, True]


@pytest.mark.parametrize("end", [lambda one: one.resume_writing(), lambda one: one.connection_lost(None)])
def test_the_deadline_of_a_known_answer_ends_with_what_it_is_for(wire: Wire, end: Callable[[Any], None]) -> None:
    async def scene() -> bool:
        wire.first(VERSION)
        wire.pipe.fills = wire.connection
        wire.connection.data_received(VERSION)
        wire.connection.data_received(b"G")
        end(wire.connection)
        await asyncio.sleep(2 * WRITE_TIMEOUT)
        return wire.pipe.aborted

    assert not run_virtual(scene)


@pytest.mark.parametrize(
    "pieces",
    [
        [(3, b""), (6.9, b"")],
        [(0, b"G"), (9.9, b"E")],
        [(0, VERSION[:-2]), (9.9, b"\r")],
        [(0, VERSION), (0, None), (600, b""), (0, b"G"), (5, b"E"), (4.9, b"T")],
    ],
)
def test_a_head_has_its_time_from_the_first_byte_on_and_then_the_connection_ends(
    wire: Wire, timers: Timers, pieces: list[tuple[float, bytes | None]]
) -> None:
    for seconds, piece in pieces:
        timers.advance(seconds)
        if piece is None:  # the library has the head of a request
            wire.service.begun(wire.request)
            wire.service.settled(wire.request)
        elif piece:
            wire.connection.data_received(piece)
    in_time = wire.pipe.aborted
    timers.advance(0.2)
    assert (in_time, wire.pipe.aborted) == (False, True)


def test_a_request_takes_its_time_to_be_answered_and_its_body_to_come(wire: Wire, timers: Timers) -> None:
    wire.connection.data_received(b"POST /jobs/a/start HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    wire.service.begun(wire.request)
    wire.connection.data_received(b"{")
    timers.advance(60)
    assert not wire.pipe.aborted


def test_one_timer_does_for_all_connections_and_none_runs_when_every_head_is_there(
    service: Repeats, timers: Timers
) -> None:
    wires = []
    for _ in range(20):
        wires.append(Wire(service))
        timers.advance(0.1)
        assert len(timers.waiting) == 1
    for one in wires[5:]:
        one.first(VERSION)
        service.begun(one.request)
    timers.advance(8.25)
    assert [one.pipe.aborted for one in wires[:5]] == [True, True, True, False, False]
    assert len(timers.waiting) == 1
    for one in wires:
        one.connection.connection_lost(None)
    assert timers.waiting == []


def test_who_only_asks_what_is_known_costs_no_timer(wire: Wire, timers: Timers) -> None:
    wire.first(VERSION)
    wire.service.begun(wire.request)
    made = timers.made
    for _ in range(100):
        wire.connection.data_received(VERSION)
    assert (timers.waiting, timers.made) == ([], made)


def test_after_the_end_nothing_is_answered_here_or_remembered(wire: Wire, service: Repeats) -> None:
    wire.first(VERSION)
    service.end()
    wire.connection.data_received(VERSION)
    service.learn(wire.request, lambda: b"kept")  # type: ignore[arg-type,return-value]  # as in ``service``
    service.settled(wire.request)
    wire.connection.data_received(VERSION)
    assert (wire.library.given, wire.pipe.written) == ([VERSION] * 3, [])


def test_who_comes_after_the_end_is_hung_up_on_and_no_matter_of_the_library(service: Repeats) -> None:
    Wire(service).first(VERSION)
    connected = dict(service.connections)
    service.end()
    late = Wire(service)
    late.connection.data_received(VERSION)
    assert late.connection.eof_received() is None
    late.connection.connection_lost(None)
    assert late.pipe.aborted
    assert (late.pipe.written, late.library.given, late.library.made, late.library.lost) == ([], [], 0, 0)
    assert service.connections == connected


async def test_who_has_a_tag_that_comes_back_is_told_so(serve: Any, host: Any, make_job: Any, talks: Any) -> None:
    host.add(make_job("a"))
    before = host.state
    async with serve() as call:
        talk = await talks(call)
        etag = (await talk(get("/jobs")))[1]["etag"]
        asked = get("/jobs", f"If-None-Match: {etag}")
        host.add(make_job("b"))
        changed = [(await talk(asked))[0] for _ in range(3)]
        host.state = before
        assert (await talk(get("/jobs")))[1]["etag"] == etag
        assert (changed, (await talk(asked))[0]) == ([200] * 3, 304)


async def test_a_list_that_outgrew_the_size_from_which_it_is_packed_is_packed(
    serve: Any, host: Any, make_job: Any, talks: Any
) -> None:
    asked = get("/jobs", "Accept-Encoding: gzip")
    async with serve() as call:
        talk = await talks(call)
        assert [(await talk(asked))[1].get("content-encoding") for _ in range(2)] == [None] * 2
        host.add(*(make_job(f"job {n}") for n in range(50)))
        plain = await talk(get("/jobs"))
        packed = [await talk(asked) for _ in range(3)]
    assert [headers.get("content-encoding") for _, headers, _ in packed] == ["gzip"] * 3
    assert gzip.decompress(packed[0][2]) == plain[2]
