"""The endpoints that tell what is: the documents of reference 7.2 that need no more than a snapshot."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from typing import Final, Literal

from aiohttp import web

from cronstable.builtin.web import shapes
from cronstable.builtin.web.activity import ActivityDocument
from cronstable.builtin.web.answers import (
    accepts_gzip,
    accepts_json,
    error_answer,
    fail,
    flag_of,
    json_answer,
    json_bytes,
    limit_of,
    matches,
    tagged,
)
from cronstable.builtin.web.documents import ClusterDocument, JobsDocument, Rendered, StatusDocument
from cronstable.builtin.web.everywhere import ask_others, document
from cronstable.builtin.web.kept import Kept
from cronstable.builtin.web.node import NodeLoad
from cronstable.builtin.web.resources import resources_document
from cronstable.builtin.web.routes import JSON, LIMIT, PLAIN, TEXT, Query, Route
from cronstable.builtin.web.settings import ALL_SCOPES
from cronstable.builtin.web.site import Site
from cronstable.builtin.web.statestore import state_document
from cronstable.builtin.web.trends import MOST, trends_document

OFF_LOOP: Final = 10.0
"""Seconds for a document that is made in a thread."""
RUNS: Final = 100
"""Runs in one answer when nobody says how many."""
DECISIONS: Final = 100
"""Decisions of a node in one answer when nobody says how many."""
NAMES: Final = 10_000
"""Names of the state store in one answer."""
LONGEST_NAME: Final = 512
GZIP_FROM: Final = 1024
"""Bytes below which compressing is not worth it."""


FLEET: Final = Query("fleet", "whether the other nodes are asked too", {"type": "boolean"})
WORDS: Final = Query("words", "whether each has its `schedule_words`", {"type": "boolean"})


class Reading:
    """Handlers of GET, for one site."""

    def __init__(self, site: Site, load: NodeLoad) -> None:
        self._site = site
        self._load = load
        self._jobs = {words: JobsDocument(words=words) for words in (False, True)}
        self._cluster = ClusterDocument()
        self._activity = ActivityDocument()
        self._status_json = StatusDocument(lambda s, wall: shapes.dumps([*shapes.status_entries(s, wall)]), JSON)
        self._status_text = StatusDocument(
            lambda s, wall: shapes.status_text(shapes.status_entries(s, wall)).encode(), PLAIN
        )
        self._version: Kept | None = None
        self._zipped: dict[bool, tuple[Rendered, Kept]] = {}

    def routes(self) -> Iterable[Route]:
        """Every endpoint of this module."""
        limited = (200, 400, 404)
        yield Route("GET", "/version", self.version, "The version", media=(TEXT,))
        yield Route("GET", "/status", self.status, "A line for each job", answer="Status", media=(TEXT, JSON))
        yield Route("GET", "/summary", self.summary, "Counts, the next run, the cluster in short", answer="Summary")
        yield Route("GET", "/jobs", self.jobs, "All jobs", (200, 304, 400), "Jobs", query=(WORDS,))
        yield Route("GET", "/jobs/{name}", self.job, "One job", (200, 404), "Job")
        yield Route("GET", "/jobs/{name}/runs", self.runs, "The last runs and skips", limited, "Runs", query=(LIMIT,))
        yield Route(
            "GET",
            "/jobs/{name}/decisions",
            self.decisions,
            "Why it ran or did not",
            limited,
            "Decisions",
            query=(LIMIT, FLEET),
        )
        yield Route(
            "GET", "/jobs/{name}/resources", self.resources, "What its runs used", limited, "Resources", query=(LIMIT,)
        )
        yield Route("GET", "/jobs/{name}/trends", self.trends, "How it did lately", (200, 404), "Trends")
        yield Route("GET", "/node", self.node, "How loaded this node is", answer="Node")
        yield Route("GET", "/node/history", self.node_history, "How loaded it was", answer="NodeHistory")
        yield Route("GET", "/state", self.state, "The state store", (200, 404), "State")
        prefix, asked = (Query("prefix", "what the names begin with", {"type": "string"}),), (200, 400, 404, 504)
        yield Route("GET", "/state/documents", self.documents, "Names of documents", asked, "Documents", query=prefix)
        yield Route("GET", "/state/records", self.records, "Names of streams", asked, "Records", query=prefix)
        yield Route(
            "GET",
            "/activity",
            self.activity,
            "Recent runs of all jobs",
            (200, 304, 400),
            "Activity",
            query=(LIMIT,),
        )
        yield Route("GET", "/cluster", self.cluster, "What this node believes about the cluster", answer="Cluster")
        yield Route("GET", "/fleet", self.fleet, "What every node runs", (200, 304), "Fleet")
        yield Route(
            "GET", "/job-set-id", self.job_set_id, "The ID of the job set", answer="JobSetId", media=(TEXT, JSON)
        )
        yield Route("GET", "/whoami", self.whoami, "The caller and its scopes", answer="Whoami")
        yield Route("GET", "/healthz", self.healthz, "The process is alive", answer="Health", open=True)
        yield Route("GET", "/readyz", self.readyz, "It does its work", (200, 503), "Health", open=True)

    async def version(self, request: web.Request) -> web.StreamResponse:
        """GET /version."""
        if self._version is None:
            self._version = Kept(self._site.host.snapshot().version.encode(), PLAIN)
        return self._site.kept(request, self._version, lambda: self._version)

    async def status(self, request: web.Request) -> web.StreamResponse:
        """GET /status: lines, or JSON for who asks for it."""
        form = self._status_json if accepts_json(request) else self._status_text
        return self._now(request, lambda: form.render(self._site.host.snapshot(), self._site.wall()))

    async def summary(self, request: web.Request) -> web.Response:
        """GET /summary."""
        return json_answer(shapes.summary(self._site.host.snapshot(), self._site.wall()))

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        """GET /jobs, with an entity tag and packed for who takes it; ``?words=true`` with the schedules in words."""
        words = flag_of(request, "words")
        rendered = await self._jobs[words].render(self._site.host.snapshot(), self._site.wall())
        if matches(request, rendered.etag):
            return web.Response(status=304, headers={"ETag": rendered.etag, "Vary": "Accept-Encoding"})
        packed = accepts_gzip(request)
        small = len(rendered.kept.body) < GZIP_FROM
        kept = await self._compressed(rendered, words) if packed and not small else rendered.kept
        return self._site.kept(request, kept, lambda: self._jobs_again(words, packed=packed))

    def _jobs_again(self, words: bool, *, packed: bool) -> Kept | None:
        """The list for who takes it ``packed`` or who does not, when it was made a moment ago.

        It may have passed the size from which it is packed since it was asked for first.
        """
        fresh = self._jobs[words].fresh(self._site.host.snapshot(), self._site.wall())
        if fresh is None or not packed or len(fresh.kept.body) < GZIP_FROM:
            return None if fresh is None else fresh.kept
        zipped = self._zipped.get(words)
        return zipped[1] if zipped is not None and zipped[0] is fresh else None

    def _now(self, request: web.Request, make: Callable[[], Kept]) -> web.StreamResponse:
        """What costs a moment only, whenever it is asked for."""
        return self._site.kept(request, make(), make)

    async def job(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}."""
        snapshot, job = self._site.find(request)
        return json_answer(shapes.job_entry(snapshot, job, self._site.wall()))

    async def runs(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/runs?limit=N: the newest runs that are remembered, durably where there is a state store."""
        snapshot, job = self._site.find(request)
        limit = min(limit_of(request) or RUNS, MOST)
        records = (await self._site.host.runs(job.name, limit))[::-1]
        body = await self._site.host.threads.run(
            lambda: shapes.dumps(shapes.runs_document(job.name, records, snapshot.node_name)),
            timeout=OFF_LOOP,
            lane="web",
        )
        return json_bytes(body)

    async def trends(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/trends."""
        snapshot, job = self._site.find(request)
        records, wall = await self._site.host.runs(job.name, MOST), self._site.wall()
        body = await self._site.host.threads.run(
            lambda: shapes.dumps(trends_document(job.name, snapshot, records, wall)), timeout=OFF_LOOP, lane="web"
        )
        return json_bytes(body)

    async def node(self, request: web.Request) -> web.Response:
        """GET /node."""
        return json_answer(await self._load.document(self._site.host.snapshot().node_name))

    async def node_history(self, request: web.Request) -> web.Response:
        """GET /node/history. Points are [wall seconds, processor percent, memory percent], oldest first."""
        return json_answer(self._load.history(self._site.host.snapshot().node_name))

    async def state(self, request: web.Request) -> web.Response:
        """GET /state: the state store and what it was asked for; 404 without one."""
        state = self._site.host.snapshot().state
        if state is None:
            fail(404, "there is no state section in the configuration")
        return json_answer(state_document(state))

    async def documents(self, request: web.Request) -> web.Response:
        """GET /state/documents?prefix=P: names of documents."""
        return await self._stored(request, "documents")

    async def records(self, request: web.Request) -> web.Response:
        """GET /state/records?prefix=P: names of streams of records."""
        return await self._stored(request, "streams")

    async def _stored(self, request: web.Request, kind: Literal["streams", "documents"]) -> web.Response:
        prefix = request.query.get("prefix", "")
        if len(prefix) > LONGEST_NAME:
            fail(400, f"prefix is longer than {LONGEST_NAME} characters")
        if self._site.host.snapshot().state is None:
            fail(404, "there is no state section in the configuration")
        names = await self._site.host.stored(kind, prefix)
        if names is None:
            fail(504, "the state store does not answer")
        return json_answer({kind: [*names[:NAMES]], "total": len(names)})

    async def decisions(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/decisions?limit=N: why it ran here or did not. Made off the loop: it may be long.

        ``?fleet=true``: here and on every other node that can be asked.
        """
        snapshot, job = self._site.find(request)
        limit, fleet = limit_of(request) or DECISIONS, snapshot.fleet
        everywhere = flag_of(request, "fleet")
        others = await ask_others(fleet, job.name, limit) if everywhere else ()
        records = self._site.host.decisions(job.name, limit)

        def made() -> bytes:
            if everywhere:
                return document(job.name, snapshot.node_name, records, fleet, others)
            return shapes.decisions_body(job.name, records)

        return json_bytes(await self._site.host.threads.run(made, timeout=OFF_LOOP, lane="web"))

    async def resources(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/resources?limit=N: the samples of living runs and of the newest. Off the loop as well."""
        snapshot, job = self._site.find(request)
        history = [record for record in snapshot.history.get(job.name, ()) if record.resources is not None]
        limit = limit_of(request)
        recent = history if limit is None else history[-limit:]
        body = await self._site.host.threads.run(
            lambda: shapes.dumps(resources_document(snapshot, job, recent)), timeout=OFF_LOOP, lane="web"
        )
        return json_bytes(body)

    async def activity(self, request: web.Request) -> web.Response:
        """GET /activity?limit=N: the newest runs and the last 24 hours of every job. Made off the loop."""
        snapshot, limit, now = self._site.host.snapshot(), limit_of(request), self._site.host.clock.now()
        body = await self._site.host.threads.run(
            lambda: self._activity.make(snapshot, limit, now), timeout=OFF_LOOP, lane="web"
        )
        return tagged(request, body)

    async def cluster(self, request: web.Request) -> web.StreamResponse:
        """GET /cluster."""
        return self._now(request, lambda: self._cluster.render(self._site.host.snapshot()))

    async def fleet(self, request: web.Request) -> web.Response:
        """GET /fleet, with an entity tag."""
        return tagged(request, shapes.dumps(shapes.fleet_document(self._site.host.snapshot())))

    async def job_set_id(self, request: web.Request) -> web.Response:
        """GET /job-set-id: text, or JSON for who asks for it."""
        snapshot = self._site.host.snapshot()
        if accepts_json(request):
            return json_answer({"job_set_id": snapshot.job_set_id, "jobs": len(snapshot.jobs)})
        return web.Response(text=snapshot.job_set_id)

    async def whoami(self, request: web.Request) -> web.Response:
        """GET /whoami."""
        caller = self._site.caller(request)
        return json_answer(
            {
                "authenticated": caller.authenticated,
                "label": caller.label,
                "scopes": [*sorted(caller.scopes)],
                "allScopes": caller.scopes == ALL_SCOPES,
            }
        )

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: the event loop runs, or this could not be answered."""
        return json_answer({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: 503 with the reason until this node does its work."""
        reason = shapes.not_ready(self._site.host.snapshot())
        return json_answer({"status": "ready"}) if reason is None else error_answer(503, reason)

    async def _compressed(self, rendered: Rendered, words: bool) -> Kept:
        """The list compressed, off the event loop, once per rendered list."""
        zipped = self._zipped.get(words)
        if zipped is None or zipped[0] is not rendered:
            plain = rendered.kept.body
            body = await self._site.host.threads.run(
                lambda: gzip.compress(plain, compresslevel=1, mtime=0), timeout=OFF_LOOP, lane="web"
            )
            kept = Kept(body, JSON, {**rendered.kept.headers, "Content-Encoding": "gzip"})
            self._zipped[words] = (rendered, kept)
            return kept
        return zipped[1]
