"""What jsonschema found, said to somebody who has never read a JSON Schema.

No message repeats a value that could be a secret: only what stands where a number, a flag or one of a few words is
expected is quoted, and never below a subschema that is marked ``writeOnly``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cronstable.core.finding import KeyPath, Problem
from cronstable.core.redaction import is_secret_place, tells_secret
from cronstable.core.values import dataclass

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_TYPE_WORDS: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
UNKNOWN_KEY: Final = "unknown key"
"""How the message about one begins."""

_LONGEST_QUOTE: Final = 60


@dataclass(frozen=True, slots=True)
class _Failure:
    """The parts of an error that messages are made of. ``limit``: the value of the keyword that failed."""

    path: KeyPath
    keyword: str
    limit: Any
    instance: Any
    schema: Mapping[str, Any]
    message: str

    @property
    def description(self) -> str | None:
        """What the schema says about the place."""
        found = self.schema.get("description")
        return str(found) if found else None


def problems(error: ValidationError) -> Iterator[Problem]:
    """One error of jsonschema as problems in plain words, with paths from the validated root."""
    while error.context:
        # Of several alternatives, the one that got furthest is the one that was meant.
        error = max(error.context, key=lambda inner: (len(inner.absolute_path), inner.validator != "type"))
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    failure = _Failure(
        tuple(error.absolute_path), str(error.validator), error.validator_value, error.instance, schema, error.message
    )
    explain = _EXPLAIN.get(failure.keyword)
    if explain is not None:
        yield from explain(failure)
    else:
        yield Problem(failure.path, f"does not satisfy `{failure.keyword}` of the schema", hint=failure.description)


def close_match(word: str, allowed: Iterator[str] | list[str]) -> str | None:
    """The allowed word that was probably meant.

    difflib is imported here, on the first mistake: a daemon, which mostly meets none, stays smaller by 0.2 MiB.
    """
    import difflib

    candidates = list(allowed)
    folded = {candidate.lower(): candidate for candidate in candidates}
    if word.lower() in folded:
        return folded[word.lower()]
    found = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return found[0] if found else None


def quote(value: object) -> str:
    """A scalar as it can be shown."""
    words: dict[object, str] = {True: "true", False: "false", None: "null"}
    plain = words.get(value, repr(value)) if value is None or isinstance(value, bool) else str(value)
    text = " ".join(plain.split())
    return f"`{text}`" if len(text) <= _LONGEST_QUOTE else f"`{text[:_LONGEST_QUOTE]}...`"


def _shown(error: _Failure) -> str:
    """``, not `x```: what stands there, where that gives nothing away."""
    if isinstance(error.instance, dict):
        return ", not a mapping"
    if isinstance(error.instance, list):
        return ", not a list"
    if (
        error.schema.get("writeOnly")
        or is_secret_place(error.path)
        or (isinstance(error.instance, str) and ("@" in error.instance or tells_secret(error.instance)))
    ):
        return ""
    if error.instance == "":
        return ", not empty"
    return f", not {quote(error.instance)}"


def _type(error: _Failure) -> Iterator[Problem]:
    declared = error.limit
    types = [declared] if isinstance(declared, str) else list(declared)
    words = [_TYPE_WORDS[kind] for kind in types if kind != "null" or len(types) == 1]
    wanted = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    scalar = not {"object", "array", "string"} & set(types) or isinstance(error.instance, dict | list)
    not_that = _shown(error) if scalar else ", not text"
    yield Problem(error.path, f"must be {wanted}{not_that}", hint=_shape_hint(error, types))


def _shape_hint(error: _Failure, types: list[str]) -> str | None:
    items = error.schema.get("items")
    if types != ["array"] or not isinstance(items, Mapping):
        return None
    if items.get("type") == "object" and isinstance(error.instance, dict):
        keys = list(items.get("required") or items.get("properties", {}))
        if keys == ["key", "value"] and error.instance:
            first = next(iter(error.instance))
            return f"write a list of pairs: `- key: {first}` and below it `value: ...`"
        return f"write a list of mappings, each with {', '.join(f'`{key}`' for key in keys)}"
    return "begin the line with `- `" if not isinstance(error.instance, dict) else None


def _required(error: _Failure) -> Iterator[Problem]:
    missing = [key for key in error.limit if key not in error.instance]
    named = re.match(r"'(.*?)' is a required property", error.message)
    # jsonschema reports each missing key on its own.
    keys = [named[1]] if named and named[1] in missing else missing
    for key in keys:
        yield Problem(error.path, f"`{key}` is missing")


def _additional(error: _Failure) -> Iterator[Problem]:
    known: dict[str, Any] = error.schema.get("properties", {})
    for key in error.instance:
        if key in known:
            continue
        meant = close_match(key, list(known))
        yield Problem(
            (*error.path, key),
            f"{UNKNOWN_KEY} `{key}`",
            allowed=() if meant or len(known) > 12 else tuple(known),
            hint=f"did you mean `{meant}`?" if meant else None,
        )


def _enum(error: _Failure) -> Iterator[Problem]:
    allowed = tuple(str(value) for value in error.limit)
    meant = close_match(error.instance, list(allowed)) if isinstance(error.instance, str) else None
    shown = _shown(error).removeprefix(", not ") or "this"
    yield Problem(
        error.path,
        f"{shown} is not one of the allowed values",
        allowed=allowed,
        hint=f"did you mean `{meant}`?" if meant else None,
    )


def _bound(words: str) -> Callable[[_Failure], Iterator[Problem]]:
    def explain(error: _Failure) -> Iterator[Problem]:
        yield Problem(error.path, f"must be {words} {error.limit}{_shown(error)}")

    return explain


def _pattern(error: _Failure) -> Iterator[Problem]:
    if error.instance.strip() == "":
        yield Problem(error.path, "must not be empty", hint=error.description)
        return
    yield Problem(error.path, f"is not of the right form{_shown(error)}", hint=error.description or f"{error.limit}")


def _fixed(message: str) -> Callable[[_Failure], Iterator[Problem]]:
    def explain(error: _Failure) -> Iterator[Problem]:
        yield Problem(error.path, message.format(error.limit))

    return explain


_EXPLAIN: Final[Mapping[str, Callable[[_Failure], Iterator[Problem]]]] = {
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
