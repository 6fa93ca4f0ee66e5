"""Defaults that the schema names, filled into a section."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from cronstable.core.job import Json
from cronstable.plugin.descriptors import JsonSchema


def fill_defaults(schema: JsonSchema, section: Mapping[str, Json]) -> dict[str, Json]:
    """A copy of ``section`` as plain data, with the ``default`` of each key that is absent; also in mappings below.

    A mapping that is absent itself stays absent: its presence can mean something.
    """
    filled: dict[str, Json] = {}
    properties: Mapping[str, JsonSchema] = schema.get("properties", {})
    for key, value in section.items():
        filled[key] = _plain(properties.get(key, {}), value)
    for key, child in properties.items():
        if key not in filled and "default" in child:
            filled[key] = copy.deepcopy(child["default"])
    return filled


def _plain(schema: JsonSchema, value: Json) -> Json:
    if isinstance(value, dict):
        return fill_defaults(schema, value)
    if isinstance(value, list):
        return [_plain(schema.get("items", {}), item) for item in value]
    return value
