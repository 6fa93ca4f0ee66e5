"""The endpoints that tell what jobs are, as configured: all that a configuration says of them but secrets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aiohttp import web

from cronstable.api import HostSnapshot, Job, Json, definitions, seal, sealing_key
from cronstable.builtin.web import shapes
from cronstable.builtin.web.answers import json_bytes
from cronstable.builtin.web.auth import Caller
from cronstable.builtin.web.routes import Route
from cronstable.builtin.web.settings import CONTROL
from cronstable.builtin.web.site import Site

OFF_LOOP: Final = 30.0
"""Seconds for ten thousand definitions on a busy machine."""
NONCE_BYTES: Final = 16


class Definitions:
    """Handlers of GET, for one site.

    Masked values have a seal for who proves with a token that he may do anything: he can compare them with his own. By
    trying, the owner of the token can find out a short value from its seal; nobody else can.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Iterable[Route]:
        """Every endpoint of this module."""
        yield Route("GET", "/definitions", self.every, "All jobs as configured, without secrets", answer="Definitions")
        yield Route(
            "GET", "/jobs/{name}/definition", self.one, "The job as configured", (200, 404), answer="Definitions"
        )

    async def every(self, request: web.Request) -> web.Response:
        """GET /definitions."""
        snapshot = self._site.host.snapshot()
        # All of them take long enough to hold others up: they wait in a lane of their own, one after the other.
        return await self._answer(request, snapshot, snapshot.jobs.values(), lane="definitions")

    async def one(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}/definition: the same about one job."""
        snapshot, job = self._site.find(request)
        return await self._answer(request, snapshot, (job,), lane="web")

    async def _answer(
        self, request: web.Request, snapshot: HostSnapshot, jobs: Iterable[Job], *, lane: str
    ) -> web.Response:
        nonce = self._nonce(caller := self._site.caller(request))
        key = None if nonce is None else sealing_key(caller.secret, nonce)
        head: dict[str, Json] = {"node_name": snapshot.node_name, "job_set_id": snapshot.job_set_id, "nonce": nonce}
        body = await self._site.host.threads.run(lambda: _body(head, jobs, key), timeout=OFF_LOOP, lane=lane)
        return json_bytes(body)

    def _nonce(self, caller: Caller) -> str | None:
        if caller.authenticated and CONTROL in caller.scopes:
            return self._site.host.ids.token(NONCE_BYTES)
        return None


def _body(head: dict[str, Json], jobs: Iterable[Job], key: bytes | None) -> bytes:
    """The document; entry by entry, as one call of the encoder for all would hold every other thread up."""
    entries = []
    for job, definition in definitions(jobs):
        hidden: dict[str, Json] = {
            name: None if key is None else seal(key, job.name, name, value) for name, value in definition.hidden.items()
        }
        entry: dict[str, Json] = {"name": job.name, "source": job.source, "keys": {**definition.keys}, "hidden": hidden}
        entries.append(shapes.dumps(entry))
    return shapes.dumps(head)[:-1] + b',"jobs":[' + b",".join(entries) + b"]}"
