"""``cronstable completion``: what a shell needs to complete commands, options and the names of jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from cronstable.cli.main import COMMANDS, COMPLETE

SHELLS: Final = ("bash", "zsh", "fish")

_BASH: Final = """\
%(complete_func)s() {
    local kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) printf -v value %%q "$value"; COMPREPLY+=("$value") ;;
            quoted) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete $1)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_SPECIAL: Final = re.compile(r'[\\"$`]')
"""What means something between double quotes."""

_HERE: Final = "\x01"
"""Stands for the cursor: what is before it on the last word is what shall be completed."""


class _Bash(BashComplete):
    """Bash, with names of jobs that hold blanks, quotes and colons.

    Bash replaces what is behind the last of its own word breaks, of which a colon is one, or behind a quote that is
    open; and it inserts what it is given without quoting it.
    """

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one at the cursor, and that one as far as it is typed."""
        *words, last = split_arg_string(os.environ["COMP_LINE"] + _HERE)
        return words[1:], last.removesuffix(_HERE)

    def complete(self) -> str:
        """What is to be inserted in place of what bash replaces: between quotes as it is, else for bash to quote."""
        quote, kept = _open_quote(os.environ["COMP_LINE"], os.environ["COMP_WORDBREAKS"])
        items = self.get_completions(*self.get_completion_args())
        return "\n".join(self.format_completion(_rest_of(item, quote, kept)) for item in items)


def _rest_of(item: CompletionItem[str], quote: str, kept: int) -> CompletionItem[str]:
    if item.type != "plain":
        return item
    rest = item.value[kept:]
    if not quote:
        return CompletionItem(rest)
    inside = _SPECIAL.sub(r"\\\g<0>", rest) if quote == '"' else rest.replace("'", "'\\''")
    # Bash closes the quote, unless it takes the last character for the end of it.
    return CompletionItem(inside + quote * inside.endswith(quote), "quoted")


def _open_quote(line: str, breaks: str) -> tuple[str, int]:
    """The quote that is open at the end of ``line``, and how much of its last word, unquoted, bash leaves alone."""
    quote, typed, kept, escaped = "", 0, 0, False
    for char in line:
        if escaped:
            escaped, typed = False, typed + 1
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote and char == quote:
            quote, kept = "", typed
        elif quote:
            typed += 1
        elif char in "'\"":
            quote, kept = char, typed
        elif char.isspace():
            typed = kept = 0
        else:
            typed += 1
            if char in breaks:
                kept = typed
    return quote, kept


add_completion_class(_Bash)

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
