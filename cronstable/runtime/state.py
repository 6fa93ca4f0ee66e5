"""The state keeper: the daemon's one door to the state store (reference 4).

A store may be slow, hung, full or gone, and none of that may reach the schedule: writes are queued, reads have a
deadline, and after a failure the store is left alone until it opens again, with at most a try a second. Who asks
meanwhile is told at once that there is no answer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, TypeVar

import anyio

from cronstable.config.model import StateConfig
from cronstable.core.clock import Clock, Seconds
from cronstable.core.job import Json
from cronstable.core.records import LONGEST, WriteKind, decode, encode
from cronstable.core.store import StoreUnavailable
from cronstable.plugin.protocols import Host, LeaseStore, Rng, StateStatus
from cronstable.plugin.state_store import (
    Document,
    Locking,
    RecordsUnreadable,
    StateStore,
    StoredRecord,
    StoreInfo,
    Topology,
)
from cronstable.runtime.state_ops import Operations, Throttle
from cronstable.runtime.state_queue import Write, WriteQueue

DEADLINE: Final[Seconds] = 10.0
"""For any one answer of the store (reference 4)."""
FLUSH: Final[Seconds] = 5.0
"""For what still waits when the daemon stops, or a reload names another store."""
CLOSE: Final[Seconds] = 3.0
WORKERS: Final = 8
TRIES: Final = 3
"""A write that fails so often while the store opens in between is given up: nothing may stand in its queue for ever."""
FIRST_RETRY: Final[Seconds] = 1.0
LONGEST_RETRY: Final[Seconds] = 15.0
SLACK: Final = 8
"""A stream is trimmed when it has grown by an eighth of what it keeps, and by no fewer than so many records."""

MakeStore: TypeAlias = Callable[[StateConfig, Host], StateStore]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest record of a stream; None when it has none."""

    record: Mapping[str, Json] | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as it stands; ``version`` is what a change of it has to expect."""

    data: Mapping[str, Json]
    version: str


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such document."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The document was not as expected: nothing was written."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store did not answer. A write may have landed all the same, or may land still."""


class _NoAnswer(Exception):
    """``readable``: what could be read all the same, where only single records could not."""

    def __init__(self, readable: Sequence[StoredRecord] = ()) -> None:
        self.readable = readable


