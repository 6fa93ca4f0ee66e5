"""The cluster manager: fails closed, rebuilds on change, counts and announces every transition."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from cronstable.config import ClusterConfig
from cronstable.core.events import Event, LeaderChanged, QuorumChanged
from cronstable.core.job import Json
from cronstable.core.view import ClusterView
from cronstable.plugin.descriptors import ElectionBackend
from cronstable.plugin.protocols import Election, ElectionContext, Host, Started
from cronstable.runtime.bus import EventBus
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.testing.clock import VirtualClock, run_virtual

LOG = logging.getLogger("test")
CONFIG = ClusterConfig(
    backend=ElectionBackend(name="fake", factory="nowhere:make"),
    node_name="node-a",
    connect_timeout=10.0,
    elect_leader=True,
    distribution="single-leader",
    settings={"ttl": 15},
    section={},
)


class FakeElection:
    """An election whose view a test sets; it announces changes and notes how it was stopped."""

    def __init__(self, *, fails: Exception | None = None, leader: bool = False) -> None:
        self.fails = fails
        self.answer = ClusterView("fake", "node-a", "v1:0", quorate=True, is_leader=leader)
        self.released = False
        self.crash = anyio.Event()
        self._changed = anyio.Event()

    def view(self) -> ClusterView:
        return self.answer

    def become(self, *, leader: bool, quorate: bool = True) -> None:
        self.answer = replace(self.answer, is_leader=leader, quorate=quorate)
        self._changed.set()

    async def wait_change(self) -> None:
        await self._changed.wait()
        self._changed = anyio.Event()

    async def run(self, host: Host, *, task_status: Started) -> None:
        if self.fails is not None:
            raise self.fails
        task_status.started()
        try:
            await self.crash.wait()
            raise RuntimeError("crashed")
        finally:
            self.released = True


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock.of_loop()
        self.bus = EventBus(LOG)
        self.made: list[FakeElection] = []
        self.contexts: list[ElectionContext] = []
        self.queue: list[FakeElection] = []
        self.seen: list[Event] = []
        self.manager = ClusterManager(
            make=self._make,
            host=cast(Host, None),
            bus=self.bus,
            clock=self.clock,
            log=LOG,
            job_set_id=lambda: "v1:0",
        )

    def _make(self, config: ClusterConfig, context: ElectionContext, host: Host) -> Election:
        election = self.queue.pop(0)
        self.made.append(election)
        self.contexts.append(context)
        return election

    async def listen(self) -> None:
        async for event in self.bus.subscribe(LeaderChanged, QuorumChanged):
            self.seen.append(event)

    def said(self) -> list[str]:
        out = []
        for event in self.seen:
            if isinstance(event, LeaderChanged):
                out.append("leader" if event.is_leader else "follower")
            elif isinstance(event, QuorumChanged):
                out.append("quorate" if event.quorate else "no quorum")
        return out


def scenario(body: Callable[[Bench], Awaitable[None]]) -> Bench:
    async def run() -> Bench:
        bench = Bench()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.listen)
            await anyio.lowlevel.checkpoint()
            bench.manager.bind(tasks)
            await body(bench)
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        return bench

    return run_virtual(run)


def test_a_backend_that_does_not_start_leaves_the_gate_closed_and_says_why() -> None:
    async def body(bench: Bench) -> None:
        bench.queue = [FakeElection(fails=RuntimeError("locks are fiction"))]
        await bench.manager.reconcile(CONFIG)

    manager = scenario(body).manager
    assert manager.elects
    assert manager.view() is None
    assert manager.error == "locks are fiction"


def test_a_start_that_failed_is_tried_again_at_the_next_pass() -> None:
    async def body(bench: Bench) -> None:
        bench.queue = [FakeElection(fails=RuntimeError("not mounted yet")), FakeElection(leader=True)]
        await bench.manager.reconcile(CONFIG)
        await bench.manager.reconcile(CONFIG)
        view = bench.manager.view()
        assert view is not None
        assert view.is_leader
        assert bench.manager.error is None

    assert scenario(body).said() == ["quorate", "leader"]


def test_an_unchanged_section_keeps_the_election() -> None:
    async def body(bench: Bench) -> None:
        bench.queue = [FakeElection()]
        await bench.manager.reconcile(CONFIG)
        await bench.manager.reconcile(replace(CONFIG))

    assert len(scenario(body).made) == 1


class AdjustableElection(FakeElection):
    """One that hears of what stands beside it."""

    def __init__(self) -> None:
        super().__init__(leader=True)
        self.heard: list[Mapping[str, Json]] = []

    def adjust(self, beside: Mapping[str, Json]) -> None:
        self.heard.append(beside)


@pytest.mark.parametrize("make", [AdjustableElection, FakeElection])
def test_an_edit_of_a_services_keys_keeps_the_election_which_may_hear_of_it(make: type[FakeElection]) -> None:
    edited = replace(CONFIG, beside={"observability": {"shareNodeStats": True}})

    async def body(bench: Bench) -> None:
        bench.queue += [make()]
        await bench.manager.reconcile(CONFIG)
        assert bench.manager.keeps(edited)
        await bench.manager.reconcile(edited)
        await bench.manager.reconcile(edited)
        assert not bench.manager.keeps(replace(edited, settings={"ttl": 20}))
        assert not bench.manager.keeps(None)
        (election,) = bench.made
        assert not election.released
        if isinstance(election, AdjustableElection):
            assert election.heard == [edited.beside]

    scenario(body)


class HastyElection(FakeElection):
    """One whose end takes until it is told to hurry."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(leader=True)
        self.hurried = anyio.Event()
        self.error = error

    def hurry(self) -> None:
        self.hurried.set()
        if self.error is not None:
            raise self.error

    async def run(self, host: Host, *, task_status: Started) -> None:
        try:
            await super().run(host, task_status=task_status)
        finally:
            with anyio.CancelScope(shield=True):
                await self.hurried.wait()


