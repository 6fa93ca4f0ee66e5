"""The locked section: the only place where a lease file or a document is written.

A lock is a mutex for these few calls and nothing more. A file server that restarts forgets it without telling us, so
the section doubts it: before the rename and after it a second descriptor must be refused the lock, the file is read
again right before the rename and right after, and nothing is renamed once the caller's time is up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from cronstable.api import Clock, FileSystem
from cronstable_fs import disk
from cronstable_fs.layout import Place

R = TypeVar("R")


class Busy(Enum):
    """Another descriptor has the lock."""

    BUSY = "busy"


BUSY: Final = Busy.BUSY


class LockLostError(Exception):
    """The lock was not ours while we were inside.

    ``written``: it was found after the rename, which may thus have covered another node's write.
    """

    def __init__(self, *, written: bool) -> None:
        super().__init__("the lock was lost inside a locked section")
        self.written = written


class TooLateError(Exception):
    """The caller gave up before anything was renamed: nothing was written."""


@dataclass(slots=True)
class Attempt:
    """One try, shared by the loop that waits for it and the thread that carries it out.

    ``deadline``: boot seconds after which nothing may be renamed. ``started``: the thread began. ``written``: a rename
    or link was at least tried. ``abandoned``: the loop no longer waits.
    """

    clock: Clock
    deadline: float
    started: bool = False
    written: bool = False
    abandoned: bool = False

    def commit(self) -> None:
        """The last step before a rename; raises ``TooLateError`` instead when nobody waits or the time is up.

        The flag first: a loop that abandons this attempt and then finds ``written`` False knows that nothing follows.
        """
        self.written = True
        self.insist()

    def insist(self) -> None:
        """Raise ``TooLateError`` unless somebody still waits and there is time left."""
        if self.abandoned or self.clock.now().boot >= self.deadline:
            raise TooLateError


class Section:
    """What a body may do while it holds the lock. Lives for one attempt, in one thread."""

    def __init__(self, fs: FileSystem, place: Place, attempt: Attempt, unique: str, platform: str) -> None:
        self._fs = fs
        self._place = place
        self._attempt = attempt
        self._temporary = os.path.join(place.tmp, f"{unique}.tmp")
        self._platform = platform

    def run(self, body: Callable[[Section], R]) -> R | Busy:
        """Take the lock without waiting, call ``body``, let go. Raises ``OSError`` and what ``body`` raises."""
        self._attempt.started = True
        self._attempt.insist()
        fd = self._open_lock()
        try:
            if not self._fs.lock(fd):
                return BUSY
            try:
                return body(self)
            finally:
                with contextlib.suppress(OSError):
                    self._fs.unlock(fd)
        finally:
            disk.close_quietly(self._fs, fd)

    def read(self) -> bytes | None:
        """The file as it is now, None when there is none."""
        return disk.read_file(self._fs, self._place.file, self._place.limit)

    def write(self, before: bytes | None, data: bytes, *, durable: bool) -> bytes | None:
        """Put ``data`` in the place of ``before`` and return what stands there afterwards.

        The answer differs from ``data`` when another node wrote although we hold the lock. ``durable``: the new name
        survives a crash of the server too (needed when the fence changes). Raises ``LockLostError``, ``TooLateError``.
        """
        disk.create_file(self._fs, self._temporary, data)
        renamed = False
        try:
            self._prove_lock(written=False)
            found = self.read()
            if found != before:
                return found
            self._attempt.commit()
            if before is None:
                self.publish_new(self._temporary, self._place.file)
            else:
                self._fs.replace(self._temporary, self._place.file)
                renamed = True
        finally:
            if not renamed:
                # After a rename that failed this matters: should it come through late, it finds nothing to rename.
                disk.unlink_quietly(self._fs, self._temporary)
        if durable:
            disk.sync_directory(self._fs, self._place.directory, self._platform)
        found = self.read()
        if found == data:
            self._prove_lock(written=True)
        return found

    def remove(self, before: bytes) -> bytes | None:
        """Take the file away if ``before`` stands there; return what stands there afterwards. Durable.

        Bytes that were covered by a write of another node go with them only while the lock is lost: see ``write``.
        """
        self._prove_lock(written=False)
        found = self.read()
        if found != before:
            return found
        self._attempt.commit()
        self._fs.unlink(self._place.file)
        disk.sync_directory(self._fs, self._place.directory, self._platform)
        found = self.read()
        if found is None:
            self._prove_lock(written=True)
        return found

    def create(self, directory: str, path: str, data: bytes) -> bytes | None:
        """Create ``path`` with ``data`` unless it exists; return what stands there afterwards. Durable."""
        disk.create_file(self._fs, self._temporary, data)
        try:
            self._prove_lock(written=False)
            self._attempt.commit()
            self.publish_new(self._temporary, path)
        finally:
            disk.unlink_quietly(self._fs, self._temporary)
        disk.sync_directory(self._fs, directory, self._platform)
        return disk.read_file(self._fs, path, self._place.limit)

    def name(self, directory: str, path: str, data: bytes) -> bytes | None:
        """Like ``create``, by ``link()`` and nothing else: a mount without hard links is an error here.

        A rename in its place would put our bytes over those of another node whose lock was lost.
        """
        disk.create_file(self._fs, self._temporary, data)
        try:
            self._prove_lock(written=False)
            self._attempt.commit()
            with contextlib.suppress(FileExistsError):
                self._fs.link(self._temporary, path)
        finally:
            disk.unlink_quietly(self._fs, self._temporary)
        disk.sync_directory(self._fs, directory, self._platform)
        return disk.read_file(self._fs, path, self._place.limit)

    def put(self, directory: str, path: str, data: bytes) -> None:
        """Replace ``path`` by ``data``. Durable."""
        disk.create_file(self._fs, self._temporary, data)
        try:
            self._prove_lock(written=False)
            self._attempt.commit()
            self._fs.replace(self._temporary, path)
        finally:
            disk.unlink_quietly(self._fs, self._temporary)
        disk.sync_directory(self._fs, directory, self._platform)

    def put_reserved(self, directory: str, path: str, data: bytes) -> None:
        """Reserve ``path`` with an empty file and put ``data`` there; ``FileExistsError`` when it is taken. Durable."""
        disk.create_file(self._fs, self._temporary, data)
        try:
            self._prove_lock(written=False)
            self._attempt.commit()
            disk.create_file(self._fs, path, b"")
            self._fs.replace(self._temporary, path)
        except OSError:
            disk.unlink_quietly(self._fs, self._temporary)
            raise
        disk.sync_directory(self._fs, directory, self._platform)

    def sync(self, directory: str) -> None:
        """Make durable what an earlier section may have named there."""
        disk.sync_directory(self._fs, directory, self._platform)

    @property
    def written(self) -> bool:
        """Whether a link or a rename was at least tried."""
        return self._attempt.written

    def publish_new(self, source: str, target: str) -> None:
        """Name ``source`` ``target`` if that is free. Whether it was, the read-back tells, not the answer.

        A server that repeats a request after a lost answer reports "exists" for our own success.
        """
        with contextlib.suppress(FileExistsError):
            disk.publish_new(self._fs, source, target)

    def _prove_lock(self, *, written: bool) -> None:
        """Raise ``LockLostError`` unless a second descriptor, opened by name, is refused the lock."""
        fd = self._open_lock()
        try:
            if self._fs.lock(fd):
                with contextlib.suppress(OSError):
                    self._fs.unlock(fd)
                raise LockLostError(written=written)
        finally:
            disk.close_quietly(self._fs, fd)

    def _open_lock(self) -> int:
        return disk.open_or_create(self._fs, self._place.lock, os.O_RDWR)
