"""The contract of a durable state store: streams of immutable records, documents with compare-and-swap, leases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from cronstable.core.clock import Seconds
from cronstable.core.store import StoreUnavailable
from cronstable.plugin.protocols import LeaseStore


class Topology(StrEnum):
    """Who can reach what is kept."""

    PROCESS = "process"
    """Only this process, and it is gone with it."""
    SINGLE_NODE = "single-node"
    """Only daemons of this machine."""
    SHARED = "shared"
    """Every node of the deployment: work can move with its records."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store says of itself. ``location``: where it is, for people; it names no secret."""

    backend: str
    topology: Topology
    location: str


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a stream. ``name`` orders it within its stream, by text, and is never used again there."""

    name: str
    data: bytes


class RecordsUnreadable(StoreUnavailable):
    """Some records of a stream cannot be read, perhaps only now; all else in the store is as well as ever.

    ``readable``: the others of those that were asked for, oldest first. They serve a reader to whom a gap does no harm,
    such as a history; to whoever decides by the newest record this is no answer.
    """

    def __init__(self, message: str, readable: Sequence[StoredRecord] = ()) -> None:
        super().__init__(message)
        self.readable = tuple(readable)


@dataclass(frozen=True, slots=True)
class Document:
    """A document with the version that a compare-and-swap needs."""

    data: bytes
    version: str


class StateStore(Protocol):
    """Durable state. Only ``StoreUnavailable`` may be raised; each call may be cancelled at its deadline.

    Names of streams, documents and leases are any non-empty text in parts with ``/`` between them, at most 512
    characters; two names that differ anywhere are two things, also where the store is not case-sensitive, and a stream,
    a document and a lease of one name are three. Data are opaque bytes, 1 MiB at most. A stream exists while it has
    records. A record or document whose bytes did not survive (torn, unreadable for good) is put aside, never handed
    out, and never in the way of others; a failure to read that may pass is ``StoreUnavailable``. Calls may overlap.
    """

    async def open(self) -> StoreInfo:
        """Reach the store and make ready what it needs; called before anything else, and again after a failure."""
        ...

    async def aclose(self) -> None:
        """Let go of connections; best effort."""
        ...

    async def append(self, stream: str, data: bytes) -> str:
        """Add a record, durable once this returns, and return its name.

        The name comes after every earlier name in the stream as any node sees it, also when a clock was set back or
        the stream was dropped: who has read up to a name never finds a new record below it. Called again after
        ``StoreUnavailable(ambiguous=True)`` it may leave the record twice.
        """
        ...

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        """Records with names above ``after``, oldest first; ``limit`` keeps the newest. Empty: no such stream.

        What was acknowledged before the call is there, whoever wrote it. ``RecordsUnreadable`` where the medium of
        some records fails and a later read may fare better.
        """
        ...

    async def trim(self, stream: str, keep: int) -> None:
        """Drop the oldest records beyond ``keep``; 0 drops the stream. The newest are never touched."""
        ...

    async def put_aside(self, stream: str, name: str) -> None:
        """Take a record out of its stream and keep its bytes where an operator can look at them."""
        ...

    async def get(self, document: str) -> Document | None:
        """A document, None when there is none."""
        ...

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        """Write, in one atomic step, if the version is ``expect`` (None: only if absent); None when it was not."""
        ...

    async def delete(self, document: str, expect: str) -> bool:
        """Remove the document if its version is ``expect``; False when it was not."""
        ...

    async def streams(self, prefix: str = "") -> Sequence[str]:
        """Names of the streams that begin with ``prefix``, sorted."""
        ...

    async def documents(self, prefix: str = "") -> Sequence[str]:
        """Names of the documents that begin with ``prefix``, sorted."""
        ...

    def lease(self, name: str) -> LeaseStore:
        """The lease of that name; its fences grow for as long as the store exists. No I/O."""
        ...


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a store that is not as it should be. ``what``: the name of the thing; ``detail``: in words.

    ``repaired``: it was put right, or put aside, just now.
    """

    what: str
    detail: str
    repaired: bool = False


@runtime_checkable
class Inspectable(Protocol):
    """Optional side of a ``StateStore``: it can look over itself for damage that reading would not show."""

    def inspect(self, *, repair: bool) -> AsyncIterator[Damage]:
        """Look at everything once. ``repair``: put aside or put right what can be; without it nothing is changed."""
        ...


@dataclass(frozen=True, slots=True)
class LockCount:
    """How often a store took a lock that it shares with other nodes, and the seconds that it waited for one."""

    acquisitions: int
    waited: Seconds


@runtime_checkable
class Locking(Protocol):
    """Optional side of a ``StateStore``: it takes locks, and counts them since it was made."""

    def locks(self) -> LockCount:
        """The counts so far. No I/O."""
        ...
