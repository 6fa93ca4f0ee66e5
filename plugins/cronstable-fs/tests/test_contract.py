"""The contracts of a lease store over a real directory: with real threads and clocks, and elections in virtual time."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cronstable_fs.backend import CAPABILITIES
from cronstable_fs.layout import Layout
from cronstable_fs.lease import FilesystemLeaseStore

from cronstable.api import Holder, LeaseRecord, LeaseStore
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.claims_contract import ClaimLogContract
from cronstable.testing.election_contract import ElectionContract, LeaseWorld
from cronstable.testing.fault_contract import ClaimFaultContract, LeaseFaultContract
from cronstable.testing.host import FakeHost
from cronstable.testing.lease_contract import LeaseStoreContract
from cronstable.testing.levels import Level, certify
from cronstable.testing.marks_contract import RebootMarksContract


class Breakable(SystemFiles):
    """A disk that can be taken away."""

    down = False

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if self.down:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().open(path, flags, mode)

    def listdir(self, path: str) -> list[str]:
        if self.down:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().listdir(path)


class Door:
    def __init__(self, directory: Path) -> None:
        self.root = root = directory / "shared"
        root.mkdir()
        self.layout = Layout.of(str(root), "default", "contract")
        self.file = Path(self.layout.lease)
        self.disk = Breakable()

    def store(self) -> LeaseStore:
        host: Any = FakeHost(SystemClock(), "contract", fs=self.disk)
        host.threads, host.ids = ThreadLanes(), SystemIds()
        return FilesystemLeaseStore(host, self.layout, "contract", ttl=15.0, op_timeout=30.0)

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

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self.disk.down = True
        yield
        self.disk.down = False

    @asynccontextmanager
    async def rollback(self) -> AsyncIterator[None]:
        root, copy = self.root, self.root.with_name("copy")
        shutil.copytree(root, copy)
        yield
        shutil.rmtree(root)
        copy.rename(root)


class TestFilesystemLease(LeaseStoreContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        return Door(tmp_path)


class TestFilesystemMarks(RebootMarksContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        return Door(tmp_path)


class TestFilesystemClaims(ClaimLogContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        return Door(tmp_path)


class TestFilesystemLeaseFaults(LeaseFaultContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        return Door(tmp_path)


class TestFilesystemClaimFaults(ClaimFaultContract):
    @pytest.fixture
    def door(self, tmp_path: Path) -> Door:
        return Door(tmp_path)


def test_the_store_is_certified_for_all_that_it_declares() -> None:
    certificate = certify(sys.modules[__name__], capabilities=CAPABILITIES)
    assert certificate.level is Level.FAULTS


class TestFilesystemElection(ElectionContract):
    @pytest.fixture
    def make_world(self, tmp_path: Path) -> Callable[[], LeaseWorld]:
        numbers: Iterator[int] = iter(range(1_000))

        def world() -> LeaseWorld:
            layout = Layout.of(str(tmp_path / str(next(numbers))), "default", "contract")

            def store(host: FakeHost) -> LeaseStore:
                own = FakeHost(host.clock, host.name, fs=SystemFiles())
                return FilesystemLeaseStore(own, layout, "contract", ttl=15.0, op_timeout=2.0)

            return LeaseWorld(store)

        return world
