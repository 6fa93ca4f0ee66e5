"""The seal of a file of the state store: a last line of JSON that tells whether the bytes above it survived.

The file of a record whose data are JSON is thus two JSON texts, one a line: ``jq`` reads it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

MAX_DATA: Final = 2 * 2**20
"""Twice what a store must keep; a bigger file is none of ours."""
MAX_FILE: Final = MAX_DATA + 16 * 1024
_SORTED: Final = json.JSONEncoder(sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Sealed:
    """``mark``: which write this is, never the same twice. ``name``: of the document, or of nothing."""

    data: bytes
    mark: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Damaged:
    """The bytes are not what was written. ``detail`` in words."""

    detail: str


def seal(sealed: Sealed) -> bytes:
    """The bytes of the file."""
    fields = {"mark": sealed.mark, "name": sealed.name} if sealed.name else {"mark": sealed.mark}
    line = _SORTED({**fields, "sha256": _digest(fields, sealed.data)})
    return sealed.data + b"\n" + line.encode() + b"\n"


def unseal(file: bytes) -> Sealed | Damaged:
    """What was sealed."""
    if not file:
        return Damaged("the file is empty")
    if len(file) > MAX_FILE:
        return Damaged(f"more than {MAX_FILE} bytes")
    start = file.rfind(b"\n", 0, len(file) - 1)
    if start < 0 or not file.endswith(b"\n"):
        return Damaged("the end is missing")
    try:
        fields = json.loads(file[start + 1 :])
    except (ValueError, RecursionError):
        return Damaged("the last line is no seal")
    if not isinstance(fields, dict):
        return Damaged("the last line is no seal")
    data, digest = file[:start], fields.pop("sha256", None)
    mark, name = fields.get("mark"), fields.get("name", "")
    if not isinstance(mark, str) or not isinstance(name, str):
        return Damaged("the last line is no seal")
    if digest != _digest(fields, data):
        return Damaged("the bytes are not those that were written")
    return Sealed(data, mark, name)


def _digest(fields: object, data: bytes) -> str:
    found = hashlib.sha256(_SORTED(fields).encode())
    found.update(b"\n")
    found.update(data)
    return found.hexdigest()
