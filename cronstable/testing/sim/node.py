"""A simulated node: its machine, its process, and the process's side of the lease.

What the daemon's shells do around the shipped state machines is done here by interpreters that are as thin: they carry
out commands, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from cronstable.core import lease
from cronstable.core.clock import Instant
from cronstable.core.handover import Inheritance
from cronstable.core.lease_values import (
    Acquire,
    Answered,
    Command,
    Cut,
    Event,
    Failed,
    Finished,
    Gained,
    LeaseState,
    Lost,
    Note,
    Observe,
    Quorum,
    Ready,
    Release,
    Renew,
    Request,
    Resign,
    Stop,
    Wait,
    initial,
)
from cronstable.core.store import Grant, Held, HeldTerm, Holder, Observation, Seen, Unreadable, Vacant
from cronstable.core.view import ClusterView
from cronstable.testing.memory import MemoryLeaseStore
from cronstable.testing.sim.clocks import NodeClock
from cronstable.testing.sim.engine import Ask, Fiber, Lock, Refusal, Reply, Signal, Sleep, Steps
from cronstable.testing.sim.faults import How, Moment

if TYPE_CHECKING:
    from cronstable.testing.sim.claims import ClaimsSide
    from cronstable.testing.sim.runs import RunsSide
    from cronstable.testing.sim.world import World

SHORTEST_WAIT = 0.001


class Node:
    """A machine, whether or not a daemon runs on it. Implements the engine's ``Machine``."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.name = f"node-{index + 1}"
        self.dice = world.timed.child(self.name)
        self.stepped = 0.0
        self.clock = NodeClock(world.start, 1000.0 + 100_000.0 * index)
        self.cut: dict[How, int] = {}
        self.halted: dict[How, int] = {}
        self.process: Process | None = None
        self._postponed: list[Callable[[], None]] = []

    def set_right(self) -> None:
        """Its wall clock is corrected, as NTP does; a step of it that is under way stays."""
        self.clock.step(self.stepped - self.clock.error(self.world.engine.at))

    @property
    def stopped(self) -> bool:
        """See ``Machine``."""
        return bool(self.halted)

    def now(self) -> Instant:
        """See ``Machine``."""
        return self.clock.read(self.world.engine.at)

    def later(self, boot: float) -> float:
        """See ``Machine``."""
        return self.clock.until(boot, self.world.engine.at)

    def postpone(self, action: Callable[[], None]) -> None:
        """See ``Machine``."""
        self._postponed.append(action)

    def resume(self) -> None:
        """What piled up happens now, in any order."""
        postponed, self._postponed = self._postponed, []
        for action in self.dice.shuffled(postponed):
            self.world.engine.soon(action)

    def kill(self) -> None:
        """The process is gone."""
        if self.process is not None:
            self.process.end()
            self.process = None
            self._postponed.clear()


class Process:
    """One daemon, from its start to its end; nothing of it survives."""

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.world = node.world
        self.number = number
        self.dice = node.dice.child(str(number))
        self.stopping = False
        self.over = False
        self.released: int | None = None
        self._fibers: list[Fiber] = []
        self.now: Callable[[], Instant] = node.now
        """The clocks of its node."""
        self.lease: LeaseSide | None = None
        self.claims: ClaimsSide | None = None
        self.lease_fiber: Fiber | None = None
        self.claims_fiber: Fiber | None = None
        self.schedule_fiber: Fiber | None = None
        self.retries_fiber: Fiber | None = None
        self.runs: RunsSide

    def start(self, steps: Steps[None]) -> Fiber:
        """A task of this process."""
        if len(self._fibers) > 64:
            self._fibers = [fiber for fiber in self._fibers if not fiber.over]
        fiber = Fiber(self.world.engine, self.node, steps, self.world.send)
        self._fibers.append(fiber)
        if self.over:
            # It was killed within the very step that asks for this: that goes on to its next wait, nothing else does.
            fiber.end()
        return fiber

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.over = True
        for fiber in self._fibers:
            fiber.end()

    def view(self) -> ClusterView | None:
        """As ``LeaseBackend.view`` shows it."""
        return None if self.lease is None else self.lease.view()


