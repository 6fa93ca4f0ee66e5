"""Retries of before and of other nodes: found in the store, taken up or taken over (reference 4.2)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, assert_never

import anyio

from cronstable.core.clock import Seconds
from cronstable.core.decision import Decision, Verdict
from cronstable.core.fingerprint import job_digest
from cronstable.core.job import ClusterPolicy, Job
from cronstable.core.retry import Resumed, retry_policy
from cronstable.core.retry_moves import Written, claim
from cronstable.core.retry_records import (
    OVERDUE,
    Claim,
    Facts,
    Handoff,
    Leave,
    Pending,
    Place,
    Rearm,
    Settle,
    Settling,
    at_boot,
    in_scan,
    spent,
)
from cronstable.core.runs import Outcome, RunKey, RunRecord, Trigger
from cronstable.core.values import dataclass
from cronstable.plugin.protocols import Rng
from cronstable.runtime.retry_door import Cluster, RetryDoor, newest_of, retry_stream
from cronstable.runtime.retry_store import RetryStore

SCAN_EVERY: Final[Seconds] = 55.0
JITTER: Final = 0.1
SOON: Final[Seconds] = 5.0
"""After a claim that could not be made just now."""
READERS: Final = 8
PREFIX: Final = "retries/"

FindRuns = Callable[[str], Awaitable[Sequence[RunRecord] | None]]
"""The newest runs of a job as the store knows them; None without an answer."""


class Gate(Protocol):
    """What is used of the scheduler."""

    @property
    def jobs(self) -> Mapping[str, Job]: ...
    def recheck(self, job: Job) -> Decision: ...


class Resumer(Protocol):
    """What is used of the retries."""

    def has(self, name: str) -> bool: ...
    def resume(self, job: Job, resumed: Resumed, failed: RunRecord | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Around:
    """What the scan has to ask of the daemon. ``boot_id``: of the operating system, None when there is none."""

    gate: Gate
    cluster: Cluster
    ladders: Resumer
    last: FindRuns
    boot_id: Callable[[], Awaitable[str | None]]


class RetryScan:
    """Looks through the records of retries: once after the start, and about once a minute where they can move."""

    def __init__(self, *, door: RetryDoor, store: RetryStore, around: Around, rng: Rng, log: logging.Logger) -> None:
        self._door = door
        self._store = store
        self._around = around
        self._rng = rng
        self._log = log
        self._unsure: dict[str, Pending] = {}
        self._wake = anyio.Event()

    def poke(self) -> None:
        """Look again now: the leadership changed."""
        self._wake.set()

    async def run(self) -> None:
        """Take up what this host left behind, then look for what others did, until cancelled."""
        self._store.boot_id = await self._around.boot_id()
        await self._door.keeper.opened()
        await self._take_up_all()
        while True:
            pause = await self._scan() if self._door.resumes else SCAN_EVERY
            if pause == SCAN_EVERY:
                pause *= 1 + JITTER * (2 * self._rng.random() - 1)
            await self._rest(pause)

    async def _rest(self, seconds: Seconds) -> None:
        with anyio.move_on_after(seconds):
            await self._wake.wait()
        self._wake = anyio.Event()

    # -- after the start ----------------------------------------------------------------------------------------------

    async def _take_up_all(self) -> None:
        """Once for each job, however often the store has to be asked."""
        while (there := await self._door.keeper.streams(PREFIX)) is None:
            await self._rest(SOON)
        names = {retry_stream(name): name for name in self._around.gate.jobs}
        left = [names.get(text, text.removeprefix(PREFIX)) for text in there]
        while left:
            silent: list[str] = []

            async def take_up(name: str, silent: list[str] = silent) -> None:
                if not await self._take_up(name):
                    silent.append(name)

            await _each(left, take_up)
            left = silent
            if left:
                await self._rest(SOON)

    async def _take_up(self, name: str) -> bool:
        """What this host waited for before its daemon was started again; False when the store did not answer."""
        node = self._door.node()
        async with self._door.turn(name):
            job = self._around.gate.jobs.get(name)
            tail = await self._door.tail(name)
            if tail is None or self._is_busy(name):
                return tail is not None
            shared = job is None or self._door.is_movable(job)
            newest = tail.newest if shared else newest_of(tail.records, node)
            if not isinstance(newest, Pending) or newest.host != node:
                return True
            runs = await self._around.last(name) or ()
            facts = _facts(job, runs)
            match at_boot(newest, facts, host=node, boot_id=self._store.boot_id, now=self._door.wall()):
                case Rearm(mine, delay) if job is not None:
                    self._store.adopt(name, mine)
                    self._resume(job, mine.place, delay, runs)
                case Settle(reason):
                    self._log.info("job %s: retry %d is not made (%s)", name, newest.place.attempt, reason)
                    await self._door.append(name, self._door.settled(reason, newest.place))
                case Rearm() | Leave():
                    pass
        return True

    def _resume(self, job: Job, place: Place, delay: Seconds, runs: Sequence[RunRecord]) -> None:
        trigger = Trigger.MANUAL if place.scheduled_at is None else Trigger.SCHEDULE
        first = RunKey(place.first_run_id, job.name, place.scheduled_at, 0, trigger)
        before = [r for r in runs if r.outcome is Outcome.FAILURE and r.key.scheduled_at == place.scheduled_at]
        policy = retry_policy(job.options.raw)
        self._around.ladders.resume(job, Resumed(first, policy, place.attempt, delay), before[-1] if before else None)

    # -- what others left behind --------------------------------------------------------------------------------------

    async def _scan(self) -> Seconds:
        """Look at the records of jobs that this node may start; how long until the next look."""
        found = await self._door.keeper.streams(PREFIX)
        there = frozenset(found or ())
        pauses: list[Seconds] = [SCAN_EVERY]

        async def look(name: str) -> None:
            pauses.append(await self._look(name))

        await _each([name for name in self._around.gate.jobs if retry_stream(name) in there], look)
        return max(0.05, min(pauses))

    async def _look(self, name: str) -> Seconds:
        """Take over an attempt of ``name`` if there is one to take; how long until that may be worth another look."""
        job = self._around.gate.jobs.get(name)
        if job is None or not self._door.is_movable(job) or not retry_policy(job.options.raw).allows(1):
            return SCAN_EVERY
        if self._is_busy(name) or self._around.gate.recheck(job).verdict is not Verdict.RUN:
            return SCAN_EVERY
        async with self._door.turn(name):
            seen = await self._door.newest(name)
            if not isinstance(seen, Pending | Handoff):
                return SCAN_EVERY
            runs = await self._around.last(name)
            return SOON if runs is None else await self._decide(job, seen, runs)

    async def _decide(self, job: Job, seen: Pending | Handoff, runs: Sequence[RunRecord]) -> Seconds:
        door, name = self._door, job.name
        made = self._store.made(name)
        if made is not None and spent((made,), seen.place):
            await door.drive(name, claim(seen, made, made), [])
            return SCAN_EVERY
        unsure, grace = self._unsure.get(name), self._grace(job)
        match in_scan(seen, _facts(job, runs), unsure=unsure, grace=grace, now=door.wall()):
            case Leave(until):
                return SCAN_EVERY if until is None else until - door.wall()
            case Settle(reason):
                self._log.info("job %s: retry %d is not made (%s)", name, seen.place.attempt, reason)
                over = door.settled(reason, seen.place)
                await door.drive(name, claim(seen, over, over), [])
                return SCAN_EVERY
            case Claim(place, owner):
                mine = Pending(place, door.node(), door.token(), door.wall(), owner, self._store.boot_id, seen.voids)
                obsolete = door.settled(Settling.SUPERSEDED_BY_RUN, place)
                return self._claimed(job, mine, await door.drive(name, claim(seen, mine, obsolete), []), runs)
            case other:
                assert_never(other)

    def _claimed(self, job: Job, mine: Pending, written: Written | None, runs: Sequence[RunRecord]) -> Seconds:
        name, place = job.name, mine.place
        self._unsure.pop(name, None)
        if written is Written.UNKNOWN:
            self._unsure[name] = mine
        if written is not Written.YES or self._is_busy(name):
            return SOON
        self._log.info("job %s: retry %d is taken over from %s", name, place.attempt, mine.claimed_from)
        self._store.adopt(name, mine)
        self._resume(job, place, max(0.0, place.not_before - self._door.wall()), runs)
        return SCAN_EVERY

    def _is_busy(self, name: str) -> bool:
        return self._around.ladders.has(name) or self._store.has(name)

    def _grace(self, job: Job) -> Seconds:
        """Under a term of ours no other node can start a Leader job, so nobody has to be waited for (claims.md 1)."""
        claims = self._around.cluster.claims
        fenced = claims is not None and claims.term is not None
        return 0.0 if fenced and job.options.cluster_policy is ClusterPolicy.LEADER else OVERDUE


def _facts(job: Job | None, runs: Sequence[RunRecord]) -> Facts:
    if job is None:
        return Facts(None, enabled=False, reboot=False, policy=retry_policy({}))
    deadline = job.options.raw.get("startingDeadlineSeconds")
    begun = [run for run in runs if run.started_at is not None]
    return Facts(
        job_digest(job),
        enabled=job.options.enabled,
        reboot=job.schedule.reboot,
        policy=retry_policy(job.options.raw),
        deadline=deadline if isinstance(deadline, int | float) else None,
        last_start=max((run.started_at for run in begun if run.started_at is not None), default=None),
        last_scheduled=max((run.key.scheduled_at for run in begun if run.key.scheduled_at is not None), default=None),
    )


async def _each(names: Iterable[str], call: Callable[[str], Awaitable[None]]) -> None:
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await call(name)

    async with anyio.create_task_group() as tasks:
        for _ in range(READERS):
            tasks.start_soon(work)
