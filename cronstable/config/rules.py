"""The schema compiled for one quick walk over a document.

The walk turns text into what the schema asks for, and gives each job a *shape*: everything of it that the schema can
tell apart. Two jobs of one shape are both valid or both invalid, so jsonschema, which is the authority, needs to see
only one of them. Only text under a subschema that accepts every text is left out of the shape.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Hashable, Mapping
from typing import Any, Final, TypeAlias

from cronstable.config.document import Map, Seq
from cronstable.core.job import Json
from cronstable.plugin.descriptors import JsonSchema

Shape: TypeAlias = tuple[Hashable, ...]

_ANNOTATIONS: Final = frozenset(
    {"$id", "$schema", "$comment", "$defs", "title", "description", "default", "examples", "deprecated", "writeOnly"}
)
_STRUCTURE: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"}
    | {"minProperties", "maxProperties", "dependentRequired"}
)
_NUMERIC: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_ABOUT_TEXT: Final = frozenset({"pattern", "minLength", "maxLength", "format"})
_BLIND_TO_TEXT: Final = _ANNOTATIONS | _STRUCTURE | _NUMERIC

NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
"""Plain text that stands for nothing."""
_TRUE: Final = frozenset({"true", "yes", "on", "y", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "n", "0"})
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,30}")
_GROUPED: Final = re.compile(r"[-+]?[0-9]{1,9}(?:_[0-9]{1,9}){1,9}")
"""A whole number with its digits in groups, as the dialect has always read it: ``1_000_000``."""
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,4})?")
_SECRET: Final = frozenset({"value", "fromFile", "fromEnvVar"})
_PATH_KEYS: Final = frozenset({"fromFile", "env_file"})
_LIST: Final = 0
_UNKNOWN: Final = 1


class Rule:
    """What the walk needs of one subschema.

    ``text``: any text is fine and stays. ``opaque``: not understood further, scalars mean what YAML 1.2 says.
    ``secret``: the value says where a secret is; ``secrets``: there is one at or below this place.
    """

    __slots__ = ("extra", "items", "opaque", "path", "props", "secret", "secrets", "text", "types")

    secrets: bool
    extra: Rule | None
    items: Rule | None

    def __init__(self, schema: JsonSchema, root: JsonSchema, mask: bool, key: str = "") -> None:
        schema, root = _resolve(schema, root)
        declared = schema.get("type", ())
        self.types = frozenset([declared] if isinstance(declared, str) else declared)
        self.opaque = not self.types
        self.text = mask and "string" in self.types and schema.keys() <= _BLIND_TO_TEXT
        # A keyword that looks at what is inside (``if``, ``uniqueItems``) makes even plain text matter there.
        mask = mask and schema.keys() <= _BLIND_TO_TEXT | _ABOUT_TEXT
        self.path = key in _PATH_KEYS
        properties: Mapping[str, JsonSchema] = schema.get("properties", {})
        self.props = {name: Rule(child, root, mask, name) for name, child in properties.items()}
        extra = schema.get("additionalProperties")
        self.extra = Rule(extra, root, mask) if isinstance(extra, Mapping) else None
        items = schema.get("items")
        self.items = Rule(items, root, mask) if isinstance(items, Mapping) else None
        self.secret = properties.keys() >= _SECRET
        children = [*self.props.values(), *([self.items] if self.items else []), *([self.extra] if self.extra else [])]
        self.secrets = self.secret or any(child.secrets for child in children)

    def child(self, part: str | int) -> Rule | None:
        """The rule one step down."""
        return self.items if isinstance(part, int) else self.props.get(part, self.extra)


def _resolve(schema: JsonSchema, root: JsonSchema) -> tuple[JsonSchema, JsonSchema]:
    """Follow a reference into the fragment's own ``$defs``, once for each step, at most a few."""
    for _ in range(8):
        if "$id" in schema:
            root = schema
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step, {})
        schema = target
    return schema, root


class Walk:
    """The walk over one file. ``special`` is set when a text needs more: a ``$``, or a path beside the file."""

    def __init__(self, positions: array[int]) -> None:
        self._positions = positions
        self.special = False

    def mapping(self, node: Map, rule: Rule) -> Shape:
        """Convert the values of ``node`` in place and return its shape."""
        shape: list[Hashable] = []
        add = shape.append
        props, extra = rule.props, rule.extra
        at = node.at
        for i, (key, value) in enumerate(node.items()):
            child = props.get(key, extra)
            if child is None:
                add((key, _UNKNOWN))
            elif type(value) is str:
                if "$" in value or child.path:
                    self.special = True
                if child.text and len(child.types) == 1:
                    add(key)
                    continue
                quoted = self._positions[at + i] & 1
                new = convert(value, bool(quoted), child)
                if new is not value:
                    node[key] = new
                add(key if child.text and new is value else (key, value, quoted))
            else:
                add((key, self.any(value, child)))
        return tuple(shape)

    def any(self, value: Json, rule: Rule) -> Shape:
        """The same for a mapping or list."""
        if isinstance(value, Map):
            if rule.props or rule.extra is not None or not rule.opaque:
                return self.mapping(value, rule)
            return self.mapping(value, _OPEN)
        if isinstance(value, Seq):
            item_rule = rule.items or _OPEN
            shape: list[Hashable] = [_LIST]
            for i, item in enumerate(value):
                if type(item) is not str:
                    shape.append(self.any(item, item_rule))
                    continue
                if "$" in item:
                    self.special = True
                quoted = self._positions[value.at + i] & 1
                new = convert(item, bool(quoted), item_rule)
                if new is not item:
                    value[i] = new
                shape.append(_UNKNOWN if item_rule.text and new is item else (item, quoted))
            return tuple(shape)
        return (repr(value),)


def convert(text: str, quoted: bool, rule: Rule) -> Json:
    """What ``text`` is, given what is allowed here; text that fits nothing stays, for the schema to refuse.

    ``quoted``: it cannot be anything but text where text is allowed.
    """
    if rule.opaque:
        return text if quoted else _core_scalar(text)
    types = rule.types
    if "string" in types and (quoted or len(types) == 1):
        return text
    if "null" in types and text in NULLS and not quoted:
        return None
    if "boolean" in types:
        word = text.lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    if ("integer" in types or "number" in types) and (_INTEGER.fullmatch(text) or _GROUPED.fullmatch(text)):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
    if "string" not in types and not quoted and text in NULLS:
        # A key whose lines are all commented out.
        if "object" in types:
            return _empty(Map())
        if "array" in types:
            return _empty(Seq())
    return text


def _empty(node: Map | Seq) -> Map | Seq:
    node.at = 0
    return node


def _core_scalar(text: str) -> Json:
    """A plain scalar by the core schema of YAML 1.2."""
    if text in NULLS:
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _open_rule() -> Rule:
    rule = Rule({}, {}, False)
    rule.extra = rule.items = rule
    return rule


_OPEN: Final = _open_rule()
