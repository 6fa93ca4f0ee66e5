"""When the certificates of this service end, for whoever watches them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cronstable.api import Host
from cronstable.builtin.web.settings import Tls

LOOK: Final = 60.0
"""Seconds between two looks at the files."""
READ: Final = 10.0
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


class Certificates:
    """The ends of the certificates in use, by use and file."""

    def __init__(self, host: Host, tls: Tls | None) -> None:
        self._host = host
        self._files = (
            () if tls is None else (("web", tls.cert), *((("web-client-ca", tls.client_ca),) if tls.client_ca else ()))
        )
        self._looked = float("-inf")
        self.ends: Mapping[tuple[str, str], float] = {}

    async def look(self) -> None:
        """Read the files again, once a minute at most. One that cannot be read has no end."""
        now = self._host.clock.now().boot
        if not self._files or now - self._looked < LOOK:
            return
        self._looked = now
        try:
            self.ends = await self._host.threads.run(self._read, timeout=READ, lane="web")
        except OSError as error:
            self._host.log.warning("web: the ends of the certificates are not known: %s", error)
            self.ends = {}

    def _read(self) -> Mapping[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for use, path in self._files:
            ends = list(ends_of(Path(path).read_text("ascii", "replace")))
            if ends:
                found[use, path] = min(ends)
        return found


def ends_of(pem: str) -> Iterator[float]:
    """The end of each certificate of a PEM file, in wall seconds; none for what is not a certificate."""
    for part in pem.split(_BEGIN)[1:]:
        body, found, _ = part.partition(_END)
        if found:
            try:
                yield not_after(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{_END}"))
            except (ValueError, IndexError):
                continue


def not_after(der: bytes) -> float:
    """The second time of the validity of an X.509 certificate (RFC 5280 4.1.2.5). Raises ValueError or IndexError.

    A certificate is a sequence of a sequence whose elements are, after an optional version: serial number, signature
    algorithm, issuer, validity.
    """
    (_, outer), *_ = _elements(der)
    (_, inner), *_ = _elements(outer)
    parts = [value for tag, value in _elements(inner) if tag != _VERSION]
    (_, _), (tag, end) = _elements(parts[3])
    digits = end.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year, of which 50 to 99 are of the last century
        digits = ("19" if digits >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a sequence in DER: tag and content."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            octets = size & 0x7F
            size, at = int.from_bytes(data[at : at + octets], "big"), at + octets
        if at + size > len(data):
            raise ValueError("an element is longer than what it is in")
        yield tag, data[at : at + size]
        at += size
