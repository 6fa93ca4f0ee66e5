"""Connections to peers that stay open between questions. They trust no answer to be short, whole or HTTP."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType

from cronstable.api import Seconds
from cronstable_gossip.heads import END, MOST_HEAD, Head, parse_answer
from cronstable_gossip.payload import MOST_BYTES, BadReport
from cronstable_gossip.settings import Address

CONCURRENT: Final = 32
"""Questions of ours on their way; further ones wait, and their time begins when it is their turn."""
PER_PEER: Final = 2
NEXT_ADDRESS_AFTER: Final[Seconds] = 0.25
"""A name that stands for several addresses: how long one of them is waited for alone (RFC 8305)."""
GOODBYE: Final[Seconds] = 1.0


class HungUp(ConnectionError):
    """The connection ended before a byte of the answer came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; ``body`` as it was sent, ``Head.fields`` by name in lower case."""

    head: Head
    body: bytes


class Line(asyncio.Protocol):
    """One connection, with one question at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._data = bytearray()
        self._head: Head | None = None
        self.idle_since = 0.0
        self.hung_up: Callable[[], None] | None = None
        """Called when the other end ends it while it waits for a question."""

    @property
    def open(self) -> bool:
        """A question can be asked on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, question: bytes) -> Answer:
        """The answer to ``question``. Raises ``OSError`` or ``BadReport``; whoever gives up ends the connection."""
        if self._transport is None or not self.open:
            raise HungUp("the connection has ended")
        self._data.clear()
        self._head = None
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._transport.write(question)
        try:
            return await answer
        finally:
            self._answer = None
            if not answer.done() or answer.cancelled() or answer.exception() is not None:
                self.abort()

    def close(self) -> None:
        """End it as TLS wants it."""
        self.hung_up = None
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self.hung_up = None
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open: the handshake is over."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """A piece of an answer. What nobody asked for ends the connection."""
        if self._answer is None or self._answer.done():
            self.abort()
            return
        self._data += data
        try:
            self._advance(self._answer)
        except BadReport as error:
            self._answer.set_exception(error)
        except ValueError as error:
            self._answer.set_exception(OSError(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended, perhaps in the middle."""
        self._transport = None
        answer, head = self._answer, self._head
        if answer is None or answer.done():
            hung_up, self.hung_up = self.hung_up, None
            if hung_up is not None:
                hung_up()
            return
        if exc is None and head is not None and head.length is None:
            answer.set_result(Answer(head, bytes(self._data)))
        elif isinstance(exc, ssl.SSLError):
            answer.set_exception(exc)
        elif head is not None or self._data:
            answer.set_exception(ConnectionError("the answer ends in the middle"))
        else:
            # asyncio ends a connection whose client certificate it refuses without saying so.
            answer.set_exception(HungUp("disconnected without an answer; perhaps it does not trust our certificate"))

    def _advance(self, answer: asyncio.Future[Answer]) -> None:
        """Take what is there. Raises ``ValueError``."""
        head = self._head
        if head is None:
            end = self._data.find(END)
            if max(end, len(self._data) if end < 0 else 0) > MOST_HEAD:
                raise ValueError("the head of the answer is too long")
            if end < 0:
                return
            head = self._head = parse_answer(bytes(self._data[:end]))
            del self._data[: end + len(END)]
        if (head.length or len(self._data)) > MOST_BYTES:
            raise BadReport(f"the body is longer than {MOST_BYTES} bytes")
        if head.length is None or len(self._data) < head.length:
            return
        answer.set_result(Answer(head, bytes(self._data[: head.length])))
        if not head.stays or len(self._data) > head.length:
            self.close()


class Lines:
    """The connections to all peers under one TLS context.

    ``keepalive``: seconds that one waits for a question, by ``now``, a clock that only goes forward.
    ``hung_up``: called with the index of a peer that ended a connection which waited.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        peers: Sequence[Address],
        keepalive: Seconds,
        now: Callable[[], float],
        hung_up: Callable[[int], None],
    ) -> None:
        self._context = context
        self._peers = peers
        self._keepalive = keepalive
        self._now = now
        self._hung_up = [partial(hung_up, index) for index in range(len(peers))]
        self._idle: list[list[Line]] = [[] for _ in peers]
        self._slots = [asyncio.Semaphore(PER_PEER) for _ in peers]
        self._all = asyncio.Semaphore(CONCURRENT)
        self._closed = False

    async def ask(self, index: int, question: bytes, *, timeout: Seconds, again: bool) -> Answer:
        """The answer of peer ``index``, within ``timeout`` seconds from its turn. Raises ``OSError`` or ``BadReport``.

        ``again``: ask once more when a connection turns out to have been closed at the other end before.
        """
        # Not anyio's deadline, which is a tenth of what a question costs.
        async with self._slots[index], self._all, asyncio.timeout(timeout):
            line = self._take(index)
            if line is not None:
                try:
                    return await self._ask(index, line, question)
                except HungUp:
                    if not again:
                        raise
            return await self._ask(index, await self._connect(self._peers[index]), question)

    def close(self) -> None:
        """End what waits for a question now, and what is on its way after its answer."""
        self._closed = True
        for idle in self._idle:
            while idle:
                idle.pop().close()

    async def _ask(self, index: int, line: Line, question: bytes) -> Answer:
        answer = await line.ask(question)
        if self._closed:
            line.close()
        elif line.open:
            line.idle_since = self._now()
            line.hung_up = self._hung_up[index]
            self._idle[index].append(line)
        return answer

    def _take(self, index: int) -> Line | None:
        """The connection that was used last, if it can be used again."""
        idle = self._idle[index]
        oldest = self._now() - self._keepalive
        while idle:
            line = idle.pop()
            if line.open and line.idle_since > oldest:
                line.hung_up = None
                return line
            line.close()
        return None

    async def _connect(self, peer: Address) -> Line:
        loop = asyncio.get_running_loop()
        name = peer.host.rstrip(".")
        try:
            found = await _resolve(peer)
            one = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_AFTER)
            _, line = await loop.create_connection(
                Line, sock=one, ssl=self._context, server_hostname=name, ssl_shutdown_timeout=GOODBYE
            )
        except UnicodeError as error:
            raise OSError(f"{peer.host} is no name of a host") from error
        return line


async def _resolve(peer: Address) -> list[AddrInfoType]:
    try:
        # An address needs nobody to look it up, and the loop no thread for it.
        return list(socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
        return list(found)
