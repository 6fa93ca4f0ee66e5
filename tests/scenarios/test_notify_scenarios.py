"""Changes of leadership and losses of quorum reach every notifier: each once, in order, within a second."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import anyio
import pytest

from cronstable.config import ClusterConfig
from cronstable.core.view import ClusterView, LeaseView
from cronstable.plugin.descriptors import ElectionBackend, NotifierBackend, Section
from cronstable.plugin.manager import PluginInfo, Provided
from cronstable.plugin.protocols import (
    Election,
    ElectionContext,
    Host,
    LeaderChange,
    Message,
    Notifier,
    QuorumLoss,
    Started,
)
from cronstable.runtime.bus import EventBus
from cronstable.runtime.cluster_manager import POLL, ClusterManager
from cronstable.runtime.reports import Reports
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost

LOG = logging.getLogger("test.notify")
LATEST = 1.0
"""Seconds from a transition to the message (issue: 'none late by more than a second')."""


def config(node: str, ttl: int = 15) -> ClusterConfig:
    return ClusterConfig(
        backend=ElectionBackend(name="fake", factory="nowhere:make"),
        node_name=node,
        connect_timeout=10.0,
        elect_leader=True,
        distribution="single-leader",
        settings={"ttl": ttl},
        section={},
    )


class Polled:
    """An election that is told who leads, and leaves it to others to look."""

    def __init__(self, node: str) -> None:
        self.answer = ClusterView("fake", node, "v1:0", lease=LeaseView(node, None, None, None))

    def view(self) -> ClusterView:
        return self.answer

    def become(self, *, leader: bool, quorate: bool) -> None:
        self.answer = replace(self.answer, is_leader=leader, quorate=quorate)

    async def run(self, host: Host, *, task_status: Started) -> None:
        task_status.started()
        await anyio.sleep_forever()


class Announcing(Polled):
    """The same, and says when something changed."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self._changed = anyio.Event()

    def become(self, *, leader: bool, quorate: bool) -> None:
        super().become(leader=leader, quorate=quorate)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def wait_change(self) -> None:
        await self._changed.wait()


@dataclass
class Told:
    """What one notifier was told, with the time of it."""

    messages: list[tuple[float, Message]] = field(default_factory=list)

    def said(self) -> list[str]:
        return [word(message) for _, message in self.messages]

    def latest(self) -> float:
        changes = [(at, told) for at, told in self.messages if isinstance(told, LeaderChange | QuorumLoss)]
        return max((at - told.at for at, told in changes), default=0.0)


def word(message: Message) -> str:
    match message:
        case LeaderChange():
            return "leader" if message.is_leader else "follower"
        case QuorumLoss():
            return "no quorum"
    return "report"


class Node:
    """A cluster manager and reports, as the daemon has them, with two notifiers that work and one that hangs."""

    def __init__(self, name: str, election: Polled) -> None:
        self.clock = VirtualClock.of_loop()
        self.election = election
        self.told = {"one": Told(), "two": Told()}
        host = FakeHost(self.clock, name)
        bus = EventBus(LOG)
        self.manager = ClusterManager(
            make=self._elect, host=host, bus=bus, clock=self.clock, log=LOG, job_set_id=lambda: "v1:0"
        )
        self.reports = Reports(
            notifiers={name: provided(name) for name in ("one", "hangs", "two")},
            make=self._notifier,
            host=host,
            bus=bus,
            log=LOG,
            hostname=name,
        )
        self.reports.configure({"report": {name: {"to": name} for name in ("one", "hangs", "two")}})

    def _elect(self, config: ClusterConfig, context: ElectionContext, host: Host) -> Election:
        return self.election

    def _notifier(self, found: Provided[NotifierBackend], settings: object, host: Host) -> Notifier:
        return Teller(self.clock, self.told.get(found.descriptor.name))


class Teller:
    """Tells, or hangs for ever when there is nobody to tell."""

    def __init__(self, clock: VirtualClock, told: Told | None) -> None:
        self._clock = clock
        self._told = told

    async def send(self, message: Message) -> None:
        if self._told is None:
            await anyio.sleep_forever()
        else:
            self._told.messages.append((self._clock.now().wall, message))


