"""The streams: a directory each, one immutable file per record, named by a number that ``link()`` gives out.

Blocking; for threads. A number is free when no file has it, and the file server decides who gets it, so that names rise
without a clock. What is dropped is dropped under the stream's lock, after the file ``low`` says up to which number. An
append looks there after its ``link()``: at or below it, the number may have been given out and dropped before, while
the append was on its way. A listing would not do: it is no snapshot, and over NFS it may be stale.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cronstable.api import FileSystem, StoredRecord
from cronstable_fs import disk
from cronstable_fs.layout import Place, decode_name, encode_name
from cronstable_fs.seal import MAX_FILE, Damaged, Sealed, seal, unseal
from cronstable_fs.section import Attempt, Section
from cronstable_fs.state_layout import DIGITS, LOCK, LOW, MAYBE_EMPTY, NAME, RECORD, StateLayout, is_name

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_IS_RECORD: Final = re.compile(rf"[0-9]{{{DIGITS}}}{re.escape(RECORD)}").fullmatch
"""One call an entry: a stream has a thousand of them, and each look at it goes through them all."""
_OF_ONE_FILE: Final = frozenset(
    {errno.EIO, errno.EACCES, errno.EPERM, getattr(errno, "EBADMSG", errno.EIO), getattr(errno, "EUCLEAN", errno.EIO)}
)
"""What a bad sector, or somebody who took one file away from us, does to a file and not to its neighbours."""
MANY_UNREADABLE: Final = 16
"""So many in one stream are no matter of single files any more, and a dying disk takes its time over each."""
TRIES: Final = 1000
"""For a number: each failure means that another record landed."""


class NoLinksError(Exception):
    """The mount has no hard links: append under a lock."""


class DoubtfulError(Exception):
    """The number of a record that was just written may have been given out before. Ask under the lock."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number} may have been given out before")
        self.number = number


@dataclass(frozen=True, slots=True)
class Found:
    """Records, oldest first; and by name those that were damaged, and those that cannot be read for now."""

    records: list[StoredRecord]
    damaged: dict[str, Damaged]
    unreadable: dict[str, OSError]


