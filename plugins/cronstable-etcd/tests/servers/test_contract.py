"""The contracts of lease, @reboot marks and claim log, over the model and a real etcd; elections in virtual time."""

from __future__ import annotations

import base64
import copy
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cronstable_etcd import CAPABILITIES
from cronstable_etcd.backend import make
from cronstable_etcd.gateway import Credentials
from cronstable_etcd.settings import parse

from cronstable.api import Election, LeaseRecord, LeaseStore, SecretSource
from cronstable.testing.claims_contract import ClaimLogContract
from cronstable.testing.election_contract import ElectionContract, LeaseWorld
from cronstable.testing.fault_contract import ClaimFaultContract, LeaseFaultContract
from cronstable.testing.host import FakeHost
from cronstable.testing.lease_contract import LeaseDoor, LeaseStoreContract
from cronstable.testing.levels import Level, certify
from cronstable.testing.marks_contract import RebootMarksContract

NUMBERS: Iterator[int] = itertools.count()


class ModelDoor:
    """Front and back door of the model."""

    def __init__(self, model: Any, node: Any, read: Any) -> None:
        self.model, self._node, self._read = model, node, read
        self._nodes: list[Any] = []
        self._down = False

    def store(self) -> LeaseStore:
        self._nodes.append(self._node(self.model, f"handle-{len(self._nodes)}"))
        self._nodes[-1].line.cut = "refused" if self._down else None
        store: LeaseStore = self._nodes[-1].store
        return store

    async def record(self) -> LeaseRecord | None:
        keys = {key: stored.value for key, stored in self.model.keys.items()}
        record: LeaseRecord | None = self._read(keys, b"cronstable/leader")
        return record

    async def delete(self) -> None:
        self.model.revision += 1
        self.model.remove(b"cronstable/leader", self.model.revision)

    async def garble(self) -> None:
        key = base64.b64encode(b"cronstable/leader").decode()
        value = base64.b64encode(b"garbage").decode()
        self.model.kv_txn({"success": [{"request_put": {"key": key, "value": value}}]})

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self._down = True
        for node in self._nodes:
            node.line.cut = "refused"
        yield
        self._down = False
        for node in self._nodes:
            node.line.cut = None

    async def expire_now(self) -> None:
        self.model.revoke(self.model.keys[b"cronstable/leader"].lease)

    @asynccontextmanager
    async def rollback(self) -> AsyncIterator[None]:
        """As after a restore of a snapshot: revisions are counted a second time."""
        model = self.model
        before = copy.deepcopy((model.keys, model.leases, model.deleted, model.revision))
        yield
        model.keys, model.leases, model.deleted, model.revision = before


