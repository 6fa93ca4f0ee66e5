"""The lease file: JSON ``{name, holder, fence, expiresAt}`` (reference 4), and what else we write there.

Readers of the four keys alone understand it, and a file of the four keys alone is understood here: its ``ttl`` is then
taken to be our own, and equal bytes are the only proof that nobody wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from cronstable.api import Grant, Holder, LeaseRecord, Seconds, Seen, Unreadable, Vacant
from cronstable_fs.life import Sign

MAX_BYTES: Final = 256 * 1024
"""Nothing that we write comes near this; a bigger file is not a lease."""


LARGEST_FENCE: Final = 2**62
"""No term comes near it, and jobs keep fences in columns of 64 bits. Taken for the truth, a larger one would stay."""

LARGEST_SECONDS: Final = 1e15
"""Beyond any calendar, and still exact enough for arithmetic: more is damage."""


def encode(name: str, grant: Grant, sign: Sign | None = None) -> bytes:
    """The bytes of a lease held under ``grant``. ``sign``: of life, of the process that writes."""
    return _dump(name, grant, grant.expires_at, grant.nonce, (), sign)


def encode_released(name: str, grant: Grant, nonce: str, returned: Sequence[str]) -> bytes:
    """The bytes of a lease let go: expired in place, since the file is the only home of the fence."""
    return _dump(name, grant, 0, nonce, returned, None)


def _dump(
    name: str, grant: Grant, expires_at: float | None, nonce: str, returned: Sequence[str], sign: Sign | None
) -> bytes:
    document: dict[str, object] = {
        "name": name,
        "holder": str(grant.holder),
        "fence": grant.fence,
        "expiresAt": expires_at,
        "ttl": grant.ttl,
        "nonce": nonce,
    }
    if returned:
        document["returned"] = list(returned)
    if sign is not None:
        document["life"] = {"file": sign.name, "kernel": sign.kernel, "inode": sign.inode}
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def sign_of(data: bytes | None) -> Sign | None:
    """The sign of life of a lease's holder; None where the lease names none that can be understood."""
    try:
        document = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return None
    life = document.get("life") if isinstance(document, dict) else None
    if not isinstance(life, dict):
        return None
    name, kernel, inode = life.get("file"), life.get("kernel"), life.get("inode")
    if not (isinstance(name, str) and isinstance(kernel, str) and isinstance(inode, str)):
        return None
    return Sign(name, kernel, inode)


def decode(data: bytes | None, name: str, default_ttl: Seconds) -> Seen | Vacant | Unreadable:
    """What the file says. ``data`` None: there is no file. ``default_ttl`` stands in where the writer stored none."""
    if data is None:
        return Vacant(None)
    try:
        return _decode(data, name, default_ttl)
    except (ValueError, RecursionError) as error:
        return Unreadable(f"the lease file is damaged or not a lease: {error}")


def _decode(data: bytes, name: str, default_ttl: Seconds) -> Seen | Vacant:
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    document = json.loads(data, parse_constant=_no_constant)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    if document.get("name", name) != name:
        raise ValueError(f"it belongs to {document['name']!r}")
    fence = document.get("fence")
    if not isinstance(fence, int) or isinstance(fence, bool) or not 0 <= fence <= LARGEST_FENCE:
        raise ValueError(f"fence {_short(fence)} is not a whole number from 0 to {LARGEST_FENCE}")
    expires_at = _number(document.get("expiresAt"), "expiresAt")
    if expires_at <= 0:
        returned = document.get("returned")
        ids = returned if isinstance(returned, list) else []
        return Vacant(fence, tuple(i for i in ids if isinstance(i, str)))
    holder = document.get("holder")
    if not isinstance(holder, str) or not holder:
        raise ValueError(f"holder {holder!r} is not a name")
    stored = document.get("ttl")
    ttl = default_ttl if stored is None else _number(stored, "ttl")
    if ttl <= 0:
        raise ValueError(f"ttl {stored!r} is not a duration")
    nonce = document.get("nonce")
    return Seen(
        LeaseRecord(
            holder=Holder.parse(holder),
            fence=fence,
            nonce=nonce if isinstance(nonce, str) else "",
            ttl=ttl,
            expires_at=expires_at,
            mark=hashlib.sha256(data).hexdigest(),
        )
    )


def _number(value: object, key: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= LARGEST_SECONDS:
        raise ValueError(f"{key} {_short(value)} is not a number of seconds")
    return float(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")
