"""The exchange over real sockets: a mutual-TLS listener for three routes, and a client that trusts nobody's word.

Both sides keep their connections and do no more for a question than it takes, since a node of n is asked, and asks,
n - 1 times in each interval. The client sees a body before it is decompressed and in pieces, so that a hostile peer
costs a bounded amount; what a listener is asked that is not usual is read by aiohttp.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import anyio
from aiohttp import StreamReader, web

from cronstable.api import Host, Seconds
from cronstable_gossip import decisions
from cronstable_gossip.certificates import Material, digest, load
from cronstable_gossip.heads import parse_question, write, write_answer
from cronstable_gossip.lines import Answer, Lines
from cronstable_gossip.listener import Listener
from cronstable_gossip.payload import GZIP_FROM, BadReport, sane_etag, unzip
from cronstable_gossip.settings import Address, TlsFiles
from cronstable_gossip.wire import Caller, NotTold, Reply, Responder, Untrusted

IO_TIMEOUT: Final[Seconds] = 10.0
"""For reading three certificate files."""
EXPIRY_NOTICE: Final[Seconds] = 14 * 86_400.0
USE: Final = "gossip"
"""What these certificates are called where their ends are shown."""
EXPIRY_REMINDER: Final[Seconds] = 86_400.0
READ_SIZE: Final = 65_536
TLS_BUFFER: Final = 16_384
"""Bytes: what one TLS record holds at most (RFC 8446, 5.1)."""
INSTANCE_HEADER: Final = "X-Cronstable-Instance"
STATS_HEADER: Final = "X-Cronstable-Node-Stats"
MOST_PUSHED: Final = 262_144
"""Bytes of a ``POST /reboot-ran``."""
LANE: Final = "gossip"
ASIDE: Final = "gossip-decisions"
"""The lane of what is written for people: it must not keep certificates from being read."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``timeout``: seconds for one exchange; ``keepalive``: how long a connection waits for the next one."""

    timeout: Seconds
    keepalive: Seconds


