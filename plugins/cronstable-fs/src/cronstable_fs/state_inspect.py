"""Looking over a store on a directory for what reading would not show (``cronstable state check``)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from cronstable.api import Damage, FileSystem, Unreadable
from cronstable_fs import disk, record
from cronstable_fs.layout import decode_name, encode_name
from cronstable_fs.probe import LITTER_AGE, litter
from cronstable_fs.seal import MAX_FILE, Damaged, unseal
from cronstable_fs.state_layout import DIGITS, LOCK, LOW, MAYBE_EMPTY, NAME, RECORD, StateLayout, is_name
from cronstable_fs.state_records import StreamShelf


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A record that is to be put aside under the lock of its stream."""

    stream: str
    name: str
    detail: str


Piece: TypeAlias = Callable[[float, bool], "Iterator[Damage | DamagedRecord]"]
"""Looks over a part: the time by the clock that dates the files, and whether to repair."""

_OF_THE_KERNEL: Final = (".nfs", ".fuse_hidden")
"""Beginnings of names that a network client gives to files which were removed while somebody had them open."""
_OF_THE_ELECTION: Final = frozenset({"reboot", "claims", "entries", "life", "store-id"})
"""What an election over the same path and deployment has there."""


class Inspection:
    """One look over everything, in pieces that each end in time. Blocking; what cannot be looked at is damage."""

    def __init__(
        self,
        fs: FileSystem,
        layout: StateLayout,
        streams: StreamShelf,
        unique: Callable[[], str],
    ) -> None:
        self._fs = fs
        self._layout = layout
        self._streams = streams
        self._unique = unique

    def pieces(self) -> list[tuple[str, Piece]]:
        """What there is to look over, with a name for each."""
        found: list[tuple[str, Piece]] = [("the directory", self._root), ("temporary files", self._tmp)]
        for entry in sorted(self._fs.listdir(self._layout.records)):
            found.append((f"records/{entry}", partial(self._stream, entry)))
        found.append(("the documents", self._all_documents))
        found.append(("the leases", self._all_leases))
        return found

    def _root(self, now: float, repair: bool) -> Iterator[Damage]:
        known = {os.path.basename(path) for path in self._layout.directories} | _OF_THE_ELECTION
        for entry in sorted(self._fs.listdir(self._layout.root)):
            if entry not in known:
                yield self._foreign(os.path.join(self._layout.root, entry), entry, repair)

    def _tmp(self, now: float, repair: bool) -> Iterator[Damage]:
        for path in litter(self._fs, self._layout.tmp, now):
            yield self._removed(path, f"tmp/{os.path.basename(path)}", "of a process that died while writing", repair)

    def _stream(self, entry: str, now: float, repair: bool) -> Iterator[Damage | DamagedRecord]:
        directory, what = os.path.join(self._layout.records, entry), f"records/{entry}"
        if entry.endswith((MAYBE_EMPTY, LOCK)):
            return
        try:
            inside = sorted(self._fs.listdir(directory))
        except NotADirectoryError:
            yield self._foreign(directory, what, repair)
            return
        except OSError as error:
            yield Damage(what, f"the directory cannot be read: {disk.describe(error)}")
            return
        name = self._streams.name_of(entry)
        if name is None:
            if inside or entry + MAYBE_EMPTY not in self._fs.listdir(self._layout.records):
                yield self._foreign(directory, what, repair)
            return
        for file in inside:
            yield from self._in_stream(name, directory, file, now, repair)

    def _in_stream(
        self, stream: str, directory: str, file: str, now: float, repair: bool
    ) -> Iterator[Damage | DamagedRecord]:
        path, stem = os.path.join(directory, file), file[:DIGITS]
        if not is_name(stem) or file[DIGITS:] != RECORD:
            if (
                file not in (NAME, LOW)
                and not file.startswith(_OF_THE_KERNEL)
                and not (file.startswith(".look-") and self._age(path, now) < LITTER_AGE)
            ):
                yield self._foreign(path, f"stream {stream!r}, {file}", repair)
            return
        try:
            data = disk.read_file(self._fs, path, MAX_FILE)
        except OSError as error:
            yield DamagedRecord(stream, stem, f"it cannot be read: {disk.describe(error)}")
            return
        opened = unseal(data) if data is not None else None
        if isinstance(opened, Damaged) and (data or self._age(path, now) >= LITTER_AGE):
            yield DamagedRecord(stream, stem, opened.detail)

    def _all_documents(self, now: float, repair: bool) -> Iterator[Damage]:
        for file in sorted(self._fs.listdir(self._layout.documents)):
            path, what = os.path.join(self._layout.documents, file), f"docs/{file}"
            if file.endswith(LOCK) or file.startswith(_OF_THE_KERNEL):
                continue
            if not file.endswith(RECORD):
                yield self._foreign(path, what, repair)
                continue
            try:
                data = disk.read_file(self._fs, path, MAX_FILE)
            except OSError as error:
                yield self._aside(path, what, f"it cannot be read: {disk.describe(error)}", repair)
                continue
            opened = unseal(data) if data is not None else None
            if isinstance(opened, Damaged):
                yield self._aside(path, what, opened.detail, repair)
            elif opened is not None and encode_name(opened.name) + RECORD != file:
                yield self._aside(path, what, f"it is the document {opened.name!r} under another name", repair)

    def _all_leases(self, now: float, repair: bool) -> Iterator[Damage]:
        for file in sorted(self._fs.listdir(self._layout.leases)):
            path, what = os.path.join(self._layout.leases, file), f"leases/{file}"
            if file.endswith(LOCK) or file.startswith(_OF_THE_KERNEL):
                continue
            if file.startswith(".probe-") and self._age(path, now) < LITTER_AGE:
                continue
            if not file.endswith(".lease"):
                yield self._foreign(path, what, repair)
                continue
            name = decode_name(file.removesuffix(".lease"))
            try:
                data = disk.read_file(self._fs, path, record.MAX_BYTES)
            except OSError as error:
                yield self._aside(path, what, f"it cannot be read: {disk.describe(error)}", repair)
                continue
            found = record.decode(data, name, 1.0) if name is not None else None
            if isinstance(found, Unreadable):
                # Nobody takes it for free; put aside, the next term has a fence above the clock's seconds.
                yield self._aside(path, what, found.detail, repair)

    # -- what is done about it

    def _foreign(self, path: str, what: str, repair: bool) -> Damage:
        return self._aside(path, what, "nothing of ours has such a name", repair)

    def _aside(self, path: str, what: str, detail: str, repair: bool) -> Damage:
        if repair:
            target = self._layout.aside("foreign")
            self._fs.makedirs(target, 0o700)
            self._fs.replace(path, os.path.join(target, f"{self._unique()}-{os.path.basename(path)[-100:]}"))
        return Damage(what, detail, repaired=repair)

    def _removed(self, path: str, what: str, detail: str, repair: bool) -> Damage:
        if repair:
            disk.unlink_present(self._fs, path)
        return Damage(what, detail, repaired=repair)

    def _age(self, path: str, now: float) -> float:
        with contextlib.suppress(OSError):
            return now - self._fs.mtime(path)
        return 0.0
