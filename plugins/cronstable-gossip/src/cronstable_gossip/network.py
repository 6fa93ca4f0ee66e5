"""The exchange over real sockets: a mutual-TLS listener for two routes, and a client that trusts nobody's word.

aiohttp on both sides: the client has to see a body before it is decompressed and in pieces, so that a hostile peer
costs a bounded amount, and the listener has to be replaced under its socket when certificates rotate.
"""

from __future__ import annotations

import gzip
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
from aiohttp import web

from cronstable.api import Host, Seconds
from cronstable_gossip.certificates import Material, digest, load
from cronstable_gossip.listener import Listener
from cronstable_gossip.payload import GZIP_FROM, MOST_BYTES, BadReport, sane_etag, unzip
from cronstable_gossip.settings import Address, TlsFiles
from cronstable_gossip.wire import Caller, Reply, Responder, Untrusted

if TYPE_CHECKING:
    import aiohttp

IO_TIMEOUT: Final[Seconds] = 10.0
"""For reading three certificate files."""
EXPIRY_NOTICE: Final[Seconds] = 14 * 86_400.0
USE: Final = "gossip"
"""What these certificates are called where their ends are shown."""
EXPIRY_REMINDER: Final[Seconds] = 86_400.0
CONCURRENT: Final = 32
"""Connections of ours; further questions wait for one."""
READ_SIZE: Final = 65_536
TLS_BUFFER: Final = 16_384
"""Bytes: what one TLS record holds at most (RFC 8446, 5.1)."""
INSTANCE_HEADER: Final = "X-Cronstable-Instance"
STATS_HEADER: Final = "X-Cronstable-Node-Stats"
MOST_PUSHED: Final = 262_144
"""Bytes of a ``POST /reboot-ran``."""
LANE: Final = "gossip"


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
        self._session: aiohttp.ClientSession | None = None
        self._material: Material | None = None
        self._refused: bytes | None = None
        self._reminded: float = float("-inf")

    # -- life ---------------------------------------------------------------------------------------------------------

    async def open(self, responder: Responder) -> None:
        """Load the certificates and listen. Raises ``OSError``."""
        # asyncio gives each TLS connection a buffer of 256 KiB, and takes as much again for each read. A node holds two
        # connections for each peer; the size can only be said for all connections of the process.
        SSLProtocol.max_size = TLS_BUFFER
        self._responder = responder
        self._material = await self._load()
        listener = Listener(self._listen, self._handle, self._bounds.timeout, self._bounds.keepalive, self._section)
        await listener.open(self._material.server)
        self._listener = listener
        self._session = self._connect(self._material)
        self._remind(self._material)

    async def close(self) -> None:
        """Stop listening first, so that nobody counts on us any more."""
        listener, self._listener = self._listener, None
        session, self._session = self._session, None
        # Whoever is still asking is refused: a node that has ended must not be heard beside the one after it.
        self._responder = None
        self._host.certificates(USE, ())
        if listener is not None:
            await listener.close()
        if session is not None:
            await session.close()

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
        except OSError as error:
            self._keep(found, error)
            return
        await self._listener.swap(material.server)
        session, self._session = self._session, self._connect(material)
        self._material, self._refused = material, None
        self._reminded = float("-inf")
        self._host.log.info("%s: the certificates changed and are in use", self._what)
        self._remind(material)
        if session is not None:
            await session.close()

    def _keep(self, found: bytes, error: OSError) -> None:
        if self._refused != found:
            self._refused = found
            self._host.log.warning("%s: the changed certificates do not load, the old ones stay: %s", self._what, error)

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

    def _connect(self, material: Material) -> aiohttp.ClientSession:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        connector = TCPConnector(
            ssl=material.client, limit=CONCURRENT, limit_per_host=2, keepalive_timeout=self._bounds.keepalive
        )
        return ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None),
            trust_env=False,
            auto_decompress=False,
            headers={INSTANCE_HEADER: self._instance_id, "User-Agent": "cronstable"},
            skip_auto_headers=("Accept",),
        )

    async def ask(self, index: int, etag: str | None, timeout: Seconds) -> Reply:
        """One question, all of it within ``timeout`` seconds."""
        headers = {"Accept-Encoding": "gzip"}
        if etag is not None:
            headers["If-None-Match"] = etag
        with _translated(), anyio.fail_after(timeout):
            async with self._request("GET", index, "/peer", headers=headers) as answer:
                stats = answer.headers.get(STATS_HEADER)
                tag = sane_etag(answer.headers.get("ETag"))
                if answer.status == 304:
                    return Reply(304, tag, None, stats)
                if answer.status != 200:
                    raise OSError(f"answered {answer.status}")
                body = await _read(answer.content, MOST_BYTES)
                return Reply(200, tag, unzip(body, answer.headers.get("Content-Encoding")), stats)

    async def push(self, index: int, body: bytes, timeout: Seconds) -> None:
        """Tell a peer which @reboot jobs ran."""
        headers = {"Content-Type": "application/json"}
        with _translated(), anyio.fail_after(timeout):
            async with self._request("POST", index, "/reboot-ran", headers=headers, data=body) as answer:
                if answer.status != 204:
                    raise OSError(f"answered {answer.status}")

    def _request(
        self, method: str, index: int, path: str, *, headers: dict[str, str], data: bytes | None = None
    ) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            raise OSError("closed")
        url = f"https://{self._peers[index]}{path}"
        return self._session.request(method, url, headers=headers, data=data, allow_redirects=False)

    # -- answering ----------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._responder is None:
            return web.Response(status=503)
        if request.path == "/peer" and request.method == "GET":
            return self._answer(request, self._responder)
        if request.path == "/reboot-ran" and request.method == "POST":
            return await self._take(request, self._responder)
        return web.Response(status=405 if request.path in ("/peer", "/reboot-ran") else 404)

    def _answer(self, request: web.BaseRequest, responder: Responder) -> web.Response:
        instance = request.headers.get(INSTANCE_HEADER)
        caller = Caller(
            sane_etag(request.headers.get("If-None-Match")),
            instance if instance is not None and len(instance) <= 64 and instance.isalnum() else None,
        )
        reply = responder.peer(caller)
        headers = {"ETag": reply.etag or ""}
        if reply.stats is not None:
            headers[STATS_HEADER] = reply.stats
        if reply.body is None:
            return web.Response(status=reply.status, headers=headers)
        body = reply.body
        if len(body) >= GZIP_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):
            # Level 1, no time stamp: the same answer has the same bytes, and it is small enough at any level.
            body = gzip.compress(body, 1, mtime=0)
            headers["Content-Encoding"] = "gzip"
        return web.Response(status=reply.status, headers=headers, body=body, content_type="application/json")

    async def _take(self, request: web.BaseRequest, responder: Responder) -> web.Response:
        try:
            with anyio.fail_after(self._bounds.timeout):
                body = await _read(request.content, MOST_PUSHED)
        except TimeoutError:
            return web.Response(status=408)
        except BadReport:
            return web.Response(status=413)
        return web.Response(status=204 if responder.take(body) else 400)


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes:
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
    """Turns the client's exceptions into ``Untrusted``, ``ConnectionRefusedError`` or another ``OSError``."""
    import aiohttp

    try:
        yield
    except TimeoutError as error:
        raise TimeoutError("no answer in time") from error
    except aiohttp.ServerDisconnectedError as error:
        # asyncio ends a connection whose client certificate it refuses without saying so.
        raise OSError("disconnected without an answer; perhaps it does not trust our certificate") from error
    except (aiohttp.ClientError, OSError) as error:
        chain = list(_chain(error))
        why = str(error) or type(error).__name__
        if any(isinstance(one, ssl.SSLError) and not isinstance(one, _CUT_OFF) for one in chain):
            raise Untrusted(why) from error
        if any(isinstance(one, ConnectionRefusedError) for one in chain):
            raise ConnectionRefusedError(why) from error
        raise OSError(why) from error


_CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The connection ended in the middle: nothing was said about trust."""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = getattr(error, "os_error", None)
        if isinstance(inner, BaseException):
            yield inner
        error = error.__cause__ or error.__context__
