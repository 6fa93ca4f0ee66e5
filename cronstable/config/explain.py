"""What jsonschema found, said to somebody who has never read a JSON Schema.

No message repeats a value that could be a secret: only what stands where a number, a flag or one of a few words is
expected is quoted, and never below a subschema that is marked ``writeOnly``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from jsonschema.exceptions import ValidationError

from cronstable.core.finding import KeyPath, Problem

_TYPE_WORDS: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_SECRET_KEY: Final = re.compile(r"pass|secret|token|credential|dsn|url|key$|value$", re.IGNORECASE)
_LONGEST_QUOTE: Final = 60


def problems(error: ValidationError) -> Iterator[Problem]:
    """One error of jsonschema as problems in plain words, with paths from the validated root."""
    while error.context:
        # Of several alternatives, the one that got furthest is the one that was meant.
        error = max(error.context, key=lambda inner: (len(inner.absolute_path), inner.validator != "type"))
    explain = _EXPLAIN.get(str(error.validator))
    if explain is not None:
        yield from explain(error)
    else:
        yield Problem(_path(error), f"does not satisfy `{error.validator}` of the schema", hint=_description(error))


def close_match(word: str, allowed: Iterator[str] | list[str]) -> str | None:
    """The allowed word that was probably meant."""
    candidates = list(allowed)
    folded = {candidate.lower(): candidate for candidate in candidates}
    if word.lower() in folded:
        return folded[word.lower()]
    found = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return found[0] if found else None


def quote(value: object) -> str:
    """A scalar as it can be shown."""
    text = value if isinstance(value, str) else {True: "true", False: "false", None: "null"}.get(value, repr(value))  # type: ignore[arg-type]
    text = " ".join(str(text).split())
    return f"`{text}`" if len(text) <= _LONGEST_QUOTE else f"`{text[:_LONGEST_QUOTE]}...`"


def _path(error: ValidationError) -> KeyPath:
    return tuple(error.absolute_path)


def _description(error: ValidationError) -> str | None:
    found = error.schema.get("description") if isinstance(error.schema, Mapping) else None
    return str(found) if found else None


def _shown(error: ValidationError) -> str:
    """``, not `x```: what stands there, where that gives nothing away."""
    path = _path(error)
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    if isinstance(error.instance, dict):
        return ", not a mapping"
    if isinstance(error.instance, list):
        return ", not a list"
    if (
        schema.get("writeOnly")
        or _SECRET_KEY.search(key)
        or (isinstance(error.instance, str) and "@" in error.instance)
    ):
        return ""
    if error.instance == "":
        return ", not empty"
    return f", not {quote(error.instance)}"


def _type(error: ValidationError) -> Iterator[Problem]:
    declared = error.validator_value
    types = [declared] if isinstance(declared, str) else list(declared)
    words = [_TYPE_WORDS[kind] for kind in types if kind != "null" or len(types) == 1]
    wanted = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    scalar = not {"object", "array", "string"} & set(types) or isinstance(error.instance, dict | list)
    not_that = _shown(error) if scalar else ", not text"
    yield Problem(_path(error), f"must be {wanted}{not_that}", hint=_shape_hint(error, types))


def _shape_hint(error: ValidationError, types: list[str]) -> str | None:
    items = error.schema.get("items") if isinstance(error.schema, Mapping) else None
    if types != ["array"] or not isinstance(items, Mapping):
        return None
    if items.get("type") == "object" and isinstance(error.instance, dict):
        keys = list(items.get("properties", {}))
        if keys == ["key", "value"] and error.instance:
            first = next(iter(error.instance))
            return f"write a list of pairs: `- key: {first}` and below it `value: ...`"
        return f"write a list of mappings, each with {', '.join(f'`{key}`' for key in keys)}"
    return "begin the line with `- `" if not isinstance(error.instance, dict) else None


def _required(error: ValidationError) -> Iterator[Problem]:
    missing = [key for key in error.validator_value if key not in error.instance]
    named = re.match(r"'(.*?)' is a required property", error.message)
    # jsonschema reports each missing key on its own.
    keys = [named[1]] if named and named[1] in missing else missing
    for key in keys:
        yield Problem(_path(error), f"`{key}` is missing")


def _additional(error: ValidationError) -> Iterator[Problem]:
    known: dict[str, Any] = error.schema.get("properties", {})
    for key in error.instance:
        if key in known:
            continue
        # What the mapping has already is not what a misspelt key was meant to be, unless nothing else comes close.
        meant = close_match(key, [k for k in known if k not in error.instance]) or close_match(key, list(known))
        yield Problem(
            (*_path(error), key),
            f"unknown key `{key}`",
            allowed=() if meant or len(known) > 12 else tuple(known),
            hint=f"did you mean `{meant}`?" if meant else None,
        )


def _enum(error: ValidationError) -> Iterator[Problem]:
    allowed = tuple(str(value) for value in error.validator_value)
    meant = close_match(error.instance, list(allowed)) if isinstance(error.instance, str) else None
    shown = _shown(error).removeprefix(", not ") or "this"
    yield Problem(
        _path(error),
        f"{shown} is not one of the allowed values",
        allowed=allowed,
        hint=f"did you mean `{meant}`?" if meant else None,
    )


def _bound(words: str) -> Callable[[ValidationError], Iterator[Problem]]:
    def explain(error: ValidationError) -> Iterator[Problem]:
        yield Problem(_path(error), f"must be {words} {error.validator_value}{_shown(error)}")

    return explain


def _pattern(error: ValidationError) -> Iterator[Problem]:
    if error.instance.strip() == "":
        yield Problem(_path(error), "must not be empty", hint=_description(error))
        return
    yield Problem(
        _path(error), f"is not of the right form{_shown(error)}", hint=_description(error) or f"{error.validator_value}"
    )


def _fixed(message: str) -> Callable[[ValidationError], Iterator[Problem]]:
    def explain(error: ValidationError) -> Iterator[Problem]:
        yield Problem(_path(error), message.format(error.validator_value))

    return explain


_EXPLAIN: Final[Mapping[str, Callable[[ValidationError], Iterator[Problem]]]] = {
    "type": _type,
    "required": _required,
    "additionalProperties": _additional,
    "enum": _enum,
    "const": _bound("exactly"),
    "minimum": _bound("at least"),
    "maximum": _bound("at most"),
    "exclusiveMinimum": _bound("more than"),
    "exclusiveMaximum": _bound("less than"),
    "multipleOf": _bound("a multiple of"),
    "pattern": _pattern,
    "minLength": _fixed("must have at least {} characters"),
    "maxLength": _fixed("must have at most {} characters"),
    "minItems": _fixed("must have at least {} item(s)"),
    "maxItems": _fixed("must have at most {} item(s)"),
    "minProperties": _fixed("must have at least {} key(s)"),
    "maxProperties": _fixed("must have at most {} key(s)"),
    "uniqueItems": _fixed("must not list anything twice"),
}
