"""Running a click command named by a string, the host's own or a plugin's."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

import click

from cronstable.plugin.errors import PluginError
from cronstable.plugin.manager import load_factory, load_plugins


def invoke(target: str, name: str, arguments: Sequence[str]) -> int:
    """Run the click command at ``module:attribute``."""
    module, _, attribute = target.partition(":")
    return _run(getattr(importlib.import_module(module), attribute), name, arguments)


def invoke_plugin(name: str, arguments: Sequence[str], known: Sequence[str]) -> int:
    """Run a plugin's subcommand, or say that there is none of that name."""
    plugins = load_plugins(os.environ)
    if name not in plugins.cli_commands:
        missing = plugins.why_missing("command", name)
        near = difflib.get_close_matches(name, [*known, *plugins.cli_commands], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; 'cronstable --help' lists the commands"
        print(f"cronstable: there is no command {name!r}{hint if missing is None else f'; {missing}'}", file=sys.stderr)
        return 2
    provided = plugins.cli_commands[name]
    try:
        command = load_factory(provided.descriptor.target, provided)
    except PluginError as error:
        print(f"cronstable: {error}", file=sys.stderr)
        return 1
    return _run(command, name, arguments)


def _run(command: object, name: str, arguments: Sequence[str]) -> int:
    if not isinstance(command, click.Command):
        print(f"cronstable: {name} is not a click command", file=sys.stderr)
        return 1
    try:
        result = command.main(list(arguments), prog_name=f"cronstable {name}", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    return result if isinstance(result, int) else 0
