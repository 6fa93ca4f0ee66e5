"""A daemon that has nothing to do wakes up rarely, and for everything at once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import anyio
import pytest

from cronstable.config import load
from cronstable.plugin.manager import load_plugins
from cronstable.runtime.daemon import Daemon, Parts
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.host import Seams
from cronstable.runtime.reaper import Reaper
from cronstable.testing.clock import VirtualClock, VirtualLoop
from cronstable.testing.host import InlineThreads, NoHttp, NoProcesses, SeededIds, SeededRng

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


def idle(path: Path, seconds: float) -> list[float]:
    """Seconds after noon at which a daemon was awake that runs ``path`` for so long, the first two minutes left out."""
    plugins = load_plugins({})
    loop = NotedLoop()

    async def main() -> None:
        clock = VirtualClock.of_loop(wall=NOON, boot=BOOT)
        first = load(str(path), plugins=plugins, environ={}, hostname="node-a")
        assert first.config is not None, first.findings

        def never(*args: object) -> object:
            raise AssertionError("nothing is configured that this would be asked for")

        parts = Parts(
            seams=Seams(
                clock=clock,
                rng=SeededRng(),
                ids=SeededIds(),
                fs=SystemFiles(),
                http=NoHttp(),
                threads=InlineThreads(clock),
                processes=NoProcesses(),
            ),
            plugins=plugins,
            make_election=never,  # type: ignore[arg-type]  # never called
            make_service=never,  # type: ignore[arg-type]  # as above
            make_notifier=never,  # type: ignore[arg-type]  # as above
            make_store=never,  # type: ignore[arg-type]  # as above
            make_execute=lambda host, hub, node: never,  # type: ignore[arg-type,return-value]  # as above
            load=lambda: first,
            hostname="node-a",
            log=logging.Logger("test"),
            configure_logging=lambda section: None,
            reaper=Reaper(frozenset, clock),
        )
        daemon = Daemon(first, first.config, parts)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.run)
            await clock.sleep(seconds)
            daemon.request_stop()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    return sorted(at for at in loop.instants if 120.0 < at < seconds)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text('jobs:\n  - {name: a, command: "true", schedule: "0 0 1 1 *"}\n')
    return path


def test_an_idle_daemon_is_awake_each_five_seconds_for_everything_and_once_a_minute_for_its_files(
    config: Path,
) -> None:
    instants = idle(config, 3720.0)
    own = [at for at in instants if (BOOT + at) % 5.0]
    assert [at % 60.0 for at in own] == [LOOKS_AT_FILES] * 60
    assert len(instants) - len(own) == 3600 / 5


def test_limits_of_lateness_are_looked_at_after_each_full_minute_where_a_job_has_some(config: Path) -> None:
    config.write_text(config.read_text().replace('1 *"', '1 *", sla: {maxRuntimeSeconds: 5}'))
    own = {at % 60.0 for at in idle(config, 600.0) if (BOOT + at) % 5.0}
    assert own == {LOOKS_AT_FILES, 0.5}
