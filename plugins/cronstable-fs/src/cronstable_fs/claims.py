"""The claim log: one file per record, named by its number, created by ``link()`` and never written again (claims.md 1).

A record is in the log when its name is; who has the name is decided by the file server, not by a listing, a lock or a
clock. The lock and the lease are looked at as well, so that a term that is over is told so.
"""

from __future__ import annotations

import errno
import os.path
from collections.abc import Callable
from string import hexdigits
from typing import Final

from cronstable.api import Appended, FileSystem, Full, Span, Taken, Won, may_be_record
from cronstable_fs import disk
from cronstable_fs.layout import Layout
from cronstable_fs.record import MAX_BYTES
from cronstable_fs.section import Section

LOW: Final = "low"
"""The file with the lowest number that was not trimmed away."""
DIGITS: Final = 12
TRIM: Final = 200
"""Records removed by one trim."""
STRAYS: Final = 20
"""Files among the records that are put aside before somebody has to clean up."""
STALE_ENTRY: Final = 86_400.0
"""Seconds after which the entry of a process that is gone is removed by whoever writes its own."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class ClaimShelf:
    """The records and the entries of one lease. Blocking: for threads only. All methods raise ``OSError``.

    A file among the records whose name begins with a digit and is none of a record is put aside when its content can
    be no record either, by any version. If it may be one, of a newer version or moved by hand, nobody may claim past
    it; one that cannot be read may be one if its name is a number. ``warn``: an operator should read this.
    """

    def __init__(self, fs: FileSystem, layout: Layout, warn: Callable[[str], None] = lambda text: None) -> None:
        self._fs = fs
        self._layout = layout
        self._warn = warn
        self._aside: set[str] = set()

    # -- records

    def create(self, section: Section, number: int, data: bytes) -> Appended:
        """Give record ``number`` its name, inside a locked section of the term that claims."""
        if number < self.low():
            return Taken(b"")
        path = self._path(number)
        try:
            found = section.name(self._layout.claims, path, data)
        except OSError as error:
            if error.errno in _NO_ROOM and not section.written:
                # It may stand there since an earlier try whose answer was lost.
                found = self.read(number)
                if found is None:
                    return Full()
                section.sync(self._layout.claims)
                return Won(self._fs.mtime(path)) if found == data else Taken(found)
            if error.errno in disk.NO_FILE:
                return Taken(b"")
            raise
        if found != data:
            return Taken(found or b"")
        return Won(self._fs.mtime(path))

    def read(self, number: int) -> bytes | None:
        """Record ``number``; what has its name and is no file is a damaged record."""
        return disk.read_plain_file(self._fs, self._path(number), MAX_BYTES)

    def span(self, temporary: str) -> Span:
        """Where the log begins and ends; ``temporary``: a name for a file of no content.

        That file tells the server's clock, and a change of ours to the directory makes an NFS client look at it anew.
        """
        path = os.path.join(self._layout.claims, temporary)
        disk.create_file(self._fs, path, b"")
        try:
            at = self._fs.mtime(path)
            self._put_aside()
            numbers, low = self._numbers(), self.low()
        finally:
            disk.unlink_quietly(self._fs, path)
        if not numbers:
            # A log of which nothing is left but how far it was trimmed: the next number is not free to choose.
            return Span(low, max(0, low - 1), at)
        # Files that were copied back are older than the mark, and numbers below it are not free either.
        return Span(max(low, min(numbers)), max(low - 1, *numbers), at)

    def low(self) -> int:
        """The lowest number that was not trimmed away, 0 when none was."""
        path = os.path.join(self._layout.claims, LOW)
        data = disk.read_file(self._fs, path, MAX_BYTES)
        if data is None:
            return 0
        try:
            return int(data)
        except ValueError:
            why = "damaged: write the number of the lowest record beside it there"
            raise OSError(errno.EBADMSG, why, path) from None

    def raise_low(self, section: Section, first: int) -> None:
        """Before anything is removed: a number that is gone must not be free again."""
        if first > self.low():
            section.put(self._layout.claims, os.path.join(self._layout.claims, LOW), b"%d\n" % first)

    def remove_below_low(self) -> None:
        """Remove some of what was trimmed away."""
        low = self.low()
        for number in sorted(self._numbers())[:TRIM]:
            if number >= low:
                return
            disk.unlink_quietly(self._fs, self._path(number))

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._fs.listdir(self._layout.claims) if _is_number(name)]

    def _put_aside(self) -> None:
        """Go on without what has no record's name, unless it may be a record."""
        strays = [name for name in self._fs.listdir(self._layout.claims) if _is_stray(name)]
        for name in sorted(strays)[:STRAYS]:
            path = os.path.join(self._layout.claims, name)
            data = self._foreign(path, may_be_ours=name.isdecimal())
            if data is None:
                continue
            if may_be_record(data):
                why = (
                    "this may be a record of the claim log, but no version that this one knows has such a name: update "
                    "this node if others run a newer version, else move the file away"
                )
                raise OSError(errno.EBADMSG, why, path)
            self._say_aside(path, "is no record of the claim log and is left aside: remove it")
        if len(strays) > STRAYS:
            raise OSError(errno.EBADMSG, "too many files here are no records: remove them", self._layout.claims)

    def _foreign(self, path: str, *, may_be_ours: bool) -> bytes | None:
        """The content of a file of whose name nothing is known, None when it is left aside.

        ``may_be_ours``: a name that we or a later version may have given, so that it has to be read.
        """
        try:
            return disk.read_plain_file(self._fs, path, MAX_BYTES) or b""
        except PermissionError:
            if may_be_ours:
                raise
        self._say_aside(path, "cannot be read, has no name of ours and is left aside: remove it")
        return None

    def _say_aside(self, path: str, text: str) -> None:
        if path not in self._aside and len(self._aside) < 2 * STRAYS:
            self._aside.add(path)
            self._warn(f"{path} {text}")

    def _path(self, number: int) -> str:
        return os.path.join(self._layout.claims, f"{number:0{DIGITS}d}")

    # -- entries

    def put_entry(self, name: str, temporary: str, data: bytes) -> None:
        """Replace the entry ``name``; nothing to say removes it."""
        path = os.path.join(self._layout.entries, name)
        if not data:
            disk.unlink_quietly(self._fs, path)
            return
        disk.create_file(self._fs, temporary, data)
        try:
            self._fs.replace(temporary, path)
        except OSError:
            disk.unlink_quietly(self._fs, temporary)
            raise
        # By the clock that dates them all: ours may be a day ahead.
        now = self._fs.mtime(path)
        for other in self._fs.listdir(self._layout.entries):
            self._forget_stale(os.path.join(self._layout.entries, other), now)

    def _forget_stale(self, path: str, now: float) -> None:
        try:
            if self._fs.mtime(path) < now - STALE_ENTRY:
                disk.unlink_quietly(self._fs, path)
        except FileNotFoundError:
            return

    def entries(self) -> list[bytes]:
        """What all processes say; what is no file says nothing, nor does one of somebody else that cannot be read."""
        names = sorted(self._fs.listdir(self._layout.entries))
        directory = self._layout.entries
        found = (self._foreign(os.path.join(directory, name), may_be_ours=_is_entry(name)) for name in names)
        return [data for data in found if data]


def _is_number(name: str) -> bool:
    return len(name) == DIGITS and name.isascii() and name.isdecimal()


def _is_stray(name: str) -> bool:
    """A name that one who numbers records may have given; a temporary file is on its way to a name."""
    return name[:1].isdecimal() and not _is_number(name) and not name.endswith(".tmp")


def _is_entry(name: str) -> bool:
    """A name that a process may have given to its entry: its token."""
    return bool(name) and all(letter in hexdigits for letter in name)
