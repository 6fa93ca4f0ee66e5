"""A TLS listener whose certificates can be replaced without a moment in which the port is closed."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, cast

import anyio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from cronstable.api import Seconds
from cronstable_gossip.front import Front, Quick
from cronstable_gossip.settings import Address

BACKLOG: Final = 128
MOST_CONNECTIONS: Final = 256
"""Connections beyond these are closed once their handshake is over: each is one of somebody with a certificate."""
MOST_HANDSHAKES: Final = 128
"""Handshakes that are not over. One more ends the one that has taken longest: who has no certificate and says nothing
holds a place only until it is wanted, and who has one needs it for some milliseconds.
"""
LONGEST_HANDSHAKE: Final[Seconds] = 10.0
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
        self._handshake = min(handshake, LONGEST_HANDSHAKE)
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
        """Answer with ``context`` from now on, and end the connections that were made under the old one.

        Raises ``OSError``, and then everything is as it was.
        """
        old, self._serving = self._serving, await self._serve(context)
        if old is not None:
            await old.close()

    async def close(self) -> None:
        """Refuse whoever comes, and end what is open."""
        self._drop()
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.end_handshakes()
            await serving.close()

    def _drop(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets = []

    async def _serve(self, context: ssl.SSLContext) -> _Serving:
        loop = asyncio.get_running_loop()
        # aiohttp's own default would let a silent client keep its slot for minutes after the last byte.
        serving = _Serving(self._quick, self._handler, context, self._handshake, self._keepalive)
        serving.server = web.Server(
            serving.handle,
            access_log=None,
            auto_decompress=False,  # nobody packs what is pushed, and one that does so badly would be our error
            logger=_ServerLog(logging.getLogger("aiohttp.server")),
            keepalive_timeout=self._keepalive,
            lingering_time=1.0,
        )
        try:
            for one in self._sockets:
                serving.accepting.append(
                    await loop.create_server(lambda: _Arrival(serving), sock=one.dup(), backlog=BACKLOG)
                )
        except OSError:
            await serving.close()
            raise
        return serving


class _Serving:
    """One generation of the listener."""

    def __init__(
        self, quick: Quick, handler: Handler, context: ssl.SSLContext, handshake: Seconds, keepalive: Seconds
    ) -> None:
        self._quick = quick
        self._handler = handler
        self._context = context
        self._handshake = handshake
        self._keepalive = keepalive
        self._closed = False
        self._fronts: set[Front] = set()
        self._arrivals: dict[_Arrival, None] = {}
        self.server: web.Server | None = None
        self.accepting: list[asyncio.Server] = []

    def arrive(self, arrival: _Arrival) -> None:
        """A connection came in. The one that has shaken hands longest makes room for it, if there is none."""
        if len(self._arrivals) >= MOST_HANDSHAKES:
            next(iter(self._arrivals)).end()
        self._arrivals[arrival] = None

    def leave(self, arrival: _Arrival) -> None:
        """Its handshake is over, one way or the other."""
        self._arrivals.pop(arrival, None)

    async def shake_hands(self, transport: asyncio.Transport, arrival: _Arrival) -> asyncio.Transport | None:
        """The connection inside TLS. Raises ``OSError``."""
        return await asyncio.get_running_loop().start_tls(
            transport,
            arrival,
            self._context,
            server_side=True,
            ssl_handshake_timeout=self._handshake,
            ssl_shutdown_timeout=GOODBYE,
        )

    def protocol(self) -> asyncio.Protocol:
        """What a connection whose handshake is over is answered by."""
        server = self.server
        if server is None or len(self._fronts) + len(server.connections) >= MOST_CONNECTIONS:
            return _Refused()
        front = Front(self._answer, server, self._fronts.discard, self._keepalive)
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

    def end_handshakes(self) -> None:
        """Whoever has yet to prove who it is need not any more."""
        for arrival in tuple(self._arrivals):
            arrival.end()

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


class _Arrival(asyncio.Protocol):
    """A connection until its handshake is over.

    asyncio tells nobody of a handshake that fails when its server does the shaking, so each one would count for good.
    What came together with the end of the handshake is kept for whoever answers.
    """

    def __init__(self, serving: _Serving) -> None:
        self._serving = serving
        self._early = bytearray()
        self._ended = False
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It came in; nothing is read before TLS reads it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()
        self._serving.arrive(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(self._transport))
        self._task.add_done_callback(lambda _: self._serving.leave(self))

    def data_received(self, data: bytes) -> None:
        """The first question."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended before anybody answered."""
        self._ended = True

    def end(self) -> None:
        """Give it up."""
        self._serving.leave(self)
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        try:
            secured = await self._serving.shake_hands(transport, self)
        except OSError:
            # TLS has told whoever it was, and a line for each would let a stranger fill the log.
            return
        if secured is None or self._ended:
            return
        protocol = self._serving.protocol()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(bytes(self._early))


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
