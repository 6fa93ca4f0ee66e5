"""The run history: every run and every skip that a user would look for, written down and read back at the start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import anyio

from cronstable.core.clock import Clock, Seconds
from cronstable.core.job import Job
from cronstable.core.records import WriteKind, merge_rows, run_of, run_row, stream
from cronstable.core.runs import RunRecord
from cronstable.runtime.launcher import HISTORY, Launcher
from cronstable.runtime.state import StateKeeper

READERS: Final = 8
"""Jobs whose rows are read at the same time after the start."""
AGAIN: Final[Seconds] = 5.0
"""Between two looks at a store that did not answer."""


class RunHistory:
    """Writes rows as they come, and gives back those of before. The schedule never waits for either."""

    def __init__(
        self,
        *,
        keeper: StateKeeper,
        launcher: Launcher,
        clock: Clock,
        jobs: Callable[[], Mapping[str, Job]],
        log: logging.Logger,
        recalled: Callable[[str, Sequence[RunRecord]], None] = lambda job, rows: None,
    ) -> None:
        self._keeper = keeper
        self._launcher = launcher
        self._clock = clock
        self._jobs = jobs
        self._log = log
        self._recalled = recalled
        self._known: set[str] = set()
        launcher.remembered = self._remembered

    def _remembered(self, record: RunRecord) -> None:
        """A row was added to the history of this node."""
        policy = self._keeper.policy
        if policy is not None:
            job = record.key.job
            row = run_row(record, self._launcher.node)
            self._keeper.write(WriteKind.RUN_RECORD, stream("runs", job), row, keep=policy.max_runs_per_job)

    async def runs(self, job: str, limit: int) -> Sequence[RunRecord]:
        """The newest runs of a job, newest first; those in memory when the store has no answer."""
        stored = await self._read(job, limit) if limit > 0 and self._keeper.configured else ()
        return merge_rows(limit, self._launcher.history().get(job, ()), stored or ())[::-1]

    async def last(self, job: str) -> Sequence[RunRecord] | None:
        """What happened to a job last, oldest first, as the store and this node know it; None without an answer."""
        stored = await self._read(job, HISTORY)
        return None if stored is None else merge_rows(HISTORY, self._launcher.history().get(job, ()), stored)

    async def _read(self, job: str, limit: int) -> Sequence[RunRecord] | None:
        rows = await self._keeper.read(stream("runs", job), limit=limit)
        return None if rows is None else [run for row in rows if (run := run_of(job, row)) is not None]

    # -- after the start ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read back what was, in the background, for each store that opens; and for jobs that a reload brings."""
        generation = 0
        while True:
            opened = await self._keeper.opened()
            if opened != generation:
                self._known.clear()
                generation = opened
            missing = [name for name in self._jobs() if name not in self._known]
            if missing:
                await self._recall(missing)
            await self._clock.sleep(AGAIN)

    async def _recall(self, names: Sequence[str]) -> None:
        started = self._clock.now().boot
        waiting = iter(names)
        found = 0

        async def read() -> None:
            nonlocal found
            for name in waiting:
                rows = await self._read(name, HISTORY)
                if rows is None:
                    return
                self._known.add(name)
                if rows:
                    found += 1
                    self._launcher.recall(name, rows)
                    self._recalled(name, rows)

        async with anyio.create_task_group() as tasks:
            for _ in range(READERS):
                tasks.start_soon(read)
        if found:
            self._log.info("state: the history of %d jobs in %.1f s", found, self._clock.now().boot - started)
