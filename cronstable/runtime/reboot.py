"""Deferred @reboot jobs: held from boot until the cluster says whose they are (seed, '@reboot'; reference 11)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import assert_never

import anyio

from cronstable.core.boot import Start, after_marking
from cronstable.core.clock import Clock, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, Job
from cronstable.core.runs import Trigger
from cronstable.runtime.boot_marks import BootMarks
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.scheduler import Scheduler

RECHECK: Seconds = 1.0
MARK_DEADLINE: Seconds = 30.0


class RebootKeeper:
    """Runs the @reboot jobs of this boot: at once where nothing has to be agreed, else when the gate allows.

    With a state store, what nothing has to be agreed about runs once for each boot of the operating system, however
    often the daemon is started in it. A pending job is dropped only when it ran somewhere or can no longer be deferred;
    a name that is absent for a while keeps its place. The mark is written before the run starts, so that a run is never
    repeated by a successor.
    """

    def __init__(
        self, *, clock: Clock, scheduler: Scheduler, cluster: ClusterManager, launcher: Launcher, log: logging.Logger
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._cluster = cluster
        self._launcher = launcher
        self._log = log
        self._pending: list[str] = []
        self._own: list[str] = []
        self._complained: set[str] = set()
        self._wake = anyio.Event()
        self.ran: frozenset[str] = frozenset()
        self.marks: BootMarks | None = None

    @property
    def pending(self) -> frozenset[str]:
        """Names that wait."""
        return frozenset((*self._pending, *self._own))

    def boot(self, jobs: Mapping[str, Job]) -> None:
        """The one instant at which @reboot jobs become due."""
        for job in jobs.values():
            if not job.schedule.reboot or not job.options.enabled:
                continue
            if self._cluster.elects and job.options.cluster_policy is not ClusterPolicy.EVERY_NODE:
                self._pending.append(job.name)
                self._launcher.record(job, None, Decision(Verdict.DEFER, Reason.REBOOT_DEFERRED))
                self._log.info("job %s: @reboot waits until the cluster has an owner for it", job.name)
            elif self.marks is not None and self.marks.configured:
                self._own.append(job.name)
            else:
                self._scheduler.launch(job, Trigger.REBOOT, None)
                self.ran |= {job.name}

    def poke(self) -> None:
        """Look again now."""
        self._wake.set()

    async def run(self) -> None:
        """Re-check the pending jobs until none is left or the daemon stops."""
        while (self._pending or self._own) and not self._launcher.stopping:
            async with anyio.create_task_group() as tasks:
                for name in tuple(self._own):
                    tasks.start_soon(self._start_own, name)
            for name in tuple(self._pending):
                try:
                    settled = await self._settle(name)
                except Exception:  # noqa: BLE001 - the ledger is a plugin's: not knowing means not yet, for this job alone
                    if name not in self._complained:
                        self._log.exception(
                            "job %s: whether its @reboot run is due cannot be found out; it waits", name
                        )
                    self._complained.add(name)
                    continue
                if settled:
                    self._pending.remove(name)
            self._wake = anyio.Event()
            with anyio.move_on_after(RECHECK):
                await self._wake.wait()

    # -- jobs of this host alone --------------------------------------------------------------------------------------

    async def _start_own(self, name: str) -> None:
        job, marks = self._scheduler.jobs.get(name), self.marks
        if job is None or marks is None or self._scheduler.paused(job) is not None:
            return
        deferred = self._cluster.elects and job.options.cluster_policy is not ClusterPolicy.EVERY_NODE
        if not job.schedule.reboot or not job.options.enabled or deferred:
            # An election that a reload brought decides about it like about all the others.
            self._own.remove(name)
            self._pending += [name] if deferred else []
            return
        start = await marks.decide(job)
        if start is Start.RUN:
            start = after_marking(await marks.mark(job), fail_closed=marks.fail_closed)
        elif start is Start.SURVIVES:
            await marks.mark(job, survived=True)
        if name in self._own:
            self._own.remove(name)
            self._carry_out(job, start)

    def _carry_out(self, job: Job, start: Start) -> None:
        match start:
            case Start.RUN:
                self._run_own(job)
            case Start.RUN_UNMARKED:
                self._log.warning("job %s: whether its @reboot run is due cannot be found out; it runs", job.name)
                self._run_own(job)
            case Start.RAN:
                self._skip(job, Reason.REBOOT_ALREADY_RAN, "ran in this boot already", scope="boot")
            case Start.SURVIVES:
                self._skip(job, Reason.REBOOT_ALREADY_RAN, "lives on from the daemon before", scope="survivor")
            case Start.UNKNOWN:
                self._skip(job, Reason.STORE_UNAVAILABLE, "may have run in this boot already; it does not run")
            case _:
                assert_never(start)

    def _run_own(self, job: Job) -> None:
        if self._scheduler.launch(job, Trigger.REBOOT, None).verdict is Verdict.RUN:
            self.ran |= {job.name}

    def _skip(self, job: Job, reason: Reason, words: str, **evidence: str) -> None:
        self._launcher.record(job, None, Decision(Verdict.SKIP, reason, MappingProxyType(evidence)))
        self._log.info("job %s: @reboot %s", job.name, words)

    # -- jobs that the cluster has to agree about ---------------------------------------------------------------------

    async def _settle(self, name: str) -> bool:
        """True when ``name`` need not be looked at again."""
        job = self._scheduler.jobs.get(name)
        if job is None:
            return False
        if self._no_longer_deferrable(job):
            return True
        ledger = self._cluster.ledger
        ran = ledger.reboot_ran(name) if ledger is not None else False
        if ran:
            self._launcher.record(job, None, Decision(Verdict.SKIP, Reason.REBOOT_ALREADY_RAN))
            self._log.info("job %s: @reboot already ran in this cluster", name)
            return True
        if self._scheduler.paused(job) is not None or self._scheduler.decide(job).verdict is not Verdict.RUN:
            return False
        if ledger is not None and not await self._mark(job, ran):
            return False
        if self._scheduler.launch(job, Trigger.REBOOT, None).verdict is Verdict.RUN:
            self.ran |= {name}
        return True

    @staticmethod
    def _no_longer_deferrable(job: Job) -> bool:
        return (
            not job.schedule.reboot or not job.options.enabled or job.options.cluster_policy is ClusterPolicy.EVERY_NODE
        )

    async def _mark(self, job: Job, ran: bool | None) -> bool:
        """Record the run first. PreferLeader runs unrecorded when the store cannot be asked: it never skips."""
        view = self._cluster.view()
        unreachable = view is not None and not view.quorate
        if job.options.cluster_policy is ClusterPolicy.PREFER_LEADER and unreachable:
            return True
        ledger = self._cluster.ledger
        if ran is None or ledger is None:
            return False
        with anyio.move_on_after(MARK_DEADLINE):
            return await ledger.mark_reboot_ran(job.name)
        return False
