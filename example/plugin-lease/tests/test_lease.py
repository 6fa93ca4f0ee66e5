"""The SQLite lease keeps the contract of a lease store, and elects under the host's driver in virtual time."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cronstable_sqlite import CAPABILITIES
from cronstable_sqlite.store import SqliteLeaseStore

from cronstable.api import Holder, LeaseRecord, LeaseStore
from cronstable.testing.clock import VirtualClock
from cronstable.testing.election_contract import ElectionContract, LeaseWorld
from cronstable.testing.host import FakeHost
from cronstable.testing.lease_contract import LeaseDoor, LeaseStoreContract


class SqliteDoor:
    """The front door is the store; the back door is plain SQL on the same file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "store"
        self._directory.mkdir()
        self._file = self._directory / "lease.db"
        self._host = FakeHost(VirtualClock())

    def store(self) -> LeaseStore:
        """A new handle, as another process would have."""
        return SqliteLeaseStore(self._host, str(self._file), op_timeout=5.0)

    async def record(self) -> LeaseRecord | None:
        """The row, if somebody holds the lease."""
        rows = self._sql("SELECT holder, fence, nonce, ttl FROM lease WHERE holder IS NOT NULL")
        return next((LeaseRecord(Holder.parse(h), int(f), n, float(t)) for h, f, n, t in rows), None)

    async def delete(self) -> None:
        """Remove the row."""
        self._sql("DELETE FROM lease")

    async def garble(self) -> None:
        """A row that is no lease."""
        self._sql("UPDATE lease SET fence = 'seven', ttl = 'soon'")

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """The directory is gone for a while, as if its disk were."""
        away = self._directory.with_name("away")
        self._directory.rename(away)
        try:
            yield
        finally:
            away.rename(self._directory)

    def _sql(self, statement: str) -> list[tuple[str, int, str, float]]:
        if not self._file.exists():
            return []
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None)) as db:
            return db.execute(statement).fetchall()


class TestSqliteLease(LeaseStoreContract):
    """The whole contract, on a fresh file for each test."""

    @pytest.fixture
    def door(self, tmp_path: Path) -> LeaseDoor:
        return SqliteDoor(tmp_path)


class TestSqliteElection(ElectionContract):
    """Nodes that die, hang and come back, with our store in the middle."""

    @pytest.fixture
    def make_world(self, tmp_path: Path) -> Callable[[], LeaseWorld]:
        file = str(tmp_path / "lease.db")
        return lambda: LeaseWorld(lambda host: SqliteLeaseStore(host, file, op_timeout=5.0), capabilities=CAPABILITIES)
