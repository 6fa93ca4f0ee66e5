"""A lease backend over an SQLite file: the hook. The store is imported when the YAML says ``backend: sqlite``."""

from __future__ import annotations

from collections.abc import Iterable

from cronstable.api import Capability, ElectionBackend, hookimpl

CAPABILITIES = frozenset({Capability.LEASE, Capability.FENCED})
SCHEMA = {
    "$id": "https://example.org/cronstable-sqlite/cluster.sqlite.json",
    "type": "object",
    "additionalProperties": False,
    "required": ["path"],
    "properties": {
        "path": {"type": "string", "minLength": 1, "description": "The SQLite file; made when it is not there."},
        "ttl": {"type": "number", "minimum": 3, "default": 15, "description": "Seconds that a lease lives."},
    },
    "examples": [{"path": "/var/lib/cronstable/lease.db"}],
}


@hookimpl
def cronstable_election_backends() -> Iterable[ElectionBackend]:
    """The value ``sqlite`` of ``cluster.backend``."""
    yield ElectionBackend(
        name="sqlite", factory="cronstable_sqlite.store:make", schema=SCHEMA, capabilities=CAPABILITIES
    )
