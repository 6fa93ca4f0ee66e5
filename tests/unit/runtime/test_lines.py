"""How long a job waits for whoever reads the daemon's stdout."""

from __future__ import annotations

from typing import Any

from cronstable.runtime.execute import PATIENCE, Lines
from cronstable.runtime.output import OutputHub
from cronstable.testing.clock import VirtualClock, run_virtual


class Reader:
    """A console whose reader a test commands."""

    congested = True


def test_a_reader_that_never_reads_costs_a_job_its_patience_once_and_again_only_after_it_has_read() -> None:
    waited: list[float] = []

    async def play() -> None:
        console: Any = Reader()
        clock = VirtualClock.of_loop()
        lines = Lines(console, OutputHub(), clock)

        async def ready() -> None:
            before = clock.now().boot
            await lines.ready()
            waited.append(clock.now().boot - before)

        for congested in (False, True, True, True, False, True):
            console.congested = congested
            await ready()

    run_virtual(play)
    assert [round(w / PATIENCE, 1) for w in waited] == [0, 1, 0, 0, 0, 1]
