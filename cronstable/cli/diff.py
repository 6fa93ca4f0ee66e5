"""``cronstable diff``: what a running node would do differently after reading a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import click

from cronstable.cli.ask import NoAnswer, Node
from cronstable.cli.node import EPILOG, node_options
from cronstable.cli.screen import on_terminal, safe, show_json
from cronstable.core.definition import definitions, seal, sealing_key, usual
from cronstable.core.fingerprint import REDACTED
from cronstable.core.job import Job, Json

DIFFERENT: Final = 3
"""The exit code for a difference."""

_HELP: Final = """Compare the jobs of a running node with those of CONFIG: what a reload of it would change.

    + is a job that would come, - one that would go, ~ one that would change: each key with its old and new value, and
    where CONFIG has the new one. Values of variables and secrets are not shown. Whether they differ is found out when
    the token has the scope `control`; otherwise it says for how many jobs that could not be told.

    \b
    cronstable diff ./cronstable.yaml --url http://node-a:8080

    Ends with 0 when nothing would change as far as can be told, with 3 when something would, with 1 when the node
    cannot be asked or CONFIG cannot be used, and with 2 for wrong usage.
    """

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A key with its old and new value; ``hidden``: both are masked, and differ."""

    path: _Path
    old: Json
    new: Json
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """Jobs that come, go and change; ``untold``: keys of jobs with masked values that could not be compared.

    ``other``: the job sets differ in something that no definition has.
    """

    added: tuple[Job, ...]
    removed: tuple[str, ...]
    changed: tuple[tuple[Job, tuple[Change, ...]], ...]
    untold: Mapping[str, tuple[str, ...]]
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
    running, configured = node.get("/definitions"), result.config.job_set_id
    found = compare(running, result.config.jobs, configured, node.token)
    if as_json:
        show_json({"running": running.get("job_set_id"), "configured": configured, **_document(found)})
    else:
        _show(found)
    return DIFFERENT if found else 0


def compare(running: Mapping[str, Json], wanted: tuple[Job, ...], job_set_id: str, token: str | None) -> Difference:
    """What would change. ``running``: as in GET /definitions, asked with ``token``; ``job_set_id``: of ``wanted``."""
    nonce, rows = running.get("nonce"), running.get("jobs")
    key = sealing_key(token.encode(), nonce) if token is not None and isinstance(nonce, str) else None
    before = {str(row.get("name")): row for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict)}
    changed: list[tuple[Job, tuple[Change, ...]]] = []
    untold: dict[str, tuple[str, ...]] = {}
    for job, definition in definitions(job for job in wanted if job.name in before):
        old = _mapping(before[job.name].get("keys"))
        seals, unknown = _mapping(before[job.name].get("hidden")), []
        changes = list(_changes(old, definition.keys))
        for name in [name for name in definition.hidden if name in seals]:
            was = seals[name]
            if was is None or key is None or _masks(old, name) != _masks(definition.keys, name):
                unknown.append(name)
            elif was != seal(key, job.name, name, definition.hidden[name]):
                changes.append(Change((name,), REDACTED, REDACTED, hidden=True))
        if changes:
            changed.append((job, tuple(changes)))
        if unknown:
            untold[job.name] = tuple(unknown)
    names = {job.name for job in wanted}
    added = tuple(job for job in wanted if job.name not in before)
    removed = tuple(name for name in before if name not in names)
    other = running.get("job_set_id") != job_set_id and not (added or removed or changed)
    return Difference(added, removed, tuple(changed), untold, other)


def _changes(old: Mapping[str, Json], new: Mapping[str, Json]) -> Iterator[Change]:
    """Every leaf that differs, in the order of the new definition and then of the old one."""
    was, becomes = dict(_leaves(old)), dict(_leaves(new))
    for path in dict.fromkeys([*becomes, *was]):
        one, other = was.get(path, usual(path)), becomes.get(path, usual(path))
        if one != other:
            yield Change(path, one, other)


def _leaves(value: Json | Mapping[str, Json], path: _Path = ()) -> Iterator[tuple[_Path, Json]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    else:
        yield path, value


def _masks(keys: Mapping[str, Json], name: str) -> set[_Path]:
    return {path for path, value in _leaves(keys.get(name)) if value == REDACTED}


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _document(found: Difference) -> dict[str, Json]:
    from cronstable.cli.places import Places

    places = Places()
    changed: dict[str, Json] = {}
    for job, changes in found.changed:
        rows: dict[str, Json] = {}
        for change in changes:
            file, line = places.of(job, change.path)
            rows[".".join(change.path)] = {"old": change.old, "new": change.new, "file": file, "line": line}
        changed[job.name] = rows
    return {
        "added": [job.name for job in found.added],
        "removed": list(found.removed),
        "changed": changed,
        "untold": {name: list(keys) for name, keys in found.untold.items()},
        "other": found.other,
    }


def _show(found: Difference) -> None:
    from cronstable.cli.places import Places

    colours, places = on_terminal(), Places()

    def line(text: str, colour: str) -> None:
        click.secho(text, fg=colour) if colours else click.echo(text)

    for name in found.removed:
        line(f"- {safe(name)}", "red")
    for job in found.added:
        line(f"+ {safe(job.name)}  [{safe(job.source)}]", "green")
    for job, changes in found.changed:
        line(f"~ {safe(job.name)}", "yellow")
        for change in changes:
            file, at = places.of(job, change.path)
            what = "a hidden value changes" if change.hidden else f"{_text(change.old)} -> {_text(change.new)}"
            click.echo(f"    {safe('.'.join(change.path))}: {what}  [{safe(file)}:{at}]")
    if found.other:
        click.echo("the job-set IDs differ: something changes that no definition has, such as the names in an env_file")
    elif not found:
        click.echo("nothing would change")
    if found.untold:
        keys = ", ".join(sorted({key for names in found.untold.values() for key in names}))
        click.echo(f"not compared: hidden values of {len(found.untold)} job(s) under {safe(keys)}")


def _text(value: Json) -> str:
    if value is None:
        return "(none)"
    return safe(value) if isinstance(value, str) else safe(json.dumps(value, ensure_ascii=False))
