"""A fleet of real daemons on this machine, watched through their own /cluster answers."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

TTL = 5
PER_SECOND = "* * * * * * *"
SLACK = 5.0
"""For a busy two-core machine; what is measured belongs in benchmarks, these tests only must not hang."""


Ports = Callable[[int], list[int]]


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


@dataclass(frozen=True)
class Answer:
    """Whether a node said that it leads: it did or did not at some time between these two."""

    asked: float
    received: float
    leads: bool


@dataclass
class Node:
    """One daemon: its files, its process, and the answers it gave."""

    name: str
    port: int
    config: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None
    answers: list[Answer] = field(default_factory=list)

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

    def __init__(self, directory: Path, ports: list[int], backend_of: Callable[[int], str], jobs: str) -> None:
        self.stamps = directory / "stamps"
        self.since = 0.0
        self.nodes: list[Node] = []
        self._stop = threading.Event()
        for i, port in enumerate(ports):
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
            asked = time.monotonic()
            view = node.cluster()
            if view is not None:
                node.answers.append(Answer(asked, time.monotonic(), bool(view.get("is_leader"))))

    def leaders(self) -> list[Node]:
        """Nodes that answer right now that they lead."""
        return [n for n in self.nodes if n.alive and (n.cluster() or {}).get("is_leader")]

    def wait_for_leader(self, within: float, *, other_than: Node | None = None) -> Node:
        found: list[Node] = []

        def look() -> bool:
            now = time.monotonic()
            recent = [n for n in self.nodes if n is not other_than and n.answers and now - n.answers[-1].received < 0.5]
            found[:] = [n for n in recent if n.answers[-1].leads]
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

    def heal(self) -> None:
        """Start what is dead and wake what is frozen."""
        for node in self.nodes:
            if node.alive:
                node.send(signal.SIGCONT)
            else:
                node.start()

    def account(self) -> tuple[set[str], Counter[str]]:
        """Every second from the first start of this story to the last, and how often each was started."""
        since = _written(datetime.fromtimestamp(self.since, UTC))
        starts = Counter(scheduled for _, scheduled, _ in self.occurrences() if scheduled >= since)
        times = sorted(datetime.fromisoformat(text) for text in starts)
        seconds = int((times[-1] - times[0]).total_seconds())
        return {_written(times[0] + timedelta(seconds=n)) for n in range(seconds)}, starts

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


def _written(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _spans(answers: list[Answer]) -> list[tuple[float, float]]:
    """Each unbroken stretch of claims, as far as it is certain: from the first one heard to the last one asked for.

    A gap over half a second breaks one.
    """
    stretches: list[list[Answer]] = []
    before: Answer | None = None
    for answer in answers:
        if answer.leads and before is not None and before.leads and answer.received - before.received <= 0.5:
            stretches[-1].append(answer)
        elif answer.leads:
            stretches.append([answer])
        before = answer
    return [(stretch[0].received, stretch[-1].asked) for stretch in stretches]


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


class Store(Protocol):
    """What a fleet elects over. ``bound``: seconds within which a dead leader is replaced (DESIGN 6, L1)."""

    bound: float

    def section(self, i: int) -> str:
        """Backend and section of node i, as YAML below ``cluster``."""
        ...

    def take_away(self) -> None: ...
    def give_back(self) -> None: ...
    def records(self) -> list[bytes]:
        """The claim log as it stands."""
        ...

    def numbered(self) -> dict[int, bytes]:
        """The same, by number."""
        ...


def written_off(store: Store) -> set[str]:
    """What the log itself calls claimed and not started."""
    skips = [skip for record in store.records() for skip in json.loads(record).get("x", [])]
    return {_written(datetime.fromtimestamp(at, UTC)) for _, at, reason in skips if reason == "claimed-not-started"}


class Directory:
    """A shared directory. With the ``topology`` "shared" a dead leader's ttl has to run out, as on a mount."""

    bound = TTL + 1 + max(1.0, TTL / 3)

    def __init__(self, path: Path, topology: str = "auto") -> None:
        self.path = path
        self._topology = topology
        self._away = path.with_name("away")
        path.mkdir(exist_ok=True)

    def section(self, i: int) -> str:
        where = f"    path: {self.path}\n    ttl: {TTL}\n    topology: {self._topology}\n"
        return f"  backend: filesystem\n  filesystem:\n{where}"

    def take_away(self) -> None:
        os.rename(self.path, self._away)
        self.path.write_text("")

    def give_back(self) -> None:
        self.path.unlink()
        os.rename(self._away, self.path)

    def records(self) -> list[bytes]:
        return list(self.numbered().values())

    def numbered(self) -> dict[int, bytes]:
        found = self.path.glob("default/claims/*/" + "[0-9]" * 12)
        return {int(record.name): record.read_bytes() for record in found}


