"""One simulation: nodes, a store, jobs, faults, time; from a seed to a result."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.job import ClusterPolicy, Job
from cronstable.core.lease_values import LeaseTiming
from cronstable.core.sweep import Mode, auto_window, is_claimable
from cronstable.testing.memory import MemoryLeaseStore
from cronstable.testing.sim.checker import Checker, Counts, Violation
from cronstable.testing.sim.claims import ClaimsSide
from cronstable.testing.sim.dice import Dice, TimedDice
from cronstable.testing.sim.engine import Ask, Engine, Fiber, Steps, pause
from cronstable.testing.sim.faults import Fault, How, Kind, Moment, Weather, draw
from cronstable.testing.sim.flavour import FLAVOURS, Flavour
from cronstable.testing.sim.network import Network
from cronstable.testing.sim.node import LeaseSide, Node, Process
from cronstable.testing.sim.runs import RunsSide
from cronstable.testing.sim.skip import Skipper

STOP_ROUNDS = 3
DRAIN: Seconds = 10.0
"""What a node that is told to stop waits for its runs."""
WATCHED: Seconds = 0.3
"""How soon a node that watches looks again after an answer that came at once."""
CALM = 0.25
"""The last part of each span, and of the whole, is without faults: the liveness phase."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. ``backend``: a name of ``FLAVOURS``, or ``none``. Times in seconds.

    ``ttls``: one for each node that has another one than ``ttl``. ``renew_deadline``, ``retry_period``: of kubernetes;
    None: in proportion to the ttl. ``window`` None: what ``auto`` stands for.
    ``every``: from one fault to the next, on average; ``spell``: from one bad spell to the next, each of up to so many
    faults. ``span``: from one calm to the next. ``run_seconds``: how long a run takes, on average; ``failing``:
    which part of them fails. ``coarse``: an idle node looks less often than it really would, and a waiting one watches,
    so that whole days take seconds. ``first_only``: the first violation ends it. ``start``: wall seconds at which it
    begins. ``plan``: the faults, instead of those that are drawn.
    """

    jobs: Sequence[Job]
    backend: str = "filesystem"
    nodes: int = 3
    seconds: Seconds = 600.0
    seed: str = "0"
    kinds: Sequence[Kind] = ()
    ttl: Seconds = 15.0
    ttls: Mapping[int, Seconds] = field(default_factory=dict)
    connect_timeout: Seconds = 10.0
    renew_deadline: Seconds | None = None
    retry_period: Seconds | None = None
    window: Seconds | None = None
    mode: Mode = Mode.ALL
    limit: int = 100
    every: Seconds = 45.0
    spell: int = 1
    span: Seconds = 3600.0
    run_seconds: Seconds = 2.0
    failing: float = 0.1
    coarse: bool = True
    skip_idle: bool = True
    first_only: bool = False
    start: float = 1_767_225_600.0
    store: type[MemoryLeaseStore] = MemoryLeaseStore
    plan: tuple[Fault, ...] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What came out. ``log``: one line for each event; ``digest``: SHA-256 over them."""

    setup: Setup
    plan: tuple[Fault, ...]
    violations: tuple[Violation, ...]
    counts: Counts
    log: tuple[str, ...]
    events: int

    @property
    def digest(self) -> str:
        """The fingerprint of the log."""
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()


class _StoreClock:
    """What the store of one node takes for the time: a holder writes its own wall clock into its record."""

    def __init__(self, node: Node) -> None:
        self.now = node.now

    async def sleep(self, seconds: Seconds) -> None:
        """Not in a simulation."""
        raise AssertionError("a simulated store does not wait")


