"""What the exchange asks of a network: one question, one push, and somebody to answer. No sockets here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cronstable.api import Seconds


class Untrusted(OSError):
    """The other side did not prove who it is, or did not believe us."""


class NotTold(OSError):
    """The other side does not know the question: it is of an older version."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to ``GET /peer``. ``body``: decompressed; None for 304. ``stats``: the node stats header."""

    status: int
    etag: str | None
    body: bytes | None
    stats: str | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """A question that came in. ``etag``: what it already has; ``instance_id``: which process asks, if it says so."""

    etag: str | None
    instance_id: str | None


class Responder(Protocol):
    """Who answers what comes in. All are called on the loop and none waits."""

    def peer(self, caller: Caller) -> Reply:
        """The answer to ``GET /peer``."""
        ...

    def take(self, body: bytes) -> bool:
        """Take in a ``POST /reboot-ran``; False when it is malformed."""
        ...

    def decisions(self, job: str, limit: int) -> Callable[[], bytes]:
        """The answer to ``GET /decisions``, as of now: what is returned writes it, and may be called in any thread."""
        ...

    def hung_up(self, index: int) -> None:
        """Peer ``index`` ended the connection on which it was asked last, unasked: it may have ended itself."""
        ...


class Transport(Protocol):
    """A node's way to its peers, and theirs to it."""

    async def rehearse(self) -> None:
        """Load the certificates, and nothing else. Raises ``OSError`` when they do not load."""
        ...

    async def open(self, responder: Responder) -> None:
        """Begin to answer. Raises ``OSError`` when that is impossible."""
        ...

    async def close(self) -> None:
        """Answer nobody any more, at once."""
        ...

    async def ask(self, index: int, etag: str | None, timeout: Seconds) -> Reply:
        """``GET /peer`` of peer ``index``. Raises ``Untrusted``, ``BadReport`` or another ``OSError``."""
        ...

    async def push(self, index: int, body: bytes, timeout: Seconds) -> None:
        """``POST /reboot-ran`` to peer ``index``. Raises ``OSError``."""
        ...

    async def decisions(self, index: int, job: str, limit: int, timeout: Seconds) -> bytes:
        """``GET /decisions`` of peer ``index``. Raises ``NotTold``, ``BadReport`` or another ``OSError``.

        It does not stand in the way of ``ask``.
        """
        ...

    async def rotate(self) -> None:
        """Look whether the certificates changed, and use the new ones if they load."""
        ...


MakeTransport = Callable[[str], Transport]
"""Called with our instance id."""
