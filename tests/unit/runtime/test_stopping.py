"""What a daemon that is told to stop does at that instant."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from cronstable.runtime.backlog import Backlog
from cronstable.runtime.daemon import Daemon
from cronstable.testing.clock import VirtualClock, run_virtual


@pytest.mark.anyio
async def test_the_ends_that_a_burst_holds_back_are_told_as_from_before_the_stop() -> None:
    launcher = SimpleNamespace(ends=Backlog(), stopping=False, busy=1)
    nothing = SimpleNamespace(
        stop=lambda: None, let_go=lambda keep: None, poke=lambda: None, guards=lambda run_id: False
    )
    daemon: Any = SimpleNamespace(
        _log=logging.getLogger("test"),
        _stop=anyio.Event(),
        _clock=SimpleNamespace(now=lambda: SimpleNamespace(boot=7.0)),
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
    assert daemon._stop_asked_at == 7.0
    assert launcher.stopping
    assert daemon._stop.is_set()


def test_a_daemon_that_is_told_twice_to_stop_ends_its_runs_and_waits_for_no_store() -> None:
    done: list[str] = []
    daemon: Any = SimpleNamespace(
        _log=logging.getLogger("test"),
        launcher=SimpleNamespace(stopping=True, busy=1),
        cluster=SimpleNamespace(hurry=lambda: done.append("hurry")),
        _end_runs=lambda: done.append("end"),
    )
    Daemon.request_stop(daemon)
    assert done == ["end", "hurry"]


@pytest.mark.parametrize(("began", "patience"), [(7.0, 8.0), (12.0, 3.0), (20.0, 0.0)])
def test_what_the_daemon_did_first_is_taken_from_the_time_that_runs_have(began: float, patience: float) -> None:
    ended: list[float] = []

    async def story() -> None:
        clock = VirtualClock.of_loop()
        asked = clock.now().boot
        idle = anyio.Event()

        def end_runs() -> None:
            ended.append(clock.now().boot - asked)
            idle.set()
            launcher.busy = 0

        launcher = SimpleNamespace(busy=1, idle=idle.wait, live=lambda: {"a": ()})
        daemon: Any = SimpleNamespace(
            _log=logging.Logger("test"),
            _clock=clock,
            _forced=False,
            _stop_asked_at=asked,
            _parts=SimpleNamespace(shutdown_grace=15.0),
            launcher=launcher,
            _end_runs=end_runs,
        )
        await clock.sleep(began)
        await Daemon._drain(daemon, anyio.CancelScope())

    run_virtual(story)
    assert ended == [began + patience]


@pytest.mark.parametrize("runs_end_after", [0.0, 3.0, 20.0])
def test_the_time_that_runs_have_to_end_begins_at_once_and_not_after_the_release(
    lone_daemon: Callable[[VirtualClock], Daemon], monkeypatch: pytest.MonkeyPatch, runs_end_after: float
) -> None:
    told: list[tuple[float, str]] = []

    async def story() -> None:
        clock = VirtualClock.of_loop()
        daemon = lone_daemon(clock)

        def note(what: str) -> None:
            told.append((clock.now().boot - stopped, what))

        async def takes(seconds: float, what: str) -> None:
            note(what)
            with anyio.CancelScope(shield=True):
                await clock.sleep(seconds)
            note(f"{what} over")

        async def drain_claims() -> None:
            note("inform")
            try:
                await anyio.sleep_forever()
            finally:
                note("inform over")

        monkeypatch.setattr(daemon.claims, "stop", lambda: takes(1.0, "settle"))
        monkeypatch.setattr(daemon.cluster, "stop", lambda reason: takes(4.0, "release"))
        monkeypatch.setattr(daemon.claims, "drain", drain_claims)
        monkeypatch.setattr(daemon.claims, "leave", lambda: takes(0.0, "leave"))
        monkeypatch.setattr(daemon, "_drain", lambda scope: takes(runs_end_after, "runs"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.run)
            await clock.sleep(5)
            stopped = clock.now().boot
            daemon.request_stop()

    run_virtual(story)
    whole = max(5.0, runs_end_after)
    assert sorted(told) == sorted(
        [
            (0.0, "settle"),
            (0.0, "runs"),
            (1.0, "settle over"),
            (1.0, "release"),
            (5.0, "release over"),
            (runs_end_after, "runs over"),
            (5.0, "inform"),
            (whole, "inform over"),
            (whole, "leave"),
            (whole, "leave over"),
        ]
    )
