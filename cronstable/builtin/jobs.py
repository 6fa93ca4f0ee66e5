"""The keys of a job, and the top-level keys that go with them: ``include`` and ``logging`` (reference 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cronstable.api import ClusterPolicy, ConcurrencyPolicy, ConfigFragment, JsonSchema, hookimpl
from cronstable.builtin.sections import secret

_ID: Final = "https://cronstable.dev/schema/jobs"


def _text(about: str, example: str) -> JsonSchema:
    return {"type": "string", "description": about, "examples": [example]}


def _flag(about: str, default: bool) -> JsonSchema:
    return {"type": "boolean", "description": about, "default": default}


def _number(about: str, example: float, **rules: object) -> JsonSchema:
    return {"type": "number", "description": about, "examples": [example], **rules}


def _integer(about: str, example: int, **rules: object) -> JsonSchema:
    return {"type": "integer", "description": about, "examples": [example], **rules}


def _choice(about: str, *values: str) -> JsonSchema:
    return {"type": "string", "enum": list(values), "default": values[0], "description": about}


def _mapping(about: str, example: object, required: Iterable[str] = (), **keys: JsonSchema) -> JsonSchema:
    schema: dict[str, object] = {
        "type": "object",
        "description": about,
        "properties": keys,
        "additionalProperties": False,
        "examples": [example],
    }
    if required:
        schema["required"] = list(required)
    return schema


_IDENTITY: Final[JsonSchema] = {
    "name": _text("Unique in the whole configuration.", "nightly-backup"),
    "command": {
        "type": ["string", "array"],
        "items": {"type": "string"},
        "minItems": 1,
        "description": "Text is given to the shell, a list is executed as it stands.",
        "examples": ["backup --all", ["/usr/bin/backup", "--all"]],
    },
    "schedule": {
        "type": ["string", "object"],
        "description": "A cron expression of 5 to 7 columns, a nickname such as @daily, or its columns by name.",
        "properties": {
            column: {"type": "string", "description": f"The column `{column}`.", "examples": ["*"]}
            for column in ("second", "minute", "hour", "dayOfMonth", "month", "year", "dayOfWeek")
        }
        | {
            "dayMatch": {
                "type": "string",
                "enum": ["any", "all"],
                "default": "any",
                "description": "Must both day columns match, or is one enough, when both are restricted?",
            }
        },
        "additionalProperties": False,
        "examples": ["30 2 * * *", {"minute": "30", "hour": "2"}],
    },
}

_BASICS: Final[JsonSchema] = {
    "enabled": _flag("False: checked, but never started.", True),
    "shell": _text("Runs a command given as text; empty: the system's shell.", "/bin/bash"),
    "utc": _flag("The frame of a schedule without a timezone; false: the local time of the host.", True),
    "timezone": {
        "type": ["string", "null"],
        "description": "An IANA time zone; beats `utc`.",
        "examples": ["Europe/Berlin"],
    },
    "environment": {
        "type": "array",
        "description": "Variables of the process, on top of the daemon's own and of env_file.",
        "items": {
            "type": "object",
            "properties": {
                "key": {"type": "string", "pattern": "^[^=\\u0000]+$", "description": "Not empty, and without `=`."},
                "value": {"type": "string"},
            },
            "required": ["key", "value"],
            "additionalProperties": False,
        },
        "examples": [[{"key": "LANG", "value": "C.UTF-8"}]],
    },
    "env_file": {
        "type": ["string", "null"],
        "description": "A file of KEY=VALUE lines, beside this one; read again at each start.",
        "examples": ["backup.env"],
    },
    "workingDirectory": {
        "type": ["string", "null"],
        "description": "Where the process starts; not looked at before.",
        "examples": ["/srv/app"],
    },
    "user": {"type": ["string", "integer"], "description": "POSIX; needs root.", "examples": ["www-data"]},
    "group": {"type": ["string", "integer"], "description": "POSIX; needs root.", "examples": ["www-data"]},
    "priority": {
        "type": "string",
        "enum": ["idle", "below-normal", "normal", "above-normal", "high"],
        "default": "normal",
        "description": "Of the process, as the system's scheduler sees it.",
    },
}

_OUTPUT: Final[JsonSchema] = {
    "captureStdout": _flag("Keep standard output for reports and the run's record.", False),
    "captureStderr": _flag("Keep standard error for reports and the run's record.", True),
    "saveLimit": _integer("Lines kept per stream: the first and the last half.", 4096, minimum=0),
    "maxLineLength": _integer("Bytes; a longer line is left out.", 16777216, exclusiveMinimum=0),
    "streamPrefix": _text("Before each line that is passed on; empty: none.", "[{job_name} {stream_name}] "),
    "archiveOutput": _flag("Keep the output in the state store.", False),
    "redactArchivedSecrets": _flag("Black out known secrets in what is archived.", True),
}

_RUNS: Final[JsonSchema] = {
    "concurrencyPolicy": _choice("When a run is due while one still lives.", *map(str, ConcurrencyPolicy)),
    "concurrencyScope": _choice("Whose runs count for concurrencyPolicy.", "node", "cluster"),
    "clusterPolicy": _choice("Who runs the job once nodes elect.", *map(str, ClusterPolicy)),
    "executionTimeout": {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "description": "Seconds a run may take.",
        "examples": [3600],
    },
    "killTimeout": _number("Seconds between SIGTERM and SIGKILL.", 30, minimum=0),
    "failsWhen": _mapping(
        "What makes a run a failure.",
        {"producesStdout": False, "producesStderr": False},
        required=["producesStdout"],
        producesStdout=_flag("Captured output on stdout.", False),
        producesStderr=_flag("Captured output on stderr.", True),
        nonzeroReturn=_flag("An exit status other than 0.", True),
        always=_flag("Every end of it.", False),
    ),
    "onFailure.retry": _mapping(
        "Try again, with growing pauses.",
        {"maximumRetries": 3, "initialDelay": 1, "maximumDelay": 300, "backoffMultiplier": 2},
        required=["maximumRetries", "initialDelay", "maximumDelay", "backoffMultiplier"],
        maximumRetries=_integer("-1: for ever.", 3, minimum=-1),
        initialDelay=_number("Seconds.", 1, minimum=0),
        maximumDelay=_number("Seconds.", 300, exclusiveMinimum=0),
        backoffMultiplier=_number("Each pause is this many times the last.", 2, exclusiveMinimum=0),
        jitter=_number("By which part of itself a pause may be shorter; 0: exact.", 0.2, minimum=0, maximum=1),
    ),
    "onMissed": _choice("Occurrences that came while no daemon ran.", "skip", "run-once", "run-all"),
    "startingDeadlineSeconds": {
        "type": ["integer", "null"],
        "exclusiveMinimum": 0,
        "description": "How late a run may start.",
        "examples": [600],
    },
    "catchupJitterSeconds": _integer("Spreads late starts over so many seconds.", 30, minimum=0),
    "onlyIfLastSucceeded": _flag("Skip while the last run is a failure.", False),
    "onLeaseLost": _choice("A run whose node may lead no more.", "continue", "term", "kill"),
    "onUnfinishedClaim": _choice("An occurrence whose node died before it is known to have run.", "skip", "rerun"),
}

_WATCHING: Final[JsonSchema] = {
    "sla": _mapping(
        "When a job counts as late.",
        {"lateAfterSeconds": 900},
        maxTimeSinceSuccessSeconds=_number("Since the last success.", 86400, exclusiveMinimum=0),
        lateAfterSeconds=_number("Since the scheduled time.", 900, exclusiveMinimum=0),
        maxRuntimeSeconds=_number("Since the start of a run.", 3600, exclusiveMinimum=0),
        minRuntimeSeconds=_number("A success that took less is suspicious.", 60, exclusiveMinimum=0),
    ),
    "statsd": _mapping(
        "Where to send figures of each run, over UDP.",
        {"prefix": "cron.backup", "host": "127.0.0.1", "port": 8125},
        required=["prefix", "host", "port"],
        prefix={"type": "string", "pattern": "^[^\\r\\n:|]*$", "description": "Without `:` and `|`."},
        host={"type": "string"},
        port=_integer("Of the statsd server.", 8125, minimum=1, maximum=65535),
    ),
    "monitor": _mapping(
        "Where each run checks in: a dead man's switch such as healthchecks. From the node that ran, and no other.",
        {"url": {"fromEnvVar": "BACKUP_CHECK_URL"}},
        required=["url"],
        url=secret("Called as it is after a success, with /start, /fail and /log below it"),
        start=_flag("Say when a run begins.", True),
        success=_flag("Say when it succeeds.", True),
        fail=_flag("Say when it fails, with the reason and the end of the output.", True),
        log=_flag("Send the end of the output of every run.", False),
    ),
    "monitorResources": {
        "type": ["boolean", "object"],
        "description": "Sample the processor and memory use of runs.",
        "properties": {
            "enabled": _flag("Off and on.", True),
            "interval": _number("Seconds between samples.", 5, minimum=0.1, default=1),
            "history": _integer("Samples kept.", 600, minimum=0, maximum=2000, default=120),
        },
        "additionalProperties": False,
        "default": False,
        "examples": [True, {"interval": 5}],
    },
}

_JOB: Final = ConfigFragment(
    id=_ID,
    schemas={
        f"jobs[].{key}": schema
        for part in (_IDENTITY, _BASICS, _OUTPUT, _RUNS, _WATCHING)
        for key, schema in part.items()
    },
    not_in_defaults=frozenset(f"jobs[].{key}" for key in _IDENTITY),
)

_FILES: Final = ConfigFragment(
    id="https://cronstable.dev/schema/files",
    schemas={
        "include": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Other files to read first, relative to this one.",
            "examples": [["common.yaml"]],
        },
        "logging": {
            "type": "object",
            "description": "Taken as it stands by Python's logging.config.dictConfig.",
            "properties": {"version": {"type": "integer", "const": 1}},
            "required": ["version"],
            "additionalProperties": {"description": "See the logging.config module."},
            "examples": [{"version": 1, "root": {"level": "INFO"}}],
        },
    },
)


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """Job keys, ``include`` and ``logging``."""
    yield _JOB
    yield _FILES
