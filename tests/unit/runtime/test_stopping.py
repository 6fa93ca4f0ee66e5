"""What a daemon that is told to stop does at that instant."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from cronstable.runtime.backlog import Backlog
from cronstable.runtime.daemon import Daemon


@pytest.mark.anyio
async def test_the_ends_that_a_burst_holds_back_are_told_as_from_before_the_stop() -> None:
    launcher = SimpleNamespace(ends=Backlog(), stopping=False, busy=1)
    nothing = SimpleNamespace(
        stop=lambda: None, let_go=lambda keep: None, poke=lambda: None, guards=lambda run_id: False
    )
    daemon: Any = SimpleNamespace(
        _log=logging.getLogger("test"),
        _stop=anyio.Event(),
        launcher=launcher,
        retries=nothing,
        durable=SimpleNamespace(inflight=nothing),
        guard=nothing,
        scheduler=nothing,
    )
    told: list[bool] = []
    launcher.ends.hold()
    launcher.ends.do("a", lambda: told.append(launcher.stopping))
    Daemon.request_stop(daemon)
    assert told == [False]
    assert launcher.stopping
    assert daemon._stop.is_set()
