"""Real apiservers, and stores over them: one of our own on loopback, or whatever a kubeconfig names.

``make test-kubernetes`` says where they are; without, the tests with the marker ``kubernetes`` are not selected.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
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
ETCD = shutil.which("etcd") or "/usr/bin/etcd"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a real apiserver when nobody said where one is."""
    if BINARY or KUBECONFIG:
        return
    left_out = [item for item in items if item.get_closest_marker("kubernetes")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Cluster:
    """A kube-apiserver and its etcd on loopback; they end with their recorded processes only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.client, self.peer, self.port = free_ports(3)
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(str(directory / "ca.pem"))
        cert = self.ca.issue_cert("127.0.0.1", "localhost")
        cert.cert_chain_pems[0].write_to_path(str(directory / "tls.pem"))
        cert.private_key_pem.write_to_path(str(directory / "tls.key"))
        tokens = ["admin-token,admin,0,system:masters", "plain-token,cronstable,1,cronstable"]
        (directory / "tokens.csv").write_text("\n".join(tokens) + "\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.client, self.peer))
        command = [ETCD, "--data-dir", str(self.directory / "etcd"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}"]
        self._start("etcd", command)

    def start_apiserver(self) -> None:
        assert BINARY is not None
        d = self.directory
        command = [BINARY, "--etcd-servers", f"http://127.0.0.1:{self.client}", "--bind-address", "127.0.0.1"]
        command += ["--secure-port", str(self.port), "--service-cluster-ip-range", "10.96.0.0/16"]
        command += ["--tls-cert-file", f"{d}/tls.pem", "--tls-private-key-file", f"{d}/tls.key"]
        command += ["--client-ca-file", f"{d}/ca.pem", "--token-auth-file", f"{d}/tokens.csv"]
        command += ["--authorization-mode", "Node,RBAC", "--disable-admission-plugins", "ServiceAccount"]
        command += ["--endpoint-reconciler-type", "none", "--service-account-issuer", "https://localhost"]
        command += ["--service-account-key-file", f"{d}/tls.pem", "--service-account-signing-key-file", f"{d}/tls.key"]
        command += ["--cert-dir", str(d / "certs"), "--profiling=false", "--v=0"]
        self._start("apiserver", command)

    def _start(self, name: str, command: list[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def send(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def wait_ready(self, within: float = 90.0) -> None:
        """It answers, and has made the namespace that our Leases live in."""
        context = ssl.create_default_context(cafile=str(self.directory / "ca.pem"))
        pause, end = threading.Event(), time.monotonic() + within
        while not self._answers(context):
            assert time.monotonic() < end, (self.directory / "apiserver.log").read_text()[-2000:]
            pause.wait(0.1)

    def _answers(self, context: ssl.SSLContext) -> bool:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        try:
            headers = {"authorization": "Bearer admin-token"}
            connection.request("GET", "/api/v1/namespaces/default", headers=headers)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(20)

    def stop(self) -> None:
        for name in ("apiserver", "etcd"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                self.send(name, signal.SIGCONT)
                self.kill(name)

    def kubeconfig(self, token: str = "admin-token") -> Path:
        path = self.directory / f"{token}.yaml"
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "default"}}],
            "clusters": [{"name": "here", "cluster": {"server": self.url, "certificate-authority": "ca.pem"}}],
            "users": [{"name": "me", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One apiserver of our own for all tests; those that stop it start it again."""
    cluster = Cluster(tmp_path_factory.mktemp("kubernetes"))
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
