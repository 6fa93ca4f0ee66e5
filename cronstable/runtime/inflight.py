"""Runs in flight: what a daemon that died left behind, told from what it finished (reference 4.6)."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskGroup

from cronstable.core.clock import Clock, Seconds
from cronstable.core.fingerprint import job_digest
from cronstable.core.job import ConcurrencyPolicy, Job, Json
from cronstable.core.records import KEEP, WriteKind, stream
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.plugin.protocols import Ids
from cronstable.runtime.history import RunHistory
from cronstable.runtime.launcher import Flight, Launcher
from cronstable.runtime.process_table import ProcessTable
from cronstable.runtime.state import StateKeeper

LOOK_EVERY: Final[Seconds] = 1.0
"""How often a process is looked at that is not our child."""
LOOK_OFTEN: Final[Seconds] = 0.1
READERS: Final = 8
KEPT: Final = KEEP[WriteKind.INFLIGHT]
LOST = "the daemon that started it died before it ended; how it ended is not known"
TAKEN_OVER = "its node let its slot run out before it ended; how it ended is not known"


@dataclass(frozen=True, slots=True)
class Left:
    """A run that a daemon began and did not see the end of. ``daemon``, ``process``: id and mark."""

    key: RunKey
    host: str
    proc: str
    node: str | None
    daemon: tuple[int, str]
    process: tuple[int, str]
    started_at: float


def unfinished(job: str, records: Iterable[Mapping[str, Json]]) -> Sequence[Left]:
    """The runs that are open as far as the records of a stream say: one of each daemon at most."""
    last: dict[str, Mapping[str, Json]] = {}
    for record in records:
        if isinstance(proc := record.get("proc"), str):
            last[proc] = record
    found = (_left(job, record) for record in last.values() if record.get("kind") == "open")
    return [left for left in found if left is not None]


def _left(job: str, record: Mapping[str, Json]) -> Left | None:
    try:
        scheduled = record.get("scheduledAt")
        key = RunKey(
            str(record["runId"]),
            job,
            scheduled if isinstance(scheduled, int) else None,
            _whole(record.get("attempt", 0)),
            Trigger(str(record["trigger"])),
        )
        started = record["startedAt"]
        if not isinstance(started, int | float):
            return None
        node = record.get("node")
        return Left(
            key,
            str(record["host"]),
            str(record["proc"]),
            node if isinstance(node, str) else None,
            (_whole(record["daemonPid"]), str(record["daemonStart"])),
            (_whole(record["pid"]), str(record["processStart"])),
            started,
        )
    except (KeyError, ValueError, TypeError):
        return None


def _whole(value: Json) -> int:
    if not isinstance(value, int):
        raise TypeError("a whole number was expected")
    return value


class InFlight:
    """Implements the launcher's ``RunListener``: the first run of a job that lives here is written down.

    After a start it settles what others left: a run whose process is gone becomes a row ``unknown``; one that still
    lives counts as running, for overlap and for everybody who looks, until it is gone.
    """

    def __init__(
        self,
        *,
        keeper: StateKeeper,
        launcher: Launcher,
        history: RunHistory,
        table: ProcessTable,
        clock: Clock,
        ids: Ids,
        jobs: Callable[[], Mapping[str, Job]],
        hostname: str,
        pid: int,
        log: logging.Logger,
    ) -> None:
        self._keeper = keeper
        self._launcher = launcher
        self._history = history
        self._table = table
        self._clock = clock
        self._jobs = jobs
        self._hostname = hostname
        self._log = log
        self._proc = ids.token(6)
        self._pid = pid
        self._start = table.mark(pid) or ""
        self._runs: dict[str, set[str]] = {}
        self._digests: dict[str, tuple[Job, str]] = {}
        self._adopted: list[Flight] = []
        self._tasks: TaskGroup | None = None
        self._settled = anyio.Event()
        self.on_adopted: Callable[[Job, LiveRun], None] = lambda job, run: None
        self.on_gone: Callable[[str], None] = lambda run_id: None

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group survivors are watched in, and begin to look for them."""
        self._tasks = tasks
        tasks.start_soon(self._run)

    # -- what happens to our own runs ---------------------------------------------------------------------------------

    def started(self, job: Job, run: LiveRun) -> None:
        """Write the first one down."""
        if not self._keeper.configured:
            return
        living = self._runs.setdefault(job.name, set())
        living.add(run.key.run_id)
        if len(living) == 1:
            self._write(
                job.name,
                {
                    "kind": "open",
                    "host": self._hostname,
                    "node": self._launcher.node,
                    "proc": self._proc,
                    "daemonPid": self._pid,
                    "daemonStart": self._start,
                    "pid": run.pid,
                    "processStart": self._table.mark(run.pid) or "",
                    "runId": run.key.run_id,
                    "scheduledAt": run.key.scheduled_at,
                    "attempt": run.key.attempt,
                    "trigger": run.key.trigger.value,
                    "startedAt": run.started_at,
                    "jobDigest": self._digest(job),
                },
            )

    def _digest(self, job: Job) -> str:
        known = self._digests.get(job.name)
        if known is None or known[0] is not job:
            known = self._digests[job.name] = (job, job_digest(job))
        return known[1]

    def finished(self, job: Job, record: RunRecord) -> None:
        """Close the record with the last one."""
        living = self._runs.get(job.name)
        if living is None or record.key.run_id not in living:
            return
        living.discard(record.key.run_id)
        if not living:
            del self._runs[job.name]
            self._close(job.name, self._proc, record.key.run_id, "finished")

    def _close(self, job: str, proc: str, run_id: str, reason: str) -> None:
        now = self._clock.now().wall
        closed: dict[str, Json] = {"kind": "closed", "reason": reason, "host": self._hostname}
        self._write(job, {**closed, "proc": proc, "runId": run_id, "at": now})

    def _write(self, job: str, record: Mapping[str, Json]) -> None:
        self._keeper.write(WriteKind.INFLIGHT, stream("inflight", job), record, keep=KEPT)

    # -- what others left ---------------------------------------------------------------------------------------------

    async def settled(self, within: Seconds) -> bool:
        """Return when all that was left is known, or after ``within`` seconds; whether it is."""
        if self._keeper.configured:
            with anyio.move_on_after(within):
                await self._settled.wait()
        return self._settled.is_set()

    def survives(self, job: str) -> bool:
        """Whether a run of ``job`` lives on that a daemon before this one began."""
        return any(flight.job.name == job for flight in self._adopted)

    def let_go(self, keep: Callable[[str], bool] = lambda run_id: False) -> None:
        """The daemon stops: what is not ours is not waited for, and the next daemon finds it again.

        ``keep``: run ids that are to be ended before the daemon does.
        """
        for flight in tuple(self._adopted):
            if not keep(flight.key.run_id):
                self._release(flight, None)

    async def _run(self) -> None:
        generation, left = 0, None
        while True:
            generation = await self._keeper.opened(generation)
            left = await self._look(None)
            while left is None or left:
                await self._clock.sleep(LOOK_EVERY)
                now = await self._keeper.opened()
                left = await self._look(left if now == generation else None)
                generation = now
            self._settled.set()

    async def _look(self, only: frozenset[str] | None) -> frozenset[str] | None:
        """Look at jobs once, at all of them or at ``only`` these: those first to whom it matters.

        The ones of which the store said nothing; None: it said nothing at all.
        """
        if only is None:
            known = await self._keeper.streams("inflight/")
            if known is None:
                return None
            there = frozenset(known)
            jobs = [job for job in self._jobs().values() if stream("inflight", job.name) in there]
        else:
            jobs = [job for job in self._jobs().values() if job.name in only]
        jobs.sort(key=lambda job: job.options.concurrency_policy is ConcurrencyPolicy.ALLOW and not job.schedule.reboot)
        waiting, unread = iter(jobs), {job.name for job in jobs}

        async def read() -> None:
            for job in waiting:
                records = await self._keeper.read(stream("inflight", job.name), limit=KEPT)
                if records is None:
                    if self._keeper.is_open:
                        continue
                    return
                for left in unfinished(job.name, records):
                    await self._settle(job, left)
                unread.discard(job.name)

        async with anyio.create_task_group() as tasks:
            for _ in range(READERS):
                tasks.start_soon(read)
        return frozenset(unread)

    async def _settle(self, job: Job, left: Left) -> None:
        mine = left.host == self._hostname or not self._keeper.shared
        if left.proc == self._proc or not mine or self._lives(left.daemon):
            return
        if self._lives(left.process):
            self._adopt(job, left)
            return
        await self._write_off(job, left, "reconciled-crash", LOST)

    async def _write_off(self, job: Job, left: Left, reason: str, why: str) -> None:
        """Nobody will say any more how the run ended: close its record, and give it a row unless it has one."""
        self._close(job.name, left.proc, left.key.run_id, reason)
        rows = await self._history.last(job.name)
        if rows is None or all(row.key.run_id != left.key.run_id for row in rows):
            self._launcher.remember(self._lost(left, Outcome.UNKNOWN, why))
            self._log.warning("job %s: run %s: %s", job.name, left.key.run_id, why)

    def taken_over(self, job: Job, holder: str) -> None:
        """This node took the slot of ``job`` out of the hands of the node ``holder``, which seems to be dead.

        It may never come back to say what became of its run; on this host its process would show that it lives.
        """
        if self._tasks is not None:
            self._tasks.start_soon(self._take_over, job, holder)

    async def _take_over(self, job: Job, holder: str) -> None:
        records = await self._keeper.read(stream("inflight", job.name), limit=KEPT)
        for left in unfinished(job.name, records or ()):
            here = left.host == self._hostname
            lives = here and (self._lives(left.daemon) or self._lives(left.process))
            if left.node == holder and left.proc != self._proc and not lives:
                await self._write_off(job, left, "reconciled-takeover", TAKEN_OVER)

    def _lives(self, process: tuple[int, str]) -> bool:
        pid, mark = process
        return mark != "" and self._table.mark(pid) == mark

    def _lost(self, left: Left, outcome: Outcome, why: str = LOST) -> RunRecord:
        now = self._clock.now().wall
        return RunRecord(left.key, outcome, None, left.started_at, now, None, fail_reason=why, node=left.node)

    # -- survivors ----------------------------------------------------------------------------------------------------

    def _adopt(self, job: Job, left: Left) -> None:
        known = any(flight.key.run_id == left.key.run_id for flight in self._adopted)
        if known or self._tasks is None or self._launcher.stopping:
            return
        pid = left.process[0]
        self._log.warning("job %s: run %s of a daemon that died still lives (pid %d)", job.name, left.key.run_id, pid)
        run = LiveRun(left.key, pid, left.started_at)
        flight = self._launcher.adopt(job, run)
        self._adopted.append(flight)
        self._tasks.start_soon(self._watch, flight, left)
        self.on_adopted(job, run)

    async def _watch(self, flight: Flight, left: Left) -> None:
        limit = flight.job.options.execution_timeout
        with flight.cancellation.scope():
            while self._lives(left.process) and flight in self._adopted:
                if limit is not None and self._clock.now().wall > left.started_at + limit:
                    flight.cancellation.request("executionTimeout")
                await self._clock.sleep(LOOK_EVERY)
        outcome = Outcome.UNKNOWN
        if flight.cancellation.requested and flight in self._adopted:
            outcome = Outcome.CANCELLED
            await self._end(flight, left)
        if flight in self._adopted:
            self._close(flight.job.name, left.proc, left.key.run_id, "gone")
            self._release(flight, self._lost(left, outcome))

    async def _end(self, flight: Flight, left: Left) -> None:
        """SIGTERM to its group, then SIGKILL to what is left of it; nothing when its process is not seen to live."""
        pid, grace = left.process[0], flight.cancellation.grace
        if not self._lives(left.process):
            return
        patience = flight.job.options.kill_timeout
        end = self._clock.now().boot + (patience if grace is None else min(grace, patience))

        def hasten(grace: Seconds) -> None:
            nonlocal end
            end = min(end, self._clock.now().boot + grace)

        flight.cancellation.hastens(hasten)
        self._table.signal_group(pid, signal.SIGTERM)
        while self._table.group_lives(pid) and self._clock.now().boot < end:
            await self._clock.sleep(min(LOOK_OFTEN, max(0.001, end - self._clock.now().boot)))
        # Looked at without a pause since its process was seen: as long as somebody is in it, it is the same group.
        if self._table.group_lives(pid):
            self._table.signal_group(pid, signal.SIGKILL)
        while self._lives(left.process) and flight in self._adopted:
            await self._clock.sleep(LOOK_OFTEN)

    def _release(self, flight: Flight, record: RunRecord | None) -> None:
        self._adopted.remove(flight)
        self._launcher.release(flight, record)
        self.on_gone(flight.key.run_id)
