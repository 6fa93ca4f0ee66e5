"""Starting a program: ``posix_spawn`` where it can do what is asked, ``subprocess.Popen`` for the rest.

Both share the daemon's memory with the child until the exec (vfork), and both tell why an exec failed. What a Popen
adds, an error pipe and an object of its own, is a fifth of what a run costs the daemon (decision 0006).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ) if sys.platform != "win32" else ()
"""What Python ignores for itself and a program must not inherit."""
_CAN_SPAWN = sys.platform == "linux" and hasattr(os, "posix_spawn")


class Child:
    """A program that was started. ``pid`` is also its session and its group."""

    __slots__ = ("_popen", "pid")

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._popen = popen

    def collected(self, code: int | None) -> None:
        """Its status was taken: nobody must look for this number again, which may be another's from now on."""
        if self._popen is not None:
            self._popen.returncode = code if code is not None else 0


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    keep: Sequence[int] = (),
) -> Child:
    """Start ``argv`` in a session of its own, stdin empty; ``stdout``, ``stderr`` None: the daemon's own.

    Of the daemon's other descriptors it gets those in ``keep``. Raises ``OSError``, ``ValueError`` or
    ``subprocess.SubprocessError``.
    """
    if _CAN_SPAWN and cwd is None and not keep and "/" in argv[0]:
        return Child(_posix_spawn(argv, env, stdout, stderr))
    popen = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        pass_fds=keep,
        start_new_session=True,
    )
    return Child(popen.pid, popen)


def _posix_spawn(argv: Sequence[str], env: Mapping[str, str], stdout: int | None, stderr: int | None) -> int:
    actions: list[tuple[object, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, at) for fd, at in ((stdout, 1), (stderr, 2)) if fd is not None]
    return os.posix_spawn(argv[0], tuple(argv), env, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS)


def keep_descriptors_from_children() -> None:
    """Mark what the daemon was started with, beyond the three standard ones, as its own. Main thread, once, at start.

    Python opens everything so; only what whoever started us left open would reach the jobs.
    """
    for name in os.listdir("/dev/fd") if Path("/dev/fd").is_dir() else ():
        fd = int(name)
        if fd > 2:
            try:
                os.set_inheritable(fd, False)
            except OSError:
                # The descriptor of this very listing.
                continue
