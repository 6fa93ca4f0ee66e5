"""The contracts of lease, @reboot marks and claim log, over the stand-in and a real apiserver; elections too."""

from __future__ import annotations

import copy
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cronstable_k8s import CAPABILITIES
from cronstable_k8s.backend import KubernetesElection
from cronstable_k8s.settings import parse
from cronstable_k8s.store import KubernetesLeaseStore

from cronstable.api import Election, Holder, LeaseRecord, LeaseStore
from cronstable.testing.claims_contract import ClaimLogContract
from cronstable.testing.election_contract import ElectionContract
from cronstable.testing.fault_contract import ClaimFaultContract, LeaseFaultContract
from cronstable.testing.host import FakeHost
from cronstable.testing.lease_contract import LeaseDoor, LeaseStoreContract
from cronstable.testing.levels import Level, certify
from cronstable.testing.marks_contract import RebootMarksContract

NUMBERS: Iterator[int] = itertools.count()


def record_of(lease: Any) -> LeaseRecord | None:
    """What stands there, read by other means than the store's."""
    spec = lease["spec"]
    if not spec.get("holderIdentity"):
        return None
    term = json.loads(lease["metadata"]["annotations"]["cronstable.io/term"])
    holder = Holder.parse(spec["holderIdentity"])
    return LeaseRecord(holder, term["fence"], term["nonce"], float(spec["leaseDurationSeconds"]))


class StandInDoor:
    """Front and back door of the stand-in."""

    def __init__(self, server: Any, node: Any) -> None:
        self.server, self._node = server, node
        self._nodes: list[Any] = []
        self._down = False

    def store(self) -> LeaseStore:
        self._nodes.append(self._node(self.server, f"handle-{len(self._nodes)}"))
        self._nodes[-1].line.cut = "refused" if self._down else None
        store: LeaseStore = self._nodes[-1].store
        return store

    async def record(self) -> LeaseRecord | None:
        found = self.server.leases.get(("default", "cronstable-leader"))
        return None if found is None else record_of(found)

    async def delete(self) -> None:
        self.server.delete()

    async def garble(self) -> None:
        def change(lease: Any) -> None:
            lease["spec"]["holderIdentity"] = "gar#bage"
            lease["metadata"]["annotations"]["cronstable.io/term"] = '{"holder": "x#'

        self.server.edit(change)

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self._down = True
        for node in self._nodes:
            node.line.cut = "refused"
        yield
        self._down = False
        for node in self._nodes:
            node.line.cut = None

    @asynccontextmanager
    async def rollback(self) -> AsyncIterator[None]:
        """As after a restore of the etcd below: versions are counted a second time."""
        server = self.server
        before = copy.deepcopy((server.leases, server.version, server.history))
        yield
        server.leases, server.version, server.history = before


class RealDoor:
    """Front and back door of one Lease of a real apiserver."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._name = f"contract-{next(NUMBERS)}"
        self._line = _Cut(real.transport)

    def store(self) -> LeaseStore:
        store: KubernetesLeaseStore = self._real.store(self._name, transport=self._line)
        return store

    async def record(self) -> LeaseRecord | None:
        answer = await self._real.call("GET", self._name)
        return None if answer.status == 404 else record_of(json.loads(answer.content))

    async def delete(self) -> None:
        await self._real.call("DELETE", self._name)

    async def garble(self) -> None:
        lease = json.loads((await self._real.call("GET", self._name)).content)
        lease["spec"]["holderIdentity"] = "gar#bage"
        lease["metadata"]["annotations"]["cronstable.io/term"] = '{"holder": "x#'
        assert (await self._real.call("PUT", self._name, lease)).status == 200

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self._line.down = True
        yield
        self._line.down = False

    @asynccontextmanager
    async def rollback(self) -> AsyncIterator[None]:
        """As ``kubectl replace`` of a copy does: the same object with what it said then, in a new version."""
        before = json.loads((await self._real.call("GET", self._name)).content)
        yield
        now = json.loads((await self._real.call("GET", self._name)).content)
        before["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]
        assert (await self._real.call("PUT", self._name, before)).status == 200


class _Cut:
    """A transport that can be taken away."""

    def __init__(self, transport: Any) -> None:
        self._transport, self.down = transport, False

    async def request(self, *args: Any, **kw: Any) -> Any:
        if self.down:
            raise OSError("cut")
        return await self._transport.request(*args, **kw)

    def stream(self, *args: Any, **kw: Any) -> Any:
        return self._transport.stream(*args, **kw)


@pytest.fixture(params=["stand-in", pytest.param("real", marks=[pytest.mark.integration, pytest.mark.kubernetes])])
async def door(request: pytest.FixtureRequest, server: Any, node: Any, real: Any) -> AsyncIterator[LeaseDoor]:
    if request.param == "stand-in":
        yield StandInDoor(server(), node)
    else:
        made = RealDoor(await real())
        yield made
        await made.delete()


class TestKubernetesLease(LeaseStoreContract):
    """The lease; the fixture ``door`` is of this module."""


class TestKubernetesMarks(RebootMarksContract):
    """The marks."""


class TestKubernetesClaims(ClaimLogContract):
    """The claim log, which is inside the Lease."""

    lies_in_the_lease = True


class TestKubernetesLeaseFaults(LeaseFaultContract):
    """The lease while things go wrong."""


class TestKubernetesClaimFaults(ClaimFaultContract):
    """The claim log while things go wrong."""


def test_the_backend_is_certified_for_all_that_it_declares() -> None:
    assert certify(sys.modules[__name__], capabilities=CAPABILITIES).level is Level.FAULTS


class KubernetesWorld:
    """The backend as the daemon makes it. ``watching`` False: the role allows none, so that it polls."""

    def __init__(self, apiserver: Any, line: Any, path: str, *, watching: bool) -> None:
        self.server, self._line, self._watching = apiserver, line, watching
        if not watching:
            self.server.verbs -= {"watch", "list", "patch", "delete"}
        self.lines: dict[str, Any] = {}
        self.settings = parse({"kubeconfig": path, "clientLibrary": "http", "retryPeriodSeconds": 1})

    @property
    def bound(self) -> float:
        """leaseDuration + 1.2 x retry (DESIGN 6, L1), and what a request may take."""
        return 15 + 1.2 + 2.5

    def election(self, host: FakeHost) -> Election:
        self.lines[host.name] = self._line(self.server)
        host.http = self.lines[host.name]
        return KubernetesElection(host.context("kubernetes", self.settings), host, self.settings)

    def cut(self, name: str, *, silent: bool) -> None:
        self.lines[name].cut = "silent" if silent else "refused"

    def heal(self, name: str) -> None:
        self.lines[name].cut = None


@pytest.fixture
def proxied(tmp_path: Any) -> str:
    """A kubeconfig as for ``kubectl proxy``."""
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, namespace: default}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:8001'}}]\n"
    )
    return str(path)


class TestWatchingElection(ElectionContract):
    """The backend where a watch is allowed."""

    @pytest.fixture
    def make_world(self, server: Any, line: Any, proxied: str) -> Callable[[], KubernetesWorld]:
        return lambda: KubernetesWorld(server(), line, proxied, watching=True)


class TestPollingElection(ElectionContract):
    """The backend with the smallest role."""

    @pytest.fixture
    def make_world(self, server: Any, line: Any, proxied: str) -> Callable[[], KubernetesWorld]:
        return lambda: KubernetesWorld(server(), line, proxied, watching=False)
