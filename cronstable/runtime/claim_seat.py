"""The place of the claims driver: it is taken when a backend with a claim log runs for the first time.

Claims, sweep and session are a megabyte of code that a daemon alone, or in a gossip cluster, never uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from cronstable.core.clock import Clock, EpochSeconds, Seconds, until_next
from cronstable.core.decision import Decision
from cronstable.core.job import Job
from cronstable.core.runs import LiveRun, RunRecord
from cronstable.runtime.cluster_manager import ClusterManager

if TYPE_CHECKING:
    from cronstable.runtime.claims_driver import ClaimsDriver

IDLE: Final[Seconds] = 30.0
"""Between two looks for a claim log, should a change of leadership go by unheard."""


class ClaimSeat:
    """What the rest of the daemon knows of claims: the driver's answers, or those of a daemon without a claim log.

    Implements the scheduler's ``Claimer``, the retries' ``RetryClaimer``, the missed runs' ``LateClaimer`` and the
    launcher's ``RunListener``. ``make`` is called once.
    """

    def __init__(self, clock: Clock, cluster: ClusterManager, make: Callable[[], ClaimsDriver]) -> None:
        self._clock = clock
        self._cluster = cluster
        self._make = make
        self._driver: ClaimsDriver | None = None
        self._sleep = anyio.CancelScope()

    def _seated(self) -> ClaimsDriver | None:
        """The driver, from the moment that there is a claim log, and for good."""
        if self._driver is None and self._cluster.claims is not None:
            self._driver = self._make()
            self._sleep.cancel()
        return self._driver

    # -- what others ask ----------------------------------------------------------------------------------------------

    def owns(self, job: Job) -> bool:
        """Whether occurrences of ``job`` are decided through the claim log of a running election."""
        driver = self._seated()
        return driver is not None and driver.owns(job)

    def takes(self, job: Job, scheduled_at: EpochSeconds) -> bool:
        """An occurrence may start: True when it is claimed first, so that the caller leaves it alone."""
        driver = self._seated()
        return driver is not None and driver.takes(job, scheduled_at)

    def retry(self, job: Job, scheduled_at: EpochSeconds, attempt: int, first_run_id: str) -> bool:
        """A further attempt is due: True when it is claimed first and launched from there."""
        driver = self._seated()
        return driver is not None and driver.retry(job, scheduled_at, attempt, first_run_id)

    def forget_retries(self, job: str) -> None:
        """Nothing of ``job`` is to be tried again."""
        if self._driver is not None:
            self._driver.forget_retries(job)

    @property
    def window(self) -> Seconds:
        """How far back the sweep looks; 0 without a claim log."""
        return self._driver.window if self._driver is not None else 0.0

    def window_of(self, job: Job) -> Seconds:
        """How long an occurrence of ``job`` may still be decided anew: for good, while the log is not being read."""
        return (self.window or math.inf) if self.owns(job) else 0.0

    @property
    def has_swept(self) -> bool:
        """Whether the sweep has had its look at this job set."""
        return self._driver is not None and self._driver.has_swept

    def catch_up(self, job: Job, at: EpochSeconds, over: Callable[[Decision | None], None]) -> bool:
        """Claim an occurrence that is older than the window, and launch it; False: not now."""
        driver = self._seated()
        return driver is not None and driver.catch_up(job, at, over)

    def started(self, job: Job, run: LiveRun) -> None:
        """A process lives: as the launcher's ``RunListener``."""
        if self._driver is not None:
            self._driver.started(job, run)

    def finished(self, job: Job, record: RunRecord) -> None:
        """How it ended is no matter of claims."""

    def load(self) -> None:
        """The job set changed."""
        driver = self._seated()
        if driver is not None:
            driver.load()

    def poke(self) -> None:
        """Look again now."""
        self._sleep.cancel()
        if self._driver is not None:
            self._driver.poke()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and launch, as soon as there is a log for it, until cancelled."""
        while (driver := self._seated()) is None:
            with self._sleep:
                await self._clock.sleep(until_next(IDLE, self._clock.now()))
            self._sleep = anyio.CancelScope()
        await driver.run()

    async def stop(self) -> None:
        """Claim nothing more under this election."""
        if self._driver is not None:
            await self._driver.stop()

    async def drain(self) -> None:
        """While the last runs end: keep the successor informed, until cancelled."""
        if self._driver is not None:
            await self._driver.drain()

    async def leave(self) -> None:
        """The last runs are over, or given up on."""
        if self._driver is not None:
            await self._driver.leave()
