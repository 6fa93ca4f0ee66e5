"""Is a descriptor fit to be used? Raises ``PluginError`` with what is wrong and what would be right.

The structural checks are cheap and run on every descriptor. ``prove_schemas`` also holds each schema against the JSON
Schema meta-schema and each example against its schema; the host's own descriptors are proven by a test instead of at
every start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from cronstable.plugin.descriptors import (
    API_VERSION,
    Capability,
    CliCommand,
    ConfigFragment,
    Descriptor,
    ElectionBackend,
    JsonSchema,
    NotifierBackend,
    ServiceProvider,
    StateStoreBackend,
)
from cronstable.plugin.errors import PluginError
from cronstable.plugin.plain import surely_a_schema, surely_valid

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_KEY_PATH = re.compile(r"[A-Za-z_$][\w$-]*(\[\])?(\.[A-Za-z_$][\w$-]*(\[\])?)*")

_SUBSCHEMA = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames")
_SUBSCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "dependentSchemas")
_CONDITIONS = frozenset({"not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "propertyNames"})
"""Where a subschema narrows an object that is described elsewhere; it need not close it again."""


def check(descriptor: Descriptor) -> None:
    """Structure, API version, names and targets; raises ``PluginError``."""
    _check_api(descriptor.api)
    match descriptor:
        case ConfigFragment():
            _check_fragment(descriptor)
        case CliCommand():
            _check_name(descriptor.name)
            _check_target("target", descriptor.target)
        case ElectionBackend() | StateStoreBackend():
            _check_name(descriptor.name)
            _check_target("factory", descriptor.factory)
            _check_parse(descriptor.parse)
            _check_capabilities(descriptor.capabilities)
            _check_section(descriptor.schema)
        case NotifierBackend() | ServiceProvider():
            _check_name(descriptor.name)
            _check_target("factory", descriptor.factory)
            _check_parse(descriptor.parse)
            _check_section(descriptor.schema)
            if isinstance(descriptor, ServiceProvider) and descriptor.section:
                _check_name(descriptor.section.removeprefix("cluster."))


def prove_schemas(descriptor: Descriptor) -> None:
    """Every schema is a schema, every ``$ref`` resolves inside it, every example is valid; raises ``PluginError``."""
    for where, schema in schemas_of(descriptor):
        if surely_a_schema(schema) and all(surely_valid(one, schema) for one in schema.get("examples", ())):
            continue
        _prove(where, schema)


def _prove(where: str, schema: JsonSchema) -> None:
    # Here and not above: jsonschema costs more to import than everything else of a start.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise PluginError(f"{where} is not a JSON Schema: {error.json_path}: {error.message}") from error
    _check_references(where, schema)
    validator = Draft202012Validator(schema)
    for number, example in enumerate(schema.get("examples", ())):
        for wrong in validator.iter_errors(example):
            raise PluginError(f"example {number} of {where} is not valid: {wrong.json_path}: {wrong.message}")


def schemas_of(descriptor: Descriptor) -> Iterator[tuple[str, JsonSchema]]:
    """The schemas of a descriptor, each with the words for it in an error."""
    match descriptor:
        case ConfigFragment():
            for path, schema in descriptor.schemas.items():
                yield f"the schema of {path}", schema
        case CliCommand():
            return
        case _:
            if descriptor.schema is not None:
                yield "its schema", descriptor.schema


def key_paths(descriptor: Descriptor) -> tuple[str, ...]:
    """The configuration keys that a descriptor owns; two owners of one is an error."""
    match descriptor:
        case ConfigFragment():
            return tuple(descriptor.schemas)
        case ElectionBackend(name=name, schema=schema) if schema is not None:
            return (f"cluster.{name}",)
        case ServiceProvider(section=section, schema=schema) if section and schema is not None:
            return (section,)
        case _:
            return ()


def _check_api(api: object) -> None:
    if not (isinstance(api, tuple) and len(api) == 2 and all(isinstance(part, int) for part in api)):
        raise PluginError(f"api is {api!r}; it must be (major, minor), as API_VERSION of cronstable.api is")
    major, minor = api
    if major != API_VERSION[0]:
        raise PluginError(
            f"it was written for plugin API {major}.{minor}, this host speaks {API_VERSION[0]}.{API_VERSION[1]}; "
            f"install a release of the plugin for API {API_VERSION[0]}"
        )


def _check_name(name: object) -> None:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise PluginError(f"the name {name!r} is not a letter followed by letters, digits, '-' or '_'")


def _check_target(key: str, target: object) -> None:
    if not (isinstance(target, str) and _TARGET.fullmatch(target)):
        raise PluginError(f"{key} is {target!r}; it must be a string 'package.module:callable'")


def _check_parse(parse: object) -> None:
    if parse is not None and not callable(parse):
        raise PluginError(f"parse is {parse!r}; it must be a callable or None")


def _check_capabilities(capabilities: object) -> None:
    if not (isinstance(capabilities, frozenset) and all(isinstance(c, Capability) for c in capabilities)):
        raise PluginError(f"capabilities is {capabilities!r}; it must be a frozenset of Capability")


def _check_section(schema: object) -> None:
    if schema is None:
        return
    if not _is_schema(schema):
        raise PluginError(f"its schema is a {type(schema).__name__}; it must be a mapping or None")
    if not schema.get("$id"):
        raise PluginError("its schema has no $id; give it a URI of its own")
    if not schema.get("examples"):
        raise PluginError("its schema has no examples; give at least one valid section")
    _check_closed("its schema", schema)
    _check_stands_alone("its schema", schema)


def _check_fragment(fragment: ConfigFragment) -> None:
    if not (isinstance(fragment.id, str) and fragment.id):
        raise PluginError("a configuration fragment has no id; give it a URI of its own")
    for path, schema in fragment.schemas.items():
        where = f"the schema of {path}"
        if not (isinstance(path, str) and _KEY_PATH.fullmatch(path)):
            raise PluginError(f"{path!r} is not a key path such as 'cluster.listen' or 'jobs[].retries'")
        if not _is_schema(schema):
            raise PluginError(f"{where} is a {type(schema).__name__}; it must be a mapping")
        if not (schema.get("examples") or _is_its_own_example(schema)):
            raise PluginError(f"{where} has no examples; give at least one valid value")
        _check_closed(where, schema)
        _check_stands_alone(where, schema)
    for path in fragment.not_in_defaults:
        if path not in fragment.schemas:
            raise PluginError(f"not_in_defaults names {path}, of which the fragment has no schema")


def _is_schema(value: object) -> TypeGuard[JsonSchema]:
    return isinstance(value, Mapping)


def _is_its_own_example(schema: JsonSchema) -> bool:
    """A boolean or an enumeration says all its values; an example would only repeat one."""
    return schema.get("type") == "boolean" or "enum" in schema or "const" in schema


def _subschemas(schema: JsonSchema, condition: bool = False) -> Iterator[tuple[JsonSchema, bool]]:
    """A schema and all below it; True marks one that only narrows what another describes."""
    yield schema, condition
    for key, value in schema.items():
        inside = condition or key in _CONDITIONS
        if key in _SUBSCHEMA:
            children = [value]
        elif key in _SUBSCHEMAS and isinstance(value, list | tuple):
            children = list(value)
        elif key in _NAMED_SUBSCHEMAS and isinstance(value, Mapping):
            children = list(value.values())
        else:
            continue
        for child in children:
            if _is_schema(child):
                yield from _subschemas(child, inside)


def _check_closed(where: str, schema: JsonSchema) -> None:
    """A key that nobody knows is a mistake of the user's, so an object either lists its keys or types their values."""
    for part, condition in _subschemas(schema):
        kind = part.get("type")
        is_object = kind == "object" or (isinstance(kind, list | tuple) and "object" in kind) or "properties" in part
        if is_object and not condition and part.get("additionalProperties", True) in (True, {}):
            keys = ", ".join(part.get("properties", ())) or "none"
            raise PluginError(f"{where} leaves an object open (keys: {keys}); say additionalProperties: false")


def _check_stands_alone(where: str, schema: JsonSchema) -> None:
    """A schema is moved into a larger one, where ``#`` means itself only if it has an ``$id``."""
    for part, _ in _subschemas(schema):
        for key in ("$ref", "$dynamicRef"):
            reference = part.get(key)
            if reference is None:
                continue
            if not (isinstance(reference, str) and reference.startswith("#")):
                raise PluginError(f"{where} reaches outside itself: {key} {reference!r}; copy what it needs into $defs")
            if not schema.get("$id"):
                raise PluginError(f"{where} has {key} {reference!r} but no $id, so that it would reach outside itself")


def _check_references(where: str, schema: JsonSchema) -> None:
    anchors = {part.get(key) for part, _ in _subschemas(schema) for key in ("$anchor", "$dynamicAnchor")}
    for part, _ in _subschemas(schema):
        for key in ("$ref", "$dynamicRef"):
            reference = part.get(key)
            if reference is None or reference[1:] in anchors:
                continue
            target: object = schema
            for step in reference[1:].split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                target = target.get(name) if isinstance(target, Mapping) else None
            if target is None or (len(reference) > 1 and reference[1] != "/"):
                raise PluginError(f"{where} reaches outside itself: {key} {reference!r} is nowhere in it")
