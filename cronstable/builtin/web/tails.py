"""The endpoints that stream: GET /jobs/{name}/logs and GET /events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import anyio
from aiohttp import web

from cronstable.api import Host, HostSnapshot, Job, Json, Line, RunRecord
from cronstable.builtin.web.answers import fail
from cronstable.builtin.web.eventlog import KINDS, EventLog
from cronstable.builtin.web.routes import EVENTS, Query, Route
from cronstable.builtin.web.shapes import iso
from cronstable.builtin.web.site import Site
from cronstable.builtin.web.streams import Streams, message

PENDING: Final = 64 * 1024
"""Bytes that wait for a reader before no more are made; lines that are overwritten meanwhile are a ``gap``."""
WRITTEN: Final = 4 << 20
"""Bytes of lines that are kept as they are sent."""
KEPT: Final = "kept-"
"""Before the number in the id of a line that comes from the record of a run: those count what was kept, which may be
only the last lines of the run."""
_LONGEST_ID: Final = 100
_ALL: Final = 10_000
"""Decisions: as many as a node remembers."""


class Written:
    """Lines as they are sent, for all who read along: writing one costs more than sending it to ten readers."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._size = 0

    def line(self, run: str, line: Line) -> bytes:
        """The event of a line of a run; a number means the same line to everybody."""
        found = self._lines.get((run, line.number))
        if found is None:
            found = self._lines[run, line.number] = line_event(f"{run}:", line)
            self._size += len(found)
            while self._size > WRITTEN and len(self._lines) > 1:
                self._size -= len(self._lines.popitem(last=False)[1])
        return found


