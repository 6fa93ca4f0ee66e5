"""Answers without an end: server-sent events, bounded in number and in memory, over as soon as the service stops."""

from __future__ import annotations

import json
import logging
from typing import Final, Protocol

import anyio
from aiohttp import web

from cronstable.api import Clock, Json
from cronstable.builtin.web.answers import fail
from cronstable.builtin.web.contexts import Contexts

MOST: Final = 512
"""Streams at once; one more is answered with 503."""
LEFT: Final = 4
"""One connection out of so many is left to those who ask for no stream, or nobody could ask whether we live."""
PING: Final = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the connection for dead (reference 7.2)."""
SEND_TIMEOUT: Final = 30.0
"""Seconds for a chunk to be taken by a slow reader; then it is dropped and may come back where it was."""
PACE: Final = 0.05
"""Seconds between two chunks of one stream. With chunks of 64 KiB that is more than a megabyte a second."""
CROWD: Final = 40
"""Streams that go at that pace; more share it, so that many readers of a job that never stops writing leave time for
everybody else."""
RETRY: Final = b"retry: 2000\n\n"
"""What a browser is told to wait, in milliseconds, before it connects again."""


class Source(Protocol):
    """Where the bytes of one stream come from."""

    async def take(self) -> bytes | None:
        """What there is to send, as soon as there is anything; None at the end. Cancelled, it has lost nothing."""
        ...


def message(event: str, data: Json, identity: str = "") -> bytes:
    """One server-sent event. JSON has no line break of its own, so it is one ``data`` line."""
    head = f"id: {identity}\n" if identity else ""
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Streams:
    """All streams of one service."""

    def __init__(self, clock: Clock, log: logging.Logger, contexts: Contexts, connections: int) -> None:
        """``connections``: how many can be open at once."""
        self._room = max(1, connections - connections // LEFT)
        self._clock = clock
        self._log = log
        self._contexts = contexts
        self._scopes: set[anyio.CancelScope] = set()
        self._ended = False

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._scopes)

    async def end(self, _: web.Application | None = None) -> None:
        """End all of them now: no stream holds up the end of the service (reference 13, row 84)."""
        self._ended = True
        for scope in tuple(self._scopes):
            scope.cancel()

    def admit(self) -> None:
        """503 when there can be no further one."""
        most = min(MOST, self._room)
        if self._ended or len(self._scopes) >= most:
            fail(503, "the service is stopping" if self._ended else f"{most} streams are open, which is the most")

    async def serve(self, request: web.Request, source: Source) -> web.StreamResponse:
        """Send what ``source`` gives until it ends, the reader leaves or falls too far behind, or the service stops.

        A stream under a certificate that was replaced ends too, within ``PING``: its reader comes back where it was.
        """
        headers = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return web.Response(headers=headers)
        self.admit()
        response = web.StreamResponse(headers=headers)
        response.force_close()
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await response.prepare(request)
                await self._pump(request, response, source)
            except ConnectionError:
                self._log.debug("web: the reader of %s left", request.rel_url.raw_path)
            finally:
                self._scopes.discard(scope)
        return response

    async def _pump(self, request: web.Request, response: web.StreamResponse, source: Source) -> None:
        chunk: bytes | None = RETRY
        while chunk is not None and not self._contexts.outdated(request.transport):
            with anyio.move_on_after(SEND_TIMEOUT) as late:
                await response.write(chunk)
            if late.cancelled_caught:
                self._log.info("web: %s does not read its stream and is dropped", request.remote or "a client")
                if request.transport is not None:
                    request.transport.abort()
                return
            chunk = b": ping\n\n"
            with anyio.move_on_after(PING):
                await self._clock.sleep(PACE * max(1.0, len(self._scopes) / CROWD))
                chunk = await source.take()
