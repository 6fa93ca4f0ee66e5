"""The ``state`` section: where history, retries and claims outlive the process (reference 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cronstable.api import ConfigFragment, Json, Problem, hookimpl


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """The whole section."""
    yield ConfigFragment(
        id="https://cronstable.dev/schema/state",
        schemas={
            "state": {
                "type": "object",
                "description": "A durable store for what must outlive the daemon.",
                "properties": {
                    "path": {"type": "string", "pattern": "\\S", "description": "A directory of our own."},
                    "topology": {
                        "type": "string",
                        "enum": ["auto", "single-node", "shared"],
                        "default": "auto",
                        "description": "Is the directory shared with other hosts?",
                    },
                    "deploymentId": {
                        "type": ["string", "null"],
                        "description": "Keeps deployments that share a directory apart.",
                    },
                    "maxRunsPerJob": {"type": "integer", "default": 1000, "description": "0 or less: no bound."},
                    "onStoreUnavailable": {
                        "type": "string",
                        "enum": ["degrade", "fail-closed"],
                        "default": "degrade",
                        "description": "What happens while the store does not answer.",
                    },
                    "gcGraceSeconds": {
                        "type": "integer",
                        "default": 604800,
                        "description": "How long records of a removed job are kept; 0 or less: for ever.",
                    },
                    "maxOpsPerSecond": {
                        "type": "number",
                        "minimum": 0,
                        "default": 0,
                        "description": "Store operations; 0: no bound. Leases do not count.",
                    },
                    "slotTtlSeconds": {"type": "number", "minimum": 5, "default": 30},
                },
                "required": ["path"],
                "additionalProperties": False,
                "examples": [{"path": "/var/lib/cronstable"}],
            }
        },
    )


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """A grace of less than a day would delete records of a job that is only away for a deployment."""
    state = config.get("state")
    grace = state.get("gcGraceSeconds") if isinstance(state, Mapping) else None
    if isinstance(grace, int) and 0 < grace < 86400:
        yield Problem(
            ("state", "gcGraceSeconds"),
            f"{grace} seconds is less than a day",
            allowed=("0 or less (never collect)", "86400 or more"),
        )