class RealDoor:
    """Front and back door of one election name of a real etcd."""

    def __init__(self, cluster: Any, make_real: Any, read: Any, credentials: Credentials | None = None) -> None:
        self._cluster, self._make, self._read, self._credentials = cluster, make_real, read, credentials
        self._name = f"cron/contract-{next(NUMBERS)}/leader"
        self._gateways: list[Any] = []

    def store(self) -> LeaseStore:
        real = self._make(self._cluster.urls, self._name, post_timeout=20.0, credentials=self._credentials)
        self._gateways.append(real.gateway)
        store: LeaseStore = real.store
        return store

    async def record(self) -> LeaseRecord | None:
        found = await self._everything()
        keys = {base64.b64decode(kv["key"]): base64.b64decode(kv["value"]) for kv in found}
        record: LeaseRecord | None = self._read(keys, self._name.encode())
        return record

    async def delete(self) -> None:
        await self._call("kv/deleterange", {"key": self._key})

    async def garble(self) -> None:
        value = base64.b64encode(b"garbage").decode()
        await self._call("kv/put", {"key": self._key, "value": value})

    async def expire_now(self) -> None:
        (leader,) = [kv for kv in await self._everything() if kv["key"] == self._key]
        await self._call("lease/revoke", {"ID": leader["lease"]})

    @asynccontextmanager
    async def rollback(self) -> AsyncIterator[None]:
        """As after a restore of a copy of the keys, whose leases still live."""
        before = await self._everything()
        yield
        await self._call("kv/deleterange", self._prefix)
        puts = [{"request_put": {key: kv[key] for key in ("key", "value", "lease") if key in kv}} for kv in before]
        await self._call("kv/txn", {"success": puts})

    async def _everything(self) -> list[dict[str, Any]]:
        found = await self._call("kv/range", self._prefix)
        keys: list[dict[str, Any]] = found.get("kvs", [])
        return keys

    async def _call(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._credentials is not None:
            answer: dict[str, Any] = await self._cluster.as_root(f"/v3/{name}", body)
        else:
            answer = await self._cluster.call(f"/v3/{name}", body, timeout=20)
        assert answer["status"] == 200, answer
        return answer

    @property
    def _key(self) -> str:
        return base64.b64encode(self._name.encode()).decode()

    @property
    def _prefix(self) -> dict[str, str]:
        return {"key": self._key, "range_end": base64.b64encode(self._name.encode() + b"0").decode()}

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        before = [gateway._endpoints for gateway in self._gateways]
        for gateway in self._gateways:
            gateway._endpoints = ("http://127.0.0.1:1",)
        yield
        for gateway, endpoints in zip(self._gateways, before, strict=True):
            gateway._endpoints = endpoints


@pytest.fixture(params=["model", pytest.param("etcd", marks=pytest.mark.integration)])
async def door(request: pytest.FixtureRequest, model: Any, node: Any, real: Any, read_back: Any) -> LeaseDoor:
    if request.param == "model":
        return ModelDoor(model(), node, read_back)
    cluster = request.getfixturevalue("shared_etcd")
    await cluster.ready()
    return RealDoor(cluster, real, read_back)


class TestEtcdLease(LeaseStoreContract):
    """The lease; the fixture ``door`` is of this module."""


class TestEtcdMarks(RebootMarksContract):
    """The marks."""


class TestEtcdClaims(ClaimLogContract):
    """The claim log."""


class TestEtcdLeaseFaults(LeaseFaultContract):
    """The lease while things go wrong."""

    expires_itself = True


class TestEtcdClaimFaults(ClaimFaultContract):
    """The claim log while things go wrong."""


def test_the_backend_is_certified_for_all_that_it_declares() -> None:
    assert certify(sys.modules[__name__], capabilities=CAPABILITIES).level is Level.FAULTS


@pytest.mark.integration
class TestEtcdClaimsOfAUser(ClaimLogContract):
    """The claim log of an etcd with authentication, by a user that may touch nothing but its own prefix."""

    @pytest.fixture
    async def door(self, shared_users_etcd: Any, real: Any, read_back: Any) -> LeaseDoor:
        await shared_users_etcd.as_root("/v3/kv/range", {"key": "eA=="})
        return RealDoor(shared_users_etcd, real, read_back, Credentials("cron", SecretSource(value="s3cret")))


class TestStoreUnderTheDriver(ElectionContract):
    """The store alone, which the host polls."""

    @pytest.fixture
    def make_world(self, model: Any, node: Any) -> Callable[[], LeaseWorld]:
        def world() -> LeaseWorld:
            etcd = model()

            def store(host: FakeHost) -> LeaseStore:
                made: LeaseStore = node(etcd, host.name).store
                return made

            return LeaseWorld(store, capabilities=CAPABILITIES)

        return world


class EtcdWorld:
    """The backend as the daemon makes it, watch included."""

    def __init__(self, etcd: Any, node: Any) -> None:
        self._etcd, self._node = etcd, node
        self.lines: dict[str, Any] = {}
        self.settings = parse({"endpoints": ["http://member-1:2379"], "ttl": 15})

    @property
    def bound(self) -> float:
        """ttl + 2 s (DESIGN 6, L1), and what a request may take."""
        return 15 + 2 + 1.8

    def election(self, host: FakeHost) -> Election:
        self.lines[host.name] = self._node(self._etcd, host.name).line
        host.http = self.lines[host.name]
        return make(host.context("etcd", self.settings), host)

    def cut(self, name: str, *, silent: bool) -> None:
        self.lines[name].cut = "silent" if silent else "refused"

    def heal(self, name: str) -> None:
        self.lines[name].cut = None


class TestEtcdElection(ElectionContract):
    """The backend."""

    @pytest.fixture
    def make_world(self, model: Any, node: Any) -> Callable[[], EtcdWorld]:
        return lambda: EtcdWorld(model(), node)
