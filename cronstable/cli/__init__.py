"""The command line; each command imports what it needs when it runs."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command in ``sys.argv``; the exit code.

    ``--version`` is answered here, before anything else is imported: scripts ask for it often.
    """
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        from cronstable import __version__

        print(__version__)
        return 0
    from cronstable.cli.main import run

    return run(arguments)
