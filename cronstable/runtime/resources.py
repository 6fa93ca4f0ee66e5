"""``monitorResources``: samples the processor and memory use of runs, off the loop (reference 2; display only)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from cronstable.core.clock import Clock, Seconds
from cronstable.core.job import Job, Json
from cronstable.core.runs import LiveRun, Resources, ResourceSample, RunRecord
from cronstable.plugin.protocols import Threads

SAMPLE_DEADLINE: Seconds = 5.0


@dataclass(frozen=True, slots=True)
class Usage:
    """A process tree at one instant: processor seconds so far, and bytes of memory now."""

    cpu_user: Seconds
    cpu_system: Seconds
    rss: int


Sampler: TypeAlias = Callable[[int], "Usage | None"]
"""The usage of the tree below a process; None when it is gone. Blocking."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """How a job is sampled: every ``interval`` seconds, the last ``history`` samples kept."""

    interval: Seconds = 1.0
    history: int = 120


def monitoring_of(keys: Mapping[str, Json]) -> Monitoring | None:
    """The setting among the remaining keys of a job (``JobOptions.raw``); None when it is off."""
    setting = keys.get("monitorResources")
    if setting is True:
        return Monitoring()
    if not isinstance(setting, dict) or setting.get("enabled", True) is not True:
        return None
    interval, history = setting.get("interval", 1.0), setting.get("history", 120)
    return Monitoring(
        float(interval) if isinstance(interval, int | float) else 1.0, history if isinstance(history, int) else 120
    )


def sample_tree(pid: int) -> Usage | None:
    """Ask the system about a process and all below it. Children that ended count through who waited for them."""
    # Here and not above: psutil is loaded when a job is sampled, and by nobody else.
    import psutil

    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    user = system = 0.0
    rss = found = 0
    for process in tree:
        try:
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                times = process.cpu_times()
                rss += process.memory_info().rss
        except psutil.Error:
            continue
        found += 1
        user += times.user + getattr(times, "children_user", 0.0)
        system += times.system + getattr(times, "children_system", 0.0)
    return Usage(user, system, rss) if found else None


@dataclass(slots=True)
class _Watched:
    """A run that is sampled."""

    samples: deque[ResourceSample]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    total: Resources | None = None
    last: ResourceSample | None = None


class ResourceMonitor:
    """Implements the launcher's ``RunListener``, and completes records by what was sampled."""

    def __init__(self, *, clock: Clock, threads: Threads, log: logging.Logger, sample: Sampler = sample_tree) -> None:
        self._clock = clock
        self._threads = threads
        self._log = log
        self._sample = sample
        self._tasks: TaskGroup | None = None
        self._watched: dict[str, _Watched] = {}

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group sampling lives in; before that, nothing is sampled."""
        self._tasks = tasks

    def live(self) -> Mapping[str, Resources]:
        """What living runs used so far, by run id."""
        return MappingProxyType({run_id: w.total for run_id, w in self._watched.items() if w.total is not None})

    def started(self, job: Job, run: LiveRun) -> None:
        """Begin to sample, if the job asks for it."""
        monitoring = monitoring_of(job.options.raw)
        if monitoring is not None and self._tasks is not None:
            watched = self._watched[run.key.run_id] = _Watched(deque(maxlen=monitoring.history))
            self._tasks.start_soon(self._follow, run, monitoring, watched)

    def finished(self, job: Job, record: RunRecord) -> None:
        """``complete`` has come before."""

    def complete(self, record: RunRecord) -> RunRecord:
        """The record with what its run used; sampling ends."""
        watched = self._watched.pop(record.key.run_id, None)
        if watched is None:
            return record
        watched.scope.cancel()
        return replace(record, resources=watched.total)

    async def _follow(self, run: LiveRun, monitoring: Monitoring, watched: _Watched) -> None:
        with watched.scope:
            while True:
                try:
                    usage = await self._threads.run(
                        lambda: self._sample(run.pid), timeout=SAMPLE_DEADLINE, lane="resources"
                    )
                except Exception as error:  # noqa: BLE001 - a look at a strange /proc must not end the daemon
                    self._log.debug("run %s cannot be sampled: %s", run.key.run_id, type(error).__name__)
                    usage = None
                if usage is not None:
                    self._add(watched, usage)
                await self._clock.sleep(monitoring.interval)

    def _add(self, watched: _Watched, usage: Usage) -> None:
        now = ResourceSample(self._clock.now().wall, usage.cpu_user + usage.cpu_system, usage.rss)
        watched.samples.append(now)
        before = watched.total or Resources()
        last, watched.last = watched.last, now
        percent = 0.0
        if last is not None and now.at > last.at:
            percent = max(0.0, 100 * (now.cpu - last.cpu) / (now.at - last.at))
        # A child that ended unwaited takes its figures with it; the total does not go back for that.
        watched.total = Resources(
            cpu_user=max(before.cpu_user, usage.cpu_user),
            cpu_system=max(before.cpu_system, usage.cpu_system),
            max_rss=max(before.max_rss, usage.rss),
            rss=usage.rss,
            cpu_percent=percent,
            taken=before.taken + 1,
            samples=tuple(watched.samples),
        )
