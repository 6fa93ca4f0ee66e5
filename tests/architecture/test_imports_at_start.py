"""What a command line may load: a version is asked for by every script, a check by every editor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ImportedBy = Callable[..., frozenset[str]]

ONE_JOB = "jobs:\n  - name: hello\n    command: echo hello\n    schedule: '0 2 * * *'\n"
HEAVY = frozenset({"click", "rich", "httpx", "aiohttp", "psutil", "prometheus_client", "jinja2"})


def top_level(modules: frozenset[str]) -> frozenset[str]:
    return frozenset(name.split(".")[0] for name in modules)


@pytest.fixture
def one_job(tmp_path: Path) -> str:
    path = tmp_path / "one.yaml"
    path.write_text(ONE_JOB)
    return str(path)


def test_the_version_is_a_literal_that_imports_nothing(imported_by: ImportedBy) -> None:
    bare = imported_by("-c", "import runpy, sys")
    loaded = imported_by("-m", "cronstable", "--version") - bare
    assert {name for name in loaded if name.startswith("cronstable")} == {
        "cronstable",
        "cronstable.cli",
        "cronstable.__main__",
    } & loaded
    assert not top_level(loaded) & (
        HEAVY | {"pluggy", "stevedore", "argparse", "asyncio", "anyio", "yaml", "importlib"}
    )


def test_the_api_needs_neither_the_runtime_nor_the_schema_checker(imported_by: ImportedBy) -> None:
    loaded = imported_by("-c", "import cronstable.api")
    assert "cronstable.api" in loaded
    assert not top_level(loaded) & (HEAVY | {"anyio", "jsonschema", "yaml", "asyncio", "stevedore"})


@pytest.mark.parametrize("flag", ["--validate-config", "--job-set-id"])
def test_checking_a_file_loads_no_network_no_terminal_and_no_event_loop(
    imported_by: ImportedBy, one_job: str, flag: str
) -> None:
    loaded = imported_by("-m", "cronstable", flag, "-c", one_job)
    assert "cronstable.config" in loaded
    assert not top_level(loaded) & (HEAVY | {"asyncio", "anyio"})


def test_the_json_listing_of_plugins_loads_no_terminal_library(imported_by: ImportedBy) -> None:
    loaded = imported_by("-m", "cronstable", "plugins", "--json")
    assert not top_level(loaded) & (HEAVY - {"click"})


def test_a_schedule_loads_no_bridge_to_c(imported_by: ImportedBy, one_job: str) -> None:
    """Four tenths of a MiB, for the time zones of Windows."""
    loaded = imported_by("-m", "cronstable", "--validate-config", "-c", one_job)
    assert "croniter" in loaded
    assert "ctypes" not in loaded


def test_a_daemon_loads_no_claims_and_no_slots_before_it_has_where_to_keep_them(imported_by: ImportedBy) -> None:
    """A megabyte in each node of a gossip cluster."""
    loaded = imported_by("-c", "import cronstable.cli.serve")
    assert "cronstable.runtime.daemon" in loaded
    kept = ("cronstable.runtime.claims_", "cronstable.core.claim_", "cronstable.runtime.slots")
    assert not {name for name in loaded if name.startswith(kept)}
