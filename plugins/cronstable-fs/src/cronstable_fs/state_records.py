"""The streams: a directory each, one immutable file per record, named by a number that ``link()`` gives out.

Blocking; for threads. A number is free when no file has it, and the file server decides who gets it, so that names rise
without a clock. A listing may be stale over NFS: after ``link()`` the directory was changed by this host, so the
listing that follows is fresh, and its floor says whether the number had been given out and dropped before.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cronstable.api import FileSystem, StoredRecord
from cronstable_fs import disk
from cronstable_fs.layout import Place, decode_name, encode_name
from cronstable_fs.seal import MAX_FILE, Damaged, Sealed, seal, unseal
from cronstable_fs.section import Attempt, Section
from cronstable_fs.state_layout import DIGITS, FLOOR, LOCK, MAYBE_EMPTY, NAME, RECORD, StateLayout, is_name

_LENGTH: Final = DIGITS + len(RECORD)
_FEW: Final = 3
"""A record, a floor and a name: what the directory of a stream has that was empty before."""
TRIES: Final = 1000
"""For a number: each failure means that another record landed."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A stream's directory. ``names``: of its records, sorted. ``floor``: numbers up to it were given out before."""

    names: tuple[str, ...] = ()
    floor: int = 0

    @property
    def highest(self) -> int:
        """The highest number that was ever given out, as far as this listing knows."""
        return max(self.floor, int(self.names[-1]) if self.names else 0)


class NoLinksError(Exception):
    """The mount has no hard links: append under a lock."""


