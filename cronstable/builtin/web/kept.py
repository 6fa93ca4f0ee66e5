"""Answers that many ask for again and again: kept as the very bytes that go over the wire."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate
from typing import Final

import anyio
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from cronstable.api import Host
from cronstable.builtin.web.contexts import Contexts
from cronstable.builtin.web.repeats import WRITE_TIMEOUT, Again, Repeats, plain


class Kept:
    """A body and the headers of its own, sent until something else is to be said."""

    __slots__ = ("body", "headers", "made", "second")

    def __init__(self, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        self.body = body
        self.headers = {"Content-Type": content_type, **(headers or {})}
        self.made: Ready | None = None
        self.second = -1


class Sender:
    """Sends answers with the headers that all of them have, each within a deadline."""

    def __init__(self, host: Host, headers: tuple[tuple[str, str], ...], contexts: Contexts) -> None:
        """``headers``: of the section; on answers of 200, 304 and 409 (reference 7.1)."""
        self._host = host
        self._headers = headers
        self.repeats = Repeats(host, contexts, lambda kept: self._ready(kept).data)

    def decorate(self, headers: CIMultiDict[str], status: int) -> None:
        """Add the headers of every answer, of streams as well. Each endpoint owns its Content-Type."""
        headers.setdefault("Cache-Control", "no-cache")
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers["Server"] = "cronstable"
        if status in (200, 304, 409):
            for name, value in self._headers:
                headers[name] = value

    def kept(self, request: web.Request, kept: Kept, again: Again) -> web.StreamResponse:
        """200 with a kept body. A plain request gets bytes put together before; any other an answer of its own.

        ``again``: what to say to the same request another time.
        """
        if not plain(request):
            return web.Response(body=kept.body, headers=kept.headers)
        if "If-None-Match" not in request.headers:  # else it has what it names some day, and 304 is the answer
            self.repeats.learn(request, again)
        return self._ready(kept)

    def _ready(self, kept: Kept) -> Ready:
        second = int(self._host.clock.now().wall)
        if kept.made is None or kept.second != second:
            kept.made, kept.second = Ready(self, self._together(kept, second)), second
        return kept.made

    def _together(self, kept: Kept, second: int) -> bytes:
        headers = CIMultiDict(kept.headers)
        headers["Content-Length"] = str(len(kept.body))
        self.decorate(headers, 200)
        headers.setdefault("Date", formatdate(second, usegmt=True))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (lines.encode(), kept.body)

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send an answer that is whole; a reader that does not read is dropped."""
        try:
            with anyio.fail_after(WRITE_TIMEOUT):
                await response.prepare(request)
                await response.write_eof()
                if plain(request):
                    self.repeats.settled(request)
        except TimeoutError:
            self._drop(request)
        except ConnectionError:
            self.gone(request)

    async def taken(self, request: web.BaseRequest) -> None:
        """Wait until what was written is taken, but for a little that may lie in a buffer."""
        try:
            with anyio.fail_after(WRITE_TIMEOUT):
                await request.writer.drain()
        except TimeoutError:
            self._drop(request)
        except ConnectionError:
            self.gone(request)

    def _drop(self, request: web.BaseRequest) -> None:
        self._host.log.warning("web: %s does not take its answer and is dropped", request.remote or "a client")
        if request.transport is not None:
            request.transport.abort()

    def gone(self, request: web.BaseRequest) -> None:
        """Note that nobody is there any more."""
        self._host.log.debug("web: %s went away before its answer", request.remote or "a client")


class Ready(web.StreamResponse):
    """An answer that is bytes already. It remembers nothing of a request, so that one serves any number of them."""

    def __init__(self, sender: Sender, data: bytes) -> None:
        super().__init__()
        self._sender = sender
        self.data: Final = memoryview(data)  # what the socket does not take at once is then not copied to be cut off

    @property
    def keep_alive(self) -> bool:
        """True: only requests that keep their connection are answered like this."""
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write all of it."""
        transport = request.transport
        if transport is not None and not transport.is_closing():
            transport.write(self.data)
            self._sender.repeats.settled(request)
        if transport is None or transport.is_closing():
            self._sender.gone(request)
            raise ConnectionResetError("the client went away before its answer")
        if transport.get_write_buffer_size():
            await self._sender.taken(request)
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to be written."""
