"""How answers and failures look, and what a request's headers ask for: pure functions around one request."""

from __future__ import annotations

import hashlib
from typing import NoReturn

from aiohttp import web

from cronstable.api import Json
from cronstable.builtin.web import shapes


class Failure(Exception):
    """An answer other than success, raised from wherever it is found out."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def fail(status: int, reason: str) -> NoReturn:
    """End the request with this status and ``{"error": reason}``."""
    raise Failure(status, reason)


def json_answer(value: Json) -> web.Response:
    """200 with ``value`` as JSON."""
    return web.Response(body=shapes.dumps(value), content_type="application/json")


def json_bytes(body: bytes) -> web.Response:
    """200 with JSON that is written already."""
    return web.Response(body=body, content_type="application/json")


def error_answer(status: int, reason: str) -> web.Response:
    """The one shape that every error has (reference 7.1)."""
    headers = {"WWW-Authenticate": 'Bearer realm="cronstable"'} if status == 401 else None
    body = shapes.dumps({"error": reason})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def limit_of(request: web.Request) -> int | None:
    """``?limit=N`` as a number, None without it, 400 when it is none."""
    return number_of(request, "limit", 1, 999_999_999)


def flag_of(request: web.Request, name: str) -> bool:
    """``?name=true`` or ``?name=false``, False without it, 400 for anything else."""
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        fail(400, f"{name} must be true or false, not {text[:80]!r}")
    return text == "true"


def number_of(request: web.Request, name: str, lowest: int, highest: int) -> int | None:
    """A whole number in the query, None without it, 400 when it is none or outside ``lowest`` to ``highest``."""
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not lowest <= int(text) <= highest:
        upper = "" if highest >= 999_999_999 else f" to {highest}"
        fail(400, f"{name} must be a whole number from {lowest}{upper}, not {text[:80]!r}")
    return int(text)


def accepts(request: web.Request, kind: str) -> bool:
    """True when ``Accept`` lists this type by its name; without the header, text is what was always sent."""
    return kind in _listed(request, "Accept")


def accepts_json(request: web.Request) -> bool:
    """True when ``Accept`` lists application/json."""
    return accepts(request, "application/json")


def accepts_gzip(request: web.Request) -> bool:
    """True when the client takes compressed answers."""
    return not {"gzip", "*"}.isdisjoint(_listed(request, "Accept-Encoding"))


def matches(request: web.Request, etag: str) -> bool:
    """True when ``If-None-Match`` has this entity tag (weak comparison, RFC 9110 13.1.2)."""
    given = request.headers.getall("If-None-Match", None)
    if given is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in ",".join(given).split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags


def tagged(request: web.Request, body: bytes) -> web.Response:
    """200 with JSON that is written already under its entity tag, or 304 for who has it."""
    etag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if matches(request, etag):
        return web.Response(status=304, headers={"ETag": etag})
    answer = json_bytes(body)
    answer.headers["ETag"] = etag
    return answer


def _listed(request: web.Request, header: str) -> list[str]:
    """The entries of a comma-separated header in lower case, without those whose weight is zero."""
    entries: list[str] = []
    given = request.headers.getall(header, None)
    if given is None:
        return entries
    for part in ",".join(given).lower().split(","):
        value, *parameters = (piece.strip() for piece in part.split(";"))
        weights = [p.partition("=")[2].strip() for p in parameters if p.partition("=")[0].strip() == "q"]
        if value and not any(w.strip("0.") == "" for w in weights):
            entries.append(value)
    return entries
