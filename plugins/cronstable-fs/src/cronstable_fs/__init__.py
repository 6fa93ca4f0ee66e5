"""A directory as election backend and as state store: the hooks. The rest is imported when it is chosen."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import cast

from cronstable.api import Capability, ConfigFragment, ElectionBackend, JsonSchema, StateStoreBackend, hookimpl
from cronstable_fs.settings import parse
from cronstable_fs.state_settings import SCHEMAS, parse_state


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


@hookimpl
def cronstable_state_stores() -> Iterable[StateStoreBackend]:
    """The store ``filesystem``; its keys stand in ``state`` itself, since it is the default."""
    yield StateStoreBackend(name="filesystem", factory="cronstable_fs.state:make", parse=parse_state)


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """The keys of the store ``filesystem``."""
    yield ConfigFragment(id="https://cronstable.dev/schema/state-filesystem", schemas=SCHEMAS)


def _schema() -> JsonSchema:
    text = resources.files("cronstable_fs").joinpath("schema.json").read_text(encoding="utf-8")
    return cast("JsonSchema", json.loads(text))
