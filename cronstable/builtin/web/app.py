"""The application: the routes, and what holds for all of them: who may ask, how errors look, how long it may take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler

from cronstable.api import Host
from cronstable.builtin.web import shapes
from cronstable.builtin.web.acting import Acting
from cronstable.builtin.web.answers import Failure, error_answer, fail, tagged
from cronstable.builtin.web.auth import Forbidden, Guard, Unauthorized, foreign_origin
from cronstable.builtin.web.certificate import Certificates
from cronstable.builtin.web.dashboard import Dashboard
from cronstable.builtin.web.eventlog import EventLog
from cronstable.builtin.web.metrics import Exposition
from cronstable.builtin.web.node import NodeLoad
from cronstable.builtin.web.openapi import document
from cronstable.builtin.web.planner import Planner
from cronstable.builtin.web.reading import Reading
from cronstable.builtin.web.routes import Route
from cronstable.builtin.web.settings import WebSettings
from cronstable.builtin.web.site import Site
from cronstable.builtin.web.streams import Streams
from cronstable.builtin.web.tails import Tails

MAX_BODY: Final = 64 * 1024
"""Bytes of a request's body; more is answered with 413."""
READ_TIMEOUT: Final = 10.0
"""Seconds for a request's body to arrive."""
WRITE_TIMEOUT: Final = 30.0
"""Seconds for an answer to be taken by a slow reader; then the connection is dropped."""

TOKEN_NEEDED: Final = frozenset({"/shutdown"})
"""Paths that need a token even where none is configured (and then always refuse)."""


class Api:
    """The application for one host. ``events`` has to be run beside it; ``streams`` end when it shuts down."""

    def __init__(self, host: Host, settings: WebSettings, guard: Guard) -> None:
        self._host = host
        self._settings = settings
        self._guard = guard
        self._site = Site(host, settings, guard)
        self.streams = Streams(host.clock, host.log)
        self.events = EventLog(host)
        self.load = NodeLoad(host, settings.node_history)
        self.routes = tuple(self._routes())
        self._described: bytes | None = None
        self.pages = tuple(Dashboard(self._site).routes()) if settings.ui else ()
        self._open = frozenset(route.path for route in (*self.routes, *self.pages) if route.open)

    def _routes(self) -> Iterable[Route]:
        yield from Reading(self._site, self.load).routes()
        yield from Tails(self._site, self.streams, self.events).routes()
        yield from Planner(self._site).routes()
        yield from Exposition(self._site, self.streams, Certificates(self._host, self._settings.tls)).routes()
        yield from Acting(self._site).routes()
        yield Route("GET", "/openapi.json", self._openapi, "This description", (200, 304), "OpenApi")

    async def _openapi(self, request: web.Request) -> web.Response:
        """GET /openapi.json: the same as long as the service lives."""
        if self._described is None:
            version, tokens = self._host.snapshot().version, bool(self._settings.tokens)
            self._described = shapes.dumps(document(self.routes, version, tokens=tokens))
        return tagged(request, self._described)

    def application(self) -> web.Application:
        """The aiohttp application. Middlewares from the outside in: deadline, errors, origin, token."""
        app = web.Application(
            middlewares=[self._deliver, self._explain, self._refuse_foreign, self._authorize],
            client_max_size=MAX_BODY,
        )
        for route in (*self.routes, *self.pages):
            if route.method == "GET":
                app.router.add_get(route.pattern, route.endpoint)  # HEAD comes with it
            else:
                app.router.add_route(route.method, route.pattern, route.endpoint)
            app.router.add_route("OPTIONS", route.pattern, _options)
        app.on_response_prepare.append(self._decorate)
        app.on_shutdown.append(self.streams.end)
        return app

    async def _decorate(self, request: web.Request, response: web.StreamResponse) -> None:
        """The headers of every answer, of streams as well. Each endpoint owns its Content-Type."""
        response.headers.setdefault("Cache-Control", "no-cache")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers["Server"] = "cronstable"
        if response.status in (200, 304, 409):
            for name, value in self._settings.headers:
                response.headers[name] = value

    @web.middleware
    async def _deliver(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Send the answer within a deadline: a reader that does not read is dropped."""
        response = await handler(request)
        if response.prepared:
            return response
        try:
            with anyio.fail_after(WRITE_TIMEOUT):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            self._host.log.warning("web: %s does not take its answer and is dropped", request.remote or "a client")
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            self._host.log.debug("web: %s went away before its answer", request.remote or "a client")
        return response

    @web.middleware
    async def _explain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every failure is JSON with an ``error``; one of our own making is logged and not described."""
        try:
            return await handler(request)
        except Failure as failure:
            return error_answer(failure.status, failure.reason)
        except web.HTTPMethodNotAllowed as error:
            allowed = sorted(error.allowed_methods)
            response = error_answer(405, f"{request.method} is not possible here; possible: {', '.join(allowed)}")
            response.headers["Allow"] = ", ".join(allowed)
            return response
        except TimeoutError:
            return error_answer(504, "the answer took too long to find out")
        except web.HTTPNotFound:
            return error_answer(404, f"there is no {request.path}")
        except web.HTTPRequestEntityTooLarge:
            return error_answer(413, f"the body is larger than {MAX_BODY} bytes")
        except web.HTTPException as error:
            return error_answer(error.status, error.reason)
        except Exception:
            self._host.log.exception("web: %s %r failed", request.method, request.path)
            return error_answer(500, "internal error; the log of this node says more")

    @web.middleware
    async def _refuse_foreign(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """No page of another site may make a browser act here."""
        headers = request.headers
        if foreign_origin(request.method, headers.get("Origin"), headers.get("Host"), self._settings.origins):
            fail(403, "requests from pages of other sites are refused; web.allowedOrigins lists the trusted ones")
        return await handler(request)

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token and its scopes, then take in the body of a request that has one."""
        if request.path in self._open:
            return await handler(request)
        caller, needed = self._site.caller(request), request.path in TOKEN_NEEDED
        refused = self._guard.permit(caller, request.method, token_needed=needed)
        if isinstance(refused, Forbidden):
            fail(403, refused.reason)
        if isinstance(refused, Unauthorized):
            fail(401, "a valid token is needed")
        if request.can_read_body:
            try:
                with anyio.fail_after(READ_TIMEOUT):
                    await request.read()
            except web.RequestPayloadError:
                fail(400, "the body is not what its headers say")
            except TimeoutError:
                fail(408, f"the body did not arrive within {READ_TIMEOUT:g} s")
        return await handler(request)


async def _options(request: web.Request) -> web.Response:
    """OPTIONS on anything that exists: what it can do."""
    resource = request.match_info.route.resource
    methods = sorted({route.method for route in resource}) if resource is not None else []
    return web.Response(status=204, headers={"Allow": ", ".join(methods)})
