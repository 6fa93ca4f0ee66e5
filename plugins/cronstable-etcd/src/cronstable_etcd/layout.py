"""Where things are below ``state.etcd.prefix`` (ADR 0032)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from cronstable_etcd.wire import KeyValue

DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of one store; those that end in ``/`` have names below them."""

    meta: bytes
    dropped: bytes
    streams: bytes
    records: bytes
    aside: bytes
    documents: bytes
    leases: str

    @classmethod
    def of(cls, prefix: str) -> Layout:
        """The keys below ``prefix``."""
        root = prefix.encode("utf-8", "surrogatepass")
        return cls(
            meta=root + b"/meta",
            dropped=root + b"/dropped",
            streams=root + b"/streams/",
            records=root + b"/records/",
            aside=root + b"/aside/",
            documents=root + b"/documents/",
            leases=f"{prefix}/leases/",
        )

    def end_of(self, stream: str) -> bytes:
        """What says where a stream ends."""
        return self.streams + encoded(stream)

    def record(self, stream: str, name: str) -> bytes:
        """One record."""
        return self.records + encoded(stream) + b"/" + name.encode("utf-8", "surrogatepass")

    def records_of(self, stream: str) -> tuple[bytes, bytes]:
        """All records of a stream are from the first key to before the second one: what begins with a digit."""
        below = self.records + encoded(stream) + b"/"
        return below, below + b":"

    def document(self, name: str) -> bytes:
        """One document."""
        return self.documents + encoded(name)

    def lease(self, name: str) -> str:
        """The election that is the lease of this name."""
        return self.leases + encoded(name).decode("ascii")


def encoded(name: str) -> bytes:
    """Without a slash, so that what stands below one name cannot be another's."""
    return quote(name, safe="", errors="surrogatepass").encode("ascii")


def decoded(key: bytes) -> str | None:
    """The name that ``encoded`` was given; None for what it never gives."""
    try:
        name = unquote_to_bytes(key).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return name if encoded(name) == key else None


def name_of(number: int) -> str:
    """A record's name."""
    return f"{number:0{DIGITS}d}"


def number_of(found: KeyValue) -> int | None:
    """The number that stands there, None when there is something else."""
    return int(found.value) if found.value.isdigit() else None


def shown(key: bytes) -> str:
    """A key in a message."""
    return f"the etcd key {key.decode('utf-8', 'replace')}"
