"""The store and the way to it: latencies, lost requests and answers, watches, leases that run out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cronstable.core.clock import Seconds
from cronstable.core.store import Held, LeaseRecord, Seen, Won
from cronstable.testing.memory import MemoryLease, MemoryLeaseStore
from cronstable.testing.sim.dice import TimedDice
from cronstable.testing.sim.engine import Ask, Engine, Fiber, Refusal, Reply, on_grid
from cronstable.testing.sim.faults import How
from cronstable.testing.sim.flavour import Flavour

if TYPE_CHECKING:
    from cronstable.testing.sim.node import Node
    from cronstable.testing.sim.world import World

LAG: Seconds = 2.0
"""How long a fresh record may stay hidden: less than the claim log's patience with what must exist."""
WRITES = frozenset({"acquire", "renew", "release", "append", "trim", "put_entry"})


@dataclass(slots=True, eq=False)
class _Watcher:
    """A request that the store holds back, until something changes or the watch is over: called then."""

    node: Node
    fiber: Fiber
    ticket: int
    answer: Callable[[], None]
    done: bool = False

    @property
    def number(self) -> int:
        """See ``Waiting``."""
        return self.fiber.number

    @property
    def stale(self) -> bool:
        """It was answered, or nobody waits for the answer."""
        return self.done or self.fiber.over or self.fiber.ticket != self.ticket

    def __call__(self) -> None:
        if not self.stale:
            self.done = True
            self.answer()


@dataclass(slots=True, eq=False)
class _Expiry:
    """A lease runs out that is not written again: its record still has this mark then."""

    lease: MemoryLease
    mark: str
    expire: Callable[[], None]
    number: int = 0

    @property
    def stale(self) -> bool:
        """It was written again, or let go."""
        record = self.lease.record
        return record is None or record.mark != self.mark or self.lease.released

    def __call__(self) -> None:
        if not self.stale:
            self.expire()


