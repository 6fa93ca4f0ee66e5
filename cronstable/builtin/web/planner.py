"""The endpoints about schedules: the tools below /schedule and the calendars."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from aiohttp import web

from cronstable.api import Job, Json, Schedule, ScheduleError
from cronstable.builtin.web import ical, planning
from cronstable.builtin.web.answers import fail, json_bytes, number_of
from cronstable.builtin.web.routes import CALENDAR, Query, Route
from cronstable.builtin.web.shapes import decision_entry, dumps
from cronstable.builtin.web.site import Site

OFF_LOOP: Final = 20.0
"""Seconds for a document that is made in a thread."""
LONGEST: Final = 500
"""Characters of an expression or a name of a zone."""
EVENTS: Final = 5_000
"""Events of one calendar."""
_DAY: Final = 86_400


def _up_to(highest: int) -> dict[str, Json]:
    return {"type": "integer", "minimum": 1, "maximum": highest}


_EXPRESSION = Query("expression", "a schedule", {"type": "string"})
_JOB = Query("job", "the name of a job", {"type": "string"})
_ZONE = Query("timezone", "the name of a zone (UTC)", {"type": "string"})
_MATCH = Query("dayMatch", "when both columns of days are restricted", {"type": "string", "enum": ["any", "all"]})
_MOST_COUNTED: Final = 1000
_COUNT = Query("count", "how many (10)", _up_to(_MOST_COUNTED))
_SLOTS: Final = 60
"""Slots that are suggested: there are no more minutes in an hour."""
_SLOT_COUNT = Query("count", "how many (5)", _up_to(_SLOTS))
_DAYS_AHEAD: Final = 366
_AFTER = Query("after", "strictly after this time, with its offset (now)", {"type": "string"})
_AT = Query("at", "a time with its offset", {"type": "string"}, required=True)
_EVERY = Query("every", "how often the job is to run (day)", {"type": "string", "enum": ["hour", "day"]})
_DAYS = Query("days", "how far ahead (7)", _up_to(_DAYS_AHEAD))
_MOST = Query("limit", "at most so many events of one job (100)", _up_to(EVENTS))
_TOKEN = Query("token", "a token, for programs that can send no header", {"type": "string"})


class Planner:
    """Handlers of GET that compute with schedules, all of them off the loop."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Iterable[Route]:
        """Every endpoint of this module."""
        wanted, asked = (_EXPRESSION, _JOB, _ZONE, _MATCH, _COUNT, _AFTER), (200, 400)
        yield Route(
            "GET", "/schedule/preview", self.preview, "What a schedule means", (200, 400, 404), "Preview", query=wanted
        )
        yield Route(
            "GET", "/schedule/pressure", self.pressure, "How the next day fills up", asked, "Pressure", query=(_COUNT,)
        )
        yield Route("GET", "/schedule/duplicates", self.duplicates, "Jobs that are the same", answer="Duplicates")
        free = (_EVERY, _ZONE, _SLOT_COUNT)
        yield Route("GET", "/schedule/suggest", self.suggest, "Where there is room", asked, "Suggestions", query=free)
        which = (Query("job", "the name of a job", {"type": "string"}, required=True), _AT)
        yield Route(
            "GET", "/schedule/why", self.why, "Whether a time is due, and why", (200, 400, 404), "Why", query=which
        )
        span, kind = (_DAYS, _MOST, _TOKEN), (CALENDAR,)
        yield Route("GET", "/calendar.ics", self.calendar, "The next runs", asked, media=kind, query=span)
        yield Route(
            "GET", "/jobs/{name}/calendar.ics", self.job_calendar, "Of one job", (200, 400, 404), media=kind, query=span
        )

    async def preview(self, request: web.Request) -> web.Response:
        """GET /schedule/preview?expression=E or ?job=NAME."""
        schedule = self._schedule(request)
        after = _instant(request, "after", int(self._site.wall()))
        count = number_of(request, "count", 1, _MOST_COUNTED) or 10
        return await self._made(lambda: dumps(planning.preview(schedule, after, count)))

    async def pressure(self, request: web.Request) -> web.Response:
        """GET /schedule/pressure?count=N."""
        jobs, now = self._jobs(), int(self._site.wall())
        count = number_of(request, "count", 1, _MOST_COUNTED) or 10
        return await self._made(lambda: dumps(planning.pressure_document(planning.pressure(jobs, now), count)))

    async def duplicates(self, request: web.Request) -> web.Response:
        """GET /schedule/duplicates."""
        jobs = self._jobs()
        return await self._made(lambda: dumps(planning.duplicates(jobs)))

    async def suggest(self, request: web.Request) -> web.Response:
        """GET /schedule/suggest?every=hour."""
        jobs, now, zone = self._jobs(), int(self._site.wall()), _zone(request)
        every = request.query.get("every", "day")
        if every not in ("hour", "day"):
            fail(400, "every must be hour or day")
        count = number_of(request, "count", 1, _SLOTS) or 5
        return await self._made(lambda: dumps(planning.suggestions(planning.pressure(jobs, now), every, zone, count)))

    async def why(self, request: web.Request) -> web.Response:
        """GET /schedule/why?job=NAME&at=T: by the schedule, and what this node decided then, if it remembers."""
        job, at = self._job(request.query.get("job")), _instant(request, "at", None)
        decided = [r for r in self._site.host.decisions(job.name, 10_000) if r.scheduled_at == at]
        decision = decision_entry(decided[0]) if decided else None
        return await self._made(lambda: dumps({**planning.why_not(job, at), "decision": decision}))

    async def calendar(self, request: web.Request) -> web.Response:
        """GET /calendar.ics?days=N."""
        return await self._calendar(request, f"cronstable {self._site.host.snapshot().node_name}", self._jobs())

    async def job_calendar(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/calendar.ics?days=N."""
        _, job = self._site.find(request)
        return await self._calendar(request, job.name, (job,))

    async def _calendar(self, request: web.Request, title: str, jobs: Iterable[Job]) -> web.Response:
        now, history = int(self._site.wall()), self._site.host.snapshot().history
        span = (now, now + _DAY * (number_of(request, "days", 1, _DAYS_AHEAD) or 7))
        most = number_of(request, "limit", 1, EVENTS) or 100

        def made() -> bytes:
            events: list[list[str]] = []
            for job in jobs:
                left = min(most, EVENTS - len(events))
                events += ical.events_of(job, history.get(job.name, ()), span, left) if left else ()
            return ical.calendar(title, events)

        body = await self._site.host.threads.run(made, timeout=OFF_LOOP, lane="web")
        return web.Response(body=body, content_type=CALENDAR, charset="utf-8")

    async def _made(self, make: Callable[[], bytes]) -> web.Response:
        return json_bytes(await self._site.host.threads.run(make, timeout=OFF_LOOP, lane="web"))

    def _jobs(self) -> tuple[Job, ...]:
        return tuple(self._site.host.snapshot().jobs.values())

    def _job(self, name: str | None) -> Job:
        if not name:
            fail(400, "job must be the name of a job")
        job = self._site.host.snapshot().jobs.get(name)
        if job is None:
            fail(404, f"there is no job {name!r}")
        return job

    def _schedule(self, request: web.Request) -> Schedule:
        """The schedule of a job, or an expression that is read as a job's would be."""
        text, name = request.query.get("expression"), request.query.get("job")
        if text is None:
            return self._job(name).schedule
        match = request.query.get("dayMatch", "any")
        if match not in ("any", "all"):
            fail(400, "dayMatch must be any or all")
        if len(text) > LONGEST:
            fail(400, f"the expression is longer than {LONGEST} characters")
        try:
            return Schedule.parse(
                text, job_name=name or "", zone=_zone(request), day_match="all" if match == "all" else "any"
            )
        except ScheduleError as wrong:
            fail(400, f"{wrong} (hint: {wrong.hint})" if wrong.hint else str(wrong))


def _zone(request: web.Request) -> tzinfo:
    name = request.query.get("timezone", "UTC")
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name[:LONGEST])
    except (KeyError, ValueError, OSError):
        # Depending on the name, zoneinfo says that it is not found, malformed, a directory or not readable.
        fail(400, f"unknown timezone {name[:LONGEST]!r}; a name such as Europe/Berlin or UTC")


def _instant(request: web.Request, name: str, default: int | None) -> int:
    """Whole seconds of a time in the query, rounded down."""
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    try:
        moment = datetime.fromisoformat((text or "").replace(" ", "+"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not 1970 <= moment.year <= 2099:
        fail(400, f"{name} must be a time with its offset, such as 2026-01-01T00:00:00Z")
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() // 1)
