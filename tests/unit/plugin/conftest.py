"""Real throw-away distributions: a directory on the path with a module and its metadata is all that one is."""

from __future__ import annotations

import importlib.metadata
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cronstable.plugin import discovery

Install = Callable[..., str]


@pytest.fixture(autouse=True)
def only_throw_away_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is installed on this machine is none of these tests' business."""

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [
            entry
            for entry in importlib.metadata.entry_points(group=group)
            if entry.dist is not None and tmp_path in Path(str(entry.dist.locate_file(""))).parents
        ]

    monkeypatch.setattr(discovery, "entry_points", entry_points)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install("dist-name", code, name="entry", version="1.0")`` returns the name of the module it wrote.

    Distributions come to lie on the path in the order in which they were installed.
    """
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def add(distribution: str, code: str, *, name: str = "", version: str = "1.0", target: str = "") -> str:
        module = distribution.replace("-", "_")
        place = tmp_path / "installed" / distribution
        metadata = place / f"{module}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (place / f"{module}.py").write_text(textwrap.dedent(code))
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        entry = f"[cronstable.plugins]\n{name or distribution} = {target or module}\n"
        (metadata / "entry_points.txt").write_text(entry)
        sys.path.append(str(place))
        return module

    yield add
    for loaded in set(sys.modules) - modules:
        # Ours and the libraries' stay: a second copy of them would not be what others hold already.
        if tmp_path in Path(getattr(sys.modules[loaded], "__file__", None) or "").parents:
            del sys.modules[loaded]
