"""The keys of ``state`` that every store shares (reference 4), and the store that forgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cronstable.api import ConfigFragment, Json, Problem, Severity, StateStoreBackend, hookimpl


@hookimpl
def cronstable_config_fragments() -> Iterable[ConfigFragment]:
    """The shared part of the section; each store brings its own keys."""
    yield ConfigFragment(
        id="https://cronstable.dev/schema/state",
        schemas={
            "state.backend": {
                "type": "string",
                "default": "filesystem",
                "description": "Where state is kept; each value is a plugin.",
                "examples": ["filesystem", "etcd"],
            },
            "state.maxRunsPerJob": {
                "type": "integer",
                "default": 1000,
                "description": "Finished runs kept of each job; 0 or less: no bound.",
                "examples": [1000],
            },
            "state.onStoreUnavailable": {
                "type": "string",
                "enum": ["degrade", "fail-closed"],
                "default": "degrade",
                "description": "What happens while the store does not answer.",
            },
            "state.gcGraceSeconds": {
                "type": "integer",
                "default": 604800,
                "description": "How long records of a removed job are kept; 0 or less: for ever.",
                "examples": [604800],
            },
            "state.maxOpsPerSecond": {
                "type": "number",
                "minimum": 0,
                "default": 0,
                "description": "Store operations; 0: no bound. Leases do not count.",
                "examples": [0],
            },
            "state.slotTtlSeconds": {
                "type": "number",
                "minimum": 5,
                "default": 30,
                "description": "How long a slot of `concurrencyScope: cluster` outlives its holder.",
                "examples": [30],
            },
        },
    )


@hookimpl
def cronstable_state_stores() -> Iterable[StateStoreBackend]:
    """The store ``memory``: for trying things out, and for tests."""
    yield StateStoreBackend(name="memory", factory="cronstable.builtin.memory_state:make")


@hookimpl
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:
    """Values that JSON Schema would have to call right."""
    state = config.get("state")
    if not isinstance(state, Mapping):
        return
    grace = state.get("gcGraceSeconds")
    if isinstance(grace, int) and 0 < grace < 86400:
        # It would delete records of a job that is only away for a deployment.
        yield Problem(
            ("state", "gcGraceSeconds"),
            f"{grace} seconds is less than a day",
            allowed=("0 or less (never collect)", "86400 or more"),
        )
    if state.get("maxRunsPerJob") == 1:
        # Two runs can be recorded in the other order than they ended: keeping one may keep the older.
        yield Problem(
            ("state", "maxRunsPerJob"),
            "1 is raised to 2: the last run is told by its end, and the newest record may be another's",
            severity=Severity.ADVISORY,
        )
