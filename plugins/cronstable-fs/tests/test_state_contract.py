"""The contract of a state store over a real directory, with real threads; and of its leases."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cronstable_fs.seal import Sealed, unseal
from cronstable_fs.settings import Topology
from cronstable_fs.state import FilesystemStateStore
from cronstable_fs.state_settings import StateSettings

from cronstable.api import Holder, Instant, LeaseRecord, LeaseStore, StateStore
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.host import FakeHost
from cronstable.testing.lease_contract import LeaseStoreContract
from cronstable.testing.state_contract import StateStoreContract


class Breakable(SystemFiles):
    """A disk that can be taken away; nothing here outlives the power, so a real sync would only cost time."""

    down = False
    links = True

    def _insist(self, path: str) -> None:
        if self.down:
            raise OSError(errno.EIO, "Input/output error", path)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._insist(path)
        return super().open(path, flags, mode)

    def listdir(self, path: str) -> list[str]:
        self._insist(path)
        return super().listdir(path)

    def fsync(self, fd: int) -> None:
        return None

    def link(self, source: str, target: str) -> None:
        if not self.links:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", target)
        super().link(source, target)


class SteppedClock(SystemClock):
    """Real time, except that somebody set the wall clock."""

    off = 0.0

    def now(self) -> Instant:
        real = super().now()
        return Instant(real.wall + self.off, real.boot)


class Door:
    """A ``StateDoor`` over a directory; the back door is the directory."""

    def __init__(self, root: Path, topology: Topology = Topology.SINGLE_NODE) -> None:
        self.root = root
        self.topology = topology
        self.disk = Breakable()
        self.clock = SteppedClock()

    def store(self) -> StateStore:
        host: Any = FakeHost(self.clock, "contract", fs=self.disk)
        host.threads, host.ids = ThreadLanes(), SystemIds()
        settings = StateSettings(str(self.root), topology=self.topology)
        return FilesystemStateStore(host, settings, op_timeout=30.0)

    def step_clock(self, seconds: float) -> None:
        self.clock.off += seconds

    async def aside(self) -> Sequence[bytes]:
        found = []
        for file in sorted((self.root / "default" / "quarantine").rglob("*.json")):
            opened = unseal(file.read_bytes())
            assert isinstance(opened, Sealed)
            found.append(opened.data)
        return found

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self.disk.down = True
        try:
            yield
        finally:
            self.disk.down = False


class LeaseDoor:
    """A ``LeaseDoor`` over one lease of the store."""

    def __init__(self, root: Path) -> None:
        self.door = Door(root)
        self.file = root / "default" / "leases" / "slots%2Fa.lease"
        self.file.parent.mkdir(parents=True)
        (root / "default" / "tmp").mkdir()

    def store(self) -> LeaseStore:
        return self.door.store().lease("slots/a")

    async def record(self) -> LeaseRecord | None:
        if not self.file.exists():
            return None
        found = json.loads(self.file.read_text())
        if found["expiresAt"] == 0:
            return None
        holder = Holder.parse(found["holder"])
        return LeaseRecord(holder, found["fence"], found["nonce"], found["ttl"], found["expiresAt"])

    async def delete(self) -> None:
        self.file.unlink()

    async def garble(self) -> None:
        self.file.write_bytes(b'{"holder": "x#')

    def outage(self) -> AbstractAsyncContextManager[None]:
        return self.door.outage()


class TestFilesystemState(StateStoreContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        return Door(tmp_path)


class TestSharedFilesystemState(StateStoreContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        return Door(tmp_path, Topology.SHARED)


class TestFilesystemStateWithoutHardLinks(StateStoreContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        door = Door(tmp_path)
        door.disk.links = False
        return door


class TestFilesystemStateLease(LeaseStoreContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> LeaseDoor:
        return LeaseDoor(tmp_path)
