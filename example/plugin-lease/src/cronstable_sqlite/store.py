"""The lease store: four coroutines, each one transaction on one row."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cronstable.api import (
    ElectionContext,
    Grant,
    Held,
    Holder,
    Host,
    LeaseRecord,
    Observation,
    Seconds,
    Seen,
    StoreUnavailable,
    Unreadable,
    Vacant,
)
from cronstable.leadership import LeaseBackend, LeaseTiming
from cronstable_sqlite import CAPABILITIES

T = TypeVar("T")

# A fence must never be used twice. AUTOINCREMENT remembers the highest one when rows are deleted, and beginning at the
# time of day keeps them growing when the file is.
NEXT_FENCE = "INSERT INTO term SELECT max(?, 1 + ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'term'), 0))"
TABLES = """
CREATE TABLE IF NOT EXISTS term (fence INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TABLE IF NOT EXISTS lease (only INTEGER PRIMARY KEY CHECK (only = 1),
    holder TEXT, fence INTEGER, nonce TEXT, ttl REAL, expires REAL, returned TEXT);
"""


def make(context: ElectionContext, host: Host) -> LeaseBackend:
    """The factory that the hook names: our store, driven by the host."""
    settings = context.settings
    assert isinstance(settings, Mapping)
    timing = LeaseTiming.for_ttl(float(settings.get("ttl", 15)), context.connect_timeout)
    store = SqliteLeaseStore(host, str(settings["path"]), timing.op_timeout)
    return LeaseBackend(
        store, context, host, timing=timing, capabilities=CAPABILITIES, lease_fields=(("path", store.path),)
    )


class SqliteLeaseStore:
    """A ``LeaseStore``. ``op_timeout``: seconds that one call may take."""

    def __init__(self, host: Host, path: str, op_timeout: Seconds) -> None:
        self._host, self.path, self._op_timeout = host, path, op_timeout

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """Take the lease if nobody holds it, or if ``over`` still stands exactly as the host saw it."""

        def step(db: sqlite3.Connection) -> Observation:
            stands = look(db)
            free = isinstance(stands, Vacant) and over is None
            dead = isinstance(stands, Seen) and over is not None and stands.record.mark == over.record.mark
            if not (free or dead):
                return stands
            wall = self._host.clock.now().wall
            fence = db.execute(NEXT_FENCE, (int(wall),)).lastrowid or 0
            return put(db, Grant(me, fence, nonce, ttl, wall + ttl))

        return await self._transaction(step)

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """Extend the term if the row is still this grant's own."""

        def step(db: sqlite3.Connection) -> Observation:
            stands = look(db)
            if not isinstance(stands, Seen) or not grant.owns(stands.record):
                return stands
            expires = self._host.clock.now().wall + grant.ttl
            return put(db, Grant(grant.holder, grant.fence, nonce, grant.ttl, expires))

        return await self._transaction(step)

    async def observe(self) -> Observation:
        """What stands there."""
        return await self._transaction(look)

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """Let go if it is still ours. The row stays, so that the next holder finds the run ids."""

        def step(db: sqlite3.Connection) -> None:
            stands = look(db)
            if isinstance(stands, Seen) and grant.owns(stands.record):
                db.execute("UPDATE lease SET holder = NULL, returned = ?", (json.dumps(list(returned)),))

        await self._transaction(step)

    async def _transaction(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``step`` off the event loop, alone on the file. Only ``StoreUnavailable`` leaves here."""

        def call() -> T:
            # A connection for each call: nothing is cached, and a call that hangs spoils no other.
            db = sqlite3.connect(self.path, timeout=self._op_timeout, isolation_level=None)
            with contextlib.closing(db):
                db.executescript(TABLES)
                db.execute("BEGIN IMMEDIATE")
                result = step(db)
                db.execute("COMMIT")
                return result

        try:
            return await self._host.threads.run(call, timeout=self._op_timeout, lane="cronstable-sqlite")
        except TimeoutError:
            # The thread may still commit: the host must not take this for a refusal.
            raise StoreUnavailable(f"{self.path}: no answer in time", ambiguous=True) from None
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self.path}: {error}") from error


def look(db: sqlite3.Connection) -> Seen | Vacant | Unreadable:
    """The row as the host wants to see it."""
    row = db.execute("SELECT holder, fence, nonce, ttl, expires, returned FROM lease").fetchone()
    if row is None:
        return Vacant()
    holder, fence, nonce, ttl, expires, returned = row
    try:
        if holder is None:
            return Vacant(int(fence), tuple(json.loads(returned)))
        # Every write brings a fresh nonce, so fence and nonce stand for the exact row.
        mark = f"{int(fence)} {nonce}"
        return Seen(LeaseRecord(Holder.parse(holder), int(fence), nonce, float(ttl), float(expires), mark))
    except (TypeError, ValueError) as error:
        return Unreadable(f"the row is not a lease: {error}")


def put(db: sqlite3.Connection, grant: Grant) -> Held:
    """Write the row of a term."""
    values = (str(grant.holder), grant.fence, grant.nonce, grant.ttl, grant.expires_at)
    db.execute("REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?, '[]')", values)
    return Held(grant)
