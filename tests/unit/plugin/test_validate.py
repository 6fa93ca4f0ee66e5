"""What a descriptor must be, each rule with the words that the author of a plugin reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cronstable.api import (
    Capability,
    CliCommand,
    ConfigFragment,
    Descriptor,
    ElectionBackend,
    JsonSchema,
    NotifierBackend,
    PluginError,
    ServiceProvider,
    StateStoreBackend,
)
from cronstable.plugin.validate import check, key_paths, prove_schemas

SCHEMA: Mapping[str, object] = {
    "$id": "https://example.org/redis",
    "type": "object",
    "properties": {"url": {"type": "string"}},
    "additionalProperties": False,
    "examples": [{"url": "redis://127.0.0.1"}],
}


def backend(**changes: object) -> ElectionBackend:
    sound = ElectionBackend(
        name="redis", factory="acme.redis:make", schema=SCHEMA, capabilities=frozenset({Capability.LEASE})
    )
    return replace(sound, **changes)  # type: ignore[arg-type]


def with_schema(**changes: object) -> ElectionBackend:
    return backend(schema={key: value for key, value in {**SCHEMA, **changes}.items() if value is not None})


def fragment(path: str = "jobs[].team", **schema: object) -> ConfigFragment:
    return ConfigFragment(id="https://example.org/team", schemas={path: schema})


@pytest.mark.parametrize(
    "descriptor",
    [
        backend(),
        backend(schema=None),
        backend(api=(2, 7)),
        backend(parse=dict),
        backend(factory="acme:Class.method"),
        StateStoreBackend(name="redis", factory="acme:make", schema=SCHEMA),
        NotifierBackend(name="pager", factory="acme:make"),
        ServiceProvider(name="mqtt", factory="acme:make", section="mqtt", schema=SCHEMA),
        CliCommand(name="drain", help="Drain.", target="acme:command"),
        fragment(type="string", examples=["billing"]),
        fragment(type="boolean"),
        fragment(enum=["a", "b"]),
        fragment("cluster.listen", type="array", items={"type": "string"}, examples=[["127.0.0.1:1"]]),
        fragment(type="object", additionalProperties={"type": "string"}, examples=[{"a": "b"}]),
        with_schema(**{"$defs": {"port": {"type": "integer"}}, "properties": {"port": {"$ref": "#/$defs/port"}}},
                    examples=[{"port": 1}]),
        with_schema(**{"$defs": {"port": {"$anchor": "p"}}, "properties": {"port": {"$ref": "#p"}}}, examples=[{}]),
        with_schema(**{"if": {"properties": {"url": {"const": "x"}}}, "then": {"required": ["url"]}}),
    ],
)  # fmt: skip
def test_a_sound_descriptor_passes(descriptor: Descriptor) -> None:
    check(descriptor)
    prove_schemas(descriptor)


@pytest.mark.parametrize(
    ("descriptor", "said"),
    [
        (backend(api=(1, 9)), "it was written for plugin API 1.9, this host speaks 2.0; install a release"),
        (backend(api=(3, 0)), "it was written for plugin API 3.0"),
        (backend(api=2), "api is 2; it must be (major, minor)"),
        (backend(api=("2", "0")), "it must be (major, minor)"),
        (backend(name="two words"), "the name 'two words' is not a letter followed by"),
        (backend(name=""), "the name '' is not"),
        (backend(name=7), "the name 7 is not"),
        (backend(factory="acme.redis"), "factory is 'acme.redis'; it must be a string 'package.module:callable'"),
        (backend(factory=print), "it must be a string 'package.module:callable'"),
        (CliCommand(name="a", help="", target="acme"), "target is 'acme'"),
        (backend(parse="acme:parse"), "parse is 'acme:parse'; it must be a callable or None"),
        (backend(capabilities={"lease"}), "it must be a frozenset of Capability"),
        (backend(capabilities=frozenset({"lease"})), "it must be a frozenset of Capability"),
        (backend(schema="{}"), "its schema is a str; it must be a mapping or None"),
        (with_schema(**{"$id": None}), "its schema has no $id; give it a URI of its own"),
        (with_schema(examples=None), "its schema has no examples; give at least one valid section"),
        (with_schema(additionalProperties=None), "leaves an object open (keys: url); say additionalProperties: false"),
        (with_schema(additionalProperties=True), "leaves an object open"),
        (with_schema(properties={"tls": {"type": "object"}}), "leaves an object open (keys: none)"),
        (with_schema(properties={"tls": {"type": ["object", "null"]}}), "leaves an object open"),
        (with_schema(properties={"tls": {"items": {"properties": {"ca": {}}}}}), "leaves an object open (keys: ca)"),
        (with_schema(properties={"tls": {"$ref": "urn:acme:tls"}}), "reaches outside itself: $ref 'urn:acme:tls'"),
        (with_schema(anyOf=[{"$ref": "other.json#/x"}]), "reaches outside itself: $ref 'other.json#/x'"),
        (with_schema(properties={"tls": {"$dynamicRef": "urn:x"}}), "reaches outside itself: $dynamicRef 'urn:x'"),
        (ServiceProvider(name="a", factory="b:c", section="a b"), "the name 'a b' is not"),
        (ConfigFragment(id="", schemas={}), "a configuration fragment has no id"),
        (fragment("jobs[0].team", type="boolean"), "'jobs[0].team' is not a key path such as"),
        (fragment("", type="boolean"), "'' is not a key path"),
        (fragment(type="string"), "the schema of jobs[].team has no examples; give at least one valid value"),
        (fragment(type="object", examples=[{}]), "the schema of jobs[].team leaves an object open"),
        (
            ConfigFragment(id="urn:f", schemas={"a": {"$ref": "#/$defs/job", "examples": [1]}}),
            "but no $id, so that it would reach outside itself",
        ),
        (
            ConfigFragment(id="urn:f", schemas={"a": "string"}),  # type: ignore[dict-item]
            "the schema of a is a str; it must be a mapping",
        ),
        (
            ConfigFragment(id="urn:f", not_in_defaults=frozenset({"jobs[].x"})),
            "not_in_defaults names jobs[].x, of which the fragment has no schema",
        ),
    ],
)
def test_the_structure_of_a_descriptor_is_checked(descriptor: Descriptor, said: str) -> None:
    with pytest.raises(PluginError) as raised:
        check(descriptor)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "text"}, "its schema is not a JSON Schema: $.type: 'text' is not valid"),
        ({"examples": [{"url": 1}]}, "example 0 of its schema is not valid: $.url: 1 is not of type 'string'"),
        ({"examples": [{}, {"port": 1}]}, "example 1 of its schema is not valid: $: Additional properties"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "examples": [{}]}, "$ref '#/$defs/a' is nowhere in it"),
        ({"properties": {"a": {"$ref": "#a"}}, "examples": [{}]}, "$ref '#a' is nowhere in it"),
    ],
)
def test_schemas_and_their_examples_are_proven(schema: JsonSchema, said: str) -> None:
    with pytest.raises(PluginError) as raised:
        prove_schemas(with_schema(**schema))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("descriptor", "paths"),
    [
        (backend(), ("cluster.redis",)),
        (backend(schema=None), ()),
        (ServiceProvider(name="mqtt", factory="a:b", section="mqtt", schema=SCHEMA), ("mqtt",)),
        (ServiceProvider(name="mqtt", factory="a:b"), ()),
        (NotifierBackend(name="pager", factory="a:b", schema=SCHEMA), ()),
        (fragment("cluster.listen", type="boolean"), ("cluster.listen",)),
    ],
)
def test_a_descriptor_owns_its_key_paths(descriptor: Descriptor, paths: tuple[str, ...]) -> None:
    assert key_paths(descriptor) == paths
