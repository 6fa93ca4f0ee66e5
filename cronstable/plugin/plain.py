"""The quick way to a yes: what is surely valid, told without jsonschema.

jsonschema is the authority, and costs a daemon 3 MiB and a tenth of its start. Most schemas use only a few keywords,
and most configurations are right. So the functions here know those keywords and say yes or *not sure*, never no: for
everything that is odd, and for every message, jsonschema is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cronstable.plugin.descriptors import JsonSchema

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_TEXTS: Final = frozenset({"$comment", "title", "description"})
_FLAGS: Final = frozenset({"deprecated", "readOnly", "writeOnly"})
_ANNOTATIONS: Final = frozenset({"$schema", "$id", "default", "examples"}) | _TEXTS | _FLAGS
_LIMITS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_SIZES: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
_INSIDE: Final = frozenset({"properties", "required", "additionalProperties", "items"})
_KNOWN: Final = _ANNOTATIONS | _LIMITS | _SIZES | _INSIDE | {"type", "enum", "const", "pattern"}
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_URI: Final = re.compile(r"https?://[A-Za-z0-9./_-]+")


def surely_valid(value: object, schema: object) -> bool:
    """True only if jsonschema would find nothing wrong with ``value``; ``schema`` is one that it accepts."""
    if schema is True:
        return True
    if not isinstance(schema, Mapping) or not schema.keys() <= _KNOWN or not _is_one_of_the_types(value, schema):
        return False
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    match value:
        case dict():
            return _mapping(value, schema)
        case list():
            items = schema.get("items", True)
            return _long_enough(value, schema, "Items") and all(surely_valid(item, items) for item in value)
        case str():
            pattern = schema.get("pattern")
            return _long_enough(value, schema, "Length") and (pattern is None or re.search(pattern, value) is not None)
        case bool() | None:
            return True
        case int() | float():
            return _within(value, schema)
        case _:
            return False


def _is_one_of_the_types(value: object, schema: JsonSchema) -> bool:
    wanted = schema.get("type")
    if wanted is None:
        return True
    names = (wanted,) if isinstance(wanted, str) else wanted
    match value:
        case bool():
            return "boolean" in names
        case int():
            return "integer" in names or "number" in names
        case float():
            return "number" in names
        case str():
            return "string" in names
        case list():
            return "array" in names
        case dict():
            return "object" in names
        case _:
            return value is None and "null" in names


def _same(value: object, other: object) -> bool:
    """Equal scalars of one type. Whether 1 is 1.0 and what equal lists are, is a question for jsonschema."""
    return type(value) is type(other) and isinstance(value, str | bool | int | None) and value == other


def _mapping(value: dict[Any, object], schema: JsonSchema) -> bool:
    properties, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
    if not all(name in value for name in schema.get("required", ())):
        return False
    return all(surely_valid(child, properties.get(key, extra)) for key, child in value.items())


def _long_enough(value: list[object] | str, schema: JsonSchema, what: str) -> bool:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}")
    return least <= len(value) and (most is None or len(value) <= most)


def _within(value: float, schema: JsonSchema) -> bool:
    at_least, at_most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return (
        (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
        and (above is None or value > above)
        and (below is None or value < below)
    )


def surely_a_schema(schema: object) -> bool:
    """True only if ``schema`` is a JSON Schema of the draft that we speak; it then needs no look at the meta-schema."""
    if isinstance(schema, bool):
        return True
    return isinstance(schema, dict) and all(_keyword(key, value) for key, value in schema.items())


def _keyword(key: object, value: Any) -> bool:
    match key:
        case "$schema":
            return bool(value == DRAFT)
        case "$id":
            return isinstance(value, str) and _URI.fullmatch(value) is not None
        case "type":
            names = [value] if isinstance(value, str) else value
            return isinstance(names, list) and bool(names) and _different_texts(names) and _TYPES.issuperset(names)
        case "properties":
            return isinstance(value, dict) and all(
                isinstance(name, str) and surely_a_schema(child) for name, child in value.items()
            )
        case "additionalProperties" | "items":
            return surely_a_schema(value)
        case "required":
            return isinstance(value, list) and _different_texts(value)
        case "enum" | "examples":
            return isinstance(value, list)
        case "default" | "const":
            return True
        case "pattern":
            return isinstance(value, str) and _compiles(value)
        case _ if key in _TEXTS:
            return isinstance(value, str)
        case _ if key in _FLAGS:
            return isinstance(value, bool)
        case _ if key in _SIZES:
            return type(value) is int and value >= 0
        case _ if key in _LIMITS:
            return type(value) in (int, float)
        case _:
            return False


def _different_texts(names: list[object]) -> bool:
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
