"""The reporter ``webhook``: the hook. What sends and renders is imported when the first message is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import cast

from cronstable.api import JsonSchema, NotifierBackend, hookimpl
from cronstable_notify_webhook.settings import parse


@hookimpl
def cronstable_notifiers() -> Iterable[NotifierBackend]:
    """The key ``webhook`` of a ``report`` block."""
    yield NotifierBackend(
        name="webhook", factory="cronstable_notify_webhook.notifier:make", schema=_schema(), parse=parse
    )


def _schema() -> JsonSchema:
    text = resources.files("cronstable_notify_webhook").joinpath("schema.json").read_text(encoding="utf-8")
    return cast("JsonSchema", json.loads(text))
