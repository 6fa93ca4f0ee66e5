"""``cronstable init``."""

from __future__ import annotations

import sys

import click

from cronstable.config import write_starter


@click.command("init")
@click.argument("directory", default=".", type=click.Path(file_okay=False))
def init_command(directory: str) -> int:
    """Write a commented starter configuration into DIRECTORY. Never overwrites anything."""
    try:
        path = write_starter(directory)
    except FileExistsError as error:
        print(f"cronstable: {error.filename or error} exists; nothing was written", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cronstable: cannot write into {directory}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"wrote {path}; try: cronstable --validate-config -c {path}")
    return 0
