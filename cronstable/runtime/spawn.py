"""The seam to processes: spawn, read, wait, signal (DESIGN 3).

A vfork (``runtime/start.py``), a pidfd for the exit (``runtime/exits.py``), and reader callbacks of the event loop for
the pipes: no thread per child and no child watcher. A process that ended stays a zombie until ``release``: so long,
the kernel gives neither its number nor that of its group to anybody else, and a late signal cannot hit a stranger.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from cronstable.core.values import dataclass
from cronstable.runtime.exits import Exits
from cronstable.runtime.identity import Identity
from cronstable.runtime.start import Child, start

Stream: TypeAlias = Literal["stdout", "stderr"]

CHUNK = 256 * 1024
"""Bytes read at once: large enough that lines, not system calls, cost the time."""
LAST_DRAIN = 2 * 1024 * 1024
"""Bytes still read of a stream after ``end_output``: all that a pipe holds, and not what a survivor keeps writing."""

PIDFD_OPEN: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
HAS_PROC = sys.platform == "linux"

_HELPER = str(Path(__file__).with_name("exec_helper.py"))


class SpawnFailed(Exception):
    """The command could not be started; the message says why, in words for the run's record."""


@dataclass(frozen=True, slots=True)
class SpawnSpec:
    """What to start. ``env`` is the whole environment. A stream that is not captured goes where the daemon's own goes.

    ``cwd`` None: the daemon's directory. ``identity`` None: the daemon's own user.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    capture_stdout: bool = False
    capture_stderr: bool = False
    identity: Identity | None = None


class Process(Protocol):
    """A spawned process, leader of a session and of a process group of its own."""

    @property
    def pid(self) -> int:
        """Number of the process and of its group."""
        ...

    @property
    def direct(self) -> bool:
        """The command itself runs already; else ``started`` tells when it does."""
        ...

    async def started(self) -> None:
        """Return once the command itself runs. Raises ``SpawnFailed`` when it does not come to that."""
        ...

    def when_over(self, call: Callable[[], None]) -> None:
        """Call ``call`` when it ended; at once when it has."""
        ...

    async def wait(self) -> int | None:
        """Wait for the end: the exit code, -N after signal N; None when somebody else has taken the status."""
        ...

    async def read(self, stream: Stream) -> bytes:
        """The next bytes of a captured stream; empty at its end. One reader per stream."""
        ...

    def end_output(self) -> None:
        """Give what is in the pipes to the readers, then end the streams, whoever else still holds them."""
        ...

    def signal_group(self, signum: int) -> None:
        """Send a signal to every process of the group; nothing happens when there is none left."""
        ...

    def group_alive(self) -> bool:
        """Whether any process of the group, the leader included, still runs."""
        ...

    def renice(self, nice: int) -> None:
        """Set the nice value of the whole group. Raises ``OSError`` when that is not allowed."""
        ...

    def release(self) -> None:
        """Close everything and collect the zombie, now or when the process ends. No calls after this one."""
        ...


class Spawner(Protocol):
    """Starts processes."""

    def spawn(self, spec: SpawnSpec) -> Process:
        """Start a process without waiting for anything. Raises ``SpawnFailed``."""
        ...


class PosixSpawner:
    """Starts real processes. ``pidfd_open`` None: there is none, a waiter thread per process stands in."""

    def __init__(self, pidfd_open: Callable[[int], int] | None = PIDFD_OPEN) -> None:
        self._pidfd_open = pidfd_open
        self._exits = Exits()
        self._living: dict[int, PosixProcess] = {}

    def owned(self) -> frozenset[int]:
        """Numbers of the processes whose status belongs to this spawner: the reaper leaves them alone."""
        return frozenset(self._living)

    def spawn(self, spec: SpawnSpec) -> PosixProcess:
        """Start a process in its own session, stdin empty, with no other descriptor of the daemon."""
        pipes: dict[Stream, tuple[int, int]] = {}
        status: tuple[int, int] | None = None
        plan: int | None = None
        try:
            if spec.capture_stdout:
                pipes["stdout"] = os.pipe()
            if spec.capture_stderr:
                pipes["stderr"] = os.pipe()
            argv, env, cwd = spec.argv, spec.env, spec.cwd
            extra: tuple[int, ...] = ()
            if spec.identity is not None:
                plan = _write_plan(spec, spec.identity)
                status = os.pipe()
                argv = (sys.executable, "-I", "-S", _HELPER, str(plan), str(status[1]))
                env, cwd, extra = {}, None, (plan, status[1])
            child = start(
                argv,
                stdout=pipes["stdout"][1] if "stdout" in pipes else None,
                stderr=pipes["stderr"][1] if "stderr" in pipes else None,
                env=env,
                cwd=cwd,
                keep=extra,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            for reading, _ in [*pipes.values(), *([status] if status else [])]:
                os.close(reading)
            raise SpawnFailed(_why(error, spec)) from error
        finally:
            for _, writing in [*pipes.values(), *([status] if status else [])]:
                os.close(writing)
            if plan is not None:
                os.close(plan)
        ends = {stream: reading for stream, (reading, _) in pipes.items()}
        process = PosixProcess(child, ends, status[0] if status else None, self._living)
        self._living[child.pid] = process
        process.watch(self._pidfd_open, self._exits)
        return process


def clean_signal_state() -> None:
    """Undo what whoever started the daemon may have left behind. Main thread, once, at start.

    Under an ignored ``SIGCHLD`` the kernel throws exit codes away, and jobs would inherit blocked signals: a job that
    cannot be reached by ``SIGTERM`` would be killed at each shutdown.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _write_plan(spec: SpawnSpec, identity: Identity) -> int:
    """The exec helper's orders in an anonymous file, inheritable by ``pass_fds`` only."""
    plan = {
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "cwd": spec.cwd,
        "uid": identity.uid,
        "gid": identity.gid,
        "groups": list(identity.groups),
    }
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(plan).encode())
        file.flush()
        return os.dup(file.fileno())


