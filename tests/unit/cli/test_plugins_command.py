"""``cronstable plugins``: every plugin with its health, and status 0 whatever that is."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from click.testing import CliRunner, Result

from cronstable.cli import plugins as module
from cronstable.plugin.manager import PluginHealth, PluginInfo, Plugins


def plugin(name: str, builtin: bool = False) -> PluginInfo:
    distribution = "cronstable" if builtin else f"acme-{name}"
    return PluginInfo(name, distribution, "1.2", f"acme_{name}", builtin=builtin)


HEALTH = (
    PluginHealth(plugin("builtin.jobs", builtin=True), ok=True, hooks=("cronstable_check_config",)),
    PluginHealth(plugin("redis"), ok=True, provides=("election backend:redis", "state store:redis")),
    PluginHealth(plugin("torn"), ok=False, error="ImportError: no [bold]module[/bold]"),
    PluginHealth(plugin("idle"), ok=False, disabled=True),
)


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    listing = Plugins({}, {}, {}, {}, {}, (), HEALTH, unknown_disabled=("ghost",))

    def load(environ: Mapping[str, str], **_: object) -> Plugins:
        return listing

    monkeypatch.setattr(module, "load_plugins", load)
    return listing


def run(*arguments: str) -> Result:
    return CliRunner().invoke(module.plugins_command, arguments, env={"COLUMNS": "160"})


def test_the_json_listing_has_one_stable_object_for_each_plugin(listing: Plugins) -> None:
    result = run("--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == ["builtin.jobs", "redis", "torn", "idle"]
    assert rows[1] == {
        "name": "redis",
        "distribution": "acme-redis",
        "version": "1.2",
        "module": "acme_redis",
        "builtin": False,
        "ok": True,
        "disabled": False,
        "error": None,
        "hooks": [],
        "provides": ["election backend:redis", "state store:redis"],
    }


def test_a_broken_plugin_is_shown_with_its_cause_as_it_is_and_the_status_is_0(listing: Plugins) -> None:
    result = run()
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("torn")]
    assert "acme-torn 1.2" in line
    assert "broken: ImportError: no [bold]module[/bold]" in line


@pytest.mark.parametrize(
    ("name", "shown"), [("builtin.jobs", "checks"), ("redis", "state store:redis"), ("idle", "disabled")]
)
def test_the_table_has_a_row_for_each_plugin(listing: Plugins, name: str, shown: str) -> None:
    (line,) = [line for line in run().stdout.splitlines() if line.startswith(name)]
    assert shown in line


def test_a_disabled_name_that_does_not_exist_is_told_on_stderr(listing: Plugins) -> None:
    result = run("--json")
    assert "CRONSTABLE_DISABLED_PLUGINS names 'ghost'" in result.stderr
    assert "ghost" not in result.stdout
