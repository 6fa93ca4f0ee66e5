"""The cluster manager: builds the configured election, replaces it on reload, and accounts for every transition."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from cronstable.config import ClusterConfig
from cronstable.core.clock import Clock, Seconds
from cronstable.core.events import LeaderChanged, QuorumChanged
from cronstable.core.job import Json
from cronstable.core.view import ClusterView
from cronstable.plugin.protocols import (
    Adjustable,
    Claimant,
    Claims,
    Election,
    ElectionContext,
    Hasty,
    Host,
    Observable,
    RebootLedger,
    Refreshable,
    Rehearsable,
)
from cronstable.runtime.bus import EventBus

STOP_DEADLINE: Seconds = 15.0
"""How long a stopping election may take to let go of leadership before it is abandoned."""
START_DEADLINE: Seconds = 60.0
REHEARSAL_DEADLINE: Seconds = 30.0
"""How long an election may take to load the files that an edited section names."""
POLL: Seconds = 0.25
"""How often the view of an election that does not announce changes is looked at."""

ANNOUNCED_POLL: Seconds = 5.0
"""The same for one that announces every change there can be, in case it forgets one."""

MakeElection = Callable[[ClusterConfig, ElectionContext, Host], Election]


class StartFailed(Exception):
    """The election backend could not be started; the message is for the operator."""


@dataclass(slots=True, eq=False)
class _Running:
    """One election and the task that runs it."""

    config: ClusterConfig
    election: Election
    scope: anyio.CancelScope
    ended: anyio.Event
    is_leader: bool = False
    quorate: bool = False
    leaseless: bool = False
    complaints: set[str] = field(default_factory=set)


class ClusterManager:
    """Holds at most one running election.

    The intent to elect is recorded before a start is tried, so that a failed start leaves the gate closed
    (reference 3.7). All methods belong to the daemon's event loop.
    """

    def __init__(
        self,
        *,
        make: MakeElection,
        host: Host,
        bus: EventBus,
        clock: Clock,
        log: logging.Logger,
        job_set_id: Callable[[], str],
    ) -> None:
        self._make = make
        self._host = host
        self._bus = bus
        self._clock = clock
        self._log = log
        self._job_set_id = job_set_id
        self._tasks: TaskGroup | None = None
        self._running: _Running | None = None
        self._starting: _Running | None = None
        self._leaving: _Running | None = None
        self._wanted: ClusterConfig | None = None
        self._error: str | None = None
        self._postponed: str | None = None
        self._memories: dict[str, dict[str, str]] = {}
        self.leader_transitions = 0
        self.quorum_transitions = 0

    @property
    def configured(self) -> bool:
        """The configuration has a cluster section."""
        return self._wanted is not None

    @property
    def elects(self) -> bool:
        """The configuration asks for leader election."""
        return self._wanted is not None and self._wanted.elect_leader

    @property
    def error(self) -> str | None:
        """Why there is no running election although one is configured."""
        return self._error

    @property
    def postponed(self) -> str | None:
        """Why an edited section is not in force yet, and the election of before still is."""
        return self._postponed

    @property
    def wanted(self) -> ClusterConfig | None:
        """The section in force, also when its election did not start."""
        return self._wanted

    def view(self) -> ClusterView | None:
        """The view of this instant; None when no election is running."""
        return self._running.election.view() if self._running is not None else None

    async def refresh(self) -> None:
        """Let the running election look again, for at most ``connectTimeout`` seconds. Never raises."""
        running = self._running
        if running is None or not isinstance(running.election, Refreshable):
            return
        try:
            with anyio.move_on_after(running.config.connect_timeout):
                await running.election.refresh()
        except Exception:  # noqa: BLE001 - a plugin's; the view says what it is worth
            self._log.exception("cluster: the %s election did not look again", running.config.backend.name)

    @property
    def ledger(self) -> RebootLedger | None:
        """The running election's memory of @reboot runs, where it has one."""
        if self._running is not None and isinstance(self._running.election, RebootLedger):
            return self._running.election
        return None

    @property
    def claims(self) -> Claims | None:
        """The claim log of the running election, where it has one."""
        if self._running is not None and isinstance(self._running.election, Claimant):
            return self._running.election.claims
        return None

    @property
    def catch_up(self) -> Mapping[str, Json]:
        """The section ``cluster.catchUp`` that is in force."""
        section = self._running.config.section.get("catchUp") if self._running is not None else None
        return section if isinstance(section, Mapping) else {}

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group elections live in; once, before the first ``reconcile``."""
        self._tasks = tasks

    async def reconcile(
        self, config: ClusterConfig | None, before_stop: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Make ``config`` the truth: keep, stop, start or rebuild the election.

        A start that failed, and an edit whose files do not load, are tried again at the next call. ``before_stop`` is
        awaited before an election is stopped. Never raises for a backend's failure.
        """
        if self._running is not None and config is not None and self.keeps(config):
            self._keep(self._running, config)
            self._postponed = None
            return
        made = self._made(config) if self._running is not None and config is not None else None
        if not await self._rehearsed(made):
            return
        if self._running is not None:
            if before_stop is not None:
                await before_stop()
            await self.stop("the cluster section changed" if config is not None else "the cluster section was removed")
        self._wanted = config
        self._error = self._postponed = None
        if config is None:
            return
        try:
            await self._start(config, made if made is not None else self._made(config))
        except StartFailed as error:
            self._error = str(error)
            self._log.error("cluster: the %s backend did not start: %s", config.backend.name, error)

    def keeps(self, config: ClusterConfig | None) -> bool:
        """Whether ``reconcile`` would leave alone what runs now, if anything does."""
        if self._running is None:
            return True
        return config is not None and replace(config, beside=self._running.config.beside) == self._running.config

    def _keep(self, running: _Running, config: ClusterConfig) -> None:
        """The election goes on; what stands beside it in the section may have changed."""
        if running.config.beside != config.beside and isinstance(running.election, Adjustable):
            running.election.adjust(config.beside)
        running.config = self._wanted = config

    async def _rehearsed(self, election: object) -> bool:
        """Whether the files of an edited section load; a half-written certificate must not end what runs (13.23).

        One that has no files, or could not be made at all, goes on to its start.
        """
        if not isinstance(election, Rehearsable):
            return True
        try:
            with anyio.fail_after(REHEARSAL_DEADLINE):
                await election.rehearse()
        except Exception as error:  # noqa: BLE001 - a plugin's; whatever it is, the election of before is the better one
            why = f"the edited cluster section is not in force, the one before is: {str(error) or type(error).__name__}"
            if why != self._postponed:
                self._log.warning("cluster: %s (it is tried again each minute)", why)
            self._postponed = why
            return False
        return True

    def _made(self, config: ClusterConfig) -> Election | StartFailed:
        context = ElectionContext(
            backend=config.backend.name,
            node_name=config.node_name,
            settings=config.settings,
            cluster=config.section,
            job_set_id=self._job_set_id,
            connect_timeout=config.connect_timeout,
            elect_leader=config.elect_leader,
            distribution=config.distribution,
            beside=config.beside,
            memory=self._memories.setdefault(config.backend.name, {}),
        )
        try:
            return self._make(config, context, self._host)
        except Exception as error:  # noqa: BLE001 - a plugin's factory; told when it is its turn to start
            failed = StartFailed(str(error) or type(error).__name__)
            failed.__cause__ = error
            return failed

    async def _start(self, config: ClusterConfig, election: Election | StartFailed) -> None:
        assert self._tasks is not None, "bind() comes first"
        if isinstance(election, StartFailed):
            raise election
        running = self._starting = _Running(config, election, anyio.CancelScope(), anyio.Event())
        with anyio.move_on_after(START_DEADLINE):
            try:
                await self._tasks.start(self._run, running)
            finally:
                self._starting = None
            self._running = running
            self._observe(running, "elected at start")
            self._tasks.start_soon(self._watch, running)
            return
        running.scope.cancel()
        raise StartFailed(f"no first round within {START_DEADLINE:g} s")

    async def _run(self, running: _Running, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        ready = _Ready(task_status)
        try:
            with running.scope:
                await running.election.run(self._host, task_status=ready)
            if not ready.done:
                raise StartFailed("it ended before it was ready")
        except StartFailed:
            raise
        except Exception as error:
            if not ready.done:
                raise StartFailed(str(error) or type(error).__name__) from error
            self._log.exception("cluster: the %s election failed", running.config.backend.name)
        finally:
            running.ended.set()
        if self._running is running and not running.scope.cancel_called:
            # It ended by itself: leadership is over, and the next pass builds a new one.
            self._account(running, leader=False, quorate=False, name=None, reason="the election ended")
            self._running = None
            self._error = "the election ended unexpectedly; it is rebuilt within a minute"

    async def stop(self, reason: str) -> None:
        """Stop the running election and let it release; lost leadership and quorum count as transitions."""
        running, self._running = self._running, None
        if running is None:
            return
        self._leaving = running
        self._observe(running, reason)
        running.scope.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_DEADLINE) as late:
            await running.ended.wait()
        if late.cancelled_caught:
            self._log.warning("cluster: the election did not stop within %g s", STOP_DEADLINE)
        self._leaving = None
        self._account(running, leader=False, quorate=False, name=None, reason=reason)

    def hurry(self) -> None:
        """Nobody is to wait for long for the end of the election any more. Never raises."""
        for running in (self._starting, self._running, self._leaving):
            if running is not None and isinstance(running.election, Hasty):
                try:
                    running.election.hurry()
                except Exception as error:  # noqa: BLE001 - a plugin's bug; the end of the daemon goes on
                    self._complain(running, "hurry() failed, so its end is waited for", error)

    async def _watch(self, running: _Running) -> None:
        """Turn changes of the view into events: at once where the election announces them, else by polling."""
        announces = isinstance(running.election, Observable)
        while self._running is running and not running.ended.is_set():
            # A lease runs out without anybody announcing it; a view without one changes when it is announced.
            with anyio.move_on_after(ANNOUNCED_POLL if announces and running.leaseless else POLL):
                if announces and isinstance(running.election, Observable):
                    try:
                        await running.election.wait_change()
                    except Exception as error:  # noqa: BLE001 - as in _observe
                        self._complain(running, "wait_change() failed, so its view is polled", error)
                        announces = False
                    # One that answers without waiting must not keep everybody else from running.
                    await anyio.lowlevel.checkpoint()
                else:
                    await running.ended.wait()
            if self._running is running:
                self._observe(running, "the view changed")

    def _observe(self, running: _Running, reason: str) -> None:
        try:
            view = running.election.view()
        except Exception as error:  # noqa: BLE001 - a plugin's bug must cost leadership, never the daemon
            self._complain(running, "view() failed, so this node does not lead", error)
            self._account(running, leader=False, quorate=False, name=None, reason="the view failed")
            return
        running.leaseless = view.lease is None
        if view.stale:
            # Doubt is no loss: one refresh says which it is, and until then the gate waits by itself.
            return
        self._account(running, leader=view.is_leader, quorate=view.quorate, name=view.leader, reason=reason)

    def _complain(self, running: _Running, what: str, error: Exception) -> None:
        if what not in running.complaints:
            running.complaints.add(what)
            self._log.error("cluster: a bug in the %s election: %s", running.config.backend.name, what, exc_info=error)

    def _account(self, running: _Running, *, leader: bool, quorate: bool, name: str | None, reason: str) -> None:
        wall, node = self._clock.now().wall, running.config.node_name
        if quorate != running.quorate:
            running.quorate = quorate
            if running.config.elect_leader:
                self.quorum_transitions += 1
            self._bus.emit(QuorumChanged(quorate, reason, wall, node))
        if leader != running.is_leader:
            running.is_leader = leader
            self.leader_transitions += 1
            self._bus.emit(LeaderChanged(leader, name, reason, wall, node))


class _Ready:
    """Remembers that ``started()`` was called, and forgives a second call."""

    def __init__(self, status: anyio.abc.TaskStatus[None]) -> None:
        self._status = status
        self.done = False

    def started(self, value: None = None) -> None:
        """The first round is over."""
        if not self.done:
            self.done = True
            self._status.started(value)