class TlsNetwork:
    """Implements ``Transport``. The two contexts are made from the same files and replaced together.

    ``section``: where its keys stand in the configuration, for messages.
    """

    def __init__(
        self,
        host: Host,
        listen: Address,
        peers: Sequence[Address],
        tls: TlsFiles,
        instance_id: str,
        bounds: Bounds,
        *,
        section: str = "cluster",
    ) -> None:
        self._host = host
        self._section = section
        self._what = section.rpartition(".")[2]
        self._listen = listen
        self._peers = tuple(peers)
        self._tls = tls
        self._instance_id = instance_id
        self._bounds = bounds
        self._listener: Listener | None = None
        self._responder: Responder | None = None
        self._lines: Lines | None = None
        self._aside: Lines | None = None
        self._zipped: tuple[bytes, bytes] = (b"", b"")
        self._material: Material | None = None
        self._refused: bytes | None = None
        self._reminded: float = float("-inf")

    # -- life ---------------------------------------------------------------------------------------------------------

    async def rehearse(self) -> None:
        """Load the certificates, and nothing else. Raises ``OSError``."""
        await self._load()

    async def open(self, responder: Responder) -> None:
        """Load the certificates and listen. Raises ``OSError``."""
        # asyncio gives each TLS connection a buffer of 256 KiB, and takes as much again for each read. A node holds two
        # connections for each peer; the size can only be said for all connections of the process.
        SSLProtocol.max_size = TLS_BUFFER
        self._responder = responder
        self._material = await self._load()
        bounds = self._bounds
        listener = Listener(self._listen, self._quick, self._handle, bounds.timeout, bounds.keepalive, self._section)
        await listener.open(self._material.server)
        self._listener = listener
        self._lines, self._aside = self._connect(self._material)
        self._remind(self._material)

    async def close(self) -> None:
        """Stop listening first, so that nobody counts on us any more."""
        listener, self._listener = self._listener, None
        open_lines = (self._lines, self._aside)
        self._lines = self._aside = None
        # Whoever is still asking is refused: a node that has ended must not be heard beside the one after it.
        self._responder = None
        self._host.certificates(USE, ())
        if listener is not None:
            await listener.close()
        for lines in open_lines:
            if lines is not None:
                lines.close()

    async def rotate(self) -> None:
        """Take over changed files when they load; keep what is in use, and say so once, when they do not."""
        if self._material is None or self._listener is None:
            return
        try:
            found = await self._host.threads.run(lambda: digest(self._tls), timeout=IO_TIMEOUT, lane=LANE)
        except OSError as error:
            self._keep(b"", error)
            return
        if found == self._material.digest:
            self._refused = None
            self._remind(self._material)
            return
        try:
            material = await self._load()
            await self._listener.swap(material.server)
        except OSError as error:
            self._keep(found, error)
            return
        old = (self._lines, self._aside)
        self._lines, self._aside = self._connect(material)
        self._material, self._refused = material, None
        self._reminded = float("-inf")
        self._host.log.info("%s: the certificates changed and are in use", self._what)
        self._remind(material)
        for lines in old:
            if lines is not None:
                lines.close()

    def _keep(self, found: bytes, error: OSError) -> None:
        if self._refused != found:
            self._refused = found
            self._host.log.warning(
                "%s: the changed certificates cannot be used, the old ones stay: %s", self._what, error
            )

    async def _load(self) -> Material:
        return await self._host.threads.run(lambda: load(self._tls, self._section), timeout=IO_TIMEOUT, lane=LANE)

    def _remind(self, material: Material) -> None:
        self._host.certificates(USE, material.expires)
        now = self._host.clock.now()
        if now.boot - self._reminded < EXPIRY_REMINDER:
            return
        for path, at in material.expires:
            if at - now.wall < EXPIRY_NOTICE:
                self._reminded = now.boot
                days = (at - now.wall) / 86_400
                how = f"expires in {days:.1f} days" if days > 0 else "has expired"
                self._host.log.warning("%s: the certificate in %s %s", self._what, path, how)

    # -- asking -------------------------------------------------------------------------------------------------------

    def _connect(self, material: Material) -> tuple[Lines, Lines]:
        """Those of the exchange, and those beside it: what people ask must not keep the exchange waiting."""
        keepalive, now = self._bounds.keepalive, lambda: self._host.clock.now().boot
        exchange = Lines(material.client, self._peers, keepalive, now, self._hung_up)
        return exchange, Lines(material.client, self._peers, keepalive, now, _nobody_waits)

    def _hung_up(self, index: int) -> None:
        if self._responder is not None:
            self._responder.hung_up(index)

    async def ask(self, index: int, etag: str | None, timeout: Seconds) -> Reply:
        """One question, answered within ``timeout`` seconds from its turn."""
        fields = {"Accept-Encoding": "gzip"}
        if etag is not None:
            fields["If-None-Match"] = etag
        answer = await self._exchange("GET", index, "/peer", fields, timeout=timeout)
        stats = answer.head.fields.get(STATS_HEADER.lower())
        tag = sane_etag(answer.head.fields.get("etag"))
        if answer.head.status == 304:
            return Reply(304, tag, None, stats)
        if answer.head.status != 200:
            raise OSError(f"answered {answer.head.status}")
        return Reply(200, tag, unzip(answer.body, answer.head.fields.get("content-encoding")), stats)

    async def push(self, index: int, body: bytes, timeout: Seconds) -> None:
        """Tell a peer which @reboot jobs ran."""
        fields = {"Content-Type": "application/json"}
        answer = await self._exchange("POST", index, "/reboot-ran", fields, body, timeout=timeout)
        if answer.head.status != 204:
            raise OSError(f"answered {answer.head.status}")

    async def decisions(self, index: int, job: str, limit: int, timeout: Seconds) -> bytes:
        """What a peer decided about a job, not yet looked at."""
        path = decisions.path_of(job, limit)
        fields = {"Accept-Encoding": "gzip", "Connection": "close"}
        with _translated():
            # Somebody waits for this: its turn is part of the time.
            async with asyncio.timeout(timeout):
                answer = await self._exchange("GET", index, path, fields, timeout=timeout, aside=True)
        if answer.head.status == 404:
            raise NotTold("it does not know the question")
        if answer.head.status != 200:
            raise OSError(f"answered {answer.head.status}")
        return unzip(answer.body, answer.head.fields.get("content-encoding"))

    async def _exchange(
        self,
        method: str,
        index: int,
        path: str,
        fields: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: Seconds,
        aside: bool = False,
    ) -> Answer:
        lines = self._aside if aside else self._lines
        if lines is None:
            raise OSError("closed")
        length = {} if body is None else {"Content-Length": str(len(body))}
        usual = {"Host": str(self._peers[index]), INSTANCE_HEADER: self._instance_id, "User-Agent": "cronstable"}
        question = write(f"{method} {path} HTTP/1.1", {**usual, **fields, **length}) + (body or b"")
        with _translated():
            return await lines.ask(index, question, timeout=timeout, again=body is None)

    # -- answering ----------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._responder is None:
            return web.Response(status=503)
        if request.path == "/peer" and request.method == "GET":
            return self._answer(request, self._responder)
        if request.path == "/reboot-ran" and request.method == "POST":
            return await self._take(request, self._responder)
        if request.path == "/decisions" and request.method == "GET":
            return await self._tell(request, self._responder)
        return web.Response(status=405 if request.path in ("/peer", "/reboot-ran", "/decisions") else 404)

    def _quick(self, data: bytes) -> bytes | None:
        """The whole answer to a usual question; None when it is another, which the library reads."""
        asked = parse_question(data, "/peer")
        if self._responder is None or asked is None or not asked.keys() <= _USUAL or "host" not in asked:
            return None
        return write_answer(*self._reply(self._responder, asked))

    def _answer(self, request: web.BaseRequest, responder: Responder) -> web.Response:
        status, fields, body = self._reply(responder, request.headers)
        return web.Response(status=status, headers=fields, body=body or None)

    def _reply(self, responder: Responder, asked: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Status, fields and body for whoever ``asked``, whose fields are found by their names in lower case."""
        instance = asked.get(INSTANCE_HEADER.lower())
        caller = Caller(
            sane_etag(asked.get("if-none-match")),
            instance if instance is not None and len(instance) <= 64 and instance.isalnum() else None,
        )
        reply = responder.peer(caller)
        fields = {"ETag": reply.etag or ""}
        if reply.stats is not None:
            fields[STATS_HEADER] = reply.stats
        body = reply.body
        if body is None:
            return reply.status, fields, b""
        fields["Content-Type"] = "application/json"
        if len(body) >= GZIP_FROM and "gzip" in asked.get("accept-encoding", ""):
            if self._zipped[0] is not body:
                # Level 1, no time stamp: the same answer has the same bytes, and it is small enough at any level.
                self._zipped = (body, gzip.compress(body, 1, mtime=0))
            body = self._zipped[1]
            fields["Content-Encoding"] = "gzip"
        return reply.status, fields, body

    async def _tell(self, request: web.BaseRequest, responder: Responder) -> web.Response:
        job, limit = request.query.get("job", ""), request.query.get("limit", "")
        if not decisions.askable(job) or not limit.isascii() or not limit.isdigit() or len(limit) > 4:
            return web.Response(status=400)
        write_body = responder.decisions(job, min(int(limit), decisions.MOST_DECISIONS))
        packed = "gzip" in request.headers.get("accept-encoding", "")

        def made() -> bytes:
            return gzip.compress(write_body(), 1, mtime=0) if packed else write_body()

        try:
            body = await self._host.threads.run(made, timeout=self._bounds.timeout, lane=ASIDE)
        except TimeoutError:
            return web.Response(status=503)
        fields = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if packed else {})
        return web.Response(headers=fields, body=body)

    async def _take(self, request: web.BaseRequest, responder: Responder) -> web.Response:
        try:
            with anyio.fail_after(self._bounds.timeout):
                body = await _read(request.content, MOST_PUSHED)
        except TimeoutError:
            return web.Response(status=408)
        except BadReport:
            return web.Response(status=413)
        return web.Response(status=204 if responder.take(body) else 400)


def _nobody_waits(index: int) -> None:
    """A connection beside the exchange that ends says nothing of its peer."""


async def _read(stream: StreamReader, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(READ_SIZE):
        size += len(piece)
        if size > most:
            raise BadReport(f"the body is longer than {most} bytes")
        pieces.append(piece)
    return b"".join(pieces)


@contextmanager
def _translated() -> Iterator[None]:
    """Turns what went wrong into ``Untrusted``, ``ConnectionRefusedError`` or another ``OSError``."""
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError("no answer in time") from error
    except ConnectionRefusedError:
        raise
    except ssl.SSLError as error:
        why = str(error) or type(error).__name__
        raise ConnectionError(why) if isinstance(error, _CUT_OFF) else Untrusted(why) from error


_CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The connection ended in the middle: nothing was said about trust."""


_USUAL: Final = frozenset(("host", "user-agent", "accept", "accept-encoding", "if-none-match", INSTANCE_HEADER.lower()))
"""The fields of a usual question; with any other it may want something that only the library knows."""
