"""The exchange over real TLS on the loopback: who is let in, what is refused, and what a hostile side can cost."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.lowlevel
import pytest
import trustme
from cronstable_gossip import lines, listener
from cronstable_gossip.backend import GossipElection
from cronstable_gossip.certificates import expiries, load
from cronstable_gossip.decisions import MOST_DECISIONS
from cronstable_gossip.lines import HungUp
from cronstable_gossip.listener import MOST_HANDSHAKES
from cronstable_gossip.network import Bounds, TlsNetwork
from cronstable_gossip.payload import MOST_BYTES, BadReport
from cronstable_gossip.settings import Address, Settings, TlsFiles
from cronstable_gossip.wire import Caller, NotTold, Reply, Untrusted

from cronstable.api import ElectionContext, Instant, Rehearsable
from cronstable.testing.host import FakeHost

pytestmark = pytest.mark.anyio
TIMEOUT = 10.0
BODY = json.dumps({"node_name": "b", "pad": "x" * 2000}).encode()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class RealClock:
    """Enough of a clock for transports, which only read it."""

    def now(self) -> Instant:
        return Instant(wall=1_800_000_000.0, boot=1000.0)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


@dataclass
class Answering:
    """A responder that remembers."""

    reply: Reply = field(default_factory=lambda: Reply(200, '"t"', BODY, '{"cpu_count":2}'))
    callers: list[Caller] = field(default_factory=list)
    pushed: list[bytes] = field(default_factory=list)
    hangups: list[int] = field(default_factory=list)
    told: list[tuple[str, int]] = field(default_factory=list)

    def peer(self, caller: Caller) -> Reply:
        self.callers.append(caller)
        return Reply(304, '"t"', None, self.reply.stats) if caller.etag == self.reply.etag else self.reply

    def take(self, body: bytes) -> bool:
        self.pushed.append(body)
        return body.startswith(b"{")

    def decisions(self, job: str, limit: int) -> Callable[[], bytes]:
        self.told.append((job, limit))
        return lambda: BODY

    def hung_up(self, index: int) -> None:
        self.hangups.append(index)


class Pki:
    """Certificates in files, and ports to show them at."""

    def __init__(self, directory: Path, free_ports: Callable[[int], list[int]]) -> None:
        self.directory = directory
        self._free_ports = free_ports
        self.ca = trustme.CA()

    def port(self) -> int:
        """One that nobody else has."""
        return self._free_ports(1)[0]

    def files(
        self, name: str, *identities: str, ca: trustme.CA | None = None, trust: trustme.CA | None = None
    ) -> TlsFiles:
        at = self.directory / name
        at.mkdir(exist_ok=True)
        leaf = (ca or self.ca).issue_cert(*(identities or ("localhost", "127.0.0.1")))
        self.ca.cert_pem.write_to_path(str(at / "ca.pem"))
        (at / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(at / "key.pem"))
        return TlsFiles(str(at / "ca.pem"), str(at / "cert.pem"), str(at / "key.pem"))


@pytest.fixture
def pki(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Pki:
    return Pki(tmp_path, free_ports)


def network(
    port: int, tls: TlsFiles, *peers: Address, host: FakeHost | None = None, timeout: float = TIMEOUT
) -> TlsNetwork:
    return TlsNetwork(
        host or FakeHost(RealClock(), "n"), Address("127.0.0.1", port), peers, tls, "instance1", Bounds(timeout, 60.0)
    )


@asynccontextmanager
async def pair(
    pki: Pki, server: TlsFiles, client: TlsFiles, *, name: str = "127.0.0.1", timeout: float = TIMEOUT
) -> AsyncIterator[tuple[TlsNetwork, Answering, TlsNetwork]]:
    """A node that answers, and one that asks it."""
    port = pki.port()
    answering = Answering()
    answers = network(port, server, timeout=timeout)
    asks = network(pki.port(), client, Address(name, port), timeout=timeout)
    await answers.open(answering)
    await asks.open(Answering())
    try:
        yield answers, answering, asks
    finally:
        await asks.close()
        await answers.close()


async def test_a_question_is_answered_zipped_and_repeated_with_304(pki: Pki) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (_, answering, asks):
        reply = await asks.ask(0, None, TIMEOUT)
        assert reply == Reply(200, '"t"', BODY, '{"cpu_count":2}')
        assert await asks.ask(0, '"t"', TIMEOUT) == Reply(304, '"t"', None, '{"cpu_count":2}')
        assert answering.callers == [Caller(None, "instance1"), Caller('"t"', "instance1")]


async def test_a_push_arrives_and_a_malformed_one_is_refused(pki: Pki) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (_, answering, asks):
        await asks.push(0, b"{}", TIMEOUT)
        with pytest.raises(OSError, match="answered 400"):
            await asks.push(0, b"no", TIMEOUT)
        with pytest.raises(OSError, match="answered 413"):
            await asks.push(0, b"{" * 300_000, TIMEOUT)
        assert answering.pushed == [b"{}", b"no"]


async def test_a_server_of_another_ca_or_another_name_is_untrusted(pki: Pki) -> None:
    other = trustme.CA()
    async with pair(pki, pki.files("a", ca=other), pki.files("b")) as (_, answering, asks):
        with pytest.raises(Untrusted):
            await asks.ask(0, None, TIMEOUT)
    async with pair(pki, pki.files("a", "cron-c.internal"), pki.files("b")) as (_, answering, asks):
        with pytest.raises(Untrusted):
            await asks.ask(0, None, TIMEOUT)
    assert answering.callers == []


async def test_a_client_of_another_ca_is_not_answered_and_told_what_to_look_at(pki: Pki) -> None:
    other = trustme.CA()
    async with pair(pki, pki.files("a"), pki.files("b", ca=other)) as (_, answering, asks):
        with pytest.raises(OSError, match="trust"):
            await asks.ask(0, None, TIMEOUT)
        assert answering.callers == []


async def test_a_client_without_a_certificate_is_not_answered(pki: Pki) -> None:
    tls = pki.files("a")
    port = pki.port()
    answering = Answering()
    answers = network(port, tls)
    await answers.open(answering)
    context = ssl.create_default_context(cafile=tls.ca)
    try:
        with anyio.fail_after(TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(http("GET /peer HTTP/1.1\nHost: x"))
            with suppress(ssl.SSLError, ConnectionError):
                assert await reader.read(100) == b""
            writer.close()
    finally:
        await answers.close()
    assert answering.callers == []


async def test_nobody_listening_is_refused_and_that_is_told_apart(pki: Pki) -> None:
    asks = network(pki.port(), pki.files("b"), Address("127.0.0.1", pki.port()))
    await asks.open(Answering())
    try:
        with pytest.raises(ConnectionRefusedError):
            await asks.ask(0, None, TIMEOUT)
    finally:
        await asks.close()


async def test_a_listener_that_closes_answers_nobody_any_more(pki: Pki) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (answers, _, asks):
        await asks.ask(0, None, TIMEOUT)
        await answers.close()
        with pytest.raises(ConnectionRefusedError):
            await asks.ask(0, None, TIMEOUT)


async def stranger(port: int, said: bytes) -> None:
    """Somebody without a certificate, until it is hung up on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(said)
        writer.write_eof()
        await reader.read()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["a probe", "no TLS"])
