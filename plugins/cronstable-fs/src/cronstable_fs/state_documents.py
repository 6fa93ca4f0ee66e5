"""The documents: one file each, replaced under its lock in the section that leases are written in.

Blocking; for threads. What is lost with a lock that the server forgets is said in the README, once for both.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from cronstable.api import Document, FileSystem
from cronstable_fs import disk
from cronstable_fs.layout import Place, decode_name, encode_name
from cronstable_fs.seal import MAX_FILE, Damaged, Sealed, seal, unseal
from cronstable_fs.section import Section
from cronstable_fs.state_layout import RECORD, StateLayout


class DocumentShelf:
    """The documents of one deployment. All methods raise ``OSError``; those with a section also what it raises.

    ``unique`` makes versions. ``note`` is told of every document that was damaged and put aside.
    """

    def __init__(
        self, fs: FileSystem, layout: StateLayout, unique: Callable[[], str], platform: str, note: Callable[[str], None]
    ) -> None:
        self._fs = fs
        self._layout = layout
        self._unique = unique
        self._platform = platform
        self._note = note

    def get(self, name: str) -> Document | Damaged | None:
        """What stands there. A file of which only the name is damaged is somebody else's."""
        file = disk.read_file(self._fs, self._layout.document(name).file, MAX_FILE)
        if file is None:
            self._fs.mtime(self._layout.documents)
            return None
        opened = unseal(file)
        return Document(opened.data, opened.mark) if isinstance(opened, Sealed) else opened

    def write(self, section: Section, name: str, new: bytes, expect: str | None) -> bool:
        """Put the sealed bytes ``new`` there if the version is ``expect``; may be called again after a failure."""
        before = section.read()
        if before == new:
            return True
        stands = self.sound(section, name, before)
        if (stands.mark if stands is not None else None) != expect:
            return False
        return section.write(before if stands is not None else None, new, durable=True) == new

    def remove(self, section: Section, name: str, expect: str) -> bool:
        """Remove the document if its version is ``expect``."""
        before = section.read()
        if before is None and section.written:
            raise OSError(errno.EIO, "whether this node removed it cannot be told", name)
        stands = self.sound(section, name, before)
        if stands is None or before is None or stands.mark != expect:
            return False
        return section.remove(before) is None

    def sound(self, section: Section, name: str, file: bytes | None) -> Sealed | None:
        """What is in ``file``, just read; a damaged one is put aside, and nothing stands there any more."""
        if file is None:
            return None
        opened = unseal(file)
        if isinstance(opened, Sealed):
            return opened
        target = self._layout.aside("docs")
        self._fs.makedirs(target, 0o700)
        path = os.path.join(target, f"{encode_name(name)}.{self._unique()}{RECORD}")
        self._fs.replace(self._layout.document(name).file, path)
        disk.sync_directory(self._fs, target, self._platform)
        self._note(f"the document {name!r} was damaged ({opened.detail}) and is in {path}")
        return None

    def sealed(self, name: str, data: bytes) -> tuple[bytes, Document]:
        """New bytes for a document, and what they say."""
        version = self._unique()
        return seal(Sealed(data, version, name)), Document(data, version)

    def place(self, name: str) -> Place:
        """Where the document is."""
        return self._layout.document(name)

    def names(self, prefix: str) -> list[str]:
        """Documents that are there."""
        found = []
        for entry in self._fs.listdir(self._layout.documents):
            name = self.name_of(entry) if entry.endswith(RECORD) else None
            if name is not None and name.startswith(prefix):
                found.append(name)
        return sorted(found)

    def name_of(self, entry: str) -> str | None:
        """The document whose file is called ``entry``; None when it is no document's."""
        encoded = entry.removesuffix(RECORD)
        name = decode_name(encoded)
        if name is not None:
            return name
        file = disk.read_file(self._fs, os.path.join(self._layout.documents, entry), MAX_FILE)
        opened = unseal(file) if file is not None else None
        return opened.name if isinstance(opened, Sealed) and encode_name(opened.name) == encoded else None
