"""A killed process does nothing more."""

from __future__ import annotations

from cronstable.testing.sim import Setup
from cronstable.testing.sim.engine import Sleep, Steps
from cronstable.testing.sim.node import Process
from cronstable.testing.sim.world import World


def test_a_task_that_a_killed_process_still_asks_for_never_begins() -> None:
    world = World(Setup(jobs=(), nodes=1))
    begun = []

    def steps(name: str) -> Steps[None]:
        begun.append(name)
        yield Sleep(0.0)

    alive, dead = Process(world.nodes[0], 1), Process(world.nodes[0], 2)
    dead.end()
    alive.start(steps("alive"))
    dead.start(steps("dead"))
    world.engine.run(1.0)
    assert begun == ["alive"]
