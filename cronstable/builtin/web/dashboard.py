"""The dashboard: a page and its parts as they lie in ``ui/``, and the words for reasons that it shows.

It is data, not code of this service: hand-written HTML, CSS and JavaScript that the browser takes as they are. All that
it knows it gets from the API, with the caller's token; the page itself holds nothing that needs one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from aiohttp import web

from cronstable.api import Reason, because
from cronstable.builtin.web.answers import matches
from cronstable.builtin.web.routes import JSON, Route
from cronstable.builtin.web.shapes import dumps
from cronstable.builtin.web.site import Site

FOLDER: Final = Path(__file__).with_name("ui")
PAGE: Final = "index.html"
REASONS: Final = "reasons.json"
READ_TIMEOUT: Final = 10.0
"""Seconds for one of the files to be read, once."""

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": JSON}
)

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text can become markup, whatever the scripts do with it: the browser refuses.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What the page may do: ask this node, and nothing else. No inline script or style, no other host."""

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
)


class Dashboard:
    """Handlers of ``/`` and ``/ui/...``. All paths in the page are relative, so it works below any prefix."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._read: dict[str, bytes] = {}

    def routes(self) -> Iterable[Route]:
        """The page and each of its parts; none needs a token (reference 7.1)."""
        yield Route("GET", "/", self.page, "The dashboard", (200, 304), media=("text/html",), open=True)
        for name in (*parts(), REASONS):
            media = (KINDS[Path(name).suffix],)
            yield Route("GET", f"/ui/{name}", self.part, "A part of the dashboard", (200, 304), media=media, open=True)

    async def page(self, request: web.Request) -> web.Response:
        """GET /."""
        return await self._answer(request, PAGE)

    async def part(self, request: web.Request) -> web.Response:
        """GET /ui/{file}."""
        return await self._answer(request, request.path.rpartition("/")[2])

    async def _answer(self, request: web.Request, name: str) -> web.Response:
        body = self._read.get(name)
        if body is None:
            body = await self._site.host.threads.run(lambda: _content(name), timeout=READ_TIMEOUT, lane="web")
            self._read[name] = body
        etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers = {**HEADERS, "ETag": etag}
        if matches(request, etag):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=KINDS[Path(name).suffix], charset="utf-8", headers=headers)


def parts() -> tuple[str, ...]:
    """The names of the page's own files, the page aside."""
    return tuple(sorted(path.name for path in FOLDER.iterdir() if path.suffix in KINDS and path.name != PAGE))


def _content(name: str) -> bytes:
    if name == REASONS:
        return dumps({reason.value: because(reason.value) for reason in Reason})
    return (FOLDER / name).read_bytes()
