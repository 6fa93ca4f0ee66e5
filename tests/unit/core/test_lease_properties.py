"""Several lease machines against one modelled store: lost, late and hung requests, frozen nodes, wrong clocks."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cronstable.core.clock import Instant
from cronstable.core.lease import available, is_leader, is_quorate, step
from cronstable.core.lease_values import (
    Acquire,
    Answered,
    Command,
    Event,
    Failed,
    Gained,
    LeaseState,
    LeaseTiming,
    Observe,
    Ready,
    Release,
    Renew,
    Request,
    Stop,
    Wait,
    initial,
)
from cronstable.core.store import Holder, Observation
from cronstable.testing.host import SeededRng
from cronstable.testing.memory import MemoryLease, MemoryLeaseStore
from cronstable.testing.planted import GivesAHeldLeaseAway, RenewsAnything, TakesOverBlindly

FAULTS_END = 150.0


@dataclass
class ModelClock:
    """A node's clocks as functions of true time: offsets, a rate, and no steps."""

    rate: float
    boot: float
    wall: float
    true: float = 0.0

    def now(self) -> Instant:
        return Instant(self.wall + self.true * self.rate, self.boot + self.true * self.rate)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the model does not sleep")


@dataclass
class Node:
    name: str
    clock: ModelClock
    store: MemoryLeaseStore
    state: LeaseState = field(init=False)
    frozen_until: float = 0.0
    asked: int = 0
    requests: list[float] = field(default_factory=list)


class World:
    """An event heap in true seconds. Everything that is drawn comes from one seed."""

    def __init__(
        self,
        seed: int,
        ttl: float,
        nodes: int = 3,
        *,
        skew: float = 90.0,
        kind: type[MemoryLeaseStore] = MemoryLeaseStore,
        faults: bool = True,
    ) -> None:
        self.rng = SeededRng(str(seed))
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = 0
        self.lease = MemoryLease()
        self.timing = LeaseTiming.for_ttl(ttl)
        self.fences: list[int] = []
        self.log: list[tuple[float, str, Event, tuple[Command, ...]]] = []
        self.kind = kind
        self.allowed = 1
        self.faults_end = FAULTS_END if faults else 0.0
        self.nodes = [self.node(f"n{number}", skew) for number in range(nodes)]
        for node in self.nodes:
            self.at(self.rng.random() * 2, lambda node=node: self.ready(node))  # type: ignore[misc]

    def node(self, name: str, skew: float) -> Node:
        draw = self.rng.random
        clock = ModelClock(0.99 + 0.02 * draw(), 1000 * draw(), 1e9 + skew * (2 * draw() - 1))
        store = self.kind(self.lease, clock=clock)
        node = Node(name, clock, store)
        node.state = initial(Holder(name, f"token-{name}"), self.timing)
        return node

    def at(self, when: float, act: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (when, self.serial, act))

    def faulty(self) -> bool:
        return self.now < self.faults_end

    def run(self, until: float) -> None:
        while self.heap and self.heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self.heap)
            for node in self.nodes:
                node.clock.true = self.now
            act()
            self.check()
        self.now = until
        for node in self.nodes:
            node.clock.true = until

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes if is_leader(node.state, node.clock.now().boot)]

    def check(self) -> None:
        leaders = self.leaders()
        assert len(leaders) <= self.allowed, f"S1 at {self.now:.3f}: {[n.name for n in leaders]}\n{self.told()}"
        for node in leaders:
            assert is_quorate(node.state, node.clock.now().boot), "S5: leading without contact"
            assert available(node.state, node.clock.now().boot), "a leader is always available"

    def told(self) -> str:
        return "\n".join(f"{at:9.3f} {name} {event} -> {commands}" for at, name, event, commands in self.log[-40:])

    # -- one node -----------------------------------------------------------------------------------------------------

    def feed(self, node: Node, event: Event) -> tuple[Command, ...]:
        node.state, commands = step(node.state, event, node.clock.now())
        self.log.append((self.now, node.name, event, commands))
        for command in commands:
            if isinstance(command, Gained):
                assert not self.fences or command.fence >= self.fences[-1], "S3: the fence went back"
                if not self.fences or command.fence != self.fences[-1]:
                    self.fences.append(command.fence)
        return commands

    def ready(self, node: Node) -> None:
        if self.now < node.frozen_until:
            self.at(node.frozen_until, lambda: self.ready(node))
            return
        node.asked += 1
        commands = self.feed(node, Ready(f"{node.name}-{node.asked}", f"{node.name}-t{node.asked}", self.rng.random()))
        for command in commands:
            match command:
                case Wait(until):
                    delay = max(0.0, until - node.clock.now().boot) / node.clock.rate
                    self.at(self.now + delay + 0.001, lambda: self.ready(node))
                case Acquire() | Renew() | Observe() | Release():
                    self.send(node, command)
                case _:
                    pass

    def send(self, node: Node, request: Request) -> None:
        node.requests.append(self.now)
        draw = self.rng.random
        there = back = 0.005
        lost = False
        if self.faulty():
            lost = draw() < 0.1
            there += draw() * (8.0 if draw() < 0.1 else 0.3)
            back += draw() * (8.0 if draw() < 0.1 else 0.3)
            if draw() < 0.02:
                node.frozen_until = self.now + draw() * 3 * self.timing.ttl
        answer: list[Observation | None] = []
        settled: list[bool] = []

        def commit() -> None:
            if not lost:
                answer.append(self.commit(node, request))

        def arrive(event: Callable[[], Event]) -> None:
            if settled:
                return
            if self.now < node.frozen_until:
                self.at(node.frozen_until, lambda: arrive(event))
                return
            settled.append(True)
            self.feed(node, event())
            self.ready(node)

        self.at(self.now + there, commit)
        if not lost:
            self.at(self.now + there + back, lambda: arrive(lambda: Answered(answer[0])))
        timeout = (request.by - node.clock.now().boot) / node.clock.rate
        self.at(self.now + timeout + 0.001, lambda: arrive(lambda: Failed("timed out")))

    def commit(self, node: Node, request: Request) -> Observation | None:
        match request:
            case Acquire(me, ttl, nonce, over):
                return node.store.commit_acquire(me, ttl, nonce, over)
            case Renew(grant, nonce):
                return node.store.commit_renew(grant, nonce)
            case Release(grant):
                node.store.commit_release(grant, ())
                return None
            case Observe():
                return node.store.lease.look()


