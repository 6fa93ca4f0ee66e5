"""What plugin authors rely on. A change here is a change of API_VERSION, or a mistake.

After an intended change: ``make snapshot`` writes the file anew, and the commit shows what changed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import textwrap
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import is_typeddict

import pytest

import cronstable.api
from cronstable.plugin import hookspecs
from cronstable.plugin.manager import load_plugins

HOOKS: dict[str, Callable[..., object]] = {
    name: value
    for name, value in vars(hookspecs).items()
    if name.startswith("cronstable_") and inspect.isfunction(value)
}


def kind(value: object) -> str:
    """One word for what a public name is."""
    if inspect.isclass(value):
        if issubclass(value, BaseException):
            return "error"
        if issubclass(value, Enum):
            return "enum " + " ".join(member.name for member in value)
        if getattr(value, "_is_protocol", False):
            members = [name for name in vars(value) if not name.startswith("_")]
            return "protocol " + " ".join(sorted(members))
        if dataclasses.is_dataclass(value):
            return "dataclass " + " ".join(field.name for field in dataclasses.fields(value))
        return "typed dict" if is_typeddict(value) else "class"
    if isinstance(value, tuple):
        return f"constant {value}"
    if inspect.isfunction(value):
        return f"function {inspect.signature(value)}"
    return "marker" if value is hookspecs.hookimpl else "type alias"


def snapshot() -> str:
    lines = [f"{name}: {kind(getattr(cronstable.api, name))}" for name in sorted(cronstable.api.__all__)]
    lines += [f"{name}{inspect.signature(hook)}" for name, hook in sorted(HOOKS.items())]
    return "\n".join(lines) + "\n"


def test_the_public_surface_is_the_one_on_record() -> None:
    record = Path(__file__).with_name("public_surface.txt")
    if os.environ.get("CRONSTABLE_WRITE_SNAPSHOTS"):
        record.write_text(snapshot())
    assert snapshot().splitlines() == record.read_text().splitlines(), "intended? then: make snapshot"


def test_the_api_fetches_every_name_from_where_type_checkers_see_it() -> None:
    tree = ast.parse(inspect.getsource(cronstable.api))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cronstable.")
        for alias in node.names
    }
    assert sorted(cronstable.api.__all__) == list(cronstable.api.__all__), "sorted, so that a diff shows one line"
    assert sorted(seen) == list(cronstable.api.__all__) == dir(cronstable.api)
    for name, module in seen.items():
        assert getattr(cronstable.api, name) is getattr(import_module(module or ""), name)


def test_the_api_has_no_other_name() -> None:
    with pytest.raises(AttributeError, match=r"module 'cronstable.api' has no attribute 'Daemon'"):
        getattr(cronstable.api, "Daemon")  # noqa: B009  # mypy knows that it is not there


def example_of(hook: str) -> str:
    """The plugin in the docstring of a hook."""
    documentation = inspect.getdoc(HOOKS[hook]) or ""
    _, found, example = documentation.partition("A whole plugin::\n")
    assert found, f"the docstring of {hook} has no whole plugin"
    return textwrap.dedent(example)


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_the_example_in_a_hook_s_docstring_is_a_plugin_that_works(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"documented_{hook}"
    schema = {"$id": "urn:x", "type": "object", "additionalProperties": False, "examples": [{}]}
    (tmp_path / f"{module}.py").write_text(f"SCHEMA = {schema!r}\n{example_of(hook)}")
    metadata = tmp_path / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: documented\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[cronstable.plugins]\ndocumented = {module}\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins = load_plugins({})
    (health,) = [one for one in plugins.health if one.plugin.name == "documented"]
    assert health.error is None
    assert health.hooks == (hook,)
    if hook == "cronstable_check_config":
        found = [problem for plugin, problem in plugins.check_config({"jobs": [{}]}) if plugin == health.plugin]
        assert [problem.path for problem in found] == [("jobs", 0, "name")]
    else:
        assert len(health.provides) == 1


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_every_hook_is_in_the_documentation_with_its_signature(hook: str, repo: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in sorted((repo / "docs").rglob("*.md"))}
    signature = f"{hook}({', '.join(inspect.signature(HOOKS[hook]).parameters)})"
    assert [path for path, text in pages.items() if signature in text], f"no page of docs/ shows {signature}"