class StateKeeper:
    """Alive whether or not there is a ``state`` section. All methods belong to the daemon's loop, and none raises."""

    def __init__(self, *, make: MakeStore, host: Host, clock: Clock, rng: Rng, log: logging.Logger) -> None:
        self._make = make
        self._host = host
        self._clock = clock
        self._rng = rng
        self._log = log
        self._queue = WriteQueue()
        self._throttle = Throttle(clock)
        self._operations = Operations()
        self._dropped: Counter[str] = Counter()
        self._grown: dict[str, int] = {}
        self._changed = anyio.Event()
        self._opened = anyio.Event()
        self._failed = anyio.Event()
        self._tried = anyio.Event()
        self._hurry = anyio.Event()
        self._store: StateStore | None = None
        self._locking: Locking | None = None  # the store that is or was open, if it counts its locks
        self._proven = False
        self._said: set[str] = set()
        self.policy: StateConfig | None = None
        self.info: StoreInfo | None = None
        self.error: str | None = None
        self.generation = 0

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def configured(self) -> bool:
        """There is a ``state`` section."""
        return self.policy is not None

    @property
    def shared(self) -> bool:
        """Every node of the deployment sees what is written here."""
        return self.info is not None and self.info.topology is Topology.SHARED

    @property
    def fail_closed(self) -> bool:
        """``onStoreUnavailable: fail-closed`` is in force."""
        return self.policy is not None and self.policy.fail_closed

    @property
    def dropped(self) -> Mapping[str, int]:
        """Writes that were given up, by kind, since the start of the daemon."""
        return MappingProxyType(self._dropped)

    def status(self) -> StateStatus | None:
        """For whoever looks; None without a ``state`` section."""
        if self.policy is None:
            return None
        return StateStatus(
            backend=self.policy.backend.name,
            info=self.info,
            error=self.error,
            fail_closed=self.policy.fail_closed,
            pending=len(self._queue),
            dropped=MappingProxyType(dict(self._dropped)),
            operations=self._operations.counts(),
            throttled=self._throttle.throttled,
            throttle_wait=self._throttle.waited,
            workers=WORKERS,
            inflight=self._operations.inflight,
            peak=self._operations.peak,
            locks=None if self._locking is None else self._locking.locks(),
        )

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> None:
        """Add a record some time soon, after those written to the stream before; counted when it is given up."""
        if self.policy is not None:
            self._queue_up(kind, stream, data, keep, urgent=False)

    async def append(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> bool:
        """Add a record; True once it is durable, False when that is not known within ten seconds."""
        if self._store is None:
            if self.policy is not None:
                self._drop(kind, "the store does not answer")
            return False
        write = self._queue_up(kind, stream, data, keep, urgent=True)
        if write is None:
            return False
        with anyio.move_on_after(DEADLINE):
            await write.over.wait()
        return write.landed

    def _queue_up(
        self, kind: WriteKind, stream: str, data: Mapping[str, Json], keep: int | None, *, urgent: bool
    ) -> Write | None:
        try:
            raw = encode(data)
        except ValueError as error:
            self._drop(kind, f"{stream}: {error}")
            return None
        if len(raw) > LONGEST:
            self._drop(kind, f"{stream}: a record of {len(raw)} bytes is too long")
            return None
        write = Write(kind, stream, raw, keep)
        if not self._queue.add(write, urgent=urgent):
            self._drop(kind, f"{len(self._queue)} writes wait already")
            return None
        return write

    def _drop(self, kind: WriteKind, why: str) -> None:
        self._dropped[kind.value] += 1
        self._complain(kind.value, f"a write of kind {kind} is dropped: {why}")

    def _complain(self, about: str, text: str) -> None:
        """Once, until the store opens again."""
        if about not in self._said:
            self._said.add(about)
            self._log.warning("state: %s", text)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the store can be asked now. Where it can and one stream has no answer, others may have one."""
        return self._store is not None

    async def read(
        self, stream: str, *, limit: int | None = None, gaps: bool = False
    ) -> Sequence[Mapping[str, Json]] | None:
        """Records, oldest first, ``limit`` of the newest; None when the store did not answer within ten seconds.

        A record that is damaged or of a newer version is put aside and left out. One that the medium does not give
        away for now is no answer; ``gaps``: it is left out, if there are others.
        """
        try:
            found = await self._ask("read", lambda store: store.read(stream, limit=limit))
        except _NoAnswer as error:
            if not gaps or not error.readable:
                return None
            found = error.readable
        return [data for record in found if (data := await self._decoded(stream, record)) is not None]

    async def _decoded(self, stream: str, record: StoredRecord) -> Mapping[str, Json] | None:
        data = decode(record.data)
        if data is None:
            self._log.warning("state: record %s of %s cannot be read and is put aside", record.name, stream)
            with suppress(_NoAnswer):
                await self._ask("put_aside", lambda store: store.put_aside(stream, record.name))
        return data

    async def newest(self, stream: str, *, gaps: bool = False) -> Newest | None:
        """The newest record that can be read; None when the store did not answer. ``gaps`` as for ``read``."""
        while True:
            try:
                found = await self._ask("read", lambda store: store.read(stream, limit=1))
            except _NoAnswer as error:
                if not gaps or not error.readable:
                    return None
                found = error.readable
            if not found:
                return Newest(None)
            data = await self._decoded(stream, found[-1])
            if data is not None:
                return Newest(data)
            again = await self.read(stream, gaps=gaps)
            return None if again is None else Newest(again[-1] if again else None)

    async def streams(self, prefix: str = "") -> Sequence[str] | None:
        """Names of streams, sorted; None when the store did not answer."""
        try:
            return await self._ask("list", lambda store: store.streams(prefix))
        except _NoAnswer:
            return None

    async def names(self, kind: Literal["streams", "documents"], prefix: str = "") -> Sequence[str] | None:
        """Names of streams or documents, sorted; None when the store did not answer."""
        if kind == "streams":
            return await self.streams(prefix)
        try:
            return await self._ask("list", lambda store: store.documents(prefix))
        except _NoAnswer:
            return None

    async def trim(self, stream: str, keep: int) -> bool:
        """Drop all but the newest ``keep`` records of a stream; whether the store answered."""
        try:
            await self._ask("trim", lambda store: store.trim(stream, keep))
        except _NoAnswer:
            return False
        return True

    async def get(self, document: str) -> Stored | Absent | Unavailable:
        """A document. One that cannot be read counts as unavailable: it must not be written over blindly."""
        try:
            found = await self._ask("get", lambda store: store.get(document))
        except _NoAnswer:
            return Unavailable()
        return Absent() if found is None else self._document(document, found)

    def _document(self, name: str, found: Document) -> Stored | Unavailable:
        data = decode(found.data)
        if data is None:
            self._complain(f"document {name}", f"document {name} cannot be read")
            return Unavailable()
        return Stored(data, found.version)

    async def put(self, document: str, data: Mapping[str, Json], expect: str | None) -> Stored | Conflict | Unavailable:
        """Write a document if its version is ``expect`` (None: if there is none)."""
        try:
            raw = encode(data)
            written = await self._ask("put", lambda store: store.put(document, raw, expect))
        except ValueError as error:
            self._complain(f"document {document}", f"document {document} cannot be written: {error}")
            return Unavailable()
        except _NoAnswer:
            return Unavailable()
        return Conflict() if written is None else Stored(data, written.version)

    async def delete(self, document: str, expect: str) -> Absent | Conflict | Unavailable:
        """Remove a document if its version is ``expect``."""
        try:
            removed = await self._ask("delete", lambda store: store.delete(document, expect))
        except _NoAnswer:
            return Unavailable()
        return Absent() if removed else Conflict()

    def lease(self, name: str) -> LeaseStore | None:
        """The lease of that name, never throttled; None while the store is not open."""
        return self._store.lease(name) if self._store is not None else None

    async def _ask(self, op: str, call: Callable[[StateStore], Awaitable[T]]) -> T:
        """One answer of the store, or ``_NoAnswer``."""
        store = self._store
        if store is None:
            raise _NoAnswer
        failed = True
        begun = self._clock.now().boot
        self._operations.begin()
        try:
            with anyio.fail_after(DEADLINE):
                await self._throttle.wait()
                begun = self._clock.now().boot
                answer = await call(store)
            failed = False
            self._prove(store)
            return answer
        except RecordsUnreadable as error:
            self._complain(f"records {error}", str(error))
            raise _NoAnswer(error.readable) from None
        except StoreUnavailable as error:
            self._lost(store, str(error))
        except TimeoutError:
            self._lost(store, f"no answer to {op} within {DEADLINE:g} s")
        except anyio.get_cancelled_exc_class():
            failed = False
            raise
        except Exception as error:  # noqa: BLE001 - a plugin's store may cost records, never the daemon
            self._log.exception("state: a bug in the store met by %s", op)
            self._lost(store, type(error).__name__)
        finally:
            self._operations.end(op, self._clock.now().boot - begun, failed=failed)
        raise _NoAnswer

    def _prove(self, store: StateStore) -> None:
        """It opened, and it answers too: from now on it gets more than one write at a time."""
        if store is self._store and not self._proven:
            self._proven = True
            self._announce()
            if self._said:
                self._log.info("state: the store answers again")
                self._said.clear()

    def _lost(self, store: StateStore, error: str) -> None:
        if store is self._store:
            self._store = None
            self.error = error
            self._complain("store", f"the store failed: {error}")
            self._failed.set()

    # -- the life of the store ----------------------------------------------------------------------------------------

    def configure(self, policy: StateConfig | None) -> None:
        """Put a ``state`` section into force; a changed one gets a store of its own."""
        if policy != self.policy:
            self.policy = policy
            self._throttle.rate = policy.max_ops_per_second if policy is not None else 0.0
            self._said.clear()
            self._changed.set()

    async def settled(self, within: Seconds) -> bool:
        """Return when the store is open, or was tried in vain, or after ``within`` seconds; whether it is open."""
        with anyio.move_on_after(within):
            while self.policy is not None and self._store is None and self.error is None:
                await self._tried.wait()
        return self._store is not None

    async def opened(self, after: int = 0) -> int:
        """Return once a store is open whose ``generation`` is above ``after``: the first one, or one of a reload."""
        while self._store is None or self.generation <= after:
            await self._opened.wait()
        return self.generation

    async def run(self) -> None:
        """Keep the configured store open and write to it what waits, until cancelled."""
        while True:
            policy = self.policy
            changed = self._changed = anyio.Event()
            self.info = self.error = None
            if policy is None:
                await changed.wait()
                continue
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._serve, policy)
                await changed.wait()
                await self.flush()
                tasks.cancel_scope.cancel()

    async def flush(self, within: Seconds = FLUSH) -> None:
        """Give what still waits a last chance: whoever stops a daemon may just have made room for it to write."""
        with anyio.move_on_after(within, shield=True):
            if self._store is None and len(self._queue):
                tried = self._tried
                self._hurry.set()
                await tried.wait()
            if self._store is not None:
                await self._queue.empty()

    async def finish(self) -> None:
        """The daemon stops: flush, and count what cannot be written."""
        await self.flush()
        if len(self._queue):
            self._log.warning("state: %d writes are lost: the store did not take them in time", len(self._queue))

    async def _serve(self, policy: StateConfig) -> None:
        store: StateStore | None = None
        pause = FIRST_RETRY
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(WORKERS):
                    tasks.start_soon(self._work, number == 0)
                fresh = True
                while True:
                    store = store or self._made(policy)
                    if store is not None and await self._open(store, fresh=fresh):
                        fresh = False
                        await self._failed.wait()
                        pause = FIRST_RETRY if self._proven else pause
                    self._hurry = anyio.Event()
                    with anyio.move_on_after(pause * (0.75 + self._rng.random() / 2)):
                        await self._hurry.wait()
                    pause = min(2 * pause, LONGEST_RETRY)
        finally:
            self._store = None
            if store is not None:
                await self._close(store)

    def _made(self, policy: StateConfig) -> StateStore | None:
        try:
            return self._make(policy, self._host)
        except Exception as error:  # noqa: BLE001 - a factory is a plugin's
            self._log.exception("state: the store %s cannot be made", policy.backend.name)
            self._not_open(f"the factory failed: {type(error).__name__}")
            return None

    async def _open(self, store: StateStore, *, fresh: bool) -> bool:
        try:
            with anyio.fail_after(DEADLINE):
                info = await store.open()
        except StoreUnavailable as error:
            return self._not_open(str(error))
        except TimeoutError:
            return self._not_open(f"it did not open within {DEADLINE:g} s")
        except Exception as error:  # noqa: BLE001 - as in ``_ask``
            self._log.exception("state: a bug in the store met by open")
            return self._not_open(type(error).__name__)
        if fresh:
            self.generation += 1
            self._grown.clear()
            self._log.info("state: %s at %s, %s", info.backend, info.location, info.topology)
            self._said.clear()
        self._proven = False
        self.info, self.error = info, None
        self._failed = anyio.Event()
        self._store = store
        self._locking = store if isinstance(store, Locking) else None
        self._announce()
        return True

    def _not_open(self, error: str) -> bool:
        self.error = error
        self._complain("store", f"the store cannot be opened, and is tried again: {error}")
        self._announce(opened=False)
        return False

    def _announce(self, *, opened: bool = True) -> None:
        tried, self._tried = self._tried, anyio.Event()
        tried.set()
        if opened:
            waited, self._opened = self._opened, anyio.Event()
            waited.set()

    async def _close(self, store: StateStore) -> None:
        try:
            with anyio.move_on_after(CLOSE, shield=True):
                await store.aclose()
        except Exception:  # noqa: BLE001 - as in ``_ask``
            self._log.exception("state: a bug in the store met by aclose")

    async def _work(self, first: bool) -> None:
        while True:
            while self._store is None or not (first or self._proven):
                await self._opened.wait()
            write = await self._queue.take()
            store = self._store
            try:
                await self._ask("append", partial(_append, write))
            except _NoAnswer:
                if store is not None:
                    write.tries += 1
                if write.tries < TRIES:
                    self._queue.put_back(write)
                else:
                    self._queue.settle(write, landed=False)
                    self._drop(write.kind, f"{write.stream}: {self.error}")
                continue
            except anyio.get_cancelled_exc_class():
                self._queue.put_back(write)
                raise
            self._queue.settle(write, landed=True)
            await self._tidy(write)

    async def _tidy(self, write: Write) -> None:
        """Trim the stream now and then: at the first write of this process, and when it has grown by its slack."""
        if write.keep is None:
            return
        grown = self._grown.get(write.stream)
        if grown is not None and grown + 1 < max(SLACK, write.keep // 8):
            self._grown[write.stream] = grown + 1
            return
        self._grown[write.stream] = 0
        await self.trim(write.stream, write.keep)


async def _append(write: Write, store: StateStore) -> None:
    await store.append(write.stream, write.data)
