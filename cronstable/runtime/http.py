"""The one HTTP client of the host. httpx is imported when the first request is made."""

from __future__ import annotations

import logging
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final

from cronstable.core.clock import Seconds
from cronstable.plugin.protocols import HttpResponse, HttpStream

if TYPE_CHECKING:
    import httpx

LONGEST_LINE: Final = 1 << 20
"""Bytes of one line of a stream."""

CONTEXTS_KEPT: Final = 16
"""The least recently used one beyond these is closed."""


_COMMAND_LINE: Final = "httpx._main"
_ASKED_FOR: Final = "sniffio"
"""Imported anew for each request by what httpx stands on. Where it is not installed that is a walk along the whole path
for nothing, a quarter of what a request costs, unless the import system knows that there is none."""


def import_httpx() -> ModuleType:
    """httpx without its command line, which would keep click, rich and pygments in the daemon: 5 MiB, 0.1 s of CPU.

    httpx does without where that module is missing, and None is how the import system is told that it is.
    """
    loaded = sys.modules.get("httpx")
    if loaded is not None:
        return loaded
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]  # see above
    if find_spec(_ASKED_FOR) is None:
        sys.modules[_ASKED_FOR] = None  # type: ignore[assignment]
    try:
        return import_module("httpx")
    finally:
        del sys.modules[_COMMAND_LINE]


class HttpxClient:
    """Implements ``cronstable.api.Http`` and ``HttpStreams``.

    TLS is verified, proxies of the environment are not used, redirects not followed. Connections are pooled for each
    TLS context; of contexts that were replaced, as rotated certificates are, only a few are kept.
    """

    def __init__(self) -> None:
        self._clients: dict[ssl.SSLContext | None, httpx.AsyncClient] = {}
        # For addresses that speak no TLS: to load the system's CAs takes longer than everything else at a start.
        self._trusts_nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def _client(self, url: str, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
        httpx = import_httpx()
        if tls is None and url.startswith("http://"):
            tls = self._trusts_nobody
        client = self._clients.pop(tls, None)
        if client is None:
            # These two log each request with its address, which can be the secret of a webhook.
            logging.getLogger("httpx").addFilter(_nothing)
            logging.getLogger("httpcore").setLevel(logging.INFO)
            verify: ssl.SSLContext | bool = tls if tls is not None else True
            client = httpx.AsyncClient(verify=verify, trust_env=False, follow_redirects=False)
        self._clients[tls] = client
        if len(self._clients) > CONTEXTS_KEPT:
            await self._clients.pop(next(iter(self._clients))).aclose()
        return client

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: Seconds,
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        """One exchange within ``timeout`` seconds; OSError when there is no complete answer."""
        import anyio

        httpx = import_httpx()
        try:
            with anyio.fail_after(timeout):
                client = await self._client(url, tls)
                answer = await client.request(method, url, headers=dict(headers), content=content, timeout=timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _os_error(error) from error
        return HttpResponse(answer.status_code, dict(answer.headers.items()), answer.content)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: Seconds,
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[HttpStream]:
        """An answer that is read line by line; it must begin within ``timeout`` seconds."""
        import anyio

        httpx = import_httpx()
        try:
            with anyio.fail_after(timeout):
                client = await self._client(url, tls)
                # Of the lines no deadline is known here.
                limits = httpx.Timeout(timeout, read=None)
                request = client.build_request(method, url, headers=dict(headers), content=content, timeout=limits)
                answer = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _os_error(error) from error
        lines = _lines(answer)
        try:
            yield HttpStream(answer.status_code, dict(answer.headers.items()), lines)
        finally:
            # Closing sends nothing and waits for nobody: the connection is dropped with what was still to come.
            with anyio.CancelScope(shield=True), anyio.move_on_after(timeout):
                await lines.aclose()
                await answer.aclose()

    async def close(self) -> None:
        """Close all connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    httpx = import_httpx()
    rest = b""
    try:
        async for piece in answer.aiter_bytes():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line
            if len(rest) > LONGEST_LINE:
                raise OSError(f"a line of the answer is longer than {LONGEST_LINE} bytes")
    except httpx.HTTPError as error:
        raise _os_error(error) from error
    if rest:
        yield rest


def _os_error(error: Exception) -> OSError:
    httpx = import_httpx()
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, httpx.TimeoutException):
        return TimeoutError(text)
    broke = httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError
    return ConnectionResetError(text) if isinstance(error, broke) else OSError(text)


def _nothing(record: logging.LogRecord) -> bool:
    """A filter that lets no record pass."""
    return False
