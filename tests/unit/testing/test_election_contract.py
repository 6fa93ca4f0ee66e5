"""The host's lease driver passes the election contract, and the contract catches broken elections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cronstable.core.view import ClusterView
from cronstable.plugin.protocols import Election, Host, Observable, Started
from cronstable.testing.election_contract import ElectionContract, ElectionWorld, LeaseWorld, MakeWorld
from cronstable.testing.host import FakeHost
from cronstable.testing.kit import violations
from cronstable.testing.memory import MemoryLease, MemoryLeaseStore
from cronstable.testing.planted import GivesAHeldLeaseAway, ObservesFromMemory, RenewsAnything


def memory_world(kind: type[MemoryLeaseStore] = MemoryLeaseStore, ttl: float = 15.0, wall: bool = True) -> MakeWorld:
    def make() -> ElectionWorld:
        lease = MemoryLease()
        return LeaseWorld(lambda host: kind(lease, clock=host.clock if wall else None), ttl=ttl)

    return make


class TestLeaseBackend(ElectionContract):
    @pytest.fixture(params=[(15.0, True), (15.0, False), (3.0, True)], ids=["wall expiry", "no expiry", "shortest ttl"])
    def make_world(self, request: pytest.FixtureRequest) -> MakeWorld:
        ttl, wall = request.param
        return memory_world(ttl=ttl, wall=wall)


@pytest.mark.parametrize("kind", [GivesAHeldLeaseAway, ObservesFromMemory, RenewsAnything])
def test_the_contract_catches_an_election_over_a_broken_store(kind: type[MemoryLeaseStore]) -> None:
    assert violations(ElectionContract, lambda: memory_world(kind))


class ByItsWinFlag:
    """An election that goes by having won and never looks at its deadline."""

    def __init__(self, honest: Election) -> None:
        self._honest = honest
        self._won = False

    def view(self) -> ClusterView:
        view = self._honest.view()
        self._won = view.is_leader or (self._won and view.leader in (None, view.node_name))
        return replace(view, is_leader=self._won)

    async def run(self, host: Host, *, task_status: Started) -> None:
        await self._honest.run(host, task_status=task_status)

    async def wait_change(self) -> None:
        assert isinstance(self._honest, Observable)
        await self._honest.wait_change()


class WorldByWinFlag(LeaseWorld):
    def election(self, host: FakeHost) -> Election:
        return ByItsWinFlag(super().election(host))


def test_the_contract_catches_a_driver_without_deadlines() -> None:
    def make() -> ElectionWorld:
        lease = MemoryLease()
        return WorldByWinFlag(lambda host: MemoryLeaseStore(lease, clock=host.clock))

    assert "test_a_leader_that_was_suspended_does_not_lead_on_waking" in violations(ElectionContract, lambda: make)
