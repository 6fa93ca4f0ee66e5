"""The source as syntax trees, and programs run apart to see what they import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

Sources = Mapping[Path, ast.Module]


def trees(*roots: Path) -> Iterator[tuple[Path, ast.Module]]:
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


@pytest.fixture(scope="session")
def host_sources(repo: Path) -> Sources:
    """Every module of the host, by path relative to the checkout."""
    return {path.relative_to(repo): tree for path, tree in trees(repo / "cronstable")}


@pytest.fixture(scope="session")
def plugin_sources(repo: Path) -> Sources:
    """Every module of every plugin that ships."""
    roots = [directory / "src" for directory in sorted((repo / "plugins").iterdir()) if directory.is_dir()]
    return {path.relative_to(repo): tree for path, tree in trees(*roots)}


@pytest.fixture(scope="session")
def suite_sources(repo: Path) -> Sources:
    """Every test, of the host and of the plugins."""
    roots = [repo / "tests", *sorted((repo / "plugins").glob("*/tests"))]
    return {path.relative_to(repo): tree for path, tree in trees(*roots)}


@pytest.fixture
def imported_by(tmp_path: Path) -> Callable[..., frozenset[str]]:
    """``imported_by("-m", "cronstable", "--version")``: every module that this python command line loads."""

    def run(*arguments: str, status: int = 0) -> frozenset[str]:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
        return frozenset(line.rsplit("|", 1)[1].strip() for line in lines)

    return run