async def test_handshakes_that_fail_take_no_place_from_those_that_do_not(pki: Pki, said: bytes) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (answers, answering, asks):
        with anyio.fail_after(TIMEOUT):
            for _ in range(300):
                await stranger(answers._listen.port, said)
        assert (await asks.ask(0, None, TIMEOUT)).status == 200
        assert len(answering.callers) == 1


async def test_strangers_who_connect_and_say_nothing_keep_nobody_out(pki: Pki) -> None:
    """They fill all places of those who have yet to prove who they are, and the one that waited longest gives way."""
    async with pair(pki, pki.files("a"), pki.files("b")) as (answers, _, asks):
        with anyio.fail_after(TIMEOUT):
            silent = [await asyncio.open_connection("127.0.0.1", answers._listen.port) for _ in range(300)]
            for _ in range(3):
                assert (await asks.ask(0, None, TIMEOUT)).status == 200
            for reader, _ in silent[: 300 - MOST_HANDSHAKES]:
                with suppress(ConnectionError):
                    assert await reader.read() == b"", "it was hung up on"
            assert len(_arrivals(answers)) <= MOST_HANDSHAKES
            await answers.close()
            for reader, writer in silent:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()


def _arrivals(answers: TlsNetwork) -> Collection[object]:
    assert answers._listener is not None
    assert answers._listener._serving is not None
    return answers._listener._serving._arrivals


