"""The one HTTP client of the host. httpx is imported when the first request is made."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from cronstable.core.clock import Seconds
from cronstable.plugin.protocols import HttpResponse

if TYPE_CHECKING:
    import httpx


class HttpxClient:
    """Implements ``cronstable.api.Http``: verified TLS, no proxies from the environment, no redirects."""

    def __init__(self) -> None:
        self._clients: dict[ssl.SSLContext | None, httpx.AsyncClient] = {}

    def _client(self, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
        import httpx

        if tls not in self._clients:
            verify: ssl.SSLContext | bool = tls if tls is not None else True
            self._clients[tls] = httpx.AsyncClient(verify=verify, trust_env=False, follow_redirects=False)
        return self._clients[tls]

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
        import httpx

        try:
            with anyio.fail_after(timeout):
                answer = await self._client(tls).request(
                    method, url, headers=dict(headers), content=content, timeout=timeout
                )
        except httpx.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return HttpResponse(answer.status_code, dict(answer.headers.items()), answer.content)

    async def close(self) -> None:
        """Close all connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()
