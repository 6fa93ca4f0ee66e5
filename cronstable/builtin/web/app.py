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
from cronstable.builtin.web.auth import READING, Forbidden, Guard, Unauthorized, foreign_origin
from cronstable.builtin.web.certificate import Certificates
from cronstable.builtin.web.contexts import Contexts
from cronstable.builtin.web.dashboard import Dashboard
from cronstable.builtin.web.definitions import Definitions
from cronstable.builtin.web.doors import most_connections
from cronstable.builtin.web.eventlog import EventLog
from cronstable.builtin.web.kept import Ready
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

TOKEN_NEEDED: Final = frozenset({"/shutdown"})
"""Paths that need a token even where none is configured (and then always refuse)."""


class Api:
    """The application for one host. ``events`` has to be run beside it; ``streams`` end when it shuts down."""

    def __init__(self, host: Host, settings: WebSettings, guard: Guard, contexts: Contexts) -> None:
        self._host = host
        self._contexts = contexts
        self._settings = settings
        self._guard = guard
        self._site = Site(host, settings, guard, contexts)
        self.repeats = self._site.sender.repeats
        self.streams = Streams(host.clock, host.log, contexts, most_connections())
        self.events = EventLog(host)
        self.load = NodeLoad(host, settings.node_history)
        self.routes = tuple(self._routes())
        self._described: bytes | None = None
        self.pages = tuple(Dashboard(self._site).routes()) if settings.ui else ()
        self._open = frozenset(route.path for route in (*self.routes, *self.pages) if route.open)

    def _routes(self) -> Iterable[Route]:
        yield from Reading(self._site, self.load).routes()
        yield from Definitions(self._site).routes()
        yield from Tails(self._site, self.streams, self.events).routes()
        yield from Planner(self._site).routes()
        yield from Exposition(self._site, self.streams, Certificates(self._host, self._settings.tls)).routes()
        yield from Acting(self._site, self.events).routes()
        yield Route("GET", "/openapi.json", self._openapi, "This description", (200, 304), "OpenApi")

    async def _openapi(self, request: web.Request) -> web.Response:
        """GET /openapi.json: the same as long as the service lives."""
        if self._described is None:
            version, tokens = self._host.snapshot().version, bool(self._settings.tokens)
            self._described = shapes.dumps(document(self.routes, version, tokens=tokens))
        return tagged(request, self._described)

    def application(self) -> web.Application:
        """The aiohttp application. One middleware: each costs every request some microseconds."""
        app = web.Application(middlewares=[self._serve], client_max_size=MAX_BODY)
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
        """The headers of every answer, of streams as well."""
        self._site.sender.decorate(response.headers, response.status)

    @web.middleware
    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """May it be asked, by whom, what is the answer; every failure is JSON with an ``error``; sent by a deadline."""
        self.repeats.begun(request)
        if self._contexts.outdated(request.transport):
            request.protocol.close()  # after this answer
        try:
            self._refuse_foreign(request)
            self._authorize(request)
            if request.can_read_body:
                await _take_in(request)
            response = await handler(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
            response = self._explained(request, error)
        if isinstance(response, Ready) or response.prepared:
            return response
        await self._site.sender.send(request, response)
        return response

    def _explained(self, request: web.Request, error: Exception) -> web.Response:
        """The answer to what went wrong; a failure of our own making is logged and not described."""
        match error:
            case Failure():
                return error_answer(error.status, error.reason)
            case web.HTTPMethodNotAllowed():
                allowed = ", ".join(sorted(error.allowed_methods))
                response = error_answer(405, f"{request.method} is not possible here; possible: {allowed}")
                response.headers["Allow"] = allowed
                return response
            case TimeoutError():
                return error_answer(504, "the answer took too long to find out")
            case web.HTTPNotFound():
                return error_answer(404, f"there is no {request.path}")
            case web.HTTPRequestEntityTooLarge():
                return error_answer(413, f"the body is larger than {MAX_BODY} bytes")
            case web.HTTPException():
                return error_answer(error.status, error.reason)
        self._host.log.error("web: %s %r failed", request.method, request.path, exc_info=error)
        return error_answer(500, "internal error; the log of this node says more")

    def _refuse_foreign(self, request: web.Request) -> None:
        """No page of another site may make a browser act here."""
        if request.method in READING:
            return
        headers = request.headers
        if foreign_origin(request.method, headers.get("Origin"), headers.get("Host"), self._settings.origins):
            fail(403, "requests from pages of other sites are refused; web.allowedOrigins lists the trusted ones")

    def _authorize(self, request: web.Request) -> None:
        """Check the token and its scopes."""
        if request.path in self._open:
            return
        caller, needed = self._site.caller(request), request.path in TOKEN_NEEDED
        refused = self._guard.permit(caller, request.method, token_needed=needed)
        if isinstance(refused, Forbidden):
            fail(403, refused.reason)
        if isinstance(refused, Unauthorized):
            fail(401, "a valid token is needed")


async def _take_in(request: web.Request) -> None:
    """Take in the body of a request that has one."""
    try:
        with anyio.fail_after(READ_TIMEOUT):
            await request.read()
    except web.RequestPayloadError:
        fail(400, "the body is not what its headers say")
    except TimeoutError:
        fail(408, f"the body did not arrive within {READ_TIMEOUT:g} s")


async def _options(request: web.Request) -> web.Response:
    """OPTIONS on anything that exists: what it can do."""
    resource = request.match_info.route.resource
    methods = sorted({route.method for route in resource}) if resource is not None else []
    return web.Response(status=204, headers={"Allow": ", ".join(methods)})
