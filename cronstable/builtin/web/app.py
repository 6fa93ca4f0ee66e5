"""The endpoints and what holds for all of them: who may ask, how errors look, how long anything may take."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn, TypeAlias

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler

from cronstable.api import (
    Actor,
    CancelRun,
    Command,
    Done,
    Host,
    HostSnapshot,
    Job,
    Json,
    NoSuchJob,
    Refused,
    Shutdown,
    StartRun,
)
from cronstable.builtin.web import shapes
from cronstable.builtin.web.auth import Caller, Forbidden, Guard, Unauthorized, foreign_origin
from cronstable.builtin.web.documents import ClusterDocument, JobsDocument, Rendered
from cronstable.builtin.web.resources import resources_document
from cronstable.builtin.web.settings import ALL_SCOPES, WebSettings

MAX_BODY: Final = 64 * 1024
"""Bytes of a request's body; more is answered with 413."""
READ_TIMEOUT: Final = 10.0
"""Seconds for a request's body to arrive."""
WRITE_TIMEOUT: Final = 30.0
"""Seconds for an answer to be taken by a slow reader; then the connection is dropped."""
COMMAND_TIMEOUT: Final = 30.0
"""Seconds that a command may take before 504."""
GZIP_FROM: Final = 1024
"""Bytes below which compressing is not worth it."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths for probes: no token needed, and they say nothing but whether this node lives and is ready."""
TOKEN_NEEDED: Final = frozenset({"/shutdown"})
"""Paths that need a token even where none is configured (and then always refuse)."""

