"""What is called surely valid is valid: jsonschema never says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from cronstable.config.schema import compose
from cronstable.plugin.manager import load_plugins
from cronstable.plugin.plain import surely_a_schema, surely_valid

_NAMES = st.sampled_from(["a", "b", "c"])
_NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([-0.5, 1.0, 2.5]))
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, st.sampled_from(["", "a", "ab", "x-1"]))
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3))
)
_TYPES = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
_ANYTHING = st.one_of(_VALUES, st.just({"type": "text"}), st.just(["a", "a"]))


def _schemas(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    known: dict[str, st.SearchStrategy[object]] = {
        "type": st.one_of(_TYPES, st.lists(_TYPES, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(_VALUES, max_size=3),
        "const": _VALUES,
        "minimum": _NUMBERS,
        "maximum": _NUMBERS,
        "exclusiveMinimum": _NUMBERS,
        "exclusiveMaximum": _NUMBERS,
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(["a", "^a$", "[0-9]", "("]),
        "required": st.lists(_NAMES, max_size=2),
        "properties": st.dictionaries(_NAMES, inner, max_size=3),
        "additionalProperties": inner,
        "items": inner,
        "default": _VALUES,
        "uniqueItems": st.booleans(),
        "not": inner,
        "description": st.just("what it is"),
    }
    wild = {key: st.one_of(value, _ANYTHING) for key, value in known.items()}
    return st.one_of(
        st.booleans(), st.fixed_dictionaries({}, optional=known), st.fixed_dictionaries({}, optional=wild), _ANYTHING
    )


SCHEMAS = st.recursive(st.booleans(), _schemas, max_leaves=8)


def _is_schema(schema: object) -> bool:
    try:
        Draft202012Validator.check_schema(schema)  # type: ignore[arg-type]  # that is the question
    except SchemaError:
        return False
    return True


@given(SCHEMAS)
def test_what_is_surely_a_schema_is_one(schema: object) -> None:
    assert not surely_a_schema(schema) or _is_schema(schema)


@given(SCHEMAS, _VALUES)
def test_what_is_surely_valid_is_valid(schema: object, value: object) -> None:
    if _is_schema(schema):
        assert not surely_valid(value, schema) or Draft202012Validator(schema).is_valid(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (5, {"type": "integer", "minimum": 5, "exclusiveMaximum": 6}),
        ("on", {"enum": ["off", "on"]}),
        ({"a": [1.5, None]}, {"properties": {"a": {"items": {"type": ["number", "null"]}, "maxItems": 2}}}),
        ({"b": True}, {"required": ["b"], "additionalProperties": {"type": "boolean"}}),
        ("a1", {"pattern": "[0-9]$", "minLength": 2}),
    ],
)
def test_ordinary_values_are_told_at_once(value: object, schema: object) -> None:
    assert surely_a_schema(schema)
    assert surely_valid(value, schema)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, {"type": "integer"}),
        (1.0, {"enum": [1]}),
        (True, {"const": 1}),
        ([1], {"const": [1]}),
        ({}, {"required": ["a"]}),
        ({"a": 1}, {"additionalProperties": False}),
        (4, {"exclusiveMinimum": 4}),
        ("a", {"type": "string", "format": "date"}),
        ((), {}),
    ],
)
def test_what_is_wrong_or_odd_is_left_to_jsonschema(value: object, schema: object) -> None:
    assert not surely_valid(value, schema)


def test_all_schemas_of_this_installation_are_plain() -> None:
    composed = compose(load_plugins(os.environ))
    assert surely_a_schema(composed.schema)


def test_a_daemon_with_a_right_configuration_loads_no_jsonschema(tmp_path: Path) -> None:
    path = tmp_path / "cronstable.yaml"
    path.write_text("jobs:\n  - name: a\n    command: 'true'\n    schedule: '* * * * *'\n", encoding="utf-8")
    program = (
        "import sys\nfrom cronstable.cli.loading import loader, plugins_with_warnings\n"
        "assert loader(sys.argv[1], plugins_with_warnings(print))().config is not None\n"
        "assert 'jsonschema' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
