"""A TLS listener whose certificates can be replaced without a moment in which the port is closed."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from cronstable.api import Seconds
from cronstable_gossip.front import Front, Quick
from cronstable_gossip.settings import Address

BACKLOG: Final = 128
MOST_CONNECTIONS: Final = 256
"""Connections beyond these are closed when they come in."""
GOODBYE: Final[Seconds] = 1.0
"""How long answers that are being sent may take once the listener closes."""

_AS_WRITTEN: Final = socket.AI_PASSIVE | socket.AI_NUMERICHOST

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Listener:
    """The sockets stay; what accepts on duplicates of them is replaced by ``swap``."""

    def __init__(
        self,
        address: Address,
        quick: Quick,
        handler: Handler,
        handshake: Seconds,
        keepalive: Seconds,
        section: str = "cluster",
    ) -> None:
        self._address = address
        self._section = section
        self._quick = quick
        self._handler = handler
        self._handshake = handshake
        self._keepalive = keepalive
        self._sockets: list[socket.socket] = []
        self._serving: _Serving | None = None

    async def open(self, context: ssl.SSLContext) -> None:
        """Bind and answer. Raises ``OSError`` that names the address."""
        try:
            self._sockets = await _bind(self._address)
            self._serving = await self._serve(context)
        except OSError as error:
            self._drop()
            raise OSError(f"{self._section}.listen {self._address}: {error.strerror or error}") from error

    async def swap(self, context: ssl.SSLContext) -> None:
        """Answer with ``context`` from now on, and end the connections that were made under the old one."""
        old, self._serving = self._serving, await self._serve(context)
        if old is not None:
            await old.close()

    async def close(self) -> None:
        """Refuse whoever comes, and end what is open."""
        self._drop()
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.close()

    def _drop(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets = []

    async def _serve(self, context: ssl.SSLContext) -> _Serving:
        loop = asyncio.get_running_loop()
        # aiohttp's own default would let a silent client keep its slot for minutes after the last byte.
        serving = _Serving(self._quick, self._handler)
        serving.server = web.Server(
            serving.handle,
            access_log=None,
            auto_decompress=False,  # nobody packs what is pushed, and one that does so badly would be our error
            logger=_ServerLog(logging.getLogger("aiohttp.server")),
            keepalive_timeout=self._keepalive,
            lingering_time=1.0,
        )
        for one in self._sockets:
            serving.accepting.append(
                await loop.create_server(
                    lambda: serving.protocol(self._keepalive),
                    sock=one.dup(),
                    ssl=context,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=self._handshake,
                    ssl_shutdown_timeout=GOODBYE,
                )
            )
        return serving


class _Serving:
    """One generation of the listener."""

    def __init__(self, quick: Quick, handler: Handler) -> None:
        self._quick = quick
        self._handler = handler
        self._closed = False
        self._fronts: set[Front] = set()
        self.server: web.Server | None = None
        self.accepting: list[asyncio.Server] = []

    def protocol(self, keepalive: Seconds) -> asyncio.BaseProtocol:
        """What a new connection is answered by."""
        server = self.server
        if server is None or len(self._fronts) + len(server.connections) >= MOST_CONNECTIONS:
            return _Refused()
        front = Front(self._answer, server, self._fronts.discard, keepalive)
        self._fronts.add(front)
        return front

    def _answer(self, data: bytes) -> bytes | None:
        return None if self._closed else self._quick(data)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer; the last one on its connection once this generation is over.

        A connection that was still shaking hands when it ended is not among those that ``close`` ends: left alone it
        would be asked on for good.
        """
        answer = await self._handler(request)
        if self._closed:
            answer.force_close()
        return answer

    async def close(self) -> None:
        self._closed = True
        for one in self.accepting:
            one.close()
        # Connections that only wait for a next question end now: whoever asked on them shall find nobody here.
        for front in tuple(self._fronts):
            front.close()
        if self.server is None:
            return
        self.server.pre_shutdown()
        with anyio.CancelScope(shield=True), anyio.move_on_after(2 * GOODBYE + 0.5):
            await self.server.shutdown(GOODBYE)


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The server's log without a traceback for each request that is none: a peer out of order could fill the disk."""

    def exception(self, msg: object, *args: object, exc_info: object = True, **options: object) -> None:
        """An error of ours with its traceback; a client's in a line at DEBUG."""
        error = exc_info if isinstance(exc_info, BaseException) else sys.exception()
        if isinstance(error, HttpProcessingError):
            self.debug("refused a request that is not HTTP: %s", type(error).__name__)
        else:
            self.error(msg, *args, exc_info=error)


class _Refused(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


async def _bind(address: Address) -> list[socket.socket]:
    """One listening socket for each address that the host of ``address`` stands for."""
    host = None if address.host in ("", "*") else address.host
    try:
        # An address needs nobody to look it up, and the loop no thread for it, which would stay for good.
        found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=_AS_WRITTEN)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                with suppress(OSError):
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind(where)
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