class Etcd:
    """One member, whose data outlives its process."""

    bound = TTL + 2.0
    election = "live/leader"

    def __init__(self, binary: str, directory: Path, port: int, peer_port: int) -> None:
        self._binary, self._directory = binary, directory
        self.port, self._peer_port = port, peer_port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def section(self, i: int) -> str:
        where = f"    endpoints:\n      - {self.url}\n    electionName: {self.election}\n    ttl: {TTL}\n"
        return f"  backend: etcd\n  etcd:\n{where}"

    def give_back(self) -> None:
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [self._binary, "--name", "m", "--data-dir", str(self._directory / "etcd"), "--log-level", "error"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=None)

    def take_away(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def call(self, path: str, body: dict[str, str]) -> dict[str, Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("POST", path, json.dumps(body))
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def pairs(self, key: bytes, end: bytes = b"") -> list[tuple[str, bytes]]:
        """What stands at ``key``, or from it to before ``end``, by key."""
        body = {"key": base64.b64encode(key).decode(), "range_end": base64.b64encode(end).decode()}
        found = self.call("/v3/kv/range", body) or {}
        return [(base64.b64decode(kv["key"]).decode(), base64.b64decode(kv["value"])) for kv in found.get("kvs", [])]

    def values(self, key: bytes, end: bytes = b"") -> list[bytes]:
        """What stands at ``key``, or from it to before ``end``."""
        return [value for _, value in self.pairs(key, end)]

    def records(self) -> list[bytes]:
        return list(self.numbered().values())

    def numbered(self) -> dict[int, bytes]:
        log = f"{self.election}/log/".encode()
        return {int(key[-12:]): value for key, value in self.pairs(log, log[:-1] + b"0")}

    @property
    def leader(self) -> str | None:
        """What ``etcdctl get`` shows."""
        return next((value.decode() for value in self.values(self.election.encode())), None)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, free_ports: Ports) -> Iterator[Etcd]:
    """A real etcd, or a skip that says what is missing."""
    binary = shutil.which("etcd") or shutil.which("etcd", path="/usr/bin")
    if binary is None:
        pytest.skip("no etcd on this machine: Debian's etcd-server makes these tests run")
    server = Etcd(binary, tmp_path_factory.mktemp("etcd"), *free_ports(2))
    server.give_back()
    try:
        wait_until(lambda: server.call("/v3/kv/range", {"key": "eA=="}), 30, "etcd to answer")
        yield server
    finally:
        server.take_away()


@pytest.fixture(scope="module", params=["filesystem", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Each store that keeps claims."""
    if request.param == "filesystem":
        return Directory(tmp_path_factory.mktemp("store") / "shared", "shared")
    made: Store = request.getfixturevalue("etcd")
    return made


@pytest.fixture(params=["filesystem", "etcd"])
def fresh_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store that keeps claims, without a log in it."""
    if request.param == "filesystem":
        return Directory(tmp_path / "shared")
    made: Etcd = request.getfixturevalue("etcd")
    made.election = f"live/{tmp_path.name}"
    return made


@pytest.fixture(scope="module")
def standing_fleet(store: Store, tmp_path_factory: pytest.TempPathFactory, free_ports: Ports) -> Iterator[Fleet]:
    """Three daemons over ``store`` that stay for all stories of a module: a start and a fresh log cost ten seconds."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), free_ports(3), store.section, STAMP_FACTS)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def fleet(standing_fleet: Fleet) -> Iterator[Fleet]:
    """The standing fleet, whole and at work, whatever became of it in the story before; its story begins here."""
    fleet = standing_fleet
    fleet.heal()
    fleet.wait_until_whole()
    count = len(fleet.occurrences())
    # A log that just began starts nothing for five seconds.
    wait_until(lambda: len(fleet.occurrences()) >= count + 2, 30, "an occurrence")
    fleet.since = time.time()
    yield fleet
    for node in fleet.nodes:
        print(f"--- {node.name}\n{node.log.read_text()[-4000:]}")


STAMP_FACTS = (
    "  - name: tick\n"
    "    command: |\n"
    '      echo "$NODE/$CRONSTABLE_FENCE/$CRONSTABLE_CATCHUP $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)" >> STAMPS\n'
    f'    schedule: "{PER_SECOND}"\n'
    "    clusterPolicy: Leader\n"
)


@pytest.fixture
def make_fleet(tmp_path: Path, free_ports: Ports) -> Iterator[Callable[..., Fleet]]:
    """Build fleets that are stopped whatever happens; their logs are shown when a test fails."""
    made: list[Fleet] = []

    def make(
        count: int = 3,
        *,
        path_of: Callable[[int], Path] | None = None,
        backend_of: Callable[[int], str] | None = None,
        jobs: str = STAMP,
    ) -> Fleet:
        def over_files(i: int) -> str:
            return Directory(path_of(i) if path_of is not None else tmp_path / "shared").section(i)

        fleet = Fleet(tmp_path, free_ports(count), backend_of or over_files, jobs)
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        fleet.stop()
        for node in fleet.nodes:
            if node.log.exists():
                print(f"--- {node.name}\n{node.log.read_text()[-4000:]}")


@pytest.fixture
def waiting() -> Callable[[Callable[[], object], float, str], None]:
    """``wait_until`` for test modules."""
    return wait_until


@pytest.fixture
def rounds() -> int:
    """How often a fault is repeated: a few times in CI, ten in ``make endurance``."""
    return int(os.environ.get("CRONSTABLE_ENDURANCE_ROUNDS", "2"))


@pytest.fixture(name="written_off")
def written_off_fixture() -> Callable[[Store], set[str]]:
    """``written_off`` for test modules."""
    return written_off
