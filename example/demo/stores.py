"""What the daemons of the demo elect over: a directory, an etcd that the demo starts for itself, or each other."""

from __future__ import annotations

import http.client
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

TTL = 5
STAND_IN = Path(__file__).parents[2] / "plugins" / "cronstable-k8s" / "tests" / "apiserver.py"
"""A kube-apiserver as far as Leases go: a real one is no thing to start beside a demo."""
ETCD_DEADLINE = 30.0


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Store(Protocol):
    """``title``: in a few words; ``where``: the lease, for whoever wants to look."""

    title: str
    where: str

    def section(self, name: str) -> str:
        """Backend and section of the node ``name``, as YAML below ``cluster``."""
        ...

    def start(self) -> None:
        """Be there; also again after ``stop``."""
        ...

    def stop(self) -> None:
        """Be away. Raises ``DemoError`` where that cannot be shown."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Directory:
    """A shared directory."""

    title = "one shared directory"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "shared"
        self.where = f"the lease is below {self._path}"

    def section(self, name: str) -> str:
        """See ``Store``."""
        return f'  backend: filesystem\n  filesystem:\n    path: "{self._path}"\n    ttl: {TTL}\n'

    def start(self) -> None:
        """See ``Store``."""
        self._path.mkdir(exist_ok=True)

    def stop(self) -> None:
        """See ``Store``."""
        raise DemoError("only a store that is a server can be taken away: make demo-etcd or demo-kubernetes")

    def close(self) -> None:
        """Nothing was started."""


class Etcd:
    """One member with data below ``directory``, as the one of example/etcd/docker-compose.yml."""

    title = "one etcd"

    def __init__(self, directory: Path, port: int, peer_port: int) -> None:
        binary = shutil.which("etcd") or shutil.which("etcd", path="/usr/bin:/usr/local/bin")
        if binary is None:
            raise DemoError("there is no etcd on this machine: Debian has it in etcd-server, others at etcd.io")
        self._port = port
        self._log = directory / "etcd.log"
        self._url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        self._command = [binary, "--data-dir", str(directory / "etcd"), "--name", "demo", "--log-level", "warn"]
        self._command += ["--listen-client-urls", self._url, "--advertise-client-urls", self._url]
        self._command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._command += ["--initial-cluster", f"demo={peer}"]
        self._process: subprocess.Popen[bytes] | None = None
        self.where = f"who leads: etcdctl --endpoints {self._url} get --prefix cronstable/leader   log {self._log}"

    def section(self, name: str) -> str:
        """See ``Store``."""
        return f"  backend: etcd\n  etcd:\n    endpoints:\n      - {self._url}\n    ttl: {TTL}\n"

    def start(self) -> None:
        """See ``Store``; returns once it answers."""
        if self._process is not None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + ETCD_DEADLINE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"etcd does not answer; its log is {self._log}")
            time.sleep(0.1)

    def stop(self) -> None:
        """See ``Store``."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """See ``Store``."""
        self.stop()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=1)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Peers:
    """No store: the nodes ask each other, over mutual TLS with certificates for trying out."""

    where = "who agrees with whom: /cluster of each"

    def __init__(self, directory: Path, ports: Mapping[str, int], command: list[str], *, spread: bool) -> None:
        self.title = "each other" + (", a node for each job" if spread else "")
        self._ports: dict[str, int] = {}
        self._papers = directory / "certs"
        self._command = command
        self._spread = spread
        self.add(ports)

    def add(self, ports: Mapping[str, int]) -> None:
        """So many more members, by name; the sections of all others are different ones now."""
        done = subprocess.run(
            [*self._command, "certs", str(self._papers), *ports],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise DemoError(f"no certificates: {done.stderr.strip()}")
        self._ports |= ports

    def peers_of(self, name: str) -> dict[str, str]:
        """The other members' names, by the address that ``name`` asks them at."""
        return {f"127.0.0.1:{port}": peer for peer, port in self._ports.items() if peer != name}

    def section(self, name: str) -> str:
        """See ``Store``."""
        others = [f"    - host: {address}\n" for address in self.peers_of(name)]
        tls = f"{{ca: {self._papers}/ca.pem, cert: {self._papers}/{name}.pem, key: {self._papers}/{name}.key}}"
        return (
            f"  listen: 127.0.0.1:{self._ports[name]}\n  tls: {tls}\n  peers:\n{''.join(others)}"
            f"  interval: 1\n  connectTimeout: 2\n  electLeader: true\n  observability: {{}}\n"
            f"  distribution: {'spread' if self._spread else 'single-leader'}\n"
        )

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """See ``Store``."""
        raise DemoError("there is no store to take away; kill (k) or freeze (s) a majority instead")

    def close(self) -> None:
        """Nothing was started."""


class Apiserver:
    """The stand-in for an apiserver, asked as through ``kubectl proxy``. It keeps its Lease in memory."""

    title = "one apiserver (a stand-in)"

    def __init__(self, directory: Path, port: int) -> None:
        if not STAND_IN.is_file():
            raise DemoError(f"there is no {STAND_IN}: the demo over an apiserver needs a whole checkout")
        self._port = port
        self._log = directory / "apiserver.log"
        self._kubeconfig = directory / "kubeconfig"
        self._kubeconfig.write_text(
            "current-context: demo\n"
            "contexts: [{name: demo, context: {cluster: demo, namespace: default}}]\n"
            f"clusters: [{{name: demo, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n",
            encoding="utf-8",
        )
        self._process: subprocess.Popen[bytes] | None = None
        lease = f"http://127.0.0.1:{port}/apis/coordination.k8s.io/v1/namespaces/default/leases/cronstable-leader"
        self.where = f"who leads: curl -s {lease}   log {self._log}"

    def section(self, name: str) -> str:
        """See ``Store``."""
        return (
            f'  backend: kubernetes\n  kubernetes:\n    kubeconfig: "{self._kubeconfig}"\n'
            f"    leaseDurationSeconds: {TTL}\n    renewDeadlineSeconds: 3.5\n    retryPeriodSeconds: 1\n"
            "    clientLibrary: http\n"
        )

    def start(self) -> None:
        """See ``Store``; returns once it answers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            return
        command = [sys.executable, str(STAND_IN), "--port", str(self._port), "--verbs", "get,update,create,watch"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + ETCD_DEADLINE
        while b"ready" not in self._log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the apiserver does not answer; its log is {self._log}")
            time.sleep(0.1)

    def stop(self) -> None:
        """See ``Store``: silent, since what it knows would go with its process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """See ``Store``."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
