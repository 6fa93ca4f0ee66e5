"""The service behind ``web``: one aiohttp application on its listeners, for as long as the daemon lives."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import anyio
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from cronstable.api import Host, Service, Started
from cronstable.builtin.web.app import Api
from cronstable.builtin.web.auth import Guard
from cronstable.builtin.web.contexts import Contexts
from cronstable.builtin.web.listeners import Listeners
from cronstable.builtin.web.settings import WebSettings

PASS: Final = 60.0
"""Seconds between looks at what failed to open and at certificates that were replaced."""
KEEP_ALIVE: Final = 75.0
"""Seconds after which an idle connection is closed."""
LINGER: Final = 1.0
"""Seconds for the rest of a refused request's body to be read, so that its sender sees the answer."""
HANDLERS_END: Final = 0.5
"""Seconds that requests in flight get at shutdown (DESIGN 3: at most 1)."""
CLEANUP: Final = 3.0
"""Seconds for all of the cleanup; aiohttp may wait for its handlers twice."""


def make(settings: object, host: Host) -> Service:
    """The factory named by the descriptor; ``settings`` is what ``parse`` returned."""
    if not isinstance(settings, WebSettings):
        raise TypeError(f"web: settings are {type(settings).__name__}, not WebSettings")
    return WebService(settings)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The HTTP server's log, where a request that is none is nobody's error: anyone who reaches the port can send one.

    Each would else leave a traceback, and a port scanner could fill the disk.
    """

    def exception(self, msg: object, *args: object, exc_info: object = True, **options: Any) -> None:
        """An error of ours with its traceback; a client's in a line at DEBUG."""
        error = exc_info if isinstance(exc_info, BaseException) else sys.exception()
        if isinstance(error, HttpProcessingError):
            self.debug("refused a request that is not HTTP: %s", type(error).__name__)
        else:
            self.error(msg, *args, exc_info=error, **options)


class WebService:
    """Serves the API until cancelled. Ready once every listener was tried, also when none could be opened."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings

    async def run(self, host: Host, *, task_status: Started) -> None:
        """Serve; every minute open what is not open and take over renewed certificates.

        A rotated token is no matter of this service: the host watches the files of secrets, and restarts it.
        """
        settings = self._settings
        guard = Guard(settings.tokens, settings.anonymous, host.clock, host.log)
        contexts = Contexts()
        api = Api(host, settings, guard, contexts)
        runner = web.AppRunner(
            api.application(),
            access_log=None,
            logger=ServerLog(logging.getLogger("aiohttp.server")),
            handle_signals=False,
            keepalive_timeout=KEEP_ALIVE,
            lingering_time=LINGER,
            shutdown_timeout=HANDLERS_END,
        )
        listeners = Listeners(settings, runner, host, api.repeats)
        try:
            await runner.setup()
            await self._open(listeners, host)
            async with anyio.create_task_group() as beside:
                beside.start_soon(api.events.run)
                beside.start_soon(api.events.watch)
                beside.start_soon(api.load.run)
                task_status.started()
                while True:
                    # At whole multiples, where an idle daemon is awake anyhow.
                    await host.clock.sleep(PASS - host.clock.now().boot % PASS)
                    await listeners.rotate_tls()
                    await self._open(listeners, host)
        finally:
            listeners.close()
            api.repeats.end()
            with anyio.move_on_after(CLEANUP, shield=True):
                await runner.cleanup()
            listeners.remove_sockets()

    async def _open(self, listeners: Listeners, host: Host) -> None:
        await listeners.open()
        if listeners.count == 0:
            host.log.error("web: no address could be opened, the API is unreachable; trying again in %g s", PASS)
