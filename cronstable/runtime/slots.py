"""Cluster-wide slots at work: taken before a run is spawned, renewed while runs live, let go with the last one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol, assert_never

import anyio
from anyio.abc import TaskGroup

from cronstable.config.model import StateConfig
from cronstable.core.clock import Clock, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ConcurrencyPolicy, Job, Json
from cronstable.core.lease_values import Standing
from cronstable.core.records import KEEP, WriteKind, stream
from cronstable.core.runs import LiveRun, RunKey
from cronstable.core.slots import (
    RENEWALS,
    Adopt,
    Answer,
    AskToEnd,
    Entered,
    Entry,
    Kept,
    Lost,
    NoAnswer,
    Occupied,
    Patience,
    Regained,
    Rest,
    Slot,
    SlotAsk,
    Try,
    asked_to_end,
    cancel_record,
    enter,
    entering,
    leave,
    renewed,
)
from cronstable.core.store import Grant, Observation
from cronstable.plugin.protocols import SlotView
from cronstable.runtime.chores import Chores
from cronstable.runtime.locks import StoreLeases
from cronstable.runtime.state import Newest

DEFAULT_TTL: Final[Seconds] = 30.0
_POLICIES: Final = frozenset({ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE})


class Keeper(Protocol):
    """What is used of the state keeper."""

    @property
    def policy(self) -> StateConfig | None: ...
    @property
    def fail_closed(self) -> bool: ...
    def write(self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None) -> None: ...
    async def newest(self, stream: str) -> Newest | None: ...


class Runs(Protocol):
    """What is used of the launcher."""

    def live(self) -> Mapping[str, tuple[LiveRun, ...]]: ...
    def end(self, job: str, run_id: str, reason: str, *, grace: Seconds | None = None) -> None: ...


def is_shared(job: Job) -> bool:
    """Whether runs of ``job`` on other nodes count for its ``concurrencyPolicy``."""
    return job.options.raw.get("concurrencyScope") == "cluster" and job.options.concurrency_policy in _POLICIES


class Slots:
    """Implements the launcher's ``Slotkeeper``. All of it belongs to the daemon's loop."""

    def __init__(
        self,
        *,
        keeper: Keeper,
        leases: StoreLeases,
        runs: Runs,
        chores: Chores,
        clock: Clock,
        log: logging.Logger,
        node: Callable[[], str],
    ) -> None:
        self._keeper = keeper
        self._leases = leases
        self._runs = runs
        self._chores = chores
        self._clock = clock
        self._log = log
        self._node = node
        self._slots: dict[str, Slot] = {}
        self._standing: dict[str, Standing | None] = {}
        self._turns: dict[str, anyio.Lock] = {}
        self._inside: dict[str, str] = {}
        self._survivors: set[str] = set()
        self._obeyed: dict[str, int] = {}
        self._seen: dict[str, tuple[str, float]] = {}
        self._tasks: TaskGroup | None = None
        self._silent = False
        self.taken_over: Callable[[Job, str], None] = lambda job, holder: None
        """Is told of a slot that was taken out of the hands of a dead node, and the name of that."""

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group slots are renewed in; once, before the first run."""
        self._tasks = tasks

    def view(self) -> Mapping[str, SlotView]:
        """What is known of slots, by job; of another node's for as long as it surely stands."""
        since = self._clock.now().boot - self._ttl
        seen = {name: SlotView(False, holder, 0) for name, (holder, at) in self._seen.items() if at > since}
        return MappingProxyType(seen | {name: self._view(slot) for name, slot in self._slots.items()})

    def _view(self, slot: Slot) -> SlotView:
        held = slot.grant is not None and not slot.lost
        return SlotView(held, self._node() if held else slot.holder, slot.refs)

    @property
    def _ttl(self) -> Seconds:
        policy = self._keeper.policy
        return DEFAULT_TTL if policy is None else policy.slot_ttl

    # -- entering -----------------------------------------------------------------------------------------------------

    def wants(self, job: Job) -> bool:
        """Whether other nodes have to be asked before a run of ``job``."""
        return is_shared(job) and self._keeper.policy is not None

    async def enter(self, job: Job, key: RunKey) -> Decision | None:
        """Take the slot for a run that is about to be spawned: None when it may be, else why not.

        May wait: for a holder that is being replaced, or that seems to be dead. Cancelled, it leaves nothing behind.
        """
        try:
            async with self._turn(job.name):
                replaces = job.options.concurrency_policy is ConcurrencyPolicy.REPLACE
                entry = await self._entry(job, Patience.END_IT if replaces else Patience.NONE)
                if isinstance(entry, Occupied):
                    return self._refuse(job, entry)
                if isinstance(entry, NoAnswer):
                    return self._unknown(job)
                self._silent = False
                self._inside[key.run_id] = job.name
                return None
        except anyio.get_cancelled_exc_class():
            self._chores.start(partial(self._tidy, job.name))
            raise

    def leave(self, run_id: str) -> None:
        """A run is over, or was not spawned after all."""
        self._survivors.discard(run_id)
        name = self._inside.pop(run_id, None)
        if name is None:
            return
        slot, grant = leave(self._slots[name])
        self._slots[name] = slot
        if slot.refs == 0:
            self._chores.start(partial(self._release, name, grant))

    def adopt(self, job: Job, run_id: str) -> None:
        """A run of a daemon that died lives on here: get its slot back as soon as the old one has run out."""
        if self.wants(job):
            self._survivors.add(run_id)
            self._chores.start(partial(self._get_back, job, run_id))

    async def _get_back(self, job: Job, run_id: str) -> None:
        async with self._turn(job.name):
            entry = await self._entry(job, Patience.WAIT)
            if isinstance(entry, Entered):
                self._inside[run_id] = job.name
                if run_id not in self._survivors:
                    self.leave(run_id)
            elif isinstance(entry, Occupied) and run_id in self._survivors:
                self._say(job.name, Lost(entry.holder))

    async def _entry(self, job: Job, patience: Patience) -> Entry:
        name, before = job.name, self._slots.get(job.name, Slot())
        now = self._clock.now()
        if before.refs and before.grant is not None and not before.lost and now.boot < before.until:
            self._slots[name] = enter(before, None)
            return Entered(before.grant, before.until)
        move = entering(patience, self._ttl, self._standing.get(name), self._leases.wrote(_lease(name)), now)
        ask: SlotAsk = next(move)
        while True:
            sent = self._clock.now().boot
            observation = await self._ask(name, ask)
            try:
                ask = move.send(Answer(observation, sent, self._clock.now()))
            except StopIteration as end:
                entry, self._standing[name] = end.value
                return self._found(job, before, entry)

    def _found(self, job: Job, before: Slot, entry: Entry) -> Entry:
        name = job.name
        match entry:
            case Entered():
                self._seen.pop(name, None)
                if entry.dead is not None:
                    self.taken_over(job, entry.dead.name)
                self._slots[name] = enter(before, entry)
                if self._tasks is not None:
                    self._tasks.start_soon(self._keep, name, entry.grant.fence)
            case Occupied(holder):
                self._seen[name] = (holder, self._clock.now().boot)
            case NoAnswer():
                pass
            case _:
                assert_never(entry)
        return entry

    async def _ask(self, name: str, ask: SlotAsk) -> Observation | None:
        match ask:
            case Try(over):
                return await self._leases.acquire(_lease(name), self._ttl, over)
            case Adopt(grant):
                return await self._leases.renew(_lease(name), grant)
            case AskToEnd(fence):
                record = cancel_record(fence, self._node(), self._clock.now().wall)
                self._keeper.write(WriteKind.SLOT, _lease(name), record, keep=KEEP[WriteKind.SLOT])
                self._log.info("job %s: the node that runs it is asked to end its run", name)
            case Rest(seconds):
                await self._clock.sleep(seconds)
            case _:
                assert_never(ask)
        return None

    def _refuse(self, job: Job, entry: Occupied) -> Decision:
        self._log.warning("job %s: not started, %s runs it (concurrencyScope: cluster)", job.name, entry.holder)
        evidence = MappingProxyType({"holder": entry.holder})
        return Decision(Verdict.SKIP, Reason.SLOT_HELD, evidence)

    def _unknown(self, job: Job) -> Decision | None:
        if self._keeper.fail_closed:
            return Decision(Verdict.SKIP, Reason.STORE_UNAVAILABLE, MappingProxyType({"what": "slot"}))
        if not self._silent:
            self._silent = True
            self._log.warning("job %s: nobody can tell whether another node runs it; it runs here", job.name)
        return None

    # -- holding ------------------------------------------------------------------------------------------------------

    async def _keep(self, name: str, fence: int) -> None:
        """Renew one term of a slot for as long as local runs count on it."""
        while True:
            await self._clock.sleep(self._ttl / RENEWALS)
            async with self._turn(name):
                slot = self._slots.get(name, Slot())
                grant = slot.grant
                if slot.refs == 0 or grant is None or grant.fence != fence:
                    return
                sent = self._clock.now().boot
                observation = await self._leases.renew(_lease(name), grant)
                # Runs may have begun or ended meanwhile; what they changed is the count alone.
                now = replace(self._slots.get(name, Slot()), grant=self._leases.known(_lease(name), grant))
                self._slots[name], said = renewed(now, observation, self._ttl, sent, self._clock.now().boot)
                if self._slots[name].refs == 0:
                    return
            self._say(name, said)
            await self._obey(name, fence)

    def _say(self, name: str, said: Kept | Lost | Regained) -> None:
        match said:
            case Lost(holder):
                whose = f"{holder} has it" if holder is not None else "nobody can tell who has it"
                self._log.warning("job %s: its slot is lost, %s: the run here goes on and may overlap", name, whose)
            case Regained():
                self._log.info("job %s: its slot is ours again", name)
            case Kept():
                pass
            case _:
                assert_never(said)

    async def _obey(self, name: str, fence: int) -> None:
        """End the runs that another node wants to replace."""
        found = await self._keeper.newest(_lease(name))
        by = asked_to_end(found.record if found is not None else None, fence)
        if by is None or self._obeyed.get(name) == fence:
            return
        self._obeyed[name] = fence
        self._log.info("job %s: ended, %s wants to run it", name, by)
        for run in self._runs.live().get(name, ()):
            if self._inside.get(run.key.run_id) == name:
                self._runs.end(name, run.key.run_id, f"replaced by a run on {by}")

    async def _release(self, name: str, grant: Grant | None) -> None:
        async with self._turn(name):
            if self._slots.get(name, Slot()).refs:
                return
            self._slots.pop(name, None)
            if grant is not None:
                await self._leases.release(_lease(name), grant)

    async def _tidy(self, name: str) -> None:
        """A question was given up on, and its answer may have made the slot ours."""
        async with self._turn(name):
            if not self._slots.get(name, Slot()).refs:
                await self._leases.release_own(_lease(name))

    def _turn(self, name: str) -> anyio.Lock:
        return self._turns.setdefault(name, anyio.Lock())


def _lease(name: str) -> str:
    """The lease of a slot, and the stream of cancel records beside it."""
    return stream("slots", name)
