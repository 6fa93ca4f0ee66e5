"""One claim log as a process sees it, from the start of an election to its end: which term, what next, when again.

The driver and the simulator carry out what the machine asks for; whether and when they ask it is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cronstable.core import claim_log
from cronstable.core.claim_values import SKIPS, Began, ClaimState, Command, Ended, Event, Loaded, Phase, Wants
from cronstable.core.clock import Instant, Seconds
from cronstable.core.handover import Handover
from cronstable.core.job import Job
from cronstable.core.missed import definition
from cronstable.core.store import Appended, Full, HeldTerm
from cronstable.core.sweep import Horizon, Mode, claimable, is_claimable, reruns

SWEEP_EVERY: Final[Seconds] = 1.0
PAUSE: Final[Seconds] = 0.2
"""Between two tries at a store that does not answer, or shows less than it must have."""
SILENT: Final[Seconds] = 2.0
"""The same once it was silent, or its log full, before, give or take a fifth: all nodes of a fleet ask the same store,
and each of them for its lease as well (DESIGN 6, L4)."""
STAND_DOWN: Final[Seconds] = 60.0
REOPEN_AFTER: Final[Seconds] = 5.0
TRIM_EVERY: Final = 100
TELL_FOR: Final[Seconds] = 30.0
"""After the end of a term, what it started and could not say in the log is told in this process's entry for so long."""


class Session:
    """The machine of one claim log, with what its driver has to remember.

    ``token``: of this process and this election. ``window``, ``mode`` and ``limit``: ``cluster.catchUp``.
    ``left``: what the last sweep wanted and no append has taken yet; ``swept_at``: its boot instant.
    """

    def __init__(
        self, node: str, token: str, handover: Handover, *, window: Seconds, mode: Mode = Mode.ALL, limit: int = 100
    ) -> None:
        self.handover = handover
        self.mode = mode
        self.limit = limit
        self.horizon = Horizon(window)
        self.state: ClaimState = claim_log.initial(node, token, window)
        self.term: HeldTerm | None = None
        self.left = Wants()
        self.swept_at = float("-inf")
        self.closing = False
        self.jobs: dict[str, Job] = {}
        self.rerun: frozenset[str] = frozenset()
        self._trimmed = 0
        self._crowded = False
        self._silent = 0
        self._over_since: float | None = None
        self._ended_at = float("-inf")

    def feed(self, event: Event, now: Instant) -> tuple[Command, ...]:
        """Tell the machine."""
        self.state, commands = claim_log.step(self.state, event, now)
        return commands

    def load(self, jobs: Iterable[Job], now: Instant) -> None:
        """Take over a job set."""
        self.jobs = {job.name: job for job in jobs if is_claimable(job)}
        self.rerun = frozenset(name for name, job in self.jobs.items() if reruns(job))
        self.left, self.swept_at = Wants(), float("-inf")
        self.horizon.load((claimable(job, order) for order, job in enumerate(self.jobs.values())), now.wall)
        self.feed(Loaded({name: definition(job) for name, job in self.jobs.items()}), now)

    def follow(self, term: HeldTerm | None, now: Instant) -> bool:
        """Take note of the term that is held now; True when there is none, or when it is another one than before."""
        if term is not None and self.term is not None and term.fence == self.term.fence:
            return False
        over = self.term is not None
        if over:
            self.horizon.forget_waiting()
            self.feed(Ended(), now)
            self._ended_at = now.boot
        if term is not None:
            self.handover.begin(now.boot)
            self.feed(Began(term.returned, term.fence), now)
        self.term = term
        self.left = Wants()
        return over or term is None

    def may_work(self, leads: bool) -> bool:
        """Whether something may be claimed and started at this instant, given whether the lease may be acted on."""
        return leads and self.term is not None and not self.closing

    def unsaid(self, boot: float) -> tuple[str, ...]:
        """What was started and cannot be said in the log by this process: it is told in its entry (claims.md 16)."""
        tells = self.closing or (self.term is None and boot < self._ended_at + TELL_FOR)
        return (*self.state.begun, *self.state.spawning)[:SKIPS] if tells else ()

    @property
    def unspawned(self) -> frozenset[str]:
        """Run ids of what was won, or given back, and never became a process: its entry does not show these."""
        return frozenset((*(claim.run_id for claim in self.state.pending), *self.state.returning))

    @property
    def is_open(self) -> bool:
        """Whether the term's open record landed."""
        return claim_log.is_open(self.state)

    def revive(self, now: Instant) -> None:
        """A term whose append was refused, and whose lease is renewed all the same, is opened again."""
        term = self.state.term
        if term is None or term.phase is not Phase.OVER:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = now.boot
        elif now.boot >= self._over_since + REOPEN_AFTER:
            self._over_since = None
            self.feed(Began(), now)

    def pause(self, now: Instant, *, may_work: bool, longest: Seconds = SWEEP_EVERY) -> Seconds:
        """How long there is nothing to do unless something happens; ``longest`` while the term is open and works."""
        if self.term is None:
            return longest
        if not self.is_open or not may_work:
            return PAUSE
        if self.rerun and self.state.begun and self.state.spawning:
            longest = min(longest, claim_log.GATHER)
        ahead = self.horizon.next_at
        return longest if ahead is None else max(0.001, min(longest, ahead - now.wall))

    def breath(self, share: float, *, answered: bool) -> Seconds:
        """How long to wait before the next try. One answer may get lost; a store that stays silent, or a log that stays
        full, is asked less often.

        ``share``: a random number from 0 to 1.
        """
        self._silent = 0 if answered else self._silent + 1
        return PAUSE if self._silent < 2 else SILENT * (0.8 + 0.4 * share)

    def heard(self) -> None:
        """The store answered."""
        self._silent = 0

    def trim_to(self, appended: Appended) -> int | None:
        """After an append: below which record the log is to be trimmed now, None: not yet."""
        is_full = isinstance(appended, Full)
        if not is_full:
            self._silent = 0
        self._crowded = self._crowded or is_full
        low = claim_log.trimmable(self.state)
        return low if low >= self._trimmed + (1 if self._crowded else TRIM_EVERY) else None

    def trimmed(self, low: int) -> None:
        """It was asked for."""
        self._trimmed, self._crowded = low, False
