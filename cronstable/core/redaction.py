"""Secrets taken out of text that is kept: the values that a configuration and an environment give away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cronstable.core.job import Json

MASK: Final = "[redacted]"
SHORTEST: Final = 4
"""Characters of a secret at least: taking out shorter ones would garble the text and hide nothing."""

SOURCES: Final = frozenset({"value", "fromFile", "fromEnvVar"})
_SECRET_KEY: Final = re.compile(
    r"pass(wd|word|phrase|code)?($|[_-])|pwd|secret|token|credential|api_?key|(access|private|secret|auth|signing)_?key"
    r"|(^|_)(auth|dsn|key)($|_)|cookie|webhook",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether the value of a variable of that name is to be kept to oneself."""
    return _SECRET_KEY.search(name) is not None


def sources(value: object) -> Iterator[Mapping[str, Json]]:
    """Everything at or below ``value`` that has the shape of a source of a secret (reference 1).

    By its shape and not by a schema, so that a section of a plugin that is gone hides its secrets all the same.
    """
    if isinstance(value, Mapping):
        if value and value.keys() <= SOURCES:
            yield value
            return
        for inside in value.values():
            yield from sources(inside)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from sources(inside)


def redact(text: str, secrets: Iterable[str]) -> str:
    """``text`` with every secret in it masked, the longest first; the lines of one with several each for themselves."""
    found: set[str] = set()
    for secret in secrets:
        found.update({secret, secret.strip()})
        lines = [line.strip() for line in secret.splitlines()]
        found.update(lines if len(lines) > 1 else ())
    wanted = sorted((one for one in found if len(one) >= SHORTEST), key=lambda one: (-len(one), one))
    if not wanted:
        return text
    return re.sub("|".join(map(re.escape, wanted)), MASK, text)
