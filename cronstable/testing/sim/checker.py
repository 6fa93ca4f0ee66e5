"""What must hold: the invariants of DESIGN 6, judged from outside by what reached the store and what was started.

Nothing here asks the machines under test: deadlines, terms and claims are followed from the requests themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cronstable.core import claim_records
from cronstable.core.claim_values import Head, Record
from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import ClusterPolicy, Job
from cronstable.core.runs import RunKey, Trigger
from cronstable.core.store import Grant, Held
from cronstable.core.sweep import is_claimable

if TYPE_CHECKING:
    from cronstable.testing.sim.node import Node, Process
    from cronstable.testing.sim.world import World

LATE: Final[Seconds] = 10.0
"""A start this long after T is a late one."""
ENOUGH: Final[Seconds] = 12.0
"""A node that could work so long without a break has swept what was owed (L2)."""
BURST: Final = 30.0
"""Requests of a node to a failing store are counted over so many seconds (L4)."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    at: Seconds
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at t={self.at:.3f}: {self.text}"


@dataclass(slots=True)
class Counts:
    """What the report shows."""

    due: int = 0
    starts: int = 0
    claimed: int = 0
    retries: int = 0
    late: int = 0
    duplicates: int = 0
    misses: int = 0
    terms: int = 0
    worst_takeover: Seconds = 0.0
    worst_lateness: Seconds = 0.0
    skipped_seconds: Seconds = 0.0
    skips: dict[str, int] = field(default_factory=dict)
    alarms: dict[str, int] = field(default_factory=dict)
    moments: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Claim:
    """A claim as it stands in the log."""

    job: str
    at: EpochSeconds
    attempt: int
    head: Head
    run_id: str
    process: Process
    landed: float
    fence: int
    given_up: bool = False
    answered: bool = False