class Tails:
    """Handlers of streams."""

    def __init__(self, site: Site, streams: Streams, events: EventLog) -> None:
        self._written = Written()
        self._site = site
        self._streams = streams
        self._events = events

    def routes(self) -> Iterable[Route]:
        """Every endpoint of this module."""
        run = Query("run", "the id of a run; without it, the one that lives or was the last", {"type": "string"})
        kinds = Query("kinds", f"names of events, with commas between: {', '.join(KINDS)}", {"type": "string"})
        yield Route(
            "GET",
            "/jobs/{name}/logs",
            self.logs,
            "The output of a run as it comes",
            (200, 400, 404, 503),
            media=(EVENTS,),
            query=(run,),
        )
        yield Route(
            "GET",
            "/events",
            self.events,
            "What happens on this node as it happens",
            (200, 400, 503),
            media=(EVENTS,),
            query=(kinds,),
        )

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """GET /jobs/{name}/logs?run=ID: lines under their numbers, from the first one kept or after Last-Event-ID."""
        snapshot, job = self._site.find(request)
        place = wanted_place(
            self._site.host, snapshot, job, request.query.get("run"), request.headers.get("Last-Event-ID", "")
        )
        if request.method == "HEAD":
            return await self._streams.serve(request, _Nothing())
        # Here as well: what is raised within a task group comes out of it as another exception.
        self._streams.admit()
        async with anyio.create_task_group() as tasks:
            tail = Tail(self._site.host, self._written, place, _record(snapshot, job.name, place.run))
            tasks.start_soon(tail.follow)
            response = await self._streams.serve(request, tail)
            tasks.cancel_scope.cancel()
        return response

    async def events(self, request: web.Request) -> web.StreamResponse:
        """GET /events?kinds=A,B: what happens from now on, or after Last-Event-ID."""
        kinds = frozenset(filter(None, request.query.get("kinds", "").split(",")))
        if unknown := sorted(kinds - set(KINDS)):
            fail(400, f"there are no events {unknown[0][:_LONGEST_ID]!r}; there are {', '.join(KINDS)}")
        return await self._streams.serve(request, self._events.reader(request.headers.get("Last-Event-ID", ""), kinds))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader is: the run, and the number of the last line that it has.

    ``kept``: that line came from the record of the run.
    """

    run: str
    after: int
    kept: bool = False


def wanted_place(host: Host, snapshot: HostSnapshot, job: Job, asked: str | None, last_id: str) -> Place:
    """Which run, and the last line that the reader has of it.

    An id names its run: a reader that comes back goes on in the run it read, also when the next one lives already.
    The run of another job is never it: 404 when it is asked for, and an id of one is none.
    """
    run, _, number = last_id.rpartition(":")
    kept, number = number.startswith(KEPT), number.removeprefix(KEPT)
    after = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    if asked is not None:
        if not asked or len(asked) > _LONGEST_ID:
            fail(400, "run must be the id of a run")
        if is_of_another(host, snapshot, asked, job.name):
            fail(404, f"{asked!r} is no run of the job {job.name!r}")
        return Place(asked, after, kept) if run in ("", asked) else Place(asked, 0)
    if run and len(run) <= _LONGEST_ID and after and not is_of_another(host, snapshot, run, job.name):
        return Place(run, after, kept)
    live = snapshot.live.get(job.name, ())
    over = [record.key.run_id for record in snapshot.history.get(job.name, ()) if record.key.run_id]
    newest = live[-1].key.run_id if live else over[-1] if over else ""
    return Place(newest, after, kept) if not run else Place(newest, 0)


def is_of_another(host: Host, snapshot: HostSnapshot, run: str, job: str) -> bool:
    """Whether a run is known to be one of another job than ``job``."""
    seen = (snapshot.live, snapshot.history)
    if any(one.key.run_id == run for runs in seen for one in runs.get(job, ())):
        return False
    # One flat look at all of them: there may be ten thousand jobs with twenty rows each.
    return any(one.key.run_id == run for runs in seen for rows in runs.values() for one in rows) or any(
        one.run_id == run for name in snapshot.jobs if name != job for one in host.decisions(name, _ALL)
    )


def _record(snapshot: HostSnapshot, job: str, run: str) -> RunRecord | None:
    return next((record for record in snapshot.history.get(job, ()) if run and record.key.run_id == run), None)


class Tail:
    """A ``Source`` of the lines of one run. ``follow`` fills it and waits while its reader is behind."""

    def __init__(self, host: Host, written: Written, place: Place, record: RunRecord | None) -> None:
        self._host = host
        self._written = written
        self._run = place.run
        self._after = place.after
        self._kept = place.kept
        self._record = record
        self._pending = bytearray()
        self._over = False
        self._more = anyio.Event()
        self._room = anyio.Event()

    async def take(self) -> bytes | None:
        """All that waits; None when the run's output is over and taken."""
        while not self._pending:
            if self._over:
                return None
            self._more = anyio.Event()
            await self._more.wait()
        chunk = bytes(self._pending)
        self._pending.clear()
        self._room.set()
        return chunk

    async def follow(self) -> None:
        """Write the lines down as they come, then the end."""
        first = self._after == 0
        if first:
            started = None if self._record is None else iso(self._record.started_at)
            await self._put(message("run", {"run_id": self._run or None, "started_at": started}))
        known = (not self._kept and await self._lines()) or ((first or self._kept) and await self._kept_lines())
        # What else there was cannot be told from nothing: no reader shall take what it has for all of it.
        end: Json = {} if known else {"reason": "no-output" if first else "forgotten"}
        await self._put(message("end", end))
        self._over = True
        self._more.set()

    async def _lines(self) -> bool:
        """Lines as the node remembers them; whether it remembers the run.

        A run that is remembered has its last line, so that there is one from the last on that the reader has.
        """
        known = False
        if self._run:
            async for line in self._host.output(self._run, max(0, self._after - 1)):
                known = True
                if line.number > self._after:
                    await self._line(line, self._written.line(self._run, line))
        return known

    async def _kept_lines(self) -> bool:
        """Lines of the record; whether it has any."""
        known = False
        for line in () if self._record is None else kept_lines(self._record):
            known = True
            if line.number > self._after:
                await self._line(line, line_event(f"{self._run}:{KEPT}", line))
        return known

    async def _line(self, line: Line, sent: bytes) -> None:
        if line.number > self._after + 1:
            await self._put(message("gap", {"from": self._after + 1, "to": line.number - 1}))
        self._after = line.number
        await self._put(sent)

    async def _put(self, sent: bytes) -> None:
        while len(self._pending) >= PENDING:
            self._room = anyio.Event()
            await self._room.wait()
        self._pending += sent
        self._more.set()


def line_event(before: str, line: Line) -> bytes:
    """The event ``line``, whose id says how far a reader got: ``before``, and the number."""
    data: Json = {"stream": line.stream, "line": line.text, "number": line.number, "at": iso(line.at)}
    return message("line", data, f"{before}{line.number}")


def kept_lines(record: RunRecord) -> Iterable[Line]:
    """What a record kept of a run whose lines are forgotten: both streams one after the other, times unknown."""
    number = 0
    for stream, text in (("stdout", record.stdout), ("stderr", record.stderr)):
        for line in (text or "").splitlines():
            number += 1
            yield Line(number, stream, line, record.finished_at)


class _Nothing:
    """For HEAD: a stream that nobody reads."""

    async def take(self) -> bytes | None:
        return None
