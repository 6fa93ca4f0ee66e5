"""A key for jobs, a check, a service, a notifier and a command: the hooks. The rest is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cronstable.api import (
    CliCommand,
    ConfigFragment,
    Json,
    NotifierBackend,
    Problem,
    ServiceProvider,
    Severity,
    hookimpl,
)

ID = "https://example.org/cronstable-extras"
FILE = {"type": "string", "minLength": 1, "description": "A file that we write."}


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """A key ``team`` for every job, allowed under ``defaults`` too."""
    team = {"type": "string", "description": "Who is called at night.", "examples": ["billing"]}
    yield ConfigFragment(id=f"{ID}/team", schemas={"jobs[].team": team})


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """A rule that a schema cannot say: once one job of a file names its team, all do."""
    jobs = config.get("jobs")
    if not isinstance(jobs, Sequence):
        return
    with_team = [isinstance(job, Mapping) and "team" in job for job in jobs]
    if any(with_team):
        for i, named in enumerate(with_team):
            if not named:
                yield Problem(
                    path=("jobs", i, "name"),
                    message="this job has no team and others have",
                    severity=Severity.ADVISORY,
                    hint="add `team`, or set it once under defaults",
                )


@hookimpl
def cronstable_services() -> Iterable[ServiceProvider]:
    """The top-level key ``heartbeat``."""
    schema = {
        "$id": f"{ID}/heartbeat",
        "type": "object",
        "additionalProperties": False,
        "required": ["file"],
        "properties": {"file": FILE, "interval": {"type": "number", "exclusiveMinimum": 0, "default": 10}},
        "examples": [{"file": "/run/cronstable.alive"}],
    }
    yield ServiceProvider(
        name="heartbeat", section="heartbeat", factory="cronstable_extras.heartbeat:make", schema=schema
    )


@hookimpl
def cronstable_notifiers() -> Iterable[NotifierBackend]:
    """The key ``journal`` of a ``report`` block."""
    schema = {
        "$id": f"{ID}/journal",
        "type": "object",
        "additionalProperties": False,
        "required": ["file"],
        "properties": {"file": FILE},
        "examples": [{"file": "/var/log/cronstable.journal"}],
    }
    yield NotifierBackend(name="journal", factory="cronstable_extras.journal:make", schema=schema)


@hookimpl
def cronstable_cli_commands() -> Iterable[CliCommand]:
    """``cronstable teams``."""
    yield CliCommand(name="teams", help="Count the jobs of each team.", target="cronstable_extras.command:teams")
