"""Nothing that a user can write makes the loader raise, and plugins see what they are promised."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cronstable.config import format_findings, load
from cronstable.core.finding import Problem, Severity, key_path
from cronstable.core.job import Json
from cronstable.plugin.manager import PluginInfo, Plugins

_KEYS = st.sampled_from(
    sorted(
        {"jobs", "defaults", "include", "cluster", "web", "state", "notify", "logging", "name", "command", "schedule"}
        | {"environment", "onFailure", "report", "mail", "password", "value", "fromFile", "backend", "shelf", "listen"}
        | {"timezone", "env_file", "peers", "version", "events", "sla", "onLate", "path", "key", "minute", "user", "<<"}
    )
)
_LEAVES = st.sampled_from(
    ["", "x", "0", "-1", "true", "null", "@daily", "* * * * *", "${X}", "shelf", "/", "a\0b", "H"]
)
_TREES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=20
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("robust")


@given(document=st.dictionaries(_KEYS, _TREES, max_size=5))
@settings(max_examples=80)
def test_any_tree_of_known_keys_gives_a_configuration_or_findings(
    plugins: Plugins, directory: Path, document: dict[str, Any]
) -> None:
    path = directory / "tree.yaml"
    path.write_text(yaml.dump(document, sort_keys=False))
    _load_is_consistent(path, plugins)


@given(text=st.text(alphabet=" \n\t:-&*!#{}[]\"'|>%@`$,?ab0\x00\x85\u2028é~<", max_size=60))
@settings(max_examples=80)
def test_any_text_gives_a_configuration_or_findings(plugins: Plugins, directory: Path, text: str) -> None:
    for name in ("text.yaml", "crontab"):
        path = directory / name
        path.write_text(text)
        _load_is_consistent(path, plugins)


def _load_is_consistent(path: Path, plugins: Plugins) -> None:
    result = load(str(path), plugins=plugins, environ={}, hostname="h")
    errors = [finding for finding in result.findings if finding.severity is Severity.ERROR]
    assert (result.config is None) == bool(errors)
    assert len(json.loads(format_findings(result.findings, "json"))) == len(result.findings)
    assert all(finding.file and finding.message for finding in result.findings)


def test_a_plugin_checks_jobs_with_their_defaults_and_its_problems_are_placed(tmp_path: Path, plugins: Plugins) -> None:
    seen: list[Mapping[str, Json]] = []

    def every_job_has_a_limit(config: Mapping[str, Json]) -> Iterable[Problem]:
        jobs: Any = config["jobs"]
        seen.extend(jobs[:])
        for i, job in enumerate(jobs):
            if job["killTimeout"] != 5:
                yield Problem(("jobs", i, "name"), "wants 5")

    info = PluginInfo("acme", "acme-rules", "1.0", "acme", builtin=False)
    path = tmp_path / "c.yaml"
    path.write_text(
        "defaults: {killTimeout: 5}\n"
        "jobs:\n"
        "  - {name: a, command: echo, schedule: '@daily'}\n"
        "  - {name: b, command: echo, schedule: '@daily', killTimeout: 6}\n"
    )
    checked = replace(plugins, _checks=((info, every_job_has_a_limit),))
    result = load(str(path), plugins=checked, environ={}, hostname="h")
    assert [(f.line, key_path(f.path), f.owner) for f in result.findings] == [(4, "jobs[1].name", "acme-rules")]
    assert [(job["name"], job["killTimeout"]) for job in seen] == [("a", 5), ("b", 6)]


def test_a_plugin_whose_check_falls_is_a_finding(tmp_path: Path, plugins: Plugins) -> None:
    def falls(config: Mapping[str, Json]) -> Iterable[Problem]:
        raise RuntimeError(f"no {len(config)}")

    path = tmp_path / "c.yaml"
    path.write_text("jobs: []\n")
    info = PluginInfo("acme", "acme-rules", "1.0", "acme", builtin=False)
    result = load(str(path), plugins=replace(plugins, _checks=((info, falls),)), environ={}, hostname="h")
    assert result.config is None
    assert "acme" in format_findings(result.findings)


@pytest.mark.parametrize(
    ("name", "text"),
    [("c.yaml", "jobs:\n- {name: a, command: echo, schedule: '@daily', env_file: /dev/zero}\n"), ("link.yaml", None)],
)
def test_a_device_that_never_ends_is_a_finding(tmp_path: Path, plugins: Plugins, name: str, text: str | None) -> None:
    path = tmp_path / name
    if text is None:
        path.symlink_to("/dev/zero")
    else:
        path.write_text(text)
    result = load(str(path), plugins=plugins, environ={}, hostname="h")
    assert result.config is None
    assert "it has more than" in format_findings(result.findings)
