"""Runs that outlive their node's term: said to the successor, and honoured by it (claims.md 16).

What is said and whom it blocks is decided in ``core.handover``; here the store is asked, and runs are ended.
"""

from __future__ import annotations

from cronstable.core.claim_session import Session
from cronstable.core.clock import Clock
from cronstable.core.handover import minded
from cronstable.plugin.protocols import Claims, Ids
from cronstable.runtime.launcher import Launcher


class Entries:
    """The entries of one claim log, from both sides."""

    def __init__(self, claims: Claims, session: Session, launcher: Launcher, clock: Clock, ids: Ids) -> None:
        self._claims = claims
        self._session = session
        self._handover = session.handover
        self._launcher = launcher
        self._clock = clock
        self._ids = ids

    # -- the leader

    async def look(self) -> bool:
        """Read the entries when it is time to; False as long as nothing is known for this term."""
        boot = self._clock.now().boot
        if not self._handover.is_look_due(boot):
            return True
        found = await self._claims.entries()
        if found is not None:
            to_end = self._handover.looked(found, boot, self._clock.now().boot)
            if to_end is not None:
                await self._say({}, to_end, ())
        return self._handover.known

    # -- the node that let go, or lost it

    async def leave(self) -> None:
        """Say what is still under way here; to be called before the lease is let go, and again and again after."""
        await self._say(minded(self._launcher.running(), self._session.unspawned), (), self._unsaid())

    async def drain(self) -> None:
        """Refresh what is said until cancelled, and end what a successor wants ended."""
        while True:
            await self._clock.sleep(self._handover.refresh_every)
            await self._refresh()

    async def tend(self) -> None:
        """The same while there is no term, whatever ended it: a piece of work when it is time to, or nothing."""
        if self._handover.tends(self._launcher.running(), self._unsaid(), self._clock.now().boot):
            await self._refresh()

    async def _refresh(self) -> None:
        found = await self._claims.entries()
        if found is not None:
            for job, run in self._handover.to_end(found, self._launcher.running(), self._clock.now().boot):
                self._launcher.end(job.name, run, "replaced by a run of the node that leads now")
        await self.leave()

    async def _say(self, runs: dict[str, str], cancel: tuple[str, ...], begun: tuple[str, ...]) -> None:
        await self._claims.put_entry(self._handover.entry(self._ids.token(8), runs, cancel, begun))

    def _unsaid(self) -> tuple[str, ...]:
        return self._session.unsaid(self._clock.now().boot)
