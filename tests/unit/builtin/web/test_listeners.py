"""Where the API listens and what it survives: taken ports, stale sockets, rotated secrets and certificates."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trustme

from cronstable.builtin.web import doors, kept, listeners, repeats, streams

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition by letting others run; the deadline is the caller's or 10 s."""
    with anyio.fail_after(10):
        while not condition():
            await anyio.wait_all_tasks_blocked()
            await anyio.lowlevel.checkpoint()


async def test_connections_beyond_the_most_are_closed_at_once_and_told_of_once_a_minute(
    host: Any, port: int, run_service: Any, client_for: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(doors, "MOST", 3)
    call = client_for(("127.0.0.1", port))

    async def refused() -> None:
        reader, writer = await call.open()
        assert await reader.read() == b""
        writer.close()

    async with run_service(host, {"listen": [f"http://127.0.0.1:{port}"]}):
        kept = [await call.open() for _ in range(3)]
        for _ in range(5):
            await refused()
        host.clock.advance(60)
        await refused()
        kept[0][1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await kept[0][0].readline()).startswith(b"HTTP/1.1 200")
        kept[1][1].close()
        kept[2][1].transport.abort()

        async def served() -> bool:
            reader, writer = await call.open()
            with suppress(ConnectionError):
                writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer: bytes = await reader.read()
                writer.close()
                return answer.endswith(b"2.0.0")
            return False

        while not await served():  # room comes with the next turn of the loop
            await anyio.lowlevel.checkpoint()
        kept[0][1].close()
    said = [record.getMessage() for record in caplog.records if "refused a connection" in record.getMessage()]
    assert [re.findall(r"\d+", line) for line in said] == [["3", "0"], ["3", "4"]]


async def test_a_handshake_counts_as_a_connection_until_it_fails(
    host: Any, port: int, run_service: Any, client_for: Any, certificates: Certificates, monkeypatch: Any
) -> None:
    monkeypatch.setattr(doors, "MOST", 1)
    monkeypatch.setattr(listeners, "HEAD_TIMEOUT", 0.2)
    plain, call = client_for(("127.0.0.1", port)), client_for(("127.0.0.1", port), certificates.client())
    async with run_service(host, {"listen": [f"https://127.0.0.1:{port}"], "tls": certificates.section()}):
        silent, silent_writer = await plain.open()
        other, other_writer = await plain.open()
        assert await other.read() == b"", "closed at once, while the first one says nothing"
        assert await silent.read() == b"", "its time for the handshake is over"
        assert (await call("GET", "/version")).status == 200
        for writer in (silent_writer, other_writer):
            writer.close()


@pytest.mark.parametrize(("soft", "most"), [(256, 128), (1024, 512), (4096, 1024), (1, 1), (-1, 1024)])
def test_at_least_half_of_the_open_files_are_left_to_the_jobs(
    monkeypatch: pytest.MonkeyPatch, soft: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: {resource.RLIMIT_NOFILE: (soft, -1)}[which])
    assert doors.most_connections() == most


async def test_a_taken_port_is_skipped_with_a_warning_and_the_others_serve(
    host: Any, port: int, run_service: Any, client_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = taken.getsockname()[1]
        async with run_service(host, {"listen": [f"http://127.0.0.1:{other}", f"http://127.0.0.1:{port}"]}):
            reply = await client_for(("127.0.0.1", port))("GET", "/version")
    assert reply.status == 200
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"http://127.0.0.1:{other}" in warnings[0]


async def test_when_nothing_can_be_opened_it_is_tried_again_every_minute(
    host: Any, run_service: Any, client_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    address = taken.getsockname()
    async with run_service(host, {"listen": [f"http://127.0.0.1:{address[1]}"]}):
        assert "unreachable" in caplog.text
        taken.close()
        caplog.set_level(logging.INFO)
        caplog.clear()
        host.clock.advance(60)
        await until(lambda: "listening on" in caplog.text)
        reply = await client_for(address)("GET", "/version")
    assert reply.status == 200


async def test_the_same_failure_is_warned_of_once(
    host: Any, run_service: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def errors_are(count: int) -> bool:
        return sum(r.levelno == logging.ERROR for r in caplog.records) == count

    missing = tmp_path / "missing" / "c.sock"
    async with run_service(host, {"listen": [f"unix://{missing}"]}):
        for count in (2, 3):
            host.clock.advance(60)
            await until(partial(errors_are, count))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "No such file or directory" in warnings[0]
    assert str(missing) in warnings[0]


@pytest.mark.parametrize(("text", "mode"), [("0600", 0o600), ("0666", 0o666)])
async def test_a_unix_socket_has_its_mode_and_is_removed_at_the_end(
    host: Any, run_service: Any, client_for: Any, socket_dir: Path, text: str, mode: int
) -> None:
    path = socket_dir / "c.sock"
    async with run_service(host, {"listen": [f"unix://{path}"], "socketMode": text}):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        reply = await client_for(str(path))("GET", "/version")
    assert reply.status == 200
    assert not path.exists()


async def test_a_wrong_token_over_a_unix_socket_is_refused(
    host: Any, run_service: Any, client_for: Any, socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = socket_dir / "c.sock"
    async with run_service(host, {"listen": [f"unix://{path}"], "authToken": {"value": "s"}}):
        reply = await client_for(str(path))("GET", "/jobs", {"Authorization": "Bearer x"})
    assert reply.status == 401
    assert "a unix socket" in caplog.text


async def test_a_socket_of_a_dead_process_is_replaced(
    host: Any, run_service: Any, client_for: Any, socket_dir: Path
) -> None:
    path = socket_dir / "c.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    async with run_service(host, {"listen": [f"unix://{path}"]}):
        reply = await client_for(str(path))("GET", "/version")
    assert reply.status == 200


async def test_a_socket_that_somebody_listens_on_is_left_alone(
    host: Any, run_service: Any, socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = socket_dir / "c.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        inode = path.stat().st_ino
        async with run_service(host, {"listen": [f"unix://{path}"]}):
            assert "another process listens" in caplog.text
        assert path.stat().st_ino == inode


async def test_a_file_that_is_no_socket_is_left_alone(
    host: Any, run_service: Any, socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = socket_dir / "notes.txt"
    path.write_text("precious")
    async with run_service(host, {"listen": [f"unix://{path}"]}):
        assert "is not a socket" in caplog.text
    assert path.read_text() == "precious"


async def test_a_socket_that_was_taken_over_is_not_removed(host: Any, run_service: Any, socket_dir: Path) -> None:
    path, other = socket_dir / "c.sock", socket_dir / "other.sock"
    with socket.socket(socket.AF_UNIX) as successor:
        async with run_service(host, {"listen": [f"unix://{path}"]}):
            successor.bind(str(other))
            os.replace(other, path)
        assert path.exists()


class Certificates:
    """A throw-away authority and the files of one server."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.cert, self.key, self.client_ca = directory / "cert.pem", directory / "key.pem", directory / "ca.pem"
        self.write(self.ca)
        self.ca.cert_pem.write_to_path(self.client_ca)

    def write(self, ca: trustme.CA) -> None:
        issued = ca.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.cert)

    def section(self, **more: str) -> dict[str, str]:
        return {"cert": str(self.cert), "key": str(self.key), **more}

    def client(self, ca: trustme.CA | None = None, issued: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        (ca or self.ca).configure_trust(context)
        if issued is not None:
            issued.configure_cert(context)
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def test_https_is_served_with_the_configured_certificate(
    host: Any, port: int, run_service: Any, client_for: Any, certificates: Certificates
) -> None:
    async with run_service(host, {"listen": [f"https://127.0.0.1:{port}"], "tls": certificates.section()}):
        reply = await client_for(("127.0.0.1", port), certificates.client())("GET", "/version")
    assert reply.status == 200


async def test_a_long_answer_that_is_kept_is_whole_over_https_also_for_who_reads_late(
    host: Any, port: int, run_service: Any, client_for: Any, certificates: Certificates, make_job: Any
) -> None:
    host.add(*(make_job(f"job {n}", command="x" * 9000) for n in range(300)))
    call = client_for(("127.0.0.1", port), certificates.client())
    async with run_service(host, {"listen": [f"https://127.0.0.1:{port}"], "tls": certificates.section()}):
        whole = await call("GET", "/jobs")
        reader, writer = await call.open()
        writer.transport.pause_reading()
        writer.write(b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        await writer.drain()
        await anyio.wait_all_tasks_blocked()
        writer.transport.resume_reading()
        for _ in range(2):
            with anyio.fail_after(20):
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(len(whole.body))
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert body == whole.body
        writer.close()


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_reader_over_https_that_takes_nothing_is_dropped_when_it_asks_for_more(
    host: Any,
    port: int,
    run_service: Any,
    certificates: Certificates,
    make_job: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at_once: bool,
) -> None:
    pieces: list[bytes] = []
    original = repeats.Connection.data_received

    def spy(self: repeats.Connection, data: bytes) -> None:
        original(self, data)
        pieces.append(data)

    monkeypatch.setattr(repeats.Connection, "data_received", spy)
    host.add(*(make_job(f"job {n}", command="x" * 9000) for n in range(1000)))
    long, short = (b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"jobs", b"version"))
    async with run_service(host, {"listen": [f"https://127.0.0.1:{port}"], "tls": certificates.section()}):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # else it may grow until it holds all of it
        sock.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=certificates.client(), server_hostname="127.0.0.1", limit=1 << 24
        )
        for asked in (long, short):
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
        for module in (kept, repeats):
            monkeypatch.setattr(module, "WRITE_TIMEOUT", 0.05)
        transport: Any = writer.transport
        transport.pause_reading()
        for asked in [long + short] if at_once else [long, short]:
            pieces.clear()
            writer.write(asked)
            await until(lambda: bool(pieces))
        await until(lambda: "does not take its answer" in caplog.text)
        transport.abort()


async def test_a_client_certificate_is_compulsory_with_a_client_ca(
    host: Any, port: int, run_service: Any, client_for: Any, certificates: Certificates
) -> None:
    section = {
        "listen": [f"https://127.0.0.1:{port}"],
        "tls": certificates.section(clientCa=str(certificates.client_ca)),
    }
    known = certificates.ca.issue_cert("client.example")
    stranger = trustme.CA().issue_cert("client.example")
    async with run_service(host, section):
        reply = await client_for(("127.0.0.1", port), certificates.client(issued=known))("GET", "/version")
        for context in (certificates.client(), certificates.client(issued=stranger)):
            with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
                await client_for(("127.0.0.1", port), context)("GET", "/version")
    assert reply.status == 200


async def test_a_certificate_that_does_not_load_skips_its_listener_only(
    host: Any, port: int, run_service: Any, client_for: Any, certificates: Certificates, caplog: Any, socket_dir: Path
) -> None:
    certificates.cert.write_text("half a certificate")
    path = socket_dir / "c.sock"
    section = {"listen": [f"https://127.0.0.1:{port}", f"unix://{path}"], "tls": certificates.section()}
    async with run_service(host, section):
        reply = await client_for(str(path))("GET", "/version")
    assert reply.status == 200
    assert str(certificates.cert) in caplog.text


async def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(
    host: Any, port: int, run_service: Any, client_for: Any, certificates: Certificates, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    renewed = trustme.CA()
    async with run_service(host, {"listen": [f"https://127.0.0.1:{port}"], "tls": certificates.section()}):
        certificates.cert.write_text("half a certificate")
        host.clock.advance(60)
        await until(lambda: "does not load" in caplog.text)
        old = await client_for(("127.0.0.1", port), certificates.client())("GET", "/version")
        certificates.write(renewed)
        caplog.clear()
        host.clock.advance(60)
        await until(lambda: "listening on" in caplog.text)
        new = await client_for(("127.0.0.1", port), certificates.client(renewed))("GET", "/version")
        with pytest.raises(ssl.SSLCertVerificationError):
            await client_for(("127.0.0.1", port), certificates.client())("GET", "/version")
    assert old.status == new.status == 200


async def test_nobody_goes_on_under_a_certificate_that_was_replaced(
    host: Any, port: int, run_service: Any, client_for: Any, certificates: Certificates, caplog: Any, monkeypatch: Any
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(streams, "PING", 0.05)
    ask, renewed = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", trustme.CA()
    call = client_for(("127.0.0.1", port), certificates.client())
    async with run_service(host, {"listen": [f"https://127.0.0.1:{port}"], "tls": certificates.section()}):
        idle, idle_writer = await call.open()
        idle_writer.write(ask)
        assert (await idle.readuntil(b"2.0.0")).startswith(b"HTTP/1.1 200")
        tail, tail_writer = await call.open()
        tail_writer.write(ask.replace(b"/version", b"/events"))
        assert (await tail.readuntil(b"retry: 2000\n\n")).startswith(b"HTTP/1.1 200")
        # Accepted under the old certificate, and silent until it is replaced.
        loop, late = asyncio.get_running_loop(), socket.create_connection(("127.0.0.1", port))
        await anyio.wait_all_tasks_blocked()
        certificates.write(renewed)
        caplog.clear()
        host.clock.advance(60)
        await until(lambda: "listening on" in caplog.text)
        with anyio.fail_after(30):
            assert await idle.read() == b""
            await tail.read()
            late.setblocking(False)
            reader = asyncio.StreamReader()
            transport, _ = await loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(reader),
                sock=late,
                ssl=certificates.client(),
                server_hostname="localhost",
            )
            transport.write(ask + ask)
            answered = await reader.read()
    assert answered.count(b"HTTP/1.1 200") == 1


async def test_who_was_shaking_hands_as_the_service_ended_is_not_served_by_it(
    host: Any, port: int, run_service: Any, certificates: Certificates
) -> None:
    loop = asyncio.get_running_loop()
    section = {
        "listen": [f"https://127.0.0.1:{port}"],
        "tls": certificates.section(),
        "authToken": {"value": "the old one"},
    }
    async with run_service(host, section):
        late = socket.create_connection(("127.0.0.1", port))
        await anyio.wait_all_tasks_blocked()
    late.setblocking(False)
    reader = asyncio.StreamReader()
    with anyio.fail_after(20):
        try:
            transport, _ = await loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(reader),
                sock=late,
                ssl=certificates.client(),
                server_hostname="localhost",
            )
            transport.write(b"GET /version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the old one\r\n\r\n")
            answered = await reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, EOFError):  # as early as the shaking of hands, or on the first byte
            answered = b""
    assert answered == b""


async def test_who_was_accepted_and_not_yet_made_as_the_service_ended_is_hung_up_on(
    host: Any, port: int, monkeypatch: pytest.MonkeyPatch, run_service: Any
) -> None:
    made: list[Callable[[], asyncio.Protocol]] = []
    original = asyncio.get_running_loop().create_server

    async def create_server(factory: Any, *args: Any, **options: Any) -> asyncio.Server:
        made.append(factory)
        return await original(factory, *args, **options)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", create_server)
    async with run_service(host, {"listen": [f"http://127.0.0.1:{port}"]}):
        pass
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(made[-1], ours)
    with theirs, anyio.fail_after(20):
        assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""


def test_the_hooks_import_no_aiohttp() -> None:
    code = "import sys, cronstable.builtin.web as w; list(w.cronstable_services()); print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
