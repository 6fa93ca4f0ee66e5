"""The launcher: everything between 'this may run' and the record of how it ended."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Protocol

import anyio

from cronstable.core.clock import Clock, EpochSeconds, Seconds
from cronstable.core.day import Day
from cronstable.core.decision import Decision, DecisionRecord, DecisionRing, Reason, Verdict
from cronstable.core.events import Decided, RunFinished, RunStarted
from cronstable.core.job import Job
from cronstable.core.last_run import LastRun, last_run
from cronstable.core.overlap import Enqueue, Full, Overlap, Replace, Skip, decide_overlap
from cronstable.core.records import merge_rows, which_row
from cronstable.core.runs import LiveRun, Outcome, RunKey, RunRecord, Trigger
from cronstable.plugin.protocols import Ids
from cronstable.runtime.backlog import Backlog
from cronstable.runtime.bus import EventBus
from cronstable.runtime.crowd import Starter
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import HURRIED_KILL, Cancellation, RunRequest

HISTORY = 20
"""Finished runs and skips remembered per job (reference 7.3)."""
REPLACE_GRACE: Seconds = 5.0
"""Added to killTimeout: how long a replacement waits for its victims before it is given up."""

Recheck = Callable[[], Decision]
Execute = Callable[[RunRequest, Callable[[LiveRun], None], Callable[[], None]], Awaitable[RunRecord]]
"""Carry out one run: ask the permit right before the spawn (what it raises ends the run unspawned), report the process,
and return the record when it is over."""

SILENT_SKIPS = frozenset({Reason.NOT_LEADER, Reason.NOT_OWNER})
"""What every follower decides all the time: in the decision ring, but no row of history and no log line."""


class RunListener(Protocol):
    """Somebody whose business begins when a run does, or ends: retries, reports, check-ins. Called on the loop."""

    def started(self, job: Job, run: LiveRun) -> None:
        """The process was spawned. Must neither wait nor raise."""
        ...

    def finished(self, job: Job, record: RunRecord) -> None:
        """The record is final; ``job`` is the definition that ran, which a reload may have replaced. As above."""
        ...


class Admission(Protocol):
    """Whoever must know of every run from the moment it is let in, spawned or not: the retries. Called on the loop."""

    def admitted(self, job: Job, key: RunKey) -> None:
        """A run was let in. Must neither wait nor raise."""
        ...

    def denied(self, job: Job, key: RunKey, decision: Decision) -> None:
        """A run that was let in was stopped before its spawn. As above."""
        ...


class Tracer(Protocol):
    """Makes a span of each run. Called on the loop."""

    def begin(self, job: Job, key: RunKey) -> Mapping[str, str]:
        """A run is about to be spawned; the variables that tell its process what it is a part of. Never raises."""
        ...

    def end(self, key: RunKey, record: RunRecord | None) -> None:
        """A run is over; None when it never started. For a run that was not begun as well. Never raises."""
        ...


class Slotkeeper(Protocol):
    """Whoever sees to it that runs of one job do not overlap between nodes. Called on the loop."""

    def wants(self, job: Job) -> bool:
        """Whether runs of ``job`` have to enter at all; asked for each one."""
        ...

    async def enter(self, job: Job, key: RunKey) -> Decision | None:
        """A run is about to be spawned: None when it may be, else why not. May wait, and may be cancelled."""
        ...

    def adopt(self, job: Job, run_id: str) -> None:
        """A run lives that a daemon before this one began."""
        ...

    def leave(self, run_id: str) -> None:
        """A run is over, or was not spawned after all; also called for those that did not enter."""
        ...


class Denied(Exception):
    """The permit to spawn was not given."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


@dataclass(slots=True, eq=False)
class Flight:
    """A run from the decision to start it until its record is final; it counts for overlap all that time.

    ``ahead``: runs that have to be over first; they are waited for when it is ``queued``, else they are ended.
    """

    job: Job
    key: RunKey
    cancellation: Cancellation
    at: float
    run: LiveRun | None = None
    ahead: tuple[Flight, ...] = ()
    queued: bool = False
    first_run_id: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    on_over: Callable[[Decision | None], None] | None = None
    _landed: bool = False
    _over: anyio.Event | None = None

    def land(self) -> None:
        """Its record is final, or there is none."""
        self._landed = True
        if self._over is not None:
            self._over.set()

    async def over(self) -> None:
        """Return once it landed."""
        # The event is made when somebody waits, which is rare: it would cost each run as much as a log line's date.
        if not self._landed:
            self._over = self._over or anyio.Event()
            await self._over.wait()

    def as_live(self) -> LiveRun:
        """What the overlap decision sees: a run that is about to be spawned counts as living."""
        return self.run or LiveRun(self.key, 0, self.at)