@given(seed=st.integers(0, 2**32), ttl=st.sampled_from([3.0, 6.0, 15.0]))
@settings(max_examples=30)
def test_no_two_nodes_lead_at_one_instant_and_one_leads_once_the_faults_stop(seed: int, ttl: float) -> None:
    world = World(seed, ttl)
    world.run(FAULTS_END)
    # The last fault may freeze a node or delay a write for a while more.
    settle = 3 * ttl + 16
    world.run(FAULTS_END + settle + 2 * ttl + 5)
    assert len(world.leaders()) == 1, f"L1\n{world.told()}"
    leader = world.leaders()[0].name
    world.run(world.now + 4 * ttl)
    assert [node.name for node in world.leaders()] == [leader], "a healthy leader stays"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_nodes_with_different_ttls_never_lead_together(seed: int) -> None:
    world = World(seed, 15.0)
    for node, ttl in zip(world.nodes, (6.0, 15.0, 45.0), strict=True):
        node.state = initial(node.state.me, LeaseTiming.for_ttl(ttl))
    world.run(FAULTS_END)
    assert world.fences, "somebody led"


@given(seed=st.integers(0, 2**32), at=st.floats(0, 10))
@settings(max_examples=25)
def test_a_clone_of_the_leader_is_found_out_within_a_round(seed: int, at: float) -> None:
    world = World(seed, 15.0, nodes=1, skew=0.0, faults=False)
    world.run(20 + at)
    original = world.nodes[0]
    assert world.leaders() == [original]
    clone = Node("clone", ModelClock(original.clock.rate, original.clock.boot, original.clock.wall), original.store)
    clone.state = replace(original.state, in_flight=None, next_at=original.clock.now().boot)
    clone.clock.true = world.now
    world.nodes.append(clone)
    # Two processes hold one token: until one of them meets the other's nonce, both lead. No store can tell them apart.
    world.allowed = 2
    world.at(world.now, lambda: world.ready(clone))
    world.run(world.now + world.timing.renew_every + world.timing.op_timeout + 1)
    world.allowed = 1
    world.check()
    assert len({node.state.me.token for node in world.nodes}) == 2, "one of them took a new token"
    world.run(world.now + 60)
    assert len(world.leaders()) == 1


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_a_node_asks_a_failing_store_at_most_twice_a_second(seed: int) -> None:
    world = World(seed, 15.0, nodes=1)
    node = world.nodes[0]
    boot = 0.0
    state = node.state
    asked: list[float] = []
    for number in range(200):
        state, commands = step(state, Ready(f"n{number}", "t", world.rng.random()), Instant(boot, boot))
        command = commands[-1]
        if isinstance(command, Wait):
            boot = max(boot, command.until)
            continue
        asked.append(boot)
        state, _ = step(state, Failed("down"), Instant(boot, boot))
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert min(gaps) >= 0.5
    assert len({round(gap, 6) for gap in gaps}) > 3, "the retries are jittered"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_stopped_machine_never_leads_or_asks_again(seed: int) -> None:
    world = World(seed, 6.0)
    world.run(20 + world.rng.random() * 50)
    for node in world.nodes:
        world.feed(node, Stop())
        assert not is_leader(node.state, node.clock.now().boot)
        for number in range(4):
            for command in world.feed(node, Ready(f"s{number}", "t")):
                assert not isinstance(command, Acquire | Renew)
                if isinstance(command, Observe | Release):
                    world.feed(node, Answered(world.commit(node, command)))


@pytest.mark.parametrize("kind", [RenewsAnything, GivesAHeldLeaseAway, TakesOverBlindly])
def test_the_model_catches_a_broken_store(kind: type[MemoryLeaseStore]) -> None:
    def search() -> None:
        for seed in range(100):
            World(seed, 6.0, kind=kind).run(FAULTS_END)

    with pytest.raises(AssertionError, match=r"^(S1|S3)"):
        search()
