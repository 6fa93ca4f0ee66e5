"""Which deferred @reboot jobs have run in this cluster, as far as a lease backend can know."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from cronstable.core.clock import Seconds
from cronstable.core.store import Grant, StoreUnavailable
from cronstable.plugin.protocols import Host, RebootMarks

REREAD: Seconds = 60.0
"""How old a reading of the marks may be (reference 3.5)."""
RETRY: Seconds = 1.0


class MemoryLedger:
    """Marks that live and die with this process; scoped to the job-set id they were made under."""

    def __init__(self, job_set_id: Callable[[], str]) -> None:
        self._job_set_id = job_set_id
        self._scope = ""
        self._jobs: set[str] = set()

    def ran(self, job: str) -> bool | None:
        """Whether this process ran it; never unknown."""
        return self._scope == self._job_set_id() and job in self._jobs

    async def mark(self, grant: Grant, job: str) -> bool:
        """Remember the run; False when it was remembered already."""
        scope = self._job_set_id()
        if scope != self._scope:
            self._scope, self._jobs = scope, set()
        if job in self._jobs:
            return False
        self._jobs.add(job)
        return True

    def due(self, grant: Grant | None, boot: float) -> bool:
        """Nothing to read."""
        return False

    async def read(self, grant: Grant | None) -> str | None:
        """Nothing to read."""
        return None


class MarksLedger:
    """Marks in the store. An answer counts for the term and the job-set id it was read under, and for no other."""

    def __init__(self, marks: RebootMarks, job_set_id: Callable[[], str], host: Host, timeout: Seconds) -> None:
        self._marks = marks
        self._job_set_id = job_set_id
        self._host = host
        self._timeout = timeout
        self._known: frozenset[str] | None = None
        self._scope: tuple[str, int | None] = ("", None)
        self._next_read = 0.0
        self._unsettled: dict[tuple[str, str], str] = {}

    def ran(self, job: str) -> bool | None:
        """From the last reading; None when that was under another job-set id. Ours of unknown fate: not yet run."""
        scope = self._job_set_id()
        if self._known is None or self._scope[0] != scope:
            return None
        return job in self._known and (scope, job) not in self._unsettled

    def due(self, grant: Grant | None, boot: float) -> bool:
        """A new term or job-set id makes the last reading worthless; otherwise it is good for a minute."""
        scope = (self._job_set_id(), grant.fence if grant is not None else None)
        if scope != self._scope:
            lost_term_only = scope[0] == self._scope[0] and scope[1] is None
            if not lost_term_only or self._known is None:
                self._known = None
            self._scope, self._next_read = scope, boot
        return boot >= self._next_read

    async def read(self, grant: Grant | None) -> str | None:
        """Read the marks; the reason when that failed."""
        scope = self._scope[0]
        failure: str | None = f"no answer within {self._timeout:g} s"
        with anyio.move_on_after(self._timeout):
            try:
                self._known = await self._marks.reboot_marks(scope)
                failure = None
            except StoreUnavailable as error:
                failure = str(error)
            except Exception as error:  # noqa: BLE001 - a store's bug must not end the election
                failure = f"{type(error).__name__}: {error}"
        self._next_read = self._host.clock.now().boot + (REREAD if failure is None else RETRY)
        return failure

    async def mark(self, grant: Grant, job: str) -> bool:
        """Create the mark. A try without an answer keeps its nonce, so that a second try recognises it as ours."""
        key = (self._job_set_id(), job)
        nonce = self._unsettled.setdefault(key, self._host.ids.token(8))
        with anyio.move_on_after(self._timeout):
            try:
                created = await self._marks.mark_reboot(grant, key[0], job, nonce=nonce)
            except StoreUnavailable as error:
                self._host.log.warning("cluster: the @reboot mark of %s is not recorded yet: %s", job, error)
                return False
            except Exception as error:
                self._host.log.error("cluster: a bug in the store's @reboot marks", exc_info=error)
                return False
            del self._unsettled[key]
            if self._known is not None:
                self._known |= {job}
            return created
        self._host.log.warning("cluster: the @reboot mark of %s got no answer", job)
        return False
