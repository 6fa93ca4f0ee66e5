"""``cronstable plugins``: what is installed, from which distribution, with which hooks, and how it fares."""

from __future__ import annotations

import json
import os

import click

from cronstable.plugin.manager import PluginHealth, load_plugins
from cronstable.runtime.system import SystemClock


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="A list of objects instead of a table.")
def plugins_command(as_json: bool) -> None:
    """List the plugins of this installation.

    Ends with status 0 also when a plugin is broken: the list is what was asked for, and the broken one is in it.
    CRONSTABLE_DISABLED_PLUGINS (names, separated by commas) leaves plugins out, CRONSTABLE_TRACE_PLUGINS=1 shows on
    stderr how each was loaded.
    """
    clock = SystemClock()
    found = load_plugins(os.environ, timer=lambda: clock.now().boot)
    if as_json:
        click.echo(json.dumps([as_data(health) for health in found.health], indent=2))
    else:
        _print_table(found.health)
    for name in found.unknown_disabled:
        click.echo(f"CRONSTABLE_DISABLED_PLUGINS names {name!r}, which no installed plugin is called", err=True)


def as_data(health: PluginHealth) -> dict[str, object]:
    """One entry of ``--json``. Scripts read this: keys may be added, never renamed or removed."""
    return {
        "name": health.plugin.name,
        "distribution": health.plugin.distribution,
        "version": health.plugin.version,
        "module": health.plugin.module,
        "builtin": health.plugin.builtin,
        "ok": health.ok,
        "disabled": health.disabled,
        "error": health.error,
        "hooks": list(health.hooks),
        "provides": list(health.provides),
    }


def _print_table(healths: tuple[PluginHealth, ...]) -> None:
    # rich is imported for this table only; --json goes without.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("plugin", "distribution", "health", "provides", box=None, pad_edge=False)
    for health in healths:
        plugin = health.plugin
        if health.error is not None:
            state = Text(f"broken: {health.error}", style="red")
        elif health.disabled:
            state = Text("disabled", style="yellow")
        else:
            state = Text("ok", style="green")
        provides = ", ".join(health.provides) or ("checks" if health.ok else "")
        table.add_row(Text(plugin.name), Text(f"{plugin.distribution} {plugin.version}"), state, Text(provides))
    Console().print(table)