def parse(section: Section) -> object:
    return dict(section)


def provided(name: str) -> Provided[NotifierBackend]:
    backend = NotifierBackend(name=name, factory="nowhere:make", parse=parse)
    return Provided(backend, PluginInfo(name, "acme", "1.0", "m", builtin=False))


def story(nodes: Mapping[str, Callable[[str], Polled]], body: Callable[..., Awaitable[None]]) -> dict[str, Node]:
    async def run() -> dict[str, Node]:
        made = {name: Node(name, election(name)) for name, election in nodes.items()}
        async with anyio.create_task_group() as tasks:
            for name, node in made.items():
                node.manager.bind(tasks)
                node.reports.bind(tasks)
                tasks.start_soon(node.reports.follow)
                await anyio.lowlevel.checkpoint()
                await node.manager.reconcile(config(name))
            # No election changes its mind before whoever watches it had a turn.
            await anyio.wait_all_tasks_blocked()
            await body(*made.values())
            await made[next(iter(made))].clock.sleep(LATEST)
            tasks.cancel_scope.cancel()
        return made

    return run_virtual(run)


@pytest.mark.parametrize("every", [0.001, 0.02, 0.3, 5.0])
def test_a_flap_is_told_change_by_change_however_fast_it_is(every: float) -> None:
    async def body(node: Node) -> None:
        for _ in range(30):
            node.election.become(leader=True, quorate=True)
            await node.clock.sleep(every)
            node.election.become(leader=False, quorate=False)
            await node.clock.sleep(every)

    node = story({"node-a": Announcing}, body)["node-a"]
    wanted = ["leader", *["no quorum", "follower", "leader"] * 29, "no quorum", "follower"]
    for told in node.told.values():
        assert told.said() == wanted
        assert told.latest() <= LATEST
    assert node.manager.leader_transitions == 60
    assert node.reports.counts["one"].sent == len(wanted)


def test_a_view_that_nobody_announces_is_told_change_by_change_as_long_as_it_stays_a_look() -> None:
    async def body(node: Node) -> None:
        for leader in (True, False) * 10:
            node.election.become(leader=leader, quorate=True)
            await node.clock.sleep(POLL * 1.5)

    node = story({"node-a": Polled}, body)["node-a"]
    for told in node.told.values():
        assert told.said() == ["leader", "follower"] * 10
        assert told.latest() <= LATEST


def test_a_handover_is_one_message_on_each_side_and_quorum_that_comes_back_is_none() -> None:
    async def body(old: Node, new: Node) -> None:
        old.election.become(leader=True, quorate=True)
        await old.clock.sleep(5)
        old.election.become(leader=False, quorate=True)
        await old.clock.sleep(0.2)
        new.election.become(leader=True, quorate=True)
        await old.clock.sleep(5)
        old.election.become(leader=False, quorate=False)
        await old.clock.sleep(5)
        old.election.become(leader=False, quorate=True)
        await old.clock.sleep(5)

    nodes = story({"node-a": Announcing, "node-b": Announcing}, body)
    for told in nodes["node-a"].told.values():
        assert told.said() == ["leader", "follower", "no quorum"]
    for told in nodes["node-b"].told.values():
        assert told.said() == ["leader"]
        ((_, message),) = told.messages
        assert isinstance(message, LeaderChange)
        assert message.node == "node-b"


def test_a_reload_that_stops_a_leader_is_told_once_and_its_next_term_as_well() -> None:
    async def body(node: Node) -> None:
        node.election.become(leader=True, quorate=True)
        await node.clock.sleep(1)
        await node.manager.reconcile(config("node-a", ttl=20))
        await node.clock.sleep(1)
        await node.manager.reconcile(None)
        await node.clock.sleep(1)

    node = story({"node-a": Announcing}, body)["node-a"]
    for told in node.told.values():
        assert told.said() == ["leader", "no quorum", "follower", "leader", "no quorum", "follower"]
        assert told.latest() <= LATEST
