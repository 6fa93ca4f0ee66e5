"""How late runs start while the state store is well, hangs, refuses or is frozen: by the stamps of the jobs themselves.

Run: python benchmarks/lateness.py [SECONDS [ROUNDS]]

Each of ROUNDS times one daemon after another runs 20 jobs each second for SECONDS. Its store is taken away once it
works and stays away until the end, so that the moment of the failure is part of it. The hanging directory is a FUSE
mount that nobody serves, over the directory of the store: needs root. etcd: Debian's etcd-server.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

JOBS = 20
PATIENCE = 60.0
JOB = """\
  - name: job-{number}
    command: 'echo "$CRONSTABLE_SCHEDULED_AT $EPOCHREALTIME" >> {stamps}'
    shell: /bin/bash
    schedule: '* * * * * * *'
    captureStdout: true
"""
EXTRAS = (
    "",
    "    onMissed: run-once\n",
    "    onlyIfLastSucceeded: true\n",
    "    archiveOutput: true\n",
)


class Store(Protocol):
    """A ``state`` section, and how to take the store away and give it back."""

    section: str

    def take_away(self) -> None: ...
    def give_back(self) -> None: ...


class Well:
    """Nothing happens to it."""

    def __init__(self, section: str) -> None:
        self.section = section

    def take_away(self) -> None:
        """It stays."""

    def give_back(self) -> None:
        """It was never away."""


class Hanging:
    """A directory below which every access waits for an answer that does not come."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1
        self.section = f"state:\n  path: {directory}\n"

    def take_away(self) -> None:
        """Mount a FUSE file system of which nobody reads the requests."""
        self._fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"nobody", bytes(self._directory), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount", str(self._directory))

    def give_back(self) -> None:
        """What waits gets an error."""
        os.close(self._fd)
        ctypes.CDLL(None).umount2(bytes(self._directory), 2)


class Full:
    """A directory in which everything fails at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.section = f"state:\n  path: {directory}\n"

    def take_away(self) -> None:
        """A file stands where the directory was."""
        self._directory.rename(self._directory.with_name("away"))
        self._directory.write_text("")

    def give_back(self) -> None:
        """The directory again."""
        self._directory.unlink()
        self._directory.with_name("away").rename(self._directory)


class Etcd:
    """One member. ``how``: the signal that takes it away."""

    def __init__(self, directory: Path, how: signal.Signals | None) -> None:
        self._how = how
        client, peer = (f"http://127.0.0.1:{port}" for port in _ports(2))
        self.section = f"state:\n  backend: etcd\n  etcd:\n    endpoints: [{client}]\n    prefix: benchmark\n"
        command = ["etcd", "--name", "m", "--data-dir", str(directory / "etcd"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=-3)

    def take_away(self) -> None:
        """Stopped it accepts connections and says nothing; killed it refuses them."""
        if self._how is not None:
            self._process.send_signal(self._how)

    def give_back(self) -> None:
        """For good."""
        self._process.kill()
        self._process.wait(PATIENCE)


@dataclass
class Figures:
    """``late``: seconds by which runs started late. ``grown``: MiB of the daemon over the failure, by round."""

    late: list[float] = field(default_factory=list)
    missing: int = 0
    grown: list[float] = field(default_factory=list)
    noticed: bool = False

    def row(self, name: str) -> str:
        """As it is printed."""
        rank = statistics.quantiles(self.late, n=1000)
        grown = max(self.grown)
        return (
            f"{name:<28}{len(self.late):>7}{self.missing:>9}{1000 * rank[499]:>9.1f}{1000 * rank[989]:>9.1f}"
            f"{1000 * max(self.late):>9.1f}{grown:>10.1f}   {'failure noticed' if self.noticed else ''}"
        )


HEAD = f"{'store':<28}{'starts':>7}{'missing':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'grown MiB':>10}"


@contextlib.contextmanager
def daemon(directory: Path, section: str, stamps: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that answers."""
    jobs = "".join(JOB.format(number=n, stamps=stamps) + EXTRAS[n % len(EXTRAS)] for n in range(JOBS))
    web = directory / "web.sock"
    config = directory / "cronstable.yaml"
    config.write_text(f"web:\n  listen: ['unix://{web}']\n{section}jobs:\n{jobs}")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cronstable", "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    try:
        end = time.monotonic() + PATIENCE
        while not _ready(web):
            if time.monotonic() > end or process.poll() is not None:
                raise SystemExit((directory / "log").read_text())
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


def measure(kind: str, seconds: float, figures: Figures) -> None:
    """One daemon, one failure."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        stamps, store = directory / "stamps", _store(kind, directory)
        taken = False
        try:
            with daemon(directory, store.section, stamps) as process:
                time.sleep(5)
                begun, size = time.time(), _resident(process.pid)
                store.take_away()
                taken = True
                time.sleep(seconds)
                figures.grown.append(_resident(process.pid) - size)
                ended = time.time() - 1
                time.sleep(1)
        finally:
            if taken:
                store.give_back()
        figures.noticed |= "state: the store failed" in (directory / "log").read_text()
        rows = [line.split() for line in stamps.read_text().splitlines()]
    pairs = [(datetime.fromisoformat(at).timestamp(), float(stamp)) for at, stamp in rows]
    found = [(at, stamp) for at, stamp in pairs if begun < at <= ended]
    figures.late += [stamp - at for at, stamp in found]
    due = int(ended) - int(begun)
    figures.missing += JOBS * due - len(found)


def _store(kind: str, directory: Path) -> Store:
    path = directory / "state"
    path.mkdir()
    match kind:
        case "none":
            return Well("")
        case "directory, well":
            return Well(f"state:\n  path: {path}\n")
        case "directory, failing":
            return Full(path)
        case "directory, hung":
            return Hanging(path)
        case "etcd, well":
            return Etcd(directory, None)
        case "etcd, stopped":
            return Etcd(directory, signal.SIGSTOP)
        case _:
            return Etcd(directory, signal.SIGKILL)


def kinds() -> list[str]:
    """What can be measured here."""
    found = ["none", "directory, well", "directory, failing"]
    if os.geteuid() == 0 and os.path.exists("/dev/fuse"):
        found.append("directory, hung")
    else:
        print("a directory that hangs is left out: it takes root and /dev/fuse")
    if shutil.which("etcd"):
        found += ["etcd, well", "etcd, stopped", "etcd, refusing"]
    else:
        print("etcd is left out: it is not installed")
    return found


def _ready(web: Path) -> bool:
    connection = http.client.HTTPConnection("localhost", timeout=5)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(web))
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _resident(pid: int) -> float:
    """MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found is not None else 0.0


def _ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def main() -> None:
    """Measure them in turn, so that a busy minute of the machine meets them all."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    figures = {kind: Figures() for kind in kinds()}
    for _ in range(rounds):
        for kind, found in figures.items():
            measure(kind, seconds, found)
    print(HEAD)
    for kind, found in figures.items():
        print(found.row(kind))


if __name__ == "__main__":
    main()
