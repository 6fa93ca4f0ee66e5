"""The shortcut of one verdict for each shape of job, held against jsonschema itself."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cronstable.config import validate
from cronstable.config.document import Map, Seq, parse
from cronstable.config.rules import Rule, Walk, convert
from cronstable.config.schema import compose
from cronstable.config.validate import Validator
from cronstable.plugin.manager import Plugins

_WORDS = st.sampled_from(["", "a", "no", "true", "0", "-1", "3", "2.5", "1e3", "null", "~", "nan", "08:30", "x y"])
_PAIRS = st.lists(st.fixed_dictionaries({"key": _WORDS}, optional={"value": _WORDS, "odd": _WORDS}), max_size=3)
_REPORT = st.fixed_dictionaries({}, optional={"mail": st.dictionaries(st.sampled_from(["from", "to", "odd"]), _WORDS)})
_RETRY = st.fixed_dictionaries(
    {"maximumRetries": _WORDS, "initialDelay": _WORDS, "maximumDelay": _WORDS}, optional={"backoffMultiplier": _WORDS}
)
_OPTIONAL = {
    "enabled": _WORDS,
    "saveLimit": _WORDS,
    "killTimeout": _WORDS,
    "timezone": _WORDS,
    "user": _WORDS,
    "shell": _WORDS,
    "concurrencyPolicy": st.sampled_from(["Allow", "Forbid", "forbid"]),
    "environment": _PAIRS | _WORDS,
    "onFailure": st.fixed_dictionaries({}, optional={"report": _REPORT | _WORDS, "retry": _RETRY | _WORDS}),
    "statsd": st.fixed_dictionaries({"prefix": _WORDS, "host": _WORDS, "port": _WORDS}),
    "monitorResources": _WORDS | st.fixed_dictionaries({}, optional={"interval": _WORDS}),
    "odd": _WORDS,
}
_JOB = st.fixed_dictionaries(
    {
        "name": _WORDS,
        "command": _WORDS | st.lists(_WORDS, max_size=2),
        "schedule": _WORDS | st.dictionaries(st.sampled_from(["minute", "hour", "odd"]), _WORDS, max_size=2),
    },
    optional=_OPTIONAL,
)
_JOBS = st.lists(_JOB | st.fixed_dictionaries({}, optional=_OPTIONAL) | _WORDS, min_size=1, max_size=6)


@pytest.fixture(scope="module")
def validator(builtins: Plugins) -> Validator:
    """One for all examples, so that every shape that was ever accepted is held against every later job."""
    return Validator(compose(builtins))


@given(jobs=_JOBS, quoted=st.booleans())
@settings(max_examples=150)
def test_a_shape_has_the_verdict_that_jsonschema_gives_each_job(
    validator: Validator, jobs: list[Any], quoted: bool
) -> None:
    text = yaml.dump({"jobs": jobs}, default_style="'" if quoted else None, sort_keys=False)
    document = parse("f", text.encode())
    checked = validator.check(document, {})
    assert document.root is not None
    converted = document.root["jobs"]
    assert isinstance(converted, list)
    for i, job in enumerate(converted):
        assert (i in checked.bad) == bool(list(validator.job_errors(job))), job


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["a", "b"]},
        {"type": "string", "pattern": "^a"},
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        {"type": "object", "properties": {"k": {"type": "string"}}, "if": {"properties": {"k": {"const": "a"}}}},
        {"anyOf": [{"const": "a"}, {"const": "b"}]},
    ],
)
def test_text_that_a_schema_can_tell_apart_is_part_of_the_shape(schema: dict[str, Any]) -> None:
    def shape(value: str) -> object:
        node = {"array": f"[{value}, b]", "object": f"{{k: {value}}}"}.get(schema.get("type", ""), value)
        document = parse("f", f"v: {node}\n".encode())
        assert document.root is not None
        root = {"type": "object", "properties": {"v": schema}}
        return Walk(document.positions).mapping(document.root, Rule(root, root, True))

    assert shape("a") != shape("b")


def test_jsonschema_is_asked_once_for_all_jobs_of_a_shape(builtins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Validator(compose(builtins))
    asked: list[object] = []
    real = Draft202012Validator.iter_errors

    def counted(self: Any, instance: object, *rest: Any) -> Any:
        if isinstance(instance, Map):
            asked.append(instance.get("name"))
        return real(self, instance, *rest)

    monkeypatch.setattr(Draft202012Validator, "iter_errors", counted)
    monkeypatch.setattr(validate, "surely_valid", lambda value, schema: False)
    lines = [f"  - {{name: job-{i}, command: 'run {i}', schedule: '{i % 60} * * * *'}}" for i in range(500)]
    checked = fresh.check(parse("f", ("jobs:\n" + "\n".join(lines)).encode()), {})
    assert checked.problems == []
    assert asked == ["job-0"]


def test_plain_text_is_left_out_of_the_shape(validator: Validator) -> None:
    document = parse(
        "f", b"jobs:\n  - {name: a, command: [x]}\n  - {name: b, command: [y]}\n  - {name: c, command: z}\n"
    )
    assert document.root is not None
    walk = Walk(document.positions)
    jobs = document.root["jobs"]
    assert isinstance(jobs, Seq)
    one, two, other = (walk.mapping(job, validator.job_rule) for job in jobs if isinstance(job, Map))
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    ("text", "quoted", "types", "value"),
    [
        ("on", False, ["string"], "on"),
        ("null", False, ["string"], "null"),
        ("null", False, ["string", "null"], None),
        ("null", True, ["string", "null"], "null"),
        ("", False, ["string", "null"], None),
        ("On", False, ["boolean"], True),
        ("no", True, ["boolean"], False),
        ("010", False, ["integer"], 10),
        ("1000", False, ["string", "integer"], 1000),
        ("1000", True, ["string", "integer"], "1000"),
        ("1e3", False, ["number"], 1000.0),
        ("1e3", False, ["integer"], "1e3"),
        ("0x10", False, ["number"], "0x10"),
        ("1_000", False, ["integer"], 1000),
        ("1_000_000", False, ["number"], 1_000_000),
        ("1__000", False, ["integer"], "1__000"),
        ("_1000", False, ["integer"], "_1000"),
        ("y", False, ["boolean"], True),
        ("1", False, ["boolean"], True),
        ("N", False, ["boolean"], False),
        ("0", False, ["boolean", "object"], False),
        ("2", False, ["boolean"], "2"),
        ("٣", False, ["integer"], "٣"),
        ("9" * 5000, False, ["integer"], "9" * 5000),
        ("", False, ["object"], {}),
        ("~", False, ["array"], []),
        ("", True, ["object"], ""),
    ],
)
def test_text_becomes_what_the_schema_asks_for(text: str, quoted: bool, types: list[str], value: object) -> None:
    found = convert(text, quoted, Rule({"type": types}, {}, True))
    assert found == value
    assert type(found) is type(value) or isinstance(found, Map | Seq)