async def test_a_handshake_that_does_not_go_on_is_given_up(pki: Pki) -> None:
    port = pki.port()
    answers = network(port, pki.files("a"), timeout=0.2)
    await answers.open(Answering())
    try:
        with anyio.fail_after(TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            while _arrivals(answers):
                await anyio.lowlevel.checkpoint()
            writer.close()
    finally:
        await answers.close()


async def test_more_peers_than_there_are_places_are_hung_up_on_until_one_is_free(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 2)
    question = http("GET /peer HTTP/1.1\nHost: x")
    async with pair(pki, pki.files("a"), pki.files("b")) as (answers, answering, asks):
        context = load(pki.files("c")).client
        with anyio.fail_after(TIMEOUT):
            kept = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", answers._listen.port, ssl=context, server_hostname="localhost"
                )
                writer.write(question)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                kept.append(writer)
            with pytest.raises(OSError, match="disconnected without an answer"):
                await asks.ask(0, None, TIMEOUT)
            kept[0].transport.abort()
            status = 0
            while not status:
                # The abort arrives when it arrives.
                with suppress(HungUp):
                    status = (await asks.ask(0, None, TIMEOUT)).status
            kept[1].transport.abort()
        assert status == 200
        assert len(answering.callers) == 3


async def test_whoever_was_shaking_hands_when_it_closed_is_refused_and_let_go(pki: Pki) -> None:
    """It would go on asking a node that has ended, which its successor in the same process does not know of."""
    port = pki.port()
    answering = Answering()
    answers = network(port, pki.files("a"))
    await answers.open(answering)
    with anyio.fail_after(TIMEOUT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not writer.get_extra_info("peername"):
            await anyio.lowlevel.checkpoint()
        # Accepted, since the listener's task runs before what it is told next.
        await anyio.wait_all_tasks_blocked()
        await answers.close()
        said = b""
        with suppress(OSError):
            await writer.start_tls(load(pki.files("b")).client, server_hostname="localhost")
            writer.write(http("GET /peer HTTP/1.1\nHost: x"))
            said = await reader.read()
        writer.close()
    assert answering.callers == []
    assert said == b"" or (said.startswith(b"HTTP/1.1 503") and b"Connection: close" in said)


async def test_a_port_that_is_taken_is_a_failed_start_that_names_the_address(pki: Pki) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cluster.listen 127.0.0.1:{port}"):
            await network(port, pki.files("a")).open(Answering())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/jobs", 404), ("POST", "/peer", 405), ("POST", "/decisions", 405)],
)
async def test_there_are_three_routes_and_no_other(pki: Pki, method: str, path: str, status: int) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (_, _, asks):
        answer = await asks._exchange(method, 0, path, {}, timeout=TIMEOUT)
        assert (answer.head.status, answer.body) == (status, b"")


async def test_decisions_are_asked_for_by_job_and_come_packed(pki: Pki) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (_, answering, asks):
        for job in ("backup", "a/b 50%&limit=1 é\n"):
            assert await asks.decisions(0, job, 20, TIMEOUT) == BODY
        assert await asks.decisions(0, "backup", 9_999, TIMEOUT) == BODY
        assert answering.told == [("backup", 20), ("a/b 50%&limit=1 é\n", 20), ("backup", MOST_DECISIONS)]


@pytest.mark.parametrize(
    "query",
    [
        *("", "?job=a", "?limit=1", "?job=&limit=1", "?job=a&limit=-1", "?job=a&limit=%D9%A3", "?job=a&limit=10000"),
        f"?job={'x' * 513}&limit=1",
    ],
)
async def test_a_question_for_decisions_that_is_odd_is_refused(pki: Pki, query: str) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (_, answering, asks):
        answer = await asks._exchange("GET", 0, f"/decisions{query}", {}, timeout=TIMEOUT, aside=True)
        assert (answer.head.status, answer.body, answering.told) == (400, b"", [])


async def test_decisions_are_told_to_nobody_without_a_certificate_of_the_cluster(pki: Pki) -> None:
    async with pair(pki, pki.files("a"), pki.files("b", ca=trustme.CA())) as (_, answering, asks):
        with pytest.raises(OSError, match="certificate"):
            await asks.decisions(0, "backup", 20, TIMEOUT)
        assert answering.told == []


