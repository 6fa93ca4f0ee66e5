"""Hot reload: notices that something changed on disk and reads it again, off the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from cronstable.config import LoadResult, format_findings
from cronstable.config.watch import Signature, signature
from cronstable.core.clock import Clock, Seconds
from cronstable.core.finding import Severity
from cronstable.plugin.protocols import ReloadHealth, Threads

LOAD_DEADLINE: Seconds = 120.0
STAT_DEADLINE: Seconds = 20.0
EARLY: Seconds = 2.0
"""How long before the full minute files are looked at, so that the minute's jobs are the edited ones and their start is
not delayed by a parse."""


class Reloader:
    """Reads the configuration when it changed: each wall minute, and on request until a read succeeds."""

    def __init__(
        self,
        *,
        first: LoadResult,
        load: Callable[[], LoadResult],
        clock: Clock,
        threads: Threads,
        log: logging.Logger,
    ) -> None:
        self._load = load
        self._clock = clock
        self._threads = threads
        self._log = log
        self._seen: Signature | None = None
        self._watched = first.watched
        self._forced = False
        self._sleep = anyio.CancelScope()
        at = clock.now().wall
        self.health = ReloadHealth(ok=True, at=at, last_success=at)
        self._in_force_before = at
        self._postponed: ReloadHealth | None = None

    def postpone(self, why: str | None) -> None:
        """A part of what was read last is not in force, and why; None: by now all of it is.

        A look that failed meanwhile is the later news, and stays.
        """
        if why is not None and (self.health.ok or self.health is self._postponed):
            self._postponed = ReloadHealth(ok=False, at=self.health.at, last_success=self._in_force_before, error=why)
            self.health = self._postponed
        elif why is None and self.health is self._postponed:
            wall = self._clock.now().wall
            self.health = ReloadHealth(ok=True, at=wall, last_success=wall)

    def force(self) -> None:
        """Read again now, changed or not (SIGHUP); repeated each minute until a read succeeds."""
        self._forced = True
        self._sleep.cancel()

    async def prime(self) -> None:
        """Remember what the files look like now."""
        self._seen = await self._signature()

    async def next_look(self) -> LoadResult | None:
        """Wait for the next look and take it: the new configuration if it changed and is valid, else None."""
        await self._until_next_look()
        return await self.look()

    async def _until_next_look(self) -> None:
        # A scope that was cancelled before it is entered does not wait: a request between two looks is not lost.
        with self._sleep:
            await self._clock.sleep(self._seconds_to_next_look())
        self._sleep = anyio.CancelScope()

    def _seconds_to_next_look(self) -> Seconds:
        wall = self._clock.now().wall
        return (60.0 - EARLY - wall % 60.0) % 60.0 or 60.0

    async def look(self) -> LoadResult | None:
        """One look: the new configuration if there is one and it is valid."""
        seen = await self._signature()
        if not self._forced and (seen is None or seen == self._seen):
            return None
        self._seen = seen
        try:
            result = await self._threads.run(self._load, timeout=LOAD_DEADLINE, lane="config")
        except TimeoutError:
            self._failed(f"the configuration could not be read within {LOAD_DEADLINE:g} s")
            return None
        except Exception as error:  # noqa: BLE001 - a reload must never end the daemon, whatever it meets
            self._log.exception("reading the configuration failed; the old job set stays in force")
            self._failed(f"{type(error).__name__}: {error}")
            return None
        self._watched = tuple(dict.fromkeys((*result.watched, *(self._watched if result.config is None else ()))))
        if result.config is None:
            errors = [f for f in result.findings if f.severity is Severity.ERROR]
            text = format_findings(errors, "text")
            self._log.error("the edited configuration is not valid; the old job set stays in force:\n%s", text)
            self._failed(text)
            return None
        self._forced = False
        # What is watched may have grown: the next look compares like with like.
        self._seen = await self._signature()
        wall = self._clock.now().wall
        self._in_force_before = self.health.last_success
        self.health = ReloadHealth(ok=True, at=wall, last_success=wall)
        return result

    def _failed(self, error: str) -> None:
        self.health = ReloadHealth(
            ok=False, at=self._clock.now().wall, last_success=self.health.last_success, error=error
        )

    async def _signature(self) -> Signature | None:
        try:
            return await self._threads.run(lambda: signature(self._watched), timeout=STAT_DEADLINE, lane="config")
        except TimeoutError:
            self._log.warning("the configuration files could not be looked at within %g s", STAT_DEADLINE)
            return None
