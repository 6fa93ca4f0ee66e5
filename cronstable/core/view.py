"""What a node believes about its cluster at one instant: an immutable snapshot, no I/O behind it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from cronstable.core.values import dataclass


class PeerStatus(StrEnum):
    """The status of one gossip peer (reference 12.1)."""

    UNKNOWN = "unknown"
    AGREED = "agreed"
    SYNCING = "syncing"
    DRIFTED = "drifted"
    UNREACHABLE = "unreachable"
    UNTRUSTED = "untrusted"
    SELF = "self"
    CONFLICT = "conflict"


UNKNOWN: Final = PeerStatus.UNKNOWN
AGREED: Final = PeerStatus.AGREED
SYNCING: Final = PeerStatus.SYNCING
DRIFTED: Final = PeerStatus.DRIFTED
UNREACHABLE: Final = PeerStatus.UNREACHABLE
UNTRUSTED: Final = PeerStatus.UNTRUSTED
SELF: Final = PeerStatus.SELF
CONFLICT: Final = PeerStatus.CONFLICT

SINGLE_LEADER: Final = "single-leader"
SPREAD: Final = "spread"


@dataclass(frozen=True, slots=True)
class PeerView:
    """One configured peer as last observed; the fields of ``peers[]`` in GET /cluster (reference 7.4).

    ``last_seen``: wall seconds of the last successful exchange. ``node_stats``: how loaded the node said it is, None
    when it does not share that.
    """

    host: str
    status: PeerStatus
    node_name: str | None = None
    job_set_id: str | None = None
    last_seen: float | None = None
    last_error: str | None = None
    mismatch_streak: int = 0
    node_stats: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The ``lease`` block of GET /cluster. ``fields``: the backend's own constant entries, such as ``path``.

    ``identity`` and ``holder``: display names, ours and the holder's, without the token that only the store needs
    (reference 3.5). ``expiry``: wall seconds, where known.
    """

    identity: str
    holder: str | None
    expiry: float | None
    fence: int | None
    fields: tuple[tuple[str, str | int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A node's view of its cluster; everything the gate and GET /cluster need.

    ``leader``: display name of the elected leader, None when not quorate or under spread.
    ``available``: the never-skip answer for PreferLeader in single-leader mode (reference 3.5, 6.6).
    ``settled``: False while a fresh gossip view converges (6.9); lease views are always settled.
    ``owners``: under spread, the names whose rendezvous winner owns a Leader job; empty without quorum.
    ``available_owners``: the same for PreferLeader, quorum ignored.
    ``deadline``: boot seconds until which ``is_leader`` may be acted on; None when no deadline applies.
    ``stale``: the node doubts what it knows and asks again right now; it then claims neither leadership nor quorum,
    and what is due waits for one refresh (DESIGN 4, the end).
    ``since``: boot seconds since when the leader or the owners are these; an occurrence that came due before was
    another's, or nobody's. None: no such rule, a lease log decides.
    ``owners_before``, ``since_before``: under spread, the owners until ``since``, and since when they were these: a job
    that this node owned under both did not move. None: nothing is known of before.
    ``twins``: for each node of our own name that goes first on the never-skip path, the names it agrees with (6.8).
    """

    backend: str
    node_name: str
    job_set_id: str
    cluster_size: int = 1
    quorum: int = 1
    elect_leader: bool = True
    distribution: str = SINGLE_LEADER
    quorate: bool = False
    leader: str | None = None
    is_leader: bool = False
    available: bool = False
    settled: bool = True
    conflict_names: tuple[str, ...] = ()
    conflicting_sizes: tuple[int, ...] = ()
    conflicting_policies: tuple[str, ...] = ()
    candidates_truncated: int = 0
    peers: tuple[PeerView, ...] = ()
    owners: tuple[str, ...] = ()
    available_owners: tuple[str, ...] = ()
    deadline: float | None = None
    stale: bool = False
    since: float | None = None
    owners_before: tuple[str, ...] = ()
    since_before: float | None = None
    twins: tuple[tuple[str, ...], ...] = ()
    lease: LeaseView | None = None

    @property
    def conflict(self) -> bool:
        """True when any of the three conflicts closes the Leader gate."""
        return bool(self.conflict_names or self.conflicting_sizes or self.conflicting_policies)
