"""A subcommand: an ordinary click command. What it returns is the exit code."""

from __future__ import annotations

from collections import Counter
from typing import BinaryIO

import click
import yaml


@click.command("teams")
@click.argument("file", type=click.File("rb"))
def teams(file: BinaryIO) -> int:
    """Count the jobs of each team in FILE."""
    jobs = (yaml.safe_load(file) or {}).get("jobs") or []
    for team, count in sorted(Counter(job.get("team", "nobody") for job in jobs).items()):
        click.echo(f"{team}: {count}")
    return 0
