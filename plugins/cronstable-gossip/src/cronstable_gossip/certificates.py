"""TLS contexts from three PEM files, and when they have to be made anew. Blocks: call it in a thread."""

from __future__ import annotations

import hashlib
import ssl
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cronstable_gossip.settings import TlsFiles


@dataclass(frozen=True, slots=True)
class Material:
    """Both contexts of one set of files. ``expires``: wall seconds, per file that holds a certificate.

    ``digest``: of the bytes of all files; ``signature``: their sizes and times, a cheap hint that they changed.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    digest: bytes
    expires: tuple[tuple[str, float], ...]


def digest(files: TlsFiles) -> bytes:
    """Of the contents of the three files. Raises ``OSError``."""
    total = hashlib.sha256()
    for path in (files.ca, files.cert, files.key):
        content = Path(path).read_bytes()
        total.update(len(content).to_bytes(8, "big") + content)
    return total.digest()


def load(files: TlsFiles, section: str = "cluster") -> Material:
    """The contexts of ``files``, which stand in ``section``. Raises ``OSError`` that names what does not load."""
    before = digest(files)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.ca)
        except (ssl.SSLError, OSError) as error:
            raise OSError(f"{section}.tls.ca {files.ca} does not load: {_why(error)}") from error
        try:
            context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
        except (ssl.SSLError, ValueError, OSError) as error:
            raise OSError(
                f"{section}.tls.cert {files.cert} and {section}.tls.key {files.key} do not load: {_why(error)}"
            ) from error
    if digest(files) != before:
        raise OSError(f"the files under {section}.tls change while they are read")
    expires = [(path, at) for path in (files.ca, files.cert) for at in expiries(Path(path).read_bytes())]
    return Material(server, client, before, tuple(expires))


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _no_passphrase() -> str:
    """An encrypted key must fail here; OpenSSL would ask on the terminal and stop the daemon."""
    raise ValueError("the key is encrypted, and there is nobody to ask for its passphrase")


# -- expiry -----------------------------------------------------------------------------------------------------------


def expiries(pem: bytes) -> Iterator[float]:
    """When each certificate of a PEM file ends, in wall seconds; nothing for what cannot be read."""
    for block in pem.decode("ascii", "replace").split("-----BEGIN CERTIFICATE-----")[1:]:
        body, end, _ = block.partition("-----END CERTIFICATE-----")
        if not end:
            continue
        try:
            yield _not_after(ssl.PEM_cert_to_DER_cert(f"-----BEGIN CERTIFICATE-----{body}{end}"))
        except (ValueError, IndexError):
            continue


def _not_after(der: bytes) -> float:
    """The end of the validity in an X.509 certificate (RFC 5280, 4.1): the fifth element of the inner sequence."""
    _, outer, _ = _element(der, 0)
    _, at, _ = _element(der, outer)
    tag, start, end = _element(der, at)
    skip = 4 if tag == 0xA0 else 3  # [0] version, serial number, signature, issuer
    for _ in range(skip):
        tag, start, end = _element(der, at)
        at = end
    _, validity, _ = _element(der, at)
    _, _, not_before = _element(der, validity)
    tag, start, end = _element(der, not_before)
    text = der[start:end].decode("ascii")
    if tag == 0x17:  # UTCTime: two digits, up to 2049
        text = ("20" if text < "50" else "19") + text
    if len(text) != 15 or text[-1] != "Z" or not text[:-1].isdigit():
        raise ValueError("no time")
    fields = [int(text[:4]), *(int(text[i : i + 2]) for i in range(4, 14, 2))]
    return float(timegm((fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], 0, 1, 0)))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, start and end of the content of the DER element at ``at``."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[start : start + count], "big")
        start += count
    if start + length > len(der):
        raise ValueError("truncated")
    return tag, start, start + length
