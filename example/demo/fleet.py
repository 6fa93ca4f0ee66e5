"""Cronstable daemons on this machine that share one store: their files, their processes, their API."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stores import Apiserver, DemoError, Directory, Etcd, Peers, Store

MOST_NODES = 10
FIRST_PORT = 8080
BACKENDS = ("filesystem", "etcd", "gossip", "kubernetes")
LEADER_JOB = "leader-every-second"
OTHER_JOBS = "other-jobs.yaml"
"""One job of it has another schedule, so that it is another job set."""
JOBS = (LEADER_JOB, "prefer-every-5-seconds", "all-every-10-seconds")
START_DEADLINE = 60.0
STOP_DEADLINE = 10.0
ASK_TIMEOUT = 0.5
PORTS = range(16_000, 20_000)
"""Below what systems give to outgoing connections: one of those could have a port between its choice and its use."""
_others = iter([*PORTS[os.getpid() % len(PORTS) :], *PORTS[: os.getpid() % len(PORTS)]])
"""Those that nobody asked for by number: none is given out twice, and another demo most likely begins elsewhere."""

_JOBS = """\
# The job set. All nodes include this one file, so they have the same job-set ID.
defaults:
  environment:
    - key: DEMO_RUNS
      value: "{runs}"
jobs:
  - name: leader-every-second
    command: &note |
      echo "$CRONSTABLE_RUN_ID $CRONSTABLE_SCHEDULED_AT $CRONSTABLE_NODE $CRONSTABLE_JOB_NAME" >> "$DEMO_RUNS"
    schedule: "* * * * * * *"
    clusterPolicy: Leader
  - name: prefer-every-5-seconds
    command: *note
    schedule: "*/5 * * * * * *"
    clusterPolicy: PreferLeader
  - name: all-every-10-seconds
    command: *note
    schedule: "*/10 * * * * * *"
    clusterPolicy: EveryNode
"""

_NODE = """\
# {name}: who it is, where the lease lives, where its API listens.
include:
  - {jobs}
cluster:
  nodeName: {called}
{section}web:
  listen:
    - http://127.0.0.1:{port}
