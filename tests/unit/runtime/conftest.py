"""A daemon with nothing around it but a clock: what it asks for besides is an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cronstable.config import load
from cronstable.plugin.manager import load_plugins
from cronstable.runtime.daemon import Daemon, Parts
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.host import Seams
from cronstable.runtime.reaper import Reaper
from cronstable.testing.clock import VirtualClock
from cronstable.testing.host import InlineThreads, NoHttp, NoProcesses, SeededIds, SeededRng


def _never(*args: object) -> Any:
    raise AssertionError("nothing is configured that this would be asked for")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file of a job that is due once a year."""
    path = tmp_path / "c.yaml"
    path.write_text('jobs:\n  - {name: a, command: "true", schedule: "0 0 1 1 *"}\n')
    return path


@pytest.fixture
def lone_daemon(config: Path) -> Callable[[VirtualClock], Daemon]:
    """Make a daemon of ``config`` as it is by then."""

    def make(clock: VirtualClock) -> Daemon:
        plugins = load_plugins({})
        first = load(str(config), plugins=plugins, environ={}, hostname="node-a")
        assert first.config is not None, first.findings
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
            make_election=_never,
            make_service=_never,
            make_notifier=_never,
            make_store=_never,
            make_execute=lambda host, hub, node: _never,
            load=lambda: first,
            hostname="node-a",
            log=logging.Logger("test"),
            configure_logging=lambda section: None,
            reaper=Reaper(frozenset, clock),
        )
        return Daemon(first, first.config, parts)

    return make
