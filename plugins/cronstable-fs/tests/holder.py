"""A process that takes a lease, says so, and then does what it is told: one word a line, answered by ``done WORD PID``.

Run as a script: ``holder.py PATH``. ``fork``: a child without exec, that waits. ``child``: one with exec, that waits.
``exec``: become another program, in place. ``PID`` is that of the child, or our own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import anyio
from cronstable_fs.layout import Layout
from cronstable_fs.lease import FilesystemLeaseStore

from cronstable.api import Held, Holder, Observation
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.host import FakeHost


def store_at(path: str, name: str) -> FilesystemLeaseStore:
    """A store as a daemon has it, with the real clock, disk and threads."""
    host: Any = FakeHost(SystemClock(), name, fs=SystemFiles())
    host.threads, host.ids = ThreadLanes(), SystemIds()
    return FilesystemLeaseStore(
        host, Layout.of(path, "default", "life"), "life", ttl=3600.0, op_timeout=30.0, signs=True
    )


async def acquire(path: str, name: str) -> Observation:
    """Take the lease if it is free."""
    ids = SystemIds()
    return await store_at(path, name).acquire(Holder(name, ids.token()), 3600.0, nonce=ids.token())


def obey(word: str) -> int:
    """Do what is told; the process to speak of."""
    if word == "fork":
        pid = os.fork()
        if pid == 0:
            signal.pause()
        return pid
    if word == "child":
        # As a job is started, but for closing what is open: that must not matter.
        return subprocess.Popen(["sleep", "3600"], close_fds=False).pid
    if word == "exec":
        again = f"print('done exec', {os.getpid()}, flush=True); import signal; signal.pause()"
        os.execv(sys.executable, [sys.executable, "-c", again])
    raise ValueError(word)


def main() -> None:
    """Hold on until killed."""
    answer = anyio.run(acquire, sys.argv[1], "holder")
    print("held" if isinstance(answer, Held) else answer, flush=True)
    for line in sys.stdin:
        word = line.strip()
        print("done", word, obey(word), flush=True)
    os._exit(3)


if __name__ == "__main__":
    main()