@pytest.mark.parametrize("error", [None, RuntimeError("a plugin's bug")])
@pytest.mark.parametrize("first", ["stop", "hurry"])
def test_an_election_that_stops_or_is_about_to_can_be_told_to_hurry(first: str, error: Exception | None) -> None:
    async def body(bench: Bench) -> None:
        election = HastyElection(error)
        bench.queue += [election]
        await bench.manager.reconcile(CONFIG)
        begun = bench.clock.now().boot
        async with anyio.create_task_group() as tasks:
            if first == "stop":
                tasks.start_soon(bench.manager.stop, "the daemon is stopping")
                await bench.clock.sleep(1)
            bench.manager.hurry()
            if first == "hurry":
                tasks.start_soon(bench.manager.stop, "the daemon is stopping")
        assert bench.clock.now().boot - begun <= 1
        assert election.hurried.is_set()

    scenario(body)


def test_an_election_whose_first_round_does_not_end_can_be_told_to_hurry() -> None:
    class Slow(HastyElection):
        async def run(self, host: Host, *, task_status: Started) -> None:
            with anyio.CancelScope(shield=True):
                await self.hurried.wait()

    async def body(bench: Bench) -> None:
        election = Slow()
        bench.queue += [election]
        begun = bench.clock.now().boot
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.manager.reconcile, CONFIG)
            await bench.clock.sleep(0.5)
            tasks.cancel_scope.cancel()
            bench.manager.hurry()
        assert bench.clock.now().boot - begun <= 1

    scenario(body)


def test_an_election_that_does_not_know_how_to_hurry_is_waited_for() -> None:
    async def body(bench: Bench) -> None:
        bench.queue += [FakeElection(leader=True)]
        await bench.manager.reconcile(CONFIG)
        bench.manager.hurry()
        await bench.manager.stop("the daemon is stopping")
        assert bench.made[0].released

    scenario(body)


def test_a_changed_section_releases_first_and_counts_what_was_lost() -> None:
    async def body(bench: Bench) -> None:
        old, new = FakeElection(leader=True), FakeElection()
        bench.queue = [old, new]
        await bench.manager.reconcile(CONFIG)
        await bench.manager.reconcile(replace(CONFIG, settings={"ttl": 5}))
        assert old.released

    bench = scenario(body)
    assert bench.said() == ["quorate", "leader", "no quorum", "follower", "quorate"]
    assert (bench.manager.leader_transitions, bench.manager.quorum_transitions) == (2, 3)


