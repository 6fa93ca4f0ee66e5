"""What a run costs: CPU per spawn, and lines through the capture. ``python benchmarks/spawn.py [--json]``."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import threading
from zoneinfo import ZoneInfo

import anyio

from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import Outcome, RunKey
from cronstable.core.schedule import Schedule
from cronstable.runtime.capture import LineBatch
from cronstable.runtime.runner import RunRequest, RunTools, run_job
from cronstable.runtime.spawn import PosixSpawner
from cronstable.runtime.system import SystemClock
from cronstable.runtime.threads import ThreadLanes

SPAWNS = 500
LINES = 2_000_000

Figures = dict[str, float | int]


class Counter:
    """Counts lines and forgets them."""

    def __init__(self) -> None:
        self.lines = 0

    def write(self, batch: LineBatch) -> None:
        self.lines += len(batch.texts)

    async def ready(self) -> None:
        return None


def _tools(sink: Counter) -> RunTools:
    log = logging.getLogger("benchmark")
    return RunTools(PosixSpawner(), SystemClock(), ThreadLanes(), sink, log, dict(os.environ))


def _request(command: str | tuple[str, ...], **options: bool) -> RunRequest:
    job = Job("job", command, Schedule("* * * * *", ZoneInfo("UTC")), JobOptions(**options))  # type: ignore[arg-type]
    return RunRequest(RunKey("run", "job", 60), job)


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _now() -> float:
    return SystemClock().now().boot


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def spawns(at_once: int) -> Figures:
    """``SPAWNS`` runs of /bin/true, ``at_once`` of them living together."""
    tools = _tools(Counter())
    gate = anyio.Semaphore(at_once)
    outcomes: list[Outcome] = []
    threads = 0

    async def one() -> None:
        nonlocal threads
        async with gate:
            outcomes.append((await run_job(_request(("/bin/true",)), tools)).outcome)
            threads = max(threads, threading.active_count())

    cpu, wall = _own_cpu(), _now()
    async with anyio.create_task_group() as tasks:
        for _ in range(SPAWNS):
            tasks.start_soon(one)
    cpu, wall = _own_cpu() - cpu, _now() - wall
    return {
        "runs": outcomes.count(Outcome.SUCCESS),
        "at_once": at_once,
        "cpu_ms_per_run": round(1000 * cpu / SPAWNS, 3),
        "wall_ms_per_run": round(1000 * wall / SPAWNS, 3),
        "threads": threads,
    }


async def flood() -> Figures:
    """``LINES`` short lines of one job, and how long others had to wait meanwhile."""
    sink = Counter()
    before, worst, wall = _peak_mib(), 0.0, _now()
    done = anyio.Event()

    async def bystander() -> None:
        nonlocal worst
        while not done.is_set():
            start = _now()
            await anyio.sleep(0.001)
            worst = max(worst, _now() - start - 0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bystander)
        record = await run_job(_request(f"yes line | head -n {LINES}", capture_stdout=True), _tools(sink))
        wall = _now() - wall
        done.set()
    return {
        "lines": sink.lines,
        "kept": len((record.stdout or "").splitlines()),
        "seconds": round(wall, 3),
        "mb_per_second": round(5 * LINES / wall / 1e6, 1),
        "memory_growth_mib": round(_peak_mib() - before, 1),
        "worst_wait_of_others_ms": round(1000 * worst, 2),
    }


async def main() -> dict[str, Figures]:
    """All figures by name."""
    return {"warm_up": await spawns(16), "gated": await spawns(16), "all": await spawns(SPAWNS), "flood": await flood()}


if __name__ == "__main__":
    results = anyio.run(main)
    del results["warm_up"]
    if "--json" in sys.argv:
        print(json.dumps(results, indent=2))
    else:
        for name, figures in results.items():
            print(name, " ".join(f"{key}={value}" for key, value in figures.items()))
