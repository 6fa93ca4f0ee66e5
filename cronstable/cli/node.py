"""Which node a command asks: the options that all of these commands share, and what completes their arguments."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from cronstable.cli.ask import NoAnswer, Node, node_at, node_on_socket, read_token
from cronstable.cli.main import DEFAULT_CONFIG

URL_VARIABLE: Final = "CRONSTABLE_URL"
TOKEN_VARIABLE: Final = "CRONSTABLE_TOKEN"
TOKEN_FILE_VARIABLE: Final = "CRONSTABLE_TOKEN_FILE"

_Command = TypeVar("_Command", bound=Callable[..., object])

_OPTIONS: Final = (
    click.option("--url", metavar="URL", help="The node: http://HOST:PORT, https://HOST:PORT or unix:///PATH."),
    click.option("--socket", metavar="PATH", help="The node, by its unix socket."),
    click.option("-c", "--config", metavar="PATH", help="The node, by the first web.listen of its configuration."),
    click.option("--token-file", metavar="FILE", help="A file with the token that the node asks for."),
)

EPILOG: Final = (
    f"Without --url, --socket and -c the node is {URL_VARIABLE}, or else the one of {DEFAULT_CONFIG}. A token comes "
    f"from --token-file, {TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE}, never from the command line."
)
"""Stands below the help of every command that asks a node."""


def node_options(command: _Command) -> _Command:
    """Give a click callback the options that name a node, and the ``Node`` as ``node`` in their place."""

    @functools.wraps(command)
    def with_node(*args: Any, **options: Any) -> object:
        named = {name: options.pop(name) for name in ("url", "socket", "config")}
        return command(*args, node=chosen_node(**named, token_file=options.pop("token_file")), **options)

    wrapped: Any = with_node
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    found: _Command = wrapped
    return found


def chosen_node(*, url: str | None, socket: str | None, config: str | None, token_file: str | None) -> Node:
    """The node that the options or the environment name. Raises ``click.UsageError`` or ``NoAnswer``."""
    if sum(given is not None for given in (url, socket, config)) > 1:
        raise click.UsageError("--url, --socket and -c each name the node: give one of them")
    if url is None and socket is None and config is None:
        url = os.environ.get(URL_VARIABLE) or None
        if url is None and not os.path.exists(DEFAULT_CONFIG):
            raise click.UsageError(f"which node? --url http://HOST:PORT, --socket PATH, -c CONFIG, or {URL_VARIABLE}")
    token = _token(token_file)
    if socket is not None:
        return node_on_socket(socket, token)
    try:
        return node_at(url if url is not None else _first_listener(config or DEFAULT_CONFIG), token)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None


def _token(token_file: str | None) -> str | None:
    named = token_file or os.environ.get(TOKEN_FILE_VARIABLE) or None
    return read_token(named) if named is not None else os.environ.get(TOKEN_VARIABLE) or None


def _first_listener(path: str) -> str:
    # The configuration brings YAML and JSON Schema along: only its path needs them.
    from cronstable.cli.loading import loader, plugins_with_warnings, warn
    from cronstable.config import format_findings

    result = loader(path, plugins_with_warnings(warn))()
    if result.config is None:
        raise NoAnswer(f"{path} cannot be used:\n{format_findings(result.findings, 'text')}")
    listen = result.config.sections.get("web", {}).get("listen")
    first = listen[0] if isinstance(listen, list) and listen else listen
    if not isinstance(first, str):
        raise NoAnswer(f"{path} has no web.listen, so its daemon cannot be asked")
    return first


class JobName(click.types.StringParamType):
    """The name of a job: any text; completed from the node that is named so far, or from its configuration."""

    name = "job"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin with ``incomplete``; none when nobody can be asked: a TAB must never fail."""
        given = {key: ctx.params.get(key) for key in ("url", "socket", "config", "token_file")}
        try:
            names = _running_names(given)
        except (click.ClickException, OSError, ValueError):
            names = _configured_names(given["config"])
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


JOB: Final = JobName()


def _running_names(given: dict[str, Any]) -> list[str]:
    return [str(row.get("name")) for row in chosen_node(**given).get_rows("/jobs")]


def _configured_names(path: str | None) -> list[str]:
    from cronstable.cli.loading import loader, plugins_with_warnings

    result = loader(path or DEFAULT_CONFIG, plugins_with_warnings(lambda _: None))()
    return [] if result.config is None else [job.name for job in result.config.jobs]
