"""Services: the web API and other companions; each restarts when its section changes and can fail alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from cronstable.core.clock import Seconds
from cronstable.plugin.descriptors import ServiceProvider
from cronstable.plugin.manager import Provided
from cronstable.plugin.protocols import Host, Service

START_DEADLINE: Seconds = 30.0
STOP_DEADLINE: Seconds = 5.0

MakeService = Callable[[Provided[ServiceProvider], object, Host], Service]


@dataclass(slots=True, eq=False)
class _Running:
    settings: object
    scope: anyio.CancelScope
    ended: anyio.Event


class Services:
    """Keeps one task per configured service. A service that fails is logged and tried again at the next pass."""

    def __init__(
        self,
        *,
        providers: Mapping[str, Provided[ServiceProvider]],
        make: MakeService,
        host: Host,
        log: logging.Logger,
    ) -> None:
        self._providers = providers
        self._make = make
        self._host = host
        self._log = log
        self._tasks: TaskGroup | None = None
        self._running: dict[str, _Running] = {}

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group services live in."""
        self._tasks = tasks

    async def reconcile(self, settings: Mapping[str, object]) -> None:
        """Start, stop and restart services so that they match ``settings`` (section name to parsed settings)."""
        wanted = self._wanted(settings)
        for name in [n for n, r in self._running.items() if n not in wanted or r.settings != wanted[n]]:
            await self._stop(name)
        for name, value in wanted.items():
            if name not in self._running:
                await self._start(name, value)

    def _wanted(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Settings by service: those whose section is configured, and those that need none."""
        wanted: dict[str, object] = {}
        for name, provided in self._providers.items():
            section = provided.descriptor.section
            if not section or section in settings:
                wanted[name] = settings.get(section)
        return wanted

    async def _start(self, name: str, settings: object) -> None:
        assert self._tasks is not None, "bind() comes first"
        running = _Running(settings, anyio.CancelScope(), anyio.Event())
        with anyio.move_on_after(START_DEADLINE) as late:
            await self._tasks.start(self._run, name, running)
        if late.cancelled_caught:
            running.scope.cancel()
            self._log.error("service %s: not ready within %g s; tried again at the next pass", name, START_DEADLINE)

    async def _run(self, name: str, running: _Running, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        self._running[name] = running
        ready = False

        class Ready:
            def started(self, value: None = None) -> None:
                nonlocal ready
                if not ready:
                    ready = True
                    task_status.started(value)

        try:
            with running.scope:
                service = self._make(self._providers[name], running.settings, self._host)
                await service.run(self._host, task_status=Ready())
        except Exception:  # noqa: BLE001 - a service comes from a plugin and never takes the daemon down
            self._log.exception("service %s failed; tried again at the next pass", name)
        finally:
            running.ended.set()
            if self._running.get(name) is running:
                del self._running[name]
            if not ready:
                task_status.started()

    async def _stop(self, name: str) -> None:
        running = self._running.pop(name)
        running.scope.cancel()
        with anyio.move_on_after(STOP_DEADLINE) as late:
            await running.ended.wait()
        if late.cancelled_caught:
            self._log.warning("service %s did not stop within %g s", name, STOP_DEADLINE)
