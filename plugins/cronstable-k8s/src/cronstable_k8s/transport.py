"""How requests reach the apiserver: over the host's HTTP client, or over Kubernetes' own client for Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from cronstable.api import Host, HttpResponse, HttpStream, HttpStreams, Seconds
from cronstable_k8s.access import Access

UNAUTHORIZED: Final = 401


class Transport(Protocol):
    """One apiserver. ``path`` begins with ``/apis``; both raise ``OSError`` as ``cronstable.api.Http`` does."""

    async def request(self, method: str, path: str, content: bytes = b"", *, timeout: Seconds) -> HttpResponse:
        """One exchange, with whatever credentials are configured."""
        ...

    def stream(self, path: str, *, timeout: Seconds, lasts: Seconds) -> AbstractAsyncContextManager[HttpStream]:
        """A GET whose answer goes on for up to ``lasts`` seconds; it must begin within ``timeout``."""
        ...


class HttpTransport:
    """Over ``host.http``, with credentials that may rotate."""

    def __init__(self, host: Host, access: Access) -> None:
        self._host = host
        self._access = access

    async def request(self, method: str, path: str, content: bytes = b"", *, timeout: Seconds) -> HttpResponse:
        """See ``Transport.request``. A token that is refused is read again, and the request sent once more."""
        answer = await self._send(method, path, content, timeout)
        if answer.status == UNAUTHORIZED and await self._access.other_token():
            answer = await self._send(method, path, content, timeout)
        return answer

    async def _send(self, method: str, path: str, content: bytes, timeout: Seconds) -> HttpResponse:
        return await self._host.http.request(
            method,
            self._access.server + path,
            headers=self._headers(),
            content=content,
            timeout=timeout,
            tls=self._access.context,
        )

    @asynccontextmanager
    async def stream(self, path: str, *, timeout: Seconds, lasts: Seconds) -> AsyncIterator[HttpStream]:
        """See ``Transport.stream``."""
        http = self._host.http
        if not isinstance(http, HttpStreams):
            raise OSError("this host's HTTP client has no streams")
        headers, tls = self._headers(), self._access.context
        async with http.stream("GET", self._access.server + path, headers=headers, timeout=timeout, tls=tls) as stream:
            yield stream

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json", "content-type": "application/json"}
        token = self._access.token
        return headers if token is None else {**headers, "authorization": f"Bearer {token}"}
