"""The state section: the chosen store, and whose keys may stand beside it (reference 4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cronstable.config import LoadResult, format_findings, load
from cronstable.config.model import StateConfig
from cronstable.plugin.manager import Plugins

Errors = Callable[[LoadResult], list[tuple[str, int, str]]]


def _state(result: LoadResult) -> StateConfig:
    assert result.config is not None, format_findings(result.findings)
    assert result.config.state is not None
    return result.config.state


def test_the_default_store_reads_its_keys_from_the_section_itself(load_files: Any) -> None:
    state = _state(load_files("state:\n  path: /x\n"))
    assert state.backend.name == "filesystem"
    assert state.settings == ("disk", "/x", "auto")
    assert (state.max_runs_per_job, state.fail_closed, state.gc_grace) == (1000, False, 604_800.0)
    assert (state.max_ops_per_second, state.slot_ttl) == (0.0, 30.0)
    assert state.section["onStoreUnavailable"] == "degrade"


def test_a_store_with_a_schema_reads_its_own_section(load_files: Any) -> None:
    state = _state(load_files("state:\n  backend: '${B}'\n  vault: {place: left}\n", environ={"B": "vault"}))
    assert state.backend.name == "vault"
    assert state.settings == ("parsed", "left", 15)


def test_the_shared_keys_arrive_as_values(load_files: Any) -> None:
    text = (
        "state:\n  backend: memory\n  maxRunsPerJob: 5\n  onStoreUnavailable: fail-closed\n"
        "  gcGraceSeconds: 90000\n  maxOpsPerSecond: 2.5\n  slotTtlSeconds: 7\n"
    )
    state = _state(load_files(text))
    assert state.backend.name == "memory"
    assert (state.max_runs_per_job, state.fail_closed, state.gc_grace) == (5, True, 90_000.0)
    assert (state.max_ops_per_second, state.slot_ttl) == (2.5, 7.0)


def test_no_bound_and_no_collection_are_none(load_files: Any) -> None:
    state = _state(load_files("state: {backend: memory, maxRunsPerJob: 0, gcGraceSeconds: -1}\n"))
    assert state.max_runs_per_job is None
    assert state.gc_grace is None


def test_one_run_is_raised_to_two_and_said_so(load_files: Any, advisories: Any) -> None:
    result = load_files("state: {backend: memory, maxRunsPerJob: 1}\n")
    assert _state(result).max_runs_per_job == 2
    assert [f.message for f in advisories(result) if "raised to 2" in f.message]


def test_no_section_means_no_state(load_files: Any) -> None:
    result = load_files("jobs: []\n")
    assert result.config is not None
    assert result.config.state is None


@pytest.mark.parametrize(
    ("text", "line", "path", "says"),
    [
        ("  path: ' '\n", 2, "state.path", "must not be empty"),
        ("  {}\n", 1, "state.path", "path is missing"),
        ("", 1, "state.path", "path is missing"),
        ("  path: /x\n  topologie: auto\n", 3, "state.topologie", "did you mean `topology`?"),
        ("  backend: vault\n", 1, "state.vault", "`place` is missing"),
        ("  backend: vault\n  vault: {place: nowhere}\n", 3, "state.vault.place", "nowhere is not a place"),
        ("  backend: memory\n  path: /x\n", 3, "state.path", "belongs to the store `filesystem`"),
        ("  backend: vault\n  vault: {place: x}\n  path: /x\n", 4, "state.path", "belongs to the store `filesystem`"),
        ("  path: /x\n  vault: {place: x}\n", 3, "state.vault", "say `backend: vault`"),
        ("  path: /x\n  etcd: {}\n", 3, "state.etcd", "belongs to the store `etcd`"),
        ("  backend: etcd\n  etcd: {endpoints: 5}\n", 2, "state.backend", "pip install cronstable cronstable-etcd"),
        ("  backend: vaults\n", 2, "state.backend", "did you mean `vault`?"),
        ("  path: /x\n  gcGraceSeconds: 86399\n", 3, "state.gcGraceSeconds", "less than a day"),
        ("  path: /x\n  slotTtlSeconds: 4\n", 3, "state.slotTtlSeconds", "5"),
        ("  path: /x\n  onStoreUnavailable: panic\n", 3, "state.onStoreUnavailable", "fail-closed"),
    ],
)
def test_a_mistake_is_one_error_that_says_what_to_do(
    load_files: Any, errors: Errors, text: str, line: int, path: str, says: str
) -> None:
    result = load_files(f"state:\n{text}")
    assert result.config is None
    shown = format_findings(result.findings)
    assert says in shown
    found = errors(result)
    assert len(found) == 1, shown
    assert found[0][:2] == ("cronstable.yaml", line), shown
    assert found[0][2] == path or path.startswith(found[0][2]), shown


def test_a_path_without_the_plugin_says_what_to_install(tmp_path: Path, builtins: Plugins) -> None:
    (tmp_path / "c.yaml").write_text("state:\n  path: /x\n  topology: shared\n")
    result = load(str(tmp_path / "c.yaml"), plugins=builtins, environ={}, hostname="h")
    text = format_findings(result.findings)
    assert result.config is None
    assert "there is no state store `filesystem` (the default)" in text
    assert "pip install cronstable cronstable-fs" in text
    assert "unknown key" not in text


def test_a_section_that_is_no_mapping_is_left_to_the_schema(load_files: Any, errors: Errors) -> None:
    assert errors(load_files("state: 5\n")) == [("cronstable.yaml", 1, "state")]
    assert errors(load_files("state: {backend: [], path: /x}\n")) == [("cronstable.yaml", 1, "state.backend")]
