"""Who leads and who owns: quorum, the elected leader, rendezvous ownership. Pure functions of what a node sees."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable


def quorum_size(n: int) -> int:
    """The strict majority of a cluster of ``n`` nodes (reference 6.6). ``ValueError`` below 1."""
    if n < 1:
        raise ValueError(f"a cluster has at least one node, not {n}")
    return n // 2 + 1


def elect_leader(me: str, live: Collection[str], eligible: Iterable[str], cluster_size: int) -> str | None:
    """The leader as node ``me`` elects it, None without a quorum (reference 6.6).

    ``live``: names of the mutually agreeing nodes, ``me`` included or not. ``eligible``: those that are known to be
    quorate themselves, reachable directly or vouched for; only they and ``me`` can be elected, so that a healthy
    majority never defers to a node which would itself stand down.
    """
    if len({me, *live}) < quorum_size(cluster_size):
        return None
    return min({me, *eligible})


def hrw_weight(job: str, node: str) -> int:
    """The rendezvous weight of ``node`` for ``job``: the first 8 bytes of SHA-256 over ``job NUL node``."""
    return int.from_bytes(hashlib.sha256(f"{job}\0{node}".encode()).digest()[:8], "big")


def hrw_owner(job: str, nodes: Iterable[str]) -> str | None:
    """The node that owns ``job``: the highest weight, ties to the greater name; None when there are no nodes.

    Independent of the order of ``nodes``; a node that leaves moves only the jobs it owned.
    """
    return max(nodes, key=lambda node: (hrw_weight(job, node), node), default=None)