class Network:
    """One store with one lease, and what is wrong with it and with the ways to it at the moment."""

    def __init__(self, world: World, engine: Engine, flavour: Flavour, poll: Seconds) -> None:
        self._world = world
        self._engine = engine
        self._dice: dict[Node, TimedDice] = {}
        self._expires_itself = flavour.expires_itself
        self.poll = poll
        self._watchers: list[_Watcher] = []
        self._seen: dict[str, int] = {}
        self._guarded = ""
        self.lease = MemoryLease(holds_all=flavour.holds_all)
        self.handles: list[MemoryLeaseStore] = []
        self.wrong: dict[How, int] = {}
        self.landed: dict[int, float] = {}
        self.version = 0

    # -- requests -----------------------------------------------------------------------------------------------------

    def send(self, fiber: Fiber, ticket: int, ask: Ask) -> None:
        """A request leaves a node."""
        node = self._world.node_of(fiber)
        self._world.checker.asked(node, ask.operation, failing=self.fails(node), full=How.FULL in self.wrong)
        dice = self._dice_of(node)
        before = self._latency(dice)
        if How.REFUSES in self.wrong or How.CUT_REFUSED in node.cut:
            self._engine.after(before, partial(fiber.resume, ticket, Refusal("injected: connection refused")))
            return
        if How.HANGS in self.wrong or How.CUT_SILENT in node.cut:
            return
        if How.LATE in self.wrong and dice.chance(0.3):
            before += dice.between(0.5, 20.0)
        self._engine.after(before, partial(self._arrive, fiber, ticket, ask, node))
        if How.REPEATED in self.wrong and ask.operation in WRITES and dice.chance(0.5):
            self._engine.after(before + dice.between(0.0, 10.0), partial(self._again, ask, node))

    def fails(self, node: Node) -> bool:
        """Whether the store cannot be used by this node now."""
        return bool(node.cut) or How.REFUSES in self.wrong or How.HANGS in self.wrong

    def _dice_of(self, node: Node) -> TimedDice:
        """Each node has ways of its own to the store."""
        if node not in self._dice:
            self._dice[node] = node.dice.child("network")
        return self._dice[node]

    def _latency(self, dice: TimedDice) -> Seconds:
        # One draw for both: the upper bits say how long, the lower ones whether it is one of those that take long.
        drawn = dice.bits()
        seconds = 0.0005 + 0.0075 * ((drawn >> 11) / (1 << 53))
        if (drawn & 1023) < 10:
            seconds += dice.between(0.01, 0.4)
        if How.SLOW in self.wrong:
            seconds += dice.between(0.05, 4.0)
        return seconds

    def _arrive(self, fiber: Fiber, ticket: int, ask: Ask, node: Node) -> None:
        if ask.watch > 0 and self._seen.get(node.name) == self.version and not self.fails(node):
            self._hold(fiber, ticket, ask, node)
            return
        answer = self._commit(ask, node)
        if ask.operation == "observe":
            self._seen[node.name] = self.version
        lost = How.CUT_ANSWERS in node.cut or (How.LOSES_ANSWERS in self.wrong and self._dice_of(node).chance(0.4))
        if not lost:
            self._engine.after(self._latency(self._dice_of(node)), partial(fiber.resume, ticket, answer))

    def _hold(self, fiber: Fiber, ticket: int, ask: Ask, node: Node) -> None:
        """Until something changes, or the watch is over."""

        def answer() -> None:
            reply = self._commit(ask, node)
            self._seen[node.name] = self.version
            if not self.fails(node):
                self._engine.after(self._latency(self._dice_of(node)), partial(fiber.resume, ticket, reply))

        watcher = _Watcher(node, fiber, ticket, answer)
        self._watchers.append(watcher)
        self._engine.hold(ask.watch, watcher)

    def _again(self, ask: Ask, node: Node) -> None:
        """A proxy sends it once more; nobody hears the answer."""
        self._world.log(node.name, f"{ask.operation} arrives a second time")
        self._commit(ask, node)

    def _commit(self, ask: Ask, node: Node) -> object:
        if ask.operation not in WRITES:
            return Reply(ask.commit())
        writes = self.lease.writes
        stands = self.lease.look()
        try:
            value = ask.commit()
        except ConnectionError as error:
            return Refusal(str(error))
        if isinstance(value, Won):
            value = Won(self._world.wall())
        self._world.checker.committed(node, ask.operation, value)
        if self.lease.writes != writes:
            self._guard()
        if self.lease.writes != writes or self.lease.look() != stands:
            self._changed()
        if isinstance(value, Held) or ask.operation == "append":
            self._world.moment_landed(node, ask.operation)
        return Reply(value)

    def is_watching(self, node: Node) -> bool:
        """Whether the store holds back an answer to this node until something changes."""
        return any(watcher.node is node and not watcher.stale for watcher in self._watchers)

    def seen_at(self, sent: float, leader: Node, others: Iterable[Node]) -> float:
        """When a renewal that leaves at ``sent`` is answered, has been seen by all others, and they watch again.

        Nothing is wrong, and the others watch when it lands. What chance makes of it is known beforehand: it depends on
        the instants alone.
        """
        landed = on_grid(sent + self._latency(self._dice_of(leader).by(lambda: sent)))
        last = on_grid(landed + self._latency(self._dice_of(leader).by(lambda: landed)))
        return max((last, *(self._watches_again(landed, other) for other in others)))

    def _watches_again(self, landed: float, node: Node) -> float:
        at = landed
        # Two throws at one instant are two numbers, as they are when it comes to that.
        dice = self._dice_of(node).by(lambda: at)
        at = on_grid(at + dice.between(0.0, self.poll))
        for _ in ("the answer", "the next watch"):
            at = on_grid(at + self._latency(dice))
        return at

    def shows(self, number: int) -> bool:
        """Whether a record is seen: a network file system may hide a fresh one for a while."""
        return How.LAGS not in self.wrong or self.landed.get(number, -LAG) <= self._engine.at - LAG

    # -- what happens at the store by itself --------------------------------------------------------------------------

    def _changed(self) -> None:
        self.version += 1
        watchers, self._watchers = self._watchers, []
        for watcher in sorted(watchers, key=lambda one: one.node.index):
            # A node that polls sees it at its next look, one that watches at once.
            self._engine.after(self._dice_of(watcher.node).between(0.0, self.poll), watcher)

    def _guard(self) -> None:
        """An expiring store forgets a lease that is not written again."""
        record = self.lease.record
        if self._expires_itself and record is not None:
            self._engine.hold(record.ttl, _Expiry(self.lease, record.mark, partial(self._expire, record)))

    def _expire(self, record: LeaseRecord) -> None:
        if How.KEPT in self.wrong:
            self._engine.hold(0.5, _Expiry(self.lease, record.mark, partial(self._expire, record)))
            return
        self._world.log("store", f"the lease of {record.holder.name} runs out")
        self.lease.delete()
        self._changed()

    def delete(self, why: str) -> None:
        """Somebody or something removes the lease."""
        if isinstance(self.lease.look(), Seen):
            self._world.log("store", why)
            self.lease.delete()
            if self.lease.holds_all:
                self._world.checker.forgotten()
            self._changed()
