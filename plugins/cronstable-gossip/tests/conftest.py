"""A cluster of pure nodes on a graph of who can reach whom, and the same over real elections in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus
from cronstable_gossip import payload
from cronstable_gossip.backend import GossipElection
from cronstable_gossip.derive import Derived, derive, members
from cronstable_gossip.model import Failed, Me, Peer, Report, Seen, observe
from cronstable_gossip.settings import Address, Settings, TlsFiles
from cronstable_gossip.wire import Caller, Reply, Responder, Untrusted
from hypothesis import HealthCheck, settings

from cronstable.api import ElectionContext
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost

# The same examples on every run, and no deadline for a slow machine, as in the tests of the host.
settings.register_profile(
    "cronstable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cronstable")

Edges = frozenset[tuple[str, str]]
"""(who asks, who is asked)."""


def me_of(name: str, **changes: object) -> Me:
    facts: dict[str, object] = {
        "name": name,
        "instance_id": f"i-{name}",
        "job_set_id": "v1:0",
        "scheme_version": "v1",
        "distribution": "single-leader",
        "elect_leader": True,
    }
    return Me(**{**facts, **changes})  # type: ignore[arg-type]


class Graph:
    """Nodes that ask each other in rounds, all at once, until nothing changes: the converged views of a graph."""

    def __init__(self, names: Iterable[str], edges: Edges, *, distribution: str = "single-leader") -> None:
        self.names = tuple(names)
        self.edges = edges
        self.me = {name: me_of(name, distribution=distribution) for name in self.names}
        self.peers = {name: tuple(Peer(other) for other in self.names if other != name) for name in self.names}
        self.views: dict[str, Derived] = {}

    def report(self, name: str) -> Report:
        view = self.views[name]
        me, peers = self.me[name], self.peers[name]
        return Report(
            name,
            me.job_set_id,
            me.scheme_version,
            me.instance_id,
            view.size,
            me.distribution,
            me.elect_leader,
            members(peers, me),
            view.live - {name},
            frozenset(view.vouched),
        )

    def round(self) -> bool:
        self.views = {name: derive(self.peers[name], self.me[name]) for name in self.names}
        reports = {name: self.report(name) for name in self.names}
        before = dict(self.peers)
        for name in self.names:
            self.peers[name] = tuple(
                observe(
                    peer,
                    Seen(reports[peer.host], 0.0, 0.0) if (name, peer.host) in self.edges else Failed("no route", 0.0),
                    self.me[name],
                )
                for peer in before[name]
            )
        return any(
            new.report is not old.report and new.report != old.report
            for name in self.names
            for new, old in zip(self.peers[name], before[name], strict=True)
        )

    def converge(self) -> Mapping[str, Derived]:
        for _ in range(4 * len(self.names)):
            if not self.round():
                return self.views
        raise AssertionError("the views do not converge")


# -- a network in memory ----------------------------------------------------------------------------------------------

LATENCY = 0.004


class Network:
    """Who answers, and what is broken between whom: ``errors``, ``silent`` and ``untrusted`` hold (asker, asked).

    ``questions``: for decisions, as they were asked; ``forged``: what nodes answer to these, or how they fail.
    ``lines``: open connections, and who is told when they end. ``hangs_up``: that they are; not so where something
    between the nodes keeps the near half of a connection.
    """

    def __init__(self) -> None:
        self.open: dict[str, Responder] = {}
        self.errors: set[tuple[str, str]] = set()
        self.silent: set[tuple[str, str]] = set()
        self.untrusted: set[tuple[str, str]] = set()
        self.asked: list[tuple[str, str, int]] = []
        self.lines: dict[tuple[str, str], Callable[[], None]] = {}
        self.hangs_up = True
        self.questions: list[tuple[str, str, str, int]] = []
        self.forged: dict[str, bytes | Exception] = {}

    def cut(self, name: str, others: Iterable[str], *, silent: bool) -> None:
        for other in others:
            (self.silent if silent else self.errors).update({(name, other), (other, name)})

    def heal(self) -> None:
        self.errors.clear()
        self.silent.clear()
        self.untrusted.clear()


class Wire:
    """One node's transport on a ``Network``."""

    def __init__(self, network: Network, host: FakeHost, peers: tuple[str, ...], instance_id: str) -> None:
        self._network = network
        self._host = host
        self._peers = peers
        self._instance_id = instance_id
        self._responder: Responder | None = None
        self.rotations = 0

    async def rehearse(self) -> None:
        """There is nothing to load."""

    async def open(self, responder: Responder) -> None:
        self._responder = self._network.open[self._host.name] = responder

    async def close(self) -> None:
        me, network = self._host.name, self._network
        network.open.pop(me, None)
        for line in [line for line in network.lines if me in line]:
            hung_up = network.lines.pop(line)
            if line[1] == me and network.hangs_up and line not in network.errors | network.silent:
                asyncio.get_running_loop().call_later(LATENCY, hung_up)

    async def rotate(self) -> None:
        self.rotations += 1

    async def _reach(self, index: int, timeout: float) -> Responder:
        link = (self._host.name, self._peers[index])
        await anyio.sleep(LATENCY * (1 + self._host.rng.random()))
        if link in self._network.silent:
            await anyio.sleep(timeout)
            raise TimeoutError("no answer in time")
        if link in self._network.errors:
            raise OSError("no route to host")
        if link in self._network.untrusted:
            raise Untrusted("certificate verify failed")
        if link[1] not in self._network.open:
            raise ConnectionRefusedError("refused")
        return self._network.open[link[1]]

    async def ask(self, index: int, etag: str | None, timeout: float) -> Reply:
        responder = await self._reach(index, timeout)
        reply = responder.peer(Caller(etag, self._instance_id))
        self._network.asked.append((self._host.name, self._peers[index], reply.status))
        if self._responder is not None:
            self._network.lines[self._host.name, self._peers[index]] = partial(self._responder.hung_up, index)
        await anyio.sleep(LATENCY)
        return reply

    async def decisions(self, index: int, job: str, limit: int, timeout: float) -> bytes:
        self._network.questions.append((self._host.name, self._peers[index], job, limit))
        responder = await self._reach(index, timeout)
        forged = self._network.forged.get(self._peers[index])
        if isinstance(forged, Exception):
            raise forged
        return forged if forged is not None else responder.decisions(job, limit)()

    async def push(self, index: int, body: bytes, timeout: float) -> None:
        assert (await self._reach(index, timeout)).take(body)


