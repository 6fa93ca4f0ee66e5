"""What is in the wheels, and what they say about themselves."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Mapping
from email.message import Message
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

Wheels = Mapping[str, Path]


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_distribution_is_2_0_0_for_python_3_11(metadata: Mapping[str, Message]) -> None:
    assert len(metadata) > 1
    for name, data in metadata.items():
        assert (data["Name"], data["Version"], data["Requires-Python"]) == (name, "2.0.0", ">=3.11")


def test_a_plugin_pins_the_host_and_no_other_plugin(metadata: Mapping[str, Message]) -> None:
    for name, data in metadata.items():
        ours = [text.replace(" ", "") for text in data.get_all("Requires-Dist", []) if text.startswith("cronstable")]
        assert ours == ([] if name == "cronstable" else ["cronstable<3,>=2.0"]), name


def test_no_extra_of_the_host_names_a_plugin(metadata: Mapping[str, Message]) -> None:
    extras = set(metadata["cronstable"].get_all("Provides-Extra", []))
    plugins = {name.removeprefix("cronstable-") for name in metadata} | set(metadata)
    assert not extras & plugins


def test_no_distribution_asks_for_a_pre_release(metadata: Mapping[str, Message]) -> None:
    for data in metadata.values():
        assert not [text for text in data.get_all("Requires-Dist", []) if "dev" in text or "rc" in text.split(";")[0]]


def test_the_host_tells_type_checkers_that_it_is_typed(wheels: Wheels) -> None:
    assert "cronstable/py.typed" in members(wheels["cronstable"])


def test_a_wheel_has_every_file_of_its_package_and_nothing_else(wheels: Wheels, projects: Mapping[str, Path]) -> None:
    for name, wheel in wheels.items():
        source = projects[name] / ("." if name == "cronstable" else "src")
        package = source / name.replace("-", "_")
        files = {path.relative_to(source).as_posix() for path in package.rglob("*") if path.is_file()}
        expected = {path for path in files if "__pycache__" not in path}
        inside = {path for path in members(wheel) if ".dist-info/" not in path}
        assert inside == expected


def test_every_plugin_has_one_entry_point_of_the_group(projects: Mapping[str, Path]) -> None:
    for name, project in projects.items():
        entries = tomllib.loads((project / "pyproject.toml").read_text())["project"].get("entry-points", {})
        assert name == "cronstable" or len(entries["cronstable.plugins"]) == 1


def test_every_plugin_has_a_readme_sources_and_tests(projects: Mapping[str, Path]) -> None:
    for name, project in projects.items():
        assert (project / "README.md").read_text().strip(), f"{name} has an empty README.md"
        assert list((project / "tests").rglob("test_*.py")), f"{name} has no tests"