class StreamShelf:
    """The records of one deployment. All methods raise ``OSError``.

    ``unique`` makes names for temporary files. ``fresh``: other hosts write here, so that no listing is believed
    before this host has changed the directory. ``note`` is told of every record that was damaged and put aside.
    """

    def __init__(
        self, fs: FileSystem, layout: StateLayout, unique: Callable[[], str], platform: str, note: Callable[[str], None]
    ) -> None:
        self.fresh = False
        self._fs = fs
        self._layout = layout
        self._unique = unique
        self._platform = platform
        self._note = note
        self._last: dict[str, int] = {}

    # -- append

    def append(self, attempt: Attempt, stream: str, data: bytes) -> str:
        """Add a record; its name once it is durable."""
        mark = self._unique()
        temporary = self._layout.temporary(mark)
        file = seal(Sealed(data, mark))
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
        number = (known if known is not None else self.listing(directory).highest) + 1
        began = False
        if decode_name(encode_name(stream)) is None and self.name_of(encode_name(stream)) is None:
            # Also when the process that made the directory died before it could write the name there.
            self._begin(stream, directory)
        for _ in range(TRIES):
            path = os.path.join(directory, f"{number:0{DIGITS}d}{RECORD}")
            attempt.commit()
            try:
                self._fs.link(temporary, path)
            except FileExistsError:
                if self._read(path) != file:
                    number = max(number, self._fresh_listing(directory).highest) + 1
                    continue
            except FileNotFoundError:
                # Nothing came of it, and there is another ``commit`` before the next try.
                attempt.written = False
                self._begin(stream, directory)
                began = True
                continue
            except OSError as error:
                if error.errno in disk.NO_LINKS:
                    raise NoLinksError from error
                raise
            disk.sync_directory(self._fs, directory, self._platform)
            entries = self._entries(directory)
            floor = _floor(entries)
            if floor < number:
                if began or len(entries) <= _FEW:
                    disk.unlink_quietly(self._fs, f"{directory}{MAYBE_EMPTY}")
                return number
            # It was given out before, and its record dropped, while this append was on its way.
            disk.unlink_quietly(self._fs, path)
            number = max(floor, number) + 1
        raise OSError(errno.EAGAIN, f"no number was free after {TRIES} tries", directory)

    def append_locked(self, section: Section, stream: str, data: bytes, mark: str) -> str:
        """Add a record where there are no hard links, under a lock; may be called again after a failure.

        An empty file reserves the number, so that a lock which the server forgot costs the order and no record. Until
        the bytes are there a reader takes it for a record that was dropped.
        """
        directory, file = self._layout.stream(stream), seal(Sealed(data, mark))
        listing = self.listing(directory)
        if listing.names and self._read(os.path.join(directory, f"{listing.names[-1]}{RECORD}")) == file:
            return listing.names[-1]
        if not listing.highest:
            self._begin(stream, directory)
        name = f"{listing.highest + 1:0{DIGITS}d}"
        section.put_reserved(directory, os.path.join(directory, f"{name}{RECORD}"), file)
        if len(listing.names) == 0:
            disk.unlink_quietly(self._fs, f"{directory}{MAYBE_EMPTY}")
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

    def read(self, stream: str, limit: int | None, after: str) -> list[StoredRecord]:
        """Records above ``after``, oldest first; the newest ``limit``. A damaged one is put aside on the way."""
        directory = self._layout.stream(stream)
        found: list[StoredRecord] = []
        names = [name for name in self._fresh_listing(directory).names if name > after]
        for name in reversed(names):
            if limit is not None and len(found) >= limit:
                break
            file = self._read(os.path.join(directory, f"{name}{RECORD}"))
            if not file:
                # Trimmed meanwhile, or reserved and not written yet.
                continue
            opened = unseal(file)
            if isinstance(opened, Sealed):
                found.append(StoredRecord(name, opened.data))
            else:
                self.put_aside(stream, name)
                self._note(f"a record of {stream!r} was damaged ({opened.detail}) and is in {self._layout.quarantine}")
        found.reverse()
        return found

    def damage(self, directory: str, name: str) -> Damaged | None:
        """What is wrong with a record."""
        file = self._read(os.path.join(directory, f"{name}{RECORD}"))
        opened = unseal(file) if file is not None else None
        return opened if isinstance(opened, Damaged) else None

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
            if entry not in doubtful or self.listing(os.path.join(self._layout.records, entry)).names:
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

    def listing(self, directory: str) -> Listing:
        """What is in a stream's directory."""
        entries = self._entries(directory)
        names = [e[:DIGITS] for e in entries if len(e) == _LENGTH and e.endswith(RECORD) and is_name(e[:DIGITS])]
        return Listing(tuple(sorted(names)), _floor(entries))

    # -- drop

    def trim(self, stream: str, keep: int) -> None:
        """Drop the oldest records beyond ``keep``."""
        directory = self._layout.stream(stream)
        listing = self._fresh_listing(directory)
        excess = listing.names[: max(0, len(listing.names) - max(0, keep))]
        if not excess:
            return
        drop = len(excess) == len(listing.names)
        if drop:
            self._mark_empty(directory)
        self._remember(directory, excess[-1], listing.floor, durable=drop)
        for name in excess:
            disk.unlink_present(self._fs, os.path.join(directory, f"{name}{RECORD}"))

    def put_aside(self, stream: str, name: str) -> None:
        """Move a record to the quarantine."""
        directory = self._layout.stream(stream)
        listing = self.listing(directory)
        if name not in listing.names:
            return
        if len(listing.names) == 1:
            self._mark_empty(directory)
        self._remember(directory, name, listing.floor, durable=True)
        target = self._layout.aside("records", encode_name(stream))
        self._fs.makedirs(target, 0o700)
        with contextlib.suppress(FileNotFoundError):
            self._fs.replace(os.path.join(directory, f"{name}{RECORD}"), os.path.join(target, f"{name}{RECORD}"))
        for changed in (target, directory):
            disk.sync_directory(self._fs, changed, self._platform)

    def _remember(self, directory: str, name: str, floor: int, *, durable: bool) -> None:
        """Before a record goes: its number must not be given out again, also not to an append on its way."""
        if int(name) <= floor:
            return
        disk.touch(self._fs, os.path.join(directory, f"{name}{FLOOR}"))
        if durable:
            disk.sync_directory(self._fs, directory, self._platform)
        if floor:
            disk.unlink_quietly(self._fs, os.path.join(directory, f"{floor:0{DIGITS}d}{FLOOR}"))

    def _mark_empty(self, directory: str) -> None:
        disk.touch(self._fs, f"{directory}{MAYBE_EMPTY}")

    # -- small pieces

    def _read(self, path: str) -> bytes | None:
        return disk.read_file(self._fs, path, MAX_FILE)

    def _fresh_listing(self, directory: str) -> Listing:
        if self.fresh:
            try:
                self._touch(directory)
            except FileNotFoundError:
                # A directory that another host made may be remembered as absent until its parent is looked at anew.
                self._touch(self._layout.records)
        return self.listing(directory)

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


def _floor(entries: list[str]) -> int:
    """The highest number that a floor in a stream's directory names."""
    return max((int(e[:DIGITS]) for e in entries if e.endswith(FLOOR) and is_name(e[:DIGITS])), default=0)