class Member:
    """One node: its clock, its host, its election."""

    def __init__(self, network: Network, name: str, names: Iterable[str], **options: object) -> None:
        self.clock = VirtualClock.of_loop()
        self.host = FakeHost(self.clock, name)
        self.host.rng = type(self.host.rng)(f"{name}/{len(network.asked)}")
        self.host.ids = type(self.host.ids)(f"{name}/{len(network.asked)}")
        self.job_set_id = str(options.get("job_set_id", "v1:0"))
        self.peers = tuple(other for other in names if other != name)
        interval = float(str(options.get("interval", 1.0)))
        self.timeout = float(str(options.get("timeout", 2.0)))
        self.bound = 2 * interval + self.timeout
        context = ElectionContext(
            backend="gossip",
            node_name=str(options.get("node_name", name)),
            settings=None,
            cluster=MappingProxyType({}),
            job_set_id=lambda: self.job_set_id,
            connect_timeout=self.timeout,
            elect_leader=bool(options.get("elect_leader", True)),
            distribution=str(options.get("distribution", "single-leader")),
        )
        section = Settings(
            Address("0.0.0.0", 1),
            TlsFiles("", "", ""),
            tuple(Address(other, 1) for other in self.peers),
            interval=interval,
        )
        self.election = GossipElection(
            context, self.host, section, lambda instance_id: Wire(network, self.host, self.peers, instance_id)
        )
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()

    @property
    def leads(self) -> bool:
        return self.election.view().is_leader

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            with self.scope:
                await self.election.run(self.host, task_status=_Ready(task_status))
        finally:
            self.ended.set()


class _Ready:
    def __init__(self, status: TaskStatus[None]) -> None:
        self._status = status

    def started(self, value: None = None) -> None:
        self._status.started(value)


class Cluster:
    """Members on one network. ``seen``: moments at which two of them led."""

    def __init__(self, tasks: TaskGroup, **options: object) -> None:
        self.network = Network()
        self.members: dict[str, Member] = {}
        self.options = options
        self.double: list[tuple[float, list[str]]] = []
        self._tasks = tasks

    async def start(self, name: str, names: Iterable[str], **options: object) -> Member:
        member = self.members[name] = Member(self.network, name, names, **{**self.options, **options})
        await self._tasks.start(member.run)
        return member

    async def start_all(self, names: Iterable[str]) -> None:
        """All at once, as after a power cut."""
        names = tuple(names)
        async with anyio.create_task_group() as starts:
            for name in names:
                starts.start_soon(self.start, name, names)

    async def stop(self, name: str) -> None:
        self.members[name].scope.cancel()
        await self.members[name].ended.wait()

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass."""
        await anyio.sleep(seconds)

    def leaders(self) -> list[str]:
        return [name for name, member in self.members.items() if member.leads]

    async def watch(self) -> None:
        """Look a hundred times a second whether two lead."""
        while True:
            found = self.leaders()
            if len(found) > 1:
                self.double.append((anyio.current_time(), found))
            await anyio.sleep(0.01)


Story = Callable[[Cluster], Awaitable[None]]


def play(story: Story, names: str = "abc", **options: object) -> Cluster:
    """Run ``story`` on a fresh cluster in virtual time, watching for two leaders at a time."""

    async def main() -> Cluster:
        async with anyio.create_task_group() as tasks:
            cluster = Cluster(tasks, **options)
            tasks.start_soon(cluster.watch)
            await cluster.start_all(names)
            await story(cluster)
            tasks.cancel_scope.cancel()
        return cluster

    return run_virtual(main)


@pytest.fixture(scope="session")
def cluster() -> Callable[..., Cluster]:
    return play


@pytest.fixture(scope="session")
def graph() -> type[Graph]:
    return Graph


@pytest.fixture(scope="session")
def make_me() -> Callable[..., Me]:
    return me_of


@pytest.fixture(scope="session")
def as_bytes() -> Callable[[Report], bytes]:
    return lambda report: payload.build(report, 0.0).content
