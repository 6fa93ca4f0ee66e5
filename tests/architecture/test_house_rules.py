"""Habits that no linter checks: how tests are written, and what may stand in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

Sources = Mapping[Path, ast.Module]


EXPECTATIONS = ("assert_", "check", "prove_", "expect", "wait", "until")
"""How helpers of other modules that fail by themselves are called; to wait is to fail at the deadline."""


UNEXPLAINED_SKIP = re.compile(r"pytest\.mark\.(skip|xfail)\b(?!if)|pytest\.mark\.skipif\((?!.*reason=)")


def each_test_in(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def can_fail(test: ast.AST, helpers: frozenset[str]) -> bool:
    """It asserts, expects an exception, or calls a function of its module that does."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in helpers or name in ("raises", "fail") or name.startswith(EXPECTATIONS):
                return True
    return False


def asserting_helpers(tree: ast.Module) -> frozenset[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(f.name for f in functions if any(isinstance(n, ast.Assert | ast.Raise) for n in ast.walk(f)))


def test_every_test_can_fail(suite_sources: Sources) -> None:
    empty = [
        f"{path}:{test.lineno} {test.name}"
        for path, tree in suite_sources.items()
        for test in each_test_in(tree)
        if not can_fail(test, asserting_helpers(tree) - {test.name})
    ]
    assert empty == []


def test_every_skip_has_a_reason(suite_sources: Sources) -> None:
    bare = []
    for path, tree in suite_sources.items():
        for test in each_test_in(tree):
            marks = (ast.unparse(mark) for mark in test.decorator_list)
            bare += [f"{path}:{test.lineno} {mark}" for mark in marks if UNEXPLAINED_SKIP.match(mark)]
    assert bare == [], "use pytest.mark.skipif or pytest.skip with a reason that names what is missing"


def tracked(repo: Path) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=repo, capture_output=True, check=False)
    if listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
        return [repo / name for name in names if (repo / name).is_file()]
    # An archive of the sources has no index: then all files count that are not build products.
    caches = {".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".import_linter_cache", "__pycache__"}
    hidden = caches | {".venv", "build", "dist"}
    return [p for p in repo.rglob("*") if p.is_file() and not hidden & set(p.relative_to(repo).parts)]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?i)\bpypi\.o[r]g|python[h]osted|--(extra-)?index[-]url|--trusted[-]host", "names a package index"),
        (r"(?<![\w.])/(wor[k]|roo[t])/|\.\./share[d]", "points outside the checkout"),
    ],
)
def test_no_file_ties_the_repository_to_one_machine(repo: Path, pattern: str, why: str) -> None:
    wrong = []
    for path in tracked(repo):
        if path != Path(__file__) and path.suffix not in (".png", ".woff2", ".gif"):
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [f"{path.relative_to(repo)}: {why}: {m.group()}" for m in re.finditer(pattern, text)]
    assert wrong == []


def test_no_lock_file_is_kept(repo: Path) -> None:
    names = re.compile(r"(.*\.lock|.*-lock\.(json|ya?ml)|pip\.conf|constraints.*\.txt)")
    assert [str(path.relative_to(repo)) for path in tracked(repo) if names.fullmatch(path.name)] == []
