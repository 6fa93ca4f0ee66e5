"""The simulator: N nodes of the shipped state machines on an event heap, with faults, and what must hold (DESIGN 3, 4).

    from cronstable.testing.sim import Kind, Setup, simulate

    result = simulate(Setup(jobs=jobs, backend="etcd", nodes=5, seconds=86_400, seed="7", kinds=(Kind.KILL,)))
    assert not result.violations, result.violations

The lease, the claim log, the sweep, the gate, the agenda, overlap, retries and unfinished runs are the daemon's own
(``cronstable.core``); around them are interpreters of their commands, a store in memory (``cronstable.testing.memory``)
and a network, all on one heap of events: no event loop, no threads, no clock of this machine. The same version, setup
and seed give the same log, byte for byte. ``shrink`` finds the few faults that a violation needs.
"""

from __future__ import annotations

from cronstable.testing.sim.checker import Counts, Violation
from cronstable.testing.sim.faults import ALL_KINDS, Fault, How, Kind, Moment
from cronstable.testing.sim.flavour import FLAVOURS
from cronstable.testing.sim.shrink import shrink
from cronstable.testing.sim.world import Result, Setup, simulate

__all__ = [
    "ALL_KINDS",
    "FLAVOURS",
    "Counts",
    "Fault",
    "How",
    "Kind",
    "Moment",
    "Result",
    "Setup",
    "Violation",
    "shrink",
    "simulate",
]
