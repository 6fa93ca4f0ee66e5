"""A shared directory whose locks, faults and clocks a test controls, and nodes that use it without any event loop."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cronstable_fs.layout import Layout
from cronstable_fs.lease import FilesystemLeaseStore
from cronstable_fs.life import KERNEL

from cronstable.api import Grant, Held, Holder, Instant, Seen
from cronstable.runtime.files import SystemFiles
from cronstable.testing.host import FakeHost

T = TypeVar("T")
ELECTION = "cluster/leader"
OP_TIMEOUT = 2.0


@pytest.fixture
def anyio_backend() -> str:
    """The backend that the daemon runs on."""
    return "asyncio"


class ManualClock:
    """Stands still, except that sleeping moves it. Each node has its own; ``wall`` may be skewed."""

    def __init__(self, wall: float = 1_800_000_000.0, boot: float = 1000.0) -> None:
        self.wall, self.boot = wall, boot

    def now(self) -> Instant:
        return Instant(self.wall, self.boot)

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds


class Died(BaseException):
    """The process was killed inside a system call."""


@dataclass
class Server:
    """The file server's side of the locks. ``owners``: inode to the descriptor that has the lock."""

    owners: dict[int, tuple[str, int]] = field(default_factory=dict)

    def forget(self) -> None:
        """What a restart does."""
        self.owners.clear()


class Disk:
    """One node's ``FileSystem`` over a real directory, with locks kept by ``Server``.

    ``before(n, name)`` runs ahead of call number n (from 1) of this node, ``after(n, name)`` behind it; both may raise.
    ``kernel``: a file in the place of the one that names the kernel.
    """

    def __init__(self, server: Server, node: str) -> None:
        self.server, self.node = server, node
        self.real = SystemFiles()
        self.before: Callable[[int, str], None] = lambda n, name: None
        self.after: Callable[[int, str], None] = lambda n, name: None
        self.calls: list[str] = []
        self.fds: set[int] = set()
        self.mount_table: str | None = None
        self.skew = 0.0
        self.dead = False
        self.kernel: Path | None = None

    def _call(self, name: str, call: Callable[[], T]) -> T:
        if self.dead:
            raise Died
        self.calls.append(name)
        number = len(self.calls)
        try:
            self.before(number, name)
            try:
                result = call()
            finally:
                self.after(number, name)
        except Died:
            self.die()
            raise
        return result

    def die(self) -> None:
        """The kernel closes what a dead process had open, and that frees its locks."""
        self.dead = True
        for fd in list(self.fds):
            self._drop(fd)
            os.close(fd)
        self.fds.clear()

    def _drop(self, fd: int) -> None:
        for inode, owner in list(self.server.owners.items()):
            if owner == (self.node, fd):
                del self.server.owners[inode]

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        def call() -> int:
            fd = self.real.open(path if path != KERNEL else str(self.kernel or path), flags, mode)
            self.fds.add(fd)
            return fd

        return self._call("open", call)

    def read(self, fd: int, n: int) -> bytes:
        return self._call("read", lambda: self.real.read(fd, n))

    def write(self, fd: int, data: bytes) -> int:
        return self._call("write", lambda: self.real.write(fd, data))

    def fsync(self, fd: int) -> None:
        # Counted and failed like any call, but nothing here outlives the power: a real sync would only cost time.
        self._call("fsync", lambda: None)

    def close(self, fd: int) -> None:
        def call() -> None:
            self._drop(fd)
            self.fds.discard(fd)
            self.real.close(fd)

        if fd in self.fds:
            try:
                self._call("close", call)
            except OSError:
                # A failed close has closed all the same.
                if fd in self.fds:
                    call()
                raise

    def lock(self, fd: int) -> bool:
        def call() -> bool:
            mine = (self.node, fd)
            return self.server.owners.setdefault(os.fstat(fd).st_ino, mine) == mine

        return self._call("lock", call)

    def unlock(self, fd: int) -> None:
        self._call("unlock", lambda: self._drop(fd))

    def replace(self, source: str, target: str) -> None:
        self._call("replace", lambda: self.real.replace(source, target))

    def link(self, source: str, target: str) -> None:
        self._call("link", lambda: self.real.link(source, target))

    def unlink(self, path: str) -> None:
        self._call("unlink", lambda: self.real.unlink(path))

    def makedirs(self, path: str, mode: int = 0o700) -> None:
        self._call("makedirs", lambda: self.real.makedirs(path, mode))

    def listdir(self, path: str) -> list[str]:
        return self._call("listdir", lambda: self.real.listdir(path))

    def mtime(self, path: str) -> float:
        return self._call("mtime", lambda: self.real.mtime(path) + self.skew)

    def inode(self, fd: int) -> tuple[int, int]:
        return self._call("inode", lambda: self.real.inode(fd))

    def mounts(self) -> str | None:
        return self.mount_table


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never really waits, wherever we are: also inside another one's system call."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("it waits for something")