class Checker:
    """Follows everything, and collects what is wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self.counts = Counts()
        self._starts: dict[tuple[str, EpochSeconds], list[tuple[int, str]]] = {}
        self._decided: dict[tuple[str, EpochSeconds], float] = {}
        self._claims: dict[str, _Claim] = {}
        self._last_claim: dict[tuple[str, EpochSeconds], _Claim] = {}
        self._deadlines: dict[str, float] = {}
        self._fence = 0
        self._given: tuple[int, Process] | None = None
        self._head: Head | None = None
        self._floor: EpochSeconds | None = None
        self._forgot: float | None = None
        self._covered: list[tuple[float, EpochSeconds]] = []
        self._ahead_of_time: set[tuple[str, EpochSeconds]] = set()
        self._asked: dict[tuple[str, str], list[float]] = {}
        self._working: list[tuple[float, float]] = []
        self._since: tuple[str, float] | None = None
        self._led_until: float | None = None
        self._verdicts: dict[tuple[str, str, EpochSeconds], Verdict] = {}
        self._excused = 0.0
        self._abstain_until = 0.0
        self._froze: dict[str, float] = {}

    def violate(self, invariant: str, text: str) -> None:
        """Something does not hold."""
        self._world.log("!!", f"{invariant} {text}")
        self.violations.append(Violation(invariant, self._world.engine.at, text))
        if self._world.setup.first_only:
            self._world.engine.halt()

    # -- leadership ---------------------------------------------------------------------------------------------------

    def excuse(self, seconds: Seconds) -> None:
        """The store broke its word (a lease that was deleted or dropped): S1 is not promised for a while (DESIGN 6)."""
        self._excused = max(self._excused, self._world.engine.at + seconds)

    def _is_excused(self) -> bool:
        """Whether a second leader may stand beside the first one for now."""
        return self._world.engine.at < self._excused

    def froze(self, node: Node) -> None:
        """The clocks of a node stood still: what it may do by them it does late, and no clock of its own can tell."""
        self._froze[node.name] = self._world.engine.at
        self.excuse(2 * self._world.timing_of(node.index).ttl)

    def leaders(self) -> None:
        """S1: at most one node may act as leader at this instant."""
        if self._is_excused():
            return
        found = [
            node.name
            for node in self._world.nodes
            if not node.stopped
            and node.process is not None
            and node.process.lease is not None
            and node.process.lease.leads()
        ]
        if len(found) > 1:
            self.violate("S1", f"{' and '.join(found)} lead at one instant")

    def held(self, node: Node, grant: Grant, *, sent: float, by: float, margin: Seconds) -> None:
        """A node was told that it holds the lease: until when it may act, by our own reckoning."""
        boot = node.now().boot
        if boot <= by:
            timing = self._world.timing_of(node.index)
            deadline = sent + min(grant.ttl, timing.ttl) - max(margin, 1.0)
            self._deadlines[node.name] = deadline
            if deadline > boot:
                self._leads_until(self._world.engine.at + deadline - boot)

    def _leads_until(self, until: float) -> None:
        """Somebody leads; how long nobody did before."""
        now = self._world.engine.at
        if self._led_until is not None and now > self._led_until:
            self.counts.worst_takeover = max(self.counts.worst_takeover, now - self._led_until)
        self._led_until = until

    def skipped(self, leader: str, seconds: Seconds) -> None:
        """A node led on and renewed for so long, and that was left out."""
        self.counts.skipped_seconds += seconds
        self._deadlines[leader] += seconds
        if self._led_until is not None:
            self._led_until += seconds

    def gone(self) -> None:
        """The leader was killed or let go at this instant."""
        now = self._world.engine.at
        if self._led_until is not None:
            self._led_until = min(self._led_until, now)

    def asked(self, node: Node, operation: str, *, failing: bool, full: bool) -> None:
        """L4: a request left; no more than two a second do for a failing store, nor records for a log that is full."""
        if failing:
            self._count(node, "a failing store")
        else:
            self._asked.pop((node.name, "a failing store"), None)
        if operation == "append" and full and not failing:
            self._count(node, "a full log")

    def _count(self, node: Node, what: str) -> None:
        now = self._world.engine.at
        recent = [at for at in self._asked.get((node.name, what), []) if at > now - BURST]
        recent.append(now)
        self._asked[node.name, what] = recent
        if len(recent) > 2 * BURST + 5:
            self.violate("L4", f"{node.name} asked {what} {len(recent)} times in {BURST:g} s")
            recent.clear()

    # -- the store ----------------------------------------------------------------------------------------------------

    def committed(self, node: Node, operation: str, value: object) -> None:
        """S3: every acquisition that landed has a higher fence than all before."""
        if operation == "acquire" and isinstance(value, Held):
            self.counts.terms += 1
            if value.grant.fence <= self._fence:
                self.violate("S3", f"{node.name} holds fence {value.grant.fence} after {self._fence}")
            self._fence = max(self._fence, value.grant.fence)
        elif operation == "release":
            self._let_go(node)

    def _let_go(self, node: Node) -> None:
        process, lease = node.process, self._world.network.lease
        if process is None or process.lease is None or lease.record is None or not lease.released:
            return
        if lease.record.holder == process.lease.state.me:
            self.gone()
            if process.claims is not None and process.claims.settled:
                process.released = self.counts.terms

    def appended(self, node: Node, number: int, data: bytes) -> None:
        """A record landed. S3 and S4 for terms, and what it claims and skips."""
        record = claim_records.decode(data)
        head, before = record.head, self._head
        if head.opens:
            if before is not None and head.fence <= before.fence:
                self.violate("S3", f"{node.name} opened a term with fence {head.fence} after {before.fence}")
            if self._floor is None:
                self._floor = head.floor
            if self._forgot is not None:
                self._covered.append((self._forgot - self._world.window, head.floor))
                # Claimed by a clock that was further ahead than a new log allows for: nobody can know of that any more.
                self._ahead_of_time.update(key for key in self._last_claim if key[1] > head.floor)
                self._forgot = None
            self._head = head
        elif before is None or head.term != before.term:
            self.violate("S4", f"{node.name} appended {number} in a term that a newer one had ended")
        process = node.process
        what = "opens term" if head.opens else "says"
        claims = " ".join(f"{start.job}/{self._text(start.at)}" for start in record.starts)
        self._world.log(node.name, f"record {number} lands: {what} {head.fence} {claims}".rstrip())
        for index, start in enumerate(record.starts):
            run_id = record.run_id(index)
            if process is not None:
                landed = self._world.engine.at
                fence = self._world.network.lease.last_fence
                claim = _Claim(start.job, start.at, start.attempt, head, run_id, process, landed, fence)
                self._claims[run_id] = self._last_claim[(start.job, start.at)] = claim
            self.counts.claimed += 1
        if record.skips:
            for skip in record.skips:
                self._skip(node, head, skip.job, skip.at, skip.reason, self._last_claim.get((skip.job, skip.at)))

    def _skip(self, node: Node, head: Head, job: str, at: EpochSeconds, reason: str, claim: _Claim | None) -> None:
        self._decided.setdefault((job, at), self._world.engine.at)
        self.counts.skips[reason] = self.counts.skips.get(reason, 0) + 1
        self._world.log(node.name, f"skips {job} {self._text(at)}: {reason}")
        if reason != Reason.CLAIMED_NOT_STARTED or claim is None:
            return
        claim.given_up = True
        # Only a claim of a process that is gone, or stood still while another one led, may be given up; or one that its
        # own process never heard of before its term ended (claims.md 3).
        same_term = claim.fence == self._world.network.lease.last_fence
        if claim.head.token == head.token and (claim.answered or same_term):
            self.violate("L2", f"{node.name} gave up its own claim of {job} {self._text(at)}")
        elif claim.process.released == self.counts.terms - 1:
            self.violate("L2", f"the claim of {job} {self._text(at)} was lost in an orderly stop")

    def forgotten(self) -> None:
        """The claim log is gone: what it did not come to counts as claimed, up to the floor of the next one."""
        if self._forgot is None:
            self._forgot = self._world.wall()

    def answered(self, record: Record) -> None:
        """A process was told that its record landed."""
        for index in range(len(record.starts)):
            claim = self._claims.get(record.run_id(index))
            if claim is not None:
                claim.answered = True

    # -- starts -------------------------------------------------------------------------------------------------------

    def started(self, process: Process, job: Job, key: RunKey, fence: int | None) -> None:
        """A process was spawned. S2, S3, S5, S6."""
        at = key.scheduled_at
        assert at is not None
        node, world = process.node, self._world
        claimed = fence is not None
        before = self._starts.setdefault((job.name, at), [])
        lateness = world.wall() - at
        late = lateness > LATE and key.attempt == 0
        self.counts.starts += 1
        self.counts.late += late
        self.counts.retries += key.attempt > 0
        if key.attempt == 0:
            self.counts.worst_lateness = max(self.counts.worst_lateness, lateness)
        notes = "".join((" late" if late else "", f" attempt {key.attempt}" if key.attempt else ""))
        world.log(node.name, f"starts {job.name} {self._text(at)}{notes}{f' fence {fence}' if claimed else ''}")
        self._decided.setdefault((job.name, at), world.engine.at)
        if fence is not None:
            self._fence_given(process, f"{job.name} {self._text(at)}", fence)
            self._claimed_start(process, job, key, before)
        elif process.lease is not None and job.options.cluster_policy is ClusterPolicy.LEADER:
            self.violate("S2", f"{node.name} started {job.name} {self._text(at)} without a claim")
        before.append((key.attempt if claimed else -1, node.name))

    def _fence_given(self, process: Process, what: str, fence: int) -> None:
        """S3: what a process is told never falls from one start to the next, whoever starts them."""
        before, self._given = self._given, (fence, process)
        if before is None or fence >= before[0]:
            return
        # A leader whose clocks stood still, or whose lease the store gave up, may act for a while beside the next one.
        if before[1] is process or not self._is_excused():
            self.violate("S3", f"{process.node.name} started {what} with fence {fence} after {before[0]}")

    def _claimed_start(self, process: Process, job: Job, key: RunKey, before: list[tuple[int, str]]) -> None:
        node, at = process.node, key.scheduled_at
        what = f"{job.name} {self._text(at or 0)} attempt {key.attempt}"
        claim = self._claims.get(key.run_id)
        if claim is None or (claim.job, claim.at, claim.attempt) != (job.name, at, key.attempt):
            self.violate("S2", f"{node.name} started {what} without a claim in the log")
        elif claim.given_up and self._froze.get(node.name, -1.0) < claim.landed and not self._is_excused():
            self.violate("S2", f"{node.name} started {what} after it was written off")
        others = [name for attempt, name in before if attempt == key.attempt]
        if others and (job.name, at) not in self._ahead_of_time:
            self.counts.duplicates += 1
            self.violate("S2", f"{what} was started by {others[0]} and by {node.name}")
        if key.trigger is Trigger.RETRY:
            owner = next((name for attempt, name in reversed(before) if attempt == key.attempt - 1), node.name)
            if owner != node.name:
                self.violate("S6", f"{node.name} goes on with the retries of {owner} at {what}")
        deadline = self._deadlines.get(node.name, 0.0)
        if node.now().boot >= deadline:
            self.violate("S5", f"{node.name} started {what} {node.now().boot - deadline:.3f} s after its deadline")

    def decided(self, node: Node, job: Job, at: EpochSeconds, decision: Decision) -> None:
        """O1: a terminal record that came first is the only one; the ring sees to it, and this to the ring."""
        process = node.process
        if process is None:
            return
        key = (f"{node.name}/{process.number}", job.name, at)
        if key in self._verdicts:
            self.violate("O1", f"{node.name} has two terminal records of {job.name} {self._text(at)}")
        self._verdicts[key] = decision.verdict
        if decision.reason is Reason.OUTSIDE_WINDOW:
            self.counts.skips[decision.reason] = self.counts.skips.get(decision.reason, 0) + 1
        elif decision.verdict is Verdict.SKIP and (process.claims is None or not is_claimable(job)):
            self.counts.skips[decision.reason] = self.counts.skips.get(decision.reason, 0) + 1
            self._decided.setdefault((job.name, at), self._world.engine.at)

    # -- liveness -----------------------------------------------------------------------------------------------------

    def working(self, name: str, works: bool) -> None:
        """Somebody can claim and start, or cannot any more."""
        now = self._world.engine.at
        if works and self._since is None:
            self._since = (name, now)
        elif not works and self._since is not None and self._since[0] == name:
            self._close(now)

    def is_working(self, name: str) -> bool:
        """Whether this node counts as the one that can claim and start."""
        return self._since is not None and self._since[0] == name

    def disturbed(self, name: str) -> None:
        """What was going on at this node is broken off."""
        if self._since is not None and self._since[0] == name:
            self._close(self._world.engine.at)

    def _close(self, now: float) -> None:
        assert self._since is not None
        if now - self._since[1] > 1.0:
            self._working.append((self._since[1], now))
        self._since = None

    def stood_down(self, seconds: Seconds) -> None:
        """A node does not ask for the lease for so long."""
        self._abstain_until = max(self._abstain_until, self._world.engine.at + seconds + 30.0)

    def calm(self) -> None:
        """L1: faults are over for as long as a takeover takes, so exactly one node leads."""
        found = [n.name for n in self._world.nodes if n.process and n.process.lease and n.process.lease.leads()]
        if self._world.engine.at < self._abstain_until:
            # A node whose clock made it unfit leaves the lease to others, and there may be none.
            return
        if len(found) != 1:
            self.violate("L1", f"{len(found)} nodes lead in calm: {', '.join(found) or 'none'}")
        elif not any(n.process and n.process.claims and n.process.claims.works() for n in self._world.nodes):
            self.violate("L1", f"{found[0]} leads in calm and has not opened its term")

    def finish(self, due: Mapping[str, tuple[EpochSeconds, ...]], end: float) -> None:
        """L2: whatever was due and could be decided was."""
        if self._since is not None:
            self._close(self._world.engine.at)
        window, start = self._world.window, self._world.start
        if self._forgot is not None:
            self._covered.append((self._forgot - window, math.floor(start + end)))
        floor = self._floor if self._floor is not None else 0
        for name, fires in due.items():
            for at in fires:
                self.counts.due += 1
                if (name, at) in self._decided:
                    continue
                self.counts.misses += 1
                first, last = at - start, min(at - start + window - 5.0, end)
                if any(since < at <= covered + 1 for since, covered in self._covered):
                    continue
                if at > floor + 1 and any(min(b, last) - max(a, first) >= ENOUGH for a, b in self._working):
                    self.violate("L2", f"{name} {self._text(at)} was neither started nor skipped")

    def _text(self, at: EpochSeconds) -> str:
        return f"T={at - int(self._world.start)}"
