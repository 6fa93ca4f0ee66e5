"""The keys of ``cluster`` that every backend shares (reference 3.1) and the catch-up window of the fenced ones."""

from __future__ import annotations

from collections.abc import Iterable

from cronstable.api import ConfigFragment, hookimpl


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """The shared part of the section; each backend brings its own key."""
    yield ConfigFragment(
        id="https://cronstable.dev/schema/cluster",
        schemas={
            "cluster.backend": {
                "type": "string",
                "default": "gossip",
                "description": "How a leader is elected; each value is a plugin.",
                "examples": ["gossip", "filesystem"],
            },
            "cluster.nodeName": {
                "type": "string",
                "description": "Unique in the cluster; the host name when blank.",
                "examples": ["cron-a"],
            },
            "cluster.connectTimeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "default": 10,
                "description": "Seconds for one exchange with a peer or store.",
                "examples": [10],
            },
            "cluster.electLeader": {
                "type": "boolean",
                "default": False,
                "description": "Elect, or only compare job sets. A lease backend always elects.",
            },
            "cluster.distribution": {
                "type": "string",
                "enum": ["single-leader", "spread"],
                "default": "single-leader",
                "description": "One node runs all Leader jobs, or each job has its own node.",
            },
            "cluster.catchUp": {
                "type": "object",
                "description": "What a new leader does about occurrences that nobody started.",
                "properties": {
                    "window": {
                        "type": ["number", "string"],
                        "pattern": "^auto$",
                        "exclusiveMinimum": 0,
                        "description": "How late it may be, in seconds; `auto`: three worst handovers, at least 60.",
                    },
                    "mode": {
                        "type": "string",
                        "enum": ["all", "last", "none"],
                        "default": "all",
                        "description": "All of them, the newest of each job, or none.",
                    },
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "default": 100,
                        "description": "Late starts at a time; the rest follows.",
                    },
                },
                "additionalProperties": False,
                "examples": [{"window": "auto", "mode": "all"}],
            },
        },
    )
