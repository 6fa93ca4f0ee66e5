"""Three real daemons and an apiserver: the leader killed, told to stop, and the apiserver silent for a while.

The apiserver is the stand-in of the plugin's tests, as a process of its own with TLS and a token; ``make
test-kubernetes`` adds a real one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cronstable_k8s import log

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[2] / "plugins" / "cronstable-k8s" / "tests"
REAL = os.environ.get("CRONSTABLE_KUBE_APISERVER")
DURATION, RETRY = 5, 1
SLACK = 10.0
"""For a busy two-core machine; what is measured belongs in benchmarks, these tests only must not hang."""

Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]


class Apiserver:
    """What daemons elect over, and its back door. ``token_file``: may be replaced under them."""

    bound = DURATION + 1.2 * RETRY

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self.kubeconfig = directory / "kubeconfig"
        self.token_file = directory / "token"
        self.process: subprocess.Popen[bytes] | None = None

    def section(self, i: int) -> str:
        return (
            f"  backend: kubernetes\n  kubernetes:\n    kubeconfig: {self.kubeconfig}\n    leaseName: live\n"
            f"    leaseDurationSeconds: {DURATION}\n    renewDeadlineSeconds: 3.5\n    retryPeriodSeconds: {RETRY}\n"
            "    clientLibrary: http\n"
        )

    def write_kubeconfig(self, token: str) -> None:
        self.token_file.write_text(token)
        self.kubeconfig.write_text(
            "current-context: c\n"
            "contexts: [{name: c, context: {cluster: c, user: u, namespace: default}}]\n"
            "clusters: [{name: c, cluster: {certificate-authority: ca.pem, "
            f"server: 'https://127.0.0.1:{self.port}'}}}}]\n"
            "users: [{name: u, user: {tokenFile: token}}]\n"
        )

    def take_away(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def give_back(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def lease(self) -> Any:
        """As ``kubectl get lease live -o json``."""
        url = f"https://127.0.0.1:{self.port}/apis/coordination.k8s.io/v1/namespaces/default/leases/live"
        headers = {"authorization": f"Bearer {self.token_file.read_text()}"}
        with httpx.Client(verify=_trusting(self.directory / "ca.pem"), trust_env=False) as client:
            return client.get(url, headers=headers).json()

    def records(self) -> list[bytes]:
        """The claim log as it stands."""
        found, damage = log.decode(self.lease()["metadata"]["annotations"].get("cronstable.io/claims"))
        assert damage == ""
        return list(found.records)


def _trusting(ca: Path) -> Any:
    return ssl.create_default_context(cafile=str(ca))


def stand_in(directory: Path, port: int) -> Apiserver:
    made = Apiserver(directory, port)
    ca = trustme.CA()
    cert = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    cert.cert_chain_pems[0].write_to_path(str(directory / "tls.pem"))
    cert.private_key_pem.write_to_path(str(directory / "tls.key"))
    made.write_kubeconfig("token-1")
    command = [sys.executable, str(TESTS / "apiserver.py"), "--port", str(port), "--token", "token-1"]
    command += ["--token", "token-2", "--cert", str(directory / "tls.pem"), "--key", str(directory / "tls.key")]
    command += ["--verbs", "get,update,create,watch"]
    made.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert made.process.stdout is not None
    assert made.process.stdout.readline() == b"ready\n"
    return made


def real(directory: Path, ports: list[int]) -> tuple[Apiserver, Any]:
    spec = importlib.util.spec_from_file_location("cronstable_k8s_cluster", TESTS / "servers" / "cluster.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cluster = module.Cluster(directory, REAL, ports)
    cluster.start_etcd()
    cluster.start_apiserver()
    cluster.wait_ready()
    made = Apiserver(directory, cluster.port)
    made.write_kubeconfig("admin-token")
    made.process = cluster.processes["apiserver"]
    return made, cluster


@pytest.fixture(scope="module", params=["stand-in", "real"] if REAL else ["stand-in"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]
) -> Iterator[Apiserver]:
    """The standing fleet of the live tests elects over this."""
    directory = tmp_path_factory.mktemp("apiserver")
    if request.param == "real":
        made, cluster = real(directory, free_ports(3))
        try:
            yield made
        finally:
            cluster.stop()
        return
    made = stand_in(directory, *free_ports(1))
    assert made.process is not None
    try:
        yield made
    finally:
        made.give_back()
        made.process.kill()
        made.process.wait(10)
        assert made.process.stdout is not None
        made.process.stdout.close()


def grown(fleet: Fleet, by: int) -> Callable[[], object]:
    count = len(fleet.occurrences())
    return lambda: len(fleet.occurrences()) >= count + by


def past(seconds: float) -> Callable[[], object]:
    at = time.monotonic() + seconds
    return lambda: time.monotonic() > at


def test_leaders_come_and_go_the_apiserver_falls_silent_and_each_second_is_started_once(
    fleet: Fleet, store: Apiserver, waiting: Wait, rounds: int, written_off: Callable[[Any], set[str]]
) -> None:
    for _ in range(max(1, rounds // 2)):
        old = fleet.wait_for_leader(30)
        assert store.lease()["spec"]["holderIdentity"].startswith(f"{old.name}#")
        assert old.cluster()["lease"]["name"] == "live"
        old.send(signal.SIGKILL)
        old.wait(10)
        fleet.wait_for_leader(store.bound + SLACK, other_than=old)
        waiting(grown(fleet, 7), 30, "the new leader to catch up")
        old.start()
        fleet.wait_until_whole()

        old = fleet.wait_for_leader(30)
        before = old.log.stat().st_size
        old.send(signal.SIGTERM)
        fleet.wait_for_leader(store.bound + SLACK, other_than=old)
        assert old.wait(20) == 0
        # At once: the others saw the release, they did not have to wait for the Lease to stand still.
        assert "was not released and runs out by itself" not in old.log.read_bytes()[before:].decode()
        waiting(grown(fleet, 3), 30, "the new leader to go on")
        old.start()
        fleet.wait_until_whole()

        store.take_away()
        waiting(lambda: not fleet.leaders(), DURATION + SLACK, "the leader to step down")
        waiting(past(3), 10, "three seconds more")
        store.give_back()
        fleet.wait_until_whole(store.bound + 3 * SLACK)
        waiting(grown(fleet, 10), 30, "what was due meanwhile, and some more")

    due, starts = fleet.account()
    assert [at for at, count in starts.items() if count > 1] == []
    assert due - set(starts) <= written_off(store)
    rows = [(int(who.split("/")[1]), who.split("/")[2]) for who, _, at in fleet.occurrences() if at >= fleet.since]
    assert [fence for fence, _ in rows] == sorted(fence for fence, _ in rows)
    # A leader whose term outlives the silence goes on with it: the fence names the term.
    assert len({fence for fence, _ in rows}) >= 2
    assert any(late == "1" for _, late in rows), "an outage that nobody had to catch up"
    assert fleet.two_leaders_at() == []
    assert json.loads(store.records()[-1])["v"] == 1
