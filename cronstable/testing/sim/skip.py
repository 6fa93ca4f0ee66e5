"""Leaving out stretches in which nothing happens but renewals and looks, as most of a cluster's life is.

A cluster in which one node leads, the others follow, nothing is due, nothing runs and nothing is wrong does the same
again and again: the leader renews, the others see it. Where that goes on until something is due at H, time goes on at
once to a whole number of renewals later, shortly before H: every instant of the lease that counts from a renewal or
from a look is as much later then. The core's machine does not tell the difference: it compares instants with one
another and with now, and nothing else. From there to H every renewal and every look is done for real, so that also
what chance makes of them is, at H, what it would have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, assert_never

from cronstable.core import lease
from cronstable.core.clock import Seconds
from cronstable.core.lease_values import Acquire, InFlight, LeaseState, Observe, Phase, Release, Renew, Request
from cronstable.core.store import Grant, LeaseRecord, Seen
from cronstable.core.values import replace
from cronstable.testing.sim.dice import GRID
from cronstable.testing.sim.engine import Alarm, Fiber, Sort, on_grid
from cronstable.testing.sim.faults import Moment

if TYPE_CHECKING:
    from cronstable.testing.sim.node import Node, Process
    from cronstable.testing.sim.world import World

ROUNDS: Final = 1
"""Renewals that are done for real before something happens: once all have seen one nothing of what was before is left.
"""
AGAIN: Seconds = 1.0
"""When it is looked again whether a stretch can be left out."""


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
        ahead = self._ahead()
        if ahead <= at + 2 * AGAIN:
            return ahead
        leader = self._leader() if self._is_calm() else None
        period = self._period(leader) if leader is not None else 0.0
        if leader is None or not period:
            return at + AGAIN
        runway = max(ROUNDS * period + self._world.network.poll, self._world.idle) + AGAIN
        rounds = math.floor((ahead - runway - at) / period)
        if rounds < 1:
            return ahead
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
        return ahead

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
        return all(not process.stopping and process.runs.is_idle for process in self._processes())

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
            and (state.in_flight is None or isinstance(state.in_flight.request, Observe))
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
        shifting: dict[Fiber, Process] = {}
        looking: dict[Fiber, Process] = {}
        for process in self._processes():
            assert process.lease is not None
            state = process.lease.state
            # Until when it asked to be left out is an instant of its own, and comes when it comes.
            process.lease.state = replace(later(state, by), abstain_until=state.abstain_until)
            if process.node is leader:
                process.lease.renewals = tuple(at + by for at in process.lease.renewals)
            if process.lease_fiber is not None:
                shifting[process.lease_fiber] = process
            if process.claims_fiber is not None:
                looking[process.claims_fiber] = process
        held = world.network.lease
        assert held.record is not None
        held.record = _record(held.record, by)
        world.checker.skipped(leader.name, by)
        world.log("world", f"nothing happens for {by:.3f} s")

        def move(at: float, sort: Sort, alarm: Callable[[], None]) -> tuple[float, Callable[[], None]] | None:
            if sort is Sort.HELD:
                return at + by, alarm
            assert isinstance(alarm, Alarm)
            if alarm.stale:
                return None
            if alarm.fiber in shifting:
                return at + by, Alarm(alarm.fiber, alarm.ticket, alarm.until + by, alarm.value)
            process = looking.get(alarm.fiber)
            if process is not None and process.claims is not None:
                boot = process.now().boot + by
                return on_grid(to + process.claims.next_look(boot) - boot), alarm
            return max(at, to), alarm

        world.engine.leap(to, move)
