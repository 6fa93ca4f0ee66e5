"""What plugins see of the daemon besides its snapshot: the decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cronstable.core.decision import Decision, DecisionRecord, DecisionRing, Reason, Verdict
from cronstable.core.runs import RunRecord
from cronstable.plugin.protocols import Actor, Command, CommandOutcome, Done, FleetReport, Host, HostSnapshot
from cronstable.runtime.bus import EventBus
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.host import DaemonHost, Seams
from cronstable.runtime.output import OutputHub
from cronstable.testing.clock import VirtualClock
from cronstable.testing.host import FakeHost


def daemon_host(ring: DecisionRing, window: Callable[[str], float] | None = None) -> Host:
    fake = FakeHost(VirtualClock(), fs=SystemFiles())
    seams = Seams(fake.clock, fake.rng, fake.ids, fake.fs, fake.http, fake.threads, fake.processes)
    host = DaemonHost(seams=seams, log=fake.log, bus=EventBus(fake.log), hub=OutputHub())

    def snapshot() -> HostSnapshot:
        return fake.snapshot()

    async def do(command: Command, by: Actor) -> CommandOutcome:
        return Done()

    async def runs(job: str, limit: int) -> Sequence[RunRecord]:
        return await fake.runs(job, limit)

    host.connect(snapshot, do, ring, runs, window=window)
    return host


def fake_host(ring: DecisionRing) -> Host:
    host = FakeHost(VirtualClock())
    host.ring = ring
    return host


@pytest.mark.parametrize("make", [daemon_host, fake_host])
def test_a_host_tells_the_newest_decisions_on_a_job_newest_first(make: Callable[[DecisionRing], Host]) -> None:
    ring = DecisionRing()
    host = make(ring)
    for t in range(150):
        for job in ("a", "b"):
            ring.add(DecisionRecord("n", job, t, float(t), Decision(Verdict.RUN, Reason.LEADER)))
    assert [(r.job, r.scheduled_at) for r in host.decisions("a", 2)] == [("a", 149), ("a", 148)]
    assert len(host.decisions("a")) == 100
    assert len(host.decisions("a", 1_000)) == 150
    assert list(host.decisions("a", 0)) == list(host.decisions("a", -1)) == list(host.decisions("nobody")) == []


def test_what_a_follower_decided_is_told_as_final_once_it_has_left_the_window_of_its_job() -> None:
    ring = DecisionRing()
    host = daemon_host(ring, window=lambda job: 60.0 if job == "claimed" else 0.0)
    now = int(host.clock.now().wall)
    for job in ("claimed", "other"):
        for t in (now - 61, now - 59):
            ring.add(DecisionRecord("n", job, t, t, Decision(Verdict.SKIP, Reason.NOT_LEADER), provisional=True))
    assert [r.provisional for r in host.decisions("claimed")] == [True, False]
    assert [r.provisional for r in host.decisions("other")] == [False, False]
    assert all(r.provisional for r in ring), "what is remembered stays open to a later word"


def test_a_report_without_nodes_ends_what_was_published() -> None:
    host = daemon_host(DecisionRing())
    assert isinstance(host, DaemonHost)
    report = FleetReport("gossip", ({"node_name": "a"},), 1.0)
    host.publish(report)
    assert host.fleet == {"gossip": report}
    host.publish(FleetReport("gossip", ()))
    assert host.fleet == {}


def test_the_ends_of_certificates_are_replaced_use_by_use() -> None:
    host = daemon_host(DecisionRing())
    assert isinstance(host, DaemonHost)
    host.certificates("gossip", [("ca.pem", 5.0), ("cert.pem", 6.0)])
    host.certificates("mesh", [("cert.pem", 7.0)])
    host.certificates("gossip", [("cert.pem", 9.0)])
    assert host.expiries == {("mesh", "cert.pem"): 7.0, ("gossip", "cert.pem"): 9.0}
    host.certificates("gossip", [])
    assert host.expiries == {("mesh", "cert.pem"): 7.0}
