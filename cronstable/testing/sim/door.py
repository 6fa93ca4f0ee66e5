"""A process's way to the claim log, and to the entries of unfinished runs: ``ClaimDoor`` and ``Entries``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cronstable.core.claim_session import Session
from cronstable.core.handover import LOOK_EVERY, minded
from cronstable.core.store import Fenced, Full, HeldTerm, Span, Unknown, Won
from cronstable.testing.sim.engine import Ask, Reply, Steps, pause
from cronstable.testing.sim.faults import How

if TYPE_CHECKING:
    from cronstable.testing.sim.node import LeaseSide, Process


class Door:
    """See ``ClaimDoor``: the store's claim log, with a deadline for each call."""

    def __init__(self, process: Process, lease: LeaseSide) -> None:
        self._process = process
        self._lease = lease
        self.ttl = lease.state.timing.ttl

    @property
    def term(self) -> HeldTerm | None:
        """See ``Claims.term``."""
        return self._lease.term

    def append(self, number: int, record: bytes) -> Steps[object]:
        """See ``Claims.append``."""
        yield from self._lease.free.take()
        grant, store = self._lease.grant, self._lease.store
        if grant is None:
            self._lease.free.give()
            return Fenced()
        world, node = self._process.world, self._process.node
        checker, network, engine = world.checker, world.network, world.engine

        def commit() -> object:
            if How.FULL in network.wrong:
                return Full(world.wall())
            answer = store.commit_append(grant, number, record)
            if isinstance(answer, Won):
                network.landed[number] = engine.at
                checker.appended(node, number, record)
            return answer

        try:
            answer = yield from self._ask("append", commit)
        finally:
            self._lease.free.give()
        return Unknown() if answer is None else answer

    def read(self, number: int) -> Steps[tuple[bytes | None] | None]:
        """See ``Claims.read``."""
        lease, shows = self._lease.store.lease, self._process.world.network.shows
        answer = yield from self._ask("read", lambda: (lease.records.get(number) if shows(number) else None,))
        return answer if isinstance(answer, tuple) else None

    def span(self) -> Steps[Span | None]:
        """See ``Claims.span``."""
        lease, world = self._lease.store.lease, self._process.world

        def look() -> Span:
            numbers = [number for number in lease.records if world.network.shows(number)]
            last = max(numbers, default=max(0, lease.low - 1))
            return Span(min(numbers, default=lease.low), last, world.wall())

        answer = yield from self._ask("span", look)
        return answer if isinstance(answer, Span) else None

    def trim(self, first: int) -> Steps[None]:
        """See ``Claims.trim``."""
        yield from self._lease.free.take()
        grant, store = self._lease.grant, self._lease.store
        try:
            if grant is not None:
                yield from self._ask("trim", lambda: store.commit_trim(grant, first))
        finally:
            self._lease.free.give()

    def put_entry(self, entry: bytes) -> Steps[None]:
        """See ``Claims.put_entry``."""
        store = self._lease.store

        def commit() -> None:
            store.lease.entries.pop(id(store), None)
            if entry:
                store.lease.entries[id(store)] = entry

        yield from self._ask("put_entry", commit)

    def entries(self) -> Steps[tuple[bytes, ...] | None]:
        """See ``Claims.entries``."""
        lease = self._lease.store.lease
        answer = yield from self._ask("entries", lambda: tuple(lease.entries.values()))
        return answer if isinstance(answer, tuple) else None

    def _ask(self, operation: str, commit: Callable[[], object]) -> Steps[object]:
        by = self._process.now().boot + self._lease.state.timing.op_timeout
        answer = yield Ask(operation, commit, by)
        return answer.value if isinstance(answer, Reply) else None


class Entries:
    """See ``runtime.handover.Entries``."""

    def __init__(self, process: Process, door: Door, session: Session) -> None:
        self._process = process
        self._door = door
        self._session = session
        self._handover = session.handover
        self._dice = process.dice.child("handover")

    def look(self) -> Steps[bool]:
        """See ``Entries.look``; a coarse simulation looks less often."""
        boot = self._process.now().boot
        if not self._handover.is_look_due(boot, max(LOOK_EVERY, self._process.world.idle)):
            return True
        found = yield from self._door.entries()
        if found is not None:
            to_end = self._handover.looked(found, boot, self._process.now().boot)
            if to_end is not None:
                yield from self._say({}, to_end, ())
        return self._handover.known

    def leave(self) -> Steps[None]:
        """See ``Entries.leave``."""
        yield from self._say(minded(self._process.runs.running(), self._session.unspawned), (), self._unsaid())

    def drain(self) -> Steps[None]:
        """See ``Entries.drain``."""
        while True:
            yield from pause(self._process.node, self._handover.refresh_every)
            yield from self._refresh()

    def tend(self) -> Steps[None]:
        """See ``Entries.tend``."""
        if self._handover.tends(self._process.runs.running(), self._unsaid(), self._process.now().boot):
            yield from self._refresh()

    def _refresh(self) -> Steps[None]:
        found = yield from self._door.entries()
        if found is not None:
            running = self._process.runs.running()
            for job, run in self._handover.to_end(found, running, self._process.now().boot):
                self._process.runs.cancel(job.name, run)
        yield from self.leave()

    def _say(self, runs: dict[str, str], cancel: tuple[str, ...], begun: tuple[str, ...]) -> Steps[None]:
        yield from self._door.put_entry(self._handover.entry(self._dice.token(8), runs, cancel, begun))

    def _unsaid(self) -> tuple[str, ...]:
        return self._session.unsaid(self._process.now().boot)
