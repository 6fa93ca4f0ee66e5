"""Who stands before the library: the question that peers ask all day is answered here, the rest is handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from cronstable.api import Seconds

MOST_UNREAD: Final = 262_144
"""Bytes of answers that nobody takes; who asks on without taking them is dropped."""

Quick = Callable[[bytes], bytes | None]
"""Given what came in, the whole answer; None when that is the library's to read."""


class Front(asyncio.Protocol):
    """One connection from a peer.

    A usual question costs no task, no request object and no timer. With the first thing that is anything else the
    connection becomes one of the library's, for good.

    ``quick``: see ``Quick``. ``library``: makes a protocol of the library. ``gone``: called once when the connection
    is no longer in this one's hands.
    """

    def __init__(
        self,
        quick: Quick,
        library: Callable[[], asyncio.Protocol],
        gone: Callable[[Front], None],
        keepalive: Seconds,
    ) -> None:
        self._quick = quick
        self._library = library
        self._gone = gone
        self._keepalive = keepalive
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MOST_UNREAD)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """A question, or the beginning of something else."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        answer = self._quick(data)
        if answer is None:
            self._hand_over(transport, data)
            return
        self._asked = True
        transport.write(answer)

    def pause_writing(self) -> None:
        """Answers pile up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended."""
        self._leave()

    def close(self) -> None:
        """End it: nothing is being answered, since answers do not wait."""
        if self._transport is not None:
            self._transport.close()

    def _hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        protocol = self._library()
        self._leave()
        transport.set_write_buffer_limits()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport = None
            self._gone(self)

    def _watch(self) -> None:
        self._asked = False
        self._timer = asyncio.get_running_loop().call_later(self._keepalive, self._look)

    def _look(self) -> None:
        """Nothing was asked for one idle time, or two at most: a timer for each question would cost more than it."""
        if self._asked:
            self._watch()
        else:
            self.close()
