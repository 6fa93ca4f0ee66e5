"""What every endpoint needs: the host, who asks, which job is meant, and how a command is carried out."""

from __future__ import annotations

from typing import Final

import anyio
from aiohttp import web

from cronstable.api import Actor, Command, Done, Host, HostSnapshot, Job, NoSuchJob, Refused
from cronstable.builtin.web.answers import fail
from cronstable.builtin.web.auth import Caller, Guard, Unauthorized
from cronstable.builtin.web.contexts import Contexts
from cronstable.builtin.web.kept import Kept, Sender
from cronstable.builtin.web.repeats import Again
from cronstable.builtin.web.settings import WebSettings

COMMAND_TIMEOUT: Final = 30.0
"""Seconds that a command may take before 504."""


class Site:
    """One web service: its host, its settings and its guard."""

    def __init__(self, host: Host, settings: WebSettings, guard: Guard, contexts: Contexts) -> None:
        self.host = host
        self.settings = settings
        self.guard = guard
        self.sender = Sender(host, settings.headers, contexts)

    def wall(self) -> float:
        """Wall seconds now."""
        return self.host.clock.now().wall

    def kept(self, request: web.Request, kept: Kept, again: Again) -> web.StreamResponse:
        """200 with a body that is sent again and again; ``again`` is what it is at another time."""
        return self.sender.kept(request, kept, again)

    def caller(self, request: web.Request) -> Caller:
        """Who sent the request, or 401."""
        given = request.headers.get("Authorization")
        if given is None and request.path.endswith(".ics") and "token" in request.query:
            # Calendars are fetched by programs that can be given nothing but an address.
            given = f"Bearer {request.query['token']}"
        caller = self.guard.identify(given, request.remote or "a unix socket")
        if isinstance(caller, Unauthorized):
            fail(401, "a valid token is needed")
        return caller

    def find(self, request: web.Request) -> tuple[HostSnapshot, Job]:
        """The job that the path names, or 404."""
        snapshot = self.host.snapshot()
        name = request.match_info["name"]
        job = snapshot.jobs.get(name)
        if job is None:
            fail(404, f"there is no job {name!r}")
        return snapshot, job

    async def do(self, request: web.Request, command: Command) -> Done:
        """Carry out a command in the name of the caller, or answer why not."""
        try:
            with anyio.fail_after(COMMAND_TIMEOUT):
                outcome = await self.host.do(command, Actor(self.caller(request).label, "api"))
        except TimeoutError:
            fail(504, f"no answer within {COMMAND_TIMEOUT:g} s; it may still take effect")
        if isinstance(outcome, NoSuchJob):
            fail(404, f"there is no job {outcome.job!r}")
        if isinstance(outcome, Refused):
            fail(409, outcome.reason)
        return outcome
