"""Small blocking pieces over ``FileSystem``: whole-file reads and writes that assume nothing about the mount.

Called in a thread, never on the event loop. All raise ``OSError``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from cronstable.api import FileSystem

STALE_RETRIES: Final = 3
"""A handle goes stale when another host replaces the file between our look-up and our call; looking again heals it."""

_CHUNK: Final = 64 * 1024
_AT_ONCE: Final[int] = getattr(os, "O_NONBLOCK", 0)
NO_FILE: Final = frozenset({errno.EISDIR, errno.EAGAIN, errno.ENXIO, errno.ELOOP})
"""What a directory says, a pipe into which somebody may still write, a socket, and a link to itself."""
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
_NO_DIRECTORY_SYNC: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF})


def read_file(fs: FileSystem, path: str, limit: int) -> bytes | None:
    """Everything in ``path``, at most ``limit`` + 1 bytes; None when there is no such file.

    Opens afresh each time: NFS promises to show another host's close only to a later open. A pipe in its place holds up
    nobody.
    """
    for last in (False,) * (STALE_RETRIES - 1) + (True,):
        try:
            fd = _open_at_once(fs, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE or last:
                raise
            continue
        try:
            return _read_all(fs, fd, limit)
        except OSError as error:
            if error.errno != errno.ESTALE or last:
                raise
        finally:
            close_quietly(fs, fd)
    raise AssertionError("unreachable: the last round returns or raises")


def read_plain_file(fs: FileSystem, path: str, limit: int) -> bytes | None:
    """As ``read_file``, where anybody may have put something else: what is no file has no content."""
    try:
        return read_file(fs, path, limit)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return b""


def _open_at_once(fs: FileSystem, path: str) -> int:
    try:
        return fs.open(path, os.O_RDONLY | _AT_ONCE)
    except BlockingIOError:
        # A file of which this host's own file server has lent the contents to another one. It is asked for them back.
        return fs.open(path, os.O_RDONLY)


def _read_all(fs: FileSystem, fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size <= limit:
        part = fs.read(fd, min(_CHUNK, limit + 1 - size))
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def create_file(fs: FileSystem, path: str, data: bytes) -> None:
    """A new file with these bytes on stable storage, or no file at all (as far as the mount lets us remove it)."""
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[fs.write(fd, bytes(rest)) :]
            fs.fsync(fd)
        except BaseException:
            close_quietly(fs, fd)
            raise
        # Over NFS a full disk may show only here, so this close is not a quiet one.
        fs.close(fd)
    except BaseException:
        unlink_quietly(fs, path)
        raise


def open_or_create(fs: FileSystem, path: str, access: int) -> int:
    """A descriptor of ``path``, made empty when it is missing. ``access``: O_RDWR or O_WRONLY.

    Of hosts that make it at the same moment, GlusterFS tells the slower ones "exists", which no local disk would say
    without O_EXCL: what exists is opened.
    """
    for last in (False,) * (STALE_RETRIES - 1) + (True,):
        try:
            return fs.open(path, access | os.O_CREAT, 0o600)
        except FileExistsError:
            if last:
                raise
        with contextlib.suppress(FileNotFoundError):
            return fs.open(path, access)
    raise AssertionError("unreachable: the last round returns or raises")


def touch(fs: FileSystem, path: str) -> None:
    """A file without content that says something by being there; fine when it is."""
    fs.close(open_or_create(fs, path, os.O_WRONLY))


def publish_new(fs: FileSystem, source: str, target: str) -> None:
    """Give ``source`` the name ``target`` only if that is free; ``FileExistsError`` otherwise. Hold the lock.

    link() asks the server, so a name that this host wrongly remembers as absent cannot be overwritten. Where a mount
    has no hard links, the lock alone must do.
    """
    try:
        fs.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        fs.replace(source, target)


def sync_directory(fs: FileSystem, path: str, platform: str) -> None:
    """Make the names in ``path`` durable, where a directory can be synced at all."""
    if platform == "win32":
        return
    fd = fs.open(path, os.O_RDONLY)
    try:
        fs.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        close_quietly(fs, fd)


def close_quietly(fs: FileSystem, fd: int) -> None:
    """Close what was only read, or what has failed already."""
    with contextlib.suppress(OSError):
        fs.close(fd)


def unlink_quietly(fs: FileSystem, path: str) -> None:
    """Remove a temporary name if it is there; the sweep at start gets what stays behind."""
    with contextlib.suppress(OSError):
        fs.unlink(path)


def unlink_present(fs: FileSystem, path: str) -> None:
    """Remove a name that somebody else may have removed."""
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(path)


def describe(error: OSError) -> str:
    """An ``OSError`` for the log, without its number."""
    text = error.strerror or str(error) or type(error).__name__
    return f"{text}: {error.filename}" if error.filename else text
