"""Pieces of JSON Schema that the reporters share."""

from __future__ import annotations

from collections.abc import Iterable

from cronstable.api import JsonSchema


def text(about: str) -> JsonSchema:
    """Text, or nothing."""
    return {"type": ["string", "null"], "description": about}


def template(about: str) -> JsonSchema:
    """A Jinja2 template."""
    return {"type": "string", "description": f"{about}; a Jinja2 template."}


def secret(about: str) -> JsonSchema:
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


def reporter(name: str, about: str, examples: Iterable[object], **keys: JsonSchema) -> JsonSchema:
    """The section of a reporter. Nothing is required: ``defaults`` may give a part of it."""
    return {
        "$id": f"https://cronstable.dev/schema/report-{name}",
        "type": "object",
        "description": about,
        "properties": keys,
        "additionalProperties": False,
        "examples": list(examples),
    }
