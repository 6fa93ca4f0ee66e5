"""Collects orphans when the daemon is PID 1 of a container, or a child subreaper.

Processes whose parent ended are then handed to the daemon and stay zombies until it waits for them. ``waitpid(-1)``
would do that and also steal exit codes from whoever waits for a child of their own. So children are looked at one by
one: those of the spawner are never touched, and any other only after it has been a zombie for a while, because a
library in this process may have started it and be about to ask for its exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from cronstable.core.clock import Clock, Seconds, until_next

PATIENCE: Seconds = 2.0
"""How long a zombie is left to whoever may have started it."""
LONG_ROUND: Seconds = 60.0
"""A look without a signal: SIGCHLD is merged by the kernel and may be lost to another handler."""

_PR_GET_CHILD_SUBREAPER = 37


def must_reap() -> bool:
    """Whether orphans are handed to this process."""
    if os.getpid() == 1:
        return True
    if sys.platform != "linux":
        return False
    # Here and not above: nearly every daemon gets by without, and it is four tenths of a MiB.
    import ctypes

    flag = ctypes.c_int(0)
    answer: int = ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return answer == 0 and flag.value != 0


class Reaper:
    """Waits for children that are nobody's. ``owned``: numbers that belong to the spawner, asked afresh each time."""

    def __init__(self, owned: Callable[[], Collection[int]], clock: Clock, patience: Seconds = PATIENCE) -> None:
        self._owned = owned
        self._clock = clock
        self._patience = patience
        self._seen: dict[int, float] = {}
        self.collected = 0

    async def run_where_needed(self, needed: Callable[[], bool] = must_reap) -> None:
        """Collect as PID 1; elsewhere from the first child on that is nobody's, if orphans are handed to us."""
        if os.getpid() != 1:
            if sys.platform != "linux":
                return
            while not self._strangers():
                await self._clock.sleep(until_next(LONG_ROUND, self._clock.now()))
            if not needed():
                return
        await self.run()

    def _strangers(self) -> bool:
        """Somebody's child is here that may be an orphan; so it is said where nobody can look."""
        try:
            return bool(set(_children()) - set(self._owned()))
        except OSError:
            return True

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Collect until cancelled."""
        task_status.started()
        while True:
            # Listening begins before the look, so that no exit falls between the two; and ends before the nap, so that
            # a thousand jobs that end cost one look and not a thousand.
            with anyio.open_signal_receiver(signal.SIGCHLD) as exits:
                if not self.collect():
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._nap, LONG_ROUND, tasks.cancel_scope)
                        async for _ in exits:
                            tasks.cancel_scope.cancel()
            await self._clock.sleep(self._patience)

    async def _nap(self, seconds: Seconds, scope: anyio.CancelScope) -> None:
        await self._clock.sleep(seconds)
        scope.cancel()

    def collect(self) -> bool:
        """Take zombies whose time has come; whether others still wait for theirs."""
        now = self._clock.now().boot
        owned = self._owned()
        strangers = [pid for pid in _children() if pid not in owned and _is_zombie(pid)]
        # One that is gone was collected by its own; if its number comes back, that one gets a time of its own.
        self._seen = {pid: self._seen.get(pid, now) for pid in strangers}
        for pid, since in list(self._seen.items()):
            if now - since < self._patience:
                continue
            # Its own may still be faster, and then there is nothing to do.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
                self.collected += 1
            del self._seen[pid]
        return bool(self._seen)


def _children() -> list[int]:
    """Children of every thread of this process; by parent where the kernel keeps no such list."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # None at all, which is what an idle daemon hears: one call instead of a walk through /proc.
        return []
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except FileNotFoundError:
            if task.exists():
                return _children_by_parent()
    return sorted(found)


def _children_by_parent() -> list[int]:
    own = str(os.getpid()).encode()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _stat(int(name))[1:2] == [own]]


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] == [b"Z"]


def _stat(pid: int) -> list[bytes]:
    """State and parent of a process, nothing when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return stat[stat.rindex(b")") + 2 :].split(maxsplit=2)[:2]
