"""``cronstable schema``."""

from __future__ import annotations

import json

import click

from cronstable.cli.loading import plugins_with_warnings, warn
from cronstable.config import compose_schema


@click.command("schema")
@click.option("--indent", default=2, show_default=True, help="spaces per level; 0 for one line")
def schema_command(indent: int) -> int:
    """Print the JSON Schema of the configuration, as composed from the plugins that are installed here.

    Point your editor's YAML support at it to have keys completed and checked.
    """
    print(json.dumps(compose_schema(plugins_with_warnings(warn)), indent=indent or None))
    return 0
