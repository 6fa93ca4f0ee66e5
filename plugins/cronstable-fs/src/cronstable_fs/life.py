"""Signs of life: the proof that the process of a holder has ended, so that nobody need wait for its ttl (ADR 0042).

A process that may hold the lease keeps a file of its own locked for as long as it lives. The kernel lets go of that
lock when the process has ended, however it ended, and not while it is slow, stopped or frozen. Whoever gets the lock
of the very file that the lease names has the proof. Any doubt is none: then the lease stands still for its ttl.

Blocking: for threads only. Proofs are given and taken on file systems of one kernel only, see ``probe.is_one_kernel``.
"""

from __future__ import annotations

import bisect
import os.path
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cronstable.api import FileSystem
from cronstable_fs import disk
from cronstable_fs.probe import is_one_kernel, mount_of

KERNEL: Final = "/proc/sys/kernel/random/boot_id"
"""Drawn at boot, and no matter of namespaces: containers of one kernel agree, two machines never do."""

TIDIED: Final = 50
"""Files of the dead that are looked at when a new one is made: each process makes one, so this catches up."""

ASTRAY: Final = 4
"""Files that were taken away under this process and stay open: their directory may be put back, old lease and all."""

_MAX_BYTES: Final = 200
_NAME: Final = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class Sign:
    """What the lease says of its holder's file. ``name``: below the directory. ``kernel``: whose lock it is.

    ``inode``: which file: a copy, or one that was put back, has the same name and content, but another inode.
    """

    name: str
    kernel: str
    inode: str


