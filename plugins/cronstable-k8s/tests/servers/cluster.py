"""A kube-apiserver of our own on loopback, with an etcd below it."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import trustme
import yaml

ETCD = shutil.which("etcd") or "/usr/bin/etcd"


class Cluster:
    """A kube-apiserver and its etcd on loopback; they end with their recorded processes only."""

    def __init__(self, directory: Path, binary: str, ports: Sequence[int]) -> None:
        self.binary = binary
        self.directory = directory
        self.client, self.peer, self.port = ports
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
        d = self.directory
        command = [self.binary, "--etcd-servers", f"http://127.0.0.1:{self.client}", "--bind-address", "127.0.0.1"]
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