class RehearsedElection(FakeElection):
    """One whose certificates may not load; ``takes`` seconds to say so."""

    def __init__(self, *, refuses: Exception | None = None, takes: float = 0.0) -> None:
        super().__init__()
        self.refuses = refuses
        self.takes = takes

    async def rehearse(self) -> None:
        await anyio.sleep(self.takes)
        if self.refuses is not None:
            raise self.refuses


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (RehearsedElection(refuses=OSError("node.pem does not load")), "node.pem does not load"),
        (RehearsedElection(refuses=ZeroDivisionError()), "ZeroDivisionError"),
        (RehearsedElection(takes=1e9), "TimeoutError"),
    ],
    ids=["refuses", "a bug", "hangs"],
)
def test_an_edit_whose_certificates_do_not_load_leaves_in_force_what_is_until_they_do(
    new: RehearsedElection, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    edited = replace(CONFIG, node_name="node-b", elect_leader=False)
    asked: list[str] = []

    async def before_stop() -> None:
        asked.append("before the stop")

    async def body(bench: Bench) -> None:
        old, good = FakeElection(leader=True), RehearsedElection()
        bench.queue = [old, new, new, good]
        manager = bench.manager
        await manager.reconcile(CONFIG)
        for _ in range(2):
            await manager.reconcile(edited, before_stop)
            view = manager.view()
            assert view is not None
            assert view.is_leader
            assert (old.released, manager.elects, manager.wanted, manager.error) == (False, True, CONFIG, None)
            assert why in (manager.postponed or "")
        assert asked == []
        await manager.reconcile(edited, before_stop)
        assert (old.released, manager.elects, manager.wanted, manager.postponed) == (True, False, edited, None)

    bench = scenario(body)
    assert asked == ["before the stop"]
    assert len(bench.made) == 4
    assert sum(why in record.message for record in caplog.records) == 1, "once, not each minute"


def test_an_edit_that_is_taken_back_is_not_tried_again() -> None:
    async def body(bench: Bench) -> None:
        bench.queue = [FakeElection(), RehearsedElection(refuses=OSError("does not load"))]
        await bench.manager.reconcile(CONFIG)
        await bench.manager.reconcile(replace(CONFIG, node_name="node-b"))
        await bench.manager.reconcile(CONFIG)
        assert bench.manager.postponed is None

    scenario(body)


def test_a_section_that_is_removed_is_not_rehearsed_and_one_that_cannot_be_made_ends_the_election() -> None:
    class Unmakeable(Bench):
        def _make(self, config: ClusterConfig, context: ElectionContext, host: Host) -> Election:
            if not self.queue:
                raise ValueError("no such mount")
            return super()._make(config, context, host)

    async def run() -> None:
        bench = Unmakeable()
        async with anyio.create_task_group() as tasks:
            bench.manager.bind(tasks)
            for edited in (None, replace(CONFIG, node_name="node-b")):
                old = RehearsedElection(refuses=OSError("does not load"))
                bench.queue = [old]
                await bench.manager.reconcile(CONFIG)
                await bench.manager.reconcile(edited)
                assert old.released
                assert bench.manager.wanted == edited
            assert bench.manager.error == "no such mount"
            tasks.cancel_scope.cancel()

    run_virtual(run)


def test_a_backend_remembers_what_it_noted_before_a_reload() -> None:
    async def body(bench: Bench) -> None:
        bench.queue = [FakeElection(), FakeElection()]
        await bench.manager.reconcile(CONFIG)
        bench.contexts[0].memory["store"] = "abc"
        await bench.manager.reconcile(replace(CONFIG, settings={"ttl": 5}))
        assert bench.contexts[1].memory == {"store": "abc"}

    scenario(body)


def test_a_change_of_the_view_is_an_event_at_once() -> None:
    async def body(bench: Bench) -> None:
        election = FakeElection()
        bench.queue = [election]
        await bench.manager.reconcile(CONFIG)
        election.become(leader=True)
        await anyio.sleep(0.01)
        assert bench.said()[-1] == "leader"
        election.become(leader=False, quorate=False)
        await anyio.sleep(0.01)

    assert scenario(body).said() == ["quorate", "leader", "no quorum", "follower"]


def test_doubt_is_no_loss_of_leadership() -> None:
    async def body(bench: Bench) -> None:
        election = FakeElection(leader=True)
        bench.queue = [election]
        await bench.manager.reconcile(CONFIG)
        election.answer = replace(election.answer, stale=True)
        election.become(leader=False, quorate=False)
        await anyio.sleep(2)
        election.answer = replace(election.answer, stale=False)
        election.become(leader=True)
        await anyio.sleep(2)

    assert scenario(body).said() == ["quorate", "leader"]


def test_an_election_without_a_lease_may_forget_to_announce_for_some_seconds_only() -> None:
    async def body(bench: Bench) -> None:
        election = FakeElection()
        bench.queue = [election]
        await bench.manager.reconcile(CONFIG)
        election.answer = replace(election.answer, is_leader=True)
        await anyio.sleep(6)

    assert scenario(body).said()[:2] == ["quorate", "leader"]


def test_a_refresh_ends_after_the_connect_timeout_and_never_raises() -> None:
    class Refreshing(FakeElection):
        async def refresh(self) -> None:
            await anyio.sleep_forever()

    class Failing(FakeElection):
        async def refresh(self) -> None:
            raise RuntimeError("broken plugin")

    async def body(bench: Bench) -> None:
        for election in (Refreshing(), Failing(), FakeElection()):
            bench.queue = [election]
            await bench.manager.reconcile(CONFIG)
            with anyio.fail_after(CONFIG.connect_timeout + 1):
                await bench.manager.refresh()
            await bench.manager.reconcile(None)
        await bench.manager.refresh()

    assert scenario(body).manager.view() is None


def test_an_election_that_crashes_closes_the_gate_and_is_rebuilt() -> None:
    async def body(bench: Bench) -> None:
        first, second = FakeElection(leader=True), FakeElection()
        bench.queue = [first, second]
        await bench.manager.reconcile(CONFIG)
        first.crash.set()
        await anyio.sleep(0.5)
        assert bench.manager.view() is None
        assert bench.manager.error is not None
        await bench.manager.reconcile(CONFIG)
        assert bench.manager.view() is not None

    assert scenario(body).said() == ["quorate", "leader", "no quorum", "follower", "quorate"]


class BrokenElection(FakeElection):
    """A plugin with bugs, once a test asks for them."""

    broken = False

    def view(self) -> ClusterView:
        if self.broken:
            raise KeyError("peers")
        return super().view()

    async def wait_change(self) -> None:
        if self.broken:
            raise KeyError("peers")
        await super().wait_change()


def test_an_election_whose_view_fails_leads_nothing_and_takes_nobody_down(caplog: pytest.LogCaptureFixture) -> None:
    async def body(bench: Bench) -> None:
        election = BrokenElection(leader=True)
        bench.queue = [election]
        await bench.manager.reconcile(CONFIG)
        election.broken = True
        await anyio.sleep(1)
        assert bench.said()[-1] == "follower"
        election.broken = False
        await anyio.sleep(1)
        await bench.manager.reconcile(None)
        assert election.released

    assert scenario(body).said() == ["quorate", "leader", "no quorum", "follower"] * 2
    assert caplog.text.count("view() failed") == 1
    assert caplog.text.count("wait_change() failed") == 1


def test_a_stop_gets_through_to_an_election_whose_view_fails() -> None:
    async def body(bench: Bench) -> None:
        election = BrokenElection(leader=True)
        bench.queue = [election]
        await bench.manager.reconcile(CONFIG)
        election.broken = True
        await bench.manager.reconcile(None)
        assert election.released

    assert scenario(body).said() == ["quorate", "leader", "no quorum", "follower"]


class RestlessElection(FakeElection):
    """Says all the time that something changed."""

    async def wait_change(self) -> None:
        return


def test_an_election_that_announces_changes_without_end_lets_the_others_run() -> None:
    async def body(bench: Bench) -> None:
        bench.queue = [RestlessElection(leader=True)]
        await bench.manager.reconcile(CONFIG)
        await anyio.lowlevel.checkpoint()
        await bench.manager.reconcile(None)

    assert scenario(body).said() == ["quorate", "leader", "no quorum", "follower"]


def test_removing_the_section_stops_electing() -> None:
    async def body(bench: Bench) -> None:
        bench.queue = [FakeElection(leader=True)]
        await bench.manager.reconcile(CONFIG)
        await bench.manager.reconcile(None)

    bench = scenario(body)
    assert not bench.manager.elects
    assert bench.manager.view() is None
    assert bench.made[0].released