class Launcher:
    """Starts runs, keeps what lives, and remembers how it went.

    Between the overlap decision and the registration of a new run nothing is awaited, so that a scheduled start and a
    manual one at the same instant cannot both pass (reference 13, row 52).
    """

    def __init__(
        self,
        *,
        execute: Execute,
        clock: Clock,
        ids: Ids,
        bus: EventBus,
        hub: OutputHub,
        log: logging.Logger,
        node: str,
        decisions: DecisionRing,
    ) -> None:
        self._execute = execute
        self._clock = clock
        self._ids = ids
        self._bus = bus
        self._hub = hub
        self._log = log
        self.node = node
        self._tasks: Starter | None = None
        self._flights: dict[str, list[Flight]] = {}
        self._history: dict[str, tuple[RunRecord, ...]] = {}
        self._last: dict[str, LastRun] = {}
        self._days: dict[str, Day] = {}
        self._counting = clock.now()
        self.decisions = decisions
        self.listeners: tuple[RunListener, ...] = ()
        self.admission: Admission | None = None
        self.tracer: Tracer | None = None
        self.slots: Slotkeeper | None = None
        self.complete: Callable[[RunRecord], RunRecord] = _as_it_is
        self.remembered: Callable[[RunRecord], None] = lambda record: None
        self.decided: Callable[[DecisionRecord], None] = lambda record: None
        self.ends = Backlog()
        """The ends of runs, which count as living until then; no decision about a job is made before they are told."""
        self.stopping = False
        self._live: Mapping[str, tuple[LiveRun, ...]] | None = None
        self._rows: Mapping[str, tuple[RunRecord, ...]] | None = None
        self._lasts: Mapping[str, LastRun] | None = None
        self._days_shown: Mapping[str, Day] | None = None

    def bind(self, tasks: Starter) -> None:
        """Say which task group runs live in; once, before the first start."""
        self._tasks = tasks

    # -- what is known ------------------------------------------------------------------------------------------------

    def live(self) -> Mapping[str, tuple[LiveRun, ...]]:
        """Spawned runs by job; the same object as long as nothing changed."""
        if self._live is None:
            found = {n: tuple(f.run for f in flights if f.run is not None) for n, flights in self._flights.items()}
            self._live = MappingProxyType({name: runs for name, runs in found.items() if runs})
        return self._live

    def history(self) -> Mapping[str, tuple[RunRecord, ...]]:
        """Finished runs and skips by job, oldest first; the same object as long as nothing changed."""
        if self._rows is None:
            self._rows = MappingProxyType(self._history.copy())
        return self._rows

    def last_runs(self) -> Mapping[str, LastRun]:
        """The last run of each job that had any; the same object as long as nothing changed."""
        if self._lasts is None:
            self._lasts = MappingProxyType(self._last.copy())
        return self._lasts

    def days(self) -> Mapping[str, Day]:
        """What ended here in the last 24 hours, of each job of which anything did; the same object as above."""
        if self._days_shown is None:
            self._days_shown = MappingProxyType(self._days.copy())
        return self._days_shown

    @property
    def queued(self) -> frozenset[str]:
        """Jobs of which a run waits for another one to end."""
        return frozenset(name for name, flights in self._flights.items() if any(f.queued for f in flights))

    def running(self) -> Mapping[str, Job]:
        """Run id to job of all runs under way, those that wait included."""
        return {f.key.run_id: f.job for flights in self._flights.values() for f in flights}

    def occupied(self, job: str) -> bool:
        """Whether a run of ``job`` lives, waits or is about to be spawned."""
        return job in self._flights

    def waits(self, run_id: str) -> bool:
        """Whether this run waits for another one of its job to be over."""
        return any(f.key.run_id == run_id and bool(f.ahead) for flights in self._flights.values() for f in flights)

    @property
    def busy(self) -> int:
        """How many runs are under way."""
        return sum(len(flights) for flights in self._flights.values())

    async def idle(self) -> None:
        """Return once no run is under way."""
        while self._flights:
            for flights in tuple(self._flights.values()):
                for flight in tuple(flights):
                    await flight.over()

    # -- decisions ----------------------------------------------------------------------------------------------------

    def record(
        self,
        job: Job,
        scheduled_at: EpochSeconds | None,
        decision: Decision,
        *,
        run_id: str | None = None,
        provisional: bool = False,
    ) -> None:
        """Write a decision; a skip that a user would look for also becomes a row of the job's history.

        ``provisional``: another decision about the same occurrence may follow.
        """
        now = self._clock.now().wall
        # A follower's 'not leader' is provisional: the leader's own answer may still reach this node (claims.md 14).
        provisional = provisional or decision.verdict is Verdict.DEFER or decision.reason in SILENT_SKIPS
        record = DecisionRecord(self.node, job.name, scheduled_at, now, decision, run_id, provisional)
        if not self.decisions.add(record):
            return
        self._bus.emit(Decided(record))
        self.decided(record)
        if decision.verdict is Verdict.SKIP and not provisional:
            detail = ", ".join(f"{k}={v}" for k, v in decision.evidence.items())
            self._log.info("job %s: skipped (%s)%s", job.name, decision.reason, f": {detail}" if detail else "")
            key = RunKey("", job.name, scheduled_at)
            self.remember(RunRecord(key, Outcome.SKIPPED, None, None, now, None, skip_reason=decision.reason.value))

    def remember(self, record: RunRecord) -> None:
        """Add a row to the history of its job; runs that end here get theirs by themselves."""
        job = record.key.job
        self._history[job] = (*self._history.get(job, ())[1 - HISTORY :], record)
        self._rows = None
        now = self._clock.now()
        self._learn(job, [record], now.wall)
        if self._is_own(record):
            self._days[job] = (self._days.get(job) or Day(self._counting)).counting(record, now)
            self._days_shown = None
        self.remembered(record)

    def recall(self, job: str, rows: Sequence[RunRecord]) -> None:
        """Rows of before the start of this daemon, or of other nodes, join the history of ``job``."""
        here = self._history.get(job, ())
        day = self._days.get(job) or Day(self._counting)
        if day.recalled is None:
            counted = {which_row(record) for record in here}
            own = [row for row in merge_rows(len(rows), rows) if self._is_own(row) and which_row(row) not in counted]
            if own:
                self._days[job] = day.recalling(own, self._clock.now())
                self._days_shown = None
        self._history[job] = merge_rows(HISTORY, here, rows)
        self._rows = None
        self._learn(job, rows)

    def _is_own(self, record: RunRecord) -> bool:
        return record.node is None or record.node == self.node

    def _learn(self, job: str, rows: Sequence[RunRecord], now: float = math.inf) -> None:
        before = self._last.get(job)
        last = last_run(before, rows, now)
        if last is not None and last is not before:
            self._last[job] = last
            self._lasts = None

    def forget(self, keep: Mapping[str, Job]) -> None:
        """Drop the history of jobs that are neither configured nor running."""
        for name in [n for n in self._history if n not in keep and n not in self._flights]:
            del self._history[name]
            self._last.pop(name, None)
            if self._days.pop(name, None) is not None:
                # Should it come back, no more is known of it than from now on.
                self._counting = self._clock.now()
        self._rows = self._lasts = self._days_shown = None

    # -- starting and ending ------------------------------------------------------------------------------------------

    def start(
        self,
        job: Job,
        decision: Decision,
        *,
        scheduled_at: EpochSeconds | None,
        trigger: Trigger,
        recheck: Recheck,
        attempt: int = 0,
        first_run_id: str | None = None,
        run_id: str | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
        on_over: Callable[[Decision | None], None] | None = None,
    ) -> str | Decision:
        """Start a run of ``job``; its run id, or the decision that forbade it (then recorded).

        ``recheck`` is asked again after the last wait, right before the process is spawned; anything but RUN then
        ends the matter as a skip. ``first_run_id``: for a retry, the run id of its attempt 0.

        ``run_id``, ``variables``: of a run that was claimed. ``on_over`` is called when the run is over, with
        what refused it, if anything did.
        """
        assert self._tasks is not None, "bind() comes first"
        self.ends.settle(job.name)
        flights = self._flights.get(job.name, ())
        verdict = self._overlap(job, flights)
        if isinstance(verdict, Skip | Full):
            refused = _forbidden(verdict.reason) if isinstance(verdict, Skip) else _full(verdict)
            self.record(job, scheduled_at, refused)
            return refused
        queued = isinstance(verdict, Enqueue)
        ahead = tuple(flights) if isinstance(verdict, Replace) or queued else ()
        key = RunKey(run_id or self._ids.token(8), job.name, scheduled_at, attempt, trigger)
        at = self._clock.now().wall
        flight = Flight(
            job,
            key,
            Cancellation(),
            at,
            ahead=ahead,
            queued=queued,
            first_run_id=first_run_id,
            variables=variables,
            on_over=on_over,
        )
        self._flights.setdefault(job.name, []).append(flight)
        if self.admission is not None:
            self.admission.admitted(job, key)
        if isinstance(verdict, Enqueue):
            self.record(job, scheduled_at, _queued(verdict), run_id=key.run_id)
        self._tasks.start_soon(self._fly, flight, decision, recheck)
        return key.run_id

    @staticmethod
    def _overlap(job: Job, flights: Sequence[Flight]) -> Overlap:
        live = [flight.as_live() for flight in flights]
        waiting = next((flight.as_live() for flight in flights if flight.queued), None) if live else None
        return decide_overlap(job.options.concurrency_policy, live, waiting=waiting)

    def cancel(self, job: str) -> int:
        """Ask all runs of ``job`` to end; how many there were."""
        flights = self._flights.get(job, [])
        for flight in flights:
            flight.cancellation.request("cancelled")
        return len(flights)

    def end(self, job: str, run_id: str, reason: str, *, grace: Seconds | None = None) -> None:
        """Ask one run to end, for a reason that its record shows. ``grace``: see ``Cancellation.request``."""
        for flight in self._flights.get(job, []):
            if flight.key.run_id == run_id:
                flight.cancellation.request(reason, grace=grace)

    def force(self) -> None:
        """End everything that lives, soon: the second signal."""
        for flights in self._flights.values():
            for flight in flights:
                flight.cancellation.request("the daemon was told twice to stop", grace=HURRIED_KILL)

    async def _fly(self, flight: Flight, decision: Decision, recheck: Recheck) -> None:
        job, key = flight.job, flight.key
        record: RunRecord | None = None
        refusal: Decision | None = None

        def permit() -> None:
            final = recheck()
            if final.verdict is not Verdict.RUN:
                raise Denied(final)
            self.record(job, key.scheduled_at, decision, run_id=key.run_id)

        self._hub.open(key.run_id)
        try:
            if flight.queued:
                await self._queue(flight)
            elif flight.ahead and not await self._evict(flight.ahead, job):
                raise Denied(_forbidden("the run to be replaced did not end in time"))
            if self.slots is not None and self.slots.wants(job):
                await self._enter(self.slots, flight)
            traced = {} if self.tracer is None else self.tracer.begin(job, key)
            variables = {**flight.variables, **traced}
            request = RunRequest(key, job, flight.cancellation, variables, flight.first_run_id)
            record = await self._execute(request, lambda live: self._started(flight, live), permit)
        except Denied as denied:
            self.record(job, key.scheduled_at, denied.decision)
            refusal = denied.decision
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged with its traceback
            # A defect of ours costs the run that met it; in the daemon's task group it would end all of them.
            self._log.exception("job %s: the run met a defect of cronstable (run %s)", job.name, key.run_id)
            record = self._lost(flight, error)
        finally:
            self.ends.do(job.name, partial(self._land, flight, record, refusal))

    def _lost(self, flight: Flight, error: Exception) -> RunRecord:
        """The record of a run of which nobody can tell how it ended."""
        now, started = self._clock.now().wall, None if flight.run is None else flight.run.started_at
        duration = None if started is None else now - started
        reason = f"a defect of cronstable: {type(error).__name__}"
        return RunRecord(flight.key, Outcome.UNKNOWN, None, started, now, duration, fail_reason=reason)

    async def _queue(self, flight: Flight) -> None:
        """Until the runs ahead are over, or this one is not wanted any more."""
        with flight.cancellation.scope():
            for other in flight.ahead:
                await other.over()
        flight.queued = False

    async def _enter(self, slots: Slotkeeper, flight: Flight) -> None:
        refused: Decision | None = None
        with flight.cancellation.scope():
            refused = await slots.enter(flight.job, flight.key)
        if refused is not None:
            raise Denied(refused)

    async def _evict(self, victims: Sequence[Flight], job: Job) -> bool:
        for victim in victims:
            victim.cancellation.request("replaced")
        with anyio.move_on_after(job.options.kill_timeout + REPLACE_GRACE):
            for victim in victims:
                await victim.over()
            return True
        return False

    def _started(self, flight: Flight, live: LiveRun) -> None:
        flight.run = live
        self._live = None
        self._bus.emit(RunStarted(live))
        for listener in self.listeners:
            try:
                listener.started(flight.job, live)
            except Exception:  # noqa: BLE001 - as in ``_fly``
                self._log.exception("job %s: a listener of runs broke", flight.job.name)

    def adopt(self, job: Job, run: LiveRun) -> Flight:
        """A run lives that a daemon before this one began: from now on it counts like one of ours.

        Whoever calls this ends it when its ``cancellation`` asks for that, and calls ``release``.
        """
        if self.slots is not None:
            self.slots.adopt(job, run.key.run_id)
        flight = Flight(job, run.key, Cancellation(), run.started_at, run=run)
        self._flights.setdefault(job.name, []).append(flight)
        self._live = None
        return flight

    def release(self, flight: Flight, record: RunRecord | None) -> None:
        """An adopted run is over, with this row of history, or is not to be looked at any more."""
        if self.slots is not None:
            self.slots.leave(flight.key.run_id)
        self._remove(flight)
        if record is not None:
            self.remember(record)
            self._bus.emit(RunFinished(record))

    def _remove(self, flight: Flight) -> None:
        flights = self._flights[flight.job.name]
        flights.remove(flight)
        if not flights:
            del self._flights[flight.job.name]
        flight.land()
        self._live = None

    def _land(self, flight: Flight, record: RunRecord | None, refusal: Decision | None) -> None:
        self._hub.close(flight.key.run_id)
        if self.slots is not None:
            self.slots.leave(flight.key.run_id)
        self._remove(flight)
        if flight.on_over is not None:
            flight.on_over(refusal)
        if self.tracer is not None:
            self.tracer.end(flight.key, record)
        if record is not None:
            record = self.complete(record)
            self._say(record)
            self.remember(record)
            self._bus.emit(RunFinished(record))
            for listener in self.listeners:
                try:
                    listener.finished(flight.job, record)
                except Exception:  # noqa: BLE001 - as in ``_fly``
                    self._log.exception("job %s: a listener of runs broke", flight.job.name)
        elif refusal is not None and self.admission is not None:
            self.admission.denied(flight.job, flight.key, refusal)

    def _say(self, record: RunRecord) -> None:
        """One line per run: what came out of it, and why when it failed."""
        name, run = record.key.job, record.key.run_id
        if record.outcome is Outcome.FAILURE:
            self._log.warning("job %s: failed: %s (run %s)", name, record.fail_reason, run)
        else:
            self._log.info("job %s: %s in %.3f s (run %s)", name, record.outcome, record.duration or 0.0, run)


def _as_it_is(record: RunRecord) -> RunRecord:
    return record


def _forbidden(detail: str) -> Decision:
    return Decision(Verdict.SKIP, Reason.CONCURRENCY_FORBID, MappingProxyType({"detail": detail}))


def _queued(verdict: Enqueue) -> Decision:
    return Decision(Verdict.DEFER, Reason.QUEUED, MappingProxyType({"behind": verdict.behind.key.run_id}))


def _full(verdict: Full) -> Decision:
    return Decision(Verdict.SKIP, Reason.QUEUE_FULL, MappingProxyType({"waiting": verdict.waiting.key.run_id}))