class World:
    """Everything there is."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.dice = Dice(f"{setup.seed}/{setup.backend}")
        self.engine = Engine(self.dice.child("order"))
        self.timed = TimedDice(f"{setup.seed}/{setup.backend}/timed", lambda: self.engine.at)
        self.start = setup.start
        self.jobs: Mapping[str, Job] = {job.name: job for job in setup.jobs if job.options.enabled}
        self.elects = setup.backend != "none"
        self.flavour: Flavour = FLAVOURS[setup.backend if self.elects else "filesystem"](
            setup.ttl, setup.connect_timeout, setup.renew_deadline, setup.retry_period
        )
        window = setup.window
        self.window = auto_window(self.flavour.worst_handover) if window is None else window
        self.mode, self.limit = setup.mode, setup.limit
        self.run_seconds, self.failing = setup.run_seconds, setup.failing
        self.idle = 5.0 if setup.coarse else 0.0
        self.watch = self.flavour.timing.watch
        poll = self.flavour.timing.poll if self.flavour.polls else 0.0
        if setup.coarse:
            # Longer than from one renewal to when the next is seen, so that a steady watch always ends with news.
            self.watch = 1.5 * self.flavour.timing.renew_every + poll
        self.lines: list[str] = []
        self.checker = Checker(self)
        self.network = Network(self, self.engine, self.flavour, poll)
        self.nodes = [Node(self, index) for index in range(setup.nodes)]
        self._armed: list[tuple[Fault, Seconds]] = []
        self._made = 0
        self._timings: dict[int, LeaseTiming] = {}

    # -- what the parts ask of it -------------------------------------------------------------------------------------

    def wall(self) -> float:
        """The truth, which is also the store's clock."""
        return self.start + self.engine.at

    def timing_of(self, index: int) -> LeaseTiming:
        """The lease timing of a node."""
        if index not in self._timings:
            ttl = self.setup.ttls.get(index)
            timing = self.flavour.timing
            if ttl is not None:
                timing = FLAVOURS[self.flavour.name](ttl, self.setup.connect_timeout, None, None).timing
            poll = min(timing.poll, WATCHED) if self.setup.coarse else timing.poll
            self._timings[index] = replace(timing, watch=self.watch, poll=poll)
        return self._timings[index]

    def log(self, who: str, text: str) -> None:
        """One line of the event log."""
        self.lines.append(f"{self.engine.at:12.3f} {who:<8} {text}")

    def node_of(self, fiber: Fiber) -> Node:
        """On which node a fiber runs."""
        machine = fiber.machine
        assert isinstance(machine, Node)
        return machine

    def send(self, fiber: Fiber, ticket: int, ask: Ask) -> None:
        """A request leaves."""
        self.network.send(fiber, ticket, ask)

    def gained(self, process: Process, fence: int) -> None:
        """A process took the lead."""
        self.log(process.node.name, f"leads, term {fence}")
        self.checker.leaders()

    def lost(self, process: Process, reason: str) -> None:
        """A process leads no more."""
        self.log(process.node.name, f"leads no more: {reason}")

    def working(self, process: Process, works: bool) -> None:
        """Whether a process could claim and start just now."""
        node = process.node
        fine = works and not node.cut and not self.network.wrong and abs(node.clock.error(self.engine.at)) < 3.0
        self.checker.working(node.name, fine)

    def alarm(self, node: Node, kind: str, text: str) -> None:
        """A process raised one."""
        counts = self.checker.counts.alarms
        counts[kind] = counts.get(kind, 0) + 1
        if kind != "unknown":
            self.log(node.name, f"alarm {kind}: {text}")

    # -- faults -------------------------------------------------------------------------------------------------------

    def waits_for(self, moment: Moment) -> bool:
        """Whether a fault waits for such an instant."""
        return any(fault.moment is moment for fault, _ in self._armed)

    def moment(self, node: Node, moment: Moment) -> None:
        """An awkward instant of a node: a fault that waits for it strikes."""
        for armed in self._armed:
            fault, until = armed
            if fault.moment is moment:
                self._armed.remove(armed)
                counts = self.checker.counts.moments
                counts[moment] = counts.get(moment, 0) + 1
                # It was waited for: it is over when its span is, all the same.
                seconds = min(fault.seconds, max(0.1, until - self.engine.at))
                self._strike(replace(fault, node=node.index, seconds=seconds))
                return

    def moment_landed(self, node: Node, operation: str) -> None:
        """A write landed and its answer is on its way."""
        if operation == "append" and self._armed:
            self.moment(node, Moment.LANDED)

    def _arm(self, fault: Fault, until: Seconds) -> None:
        if fault.moment is None:
            self._strike(fault)
        else:
            self._armed.append((fault, until))
            self._later(until - self.engine.at, partial(self._disarm, (fault, until)))

    def _disarm(self, armed: tuple[Fault, Seconds]) -> None:
        if armed in self._armed:
            self._armed.remove(armed)

    def _strike(self, fault: Fault) -> None:
        node = self.nodes[fault.node]
        self.log("fault", str(replace(fault, at=self.engine.at, moment=None)))
        self.checker.disturbed(node.name)
        match fault.how:
            case How.KILLED:
                self._kill(node, fault.seconds)
            case How.STOPPED:
                self._stop(node, fault.seconds)
            case How.PAUSED | How.FROZEN:
                self._halt(node, fault)
            case How.CUT_SILENT | How.CUT_REFUSED | How.CUT_ANSWERS:
                self._while(node.cut, fault)
            case How.STEPPED:
                self._step(node, fault.value)
                self._later(fault.seconds, partial(self._step, node, -fault.value))
            case How.DRIFTS:
                node.clock.set_rate(fault.value, self.engine.at)
                self._later(fault.seconds, partial(self._run_true, node))
            case How.DELETED | How.EXPIRED_EARLY:
                self.checker.excuse(2 * max((self.setup.ttl, *self.setup.ttls.values())))
                self.network.delete(str(fault.how))
            case _:
                self._while(self.network.wrong, fault)

    def _while(self, wrong: dict[How, int], fault: Fault) -> None:
        wrong[fault.how] = wrong.get(fault.how, 0) + 1

        def end() -> None:
            wrong[fault.how] -= 1
            if not wrong[fault.how]:
                del wrong[fault.how]
            self.log("fault", f"over: {fault.how}")

        self._later(fault.seconds, end)

    def _step(self, node: Node, seconds: Seconds) -> None:
        node.clock.step(seconds)
        node.stepped += seconds

    def _run_true(self, node: Node) -> None:
        node.clock.set_rate(1.0, self.engine.at)
        self._later(2.0, node.set_right)

    def _later(self, seconds: Seconds, action: Callable[[], None]) -> None:
        """What comes whatever the nodes do meanwhile."""
        self.engine.fix(seconds, action)

    def _halt(self, node: Node, fault: Fault) -> None:
        node.halted[fault.how] = node.halted.get(fault.how, 0) + 1
        if fault.how is How.FROZEN:
            node.clock.freeze(True, self.engine.at)

        def end() -> None:
            node.halted[fault.how] -= 1
            if not node.halted[fault.how]:
                del node.halted[fault.how]
            if How.FROZEN not in node.halted and fault.how is How.FROZEN:
                node.clock.freeze(False, self.engine.at)
                # Its boot clock did not count the time, so its deadline means nothing until its next answer (DESIGN 6).
                self.checker.froze(node)
                self._later(2.0, node.set_right)
            if not node.halted:
                self.log(node.name, "goes on")
                self.checker.leaders()
                node.resume()

        self._later(fault.seconds, end)

    def _kill(self, node: Node, down: Seconds) -> None:
        process = node.process
        if process is None:
            return
        if process.lease is not None and process.lease.leads():
            self.checker.gone()
        node.kill()
        self._later(down, lambda: self._boot(node))

    def _stop(self, node: Node, down: Seconds) -> None:
        process = node.process
        if process is None or process.stopping:
            return
        process.stopping = True
        process.start(self._wind_down(process, down))

    # -- the life of a process ----------------------------------------------------------------------------------------

    def _boot(self, node: Node) -> None:
        if node.process is not None:
            return
        self._made += 1
        process = node.process = Process(node, self._made)
        self.log(node.name, "starts")
        process.runs = RunsSide(process)
        if self.elects:
            store = self.setup.store(
                self.network.lease,
                clock=_StoreClock(node) if self.flavour.wall_expiry else None,
                least_fence=lambda: int(node.now().wall),
            )
            self.network.handles.append(store)
            process.lease = LeaseSide(process, store)
            process.claims = ClaimsSide(process, process.lease)
            process.lease_fiber = process.start(process.lease.run())
            process.claims_fiber = process.start(process.claims.run())
        process.schedule_fiber = process.start(process.runs.schedule())
        process.retries_fiber = process.start(process.runs.retries())

    def _wind_down(self, process: Process, down: Seconds) -> Steps[None]:
        """The stop order of DESIGN 3: stop starting, release, drain, exit."""
        process.runs.stop_retries()
        lease, claims = process.lease, process.claims
        if lease is not None and claims is not None:
            _cancel(process.claims_fiber)
            yield from claims.close()
            _cancel(process.lease_fiber)
            letting_go = process.start(lease.let_go())
            until = process.now().boot + STOP_ROUNDS * lease.state.timing.op_timeout
            while not letting_go.over and process.now().boot < until:
                yield from pause(process.node, 0.02)
            letting_go.cancel()
            draining = process.start(claims.entries.drain()) if claims.had_term else None
            until = process.now().boot + DRAIN
            while process.runs.running() and process.now().boot < until:
                yield from pause(process.node, 0.1)
            if draining is not None:
                draining.cancel()
                process.start(claims.entries.leave())
                yield from pause(process.node, 0.1)
        node = process.node
        self.log(node.name, "has stopped")
        node.kill()
        self._later(down, lambda: self._boot(node))

    # -- the whole ----------------------------------------------------------------------------------------------------

    def spans(self) -> list[tuple[Seconds, Seconds]]:
        """When there are faults."""
        total, found, at = self.setup.seconds, [], 0.0
        while at < total - 1:
            length = min(self.setup.span, total - at)
            calm = max(CALM * length, min(self._settle() + 30.0, 0.6 * length))
            found.append((at + (min(30.0, length / 10) if at == 0 else 0.0), at + length - calm))
            at += length
        return found

    def _settle(self) -> Seconds:
        """How long after the last fault exactly one node leads, and has opened its term."""
        slack = 2 * self.flavour.timing.op_timeout + 10.0
        longest = max((self.setup.ttl, *self.setup.ttls.values()))
        return (self.flavour.takeover + longest - self.setup.ttl) * 1.05 + slack

    def plan(self) -> tuple[Fault, ...]:
        """The faults, drawn before anything runs."""
        if self.setup.plan is not None:
            return self.setup.plan
        weather = Weather(
            self.setup.kinds,
            self.setup.every,
            self.spans(),
            self.setup.nodes,
            self.setup.ttl,
            self._next_due,
            self.setup.spell,
        )
        return draw(self.dice.child("faults"), weather)

    def _next_due(self, after: Seconds) -> Seconds | None:
        """When something falls due next that one node is to start, in world seconds."""
        wall = math.floor(self.start + after)
        fires = (job.schedule.next_after(wall) for job in self.jobs.values() if is_claimable(job))
        at = min((fire for fire in fires if fire is not None), default=None)
        return None if at is None else at - self.start

    def due(self, seconds: Seconds) -> dict[str, tuple[EpochSeconds, ...]]:
        """What falls due within so many seconds, of the jobs that one node is to start."""
        until = int(self.start + seconds)
        return {
            job.name: job.schedule.fires(int(self.start), until, until)
            for job in self.jobs.values()
            if is_claimable(job)
        }

    def run(self) -> Result:
        """All of it."""
        plan, spans = self.plan(), self.spans()
        for node in self.nodes:
            self._later(self.dice.between(0.0, 1.0), partial(self._boot, node))
        for fault in plan:
            end = next((to for since, to in spans if fault.at < to), self.setup.seconds)
            self._later(fault.at, partial(self._arm, fault, end))
        if self.elects:
            for _, end in spans:
                self._later(end + self._settle(), self.checker.calm)
        if self.setup.coarse and self.setup.skip_idle:
            self.engine.skip = Skipper(self).skip
        self.engine.run(self.setup.seconds)
        if self.elects and not self.engine.halted:
            self.checker.finish(self.due(self.setup.seconds - self.window / 4), self.setup.seconds)
        return Result(
            self.setup, plan, tuple(self.checker.violations), self.checker.counts, tuple(self.lines), self.engine.events
        )


def _cancel(fiber: Fiber | None) -> None:
    if fiber is not None:
        fiber.cancel()


def simulate(setup: Setup) -> Result:
    """Run one simulation from its seed to its end."""
    return World(setup).run()


def policies(jobs: Sequence[Job]) -> Mapping[ClusterPolicy, int]:
    """How many jobs there are of each cluster policy."""
    found: dict[ClusterPolicy, int] = {}
    for job in jobs:
        found[job.options.cluster_policy] = found.get(job.options.cluster_policy, 0) + 1
    return found
