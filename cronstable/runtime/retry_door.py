"""The records of retries as the daemon reaches them: one job at a time, through the state keeper."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar, assert_never

import anyio

from cronstable.core.clock import Clock
from cronstable.core.job import ClusterPolicy, Job, Json
from cronstable.core.records import KEEP, WriteKind, stream
from cronstable.core.retry_moves import (
    ASK_WITHIN,
    LOCK_TTL,
    Answered,
    Ask,
    Locked,
    Look,
    Tail,
    Unlock,
    Write,
    Written,
)
from cronstable.core.retry_moves import Lock as AskLock
from cronstable.core.retry_records import (
    Handoff,
    Pending,
    Place,
    RetryRecord,
    Settled,
    Settling,
    decode,
    encode,
    in_microseconds,
)
from cronstable.core.view import ClusterView
from cronstable.plugin.protocols import Claims, Ids, LeaseStore
from cronstable.runtime.locks import Busy, Lock, StoreLeases

MANY: Final = 64
"""Records kept of a job that each node runs for itself: their records stand in one stream."""

T = TypeVar("T")


class Keeper(Protocol):
    """What is used of the state keeper."""

    @property
    def configured(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    @property
    def fail_closed(self) -> bool: ...
    async def opened(self, after: int = 0) -> int: ...
    def write(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> None: ...
    async def append(
        self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None
    ) -> bool: ...
    async def read(self, stream: str, *, limit: int | None = None) -> Sequence[Mapping[str, Json]] | None: ...
    async def streams(self, prefix: str = "") -> Sequence[str] | None: ...
    def lease(self, name: str) -> LeaseStore | None: ...


class Cluster(Protocol):
    """What is used of the cluster manager."""

    @property
    def elects(self) -> bool: ...
    @property
    def claims(self) -> Claims | None: ...
    def view(self) -> ClusterView | None: ...


class RetryDoor:
    """Reads and writes ``retries/<job>``, and knows which jobs' records other nodes look into."""

    def __init__(
        self,
        *,
        keeper: Keeper,
        cluster: Cluster,
        jobs: Callable[[], Mapping[str, Job]],
        clock: Clock,
        ids: Ids,
        log: logging.Logger,
        node: Callable[[], str],
    ) -> None:
        self.keeper = keeper
        self.node = node
        self._cluster = cluster
        self._jobs = jobs
        self._clock = clock
        self._ids = ids
        self._leases = StoreLeases(find=keeper.lease, clock=clock, ids=ids, log=log, node=node)
        self._turns: dict[str, anyio.Lock] = {}

    def turn(self, name: str) -> anyio.Lock:
        """Held by whoever asks about a job: one at a time, in the order they came."""
        return self._turns.setdefault(name, anyio.Lock())

    # -- who may take over what ---------------------------------------------------------------------------------------

    @property
    def resumes(self) -> bool:
        """Whether there are other nodes that could go on, and a word on which one should (reference 4.2)."""
        try:
            return self.keeper.shared and self._cluster.elects and self._cluster.view() is not None
        except Exception:  # noqa: BLE001 - the view comes from a plugin; the gate logs its failure
            return False

    def is_movable(self, job: Job) -> bool:
        """Whether attempts of ``job`` are for one node of several, whichever that is."""
        return (
            self.keeper.shared
            and self._cluster.elects
            and job.options.cluster_policy is not ClusterPolicy.EVERY_NODE
            and not job.schedule.reboot
        )

    def moves(self, name: str) -> bool:
        """Whether attempts of a job can move now."""
        job = self._jobs().get(name)
        return job is not None and self.resumes and self.is_movable(job)

    # -- records ------------------------------------------------------------------------------------------------------

    async def tail(self, name: str) -> Tail | None:
        """The last records of a job; None when the store did not answer."""
        rows = await self.keeper.read(retry_stream(name), limit=self._keep(name))
        return None if rows is None else Tail(tuple(r for row in rows if (r := decode(row)) is not None))

    async def newest(self, name: str) -> RetryRecord | None:
        """The newest record, for a look in passing; None when there is none to be had."""
        rows = await self.keeper.read(retry_stream(name), limit=1)
        return decode(rows[-1]) if rows else None

    async def append(self, name: str, record: RetryRecord) -> bool:
        """Add a record; False when it is not known to be there."""
        stream_name = retry_stream(name)
        return await self.keeper.append(WriteKind.RETRY, stream_name, encode(record), keep=self._keep(name))

    def write(self, name: str, record: RetryRecord) -> None:
        """Add a record some time soon."""
        self.keeper.write(WriteKind.RETRY, retry_stream(name), encode(record), keep=self._keep(name))

    def _keep(self, name: str) -> int:
        job = self._jobs().get(name)
        alone = job is not None and self.keeper.shared and not self.is_movable(job)
        return MANY if alone else KEEP[WriteKind.RETRY]

    def settled(self, reason: Settling, place: Place) -> Settled:
        """A fresh record that nothing is left to do about an attempt."""
        return Settled(reason, self.node(), self.token(), self.wall(), place.attempt, place.first_run_id)

    def token(self) -> str:
        """What no other record has."""
        return self._ids.token(8)

    def wall(self) -> float:
        """Now, in wall seconds, as precisely as records are."""
        return in_microseconds(self._clock.now().wall)

    # -- moves --------------------------------------------------------------------------------------------------------

    async def drive(self, name: str, move: Generator[Ask, Answered, T], written: list[Written]) -> T:
        """Carry a move out. ``written``: gets the answer to each record that was sent."""
        held: Lock | None = None
        answer: Answered = None
        try:
            ask = next(move)
            while True:
                match ask:
                    case AskLock():
                        found = await self._leases.lock(stream("retry-claim", name), LOCK_TTL)
                        held = found if isinstance(found, Lock) else None
                        answer = Locked.YES if held else Locked.BUSY if isinstance(found, Busy) else Locked.UNKNOWN
                    case Look():
                        answer = await self.tail(name)
                    case Write(record, locked):
                        answer = await self._send(name, record, held, locked=locked)
                        if answer is not Written.NOT_SENT:
                            written.append(answer)
                    case Unlock():
                        answer = None
                        if held is not None:
                            await self._leases.unlock(held)
                    case _:
                        assert_never(ask)
                ask = move.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send(self, name: str, record: RetryRecord, held: Lock | None, *, locked: bool) -> Written:
        if locked and (held is None or self._clock.now().boot + ASK_WITHIN > held.until):
            return Written.NOT_SENT
        return Written.YES if await self.append(name, record) else Written.UNKNOWN


def retry_stream(name: str) -> str:
    """Where the records of a job are."""
    return stream("retries", name)


def newest_of(records: Iterable[RetryRecord], node: str) -> RetryRecord | None:
    """The newest of what one node wrote, where each one runs the job for itself."""
    own = [r for r in records if (r.from_host if isinstance(r, Handoff) else r.host) == node]
    return own[-1] if own else None


def voided(mine: Pending, tries: Sequence[Settled]) -> tuple[str, ...]:
    """What a record has to take back that puts an attempt up again after it was called launched."""
    return (*mine.voids, *(one.token for one in tries))
