"""The ``report`` blocks of jobs and the ``notify`` section (reference 2.4 and 9): their shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cronstable.api import ConfigFragment, JsonSchema, hookimpl

_JOB_EVENTS: Final = ("onFailure", "onPermanentFailure", "onSuccess", "onLate")


def _secret(about: str) -> JsonSchema:
    """A secret: where it stands, never the secret in a message or a log."""
    return {
        "type": "object",
        "description": f"{about}. The first source that is given counts.",
        "properties": {
            "value": {"type": ["string", "null"], "writeOnly": True, "description": "The secret itself."},
            "fromFile": {"type": ["string", "null"], "description": "A file that holds it."},
            "fromEnvVar": {"type": ["string", "null"], "description": "A variable of the daemon that holds it."},
        },
        "additionalProperties": False,
        "examples": [{"fromFile": "/run/secrets/name"}],
    }


_TEXT: Final[JsonSchema] = {"type": "string"}
_TEXT_OR_NONE: Final[JsonSchema] = {"type": ["string", "null"]}
_TEXTS: Final[JsonSchema] = {"type": "object", "additionalProperties": {"type": "string"}}
_SECONDS: Final[JsonSchema] = {"type": "number", "exclusiveMinimum": 0}


def _reporter(about: str, example: object, required: Iterable[str] = (), **keys: JsonSchema) -> JsonSchema:
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


_REPORTERS: Final[Mapping[str, JsonSchema]] = {
    "mail": _reporter(
        "By mail, when `from` and `to` are set.",
        {"from": "cron@example.org", "to": "ops@example.org", "smtpHost": "localhost"},
        smtpHost=_TEXT_OR_NONE,
        smtpPort={"type": "integer", "minimum": 1, "maximum": 65535, "default": 25},
        tls={"type": "boolean", "default": False},
        starttls={"type": "boolean", "default": False},
        validate_certs={"type": "boolean", "default": True},
        html={"type": "boolean", "default": False},
        username=_TEXT_OR_NONE,
        password=_secret("Of the mail server"),
        subject=_TEXT,
        body=_TEXT,
        **{"from": _TEXT_OR_NONE, "to": _TEXT_OR_NONE},
    ),
    "sentry": _reporter(
        "To Sentry, when `dsn` is set.",
        {"dsn": {"fromEnvVar": "SENTRY_DSN"}},
        dsn=_secret("The address of the project"),
        fingerprint={"type": "array", "items": {"type": "string"}},
        level={"type": "string", "enum": ["fatal", "error", "warning", "info", "debug"], "default": "error"},
        extra=_TEXTS,
        body=_TEXT,
        environment=_TEXT_OR_NONE,
        maxStringLength={"type": "integer", "exclusiveMinimum": 0, "default": 8192},
    ),
    "shell": _reporter(
        "By a command, with the facts in CRONSTABLE_ variables.",
        {"command": "logger failed"},
        command={"type": ["string", "array", "null"], "items": {"type": "string"}},
        shell=_TEXT,
        timeout=_SECONDS,
    ),
    "webhook": _reporter(
        "By an HTTP request, when `url` is set.",
        {"url": {"fromFile": "/run/secrets/hook"}},
        url=_secret("Where to send it"),
        method={"type": "string", "enum": ["POST", "PUT", "PATCH", "GET", "DELETE"], "default": "POST"},
        contentType={"type": "string", "default": "application/json"},
        headers=_TEXTS,
        body=_TEXT,
        timeout=_SECONDS,
    ),
}


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """Each reporter under each event of a job, and the ``notify`` section with the same reporters."""
    yield ConfigFragment(
        id="https://cronstable.dev/schema/report",
        schemas={
            f"jobs[].{event}.report.{name}": schema for event in _JOB_EVENTS for name, schema in _REPORTERS.items()
        },
    )
    yield ConfigFragment(
        id="https://cronstable.dev/schema/notify",
        schemas={
            "notify.events": {
                "type": "array",
                "items": {"type": "string", "enum": ["leader_change", "quorum_loss"]},
                "description": "What is told.",
                "examples": [["leader_change", "quorum_loss"]],
            },
            **{f"notify.report.{name}": schema for name, schema in _REPORTERS.items()},
        },
    )
