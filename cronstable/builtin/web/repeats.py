"""Requests that come again byte for byte, as pollers send them: answered before they are read another time.

Reading a request, finding its route and waking its handler cost several times what a kept answer costs. What a request
means does not change while its bytes do not: who may ask, and for which form, stands in them. So the first of its kind
goes through the library and all the checks, and what it was found to ask for is remembered under its bytes.

Bytes are only looked up where a request begins and nothing else is waiting for an answer. Both are known from the
beginning of a connection on, as long as each piece that arrives is one whole request. When one is not (a body, several
requests at once, a request in pieces), that connection is the library's for the rest of its life.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from aiohttp import HttpVersion11, web

from cronstable.api import Host, Seconds
from cronstable.builtin.web.contexts import Contexts

if TYPE_CHECKING:
    from cronstable.builtin.web.kept import Kept

MOST: Final = 64
"""Requests that are remembered; then the one that was not asked for longest is forgotten."""
LONGEST: Final = 4096
"""Bytes of a request that is remembered."""
RENEWED: Final[Seconds] = 10.0
"""A connection sends a request through the library this often: the library ends those on which it sees none."""
WRITE_TIMEOUT: Final[Seconds] = 30.0
"""Seconds for an answer to be taken by a slow reader; then the connection is dropped."""
HEAD_TIMEOUT: Final[Seconds] = 10.0
"""Seconds for the whole head of a request to arrive, from the connection's beginning or from its first byte on."""

_END: Final = b"\r\n\r\n"

Again: TypeAlias = "Callable[[], Kept | None]"
"""What a request asked for, as of now; None when that takes more than a moment to find out."""
Later: TypeAlias = "Callable[[Seconds, Callable[[], None]], asyncio.TimerHandle]"
"""Calls something after so many seconds."""
Pack: TypeAlias = "Callable[[Kept], bytes | memoryview]"
"""The whole answer, as it goes over the wire."""


def plain(request: web.BaseRequest) -> bool:
    """True for a GET without a body on a connection that stays open and stays HTTP: what pollers send."""
    return (
        request.version == HttpVersion11
        and request.method == "GET"
        and request.keep_alive
        and not request.can_read_body
        and "Upgrade" not in request.headers
    )


def on_this_loop(seconds: Seconds, call: Callable[[], None]) -> asyncio.TimerHandle:
    """Call ``call`` later, on the loop that runs here."""
    return asyncio.get_running_loop().call_later(seconds, call)


def whole(piece: bytes) -> bool:
    """True when ``piece`` can be nothing but the head of one request from its first byte to its last (RFC 9112, 2.1).

    A line that ends otherwise than it shall may be a line to one reader and none to another, so there is none here.
    """
    lines = piece.count(b"\r\n")
    return piece.find(_END) == len(piece) - len(_END) and piece.count(b"\n") == piece.count(b"\r") == lines


class Repeats:
    """What is remembered of the requests to one service, and its connections by the library's side of them."""

    def __init__(self, host: Host, contexts: Contexts, pack: Pack, later: Later = on_this_loop) -> None:
        self.clock = host.clock
        self.log = host.log
        self.contexts = contexts
        self.pack = pack
        self.known: OrderedDict[bytes, Again] = OrderedDict()
        self.ended = False
        self.connections: dict[asyncio.Protocol, Connection] = {}
        # Who owes the head of a request, and since when; the first one has owed it for longest.
        self._owing: dict[Connection, Seconds] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._later = later

    def before(self, make: Callable[[], asyncio.Protocol]) -> Connection:
        """A new connection, in front of what the library makes for it."""
        return Connection(self, make())

    def end(self) -> None:
        """The service is over: nothing is answered here any more, and who comes now is sent away.

        The library ends the connections that it has, and does not know of one that is accepted but not made yet, which
        takes a handshake over TLS. Whoever was in one would be served for good, by what the tokens were before.
        """
        self.ended = True
        self.known.clear()

    def learn(self, request: web.BaseRequest, again: Again) -> None:
        """Remember what a plain request asks for. It is being answered, so whoever sends these bytes may ask it."""
        connection = self.connections.get(request.protocol)
        if self.ended or connection is None or not 0 < len(connection.piece) <= LONGEST or not whole(connection.piece):
            return
        self.known[connection.piece] = again
        self.known.move_to_end(connection.piece)
        if len(self.known) > MOST:
            self.known.popitem(last=False)

    def owes(self, connection: Connection) -> None:
        """Note that the head of a request is waited for: it has ``HEAD_TIMEOUT`` from now on."""
        if connection not in self._owing:
            self._owing[connection] = self.clock.now().boot
            if self._sweep is None:
                self._sweep = self._later(HEAD_TIMEOUT, self._end_late)

    def paid(self, connection: Connection) -> None:
        """Note that no head is waited for. One timer does for all, and none runs when nothing is owed."""
        if self._owing.pop(connection, None) is not None and not self._owing and self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def begun(self, request: web.BaseRequest) -> None:
        """Note that a request has come whole as far as its head goes."""
        connection = self.connections.get(request.protocol)
        if connection is not None:
            self.paid(connection)

    def _end_late(self) -> None:
        self._sweep = None
        late = self.clock.now().boot - HEAD_TIMEOUT
        for connection, since in tuple(self._owing.items()):
            if since > late:
                self._sweep = self._later(since - late, self._end_late)
                return
            del self._owing[connection]
            connection.abort()

    def settled(self, request: web.BaseRequest) -> None:
        """Note that a plain request has its answer: where only this one was sent, the next begins."""
        connection = self.connections.get(request.protocol)
        if connection is not None:
            connection.settle()


