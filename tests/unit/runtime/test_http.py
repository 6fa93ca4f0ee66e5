"""The HTTP client against a small server on this machine: complete answers, streams, deadlines, broken connections."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketStream

from cronstable.api import Http, HttpStreams
from cronstable.runtime.http import CONTEXTS_KEPT, LONGEST_LINE, HttpxClient

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Kind: Test\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


Server = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def server() -> Server:
    """``async with server(b"...", b"...") as url``: sends these pieces, then closes or stays silent."""

    @asynccontextmanager
    async def serve(*pieces: bytes, close: bool = True) -> AsyncIterator[str]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)

        async def handle(stream: SocketStream) -> None:
            async with stream:
                with anyio.move_on_after(10):
                    await stream.receive()
                    for piece in pieces:
                        await stream.send(piece)
                    if not close:
                        await anyio.Event().wait()

        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handle)
            yield f"http://127.0.0.1:{port}/"
            tasks.cancel_scope.cancel()

    return serve


@pytest.fixture
async def client() -> AsyncIterator[HttpxClient]:
    client = HttpxClient()
    yield client
    await client.close()


async def test_the_client_has_both_sides_of_the_seam(client: HttpxClient) -> None:
    http: Http = client
    assert isinstance(http, HttpStreams)


async def test_an_answer_comes_whole_with_lower_case_headers(client: HttpxClient, server: Server) -> None:
    async with server(HEAD + b"Content-Length: 2\r\n\r\n", b"ok") as url:
        answer = await client.request("GET", url, timeout=10)
    assert (answer.status, answer.headers["x-kind"], answer.content) == (200, "Test", b"ok")


async def test_lines_of_a_stream_arrive_before_it_ends(client: HttpxClient, server: Server) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    async with server(head, chunk(b"one\ntw"), chunk("o\u2028\n".encode()), close=False) as url:
        with anyio.fail_after(10):
            async with client.stream("POST", url, content=b"{}", timeout=10) as stream:
                assert (stream.status, stream.headers["x-kind"]) == (200, "Test")
                assert await anext(stream.lines) == b"one"
                assert await anext(stream.lines) == "two\u2028".encode()


async def test_a_stream_that_ends_gives_its_last_line(client: HttpxClient, server: Server) -> None:
    length = HEAD + b"Content-Length: 3\r\n\r\n"
    async with server(length, b"a\nb") as url, client.stream("GET", url, timeout=10) as stream:
        assert [line async for line in stream.lines] == [b"a", b"b"]


async def test_a_stream_that_breaks_is_an_os_error(client: HttpxClient, server: Server) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    async with server(head, chunk(b"one\n")) as url, client.stream("GET", url, timeout=10) as stream:
        assert await anext(stream.lines) == b"one"
        with pytest.raises(OSError, match="RemoteProtocolError"):
            await anext(stream.lines)


async def test_a_line_without_an_end_is_refused(client: HttpxClient, server: Server) -> None:
    head, flood = HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk(b"x" * (LONGEST_LINE + 1))
    async with server(head, flood, close=False) as url, client.stream("GET", url, timeout=10) as stream:
        with pytest.raises(OSError, match="longer than"):
            await anext(stream.lines)


async def test_silence_ends_at_the_deadline_for_both(client: HttpxClient, server: Server) -> None:
    async with server(close=False) as url:
        with pytest.raises(TimeoutError):
            await client.request("GET", url, timeout=0.1)
        with pytest.raises(TimeoutError):
            async with client.stream("GET", url, timeout=0.1):
                pass


async def test_a_connection_closed_without_an_answer_is_told_from_one_that_was_never_made(
    client: HttpxClient, server: Server
) -> None:
    async with server() as url:
        with pytest.raises(ConnectionResetError, match="RemoteProtocolError"):
            await client.request("GET", url, timeout=10)
    with pytest.raises(OSError, match="ConnectError") as refused:
        await client.request("GET", url, timeout=10)
    assert not isinstance(refused.value, ConnectionResetError)


async def test_replaced_tls_contexts_are_not_kept_for_ever(client: HttpxClient, server: Server) -> None:
    async with server(HEAD + b"Content-Length: 0\r\n\r\n") as url:
        for _ in range(CONTEXTS_KEPT + 4):
            await client.request("GET", url, timeout=10, tls=ssl.create_default_context())
    assert len(client._clients) == CONTEXTS_KEPT


async def test_an_address_that_is_none_is_an_os_error_for_both(client: HttpxClient) -> None:
    with pytest.raises(OSError, match="InvalidURL"):
        await client.request("GET", "http://a b:x/", timeout=10)
    with pytest.raises(OSError, match="InvalidURL"):
        async with client.stream("GET", "http://a b:x/", timeout=10):
            pass


async def test_who_speaks_no_tls_is_given_no_authorities_and_who_does_is(client: HttpxClient, server: Server) -> None:
    async with server(HEAD + b"Content-Length: 0\r\n\r\n") as url:
        await client.request("GET", url, timeout=10)
        (context,) = client._clients
        assert context is not None
        assert context.get_ca_certs() == []
        with pytest.raises(OSError, match="ConnectError"):
            await client.request("GET", url.replace("http://", "https://"), timeout=10)
        assert None in client._clients


def test_the_client_comes_without_its_command_line() -> None:
    script = """
import sys
from cronstable.runtime.http import import_httpx
httpx = import_httpx()
assert import_httpx() is httpx is sys.modules["httpx"]
print(sorted({"click", "rich", "httpx._main"} & set(sys.modules)))
import httpx._main
print("httpx._main" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\nTrue\n", "")


def test_a_request_looks_for_no_module_that_is_not_there() -> None:
    """What httpx stands on imports one for each request, which is a walk along the whole path when there is none."""
    script = """
import sys
looked = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        looked.append(name)
sys.meta_path.insert(0, Watch())
from cronstable.runtime.http import import_httpx
import_httpx()
import anyio
from httpcore._synchronization import current_async_library
async def main():
    current_async_library()
    looked.clear()
    current_async_library()
anyio.run(main)
print(looked)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
