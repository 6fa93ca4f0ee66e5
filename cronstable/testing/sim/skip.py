"""Leaving out stretches in which nothing happens but renewals and looks, as most of a cluster's life is.

A cluster in which one node leads, the others follow, nothing is due, nothing runs and nothing is wrong does the same
again and again: the leader renews, the others see it. Where that goes on until something is due at H, time goes on at
once to a whole number of renewals later, shortly before H: every instant of the lease that counts from a renewal or
from a look is as much later then. The core's machine does not tell the difference: it compares instants with one
another and with now, and nothing else. From there to H every renewal is done for real, one at least that all have seen
by then, so that also what chance makes of them is, at H, what it would have been. Looks at a claim log in which nothing
changes are taken in by the machines themselves, the last one for all of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, assert_never

from cronstable.core import lease
from cronstable.core.clock import Seconds
from cronstable.core.lease_values import Acquire, InFlight, LeaseState, Observe, Phase, Release, Renew, Request
from cronstable.core.store import Grant, LeaseRecord, Seen
from cronstable.core.values import replace
from cronstable.testing.sim.dice import GRID
from cronstable.testing.sim.engine import Alarm, Fiber, Sort, Waiting, on_grid
from cronstable.testing.sim.faults import Moment
from cronstable.testing.sim.runs import RETRIES_REST

if TYPE_CHECKING:
    from cronstable.testing.sim.node import Node, Process
    from cronstable.testing.sim.world import World

SHORTEST: Final[Seconds] = 4.0
"""Leaving out less than this costs as much as it saves."""
SETTLED: Final[Seconds] = 1.5
"""A look was answered by then, however long its ways to the store and back took."""
TRIES: Final = 4
"""So many renewals are considered for the first one that is done for real."""


def later(state: LeaseState, by: Seconds) -> LeaseState:
    """The same state of a lease ``by`` seconds later: one whose renewals and looks were all so much later."""
    flight = state.in_flight
    if flight is not None:
        flight = InFlight(_request(flight.request, by), flight.sent + by)
    standing = state.standing
    if standing is not None:
        standing = replace(standing, record=_record(standing.record, by), since=standing.since + by)
    return replace(
        state,
        grant=None if state.grant is None else _grant(state.grant, by),
        deadline=_plus(state.deadline, by),
        quorum_until=_plus(state.quorum_until, by),
        expiry=_plus(state.expiry, by),
        standing=standing,
        in_flight=flight,
        next_at=state.next_at + by,
        vacant_since=_plus(state.vacant_since, by),
        doubt=_plus(state.doubt, by),
        stop_by=state.stop_by + by,
        abstain_until=state.abstain_until + by,
    )


def _request(request: Request, by: Seconds) -> Request:
    match request:
        case Observe(until, cut):
            return Observe(until + by, _plus(cut, by))
        case Acquire(over=over):
            return replace(request, over=None if over is None else Seen(_record(over.record, by)), by=request.by + by)
        case Renew(grant) | Release(grant):
            return replace(request, grant=_grant(grant, by), by=request.by + by)
        case _:
            assert_never(request)


def _plus(at: float | None, by: Seconds) -> float | None:
    return None if at is None else at + by


def _record(record: LeaseRecord, by: Seconds) -> LeaseRecord:
    return replace(record, expires_at=_plus(record.expires_at, by))


def _grant(grant: Grant, by: Seconds) -> Grant:
    return replace(grant, expires_at=_plus(grant.expires_at, by))


class Skipper:
    """Looks for such stretches in a world, and leaves them out."""

    def __init__(self, world: World) -> None:
        self._world = world

    def skip(self) -> float:
        """Go to shortly before what happens next, if nothing does until then; see ``Engine.skip``."""
        at = self._world.engine.at
        if any(not process.runs.is_idle for process in self._processes()):
            return at
        leader = self._leader() if self._is_calm() else None
        period = self._period(leader) if leader is not None else 0.0
        if leader is None or not period:
            return at
        ahead = self._ahead()
        rounds = self._rounds(leader, period, ahead)
        if rounds * period >= SHORTEST:
            self._leave_out(leader, rounds * period)
        return ahead

    # -- whether ------------------------------------------------------------------------------------------------------

    def _ahead(self) -> float:
        """When something happens that is no renewal and no look."""
        world = self._world
        ahead = min(world.engine.next_fixed(), world.setup.seconds)
        for process in self._processes():
            due = process.runs.next_due()
            if due is not None:
                ahead = min(ahead, world.engine.at + due - process.now().wall)
            claimed = process.claims.next_at() if process.claims is not None else None
            if claimed is not None:
                ahead = min(ahead, world.engine.at + claimed - process.now().wall)
        return ahead

    def _rounds(self, leader: Node, period: Seconds, ahead: float) -> int:
        """How many renewals can be left out, so that all have seen the next one when something happens."""
        world, process = self._world, leader.process
        assert process is not None
        assert process.lease is not None
        assert process.claims is not None
        boot, next_at = process.now().boot, process.lease.state.next_at
        others = [one.node for one in self._processes() if one is not process]
        first = world.engine.at + next_at - boot
        most = math.floor((ahead - first) / period)
        for rounds in range(most, max(0, most - TRIES), -1):
            sent, to = first + rounds * period, boot + rounds * period
            look = process.claims.last_look(to)
            if (
                # The last one that is left out must not be under way when the first real one lands, ...
                world.network.seen_at(sent - period, leader, others) < sent
                # ... which is all that is remembered of renewals when something happens, ...
                and world.network.seen_at(sent, leader, others) < min(ahead, sent + period)
                # ... and nor may the last look that is left out be under way then.
                and (look <= boot or look + SETTLED < to + ahead - world.engine.at - rounds * period)
            ):
                return rounds
        return 0

    def _processes(self) -> list[Process]:
        return [node.process for node in self._world.nodes if node.process is not None]

    def _is_calm(self) -> bool:
        """Nothing is wrong, nothing runs, and no fault waits for what goes on all the time."""
        world = self._world
        if world.network.wrong or world.waits_for(Moment.RENEWING):
            return False
        for node in world.nodes:
            if node.cut or node.halted or not node.clock.runs_true or node.clock.error(world.engine.at):
                return False
        return not any(process.stopping for process in self._processes())

    def _leader(self) -> Node | None:
        """The one that leads, when it and all others have settled."""
        leaders = [p for p in self._processes() if p.lease is not None and p.lease.state.grant is not None]
        if len(leaders) != 1 or not self._leads_on(leaders[0]):
            return None
        me = leaders[0]
        return me.node if all(p is me or self._follows(p, me) for p in self._processes()) else None

    def _leads_on(self, process: Process) -> bool:
        assert process.lease is not None
        assert process.claims is not None
        state, record = process.lease.state, self._world.network.lease.record
        return (
            state.leading
            and state.in_flight is None
            and not (state.failures or state.retry_due or state.rekey or state.short_ttl or state.resigning)
            and process.lease.leads()
            and not self._world.network.lease.released
            and record is not None
            and record.holder == state.me
            and state.grant is not None
            and state.grant.nonce == record.nonce
            and process.claims.is_idle()
        )

    def _follows(self, process: Process, leader: Process) -> bool:
        assert process.lease is not None
        assert leader.lease is not None
        assert process.claims is not None
        state, boot = process.lease.state, process.now().boot
        return (
            state.phase is Phase.RUNNING
            and lease.is_quorate(state, boot)
            and not (state.failures or state.retry_due or state.rekey or state.vacant or state.doubt)
            and state.standing is not None
            and state.standing.record.holder == leader.lease.state.me
            and state.in_flight is not None
            and isinstance(state.in_flight.request, Observe)
            and self._world.network.is_watching(process.node)
            and process.claims.is_idle()
        )

    @staticmethod
    def _period(leader: Node) -> Seconds:
        """From one renewal to the next, as long as that is always the same; else 0."""
        assert leader.process is not None
        assert leader.process.lease is not None
        renewals, at = leader.process.lease.renewals, leader.world.engine.at
        if len(renewals) < 3:
            return 0.0
        first, second, third = renewals
        period = third - second
        # Also the next one is to come just then: a clock that drifted until now measured another second.
        ahead = leader.process.lease.state.next_at - leader.now().boot
        steady = period == second - first and abs(third + period - at - ahead) < 2 / GRID
        return period if steady else 0.0

    # -- and how ------------------------------------------------------------------------------------------------------

    def _leave_out(self, leader: Node, by: Seconds) -> None:
        world = self._world
        to = world.engine.at + by
        fibers: dict[Fiber | None, Process] = {}
        for process in self._processes():
            assert process.lease is not None
            assert process.claims is not None
            if process.node is leader:
                process.lease.renewals = tuple(at + by for at in process.lease.renewals)
                process.claims.pass_over_looks(process.now().boot + by)
            state = process.lease.state
            # Until when it asked to be left out is an instant of its own, and comes when it comes.
            process.lease.state = replace(later(state, by), abstain_until=state.abstain_until)
            own = (process.lease_fiber, process.claims_fiber, process.schedule_fiber, process.retries_fiber)
            fibers |= dict.fromkeys(own, process)
        held = world.network.lease
        assert held.record is not None
        held.record = _record(held.record, by)
        world.checker.skipped(leader.name, by)
        world.log("world", f"nothing happens for {by:.3f} s")

        def move(at: float, sort: Sort, waiting: Waiting) -> tuple[float, Waiting]:
            if sort is Sort.HELD:
                return at + by, waiting
            assert isinstance(waiting, Alarm)
            process = fibers.get(waiting.fiber)
            if process is None:
                moved = max(at, to)
            elif waiting.fiber is process.lease_fiber:
                moved = at + by
            elif waiting.fiber is process.claims_fiber:
                moved = self._next_look(process, by)
            elif waiting.fiber is process.schedule_fiber:
                moved = process.runs.wakes(at, to)
            else:
                moved = at + (math.ceil((to - at) / RETRIES_REST) * RETRIES_REST if at < to else 0.0)
            return moved, Alarm(waiting.fiber, waiting.ticket, waiting.until + moved - at, waiting.value)

        world.engine.leap(to, move)

    def _next_look(self, process: Process, by: Seconds) -> float:
        """When the claims of a process are looked at next: at its fixed instants, and by a leader when one is due."""
        assert process.claims is not None
        now, at = process.now(), self._world.engine.at
        boot = now.boot + by
        look, due = at + by + process.claims.next_look(boot) - boot, process.claims.next_at()
        return on_grid(look if due is None else min(look, at + due - now.wall))