class SignsOfLife:
    """The sign of this process, and those of others, for one lease.

    ``directory``: where they are. ``unique``: draws a name that nobody ever drew.
    """

    def __init__(self, fs: FileSystem, directory: str, unique: Callable[[], str]) -> None:
        self._fs = fs
        self._directory = directory
        self._unique = unique
        self._mine: tuple[int, Sign] | None = None
        self._astray: list[tuple[int, Sign]] = []

    # -- of this process

    @property
    def is_made(self) -> bool:
        """This process has a sign."""
        return self._mine is not None

    def show(self, named: Sign | None) -> None:
        """See to it that this process has a sign, where one can be trusted. ``named``: by the lease as it stands.

        Raises ``OSError``: then it has none, and its ttl has to be waited for.
        """
        if self._is_shown() or not self._is_one_kernel():
            return
        kernel = self._kernel()
        if kernel is None:
            return
        self._fs.makedirs(self._directory, 0o700)
        name = self._unique()
        self._tidy(named, name)
        path = self._path(name)
        fd = self._fs.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        kept = False
        try:
            # A full disk may take less than everything, and then nobody could believe the file.
            if self._fs.lock(fd) and self._fs.write(fd, _content(name)) == len(_content(name)):
                sign = Sign(name, kernel, self._inode(fd))
                # Whoever tidies up may have had the lock before us: then the name is gone.
                if self._inode_of(path) == sign.inode:
                    if self._mine is not None:
                        self._astray.append(self._mine)
                    self._mine = fd, sign
                    kept = True
        finally:
            if not kept:
                disk.close_quietly(self._fs, fd)
                disk.unlink_quietly(self._fs, path)

    def _is_shown(self) -> bool:
        """This process has a file, and it is where others look for it.

        If it is not, its descriptor stays open all the same until ``let_go_astray``: the lease may name it.
        """
        mine = self._mine
        if mine is None:
            return False
        _, sign = mine
        return self._inode_of(self._path(sign.name)) == sign.inode

    def mine(self) -> Sign | None:
        """The sign of this process if it says the truth now, to be named by a lease that this process writes.

        A descriptor can be closed under us by a mistake anywhere in the process, which frees the lock: then there is no
        sign any more, nor another one. Its number is left alone, since it may be somebody else's by now.
        """
        mine = self._mine
        if mine is None:
            return None
        _, sign = mine
        try:
            free = self._is_free(sign)
        except OSError:
            return None
        if free:
            self._mine = None
            return None
        return sign

    def let_go_astray(self, named: Sign | None) -> None:
        """Close what was removed under this process and replaced, but for the latest, and the one that the lease names.

        Call it inside a locked section, as ``retire``. Raises ``OSError``.
        """
        self._close(self._astray[:-ASTRAY], named)

    def _close(self, astray: Sequence[tuple[int, Sign]], named: Sign | None) -> None:
        for entry in astray:
            fd, sign = entry
            if named is not None and named.name == sign.name:
                continue
            self._astray.remove(entry)
            if self._inode_is(fd, sign):
                self._fs.close(fd)

    def _inode_is(self, fd: int, sign: Sign) -> bool:
        """The descriptor is still that of the file. The directory may be another one by now: it is left out."""
        try:
            device, number = self._fs.inode(fd)
        except OSError:
            # Closed by a mistake anywhere in the process.
            return False
        return sign.inode.split(":", 1)[1] == f"{device}:{number}"

    def retire(self, named: Sign | None) -> None:
        """Take the sign away, unless the lease names it: that says of a process that lives that it has ended.

        Call it inside a locked section, so that no write of ours is on its way. Raises ``OSError``.
        """
        self._close(tuple(self._astray), named)
        mine = self._mine
        if mine is None:
            return
        fd, sign = mine
        if named is not None and named.name == sign.name:
            return
        if self._inode(fd) == sign.inode:
            self._mine = None
            disk.unlink_present(self._fs, self._path(sign.name))
            self._fs.close(fd)

    # -- of others

    def has_ended(self, sign: Sign) -> bool:
        """Whether it is proven that the process that showed ``sign`` has ended. Raises ``OSError``: no proof."""
        return self._is_free(sign) and self._kernel() == sign.kernel and self._is_one_kernel()

    def bury(self, sign: Sign) -> None:
        """Remove the file of a process that has ended, once no lease names it. Raises ``OSError``."""
        if _NAME.fullmatch(sign.name):
            disk.unlink_present(self._fs, self._path(sign.name))

    def _is_free(self, sign: Sign) -> bool:
        """Nobody has the lock of that very file."""
        if not _NAME.fullmatch(sign.name):
            return False
        path = self._path(sign.name)
        try:
            fd = self._fs.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            # Asked first, so that no lock is tried on a file that is not the one.
            if self._inode(fd) != sign.inode or not self._fs.lock(fd):
                return False
            return self._fs.read(fd, _MAX_BYTES) == _content(sign.name)
        finally:
            disk.close_quietly(self._fs, fd)

    def _tidy(self, named: Sign | None, drawn: str) -> None:
        """Remove what the dead left behind: its lock is free and no lease names it.

        The name goes while we have the lock. One who made that file, and has not locked it yet, looks for the name.
        """
        names = sorted(name for name in self._fs.listdir(self._directory) if _NAME.fullmatch(name))
        # Begun at a place that is drawn: some that cannot be removed must not keep the others from being looked at.
        start = bisect.bisect(names, drawn)
        for name in (names[start:] + names[:start])[:TIDIED]:
            if named is None or name != named.name:
                self._remove_if_free(self._path(name))

    def _remove_if_free(self, path: str) -> None:
        try:
            fd = self._fs.open(path, os.O_RDWR)
        except OSError:
            # Gone meanwhile, or something foreign: what cannot be opened is no reason to do without a sign.
            return
        try:
            if self._fs.lock(fd):
                disk.unlink_present(self._fs, path)
        finally:
            disk.close_quietly(self._fs, fd)

    # -- which file, which kernel

    def _inode_of(self, path: str) -> str | None:
        try:
            fd = self._fs.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            return self._inode(fd)
        finally:
            disk.close_quietly(self._fs, fd)

    def _inode(self, fd: int) -> str:
        """With the device of the directory: an overlay and the layer below it may show one file under one number, but
        they lock it apart, and only of directories an overlay always tells its own device."""
        directory = self._fs.open(self._directory, os.O_RDONLY)
        try:
            outer, _ = self._fs.inode(directory)
        finally:
            disk.close_quietly(self._fs, directory)
        device, number = self._fs.inode(fd)
        return f"{outer}:{device}:{number}"

    def _kernel(self) -> str | None:
        data = disk.read_file(self._fs, KERNEL, _MAX_BYTES)
        return (data or b"").decode("ascii", "replace").strip() or None

    def _is_one_kernel(self) -> bool:
        """Asked of the mount table each time: a share may be mounted over the directory while we run."""
        table = self._fs.mounts()
        mount = None if table is None else mount_of(table, os.path.realpath(self._directory))
        return mount is not None and is_one_kernel(mount)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _content(name: str) -> bytes:
    return name.encode() + b"\n"
