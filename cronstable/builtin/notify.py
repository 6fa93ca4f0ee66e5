"""The section ``notify``: which events of the cluster are told (reference 9). Reporters bring their own keys."""

from __future__ import annotations

from collections.abc import Iterable

from cronstable.api import ConfigFragment, hookimpl


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """The key that is nobody's reporter."""
    yield ConfigFragment(
        id="https://cronstable.dev/schema/notify",
        schemas={
            "notify.events": {
                "type": "array",
                "items": {"type": "string", "enum": ["leader_change", "quorum_loss"]},
                "default": ["leader_change", "quorum_loss"],
                "description": "What is told.",
                "examples": [["leader_change", "quorum_loss"]],
            },
        },
    )