class Connection(asyncio.Protocol):
    """Stands between a transport and the library; hands on all that it does not answer itself.

    ``piece`` is what the library was given since the last answer; empty when that was more than one piece.
    """

    def __init__(self, repeats: Repeats, inner: asyncio.Protocol) -> None:
        self._repeats = repeats
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._between = True
        self._renewed = float("-inf")
        self._full = False
        self._deadline: asyncio.TimerHandle | None = None
        self.piece = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand on; after the end of the service, hang up, and the library never hears of it."""
        if isinstance(transport, asyncio.Transport):
            if self._repeats.ended:
                self._inner = asyncio.Protocol()
                transport.abort()
                return
            self._transport = transport
            self._repeats.connections[self._inner] = self
            self._repeats.owes(self)
            if transport.get_extra_info("sslcontext") is not None:
                # TLS hands on all that it encrypts until the socket below is full, and does not tell that it is. What
                # is written after that shows it, however short: with these limits, there is a deadline from then on.
                transport.set_write_buffer_limits(high=1, low=0)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on."""
        self._transport = None
        self._repeats.connections.pop(self._inner, None)
        self._repeats.paid(self)
        self._on_time()
        self._inner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Hand on."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Hand on."""
        self._full = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on; what was written here is taken."""
        self._full = False
        self._on_time()
        self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Answer a request that is known, hand on anything else.

        A deadline that runs goes on: the library has none for a request that it has but a part of, so that one byte
        would do to be rid of both.
        """
        if self._between:
            known = self._repeats.known
            again = known.get(data)
            if again is not None:
                known.move_to_end(data)
                if self._answered(again):
                    return
            self._between, self.piece = False, data
            if not whole(data):
                self._repeats.owes(self)
        else:
            self.piece = b""
        self._inner.data_received(data)

    def settle(self) -> None:
        """The library has answered all that it was given."""
        if whole(self.piece):
            self._between, self.piece = True, b""
            self._renewed = self._repeats.clock.now().boot

    def abort(self) -> None:
        """End it now: the head of its request did not come in time."""
        if self._transport is not None:
            self._repeats.log.debug("web: a connection is ended: no request within %g s", HEAD_TIMEOUT)
            self._transport.abort()

    def _answered(self, again: Again) -> bool:
        """Write the answer; False when the library had better do it."""
        transport, repeats = self._transport, self._repeats
        if (
            transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size()
            or repeats.contexts.outdated(transport)
            or not 0 <= repeats.clock.now().boot - self._renewed < RENEWED
        ):
            return False
        try:
            kept = again()
            answer = None if kept is None else repeats.pack(kept)
        except Exception as error:  # noqa: BLE001 - asked again through the library, where it is logged and answered
            repeats.log.debug("web: a known request failed: %s", type(error).__name__)
            return False
        if answer is None:
            return False
        transport.write(answer)
        if self._full:
            self._deadline = asyncio.get_running_loop().call_later(WRITE_TIMEOUT, self._drop, transport)
        return True

    def _on_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self._repeats.log.warning("web: %s does not take its answer and is dropped", peer[0] if peer else "a client")
        transport.abort()
