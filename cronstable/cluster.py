"""What a program may ask of a cluster: the manager, the view, the pure election functions. Re-exports only."""

from cronstable.core.quorum import elect_leader, quorum_size
from cronstable.core.view import (
    AGREED,
    CONFLICT,
    DRIFTED,
    SELF,
    SYNCING,
    UNKNOWN,
    UNREACHABLE,
    UNTRUSTED,
    ClusterView,
    PeerStatus,
)
from cronstable.runtime.cluster_manager import ClusterManager

__all__ = [
    "AGREED",
    "CONFLICT",
    "DRIFTED",
    "SELF",
    "SYNCING",
    "UNKNOWN",
    "UNREACHABLE",
    "UNTRUSTED",
    "ClusterManager",
    "ClusterView",
    "PeerStatus",
    "elect_leader",
    "quorum_size",
]
