"""What is said of a lock that was not had in time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from cronstable_fs.access import Access
from cronstable_fs.layout import Layout
from cronstable_fs.section import BUSY

from cronstable.api import StoreUnavailable
from cronstable.runtime.files import SystemFiles
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost


class Lane:
    """A thread that answers "busy" so many times, and then not in time."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def run(self, call: object, *, timeout: float, lane: str) -> Any:
        if self.refusals == 0:
            raise TimeoutError
        self.refusals -= 1
        return BUSY


@pytest.mark.parametrize(
    ("refusals", "said"), [(0, "no answer from the mount"), (1, "the lock was not free"), (3, "the lock was not free")]
)
def test_a_mount_that_said_that_the_lock_is_held_has_answered(tmp_path: Path, refusals: int, said: str) -> None:
    async def story() -> None:
        host: Any = FakeHost(VirtualClock.of_loop(), "a", fs=SystemFiles())
        host.threads = Lane(refusals)
        access = Access(host, str(tmp_path), (), op_timeout=1.0, lane="fs", platform="linux", made=True)
        place = Layout.of(str(tmp_path), "default", "e").place(100)
        with pytest.raises(StoreUnavailable, match=said):
            await access.locked("write", place, lambda section: None)

    run_virtual(story)


@pytest.mark.parametrize(("refusals", "acquired"), [(0, 1), (3, 1), (1000, 0)])
def test_locks_and_the_waiting_for_them_are_counted(tmp_path: Path, refusals: int, acquired: int) -> None:
    class Refusing(Lane):
        async def run(self, call: Any, *, timeout: float, lane: str) -> Any:
            return await super().run(call, timeout=timeout, lane=lane) if self.refusals else "done"

    async def story() -> None:
        clock = VirtualClock.of_loop()
        host: Any = FakeHost(clock, "a", fs=SystemFiles())
        host.threads = Refusing(refusals)
        access = Access(host, str(tmp_path), (), op_timeout=1.0, lane="fs", platform="linux", made=True)
        place = Layout.of(str(tmp_path), "default", "e").place(100)
        before = clock.now().boot
        with contextlib.suppress(StoreUnavailable):
            await access.locked("write", place, lambda section: None)
        assert access.acquisitions == acquired
        assert access.waited == pytest.approx(clock.now().boot - before)
        assert (access.waited > 0) == (refusals > 0)

    run_virtual(story)
