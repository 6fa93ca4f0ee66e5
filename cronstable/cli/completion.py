"""``cronstable completion``: what a shell needs to complete commands, options and the names of jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click
from click.shell_completion import get_completion_class, shell_complete

from cronstable.cli.main import COMMANDS, COMPLETE

SHELLS: Final = ("bash", "zsh", "fish")

_HELP: Final = """Print what SHELL needs to complete commands, options and the names of jobs.

    Names come from the node that the command line or CRONSTABLE_URL names, or else from the configuration.

    \b
    bash   cronstable completion bash > ~/.local/share/bash-completion/completions/cronstable
    zsh    cronstable completion zsh > "${fpath[1]}/_cronstable"
    fish   cronstable completion fish > ~/.config/fish/completions/cronstable.fish

    Ends with 0, and with 2 for wrong usage.
    """


class _Commands(click.Group):
    """All commands, of which only the one that is asked for is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_targets())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _targets().get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target[1].partition(":")
        command = getattr(import_module(module), attribute)
        return command if isinstance(command, click.Command) else None


def _targets() -> Mapping[str, tuple[str, str]]:
    """Every command, those of plugins among them: its help line and where it is."""
    from cronstable.cli.loading import plugins_with_warnings

    found = plugins_with_warnings(lambda _: None).cli_commands
    return {**{name: (one.descriptor.help, one.descriptor.target) for name, one in found.items()}, **COMMANDS}


def _root() -> click.Group:
    options = [
        click.Option(["-c", "--config"], type=click.Path(), help="file or directory"),
        click.Option(["-l", "--log-level"], help="how much is logged"),
        click.Option(["-v", "--validate-config"], is_flag=True, help="report every finding and exit"),
        click.Option(["--job-set-id"], is_flag=True, help="print the job-set ID and exit"),
        click.Option(["--version"], is_flag=True, help="print the version and exit"),
    ]
    return _Commands("cronstable", params=options)


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> int:
    """Print the script for a shell."""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"this version of click does not know {shell}")
    click.echo(found(_root(), {}, "cronstable", COMPLETE).source())
    return 0


def complete() -> int:
    """Answer the shell that set ``COMPLETE`` in the environment: its script asks so at every TAB."""
    return shell_complete(_root(), {}, "cronstable", COMPLETE, os.environ[COMPLETE])
