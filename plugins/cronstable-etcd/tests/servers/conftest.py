"""Real etcd servers and stores over them; they end with their recorded processes only."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from cronstable_etcd.gateway import Gateway
from cronstable_etcd.lease import EtcdLeaseStore
from cronstable_etcd.settings import TlsFiles
from cronstable_etcd.tls import Tls

from cronstable.api import Holder, LeaseRecord
from cronstable.runtime.http import HttpxClient
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.testing.host import FakeHost

ETCD = shutil.which("etcd") or shutil.which("etcd", path="/usr/bin")
ANY_KEY = {"key": base64.b64encode(b"x").decode()}


Ports = Callable[[int], list[int]]


class Server:
    """One member. Ends with its recorded process only."""

    def __init__(self, directory: Path, name: str, ports: tuple[int, int], scheme: str, extra: Sequence[str]) -> None:
        self.name, self.directory, self.extra = name, directory, extra
        self.url = f"{scheme}://127.0.0.1:{ports[0]}"
        self.peer = f"http://127.0.0.1:{ports[1]}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, initial: str) -> None:
        assert ETCD is not None
        command = [ETCD, "--name", self.name, "--data-dir", str(self.directory / self.name)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        command += ["--initial-cluster", initial, "--log-level", "error", *self.extra]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            self.process.wait(10)


class Cluster:
    """Real members, each of them at two of the ports."""

    def __init__(self, directory: Path, ports: Sequence[int], scheme: str = "http", extra: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        pairs = zip(ports[::2], ports[1::2], strict=True)
        self.members = [Server(directory, f"m{i}", pair, scheme, extra) for i, pair in enumerate(pairs)]
        self.initial = ",".join(f"{m.name}={m.peer}" for m in self.members)

    @property
    def urls(self) -> list[str]:
        return [member.url for member in self.members]

    def start(self) -> None:
        for member in self.members:
            member.start(self.initial)

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    async def call(
        self, path: str, body: Mapping[str, Any], *, only: Server | None = None, **kw: Any
    ) -> dict[str, Any]:
        """By other means than the code under test, at the first member that answers."""
        client = HttpxClient()
        try:
            for member in self.members if only is None else [only]:
                try:
                    answer = await client.request("POST", member.url + path, content=json.dumps(body).encode(), **kw)
                except OSError:
                    continue
                found: dict[str, Any] = json.loads(answer.content.split(b"\n")[0])
                return {"status": answer.status, **found}
            raise OSError("no member answers")
        finally:
            await client.close()

    async def ready(self, within: float = 30.0, **kw: Any) -> None:
        """A linearizable read works, which needs a leader."""
        with anyio.fail_after(within):
            while True:
                try:
                    if "error" not in await self.call("/v3/kv/range", ANY_KEY, timeout=2, **kw):
                        return
                except OSError:
                    pass
                await SystemClock().sleep(0.05)


@pytest.fixture(scope="session")
def etcd_binary() -> str:
    """The server, or a skip that says what is missing."""
    if ETCD is None:
        pytest.skip("no etcd on this machine: Debian's etcd-server makes these tests run")
    return ETCD


@pytest.fixture
def make_cluster(etcd_binary: str, tmp_path: Path, free_ports: Ports) -> Iterator[Callable[..., Cluster]]:
    """Start real clusters that are stopped whatever happens."""
    made: list[Cluster] = []

    def make(count: int = 1, **kw: Any) -> Cluster:
        cluster = Cluster(tmp_path / f"etcd-{len(made)}", free_ports(2 * count), **kw)
        made.append(cluster)
        cluster.start()
        return cluster

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture(scope="session")
def shared_etcd(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory, free_ports: Ports) -> Iterator[Cluster]:
    """One member for all tests that only need an election name of their own."""
    cluster = Cluster(tmp_path_factory.mktemp("etcd"), free_ports(2))
    cluster.start()
    yield cluster
    cluster.stop()


class Real:
    """A store over real members and everything it was made of."""

    def __init__(self, urls: Sequence[str], election: str, *, ttl: float = 15.0, post_timeout: float = 2.0, **kw: Any):
        self.client = HttpxClient()
        self.host = FakeHost(SystemClock(), "real", http=self.client)
        self.host.ids = SystemIds()  # type: ignore[assignment]
        self.tls = Tls(kw.get("files", TlsFiles()), self.host)
        self.gateway = Gateway(
            self.host, urls, post_timeout=post_timeout, tls=self.tls, credentials=kw.get("credentials")
        )
        self.store = EtcdLeaseStore(self.host, self.gateway, election, ttl=ttl, watch=kw.get("watch", 0.0))


@pytest.fixture
async def real() -> AsyncIterator[Callable[..., Real]]:
    """Make stores over real members; their connections are closed at the end."""
    made: list[Real] = []

    def make(urls: Sequence[str], election: str = "cronstable/leader", **kw: Any) -> Real:
        made.append(Real(urls, election, **kw))
        return made[-1]

    yield make
    for one in made:
        await one.client.close()


@pytest.fixture
def read_back() -> Callable[[Mapping[bytes, bytes], bytes], LeaseRecord | None]:
    """The record from bare keys, by other means than the store's."""

    def read(keys: Mapping[bytes, bytes], leader: bytes) -> LeaseRecord | None:
        if leader not in keys:
            return None
        if leader + b"/term" not in keys:
            return LeaseRecord(Holder(keys[leader].decode(), ""), 0, "", 0.0)
        term = json.loads(keys[leader + b"/term"])
        holder = Holder.parse(term["holder"])
        assert holder.name.encode() == keys[leader] or keys[leader] == b"garbage"
        return LeaseRecord(holder, term["fence"], term["nonce"], term["ttl"])

    return read


ROOT = {"name": "root", "password": "r00t"}


async def enable_auth(cluster: Any, **kw: Any) -> None:
    """A root, and a user ``cron`` that may read and write below ``cron/`` only."""
    end = {"key": base64.b64encode(b"cron/").decode(), "range_end": base64.b64encode(b"cron0").decode()}
    for path, body in (
        ("user/add", ROOT),
        ("user/grant", {"user": "root", "role": "root"}),
        ("role/add", {"name": "elector"}),
        ("role/grant", {"name": "elector", "perm": {"permType": "READWRITE", **end}}),
        ("user/add", {"name": "cron", "password": "s3cret"}),
        ("user/grant", {"user": "cron", "role": "elector"}),
        ("enable", {}),
    ):
        answer = await cluster.call(f"/v3/auth/{path}", body, timeout=20, **kw)
        assert answer["status"] == 200, (path, answer)


@pytest.fixture
def with_users() -> Callable[..., Awaitable[None]]:
    """Switch authentication on; afterwards ``cron`` may do what a daemon needs below ``cron/``."""
    return enable_auth


class UsersCluster(Cluster):
    """One member with authentication, talked to as root."""

    token: str | None = None

    async def as_root(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.token is None:
            await self.ready()
            await enable_auth(self)
            self.token = (await self.call("/v3/auth/authenticate", ROOT, timeout=20))["token"]
        return await self.call(path, body, timeout=20, headers={"authorization": self.token})


@pytest.fixture(scope="session")
def shared_users_etcd(
    etcd_binary: str, tmp_path_factory: pytest.TempPathFactory, free_ports: Ports
) -> Iterator[UsersCluster]:
    """One member with authentication for all tests that only need an election name of their own."""
    cluster = UsersCluster(tmp_path_factory.mktemp("etcd-users"), free_ports(2))
    cluster.start()
    yield cluster
    cluster.stop()
