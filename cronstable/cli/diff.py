"""``cronstable diff``: what a running node would do differently after reading a configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import click

from cronstable.cli.ask import NoAnswer, Node
from cronstable.cli.node import EPILOG, node_options
from cronstable.cli.screen import on_terminal, safe, show_json
from cronstable.core.job import Job, Json

DIFFERENT: Final = 3
"""The exit code for a difference."""

_FIELDS: Final = (
    "schedule", "timezone", "command", "enabled", "captureStdout", "captureStderr", "clusterPolicy", "priority",
)  # fmt: skip
"""What is compared of a job, by its name in GET /jobs."""
_ABSENT: Final[Mapping[str, Json]] = {"priority": "normal"}
"""What it means when a node leaves a field out; other fields it leaves out are not compared."""

_HELP: Final = """Compare the jobs of a running node with those of CONFIG: what a reload of it would change.

    + is a job that would come, - one that would go, ~ one that would change, with the old and the new value. Of what
    GET /jobs does not tell (retries, reports, environment and the like) only the fact that it differs is known, by the
    job-set ID.

    \b
    cronstable diff ./cronstable.yaml --url http://node-a:8080

    Ends with 0 when nothing would change, with 3 when something would, with 1 when the node cannot be asked or CONFIG
    cannot be used, and with 2 for wrong usage.
    """


@dataclass(frozen=True, slots=True)
class Difference:
    """Jobs that come and go, what changes of others (field to old and new value), and whether anything else does."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, Mapping[str, tuple[Json, Json]]]
    other: bool

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.other)


@click.command("diff", help=_HELP, epilog=EPILOG)
@click.argument("path", metavar="CONFIG")
@node_options
@click.option("--json", "as_json", is_flag=True, help="One object instead of text.")
def diff_command(path: str, node: Node, as_json: bool) -> int:
    """Compare a node with a configuration."""
    # The configuration brings YAML and JSON Schema along: only this command of those that ask a node needs them.
    from cronstable.cli.loading import loader, plugins_with_warnings, warn
    from cronstable.config import format_findings

    result = loader(path, plugins_with_warnings(warn))()
    if result.config is None:
        raise NoAnswer(f"{path} cannot be used:\n{format_findings(result.findings, 'text')}")
    running, theirs = node.get_rows("/jobs"), node.get("/job-set-id").get("job_set_id")
    found = compare(running, result.config.jobs, theirs == result.config.job_set_id)
    if as_json:
        changed = {n: {f: {"old": old, "new": new} for f, (old, new) in c.items()} for n, c in found.changed.items()}
        jobs = {"added": list(found.added), "removed": list(found.removed), "changed": changed, "other": found.other}
        show_json({"running": theirs, "configured": result.config.job_set_id, **jobs})
    else:
        _show(found)
    return DIFFERENT if found else 0


def compare(running: list[dict[str, Json]], wanted: tuple[Job, ...], same_id: bool) -> Difference:
    """What would change; ``same_id``: both job sets have the same ID."""
    before = {str(entry.get("name")): entry for entry in running}
    after = {job.name: _entry(job) for job in wanted}
    changed: dict[str, Mapping[str, tuple[Json, Json]]] = {}
    for name in before.keys() & after.keys():
        old = {**_ABSENT, **before[name]}
        new = after[name]
        fields: dict[str, tuple[Json, Json]] = {f: (old[f], new[f]) for f in _FIELDS if f in old and old[f] != new[f]}
        if fields:
            changed[name] = fields
    added = tuple(name for name in after if name not in before)
    removed = tuple(name for name in before if name not in after)
    in_order = {name: changed[name] for name in after if name in changed}
    return Difference(added, removed, in_order, not same_id and not (added or removed or changed))


def _entry(job: Job) -> dict[str, Json]:
    """The job as GET /jobs tells of it."""
    options = job.options
    return {
        "schedule": job.schedule.text,
        "timezone": options.timezone or ("UTC" if options.utc else None),
        "command": job.command if isinstance(job.command, str) else shlex.join(job.command),
        "enabled": options.enabled,
        "captureStdout": options.capture_stdout,
        "captureStderr": options.capture_stderr,
        "clusterPolicy": options.cluster_policy.value,
        "priority": options.priority,
    }


def _show(found: Difference) -> None:
    colours = on_terminal()

    def line(text: str, colour: str) -> None:
        click.secho(text, fg=colour) if colours else click.echo(text)

    for name in found.removed:
        line(f"- {safe(name)}", "red")
    for name in found.added:
        line(f"+ {safe(name)}", "green")
    for name, fields in found.changed.items():
        line(f"~ {safe(name)}", "yellow")
        for field, (old, new) in fields.items():
            click.echo(f"    {field}: {safe(old)} -> {safe(new)}")
    if found.other:
        click.echo("the job-set IDs differ: something changes that GET /jobs does not tell of")
    elif not found:
        click.echo("nothing would change")
