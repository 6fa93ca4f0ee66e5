"""The endpoints that change something: start, cancel, pause, resume, stop."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import anyio
from aiohttp import web

from cronstable.api import (
    CancelRun,
    ConcurrencyPolicy,
    Decided,
    Decision,
    Job,
    Json,
    Pause,
    Resume,
    RunFinished,
    Shutdown,
    StartRun,
    Verdict,
    because,
)
from cronstable.builtin.web import shapes
from cronstable.builtin.web.answers import fail, json_answer
from cronstable.builtin.web.eventlog import EventLog
from cronstable.builtin.web.routes import Route
from cronstable.builtin.web.site import Site

PAUSE_SECONDS: Final = 3600
"""How long a pause lasts when nothing else is asked for (reference 7.2)."""
SLOT_ANSWER: Final = 5.0
"""Seconds that a start waits for the store to say whether another node runs the job; then it answers without that."""
LONGEST_PAUSE: Final = 2_592_000
LONGEST_NOTE: Final = 500
LONGEST_NAME: Final = 100
_PAUSE_KEYS: Final = ("durationSeconds", "until", "note", "by")


class Acting:
    """Handlers of POST."""

    def __init__(self, site: Site, events: EventLog) -> None:
        self._site = site
        self._events = events
        self._turns: dict[str, anyio.Lock] = {}

    def routes(self) -> Iterable[Route]:
        """Every endpoint of this module."""
        of_job = (200, 404, 409)
        yield Route("POST", "/jobs/{name}/start", self.start, "Start a job here and now", of_job, "Started")
        yield Route("POST", "/jobs/{name}/cancel", self.cancel, "End the living runs of a job", of_job, "Cancelled")
        yield Route(
            "POST",
            "/jobs/{name}/pause",
            self.pause,
            "Skip scheduled runs of a job",
            (200, 400, 404),
            "Paused",
            body="Pause",
        )
        yield Route("POST", "/jobs/{name}/resume", self.resume, "End the pause of a job", (200, 404), "Paused")
        yield Route("POST", "/shutdown", self.shutdown, "Stop the daemon as on SIGTERM", (200,), "ShuttingDown")

    async def start(self, request: web.Request) -> web.Response:
        """POST /jobs/{name}/start. Where other nodes have to be asked first, with what came of that."""
        name = request.match_info["name"]
        snapshot = self._site.host.snapshot()
        job = snapshot.jobs.get(name)
        if job is None or snapshot.state is None or not _shared(job):
            done = await self._site.do(request, StartRun(name))
            return json_answer({"started": name, "run_id": done.detail})
        # One start at a time: a refusal does not say of which run it is.
        async with self._turns.setdefault(name, anyio.Lock()):
            before = self._events.last
            done = await self._site.do(request, StartRun(name))
            refused = await self._refusal(name, done.detail, before)
        if refused is not None:
            fail(409, refused)
        return json_answer({"started": name, "run_id": done.detail})

    async def _refusal(self, job: str, run_id: object, before: int) -> str | None:
        """Why a run that was asked for is not started, None when it is, or nobody can tell within ``SLOT_ANSWER``."""
        with anyio.move_on_after(SLOT_ANSWER):
            async for event in self._events.since(before):
                if isinstance(event, RunFinished) and event.record.key.run_id == run_id:
                    return None
                if not isinstance(event, Decided) or event.record.job != job:
                    continue
                decision = event.record.decision
                if decision.verdict is Verdict.RUN and event.record.run_id == run_id:
                    return None
                if decision.verdict is Verdict.SKIP and event.record.scheduled_at is None:
                    holder = decision.evidence.get("holder")
                    return f"{holder} runs the job, and its concurrencyScope is cluster" if holder else _words(decision)
        return None

    async def cancel(self, request: web.Request) -> web.Response:
        """POST /jobs/{name}/cancel."""
        name = request.match_info["name"]
        done = await self._site.do(request, CancelRun(name))
        return json_answer({"cancelled": name, "instances": done.detail})

    async def pause(self, request: web.Request) -> web.Response:
        """POST /jobs/{name}/pause, with an optional object as its body (reference 7.2)."""
        name = request.match_info["name"]
        self._site.find(request)
        now = self._site.wall()
        wanted = pause_of(name, await _object(request), now, self._site.caller(request).label)
        await self._site.do(request, wanted)
        return json_answer({"paused": shapes.pause_entry(wanted)})

    async def resume(self, request: web.Request) -> web.Response:
        """POST /jobs/{name}/resume: also for a job that is not paused."""
        await self._site.do(request, Resume(request.match_info["name"]))
        return json_answer({"paused": None})

    async def shutdown(self, request: web.Request) -> web.Response:
        """POST /shutdown: as on SIGTERM."""
        await self._site.do(request, Shutdown())
        return json_answer({"shuttingDown": True})


def _shared(job: Job) -> bool:
    """True when runs of ``job`` on other nodes count: whether one may start is known once the store was asked."""
    asks = job.options.concurrency_policy in (ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE)
    return asks and job.options.raw.get("concurrencyScope") == "cluster"


def _words(decision: Decision) -> str:
    return f"not started: {because(decision.reason.value)}"


def pause_of(job: str, body: Mapping[str, Json], now: float, label: str) -> Pause:
    """The pause that a request asks for, or 400 with what is wrong with it. ``label``: who asks, if it does not say."""
    unknown = sorted(set(body) - set(_PAUSE_KEYS))
    if unknown:
        fail(400, f"unknown key {unknown[0][:80]!r}; known: {', '.join(_PAUSE_KEYS)}")
    given, moment = body.get("durationSeconds"), body.get("until")
    if given is not None and moment is not None:
        fail(400, "durationSeconds and until exclude each other")
    until = now + _duration(given) if moment is None else _moment(moment, now)
    by = _text(body, "by", LONGEST_NAME) or label
    return Pause(job, until, _text(body, "note", LONGEST_NOTE), since=now, by=by, channel="api")


def _duration(value: Json) -> float:
    if value is None:
        return PAUSE_SECONDS
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= LONGEST_PAUSE:
        fail(400, f"durationSeconds must be a number from 1 to {LONGEST_PAUSE}")
    return value


def _moment(value: Json, now: float) -> float:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        fail(400, "until must be a time with its offset, such as 2026-01-01T00:00:00Z")
    until = moment.timestamp()
    if not 1 <= until - now <= LONGEST_PAUSE:
        fail(400, f"until must lie ahead, by at most {LONGEST_PAUSE} seconds")
    return until


def _text(body: Mapping[str, Json], key: str, longest: int) -> str:
    value = body.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > longest:
        fail(400, f"{key} must be text of at most {longest} characters")
    return value


async def _object(request: web.Request) -> dict[str, Json]:
    """The body as a JSON object; nothing at all is an empty one."""
    raw = await request.read()
    if not raw.strip():
        return {}
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        fail(400, "the body must be a JSON object")
    return found
