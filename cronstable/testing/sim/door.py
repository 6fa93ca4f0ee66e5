"""A process's way to the claim log, and what it says of its unfinished runs: ``ClaimDoor`` and ``Handover``."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cronstable.core import unfinished
from cronstable.core.clock import Seconds
from cronstable.core.job import ConcurrencyPolicy, Job
from cronstable.core.store import Fenced, Full, Span, Unknown, Won
from cronstable.core.unfinished import Entry, Watch
from cronstable.plugin.protocols import HeldTerm
from cronstable.runtime.handover import LOOK_EVERY, LOOK_OFTEN
from cronstable.testing.sim.engine import Ask, Reply, Steps, pause
from cronstable.testing.sim.faults import How

if TYPE_CHECKING:
    from cronstable.testing.sim.node import LeaseSide, Process

_MINDS: Final = frozenset({ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE})


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


class Handover:
    """See ``runtime.handover.Handover``."""

    def __init__(self, process: Process, door: Door, token: str) -> None:
        self._process = process
        self._door = door
        self._token = token
        self._dice = process.dice.child("handover")
        self._watch: Watch = MappingProxyType({})
        self._looked: float | None = None
        self._asked: dict[str, float] = {}
        self._cancel: tuple[str, ...] = ()
        self._tended: float | None = None
        self._told = False

    def begin(self) -> None:
        """A new term."""
        self._looked = None
        self._asked.clear()

    def look(self) -> Steps[bool]:
        """Read the entries when it is time to; False as long as nothing is known for this term."""
        boot = self._process.now().boot
        every = LOOK_OFTEN if self._watch else max(LOOK_EVERY, self._process.world.idle)
        if self._looked is not None and boot < self._looked + every:
            return True
        found = yield from self._door.entries()
        if found is not None:
            self._watch = unfinished.observe(self._watch, found, self._token, self._process.now().boot)
            self._looked = boot
            elsewhere = self._elsewhere()
            wanted = tuple(sorted(run for job in self._asked for run in elsewhere.get(job, ())))
            if wanted != self._cancel or (self._told and not wanted):
                self._cancel = wanted
                yield from self._say({}, wanted)
        return self._looked is not None

    def blocks(self, job: Job) -> bool:
        """See ``Handover.blocks``."""
        if job.name not in self._elsewhere():
            return False
        if job.options.concurrency_policy is ConcurrencyPolicy.REPLACE:
            return not self.waits(job)
        return job.options.concurrency_policy is ConcurrencyPolicy.FORBID

    def waits(self, job: Job) -> bool:
        """See ``Handover.waits``."""
        if job.options.concurrency_policy is not ConcurrencyPolicy.REPLACE or job.name not in self._elsewhere():
            self._asked.pop(job.name, None)
            return False
        boot = self._process.now().boot
        since = self._asked.setdefault(job.name, boot)
        return boot < since + job.options.kill_timeout + self._door.ttl

    def _elsewhere(self) -> dict[str, tuple[str, ...]]:
        if not self._watch:
            return {}
        return dict(unfinished.blocking(self._watch, self._door.ttl, self._process.now().boot))

    def leave(self) -> Steps[None]:
        """See ``Handover.leave``."""
        yield from self._say(self._minded(), ())

    def drain(self) -> Steps[None]:
        """See ``Handover.drain``."""
        while True:
            yield from pause(self._process.node, self._every())
            yield from self._refresh()

    def tend(self) -> Steps[None]:
        """See ``Handover.tend``."""
        boot = self._process.now().boot
        if self._tended is not None and boot < self._tended + self._every():
            return
        if self._told or self._minded():
            self._tended = boot
            yield from self._refresh()

    def _refresh(self) -> Steps[None]:
        found = yield from self._door.entries()
        if found is not None:
            self._watch = unfinished.observe(self._watch, found, self._token, self._process.now().boot)
            wanted = unfinished.cancelled(self._watch)
            for run, job in self._process.runs.running().items():
                if run in wanted:
                    self._process.runs.cancel(job.name, run)
        yield from self.leave()

    def _every(self) -> Seconds:
        return min(LOOK_OFTEN, self._door.ttl / 3)

    def _minded(self) -> dict[str, str]:
        running = self._process.runs.running()
        return {run: job.name for run, job in running.items() if job.options.concurrency_policy in _MINDS}

    def _say(self, runs: dict[str, str], cancel: tuple[str, ...]) -> Steps[None]:
        entry = Entry(self._token, self._dice.token(8), MappingProxyType(runs), cancel)
        self._told = bool(runs or cancel)
        yield from self._door.put_entry(unfinished.encode(entry) if runs or cancel else b"")