async def test_what_is_asked_beside_the_exchange_does_not_keep_it_waiting(pki: Pki) -> None:
    asked = asyncio.Event()
    over = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /decisions"):
            asked.set()
            await over.wait()
        else:
            writer.write(http(f"HTTP/1.1 200 OK\nContent-Length: {len(BODY)}", BODY))
        writer.close()

    async with hostile(pki, script) as asks, anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(asks.decisions, 0, "backup", 20, TIMEOUT)
        with anyio.fail_after(TIMEOUT):
            await asked.wait()
            assert (await asks.ask(0, None, TIMEOUT)).body == BODY
        tasks.cancel_scope.cancel()
        over.set()


# -- a hostile side ---------------------------------------------------------------------------------------------------

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def hostile(pki: Pki, script: Script) -> AsyncIterator[TlsNetwork]:
    """A client of ours before a server with a good certificate and bad manners."""
    tls = pki.files("evil")
    server = await asyncio.start_server(script, "127.0.0.1", 0, ssl=load(tls).server)
    port = server.sockets[0].getsockname()[1]
    asks = network(pki.port(), pki.files("b"), Address("127.0.0.1", port))
    await asks.open(Answering())
    try:
        yield asks
    finally:
        await asks.close()
        server.close()


def saying(*chunks: bytes, repeat: int = 1) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for chunk in chunks:
                for _ in range(repeat):
                    writer.write(chunk)
                    await writer.drain()
            writer.close()
        except (ConnectionError, ssl.SSLError):
            writer.close()

    return script


def http(head: str, body: bytes = b"") -> bytes:
    return head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body


async def test_a_body_without_an_end_is_dropped_at_the_cap(pki: Pki) -> None:
    start = http("HTTP/1.1 200 OK\nContent-Type: application/json\nConnection: close")
    async with hostile(pki, saying(start, *[b"x" * 65536] * 100)) as asks:
        with pytest.raises(BadReport, match=str(MOST_BYTES)):
            await asks.ask(0, None, TIMEOUT)


async def test_a_zip_bomb_is_unpacked_to_the_cap_only(pki: Pki) -> None:
    bomb = gzip.compress(b"\0" * 100_000_000)
    start = http(f"HTTP/1.1 200 OK\nContent-Encoding: gzip\nContent-Length: {len(bomb)}", bomb)
    async with hostile(pki, saying(start)) as asks:
        reply = await asks.ask(0, None, TIMEOUT)
        assert reply.body is not None
        assert len(reply.body) == MOST_BYTES + 1


async def test_a_redirect_is_not_followed(pki: Pki) -> None:
    async with hostile(pki, saying(http("HTTP/1.1 302 Found\nLocation: /peer\nContent-Length: 0"))) as asks:
        with pytest.raises(OSError, match="answered 302"):
            await asks.ask(0, None, TIMEOUT)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01\x02",
        b"HTTP/9.9 banana\r\n\r\n",
        http("HTTP/1.1 200 OK\nContent-Length: 10", b"abc"),
        b"A" * 100_000,
    ],
    ids=["nothing", "bytes", "banana", "short", "long line"],
)
async def test_what_is_not_http_is_a_failed_question(pki: Pki, answer: bytes) -> None:
    async with hostile(pki, saying(answer)) as asks:
        with pytest.raises(OSError) as failure:
            await asks.ask(0, None, TIMEOUT)
        assert not isinstance(failure.value, Untrusted | ConnectionRefusedError)


@pytest.mark.parametrize(
    ("status", "error"), [("404 Not Found", NotTold), ("500 Oops", OSError), ("200 OK", BadReport)]
)
async def test_an_older_peer_and_one_out_of_order_are_told_apart(pki: Pki, status: str, error: type[Exception]) -> None:
    start = http(f"HTTP/1.1 {status}\nContent-Encoding: gzip\nContent-Length: 4", b"nope")
    async with hostile(pki, saying(start)) as asks:
        with pytest.raises(error) as failure:
            await asks.decisions(0, "backup", 20, TIMEOUT)
        assert type(failure.value) is error


async def test_decisions_without_an_end_and_a_zip_bomb_are_taken_to_the_cap_only(pki: Pki) -> None:
    bomb = gzip.compress(b"\0" * 100_000_000)
    packed = http(f"HTTP/1.1 200 OK\nContent-Encoding: gzip\nContent-Length: {len(bomb)}", bomb)
    async with hostile(pki, saying(packed)) as asks:
        assert len(await asks.decisions(0, "backup", 20, TIMEOUT)) == MOST_BYTES + 1
    async with hostile(pki, saying(http("HTTP/1.1 200 OK\nConnection: close"), *[b"x" * 65536] * 100)) as asks:
        with pytest.raises(BadReport, match=str(MOST_BYTES)):
            await asks.decisions(0, "backup", 20, TIMEOUT)