class StreamShelf:
    """The records of one deployment. All methods raise ``OSError``.

    ``unique`` makes names for temporary files. ``fresh``: other hosts write here, so that no listing is believed
    before this host has changed the directory.
    """

    def __init__(self, fs: FileSystem, layout: StateLayout, unique: Callable[[], str], platform: str) -> None:
        self.fresh = False
        self._fs = fs
        self._layout = layout
        self._unique = unique
        self._platform = platform
        self._last: dict[str, int] = {}

    # -- append

    def append(self, attempt: Attempt, stream: str, data: bytes, mark: str) -> str:
        """Add a record; its name once it is durable. ``mark`` is this write's own.

        Raises ``NoLinksError`` before anything was written, ``DoubtfulError`` after.
        """
        temporary, file = self._layout.temporary(mark), seal(Sealed(data, mark))
        disk.create_file(self._fs, temporary, file)
        try:
            number = self._numbered(attempt, stream, temporary, file)
        finally:
            disk.unlink_quietly(self._fs, temporary)
        self._last[stream] = number
        return f"{number:0{DIGITS}d}"

    def _numbered(self, attempt: Attempt, stream: str, temporary: str, file: bytes) -> int:
        directory = self._layout.stream(stream)
        known = self._last.get(stream)
        number = (known if known is not None else self._highest(directory)) + 1
        began = False
        if decode_name(encode_name(stream)) is None and self.name_of(encode_name(stream)) is None:
            # Also when the process that made the directory died before it could write the name there.
            self._begin(stream, directory)
        for _ in range(TRIES):
            # Asked before as well: a number that is taken back was seen meanwhile by whoever read just then.
            number = max(number, self._low(directory) + 1)
            path = os.path.join(directory, f"{number:0{DIGITS}d}{RECORD}")
            attempt.commit()
            try:
                self._fs.link(temporary, path)
            except FileExistsError:
                if self._record(path) != file:
                    number = max(number, self._highest(directory)) + 1
                    continue
            except FileNotFoundError:
                # Nothing came of it, and there is another ``commit`` before the next try.
                attempt.written = False
                self._begin(stream, directory)
                began = True
                continue
            except OSError as error:
                if error.errno in disk.NO_LINKS:
                    attempt.written = False
                    raise NoLinksError from error
                raise
            disk.sync_directory(self._fs, directory, self._platform)
            low = self._low(directory)
            if low >= number:
                raise DoubtfulError(number)
            if began or number == low + 1:
                disk.unlink_quietly(self._fs, f"{directory}{MAYBE_EMPTY}")
            return number
        raise OSError(errno.EAGAIN, f"no number was free after {TRIES} tries", directory)

    def append_locked(self, section: Section, stream: str, data: bytes, mark: str, doubt: int | None = None) -> str:
        """Add a record under the stream's lock, where nobody drops anything; may be called again after a failure.

        ``doubt``: the number that ``append`` gave it. It is taken back, if it was not dropped meanwhile, and the record
        gets another: whether the number was given out before cannot be told any more.
        """
        directory, file = self._layout.stream(stream), seal(Sealed(data, mark))
        names = self.listing(directory)
        if names and self._record(os.path.join(directory, f"{names[-1]}{RECORD}")) == file and int(names[-1]) != doubt:
            return names[-1]
        if doubt is not None:
            path = os.path.join(directory, f"{doubt:0{DIGITS}d}{RECORD}")
            if self._read(path) == file:
                self._fs.unlink(path)
        if not self._highest(directory):
            self._begin(stream, directory)
        name = f"{self._highest(directory) + 1:0{DIGITS}d}"
        path = os.path.join(directory, f"{name}{RECORD}")
        try:
            if section.name(directory, path, file) != file:
                raise OSError(errno.ESTALE, "another node took the number", path)
        except OSError as error:
            if error.errno not in disk.NO_LINKS:
                raise
            # An empty file reserves the number: a lock that the server forgot costs the order, but no record.
            section.put_reserved(directory, path, file)
        disk.unlink_quietly(self._fs, f"{directory}{MAYBE_EMPTY}")
        self._last[stream] = int(name)
        return name

    def place(self, stream: str) -> Place:
        """The lock of a stream, for ``append_locked``."""
        directory = self._layout.stream(stream)
        return Place(directory, os.path.join(directory, NAME), f"{directory}{LOCK}", self._layout.tmp, MAX_FILE)

    def _begin(self, stream: str, directory: str) -> None:
        """Make the directory of a stream, which counts as empty until a record is in it."""
        self._fs.mtime(self._layout.records)
        self._mark_empty(directory)
        self._fs.makedirs(directory, 0o700)
        encoded = encode_name(stream)
        if decode_name(encoded) is None:
            temporary = self._layout.temporary(self._unique())
            disk.create_file(self._fs, temporary, seal(Sealed(b"", encoded, stream)))
            self._fs.replace(temporary, os.path.join(directory, NAME))
            disk.sync_directory(self._fs, directory, self._platform)
        disk.sync_directory(self._fs, self._layout.records, self._platform)

    # -- read

    def read(self, stream: str, limit: int | None, after: str) -> Found:
        """Records above ``after``, the newest ``limit``."""
        directory = self._layout.stream(stream)
        found: list[StoredRecord] = []
        damaged: dict[str, Damaged] = {}
        unreadable: dict[str, OSError] = {}
        self._freshen(directory)
        for name in self._newest_first(directory):
            if name <= after or (limit is not None and len(found) >= limit):
                break
            try:
                file = self._record(os.path.join(directory, f"{name}{RECORD}"))
            except OSError as error:
                if error.errno not in _OF_ONE_FILE or len(unreadable) >= MANY_UNREADABLE:
                    raise
                unreadable[name] = error
                continue
            if not file:
                # Dropped meanwhile, or reserved and not written yet.
                continue
            opened = file if isinstance(file, Damaged) else unseal(file)
            if isinstance(opened, Sealed):
                found.append(StoredRecord(name, opened.data))
            else:
                damaged[name] = opened
        found.reverse()
        return Found(found, damaged, unreadable)

    def names(self, prefix: str) -> list[str]:
        """Streams that have records."""
        if self.fresh:
            self._touch(self._layout.records)
        found = []
        entries = self._entries(self._layout.records)
        doubtful = {entry.removesuffix(MAYBE_EMPTY) for entry in entries if entry.endswith(MAYBE_EMPTY)}
        for entry in entries:
            name = self.name_of(entry)
            if name is None or not name.startswith(prefix):
                continue
            if entry not in doubtful or self.listing(os.path.join(self._layout.records, entry)):
                found.append(name)
        return sorted(found)

    def name_of(self, entry: str) -> str | None:
        """The stream whose directory has the name ``entry``; None when it is the directory of none."""
        name = decode_name(entry)
        if name is not None:
            return name
        if entry.endswith((MAYBE_EMPTY, LOCK)):
            return None
        try:
            file = self._read(os.path.join(self._layout.records, entry, NAME))
        except NotADirectoryError:
            return None
        opened = unseal(file) if file is not None else None
        return opened.name if isinstance(opened, Sealed) and encode_name(opened.name) == entry else None

    def listing(self, directory: str) -> tuple[str, ...]:
        """The names of the records in a stream's directory, sorted."""
        return tuple(sorted(entry[:DIGITS] for entry in filter(_IS_RECORD, self._entries(directory))))

    def _newest_first(self, directory: str) -> Iterator[str]:
        """The names of the records; only those that are asked for are looked at: most want few of a thousand."""
        return (entry[:DIGITS] for entry in filter(_IS_RECORD, sorted(self._entries(directory), reverse=True)))

    def _highest(self, directory: str) -> int:
        """The highest number that was given out, as far as a listing that may be stale can tell."""
        self._freshen(directory)
        return max(self._low(directory), int(next(self._newest_first(directory), "0")))

    def _low(self, directory: str) -> int:
        """Up to which number records were dropped; 0 when none was, or when what says so is damaged."""
        data = self._read(os.path.join(directory, LOW))
        text = (data or b"").strip()
        return int(text) if text.isdigit() else 0

    # -- drop

    def has_more(self, stream: str, keep: int) -> bool:
        """Whether there is anything for ``trim`` to drop."""
        directory = self._layout.stream(stream)
        self._freshen(directory)
        return len(self.listing(directory)) > max(0, keep)

    def trim(self, section: Section, stream: str, keep: int) -> None:
        """Drop the oldest records beyond ``keep``."""
        directory = self._layout.stream(stream)
        names = self.listing(directory)
        excess = names[: max(0, len(names) - max(0, keep))]
        if not excess:
            return
        drop = len(excess) == len(names)
        if drop:
            self._mark_empty(directory)
        try:
            self._raise_low(section, directory, int(excess[-1]))
        except OSError as error:
            # Where nothing can be written no append is on its way either, and what goes makes room to say so.
            if drop or error.errno not in _NO_ROOM:
                raise
        for name in excess:
            disk.unlink_present(self._fs, os.path.join(directory, f"{name}{RECORD}"))
        self._raise_low(section, directory, int(excess[-1]))

    def has(self, stream: str, name: str) -> bool:
        """Whether there is such a record."""
        directory = self._layout.stream(stream)
        self._freshen(directory)
        return is_name(name) and name in self.listing(directory)

    def put_aside(self, section: Section, stream: str, name: str) -> None:
        """Move a record to the quarantine."""
        directory = self._layout.stream(stream)
        names = self.listing(directory)
        if name not in names:
            return
        if len(names) == 1:
            self._mark_empty(directory)
        self._raise_low(section, directory, int(name))
        target = self._layout.aside("records", encode_name(stream))
        self._fs.makedirs(target, 0o700)
        with contextlib.suppress(FileNotFoundError):
            self._fs.replace(os.path.join(directory, f"{name}{RECORD}"), os.path.join(target, f"{name}{RECORD}"))
        for changed in (target, directory):
            disk.sync_directory(self._fs, changed, self._platform)

    def _raise_low(self, section: Section, directory: str, number: int) -> None:
        """Before a record goes: its number must not be given out again, also not to an append on its way."""
        if number > self._low(directory):
            section.put(directory, os.path.join(directory, LOW), b"%d\n" % number)

    def _mark_empty(self, directory: str) -> None:
        disk.touch(self._fs, f"{directory}{MAYBE_EMPTY}")

    # -- small pieces

    def _record(self, path: str) -> bytes | Damaged | None:
        try:
            return self._read(path)
        except IsADirectoryError:
            # Nothing that passes, unlike other failures to read.
            return Damaged("it is a directory")

    def _read(self, path: str) -> bytes | None:
        return disk.read_file(self._fs, path, MAX_FILE)

    def _freshen(self, directory: str) -> None:
        """The next listing is to be true, also where other hosts write."""
        if self.fresh:
            try:
                self._touch(directory)
            except FileNotFoundError:
                # A directory that another host made may be remembered as absent until its parent is looked at anew.
                self._touch(self._layout.records)

    def _touch(self, directory: str) -> None:
        """Change the directory, so that an NFS client asks the server what is in it."""
        path = os.path.join(directory, f".look-{self._unique()}")
        disk.touch(self._fs, path)
        disk.unlink_quietly(self._fs, path)

    def _entries(self, directory: str) -> list[str]:
        try:
            return self._fs.listdir(directory)
        except NotADirectoryError:
            return []
        except FileNotFoundError:
            # No such stream, or no store at all: an unmounted share has no streams, but it is not without them.
            self._fs.mtime(self._layout.records)
            return []
