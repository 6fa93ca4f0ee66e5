"""The HTTP control API as a builtin plugin: hooks only. aiohttp is imported when the service is made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from cronstable.api import Json, JsonSchema, Problem, ServiceProvider, Severity, hookimpl
from cronstable.builtin.web.settings import parse

NOT_ACTED_ON_YET: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("metrics", ("enabled", "public", "durationBuckets")),
    ("nodeHistory", ("enabled", "interval", "points")),
)
"""Keys of ``web`` that are accepted for services which are not part of this API, with the parts they may have."""

DEFAULTS: Mapping[str, Json] = {
    "metrics.enabled": True,
    "metrics.public": False,
    "metrics.durationBuckets": [0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600],
    "nodeHistory.enabled": True,
    "nodeHistory.interval": 5,
    "nodeHistory.points": 720,
}
"""What those parts are when nobody sets them (reference 7.1)."""


def schema() -> JsonSchema:
    """The JSON Schema of the section ``web``, read from ``schema.json`` beside this module."""
    found: dict[str, Json] = json.loads(Path(__file__).with_name("schema.json").read_text("utf-8"))
    return found


@hookimpl
def cronstable_services() -> Iterable[ServiceProvider]:
    """The service behind the top-level key ``web``."""
    yield ServiceProvider(
        name="web", section="web", factory="cronstable.builtin.web.service:make", schema=schema(), parse=parse
    )


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """One advisory for each key that is accepted but has no effect, when it is not left at its default."""
    web = config.get("web")
    if not isinstance(web, dict):
        return
    for key, parts in NOT_ACTED_ON_YET:
        if key in web and not _is_default(key, web[key], parts):
            yield Problem(
                path=("web", key),
                message=f"accepted, not acted on yet: `web.{key}`",
                severity=Severity.ADVISORY,
                hint="leave it out, or keep it for a later release",
            )


def _is_default(key: str, value: Json, parts: tuple[str, ...]) -> bool:
    """True when ``value`` says what would hold without it: true, null, or a map of default parts."""
    if isinstance(value, dict):
        return all(value.get(part, DEFAULTS[f"{key}.{part}"]) == DEFAULTS[f"{key}.{part}"] for part in parts)
    return value is True or value is None
