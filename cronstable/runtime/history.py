"""The run history: every run and every skip that a user would look for, written down and read back at the start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import anyio

from cronstable.core.clock import Clock, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import Job
from cronstable.core.records import WriteKind, merge_rows, run_of, run_row, stream
from cronstable.core.runs import Outcome, RunRecord
from cronstable.runtime.launcher import HISTORY, Launcher
from cronstable.runtime.state import StateKeeper

AS_FAR: Final = 1000
"""Rows that are looked through for the last run of a job whose newer rows are all skips."""
FRESH: Final[Seconds] = 20.0
"""For how long what the store said of a job's last run counts as known, where other nodes can run it too."""
READERS: Final = 8
"""Jobs whose rows are read at the same time after the start, where somebody waits for them or the store is far away.

From a local disk it is work more than waiting, and one at a time costs little more than half the CPU of two.
"""
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
        self._read_at: dict[str, float] = {}
        self._settled = anyio.Event()
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
        stored = await self._read(job, limit, gaps=True) if limit > 0 and self._keeper.configured else ()
        return merge_rows(limit, self._launcher.history().get(job, ()), stored or ())[::-1]

    async def last(self, job: str) -> Sequence[RunRecord] | None:
        """What happened to a job last, oldest first, as the store and this node know it; None without an answer."""
        stored = await self._read(job, HISTORY)
        return None if stored is None else merge_rows(HISTORY, self._launcher.history().get(job, ()), stored)

    async def _read(self, job: str, limit: int, *, gaps: bool = False) -> Sequence[RunRecord] | None:
        rows = await self._keeper.read(stream("runs", job), limit=limit, gaps=gaps)
        return None if rows is None else [run for row in rows if (run := run_of(job, row)) is not None]

    # -- onlyIfLastSucceeded ------------------------------------------------------------------------------------------

    def after_success(self, job: Job) -> Decision | None:
        """The skip that ``onlyIfLastSucceeded`` asks for; None when the job may run, as far as this is concerned.

        A job that never ran may. What the store does not say is taken from memory, or with ``fail-closed`` blocks.
        """
        if not _gated(job):
            return None
        if self._keeper.fail_closed and (self._keeper.error is not None or not self._is_known(job.name)):
            return Decision(Verdict.SKIP, Reason.STORE_UNAVAILABLE, MappingProxyType({"key": "onlyIfLastSucceeded"}))
        last = self._launcher.last_runs().get(job.name)
        if last is None or last.run.outcome is Outcome.SUCCESS:
            return None
        evidence = MappingProxyType({"run": last.run.key.run_id, "outcome": last.run.outcome.value})
        return Decision(Verdict.SKIP, Reason.LAST_NOT_SUCCEEDED, evidence)

    def _is_known(self, job: str) -> bool:
        read_at = self._read_at.get(job)
        if read_at is None:
            return False
        return not self._keeper.shared or self._clock.now().boot <= read_at + FRESH

    async def settled(self, within: Seconds) -> None:
        """Return when what the first decisions have to know is read, or after ``within`` seconds."""
        if any(map(_gated, self._jobs().values())):
            with anyio.move_on_after(within):
                await self._settled.wait()

    # -- after the start ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read back what was, in the background, for each store that opens; and for jobs that a reload brings."""
        generation = 0
        while True:
            opened = await self._keeper.opened()
            if opened != generation:
                self._known.clear()
                self._read_at.clear()
                generation = opened
            jobs = self._jobs()
            gated = [job.name for job in jobs.values() if _gated(job)]
            await self._recall([name for name in gated if self._keeper.shared or name not in self._known], READERS)
            self._settled.set()
            await self._recall(
                [name for name in jobs if name not in self._known], READERS if self._keeper.shared else 1
            )
            await self._clock.sleep(AGAIN)

    async def _recall(self, names: Sequence[str], readers: int) -> None:
        started = self._clock.now().boot
        if not names:
            return
        jobs, waiting = self._jobs(), iter(names)
        found = 0

        async def read() -> None:
            nonlocal found
            for name in waiting:
                job, first = jobs.get(name), name not in self._known
                if job is None:
                    # A reload removed it while others were read.
                    continue
                gated = _gated(job)
                # Whether the last run succeeded is not guessed from an older row.
                rows = await self._read(name, AS_FAR if first and gated else HISTORY, gaps=not gated)
                if first and rows and len(rows) >= HISTORY and all(row.outcome is Outcome.SKIPPED for row in rows):
                    rows = await self._read(name, AS_FAR, gaps=not gated)
                if rows is None and self._keeper.is_open:
                    continue
                if rows is None:
                    return
                self._known.add(name)
                self._read_at[name] = self._clock.now().boot
                if rows:
                    found += first
                    self._launcher.recall(name, rows)
                    self._recalled(name, rows)

        async with anyio.create_task_group() as tasks:
            for _ in range(readers):
                tasks.start_soon(read)
        if found:
            self._log.info("state: the history of %d jobs in %.1f s", found, self._clock.now().boot - started)


def _gated(job: Job) -> bool:
    return job.options.raw.get("onlyIfLastSucceeded") is True
