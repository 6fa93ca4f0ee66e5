"""The daemon: one task tree, readable from top to bottom, around the pure core.

Lifetimes nest as services > runs > election > scheduler. Stopping goes the other way: start nothing more, let go of
leadership at once so that a successor need not wait for a long job, let the runs end, stop the services.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

import anyio

from cronstable import __version__
from cronstable.config import Config, LoadResult
from cronstable.core.clock import Seconds
from cronstable.core.decision import DecisionRing
from cronstable.core.events import LeaderChanged, QuorumChanged, Reloaded
from cronstable.core.finding import Severity
from cronstable.core.values import dataclass
from cronstable.plugin.manager import Plugins
from cronstable.plugin.protocols import HostSnapshot
from cronstable.runtime.bus import EventBus
from cronstable.runtime.claim_seat import ClaimSeat
from cronstable.runtime.cluster_manager import ClusterManager, MakeElection
from cronstable.runtime.commands import Commands
from cronstable.runtime.companions import Companions
from cronstable.runtime.crowd import crowd
from cronstable.runtime.durable import Durable
from cronstable.runtime.host import DaemonHost, Seams
from cronstable.runtime.lateness import LatenessWatch
from cronstable.runtime.launcher import Execute, Launcher, Tracer
from cronstable.runtime.lease_guard import LeaseGuard
from cronstable.runtime.output import OutputHub
from cronstable.runtime.process_table import ProcessTable, ProcTable
from cronstable.runtime.reaper import Reaper
from cronstable.runtime.reboot import RebootKeeper
from cronstable.runtime.reload import Reloader
from cronstable.runtime.reports import MakeNotifier, Reports
from cronstable.runtime.retries import Retries
from cronstable.runtime.scheduler import Scheduler
from cronstable.runtime.services import MakeService, Services
from cronstable.runtime.state import MakeStore, StateKeeper
from cronstable.runtime.tally import TallyKeeper

if TYPE_CHECKING:
    from cronstable.runtime.claims_driver import ClaimsDriver
    from cronstable.runtime.shared_work import SharedWork

DRAIN_NOTICE: Seconds = 30.0
FORCED_DRAIN: Seconds = 10.0
"""After the second signal: how long killed runs may take to be gone before the daemon exits regardless."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the daemon is put together from; the command line gives the real ones.

    ``shutdown_grace``: how long a stop waits for runs before it ends them; None waits for as long as they take.
    ``environ``, ``pid``: of the daemon itself.
    """

    seams: Seams
    plugins: Plugins
    make_election: MakeElection
    make_service: MakeService
    make_notifier: MakeNotifier
    make_store: MakeStore
    make_execute: Callable[[DaemonHost, OutputHub, Callable[[], str]], Execute]
    load: Callable[[], LoadResult]
    hostname: str
    log: logging.Logger
    configure_logging: Callable[[Mapping[str, object] | None], None]
    reaper: Reaper | None = None
    tracer: Tracer | None = None
    shutdown_grace: Seconds | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    table: ProcessTable = field(default_factory=ProcTable)
    pid: int = 0


class Daemon:
    """One running daemon. ``run`` returns the exit code."""

    def __init__(self, first: LoadResult, config: Config, parts: Parts) -> None:
        self._parts = parts
        self._log = parts.log
        self._config = config
        self._stop = anyio.Event()
        self._forced = False
        self._stop_asked_at = 0.0
        self._drain_wait = anyio.CancelScope()
        self._ready = False
        clock = parts.seams.clock
        self._clock = clock
        self._started_at = clock.now().wall
        self.bus = EventBus(parts.log)
        hub = OutputHub()
        self.host = DaemonHost(seams=parts.seams, log=parts.log, bus=self.bus, hub=hub)
        self.state = StateKeeper(make=parts.make_store, host=self.host, clock=clock, rng=parts.seams.rng, log=parts.log)
        self.state.configure(config.state)
        self.cluster = ClusterManager(
            make=parts.make_election,
            host=self.host,
            bus=self.bus,
            clock=clock,
            log=parts.log,
            job_set_id=lambda: self._config.job_set_id,
        )
        self.launcher = Launcher(
            execute=parts.make_execute(self.host, hub, lambda: self.node),
            clock=clock,
            ids=parts.seams.ids,
            bus=self.bus,
            hub=hub,
            log=parts.log,
            node=self.node,
            decisions=DecisionRing(),
        )
        self.scheduler = Scheduler(clock=clock, cluster=self.cluster, launcher=self.launcher, log=parts.log)
        self.claims = ClaimSeat(clock, self.cluster, self._make_claims)
        self.scheduler.claimer = self.claims
        self.guard = LeaseGuard(
            clock=clock, gate=self.scheduler, cluster=self.cluster, launcher=self.launcher, log=parts.log
        )
        self.reboot = RebootKeeper(
            clock=clock, scheduler=self.scheduler, cluster=self.cluster, launcher=self.launcher, log=parts.log
        )
        self.reports = Reports(
            notifiers=parts.plugins.notifiers,
            make=parts.make_notifier,
            host=self.host,
            bus=self.bus,
            log=parts.log,
            hostname=parts.hostname,
            stopping=lambda: self.launcher.stopping,
        )
        self.reports.configure(config.sections.get("notify"))
        self.retries = Retries(
            clock=clock,
            scheduler=self.scheduler,
            cluster=self.cluster,
            launcher=self.launcher,
            log=parts.log,
            reports=self.reports,
        )
        self.lateness = LatenessWatch(
            clock=clock,
            scheduler=self.scheduler,
            cluster=self.cluster,
            launcher=self.launcher,
            log=parts.log,
            reports=self.reports,
        )
        self.tally = TallyKeeper(
            clock=clock,
            transitions=lambda: (self.cluster.leader_transitions, self.cluster.quorum_transitions),
            delivered=lambda: self.reports.counts,
        )
        self.bus.counts = self.tally.heard
        self.reports.heard = self.tally.reported
        self.retries.claimer = self.claims
        self.launcher.admission = self.retries
        self.launcher.tracer = parts.tracer
        self.launcher.listeners += (self.claims, self.guard, self.retries, self.lateness)
        self.companions = Companions(self.host)
        self.companions.attach(self.launcher)
        self.durable = Durable(
            keeper=self.state,
            host=self.host,
            launcher=self.launcher,
            scheduler=self.scheduler,
            cluster=self.cluster,
            claims=self.claims,
            counts=self.tally,
            clock=clock,
            log=parts.log,
            config=lambda: self._config,
            environ=parts.environ,
            recalled=self.lateness.recalled,
            table=parts.table,
            hostname=parts.hostname,
            pid=parts.pid,
        )
        self.durable.inflight.on_adopted = self.guard.adopted
        self.durable.inflight.on_gone = self.guard.gone
        self.shared: SharedWork | None = None
        self._shares = anyio.Event()
        self._lasting: anyio.abc.TaskGroup | None = None
        self._share()
        self.services = Services(
            providers=parts.plugins.services, make=parts.make_service, host=self.host, log=parts.log
        )
        self.reloader = Reloader(first=first, load=parts.load, clock=clock, threads=parts.seams.threads, log=parts.log)
        commands = Commands(
            scheduler=self.scheduler,
            launcher=self.launcher,
            log=parts.log,
            shutdown=self.request_stop,
            set_pause=self.durable.pauses.set,
            cancel_retry=self.retries.cancel,
        )
        self.host.connect(
            self.snapshot,
            commands.do,
            self.launcher.decisions,
            self.durable.history.runs,
            self.state.names,
            self._window,
        )

    def _window(self, job: str) -> Seconds:
        known = self.scheduler.jobs.get(job)
        return 0.0 if known is None else self.claims.window_of(known)

    def _make_claims(self) -> ClaimsDriver:
        # Here and not at the start: most daemons have no backend with a claim log, and this is a megabyte of modules.
        from cronstable.runtime.claims_driver import ClaimsDriver

        driver = ClaimsDriver(
            clock=self._clock,
            ids=self._parts.seams.ids,
            gate=self.scheduler,
            cluster=self.cluster,
            launcher=self.launcher,
            log=self._log,
        )
        driver.appended = self.tally.claimed
        driver.retry_refused = self.retries.refused
        driver.retry_spent = self.retries.spent
        return driver

    def _share(self) -> None:
        """From the first configuration on that has a store: what runs have in common with those of other nodes."""
        if self.shared is None and self._config.state is not None:
            # Here and not at the start, as for the claims: without a store nothing of it does anything.
            from cronstable.runtime.shared_work import SharedWork

            self.shared = SharedWork(
                keeper=self.state,
                durable=self.durable,
                seams=self._parts.seams,
                cluster=self.cluster,
                scheduler=self.scheduler,
                launcher=self.launcher,
                retries=self.retries,
                reboot=self.reboot,
                log=self._log,
                node=lambda: self.node,
            )
            if self._lasting is not None:
                self.shared.bind(self._lasting)
            self._shares.set()

    @property
    def node(self) -> str:
        """This node's name, by the cluster section in force."""
        cluster = self.cluster.wanted or self._config.cluster
        return cluster.node_name if cluster is not None else self._parts.hostname

    # -- the tree -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop; 0 after an orderly end."""
        async with anyio.create_task_group() as services:
            self.services.bind(services)
            self.reports.bind(services)
            self.companions.bind(services)
            self.durable.bind(services)
            self._lasting = services
            if self.shared is not None:
                self.shared.bind(services)
            services.start_soon(self.reports.follow)
            services.start_soon(self._signals)
            services.start_soon(self.state.run)
            services.start_soon(self.tally.run)
            if self._parts.reaper is not None:
                services.start_soon(self._parts.reaper.run_where_needed)
            await self.services.reconcile(self._config.settings)
            async with crowd() as runs:
                self.launcher.bind(runs)
                async with anyio.create_task_group() as handover:
                    # A store that does not answer must not take the runs' share of what a supervisor allows for a stop.
                    async with anyio.create_task_group() as drain:
                        async with anyio.create_task_group() as election:
                            self.cluster.bind(election)
                            await self._schedule(election)
                            drain.start_soon(self._drain, runs.cancel_scope)
                            await self.claims.stop()
                            await self.guard.let_go()
                            await self.cluster.stop("the daemon is stopping")
                            election.cancel_scope.cancel()
                        handover.start_soon(self.claims.drain)
                    handover.cancel_scope.cancel()
                await self.claims.leave()
            await self.companions.finish()
            await self.reports.finish()
            if self.shared is not None:
                await self.shared.finish()
            await self.durable.finish()
            services.cancel_scope.cancel()
        self._log.info("stopped")
        return 0

    async def _schedule(self, election: anyio.abc.TaskGroup) -> None:
        """Elect, then schedule, until told to stop."""
        self.scheduler.load(self._config.jobs)
        self.tally.configure(self._config.sections.get("web"), self.scheduler.jobs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_stopped, tasks.cancel_scope)
            self._log.info("job set %s, %d jobs, node %s", self._config.job_set_id, len(self._config.jobs), self.node)
            await self.cluster.reconcile(self._config.cluster)
            await self.reloader.prime()
            await self.durable.boot()
            self._ready = True
            self.reboot.boot(self.scheduler.jobs)
            election.start_soon(self._follow_cluster)
            election.start_soon(self.guard.run)
            tasks.start_soon(self.claims.run)
            tasks.start_soon(self.reboot.run)
            tasks.start_soon(self.retries.run)
            tasks.start_soon(self._run_shared)
            tasks.start_soon(self.lateness.run)
            tasks.start_soon(self.durable.missed.run)
            tasks.start_soon(self._reload)
            await self.scheduler.run()
            tasks.cancel_scope.cancel()

    async def _cancel_when_stopped(self, scope: anyio.CancelScope) -> None:
        await self._stop.wait()
        scope.cancel()

    async def _follow_cluster(self) -> None:
        """A change of leadership may make a waiting @reboot job ours."""
        async for _ in self.bus.subscribe(LeaderChanged, QuorumChanged):
            self.claims.poke()
            self.guard.poke()
            self.reboot.poke()
            if self.shared is not None:
                self.shared.poke()

    async def _run_shared(self) -> None:
        await self._shares.wait()
        if self.shared is not None:
            await self.shared.run()

    # -- stopping -----------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Stop in order; asked a second time, end the runs as well."""
        if self.launcher.stopping:
            self._log.warning("told to stop again: ending %d runs", self.launcher.busy)
            self._end_runs()
            self.cluster.hurry()
            return
        # What ended before is told as it was then: a failure of that time is reported, and tried again by whoever may.
        self.launcher.ends.release()
        self._log.info("stopping: no new runs, %d to finish", self.launcher.busy)
        self._stop_asked_at = self._clock.now().boot
        self.launcher.stopping = True
        self.retries.stop()
        self.durable.inflight.let_go(self.guard.guards)
        self._stop.set()
        self.scheduler.poke()

    def _end_runs(self) -> None:
        self.launcher.force()
        self._forced = True
        self._drain_wait.cancel()

    async def _drain(self, runs: anyio.CancelScope) -> None:
        """Wait for the runs to end, and say now and then what is waited for; not for long once told twice to stop."""
        grace = self._parts.shutdown_grace
        end = float("inf") if grace is None else self._stop_asked_at + grace
        while self.launcher.busy:
            forced = self._forced
            patience = FORCED_DRAIN if forced else min(DRAIN_NOTICE, max(0.0, end - self._clock.now().boot))
            with anyio.move_on_after(patience) as self._drain_wait:
                await self.launcher.idle()
            if not self.launcher.busy:
                return
            waiting = ", ".join(sorted(self.launcher.live())[:5])
            if forced:
                self._log.error("giving up on %d runs that did not end (%s)", self.launcher.busy, waiting)
                runs.cancel()
                return
            if self._clock.now().boot >= end:
                self._log.warning("the time to stop is over: ending %d runs (%s)", self.launcher.busy, waiting)
                self._end_runs()
                continue
            self._log.info("waiting for %d runs to end (%s)", self.launcher.busy, waiting)

    async def _signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            async for number in received:
                if number == signal.SIGHUP:
                    self._log.info("SIGHUP: reading the configuration again")
                    self.reloader.force()
                else:
                    self.request_stop()

    # -- reloading ----------------------------------------------------------------------------------------------------

    async def _reload(self) -> None:
        """Once a minute, or when asked: a changed configuration, or else another try at what did not start."""
        while True:
            result = await self.reloader.next_look()
            if result is not None and result.config is not None:
                await self._apply(result, result.config)
                continue
            if not self.reloader.health.ok:
                self._say_reloaded()
            await self._housekeeping()

    async def _apply(self, result: LoadResult, config: Config) -> None:
        """Put a new configuration into force. The cluster goes first: a gate must never be open by accident."""
        before, self._config = self._config, config
        self.state.configure(config.state)
        self._share()
        for finding in result.findings:
            if finding.severity is Severity.ADVISORY:
                self._log.warning("%s: %s", finding.file, finding.message)
        await self._reconcile_cluster(config)
        self.scheduler.load(config.jobs)
        self.claims.load()
        self.reports.configure(config.sections.get("notify"))
        self.tally.configure(config.sections.get("web"), self.scheduler.jobs)
        self.retries.reloaded()
        await self.services.reconcile(config.settings)
        self._parts.configure_logging(config.logging)
        if config.job_set_id != before.job_set_id:
            self._log.info("reloaded: job set %s, %d jobs", config.job_set_id, len(config.jobs))
        else:
            self._log.info("reloaded: the job set is unchanged")
        self._say_reloaded()
        self.reboot.poke()

    def _say_reloaded(self) -> None:
        health = self.reloader.health
        self.bus.emit(Reloaded(health.ok, health.error, self._config.job_set_id, health.at))

    async def _housekeeping(self) -> None:
        """What did not start is tried again, once a minute."""
        before = self.cluster.postponed
        await self._reconcile_cluster(self._config)
        await self.services.reconcile(self._config.settings)
        if before is not None and self.cluster.postponed is None:
            self._say_reloaded()

    async def _reconcile_cluster(self, config: Config) -> None:
        await self.cluster.reconcile(config.cluster, self._let_go)
        self.launcher.node = self.node
        self.reloader.postpone(self.cluster.postponed)

    async def _let_go(self) -> None:
        """An election is about to be stopped: nothing is claimed under it any more, and no run may outlive it."""
        await self.claims.stop()
        await self.guard.let_go()

    # -- looking ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> HostSnapshot:
        """The daemon at this instant."""
        try:
            view, error = self.cluster.view(), self.cluster.error
        except Exception as failure:  # noqa: BLE001 - a plugin's view must not take the API down
            view, error = None, f"the view failed: {type(failure).__name__}"
        return HostSnapshot(
            version=__version__,
            node_name=self.node,
            at=self._clock.now().wall,
            started_at=self._started_at,
            jobs=self.scheduler.jobs,
            live=self.launcher.live(),
            next_fires=self.scheduler.next_fires(),
            history=self.launcher.history(),
            last_runs=self.launcher.last_runs(),
            days=self.launcher.days(),
            job_set_id=self._config.job_set_id,
            reload=self.reloader.health,
            cluster_configured=self.cluster.configured,
            election_configured=self.cluster.elects,
            cluster=view,
            cluster_error=error,
            fleet=next(iter(self.host.fleet.values()), None),
            reboot_pending=self.reboot.pending,
            reboot_ran=self.reboot.ran,
            paused=self.scheduler.pauses,
            retries=self.retries.pending,
            late=self.lateness.late,
            resources=self.companions.resources(),
            queued=self.launcher.queued,
            ready=self._ready,
            stopping=self.launcher.stopping,
            state=self.state.status(),
            slots=self.shared.slots.view() if self.shared is not None else {},
            tally=self.tally.view(),
            certificates=self.host.expiries,
        )
