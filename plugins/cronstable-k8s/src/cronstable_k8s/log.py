"""The claim log as the text of one annotation: ``VERSION FIRST COUNT BASE64``, where the last is deflated.

Numbers stand outside of what is compressed, so that damage to the records does not set numbers free again.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Final

VERSION: Final = "1"

LARGEST_LOG: Final = 64 << 20
"""Bytes that an annotation may unpack to: more is no log of ours."""


@dataclass(frozen=True, slots=True)
class Log:
    """Records ``first``, ``first + 1`` and so on. Of a log that was never begun ``first`` is 0."""

    first: int = 0
    records: tuple[bytes, ...] = ()

    @property
    def last(self) -> int:
        """The highest number ever given, 0 for none."""
        return max(0, self.first + len(self.records) - 1)

    def read(self, number: int) -> bytes | None:
        """Record ``number``."""
        index = number - self.first
        return self.records[index] if 0 <= index < len(self.records) and self.first else None

    def appended(self, record: bytes) -> Log:
        """One more record, as number ``last + 1``."""
        return Log(self.first or 1, (*self.records, record))

    def without(self, below: int) -> Log:
        """The log from number ``below`` on; its numbers stay taken."""
        gone = min(max(0, below - self.first), len(self.records))
        return Log(self.first + gone, self.records[gone:]) if self.first else self


def encode(log: Log) -> str:
    """The annotation."""
    raw = b"".join(b"%d:%s" % (len(record), record) for record in log.records)
    packed = base64.b64encode(zlib.compress(raw, 6)).decode("ascii")
    return f"{VERSION} {log.first} {len(log.records)} {packed}"


def decode(text: str | None) -> tuple[Log, str]:
    """The log, and what is wrong with it: its records are then lost, and its numbers kept if they can be read."""
    if text is None:
        return Log(), ""
    try:
        version, first_text, count_text, packed = text.split(" ")
        first, count = int(first_text), int(count_text)
        if version != VERSION or first < 1 or count < 0:
            raise ValueError
    except ValueError:
        return Log(), "the annotation of the claim log is not one"
    try:
        records = _unpack(packed)
    except ValueError as error:
        return Log(first + count), f"the records of the claim log are damaged: {error}"
    if len(records) != count:
        return Log(first + count), f"the claim log says {count} records and holds {len(records)}"
    return Log(first, records), ""


def _unpack(packed: str) -> tuple[bytes, ...]:
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(base64.b64decode(packed, validate=True), LARGEST_LOG)
    except (ValueError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError("it is cut off or too large")
    records, at = [], 0
    while at < len(raw):
        colon = raw.index(b":", at, at + 12)
        size = int(raw[at:colon])
        at = colon + 1 + size
        if size < 0 or at > len(raw):
            raise ValueError("a record is cut off")
        records.append(raw[colon + 1 : at])
    return tuple(records)