class LeaseSide:
    """What ``LeaseBackend`` does, with the same machine."""

    def __init__(self, process: Process, store: MemoryLeaseStore) -> None:
        self._process = process
        self._world = process.world
        self._dice = process.dice.child("lease")
        self.store = store
        timing = self._world.timing_of(process.node.index)
        name = process.node.name
        self.state: LeaseState = initial(
            Holder(name, self._dice.token(6)), timing, expires_itself=self._world.flavour.expires_itself
        )
        self.free = Lock()
        self._sleep = Signal()
        self._inheritance = Inheritance()
        self.given_back: tuple[str, ...] = ()
        self.renewals: tuple[float, ...] = ()
        """When the last three renewals left, in world seconds."""

    # -- what others ask ----------------------------------------------------------------------------------------------

    @property
    def grant(self) -> Grant | None:
        """See ``LeaseBackend.grant``."""
        return None if self.state.resigning else self.state.grant

    @property
    def term(self) -> HeldTerm | None:
        """See ``LeaseBackend.term``."""
        return self._inheritance.term(self.grant)

    def leads(self) -> bool:
        """What the gate is told now."""
        return lease.is_leader(self.state, self._process.now().boot)

    def view(self) -> ClusterView:
        """See ``LeaseBackend.view``."""
        state, boot = self.state, self._process.now().boot
        return ClusterView(
            backend=self._world.flavour.name,
            node_name=self._process.node.name,
            job_set_id="",
            quorate=lease.is_quorate(state, boot),
            leader=lease.leader_name(state, boot),
            is_leader=lease.is_leader(state, boot),
            available=lease.available(state, boot),
            deadline=state.deadline,
        )

    def stand_down(self, seconds: float) -> Steps[None]:
        """See ``LeaseBackend.stand_down``."""
        yield from self.free.take()
        self._step(Resign(seconds))
        self.free.give()
        self._sleep.set()

    # -- the task -----------------------------------------------------------------------------------------------------

    def run(self) -> Steps[None]:
        """Elect until the process ends."""
        while (yield from self._turn()):
            pass

    def let_go(self) -> Steps[None]:
        """Stop and release; the task above was ended before."""
        self.free = Lock()
        self._step(Stop())
        while (yield from self._turn()):
            pass

    def _turn(self) -> Steps[bool]:
        yield from self.free.take()
        try:
            wait = yield from self._ask_what_is_due()
        finally:
            self.free.give()
        if isinstance(wait, Wait):
            until = max(wait.until, self._process.now().boot + SHORTEST_WAIT)
            yield Sleep(until, self._sleep)
        return not isinstance(wait, Finished)

    def _ask_what_is_due(self) -> Steps[Wait | Finished | None]:
        last: Wait | Finished | None = None
        # One draw for all three: this is asked more often than anything else, and most of it is not used.
        drawn = self._dice.bits()
        for command in self._step(Ready(f"{drawn:016x}", f"{drawn >> 16:012x}", (drawn >> 11) / (1 << 53))):
            match command:
                case Wait() | Finished():
                    last = command
                case Acquire() | Renew() | Observe() | Release():
                    event = yield from self._ask(command)
                    self._inheritance = self._inheritance.note(command, event)
                    self._step(event)
                case Gained() | Lost() | Quorum() | Note():
                    pass
                case _:
                    assert_never(command)
        return last

    def _ask(self, request: Request) -> Steps[Event]:
        world, node, boot = self._world, self._process.node, self._process.now().boot
        cut = request.cut if isinstance(request, Observe) else None
        until = request.by if cut is None else min(cut, request.by)
        operation, commit = self._request(request)
        if isinstance(request, Renew):
            world.moment(node, Moment.RENEWING)
            self.renewals = (*self.renewals[-2:], world.engine.at)
        elif isinstance(request, Release):
            world.moment(node, Moment.RELEASING)
        watch = world.watch if isinstance(request, Observe) else 0.0
        answer = yield Ask(operation, commit, max(until, boot), watch)
        if isinstance(answer, Reply):
            value = answer.value
            if isinstance(value, Held):
                world.checker.held(node, value.grant, sent=boot, by=request.by, margin=self.state.timing.margin)
            return Answered(value if isinstance(value, Held | Seen | Vacant | Unreadable) else None)
        if isinstance(answer, Refusal):
            return Failed(answer.detail)
        return Cut() if cut is not None and cut < request.by else Failed("no answer in time")

    def _request(self, request: Request) -> tuple[str, Callable[[], Observation | None]]:
        store = self.store
        match request:
            case Acquire(me, ttl, nonce, over):
                return "acquire", lambda: store.commit_acquire(me, ttl, nonce, over)
            case Renew(grant, nonce):
                return "renew", lambda: store.commit_renew(grant, nonce)
            case Observe():
                return "observe", store.lease.look
            case Release(grant):
                return "release", lambda: store.commit_release(grant, self.given_back)
            case _:
                assert_never(request)

    def _step(self, event: Event) -> tuple[Command, ...]:
        before = self.state
        self.state, commands = lease.step(before, event, self._process.now())
        for command in commands:
            match command:
                case Gained(fence):
                    self._world.gained(self._process, fence)
                case Lost(reason):
                    self._world.lost(self._process, str(reason))
                case _:
                    pass
        changed = (before.grant is None) != (self.state.grant is None) or before.quorate != self.state.quorate
        if changed and self._process.claims is not None:
            self._process.claims.poke()
        return commands