def _why(error: Exception, spec: SpawnSpec) -> str:
    if not isinstance(error, OSError):
        return f"cannot start {spec.argv[0]!r}: {error}"
    reason = error.strerror or str(error)
    if spec.cwd is not None and error.filename == spec.cwd:
        return f"cannot enter the working directory {spec.cwd!r}: {reason}"
    if error.errno == errno.ENOENT:
        return f"cannot start {spec.argv[0]!r}: {reason} (the command, or the interpreter in its first line)"
    return f"cannot start {spec.argv[0]!r}: {reason}"


class PosixProcess:
    """A process of this machine. Made by ``PosixSpawner``, on the event loop's thread."""

    def __init__(
        self,
        child: Child,
        ends: Mapping[Stream, int],
        status: int | None,
        living: dict[int, PosixProcess],
    ) -> None:
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._pipes = {stream: _Pipe(self._loop, fd) for stream, fd in ends.items()}
        self._status = _Pipe(self._loop, status) if status is not None else None
        self._living = living
        self._ended = False
        self._when_over: list[Callable[[], None]] = []
        self._code: int | None = None
        self._collected = False
        self._released = False

    @property
    def pid(self) -> int:
        """Number of the process and of its group."""
        return self._child.pid

    # -- the end ------------------------------------------------------------------------------------------------------

    def watch(self, pidfd_open: Callable[[int], int] | None, exits: Exits) -> None:
        """Watch for the end: by pidfd, or by a thread where there is none (old kernels, macOS, no descriptor left)."""
        pidfd: int | None = None
        try:
            if pidfd_open is None:
                raise OSError(errno.ENOSYS, "no pidfd")
            pidfd = pidfd_open(self.pid)
            exits.watch(pidfd, self._on_exit)
        except OSError:
            if pidfd is not None:
                os.close(pidfd)
            threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()

    def _on_exit(self) -> None:
        self._on_end(*_peek(self.pid, os.WNOHANG))

    def _wait_in_thread(self) -> None:
        code, collected = _peek(self.pid, 0)
        try:
            self._loop.call_soon_threadsafe(self._on_end, code, collected)
        except RuntimeError:
            # The loop is closed: the daemon is on its way out and nobody waits for this process any more.
            return

    def _on_end(self, code: int | None, collected: bool) -> None:
        self._code = code
        self._collected = collected
        self._ended = True
        for call in self._when_over:
            call()
        self._when_over.clear()
        if self._released:
            self._collect()

    def when_over(self, call: Callable[[], None]) -> None:
        """Call ``call`` when it ended; at once when it has."""
        if self._ended:
            call()
        else:
            self._when_over.append(call)

    async def wait(self) -> int | None:
        """Wait for the end: the exit code, -N after signal N; None when somebody else has taken the status."""
        if not self._ended:
            over = asyncio.Event()
            self.when_over(over.set)
            await over.wait()
        return self._code

    def _collect(self) -> None:
        if not self._collected:
            # When somebody else was faster, nothing is lost: the exit code was read before.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        self._collected = True
        self._child.collected(self._code)
        self._living.pop(self.pid, None)

    def release(self) -> None:
        """Close everything and collect the zombie, now or when the process ends."""
        if self._released:
            return
        self._released = True
        for pipe in [*self._pipes.values(), *([self._status] if self._status else [])]:
            pipe.close()
        if self._ended:
            self._collect()

    # -- the start ----------------------------------------------------------------------------------------------------

    @property
    def direct(self) -> bool:
        """No exec helper stands between: the command runs since the spawn."""
        return self._status is None

    async def started(self) -> None:
        """Return once the command itself runs: at once, but for the exec helper's answer."""
        if self._status is None:
            return
        answer = b""
        while data := await self._status.read():
            answer += data
        self._status.close()
        self._status = None
        if answer == b"ok":
            return
        if answer:
            raise SpawnFailed(answer.removeprefix(b"ok").decode("utf-8", "replace"))
        raise SpawnFailed("the helper that switches users ended without an answer")

    # -- output -------------------------------------------------------------------------------------------------------

    async def read(self, stream: Stream) -> bytes:
        """The next bytes of a captured stream; empty at its end."""
        return await self._pipes[stream].read()

    def end_output(self) -> None:
        """Give what is in the pipes to the readers, then end the streams."""
        for pipe in self._pipes.values():
            pipe.end()

    # -- the group ----------------------------------------------------------------------------------------------------

    def signal_group(self, signum: int) -> None:
        """Send a signal to every process of the group."""
        if self._released:
            return
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            # None left; or macOS, which answers EPERM for a group of zombies.
            return

    def group_alive(self) -> bool:
        """Whether any process of the group still runs; one that is a zombie does not."""
        return not self._ended or any(pid != self.pid for pid in _group_members(self.pid))

    def renice(self, nice: int) -> None:
        """Set the nice value of the whole group."""
        os.setpriority(os.PRIO_PGRP, self.pid, nice)


