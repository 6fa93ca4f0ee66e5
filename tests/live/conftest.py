"""A fleet of real daemons on this machine, watched through their own /cluster answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TTL = 5
TAKEOVER_BOUND = TTL + 1 + max(1.0, TTL / 3)
"""L1 for the filesystem backend (DESIGN 6), in seconds."""
PER_SECOND = "* * * * * * *"
SLACK = 5.0
"""For a busy two-core machine; what is measured belongs in benchmarks, these tests only must not hang."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def get(port: int, path: str, timeout: float = 5.0) -> tuple[int, bytes] | None:
    """One GET; None when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@dataclass
class Node:
    """One daemon: its files, its process, and the answers it gave."""

    name: str
    port: int
    config: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None
    answers: list[tuple[float, bool]] = field(default_factory=list)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cronstable", "-c", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "NODE": self.name},
            )

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def wait(self, timeout: float) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def cluster(self) -> dict[str, Any] | None:
        answer = get(self.port, "/cluster")
        return json.loads(answer[1]) if answer is not None and answer[0] == 200 else None


class Fleet:
    """Daemons that share one election. ``backend_of``: backend and section of node i, as YAML below ``cluster``."""

    def __init__(self, directory: Path, count: int, backend_of: Callable[[int], str], jobs: str) -> None:
        self.stamps = directory / "stamps"
        self.nodes: list[Node] = []
        self._stop = threading.Event()
        for i, port in enumerate(free_ports(count)):
            name = f"node-{chr(97 + i)}"
            config = directory / f"{name}.yaml"
            config.write_text(
                f"web:\n  listen:\n    - http://127.0.0.1:{port}\n"
                f"cluster:\n  nodeName: {name}\n{backend_of(i)}"
                f"jobs:\n{jobs.replace('STAMPS', str(self.stamps))}"
            )
            self.nodes.append(Node(name, port, config, directory / f"{name}.log"))
        self._threads = [threading.Thread(target=self._poll, args=(n,), daemon=True) for n in self.nodes]

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for thread in self._threads:
            thread.start()

    def _poll(self, node: Node) -> None:
        while not self._stop.wait(0.02):
            view = node.cluster()
            if view is not None:
                node.answers.append((time.monotonic(), bool(view.get("is_leader"))))

    def leaders(self) -> list[Node]:
        """Nodes that answer right now that they lead."""
        return [n for n in self.nodes if n.alive and (n.cluster() or {}).get("is_leader")]

    def wait_for_leader(self, within: float, *, other_than: Node | None = None) -> Node:
        found: list[Node] = []

        def look() -> bool:
            now = time.monotonic()
            recent = [n for n in self.nodes if n is not other_than and n.answers and now - n.answers[-1][0] < 0.5]
            found[:] = [n for n in recent if n.answers[-1][1]]
            return bool(found)

        wait_until(look, within, "a leader")
        return found[0]

    def wait_until_whole(self, within: float = 30.0) -> None:
        """Every node answers, is quorate, and exactly one leads."""

        def whole() -> bool:
            views = [n.cluster() for n in self.nodes]
            return (
                all(v is not None and v.get("quorate") for v in views)
                and sum(bool(v and v["is_leader"]) for v in views) == 1
            )

        wait_until(whole, within, "a whole cluster")

    def two_leaders_at(self) -> list[tuple[float, float, str, str]]:
        """Stretches of time in which two nodes both answered that they lead."""
        spans = [(n.name, span) for n in self.nodes for span in _spans(n.answers)]
        return [
            (max(a[0], b[0]), min(a[1], b[1]), x, y)
            for i, (x, a) in enumerate(spans)
            for y, b in spans[i + 1 :]
            if x != y and max(a[0], b[0]) < min(a[1], b[1])
        ]

    def occurrences(self) -> list[tuple[str, str, float]]:
        """Starts of the stamping job: node, scheduled time, when it ran."""
        if not self.stamps.exists():
            return []
        rows = [line.split() for line in self.stamps.read_text().splitlines()]
        return [(r[0], r[1], float(r[2])) for r in rows if len(r) == 3]

    def stop(self) -> None:
        self._stop.set()
        for node in self.nodes:
            if node.alive:
                with contextlib.suppress(ProcessLookupError):
                    node.send(signal.SIGCONT)
                    node.send(signal.SIGKILL)
                node.wait(10)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(10)


def _spans(answers: list[tuple[float, bool]]) -> list[tuple[float, float]]:
    """First and last answer of each unbroken stretch of claims; a gap over half a second breaks one."""
    spans: list[tuple[float, float]] = []
    open_ = False
    for at, leads in answers:
        if leads and open_ and at - spans[-1][1] <= 0.5:
            spans[-1] = (spans[-1][0], at)
        elif leads:
            spans.append((at, at))
        open_ = leads
    return spans


def wait_until(condition: Callable[[], object], within: float, what: str) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + within
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {within:g} s for {what}")
        pause.wait(0.02)


STAMP = (
    "  - name: tick\n"
    "    command: 'echo \"$NODE $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)\" >> STAMPS'\n"
    f'    schedule: "{PER_SECOND}"\n'
    "    clusterPolicy: Leader\n"
)


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Build fleets that are stopped whatever happens; their logs are shown when a test fails."""
    made: list[Fleet] = []

    def make(
        count: int = 3,
        *,
        path_of: Callable[[int], Path] | None = None,
        backend_of: Callable[[int], str] | None = None,
        jobs: str = STAMP,
    ) -> Fleet:
        shared = tmp_path / "shared"
        shared.mkdir(exist_ok=True)

        def over_files(i: int) -> str:
            path = path_of(i) if path_of is not None else shared
            return f"  backend: filesystem\n  filesystem:\n    path: {path}\n    ttl: {TTL}\n"

        fleet = Fleet(tmp_path, count, backend_of or over_files, jobs)
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        fleet.stop()
        for node in fleet.nodes:
            if node.log.exists():
                print(f"--- {node.name}\n{node.log.read_text()[-4000:]}")


@pytest.fixture(name="free_ports")
def free_ports_fixture() -> Callable[[int], list[int]]:
    """``free_ports`` for test modules."""
    return free_ports


@pytest.fixture
def waiting() -> Callable[[Callable[[], object], float, str], None]:
    """``wait_until`` for test modules."""
    return wait_until


@pytest.fixture
def rounds() -> int:
    """How often a fault is repeated: a few times in CI, ten in ``make endurance``."""
    return int(os.environ.get("CRONSTABLE_ENDURANCE_ROUNDS", "2"))
