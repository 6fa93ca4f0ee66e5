"""Real apiservers, and stores over them: one of our own on loopback, or whatever a kubeconfig names.

``make test-kubernetes`` says where they are; without, the tests with the marker ``kubernetes`` are not selected.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cronstable_k8s.access import Access
from cronstable_k8s.leases import Leases
from cronstable_k8s.settings import parse
from cronstable_k8s.store import KubernetesLeaseStore
from cronstable_k8s.transport import HttpTransport

from cronstable.api import HttpResponse
from cronstable.runtime.http import HttpxClient
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.host import FakeHost

BINARY = os.environ.get("CRONSTABLE_KUBE_APISERVER")
KUBECONFIG = os.environ.get("CRONSTABLE_KUBECONFIG")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a real apiserver when nobody said where one is."""
    if BINARY or KUBECONFIG:
        return
    left_out = [item for item in items if item.get_closest_marker("kubernetes")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _load() -> Any:
    path = Path(__file__).with_name("cluster.py")
    spec = importlib.util.spec_from_file_location("cronstable_k8s_cluster", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]) -> Iterator[Any]:
    """One apiserver of our own for all tests; those that stop it start it again."""
    cluster = _load().Cluster(tmp_path_factory.mktemp("kubernetes"), BINARY, free_ports(3))
    try:
        cluster.start_etcd()
        cluster.start_apiserver()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


class Real:
    """A store over a real apiserver and everything it was made of."""

    def __init__(self, kubeconfig: Path) -> None:
        self.client = HttpxClient()
        self.host = FakeHost(SystemClock(), "real", http=self.client)
        self.host.ids = SystemIds()  # type: ignore[assignment]
        self.host.threads = ThreadLanes()  # type: ignore[assignment]
        self.access = Access(parse({"kubeconfig": str(kubeconfig)}), self.host)
        self.transport = HttpTransport(self.host, self.access)
        self.namespace = "default"

    async def load(self) -> Real:
        await self.access.load()
        self.namespace = await self.access.namespace()
        return self

    def store(self, name: str, *, timeout: float = 20.0, transport: Any = None, **kw: Any) -> KubernetesLeaseStore:
        leases = Leases(self.host, name, timeout=timeout)
        leases.connect(transport or self.transport, self.namespace)
        return KubernetesLeaseStore(self.host, leases, ttl=60.0, **kw)

    async def call(self, method: str, name: str, body: Mapping[str, Any] | bytes = b"", **kw: Any) -> HttpResponse:
        """By other means than the code under test."""
        path = kw.pop("path", LEASES.format(self.namespace) + (f"/{name}" if name else ""))
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.transport.request(method, path, content, timeout=20)


@pytest.fixture
async def real(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Make clients of the real apiserver: ``await real()``; their connections are closed at the end."""
    made: list[Real] = []

    async def make(token: str = "admin-token") -> Real:
        path = Path(KUBECONFIG) if KUBECONFIG else request.getfixturevalue("cluster").kubeconfig(token)
        made.append(await Real(path).load())
        return made[-1]

    yield make
    for one in made:
        await one.client.close()


@pytest.fixture
def foreign() -> bool:
    """The apiserver is not of our own."""
    return bool(KUBECONFIG)


@pytest.fixture
def kubeconfig(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """The path of a kubeconfig of the real apiserver."""

    def path(token: str = "admin-token") -> Path:
        own: Path = Path(KUBECONFIG) if KUBECONFIG else request.getfixturevalue("cluster").kubeconfig(token)
        return own

    return path