"""


@dataclass(slots=True)
class Node:
    """One daemon. ``stopped``: SIGSTOP was sent and SIGCONT was not."""

    name: str
    port: int
    config: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False

    @property
    def url(self) -> str:
        """Where its API listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether its process exists."""
        return self.process is not None and self.process.poll() is None

    def get(self, path: str) -> Any:
        """The JSON that the API answers with, None when it does not answer."""
        if not self.alive or self.stopped:
            return None
        # A plain connection: the proxy that the environment may name must not see requests to this machine.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_TIMEOUT)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


class Fleet:
    """The nodes, what they elect over, and the temporary directory they live in."""

    def __init__(
        self, command: list[str], backend: str, first_port: int = FIRST_PORT, count: int = 3, *, spread: bool = False
    ) -> None:
        self._command = command
        self.directory = Path(tempfile.mkdtemp(prefix="cronstable-demo-"))
        self.leases = backend != "gossip"
        self.runs = self.directory / "runs.log"
        self.runs.touch()
        names = [f"node-{chr(97 + i)}" for i in range(count)]
        self.store = self._make_store(backend, names, spread=spread)
        jobs = _JOBS.format(runs=self.runs)
        (self.directory / "jobs.yaml").write_text(jobs, encoding="utf-8")
        (self.directory / OTHER_JOBS).write_text(jobs.replace("*/5", "*/7"), encoding="utf-8")
        self.nodes: list[Node] = []
        self._add_nodes(names, free_ports(first_port, count))

    def _add_nodes(self, names: list[str], ports: list[int]) -> None:
        self.nodes += [
            Node(name, port, self.directory / f"{name}.yaml", self.directory / f"{name}.log")
            for name, port in zip(names, ports, strict=True)
        ]
        for node in self.nodes:
            self.write(node)

    def write(self, node: Node, *, called: str | None = None, jobs: str = "jobs.yaml") -> bool:
        """The configuration of ``node``, which may go by another name or have other jobs; whether it is another one."""
        section = self.store.section(node.name)
        text = _NODE.format(name=node.name, called=called or node.name, jobs=jobs, section=section, port=node.port)
        if node.config.exists() and node.config.read_text(encoding="utf-8") == text:
            return False
        node.config.write_text(text, encoding="utf-8")
        return True

    def grow(self, count: int) -> list[Node]:
        """Nodes up to ``count`` in all, which are started; the others are told of them. Raises ``DemoError``."""
        if not isinstance(self.store, Peers):
            raise DemoError("only nodes that list each other have to be told of more: --backend gossip")
        old, names = list(self.nodes), [f"node-{chr(97 + i)}" for i in range(len(self.nodes), count)]
        self.store.add(dict(zip(names, free_ports(0, len(names)), strict=True)))
        self._add_nodes(names, free_ports(0, len(names)))
        for node in old:
            self.signal(node, signal.SIGHUP)
        new = self.nodes[len(old) :]
        for node in new:
            self.start(node)
        return new

    def _make_store(self, backend: str, names: list[str], *, spread: bool) -> Store:
        if backend == "filesystem":
            return Directory(self.directory)
        try:
            if backend == "gossip":
                ports = dict(zip(names, free_ports(0, len(names)), strict=True))
                return Peers(self.directory, ports, self._command, spread=spread)
            if backend == "kubernetes":
                return Apiserver(self.directory, *free_ports(0, 1))
            return Etcd(self.directory, *free_ports(0, 2))
        except DemoError:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def start(self, node: Node) -> None:
        """Start the daemon of ``node``; its output goes to its log file."""
        with node.log.open("ab") as log:
            # A session of its own: Ctrl-C on the terminal is ours to handle, in order.
            node.process = subprocess.Popen(
                [*self._command, "-c", str(node.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node.stopped = False

    def start_all(self) -> None:
        """Start the store and the nodes that do not run, and wait until each says that it is ready."""
        self.store.start()
        for node in self.nodes:
            if not node.alive:
                self.start(node)
        deadline = time.monotonic() + START_DEADLINE
        waiting = [node for node in self.nodes if not node.stopped]
        while waiting:
            waiting = [node for node in waiting if node.get("/readyz") is None]
            for node in waiting:
                if not node.alive:
                    raise DemoError(f"{node.name} ended at once; its log says:\n{tail(node.log)}")
            if waiting and time.monotonic() > deadline:
                names = ", ".join(node.name for node in waiting)
                raise DemoError(f"not ready after {START_DEADLINE:g} s: {names}\n{tail(waiting[0].log)}")
            time.sleep(0.1 if waiting else 0)

    def signal(self, node: Node, number: signal.Signals) -> None:
        """Send a signal to the daemon of ``node``, and to nobody else."""
        if node.process is None:
            return
        node.process.send_signal(number)  # does nothing once the process was waited for
        if number is signal.SIGKILL:
            node.process.wait()
        elif number in (signal.SIGSTOP, signal.SIGCONT):
            node.stopped = number is signal.SIGSTOP

    def close(self, *, keep: bool = False) -> None:
        """End every daemon that was started here and remove the directory."""
        for node in self.nodes:
            if node.alive:
                self.signal(node, signal.SIGTERM)
                self.signal(node, signal.SIGCONT)
        deadline = time.monotonic() + STOP_DEADLINE
        for node in self.nodes:
            if node.process is None:
                continue
            try:
                node.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.signal(node, signal.SIGKILL)
        self.store.close()
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)


def free_ports(first: int, count: int) -> list[int]:
    """So many ports: ``first`` and those after it where they are free, others where not; 0: any."""
    others = filter(_is_free, _others)
    if not first:
        return [next(others) for _ in range(count)]
    wanted = range(first, first + count)
    return [port if _is_free(port) else next(other for other in others if other not in wanted) for port in wanted]


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        # As a server does it: a port that only a closed connection still remembers counts as free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError:
            return False
        return True


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a text file."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({path} cannot be read: {os.strerror(error.errno or 0)})"