def _peek(pid: int, flags: int) -> tuple[int | None, bool]:
    """The exit code of an ended child, and whether it is collected with that (where there is no ``waitid``)."""
    try:
        if not hasattr(os, "waitid"):
            return os.waitstatus_to_exitcode(os.waitpid(pid, flags)[1]), True
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | flags)
    except ChildProcessError:
        return None, True
    if result is None:
        return None, False
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status, False


def _group_members(group: int) -> list[int]:
    """Numbers of the group's processes that are not zombies."""
    members = []
    for pid in _pids():
        try:
            if os.getpgid(pid) == group and not _is_zombie(pid):
                members.append(pid)
        except (ProcessLookupError, PermissionError):
            # Gone since it was listed; or not ours to look at, and then not of this group.
            continue
    return members


def _pids() -> list[int]:
    if HAS_PROC:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    import psutil

    return psutil.pids()


def _is_zombie(pid: int) -> bool:
    if HAS_PROC:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return True
        return stat[stat.rindex(b")") + 2 :][:1] in (b"Z", b"X")
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class _Pipe:
    """The reading end of a pipe, owned by the event loop. One reader at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self._fd: int | None = fd
        self._waiter: asyncio.Future[None] | None = None
        self._armed = False
        self._left: int | None = None

    async def read(self) -> bytes:
        """The next bytes, waiting for them; empty at the end of the stream and when it was ended or closed."""
        while self._fd is not None and (self._left is None or self._left > 0):
            try:
                data = os.read(self._fd, CHUNK)
            except BlockingIOError:
                if self._left is not None:
                    break
                await self._readable(self._fd)
                continue
            except OSError:
                break
            if not data:
                break
            if self._left is not None:
                self._left -= len(data)
            return data
        self.close()
        return b""

    async def _readable(self, fd: int) -> None:
        self._waiter = self._loop.create_future()
        if not self._armed:
            self._loop.add_reader(fd, self._on_readable)
            self._armed = True
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _on_readable(self) -> None:
        if self._waiter is not None:
            self._wake()
        elif self._fd is not None and self._armed:
            # Nobody reads: take no notice until somebody does, or the loop would spin.
            self._loop.remove_reader(self._fd)
            self._armed = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """Let the reader have what is there and no more."""
        if self._left is None:
            self._left = LAST_DRAIN
            self._wake()

    def close(self) -> None:
        """Close the descriptor; a waiting reader sees the end."""
        if self._fd is None:
            return
        if self._armed:
            self._loop.remove_reader(self._fd)
            self._armed = False
        os.close(self._fd)
        self._fd = None
        self._wake()