class Node:
    """One process: a store with its own clock, view of the disk and identity."""

    def __init__(self, root: Path, server: Server, name: str, *, signs: bool = False) -> None:
        self.name, self.signs = name, signs
        self.clock = ManualClock()
        self.disk = Disk(server, name)
        self.host = FakeHost(self.clock, name, fs=self.disk)
        self.layout = Layout.of(str(root), "default", ELECTION)
        self.me = Holder(name, self.host.ids.token())
        self.store = self.fresh_store()

    def fresh_store(self, platform: str = "linux") -> FilesystemLeaseStore:
        return FilesystemLeaseStore(
            self.host,
            self.layout,
            ELECTION,
            ttl=15.0,
            op_timeout=OP_TIMEOUT,
            platform=platform,
            signs=self.signs,
        )

    def acquire(self, over: Seen | None = None, nonce: str | None = None) -> Any:
        return drive(self.store.acquire(self.me, 15.0, nonce=nonce or self.host.ids.token(), over=over))

    def win(self, over: Seen | None = None) -> Grant:
        answer = self.acquire(over)
        assert isinstance(answer, Held), answer
        return answer.grant

    def renew(self, grant: Grant, nonce: str | None = None) -> Any:
        return drive(self.store.renew(grant, nonce=nonce or self.host.ids.token()))

    def observe(self) -> Any:
        return drive(self.store.observe())

    def seen(self) -> Seen:
        answer = self.observe()
        assert isinstance(answer, Seen), answer
        return answer

    def release(self, grant: Grant, *returned: str) -> None:
        drive(self.store.release(grant, returned))

    def retire(self) -> None:
        drive(self.store.retire())


@dataclass
class Share:
    """A shared directory and the nodes that mount it."""

    root: Path
    server: Server = field(default_factory=Server)

    def node(self, name: str) -> Node:
        return Node(self.root, self.server, name)

    def mortal(self, name: str, kind: str = "ext4") -> Node:
        """A node that shows a sign of life, on a mount of this kind."""
        node = Node(self.root, self.server, name, signs=True)
        node.disk.mount_table = f"/dev/vda / {kind} rw 0 0\n"
        return node

    def signs(self) -> list[str]:
        """The files of those that live, or of the dead."""
        directory = self.root / "default" / "life" / "cluster%2Fleader"
        return sorted(os.listdir(directory)) if directory.exists() else []

    @property
    def lease(self) -> Path:
        return self.root / "default" / "leases" / "cluster%2Fleader.lease"

    def litter(self) -> list[str]:
        return sorted(os.listdir(self.root / "default" / "tmp"))


@pytest.fixture
def share(tmp_path: Path) -> Share:
    return Share(tmp_path / "share")


@pytest.fixture
def make_share(tmp_path: Path) -> Callable[[], Share]:
    """A fresh directory for each case of an exhaustive test."""
    numbers: Iterator[int] = iter(range(1_000_000))
    return lambda: Share(tmp_path / f"share-{next(numbers)}")


@pytest.fixture
def fail_at() -> Callable[[Disk, int, int], None]:
    """Let call number n of a node, counted from now, fail once with an errno before it takes effect."""

    def arm(disk: Disk, number: int, code: int) -> None:
        start = len(disk.calls)

        def before(n: int, name: str) -> None:
            if n == start + number:
                raise OSError(code, os.strerror(code))

        disk.before = before

    return arm


@pytest.fixture
def die_at() -> Callable[[Disk, int, bool], None]:
    """Kill the process at its call number n, counted from now: before the call took effect, or right after."""

    def arm(disk: Disk, number: int, effective: bool) -> None:
        start = len(disk.calls)

        def strike(n: int, name: str) -> None:
            if n == start + number:
                raise Died

        if effective:
            disk.after = strike
        else:
            disk.before = strike

    return arm


@pytest.fixture
def died() -> type[BaseException]:
    return Died


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, T]], T]:
    return drive


@pytest.fixture
def errnos() -> tuple[int, ...]:
    """What disks and mounts say on a bad day."""
    return (errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, errno.ENOTCONN)


class Storm:
    """Several worker processes on one lease, and what their answers must add up to."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def blow(self, paths: list[Path], operations: int, seed: int = 1) -> list[dict[str, Any]]:
        """Run one worker per path to its end; all ``Held`` answers, in no order."""
        script = Path(__file__).with_name("worker.py")
        outputs = [self.scratch / f"worker-{number}.out" for number in range(len(paths))]
        workers = []
        for number, (path, output) in enumerate(zip(paths, outputs, strict=True)):
            arguments = [sys.executable, str(script), str(path), f"w{number}", str(operations), str(seed + number)]
            with output.open("wb") as stdout, output.with_suffix(".err").open("wb") as stderr:
                workers.append(subprocess.Popen(arguments, stdout=stdout, stderr=stderr))
        try:
            codes = [worker.wait(timeout=180) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        errors = "".join(output.with_suffix(".err").read_text() for output in outputs)
        assert codes == [0] * len(paths), errors
        lines = [json.loads(line) for output in outputs for line in output.read_text().splitlines()]
        ends = [line for line in lines if line["kind"] == "end"]
        assert [end["unavailable"] for end in ends] == [0] * len(paths)
        return [line for line in lines if line["kind"] != "end"]

    def judge(self, helds: list[dict[str, Any]]) -> None:
        """Terms as one sequence: each fence is won once, and nobody holds an older one once a newer one was won."""
        wins = sorted((held for held in helds if held["kind"] == "win"), key=lambda held: held["fence"])
        assert len({win["fence"] for win in wins}) == len(wins), "a fence was given out twice"
        winner = {win["fence"]: win["who"] for win in wins}
        first_end_after: dict[int, float] = {}
        earliest = float("inf")
        for win in reversed(wins):
            first_end_after[win["fence"]] = earliest
            earliest = min(earliest, win["got"])
        for held in helds:
            assert winner[held["fence"]] == held["who"], "a term was renewed by somebody else"
            assert held["sent"] < first_end_after[held["fence"]], "an older term was held after a newer one was won"


@pytest.fixture
def storm(tmp_path: Path) -> Storm:
    return Storm(tmp_path)
