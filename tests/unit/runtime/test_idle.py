"""A daemon that has nothing to do wakes up rarely, and for everything at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from cronstable.runtime.daemon import Daemon
from cronstable.testing.clock import VirtualClock, VirtualLoop

NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600
BOOT = 1231.25
LOOKS_AT_FILES = 58.0
"""Second of the minute: the one time of its own that an idle daemon has."""


class NotedLoop(VirtualLoop):
    """Keeps the instants at which anything ran."""

    def __init__(self) -> None:
        self.instants: set[float] = set()
        super().__init__()

    def time(self) -> float:
        """Virtual seconds, as of the loop underneath."""
        now = super().time()
        self.instants.add(now)
        return now


@pytest.fixture
def idle(lone_daemon: Callable[[VirtualClock], Daemon]) -> Callable[[float], list[float]]:
    """Seconds after noon at which a daemon was awake that runs for so long, the first two minutes left out."""

    def instants(seconds: float) -> list[float]:
        loop = NotedLoop()

        async def main() -> None:
            clock = VirtualClock.of_loop(wall=NOON, boot=BOOT)
            daemon = lone_daemon(clock)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(daemon.run)
                await clock.sleep(seconds)
                daemon.request_stop()

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())
        return sorted(at for at in loop.instants if 120.0 < at < seconds)

    return instants


def test_an_idle_daemon_is_awake_each_five_seconds_for_everything_and_once_a_minute_for_its_files(
    idle: Callable[[float], list[float]],
) -> None:
    instants = idle(3720.0)
    own = [at for at in instants if (BOOT + at) % 5.0]
    assert [at % 60.0 for at in own] == [LOOKS_AT_FILES] * 60
    assert len(instants) - len(own) == 3600 / 5


def test_limits_of_lateness_are_looked_at_after_each_full_minute_where_a_job_has_some(
    config: Path, idle: Callable[[float], list[float]]
) -> None:
    config.write_text(config.read_text().replace('1 *"', '1 *", sla: {maxRuntimeSeconds: 5}'))
    own = {at % 60.0 for at in idle(600.0) if (BOOT + at) % 5.0}
    assert own == {LOOKS_AT_FILES, 0.5}
