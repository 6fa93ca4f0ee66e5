"""GET /state: what the durable state is, how it does, and what was lost of it; never what it contains."""

from __future__ import annotations

from cronstable.api import Json, StateStatus


def state_document(state: StateStatus) -> dict[str, Json]:
    """The state store and its counters since the daemon's start."""
    info = state.info
    return {
        "backend": state.backend,
        "open": info is not None and state.error is None,
        "topology": None if info is None else info.topology.value,
        "location": None if info is None else info.location,
        "error": state.error,
        "on_store_unavailable": "fail-closed" if state.fail_closed else "degrade",
        "pending_writes": state.pending,
        "dropped_writes": dict(state.dropped),
        "operations": {
            name: {"count": one.count, "errors": one.errors, "seconds": round(one.seconds, 6)}
            for name, one in state.operations.items()
        },
        "throttled": {"count": state.throttled, "seconds": round(state.throttle_wait, 6)},
        "workers": {"capacity": state.workers, "inflight": state.inflight, "peak": state.peak},
    }
