"""What is a secret, by its name, its place or its form; and secrets taken out of text that is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cronstable.core.job import Json

MASK: Final = "[redacted]"
SHORTEST: Final = 4
"""Characters of a secret at least: taking out shorter ones would garble the text and hide nothing."""

SOURCES: Final = frozenset({"value", "fromFile", "fromEnvVar"})
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_SECRET_NAME: Final = re.compile(
    # docs/http-api.md lists these. Anywhere in a name, as many are written without a sign where a word ends; the
    # program curl is no URL.
    r"passw|passphrase|passcode|pwd|secret|token|credential|dsn|cookie|webhook|bearer|(?<!c)url"
    r"|(api|access|private|auth|signing|encryption|ssh)_?key"
    # At the end of a word: not `passage`, not `keyboard`, nor `monkey`. `maxKeys` says how many.
    r"|(pass|(?<!mon)(?<!tur)key)\d*($|_)|(^|(?<!max)(?<!min)(?<!num)_)keys($|_)|values?$"
    # A word of its own: not `author`, not `spin`.
    r"|(^|_)(o?auth\d*|authorization|authentication|headers|jwt|otp|pin|uri)($|_)"
)
_TELLING_URL: Final = re.compile(r"://[^\s/?#]*(/+[^\s/]|/*[?#])|\?[\w.%-]+=")
_SETS: Final = re.compile(r"""(?<![\w.-])([\w.-]+)["'\\]*\s*[:=]+\s*(?=\S)""")


def looks_secret(name: str) -> bool:
    """Whether what has that name is to be kept to oneself: a variable, a key of a configuration, a header."""
    return _SECRET_NAME.search(_WORD_BEGINS.sub("_", name).lower()) is not None


_PUBLIC_WHEN_PLAIN: Final = re.compile(r"(^|_)(ur[il]s?|values?)$")


def is_secret_variable(name: str, value: str) -> bool:
    """Whether what an environment variable says is taken out of text that is kept.

    A URL is only when it has a user or a query in it: else every address that a job prints would be.
    """
    if not looks_secret(name):
        return False
    plain = _PUBLIC_WHEN_PLAIN.sub("", _WORD_BEGINS.sub("_", name).lower())
    return looks_secret(plain) or "://" in value.rpartition("@")[0] or ("://" in value and "?" in value)


# A configuration has few keys, and thousands of jobs have the same ones.
_key_looks_secret: Final = lru_cache(maxsize=1024)(looks_secret)


def is_secret_place(path: Sequence[object]) -> bool:
    """Whether any key on the way from the root sounds like a secret, so that everything below it may be one.

    Only the name of a section directly below ``report`` is no reason: that is a reporter's, such as ``webhook``.
    """
    return any(
        isinstance(part, str) and _key_looks_secret(part) and not (at > 0 and _is_reporter(path[at - 1 : at + 2]))
        for at, part in enumerate(path)
    )


def _is_reporter(around: Sequence[object]) -> bool:
    """Whether the middle one of three parts of a path is; below it stands a key and not a number."""
    return len(around) == 3 and around[0] == "report" and not str(around[2]).isdigit()


def tells_secret(text: str) -> bool:
    """Whether a text has a secret in it by its form, whatever its name is.

    These are URLs with more than a host and a port, since any part of them may be one (user info, a query, the path of
    a hook), ``user:password@host`` without a scheme, and what gives a value to something that sounds like a secret:
    ``PASSWORD=x``, ``Authorization: x``.
    """
    if _TELLING_URL.search(text) is not None or any(looks_secret(name) for name in _SETS.findall(text)):
        return True
    # A password may have any character in it, even a space in a URL.
    return "://" in text.rpartition("@")[0] or any(":" in word.rpartition("@")[0] for word in text.split())


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
