"""The contract of a state store and of its leases, over the model and real etcd with and without authentication."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cronstable_etcd.gateway import Credentials
from cronstable_etcd.state import EtcdStateStore, _data

from cronstable.api import SecretSource, StateStore
from cronstable.testing.state_contract import StateDoor, StateStoreContract

NUMBERS: Iterator[int] = itertools.count()


def b64(text: bytes) -> str:
    return base64.b64encode(text).decode()


class ModelState:
    """A store over the model."""

    def __init__(self, model: Any, node: Any) -> None:
        self.model, self._node = model, node
        self._nodes: list[Any] = []
        self._back = 0.0
        self._down = False

    def store(self) -> StateStore:
        node = self._node(self.model, f"handle-{len(self._nodes)}")
        self._nodes.append(node)
        node.host.clock.step_wall(self._back)
        node.line.cut = "refused" if self._down else None
        store: StateStore = EtcdStateStore(node.host, node.gateway, node.tls, "cronstable/state", "the model")
        return store

    def step_clock(self, seconds: float) -> None:
        self._back += seconds
        for node in self._nodes:
            node.host.clock.step_wall(seconds)

    async def aside(self) -> Sequence[bytes]:
        return [_data(s.value) for key, s in self.model.keys.items() if key.startswith(b"cronstable/state/aside/")]

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self._down = True
        for node in self._nodes:
            node.line.cut = "refused"
        yield
        self._down = False
        for node in self._nodes:
            node.line.cut = None


class RealState:
    """A store over a real etcd."""

    def __init__(self, cluster: Any, make_real: Any, credentials: Credentials | None = None) -> None:
        self._cluster, self._make, self._credentials = cluster, make_real, credentials
        self._prefix = f"cron/state-{next(NUMBERS)}"
        self._gateways: list[Any] = []
        self._down = False

    def store(self) -> StateStore:
        real = self._make(self._cluster.urls, post_timeout=20.0, credentials=self._credentials)
        self._gateways.append(real.gateway)
        if self._down:
            real.gateway._endpoints = ("http://127.0.0.1:1",)
        store: StateStore = EtcdStateStore(real.host, real.gateway, real.tls, self._prefix, "a real etcd")
        return store

    def step_clock(self, seconds: float) -> None:
        """No clock is read."""

    async def aside(self) -> Sequence[bytes]:
        below = f"{self._prefix}/aside/".encode()
        body = {"key": b64(below), "range_end": b64(below[:-1] + b"0")}
        if self._credentials is not None:
            found = await self._cluster.as_root("/v3/kv/range", body)
        else:
            found = await self._cluster.call("/v3/kv/range", body, timeout=20)
        return [_data(base64.b64decode(kv["value"])) for kv in found.get("kvs", [])]

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self._down = True
        for gateway in self._gateways:
            gateway._endpoints = ("http://127.0.0.1:1",)
        yield
        self._down = False
        for gateway in self._gateways:
            gateway._endpoints = tuple(self._cluster.urls)


@pytest.fixture(params=["model", *(pytest.param(n, marks=pytest.mark.integration) for n in ("etcd",))])
async def door(request: pytest.FixtureRequest, model: Any, node: Any, real: Any) -> StateDoor:
    if request.param == "model":
        return ModelState(model(), node)
    if request.param == "etcd":
        cluster = request.getfixturevalue("shared_etcd")
        await cluster.ready()
        return RealState(cluster, real)
    cluster = request.getfixturevalue("shared_users_etcd")
    await cluster.as_root("/v3/kv/range", {"key": "eA=="})
    return RealState(cluster, real, Credentials("cron", SecretSource(value="s3cret")))


class TestEtcdState(StateStoreContract):
    """The store; the fixture ``door`` is of this module."""
