"""Cluster-years: simulations of a month each, in several processes, and what came of all of them together."""

from __future__ import annotations

import gc
import math
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.testing.sim.checker import Counts, Violation
from cronstable.testing.sim.world import Setup, simulate

MONTH: Final[Seconds] = 730 * 3600.0
"""A twelfth of a year."""


@dataclass(frozen=True, slots=True)
class Month:
    """What came of one simulation. ``setup``: how to see it again; ``faults``: how many there were."""

    setup: Setup
    faults: int
    counts: Counts
    violations: tuple[Violation, ...]
    events: int


def months(setup: Setup, years: float, backends: Sequence[str]) -> list[Setup]:
    """The simulations that ``years`` are made of: months one after the other, each with a seed of its own.

    They take turns with ``backends``; of so little time that not every one had a month, each has the same share.
    """
    total = years * 12
    length = min(1.0, total / len(backends))
    return [
        replace(
            setup,
            backend=backends[index % len(backends)],
            seed=f"{setup.seed}/{index + 1}",
            start=setup.start + index * MONTH,
            seconds=min(length, total - index * length) * MONTH,
        )
        for index in range(max(1, math.ceil(total / length - 1e-9)))
    ]


def run(setups: Sequence[Setup], processes: int = 1) -> Iterator[Month]:
    """Run them all, each month as it is done. Where there is no ``fork`` everything is done in this process.

    Raises ``RuntimeError`` when a process ends without having done its part.
    """
    if processes <= 1 or len(setups) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(_month, setups)
        return
    context = multiprocessing.get_context("fork")
    workers = {}
    for first in range(min(processes, len(setups))):
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(setups[first::processes], there), daemon=True)
        worker.start()
        there.close()
        workers[here] = worker
    while workers:
        for ready in wait(list(workers)):
            assert isinstance(ready, Connection)
            try:
                index, faults, counts, violations, events = ready.recv()
            except EOFError:
                worker = workers.pop(ready)
                worker.join()
                if worker.exitcode:
                    raise RuntimeError(f"a simulating process ended with {worker.exitcode}") from None
            else:
                setup = next(one for one in setups if one.seed == index)
                yield Month(setup, faults, counts, violations, events)


def _work(setups: Iterable[Setup], out: Connection) -> None:
    """In a process of its own: jobs need not be picklable, what came of them is."""
    # A simulation makes millions of small things and few circles of them: a tenth of its time went into looking.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    for month in map(_month, setups):
        out.send((month.setup.seed, month.faults, month.counts, month.violations, month.events))
    out.close()


def _month(setup: Setup) -> Month:
    result = simulate(setup)
    return Month(setup, len(result.plan), result.counts, result.violations, result.events)


def total(parts: Iterable[Month]) -> tuple[Counts, int]:
    """All counts together, and the number of faults."""
    sums, faults = Counts(), 0
    for part in parts:
        counts = part.counts
        faults += part.faults
        for name in ("due", "starts", "claimed", "retries", "late", "duplicates", "misses", "terms"):
            setattr(sums, name, getattr(sums, name) + getattr(counts, name))
        sums.worst_takeover = max(sums.worst_takeover, counts.worst_takeover)
        sums.worst_lateness = max(sums.worst_lateness, counts.worst_lateness)
        sums.skipped_seconds += counts.skipped_seconds
        for name in ("skips", "alarms", "moments"):
            setattr(sums, name, dict(Counter(getattr(sums, name)) + Counter(getattr(counts, name))))
    return sums, faults
