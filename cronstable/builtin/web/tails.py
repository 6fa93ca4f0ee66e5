"""The endpoints that stream: GET /jobs/{name}/logs and GET /events."""

from __future__ import annotations

from collections.abc import Iterable
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
_LONGEST_ID: Final = 100


class Tails:
    """Handlers of streams."""

    def __init__(self, site: Site, streams: Streams, events: EventLog) -> None:
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
            (200, 400, 404),
            media=(EVENTS,),
            query=(run,),
        )
        yield Route(
            "GET",
            "/events",
            self.events,
            "What happens on this node as it happens",
            (200, 400),
            media=(EVENTS,),
            query=(kinds,),
        )

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """GET /jobs/{name}/logs?run=ID: lines under their numbers, from the first one kept or after Last-Event-ID."""
        snapshot, job = self._site.find(request)
        run, after = wanted_run(snapshot, job, request.query.get("run"), request.headers.get("Last-Event-ID", ""))
        if request.method == "HEAD":
            return await self._streams.serve(request, _Nothing())
        async with anyio.create_task_group() as tasks:
            tail = Tail(self._site.host, run, after, _record(snapshot, job.name, run))
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


def wanted_run(snapshot: HostSnapshot, job: Job, asked: str | None, last_id: str) -> tuple[str, int]:
    """Which run, and the number of the last line that the reader has of it.

    An id names its run: a reader that comes back goes on in the run it read, also when the next one lives already.
    """
    run, _, number = last_id.rpartition(":")
    after = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    if asked is not None:
        if not asked or len(asked) > _LONGEST_ID:
            fail(400, "run must be the id of a run")
        return asked, after if run in ("", asked) else 0
    if run and len(run) <= _LONGEST_ID and after:
        return run, after
    live = snapshot.live.get(job.name, ())
    over = [record.key.run_id for record in snapshot.history.get(job.name, ()) if record.key.run_id]
    newest = live[-1].key.run_id if live else over[-1] if over else ""
    return newest, after if not run else 0


def _record(snapshot: HostSnapshot, job: str, run: str) -> RunRecord | None:
    return next((record for record in snapshot.history.get(job, ()) if run and record.key.run_id == run), None)


class Tail:
    """A ``Source`` of the lines of one run. ``follow`` fills it and waits while its reader is behind."""

    def __init__(self, host: Host, run: str, after: int, record: RunRecord | None) -> None:
        self._host = host
        self._run = run
        self._after = after
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
        if self._run:
            async for line in self._host.output(self._run, self._after):
                await self._line(line)
        if first and self._after == 0 and self._record is not None:
            for line in kept_lines(self._record):
                await self._line(line)
        await self._put(message("end", {"reason": "no-output"} if first and self._after == 0 else {}))
        self._over = True
        self._more.set()

    async def _line(self, line: Line) -> None:
        if line.number > self._after + 1:
            await self._put(message("gap", {"from": self._after + 1, "to": line.number - 1}))
        self._after = line.number
        data: Json = {"stream": line.stream, "line": line.text, "number": line.number, "at": iso(line.at)}
        await self._put(message("line", data, f"{self._run}:{line.number}"))

    async def _put(self, sent: bytes) -> None:
        while len(self._pending) >= PENDING:
            self._room = anyio.Event()
            await self._room.wait()
        self._pending += sent
        self._more.set()


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
