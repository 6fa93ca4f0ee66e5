"""The HTTP control API as a builtin plugin: hooks only. aiohttp is imported when the service is made."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from cronstable.api import Json, JsonSchema, ServiceProvider, hookimpl
from cronstable.builtin.web.settings import parse


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
