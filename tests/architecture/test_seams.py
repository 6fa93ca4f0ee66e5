"""Time, chance and identity come in through the seams; this is what makes the simulator the real code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

Sources = Mapping[Path, ast.Module]

SEAM = Path("cronstable/runtime/system.py")
VIRTUAL = Path("cronstable/testing/clock.py")
"""The event loop under virtual time: what it calls ``sleep`` takes none."""

BANNED_MODULES = frozenset({"time", "random", "uuid", "secrets"})
BANNED_CALLS = frozenset(
    {
        "os.urandom",
        "os.getrandom",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "date.today",
        "datetime.date.today",
        "loop.time",
    }
)
SLEEPS = frozenset({"time.sleep", "anyio.sleep", "asyncio.sleep", "anyio.sleep_until", "trio.sleep"})


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a chain of attributes; other expressions have no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def private_clocks(tree: ast.Module) -> Iterator[str]:
    """Each place of a module that reads a clock, rolls dice or makes an identity by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"{node.lineno}: {alias.name}" for alias in node.names if alias.name in BANNED_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if node.module in BANNED_MODULES:
                yield f"{node.lineno}: {node.module}"
            yield from (f"{node.lineno}: os.{a.name}" for a in node.names if f"{node.module}.{a.name}" in BANNED_CALLS)
        elif isinstance(node, ast.Attribute) and dotted(node) in BANNED_CALLS:
            yield f"{node.lineno}: {dotted(node)}"


def real_sleeps(tree: ast.Module) -> Iterator[str]:
    """Each call that waits for real; ``sleep(0)`` only lets others run."""
    names = set(SLEEPS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name for a in node.names if f"{node.module}.{a.name}" in SLEEPS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in names:
            zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not zero:
                yield f"{node.lineno}: {dotted(node.func)}"


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "import random as dice",
        "from time import monotonic",
        "from uuid import uuid4",
        "import secrets",
        "from os import urandom",
        "import os; os.urandom(6)",
        "from datetime import datetime; datetime.now()",
        "import datetime; now = datetime.datetime.now",
        "from datetime import date; date.today()",
        "def f():\n    import time",
    ],
)
def test_the_search_for_private_clocks_finds(code: str) -> None:
    assert list(private_clocks(ast.parse(code)))


def test_the_injected_clock_is_no_private_clock() -> None:
    code = "from datetime import datetime\nhost.clock.now()\nself._clock.now().wall\ndatetime.fromtimestamp(at, UTC)"
    assert list(private_clocks(ast.parse(code))) == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import time; time.sleep(1)", 1),
        ("from asyncio import sleep as nap\nasync def f(): await nap(x)", 1),
        ("async def f(): await anyio.sleep(0)", 0),
        ("async def f(clock): await clock.sleep(5)", 0),
    ],
)
def test_the_search_for_sleeps_finds(code: str, count: int) -> None:
    assert len(list(real_sleeps(ast.parse(code)))) == count


def test_nobody_but_the_seam_reads_a_clock_or_rolls_dice(host_sources: Sources, plugin_sources: Sources) -> None:
    sources = {**host_sources, **plugin_sources}
    del sources[VIRTUAL]
    assert list(private_clocks(sources.pop(SEAM))), "the seam has moved"
    found = {str(path): list(private_clocks(tree)) for path, tree in sources.items()}
    assert {path: places for path, places in found.items() if places} == {}


def test_nobody_sleeps_beside_the_clock(host_sources: Sources, plugin_sources: Sources) -> None:
    sources = {**host_sources, **plugin_sources}
    del sources[SEAM], sources[VIRTUAL]
    found = {str(path): list(real_sleeps(tree)) for path, tree in sources.items()}
    assert {path: places for path, places in found.items() if places} == {}


def on_virtual_time(tree: ast.Module) -> bool:
    """The module runs its coroutines on the loop of the kit, where a sleep takes no time."""
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return any(alias.name == "run_virtual" for node in imported for alias in node.names)


def test_no_test_sleeps(suite_sources: Sources) -> None:
    found = {}
    for path, tree in suite_sources.items():
        places = list(real_sleeps(tree))
        if on_virtual_time(tree):
            places = [place for place in places if place.endswith("time.sleep")]
        found[str(path)] = places
    assert {path: places for path, places in found.items() if places} == {}
