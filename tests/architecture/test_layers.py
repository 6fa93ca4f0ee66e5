"""Who may import whom. The contracts are in pyproject.toml; what they cannot say is here."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

Sources = Mapping[Path, ast.Module]

OPEN_TO_PLUGINS = ("cronstable.api", "cronstable.leadership", "cronstable.testing")


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports, also inside its functions; ``from a import b`` is ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(sources: Sources, package: str) -> set[str]:
    return {
        str(path)
        for path, tree in sources.items()
        if any(name == package or name.startswith(f"{package}.") for name in imports(tree))
    }


def test_the_contracts_of_import_linter_hold(repo: Path) -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=repo, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_manager_and_the_hookspecs_know_pluggy(host_sources: Sources, plugin_sources: Sources) -> None:
    assert importers({**host_sources, **plugin_sources}, "pluggy") == {
        "cronstable/plugin/hookspecs.py",
        "cronstable/plugin/manager.py",
    }


def test_only_discovery_knows_stevedore(host_sources: Sources, plugin_sources: Sources) -> None:
    assert importers({**host_sources, **plugin_sources}, "stevedore") == {"cronstable/plugin/discovery.py"}


def test_only_the_schedule_parser_knows_croniter(host_sources: Sources, plugin_sources: Sources) -> None:
    assert len(importers({**host_sources, **plugin_sources}, "croniter")) == 1


def test_plugins_know_the_api_the_leadership_and_the_kit_only(plugin_sources: Sources) -> None:
    assert plugin_sources
    for path, tree in plugin_sources.items():
        for name in imports(tree):
            if name.split(".")[0] == "cronstable":
                assert name.startswith(OPEN_TO_PLUGINS), f"{path} imports {name}"


def test_plugins_never_know_each_other(plugin_sources: Sources) -> None:
    packages = {path.parts[3] for path in plugin_sources}
    for path, tree in plugin_sources.items():
        others = packages - {path.parts[3]}
        for name in imports(tree):
            assert name.split(".")[0] not in others, f"{path} imports {name}"


def texts(tree: ast.Module) -> set[str]:
    """String constants that the program can see: docstrings are for readers."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return {node.value for node in constants if isinstance(node.value, str)}


def test_the_host_names_no_plugin_outside_its_hint_table(host_sources: Sources, plugin_sources: Sources) -> None:
    names = {path.parts[part] for path in plugin_sources for part in (1, 3)}
    for path, tree in host_sources.items():
        if path != Path("cronstable/plugin/hints.py"):
            assert not [(text, name) for text in texts(tree) for name in names if name in text], path
            assert not [name for name in imports(tree) if name.split(".")[0] in names], path


def test_every_plugin_of_the_house_is_known_to_its_tools(repo: Path, plugin_sources: Sources) -> None:
    tools = tomllib.loads((repo / "pyproject.toml").read_text())["tool"]
    packages = {path.parts[3] for path in plugin_sources}
    assert packages <= set(tools["importlinter"]["root_packages"])
    assert {f"plugins/{path.parts[1]}/src" for path in plugin_sources} == set(tools["mypy"]["mypy_path"])


def test_every_module_says_what_it_is_for(host_sources: Sources, plugin_sources: Sources) -> None:
    assert [str(path) for path, tree in {**host_sources, **plugin_sources}.items() if not ast.get_docstring(tree)] == []