Endpoint: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The handlers, for one host."""

    def __init__(self, host: Host, settings: WebSettings, guard: Guard) -> None:
        self._host = host
        self._settings = settings
        self._guard = guard
        self._jobs = JobsDocument()
        self._cluster = ClusterDocument()
        self._zipped: tuple[Rendered, bytes] | None = None

    def application(self) -> web.Application:
        """The aiohttp application. Middlewares from the outside in: deadline, errors, origin, token."""
        app = web.Application(
            middlewares=[self._deliver, self._explain, self._refuse_foreign, self._authorize],
            client_max_size=MAX_BODY,
        )
        reading: Mapping[str, Endpoint] = {
            "/version": self.version,
            "/status": self.status,
            "/summary": self.summary,
            "/jobs": self.jobs,
            "/jobs/{name:[^/]+}": self.job,
            "/jobs/{name:[^/]+}/runs": self.runs,
            "/jobs/{name:[^/]+}/decisions": self.decisions,
            "/jobs/{name:[^/]+}/resources": self.resources,
            "/cluster": self.cluster,
            "/fleet": self.fleet,
            "/job-set-id": self.job_set_id,
            "/whoami": self.whoami,
            "/healthz": self.healthz,
            "/readyz": self.readyz,
        }
        acting: Mapping[str, Endpoint] = {
            "/jobs/{name:[^/]+}/start": self.start,
            "/jobs/{name:[^/]+}/cancel": self.cancel,
            "/shutdown": self.shutdown,
        }
        for path, endpoint in reading.items():
            app.router.add_get(path, endpoint)  # HEAD comes with it
            app.router.add_route("OPTIONS", path, _options)
        for path, endpoint in acting.items():
            app.router.add_post(path, endpoint)
            app.router.add_route("OPTIONS", path, _options)
        return app

    # -- reading ------------------------------------------------------------------------------------------------------

    async def version(self, request: web.Request) -> web.Response:
        """GET /version."""
        return web.Response(text=self._host.snapshot().version)

    async def status(self, request: web.Request) -> web.Response:
        """GET /status: lines, or JSON for who asks for it."""
        entries = shapes.status_entries(self._host.snapshot(), self._wall())
        if _accepts_json(request):
            return _json([*entries])
        return web.Response(text=shapes.status_text(entries))

    async def summary(self, request: web.Request) -> web.Response:
        """GET /summary."""
        return _json(shapes.summary(self._host.snapshot(), self._wall()))

    async def jobs(self, request: web.Request) -> web.Response:
        """GET /jobs, with an entity tag and compressed for who takes it."""
        rendered = await self._jobs.render(self._host.snapshot(), self._wall())
        headers = {"ETag": rendered.etag, "Vary": "Accept-Encoding"}
        if _matches(request, rendered.etag):
            return web.Response(status=304, headers=headers)
        if len(rendered.body) < GZIP_FROM or not _accepts_gzip(request):
            return web.Response(body=rendered.body, content_type="application/json", headers=headers)
        body = await self._compressed(rendered)
        return web.Response(body=body, content_type="application/json", headers={**headers, "Content-Encoding": "gzip"})

    async def job(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}."""
        snapshot, job = self._find(request)
        return _json(shapes.job_entry(snapshot, job, self._wall()))

    async def runs(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/runs?limit=N: the newest runs that this node remembers."""
        snapshot, job = self._find(request)
        history = snapshot.history.get(job.name, ())
        limit = _limit(request)
        recent = history if limit is None else history[-limit:]
        return _json(shapes.runs_document(job.name, recent, snapshot.node_name))

    async def decisions(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/decisions?limit=N: why it ran here or did not. Made off the loop: it may be long."""
        _, job = self._find(request)
        limit = _limit(request)
        records = self._host.decisions(job.name) if limit is None else self._host.decisions(job.name, limit)
        body = await self._host.threads.run(
            lambda: shapes.decisions_body(job.name, records), timeout=READ_TIMEOUT, lane="web"
        )
        return web.Response(body=body, content_type="application/json")

    async def resources(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/resources?limit=N: the samples of living runs and of the newest. Off the loop as well."""
        snapshot, job = self._find(request)
        history = [record for record in snapshot.history.get(job.name, ()) if record.resources is not None]
        limit = _limit(request)
        recent = history if limit is None else history[-limit:]
        body = await self._host.threads.run(
            lambda: shapes.dumps(resources_document(snapshot, job, recent)), timeout=READ_TIMEOUT, lane="web"
        )
        return web.Response(body=body, content_type="application/json")

    async def cluster(self, request: web.Request) -> web.Response:
        """GET /cluster."""
        return web.Response(body=self._cluster.render(self._host.snapshot()), content_type="application/json")

    async def fleet(self, request: web.Request) -> web.Response:
        """GET /fleet."""
        return _json(shapes.fleet_document(self._host.snapshot()))

    async def job_set_id(self, request: web.Request) -> web.Response:
        """GET /job-set-id: text, or JSON for who asks for it."""
        snapshot = self._host.snapshot()
        if _accepts_json(request):
            return _json({"job_set_id": snapshot.job_set_id, "jobs": len(snapshot.jobs)})
        return web.Response(text=snapshot.job_set_id)

    async def whoami(self, request: web.Request) -> web.Response:
        """GET /whoami."""
        caller = self._caller(request)
        return _json(
            {
                "authenticated": caller.authenticated,
                "label": caller.label,
                "scopes": [*sorted(caller.scopes)],
                "allScopes": caller.scopes == ALL_SCOPES,
            }
        )

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: the event loop runs, or this could not be answered."""
        return _json({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: 503 with the reason until this node does its work."""
        reason = shapes.not_ready(self._host.snapshot())
        return _json({"status": "ready"}) if reason is None else _error(503, reason)

    # -- acting -------------------------------------------------------------------------------------------------------

    async def start(self, request: web.Request) -> web.Response:
        """POST /jobs/{name}/start."""
        name = request.match_info["name"]
        done = await self._do(request, StartRun(name))
        return _json({"started": name, "run_id": done.detail})

    async def cancel(self, request: web.Request) -> web.Response:
        """POST /jobs/{name}/cancel."""
        name = request.match_info["name"]
        done = await self._do(request, CancelRun(name))
        return _json({"cancelled": name, "instances": done.detail})

    async def shutdown(self, request: web.Request) -> web.Response:
        """POST /shutdown: as on SIGTERM."""
        await self._do(request, Shutdown())
        return _json({"shuttingDown": True})

    async def _do(self, request: web.Request, command: Command) -> Done:
        """Carry out a command in the name of the caller, or answer why not."""
        try:
            with anyio.fail_after(COMMAND_TIMEOUT):
                outcome = await self._host.do(command, Actor(self._caller(request).label, "api"))
        except TimeoutError:
            _fail(504, f"no answer within {COMMAND_TIMEOUT:g} s; it may still take effect")
        if isinstance(outcome, NoSuchJob):
            _fail(404, f"there is no job {outcome.job!r}")
        if isinstance(outcome, Refused):
            _fail(409, outcome.reason)
        return outcome

    # -- what holds for all -------------------------------------------------------------------------------------------

    @web.middleware
    async def _deliver(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Add the headers and send the answer within a deadline: a reader that does not read is dropped."""
        response = await handler(request)
        if response.prepared:
            return response
        response.headers.setdefault("Cache-Control", "no-cache")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers["Server"] = "cronstable"
        if response.status in (200, 304, 409):
            for name, value in self._settings.headers:
                response.headers[name] = value
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
        except _Failure as failure:
            return _error(failure.status, failure.reason)
        except web.HTTPMethodNotAllowed as error:
            allowed = sorted(error.allowed_methods)
            response = _error(405, f"{request.method} is not possible here; possible: {', '.join(allowed)}")
            response.headers["Allow"] = ", ".join(allowed)
            return response
        except web.HTTPNotFound:
            return _error(404, f"there is no {request.path}")
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is larger than {MAX_BODY} bytes")
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except Exception:
            self._host.log.exception("web: %s %r failed", request.method, request.path)
            return _error(500, "internal error; the log of this node says more")

    @web.middleware
    async def _refuse_foreign(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """No page of another site may make a browser act here."""
        headers = request.headers
        if foreign_origin(request.method, headers.get("Origin"), headers.get("Host"), self._settings.origins):
            _fail(403, "requests from pages of other sites are refused; web.allowedOrigins lists the trusted ones")
        return await handler(request)

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token and its scopes, then take in the body of a request that has one."""
        if request.path in PROBES:
            return await handler(request)
        refused = self._guard.permit(self._caller(request), request.method, token_needed=request.path in TOKEN_NEEDED)
        if isinstance(refused, Forbidden):
            _fail(403, refused.reason)
        if isinstance(refused, Unauthorized):
            _fail(401, "a valid token is needed")
        if request.can_read_body:
            try:
                with anyio.fail_after(READ_TIMEOUT):
                    await request.read()
            except web.RequestPayloadError:
                _fail(400, "the body is not what its headers say")
            except TimeoutError:
                _fail(408, f"the body did not arrive within {READ_TIMEOUT:g} s")
        return await handler(request)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _wall(self) -> float:
        return self._host.clock.now().wall

    def _caller(self, request: web.Request) -> Caller:
        """Who sent the request, or 401."""
        caller = self._guard.identify(request.headers.get("Authorization"), request.remote or "a unix socket")
        if isinstance(caller, Unauthorized):
            _fail(401, "a valid token is needed")
        return caller

    def _find(self, request: web.Request) -> tuple[HostSnapshot, Job]:
        snapshot = self._host.snapshot()
        name = request.match_info["name"]
        job = snapshot.jobs.get(name)
        if job is None:
            _fail(404, f"there is no job {name!r}")
        return snapshot, job

    async def _compressed(self, rendered: Rendered) -> bytes:
        """The body compressed, off the event loop, once per rendered list."""
        if self._zipped is None or self._zipped[0] is not rendered:
            body = await self._host.threads.run(
                lambda: gzip.compress(rendered.body, compresslevel=1, mtime=0), timeout=READ_TIMEOUT, lane="web"
            )
            self._zipped = (rendered, body)
            return body
        return self._zipped[1]


class _Failure(Exception):
    """An answer other than success, raised from wherever it is found out."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def _fail(status: int, reason: str) -> NoReturn:
    raise _Failure(status, reason)


def _json(value: Json) -> web.Response:
    return web.Response(body=shapes.dumps(value), content_type="application/json")


def _error(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": 'Bearer realm="cronstable"'} if status == 401 else None
    body = shapes.dumps({"error": reason})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


async def _options(request: web.Request) -> web.Response:
    """OPTIONS on anything that exists: what it can do."""
    resource = request.match_info.route.resource
    methods = sorted({route.method for route in resource}) if resource is not None else []
    return web.Response(status=204, headers={"Allow": ", ".join(methods)})


def _limit(request: web.Request) -> int | None:
    text = request.query.get("limit")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 9 or int(text) < 1:
        _fail(400, f"limit must be a whole number from 1, not {text!r}")
    return int(text)


def _accepts_json(request: web.Request) -> bool:
    """True when ``Accept`` lists application/json; without the header, text is what was always sent."""
    return any(kind == "application/json" for kind in _listed(request, "Accept"))


def _accepts_gzip(request: web.Request) -> bool:
    return not {"gzip", "*"}.isdisjoint(_listed(request, "Accept-Encoding"))


def _listed(request: web.Request, header: str) -> list[str]:
    """The entries of a comma-separated header in lower case, without those whose weight is zero."""
    entries: list[str] = []
    for part in ",".join(request.headers.getall(header, [])).lower().split(","):
        value, *parameters = (piece.strip() for piece in part.split(";"))
        weights = [p.partition("=")[2].strip() for p in parameters if p.partition("=")[0].strip() == "q"]
        if value and not any(w.strip("0.") == "" for w in weights):
            entries.append(value)
    return entries


def _matches(request: web.Request, etag: str) -> bool:
    """True when ``If-None-Match`` has this entity tag (weak comparison, RFC 9110 13.1.2)."""
    given = ",".join(request.headers.getall("If-None-Match", []))
    tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags
