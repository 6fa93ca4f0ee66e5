"""Sources of secrets: found by the schema, proven to give something, never shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cronstable.config.rules import Rule
from cronstable.core.finding import KeyPath, Problem
from cronstable.core.job import Json

SOURCES: Final = ("value", "fromFile", "fromEnvVar")
"""In the order in which they count (reference 1)."""

_LONGEST: Final = 1 << 20


def secrets(value: Json, rule: Rule, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Mapping[str, Json]]]:
    """All places at or below ``value`` that say where a secret is."""
    if not rule.secrets:
        return
    if isinstance(value, dict):
        if rule.secret:
            yield path, value
            return
        for key, inside in value.items():
            child = rule.child(key)
            if child is not None:
                yield from secrets(inside, child, (*path, key))
    elif isinstance(value, list) and rule.items is not None:
        for i, inside in enumerate(value):
            yield from secrets(inside, rule.items, (*path, i))


def files(value: Json, rule: Rule) -> Iterator[str]:
    """The files that secrets at or below ``value`` are read from; a change of one counts as a change of the file."""
    for _, source in secrets(value, rule):
        name = source.get("fromFile")
        if isinstance(name, str) and name:
            yield name


def check(path: KeyPath, source: Mapping[str, Json], environ: Mapping[str, str]) -> Problem | None:
    """What is wrong with a source: one that is configured but gives nothing must not pass for "no secret"."""
    for key in SOURCES:
        given = source.get(key)
        if not isinstance(given, str):
            continue
        where = (*path, key)
        if key == "value":
            return None if given else Problem(where, "the secret is empty")
        if not given:
            return Problem(where, f"`{key}` is empty")
        if key == "fromFile":
            return _check_file(where, given)
        if not environ.get(given):
            state = "is empty" if given in environ else "is not set"
            return Problem(where, f"the variable {given}, which holds the secret, {state}")
        return None
    return Problem(path, "the secret has no source", allowed=SOURCES)


def _check_file(where: KeyPath, name: str) -> Problem | None:
    try:
        with open(name, "rb") as file:
            text = file.read(_LONGEST + 1).decode("utf-8-sig")
    except UnicodeDecodeError:
        return Problem(where, f"the secret in {name} is not UTF-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        return Problem(where, f"the secret in {name} cannot be read: {reason}")
    if len(text) > _LONGEST:
        return Problem(where, f"the secret in {name} is longer than {_LONGEST} bytes")
    return None if text.strip() else Problem(where, f"the secret in {name} is empty")
