"""Election over a shared directory: the hooks. Everything else is imported when ``backend: filesystem`` is chosen."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import cast

from cronstable.api import Capability, ElectionBackend, JsonSchema, hookimpl
from cronstable_fs.settings import parse


@hookimpl
def cronstable_election_backends() -> Iterable[ElectionBackend]:
    """The backend ``filesystem``."""
    yield ElectionBackend(
        name="filesystem",
        factory="cronstable_fs.backend:make",
        schema=_schema(),
        capabilities=frozenset(
            {Capability.LEASE, Capability.FENCED, Capability.REBOOT_MARKS, Capability.OCCURRENCE_CLAIMS}
        ),
        parse=parse,
    )


def _schema() -> JsonSchema:
    text = resources.files("cronstable_fs").joinpath("schema.json").read_text(encoding="utf-8")
    return cast("JsonSchema", json.loads(text))