async def test_silence_costs_no_more_than_the_timeout(pki: Pki) -> None:
    over = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with hostile(pki, script) as asks:
        with pytest.raises(TimeoutError, match="no answer in time"):
            await asks.ask(0, None, 0.2)
        over.set()


async def test_the_time_of_a_question_that_has_to_wait_for_another_begins_when_it_is_its_turn(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CONCURRENT", 1)
    over = asyncio.Event()
    asked: list[asyncio.StreamWriter] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        await over.wait()
        writer.close()

    tls = pki.files("a")
    silent = await asyncio.start_server(script, "127.0.0.1", 0, ssl=load(tls).server)
    port = pki.port()
    answers = network(port, tls)
    asks = network(
        pki.port(),
        pki.files("b"),
        Address("127.0.0.1", silent.sockets[0].getsockname()[1]),
        Address("127.0.0.1", port),
    )
    await answers.open(Answering())
    await asks.open(Answering())

    async def hang() -> None:
        with pytest.raises(TimeoutError):
            await asks.ask(0, None, 2.5)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            while not asked:
                await anyio.lowlevel.checkpoint()
            assert (await asks.ask(1, None, 1.5)).status == 200
    finally:
        over.set()
        await asks.close()
        await answers.close()
        silent.close()


async def test_a_body_that_does_not_come_is_given_up(pki: Pki) -> None:
    tls = pki.files("a")
    port = pki.port()
    answering = Answering()
    answers = network(port, tls, timeout=1.0)  # the handshake has no more either
    await answers.open(answering)
    try:
        with anyio.fail_after(TIMEOUT):
            context = load(pki.files("b")).client
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            writer.write(http("POST /reboot-ran HTTP/1.1\nHost: x\nContent-Length: 5"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            writer.close()
    finally:
        await answers.close()
    assert answering.pushed == []


async def test_a_listener_survives_whatever_is_written_to_it(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    """By somebody whose certificate is good: odd bytes, odd heads, bodies that lie about their length or are bombs."""
    draw = random.Random(6)
    bomb = gzip.compress(b"[" * 3_000_000)
    lines = [
        b"GET /peer HTTP/1.1",
        b"POST /reboot-ran HTTP/1.1",
        b"PUT /peer HTTP/1.0",
        b"GET / HTTP/1.1",
        b"\xff" * 20,
    ]
    heads = [
        *[b"Host: x"] * 12,
        b"If-None-Match: " + b'"' * 300,
        b"X-Cronstable-Instance: " + b"i" * 7000,
        b"Content-Length: -1",
        b"Content-Length: 5",
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked",
        b"Content-Encoding: gzip",
        b"Expect: 100-continue",
        b"A" * 9000,
        b": ",
    ]
    bodies = [b"", b"{}", b"[" * 100_000, b"fffffff\r\n", b"5\r\nabcde\r\n0\r\n\r\n", bomb, draw.randbytes(5000)]
    port, answering, answered = pki.port(), Answering(), set[bytes]()
    answers = network(port, pki.files("a"), timeout=0.2)
    asks = network(pki.port(), pki.files("b"), Address("127.0.0.1", port))
    await answers.open(answering)
    await asks.open(Answering())
    context = load(pki.files("b")).client
    try:
        for _ in range(100):
            with anyio.fail_after(TIMEOUT):
                opened = None
                with suppress(OSError):
                    opened = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
                if opened is None:
                    continue  # on a machine so busy that the handshake took longer than that
                reader, writer = opened
                head = [draw.choice(lines), *dict.fromkeys(draw.sample(heads, draw.randrange(1, 5)))]
                with suppress(OSError), anyio.move_on_after(0.5):
                    writer.write(b"\r\n".join(head) + b"\r\n\r\n" + draw.choice(bodies))
                    answered.add((await reader.readline())[9:12])
                writer.transport.abort()
        assert (await asks.ask(0, None, TIMEOUT)).body == BODY
        assert all(len(body) <= MOST_BYTES for body in answering.pushed), "nothing over the cap is taken in"
        assert {b"200", b"400", b"404"} <= answered
        assert b"500" not in answered, "the reader of bodies never fails"
        assert [line for line in caplog.records if line.levelno > logging.INFO] == []
    finally:
        await asks.close()
        await answers.close()


@pytest.mark.parametrize("body", [gzip.compress(b"[" * 50_000_000), b"no gzip at all"], ids=["bomb", "junk"])
async def test_a_push_that_is_packed_is_refused_and_not_unpacked(
    pki: Pki, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with pair(pki, pki.files("a"), pki.files("b")) as (_, _, asks):
        answer = await asks._exchange("POST", 0, "/reboot-ran", headers, body, timeout=TIMEOUT)
        assert (answer.head.status, answer.body) == (400, b"")
    assert [line for line in caplog.records if line.levelno > logging.INFO] == []


async def test_a_node_whose_certificate_has_ended_is_untrusted_and_what_it_asks_is_not_answered(pki: Pki) -> None:
    tls = pki.files("old")
    leaf = pki.ca.issue_cert("localhost", "127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC))
    Path(tls.cert).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(tls.key)
    async with pair(pki, tls, pki.files("b")) as (_, answering, asks):
        with pytest.raises(Untrusted, match="expired"):
            await asks.ask(0, None, TIMEOUT)
        assert answering.callers == []
    async with pair(pki, pki.files("a"), tls) as (_, answering, asks):
        with pytest.raises(OSError):
            await asks.ask(0, None, TIMEOUT)
        assert answering.callers == []


# -- connections that stay ---------------------------------------------------------------------------------------------


async def raw(pki: Pki, port: int, *questions: bytes) -> list[bytes]:
    """Heads of the answers to ``questions`` on one connection; the last one ends it."""
    context = load(pki.files("b")).client
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    for question in questions:
        writer.write(question)
    said = await reader.read()
    writer.close()
    return said.split(b"HTTP/1.1 ")[1:]


async def test_a_question_on_a_connection_costs_no_other_handshake(pki: Pki) -> None:
    accepted = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(http('HTTP/1.1 304 Not Modified\nETag: "t"'))
        writer.close()

    async with hostile(pki, script) as asks:
        for _ in range(5):
            assert (await asks.ask(0, '"t"', TIMEOUT)).status == 304
    assert len(accepted) == 1


async def test_a_connection_that_was_closed_meanwhile_costs_a_poll_nothing(pki: Pki) -> None:
    """It looks open when the question leaves. A push is not said twice: the next poll tells it as well."""
    heard: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            heard.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
            writer.write(http('HTTP/1.1 304 Not Modified\nETag: "t"'))
            heard.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
        writer.close()

    async with hostile(pki, script) as asks:
        for _ in range(2):
            assert (await asks.ask(0, '"t"', TIMEOUT)).status == 304
        with pytest.raises(OSError, match="disconnected without an answer"):
            await asks.push(0, b"{}", TIMEOUT)
    assert heard == [b"GET", b"GET", b"GET", b"POST"]


@pytest.mark.parametrize("more", [b"x", http("HTTP/1.1 200 OK\nContent-Length: 0")], ids=["bytes", "an answer"])
async def test_what_nobody_asked_for_ends_the_connection(pki: Pki, more: bytes) -> None:
    accepted = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(http("HTTP/1.1 200 OK\nContent-Length: 2", b"{}") + more)
        writer.close()

    async with hostile(pki, script) as asks:
        for _ in range(2):
            assert (await asks.ask(0, None, TIMEOUT)).body == b"{}"
    assert len(accepted) == 2


async def test_a_body_without_a_length_ends_with_its_connection(pki: Pki) -> None:
    async with hostile(pki, saying(http("HTTP/1.1 200 OK"), b"{", b"}")) as asks:
        assert (await asks.ask(0, None, TIMEOUT)).body == b"{}"


async def test_whoever_gives_up_a_question_ends_its_connection(pki: Pki) -> None:
    """Its answer may still come, and would be taken for that of the next one."""
    first = True

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                if first:
                    first = False
                    continue
                writer.write(http("HTTP/1.1 200 OK\nContent-Length: 2", b"{}"))
        writer.close()

    async with hostile(pki, script) as asks:
        with anyio.fail_after(TIMEOUT):
            while first:  # on a busy machine the time may be over before the question is heard
                with pytest.raises(TimeoutError):
                    await asks.ask(0, None, 0.2)
        assert (await asks.ask(0, None, TIMEOUT)).body == b"{}"


async def test_an_unusual_question_has_the_same_answer_as_a_usual_one(pki: Pki) -> None:
    tls, port, answering = pki.files("a"), pki.port(), Answering()
    answers = network(port, tls)
    await answers.open(answering)
    usual = "GET /peer HTTP/1.1\nHost: x\nX-Cronstable-Instance: i7\nAccept-Encoding: gzip"
    last = http(usual + "\nConnection: close")
    try:
        with anyio.fail_after(TIMEOUT):
            for tag in ("", '\nIf-None-Match: "t"'):
                fast, slow = await raw(pki, port, http(usual + tag), http(usual + tag + "\nConnection: close"))
                ours = {"date", "server", "connection"}
                heads = [one.partition(b"\r\n\r\n")[0].lower().split(b"\r\n") for one in (fast, slow)]
                kept = [{line for line in head if line.split(b":")[0].decode() not in ours} for head in heads]
                assert kept[0] == kept[1]
                assert fast.partition(b"\r\n\r\n")[2] == slow.partition(b"\r\n\r\n")[2]
            # Several at once, and one that comes in pieces, are the library's to sort out.
            assert [
                one[:3] for one in await raw(pki, port, http(usual) * 2, http(usual)[:9], http(usual)[9:], last)
            ] == [b"200"] * 4
    finally:
        await answers.close()
    assert set(answering.callers) == {Caller(None, "i7"), Caller('"t"', "i7")}


async def test_a_connection_on_which_nothing_is_asked_is_ended(pki: Pki) -> None:
    tls, port = pki.files("a"), pki.port()
    answers = TlsNetwork(
        FakeHost(RealClock(), "n"), Address("127.0.0.1", port), (), tls, "instance1", Bounds(TIMEOUT, 0.3)
    )
    await answers.open(Answering())
    try:
        with anyio.fail_after(TIMEOUT):
            said = await raw(pki, port, http("GET /peer HTTP/1.1\nHost: x"))
            assert [one[:3] for one in said] == [b"200"], "answered, and ended without our asking for it"
            assert await raw(pki, port) == []
    finally:
        await answers.close()


# -- the end of a peer ------------------------------------------------------------------------------------------------


async def test_a_peer_that_ends_is_noticed_while_nobody_asks_and_its_port_is_closed_by_then(pki: Pki) -> None:
    port, tls = pki.port(), pki.files("a")
    answers, asks, asking = network(port, tls), network(pki.port(), tls, Address("127.0.0.1", port)), Answering()
    await answers.open(Answering())
    await asks.open(asking)
    try:
        await asks.ask(0, None, TIMEOUT)
        await asks.ask(0, None, TIMEOUT)
        assert asking.hangups == []
        await answers.close()
        with anyio.fail_after(TIMEOUT):
            while not asking.hangups:
                await anyio.lowlevel.checkpoint()
        with pytest.raises(ConnectionRefusedError):
            await asks.ask(0, None, TIMEOUT)
        assert asking.hangups == [0]
    finally:
        await asks.close()
        await answers.close()


async def test_a_connection_that_we_end_ourselves_is_no_peers_end(pki: Pki) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (_, answering, asks):
        await asks.ask(0, None, TIMEOUT)
        asking = asks._responder
        assert isinstance(asking, Answering)
        lines = asks._lines
        assert lines is not None
        [line] = lines._idle[0]
        lines.close()
        with anyio.fail_after(TIMEOUT):
            while line._transport is not None:
                await anyio.lowlevel.checkpoint()
        assert asking.hangups == []
        assert len(answering.callers) == 1


# -- rotation ---------------------------------------------------------------------------------------------------------


async def test_changed_files_are_used_on_both_sides_without_a_moment_of_refusal(pki: Pki) -> None:
    server, client = pki.files("a"), pki.files("b")
    async with pair(pki, server, client) as (answers, answering, asks):
        await asks.ask(0, None, TIMEOUT)
        pki.ca = trustme.CA()
        pki.files("a")
        await answers.rotate()
        with pytest.raises(Untrusted):
            await asks.ask(0, None, TIMEOUT)
        pki.files("b")
        await asks.rotate()
        assert (await asks.ask(0, None, TIMEOUT)).status == 200
        assert len(answering.callers) == 2


async def test_while_the_files_stand_still_nothing_is_made_anew(pki: Pki) -> None:
    async with pair(pki, pki.files("a"), pki.files("b")) as (answers, _, asks):
        material = answers._material
        await answers.rotate()
        assert answers._material is material
        assert (await asks.ask(0, None, TIMEOUT)).status == 200


async def test_half_written_files_are_said_once_and_tried_again(pki: Pki) -> None:
    tls = pki.files("a")
    host = FakeHost(RealClock(), "a")
    port = pki.port()
    answers = network(port, tls, host=host)
    asks = network(pki.port(), pki.files("b"), Address("127.0.0.1", port))
    await answers.open(Answering())
    await asks.open(Answering())
    try:
        good = Path(tls.cert).read_bytes()
        Path(tls.cert).write_bytes(good[: len(good) // 2])
        for _ in range(3):
            await answers.rotate()
        assert len(host.logged("the changed certificates cannot be used")) == 1
        assert (await asks.ask(0, None, TIMEOUT)).status == 200
        Path(tls.cert).unlink()
        await answers.rotate()
        assert (await asks.ask(0, None, TIMEOUT)).status == 200
        pki.files("a")
        await answers.rotate()
        assert host.logged("the certificates changed and are in use")
        assert (await asks.ask(0, None, TIMEOUT)).status == 200
    finally:
        await asks.close()
        await answers.close()


async def test_certificates_that_no_socket_is_left_for_are_said_once_and_used_when_there_is_one(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, host, port = pki.files("a"), FakeHost(RealClock(), "a"), pki.port()
    answers = network(port, tls, host=host)
    asks = network(pki.port(), pki.files("b"), Address("127.0.0.1", port))
    await answers.open(Answering())
    await asks.open(Answering())

    def none_left(_: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    try:
        pki.files("a")
        with monkeypatch.context() as full:
            full.setattr(socket.socket, "dup", none_left)
            for _ in range(3):
                await answers.rotate()
        assert len(host.logged("cannot be used, the old ones stay: [Errno 24] Too many open files")) == 1
        assert (await asks.ask(0, None, TIMEOUT)).status == 200
        await answers.rotate()
        assert host.logged("the certificates changed and are in use")
        assert (await asks.ask(0, None, TIMEOUT)).status == 200
    finally:
        await asks.close()
        await answers.close()


async def test_a_rehearsal_of_half_written_files_names_them_and_opens_no_port(pki: Pki) -> None:
    tls, port = pki.files("a"), pki.port()
    good = Path(tls.cert).read_bytes()
    Path(tls.cert).write_bytes(good[: len(good) // 2])
    context = ElectionContext("gossip", "a", None, MappingProxyType({}), lambda: "v1:0")
    section = Settings(Address("127.0.0.1", port), tls, (), interval=1.0)
    host = FakeHost(RealClock(), "a")
    election = GossipElection(context, host, section, lambda _: network(port, tls, host=host))
    assert isinstance(election, Rehearsable)
    with pytest.raises(OSError, match=r"cluster\.tls\.cert .*a/cert\.pem"):
        await election.rehearse()
    Path(tls.cert).write_bytes(good)
    await election.rehearse()
    with pytest.raises(OSError, match="attempts failed"):
        await anyio.connect_tcp("127.0.0.1", port)


@pytest.mark.parametrize("what", ["ca", "cert", "key"])
async def test_a_file_that_does_not_load_is_a_failed_start_that_names_it(pki: Pki, what: str) -> None:
    tls = pki.files("a")
    Path(getattr(tls, what)).write_text("nothing")
    with pytest.raises(OSError, match=f"cluster.tls.{what} "):
        await network(pki.port(), tls).open(Answering())


async def test_a_certificate_that_ends_soon_is_warned_of(pki: Pki) -> None:
    class Later(RealClock):
        def __init__(self, wall: float) -> None:
            self.wall = wall

        def now(self) -> Instant:
            return Instant(self.wall, 1000.0)

    tls = pki.files("a")
    (end,) = expiries(Path(tls.cert).read_bytes())
    for left, said in ((15 * 86_400, 0), (13 * 86_400, 1), (-1, 1)):
        host = FakeHost(Later(end - left), "a")
        answers = network(pki.port(), tls, host=host)
        await answers.open(Answering())
        await answers.rotate()
        assert (tls.cert, end) in host.expiries["gossip"]
        await answers.close()
        assert host.expiries["gossip"] == ()
        assert len([line for line in host.logged("the certificate in") if "cert.pem" in line]) == said
    assert list(expiries(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")) == []
