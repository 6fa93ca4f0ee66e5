"""The real file system: ``FileSystem`` (plugin/protocols.py) over ``os``, one call each, nothing remembered.

Interrupted calls are repeated by Python itself (PEP 475). That leaves out rename, link and unlink on purpose: after an
interrupted one nobody knows whether it took effect, so a store reads back instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final, Protocol, cast

_MOUNTS: Final = "/proc/self/mounts"


class Locks(Protocol):
    """How this platform takes an exclusive advisory lock on an open file."""

    def lock(self, fd: int) -> bool:
        """Take it without waiting; False when another descriptor has it. Raises ``OSError``."""
        ...

    def unlock(self, fd: int) -> None:
        """Let it go. Raises ``OSError``."""
        ...


class Flock:
    """flock(2): bound to the open file description, so two descriptors of one process exclude each other."""

    def __init__(self) -> None:
        self._fcntl = importlib.import_module("fcntl")

    def lock(self, fd: int) -> bool:
        """See ``Locks.lock``."""
        try:
            self._fcntl.flock(fd, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """See ``Locks.unlock``."""
        self._fcntl.flock(fd, self._fcntl.LOCK_UN)


class _Msvcrt(Protocol):
    LK_NBLCK: int
    LK_UNLCK: int

    def locking(self, fd: int, mode: int, nbytes: int) -> None: ...


class ByteRange:
    """Windows: a mandatory lock on the first byte, which may lie beyond the end of the file."""

    def __init__(self) -> None:
        self._msvcrt = cast("_Msvcrt", importlib.import_module("msvcrt"))

    def lock(self, fd: int) -> bool:
        """See ``Locks.lock``."""
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            self._msvcrt.locking(fd, self._msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """See ``Locks.unlock``."""
        os.lseek(fd, 0, os.SEEK_SET)
        self._msvcrt.locking(fd, self._msvcrt.LK_UNLCK, 1)


class SystemFiles:
    """Implements ``cronstable.api.FileSystem``. Every call may block for as long as the mount pleases."""

    def __init__(self, platform: str = sys.platform, mount_table: str = _MOUNTS) -> None:
        self._locks: Locks = ByteRange() if platform == "win32" else Flock()
        self._binary = int(getattr(os, "O_BINARY", 0))
        self._mount_table = mount_table

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """A descriptor that no child process inherits."""
        return os.open(path, flags | self._binary, mode)

    def read(self, fd: int, n: int) -> bytes:
        """At most ``n`` bytes; empty at the end."""
        return os.read(fd, n)

    def write(self, fd: int, data: bytes) -> int:
        """How many bytes went out, perhaps fewer than given."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Return once the data is on stable storage."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close; a network file system may report a failed write only here."""
        os.close(fd)

    def lock(self, fd: int) -> bool:
        """Take an exclusive advisory lock without waiting; False when another descriptor has it."""
        return self._locks.lock(fd)

    def unlock(self, fd: int) -> None:
        """Let the lock go."""
        self._locks.unlock(fd)

    def replace(self, source: str, target: str) -> None:
        """Rename over whatever stands at ``target``."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """A second name for a file; ``FileExistsError`` when the name is taken."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def makedirs(self, path: str, mode: int = 0o700) -> None:
        """Create a directory and its missing parents, each with ``mode``; fine when it exists already."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.makedirs(parent, mode)
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        return os.listdir(path)

    def mtime(self, path: str) -> float:
        """Modification time in wall seconds, by the clock of whoever keeps the file."""
        return os.stat(path).st_mtime

    def inode(self, fd: int) -> tuple[int, int]:
        """Device and number of an open file. While it is open, no other file of this machine has the same."""
        status = os.fstat(fd)
        return status.st_dev, status.st_ino

    def mounts(self) -> str | None:
        """The text of /proc/self/mounts, or None where there is none."""
        try:
            with open(self._mount_table, encoding="utf-8", errors="surrogateescape") as table:
                return table.read()
        except OSError:
            return None
