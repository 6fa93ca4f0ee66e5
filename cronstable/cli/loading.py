"""Loading plugins and a configuration for a command, and saying what is wrong with either."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable

from cronstable.config import LoadResult, format_findings, load
from cronstable.plugin.manager import Plugins, load_plugins


def plugins_with_warnings(say: Callable[[str], None]) -> Plugins:
    """The installed plugins; each broken one is said once and then left out."""
    plugins = load_plugins(os.environ)
    for warning in plugins.warnings():
        say(warning)
    return plugins


def loader(path: str, plugins: Plugins) -> Callable[[], LoadResult]:
    """A call that reads the configuration at ``path`` afresh."""
    return lambda: load(path, plugins=plugins, environ=os.environ, hostname=socket.gethostname())


def warn(message: str) -> None:
    """A line on stderr."""
    print(f"cronstable: warning: {message}", file=sys.stderr)


def print_findings(result: LoadResult, form: str) -> None:
    """Findings as text on stderr, or as JSON on stdout."""
    if form == "json":
        print(format_findings(result.findings, "json"))
    elif result.findings:
        print(format_findings(result.findings, "text"), file=sys.stderr)
