"""Heads of HTTP/1.1 messages, as far as the exchange speaks it: read strictly, written plainly. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST_HEAD: Final = 16_384
"""Bytes of a head."""
END: Final = b"\r\n\r\n"
REASONS: Final = {200: "OK", 304: "Not Modified"}


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer. ``fields``: by name in lower case. ``length``: of the body; None: until the end."""

    status: int
    fields: Mapping[str, str]
    length: int | None
    stays: bool
    """The connection can be asked on again."""


def parse_answer(head: bytes) -> Head:
    """The head of an answer, without the empty line. Raises ``ValueError`` that says what is wrong with it."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not _digits(code) or len(code) < 3 or rest[3:4] not in ("", " "):
        raise ValueError("the answer is not HTTP")
    status = int(code)
    fields = parse_fields(lines)
    if status < 200 or "transfer-encoding" in fields:
        # Whatever is sent on this exchange is a few kilobytes and in one piece.
        raise ValueError("the answer is not in one piece")
    stays = version == "HTTP/1.1" and "close" not in fields.get("connection", "").lower()
    if status in (204, 304):
        return Head(status, fields, 0, stays)
    length = fields.get("content-length")
    if length is None:
        return Head(status, fields, None, stays=False)
    if not _digits(length) or len(length) > 15:
        raise ValueError("the answer has an odd length")
    return Head(status, fields, int(length), stays)


def parse_fields(lines: list[str]) -> dict[str, str]:
    """The fields of a head, each once. Raises ``ValueError``."""
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip() or key in fields:
            raise ValueError("the head has an odd line")
        fields[key] = value.strip(" \t")
    return fields


def parse_question(data: bytes, path: str) -> dict[str, str] | None:
    """The fields of ``GET path`` without a body, when ``data`` is exactly that; None for whatever else it is."""
    start = f"GET {path} HTTP/1.1\r\n".encode()
    if not data.startswith(start) or len(data) > MOST_HEAD or data.find(END) != len(data) - len(END):
        return None
    try:
        return parse_fields(data[len(start) : -len(END)].decode("ascii").split("\r\n"))
    except ValueError:
        return None


def write(first: str, fields: Mapping[str, str]) -> bytes:
    """A head with its empty line. What is in ``fields`` has been looked at: no line breaks."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{first}\r\n{lines}\r\n".encode("ascii", "replace")


def write_answer(status: int, fields: Mapping[str, str], body: bytes) -> bytes:
    """A whole answer on a connection that stays."""
    length = {} if status == 304 else {"Content-Length": str(len(body))}
    return write(f"HTTP/1.1 {status} {REASONS.get(status, '')}", {**fields, **length}) + body


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
