"""Runs that outlive their node's term: said to the successor, and honoured by it (claims.md 16)."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from cronstable.core.clock import Clock, Seconds
from cronstable.core.job import ConcurrencyPolicy, Job
from cronstable.core.unfinished import Entry, Watch, blocking, cancelled, encode, observe
from cronstable.plugin.protocols import Claims, Ids
from cronstable.runtime.launcher import Launcher

LOOK_EVERY: Final[Seconds] = 5.0
LOOK_OFTEN: Final[Seconds] = 1.0

_MINDS: Final = frozenset({ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE})


class Handover:
    """The entries of one claim log, from both sides: what a leader finds there, and what a node that let go says.

    ``token``: of this process and this election; ``former``: those of the elections that this process had before.
    """

    def __init__(
        self, claims: Claims, launcher: Launcher, clock: Clock, ids: Ids, token: str, former: Iterable[str] = ()
    ) -> None:
        self._claims = claims
        self._launcher = launcher
        self._clock = clock
        self._ids = ids
        self._token = token
        self._former = frozenset(former)
        self._watch: Watch = MappingProxyType({})
        self._looked: float | None = None
        self._asked: dict[str, float] = {}
        self._cancel: tuple[str, ...] = ()
        self._tended: float | None = None
        self._told = False

    # -- the leader

    def begin(self) -> None:
        """A new term: what was seen before it says nothing."""
        self._looked = None
        self._asked.clear()

    async def look(self) -> bool:
        """Read the entries when it is time to; False as long as nothing is known for this term."""
        boot = self._clock.now().boot
        every = LOOK_OFTEN if self._watch else LOOK_EVERY
        if self._looked is not None and boot < self._looked + every:
            return True
        found = await self._claims.entries()
        if found is not None:
            self._observe(found)
            self._looked = boot
            await self._ask_to_end()
        return self._looked is not None

    def blocks(self, job: Job) -> bool:
        """Whether a run elsewhere keeps ``job`` from starting, for good as far as this occurrence is concerned."""
        if job.name not in self._elsewhere():
            return False
        if job.options.concurrency_policy is ConcurrencyPolicy.REPLACE:
            return not self.waits(job)
        return job.options.concurrency_policy is ConcurrencyPolicy.FORBID

    def waits(self, job: Job) -> bool:
        """Whether a run elsewhere is being ended, so that ``job`` may take its place soon."""
        if job.options.concurrency_policy is not ConcurrencyPolicy.REPLACE or job.name not in self._elsewhere():
            self._asked.pop(job.name, None)
            return False
        boot = self._clock.now().boot
        since = self._asked.setdefault(job.name, boot)
        return boot < since + job.options.kill_timeout + self._claims.ttl

    def _observe(self, found: Iterable[bytes]) -> None:
        seen = observe(self._watch, found, self._token, self._clock.now().boot)
        # What this process said before its election was built anew is about runs that are local to it.
        self._watch = MappingProxyType({token: one for token, one in seen.items() if token not in self._former})

    def _elsewhere(self) -> MappingProxyType[str, tuple[str, ...]]:
        return MappingProxyType(dict(blocking(self._watch, self._claims.ttl, self._clock.now().boot)))

    async def _ask_to_end(self) -> None:
        elsewhere = self._elsewhere()
        wanted = tuple(sorted(run for job in self._asked for run in elsewhere.get(job, ())))
        # What was said of our own runs before this term is over with it: they are local to us again.
        if wanted != self._cancel or (self._told and not wanted):
            self._cancel = wanted
            await self._say({}, wanted)

    # -- the node that let go, or lost it

    async def leave(self) -> None:
        """Say what is still under way here; to be called before the lease is let go, and again and again after."""
        await self._say(self._minded(), ())

    async def drain(self) -> None:
        """Refresh what is said until cancelled, and end what a successor wants ended."""
        while True:
            await self._clock.sleep(self._every())
            await self._refresh()

    async def tend(self) -> None:
        """The same while there is no term, whatever ended it: a piece of work when it is time to, or nothing."""
        boot = self._clock.now().boot
        if self._tended is not None and boot < self._tended + self._every():
            return
        if self._told or self._minded():
            self._tended = boot
            await self._refresh()

    async def _refresh(self) -> None:
        found = await self._claims.entries()
        if found is not None:
            self._observe(found)
            wanted = cancelled(self._watch)
            for run, job in self._launcher.running().items():
                if run in wanted:
                    self._launcher.end(job.name, run, "replaced by a run of the node that leads now")
        await self.leave()

    def _every(self) -> Seconds:
        return min(LOOK_OFTEN, self._claims.ttl / 3)

    def _minded(self) -> dict[str, str]:
        """Runs that somebody elsewhere has to mind."""
        return {
            run: job.name for run, job in self._launcher.running().items() if job.options.concurrency_policy in _MINDS
        }

    async def _say(self, runs: dict[str, str], cancel: tuple[str, ...]) -> None:
        entry = Entry(self._token, self._ids.token(8), MappingProxyType(runs), cancel)
        self._told = bool(runs or cancel)
        await self._claims.put_entry(encode(entry) if runs or cancel else b"")
