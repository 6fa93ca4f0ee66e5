"""The archive of ``cronstable state backup``: lines of JSON, one for each stream and document, each with its digest.

Readable with ``jq``, resumable (what a partial one has, and is still so, is not written again), and complete only when
its last line says so. A later line about a thing takes the place of an earlier one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final, TypeAlias

from cronstable.core.job import Json

HEADER: Final[Mapping[str, Json]] = {"cronstable": "state-backup", "version": 1}

Key: TypeAlias = tuple[str, str]
"""``stream`` or ``document``, and the name."""


class BadArchive(Exception):
    """It is no archive, not complete, or not what was written; the message names the line."""


@dataclass(frozen=True, slots=True)
class Item:
    """A stream with the data of its records, oldest first, or a document with its one. No data: it was dropped."""

    kind: str
    name: str
    data: tuple[bytes, ...]

    @property
    def key(self) -> Key:
        """Which thing it is."""
        return (self.kind, self.name)

    def digest(self) -> str:
        """Of everything in it."""
        found = hashlib.sha256(f"{self.kind}\0{self.name}\0".encode("utf-8", "surrogatepass"))
        for data in self.data:
            found.update(b"%d\n" % len(data))
            found.update(data)
        return found.hexdigest()

    def line(self) -> bytes:
        """As it stands in the archive."""
        document = {self.kind: self.name, "data": [_text(data) for data in self.data], "sha256": self.digest()}
        return json.dumps(document).encode() + b"\n"


@dataclass(slots=True)
class Contents:
    """What an archive holds, by digest. ``size``: bytes up to the end of the last whole line; ``complete``: it ends."""

    digests: dict[Key, str] = field(default_factory=dict)
    size: int = 0
    complete: bool = False

    def seal(self) -> str:
        """One digest of all that is not dropped."""
        found = hashlib.sha256()
        for (kind, name), digest in sorted(self.digests.items()):
            found.update(f"{kind}\0{name}\0{digest}\n".encode("utf-8", "surrogatepass"))
        return found.hexdigest()

    def put(self, item: Item) -> None:
        """A line about ``item`` follows."""
        if item.data:
            self.digests[item.key] = item.digest()
        else:
            self.digests.pop(item.key, None)


def scan(path: str) -> Contents:
    """What a partial archive has, up to its first line that is not whole. Raises ``BadArchive`` when it is none."""
    contents = Contents()
    with open(path, "rb") as file:
        first = file.readline()
        if not first:
            return contents
        if first != _line(HEADER):
            raise BadArchive("it does not begin as a backup of this version")
        contents.size = len(first)
        for line in file:
            try:
                found = _item(line)
            except BadArchive:
                break
            if found is not None:
                contents.put(found)
                contents.size += len(line)
    return contents


def read(path: str) -> Iterator[Item]:
    """The items of a complete archive, each as it is in the end. Raises ``BadArchive``."""
    contents = verify(path)
    with open(path, "rb") as file:
        file.readline()
        for line in file:
            item = _item(line)
            if item is not None and item.data and contents.digests.get(item.key) == item.digest():
                yield item


def verify(path: str) -> Contents:
    """Read every byte; ``BadArchive`` unless all is as it was written, to the end."""
    contents = Contents()
    with open(path, "rb") as file:
        if file.readline() != _line(HEADER):
            raise BadArchive("line 1: it does not begin as a backup of this version")
        for number, line in enumerate(file, 2):
            if contents.complete:
                raise BadArchive(f"line {number}: something follows the end")
            try:
                item = _item(line)
            except BadArchive as error:
                raise BadArchive(f"line {number}: {error}") from None
            if item is not None:
                contents.put(item)
            elif json.loads(line) != _end(contents):
                raise BadArchive(f"line {number}: the end does not agree with what came before")
            else:
                contents.complete = True
    if not contents.complete:
        raise BadArchive("the end is missing: the backup was interrupted; run it again to go on")
    return contents


class Writer:
    """Writes ``path``.partial, going on where an earlier one was interrupted, and names it ``path`` in the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._partial = f"{path}.partial"
        self._file: BinaryIO | None = None
        self.contents = Contents()
        self.skipped = 0

    def open(self) -> None:
        """Look at what is there. Raises ``BadArchive`` when it is something else, ``OSError``."""
        fd = os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o600)
        file = self._file = os.fdopen(fd, "r+b")
        self.contents = scan(self._partial)
        file.truncate(self.contents.size)
        file.seek(self.contents.size)
        if not self.contents.size:
            file.write(_line(HEADER))

    def put(self, item: Item) -> None:
        """Add an item, unless it is there as it is."""
        assert self._file is not None, "open() comes first"
        if self.contents.digests.get(item.key) == (item.digest() if item.data else None):
            self.skipped += 1
            return
        self._file.write(item.line())
        self.contents.put(item)

    def drop_others(self, keys: Sequence[Key]) -> None:
        """Leave out what an interrupted backup wrote and the store has no more."""
        for kind, name in set(self.contents.digests) - set(keys):
            self.put(Item(kind, name, ()))

    def finish(self) -> Contents:
        """Write the end, sync, read all of it again, and give it its name. Raises ``BadArchive``, ``OSError``."""
        assert self._file is not None, "open() comes first"
        self._file.write(_line(_end(self.contents)))
        self._file.flush()
        os.fsync(self._file.fileno())
        found = verify(self._partial)
        if found.digests != self.contents.digests:
            raise BadArchive("what was read back is not what was written")
        self.close()
        os.replace(self._partial, self._path)
        directory = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return found

    def close(self) -> None:
        """Keep what was written, to go on with."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _end(contents: Contents) -> Mapping[str, Json]:
    kinds = [kind for kind, _ in contents.digests]
    return {
        "end": True,
        "streams": kinds.count("stream"),
        "documents": kinds.count("document"),
        "sha256": contents.seal(),
    }


def _item(line: bytes) -> Item | None:
    """The item of a line, None when the line is the end."""
    if not line.endswith(b"\n"):
        raise BadArchive("it was cut off")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise BadArchive("no JSON") from None
    if not isinstance(found, dict):
        raise BadArchive("no object")
    if found.get("end") is True:
        return None
    kind = "stream" if "stream" in found else "document"
    name, data = found.get(kind), found.get("data")
    if not isinstance(name, str) or not isinstance(data, list):
        raise BadArchive("neither a stream nor a document")
    item = Item(kind, name, tuple(_bytes(value) for value in data))
    if item.digest() != found.get("sha256"):
        raise BadArchive(f"the {kind} {name!r} is not what was written")
    return item


def _text(data: bytes) -> Json:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError:
            raise BadArchive("data that are no base64") from None
    raise BadArchive("data that are neither text nor base64")


def _line(document: Mapping[str, Json]) -> bytes:
    return json.dumps(document).encode() + b"\n"
