"""Who agrees, who is quorate, who leads and who owns: functions of one node's view (reference 6.6 to 6.9). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cronstable.api import PeerStatus, elect_leader, quorum_size
from cronstable_gossip.model import Claim, Me, Member, Peer, Report

MOST_CANDIDATES: Final = 512
"""Candidate names that are advertised or discovered through others; the lowest ones stay (reference 6.3)."""


@dataclass(frozen=True, slots=True)
class Derived:
    """The sets of reference 6.6 and the conflicts of 6.7.

    ``live``, ``eligible`` contain names only; ``me`` is in ``live`` and never in ``eligible``.
    ``elected``: the leader this node elects, None without a quorum or an election.
    ``swapped``: same-size memberships that differ by one name; worth saying, closes nothing.
    ``twins``: for each node of our name that goes first, the names it agrees with (6.8).
    """

    size: int
    quorum: int
    live: frozenset[str]
    eligible: frozenset[str]
    vouched: tuple[str, ...]
    unconfirmed: frozenset[str]
    available: frozenset[str]
    truncated: int
    quorate: bool
    elected: str | None
    conflict_names: tuple[str, ...] = ()
    conflicting_sizes: tuple[int, ...] = ()
    conflicting_policies: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    twins: tuple[tuple[str, ...], ...] = ()

    @property
    def conflict(self) -> bool:
        """Any of the three closes the Leader gate."""
        return bool(self.conflict_names or self.conflicting_sizes or self.conflicting_policies)


def cluster_size(peers: Iterable[Peer]) -> int:
    """N: every configured member once; an entry that is this node, or a node listed twice, is no other member."""
    known: set[str] = set()
    size = 1
    for peer in peers:
        if peer.is_self:
            continue
        if peer.instance_id is not None:
            if peer.instance_id in known:
                continue
            known.add(peer.instance_id)
        size += 1
    return size


def compatible(report: Report, me: Me, size: int) -> bool:
    """The one predicate for whom a node counts: the same idea of the cluster, where it says what it thinks."""
    return (
        report.cluster_size in (None, size)
        and report.distribution in (None, me.distribution)
        and report.elect_leader in (None, me.elect_leader)
    )


def attests(report: Report, me: Me) -> bool:
    """It lists this very process as agreeing."""
    return lists(report, me.instance_id)


def lists(report: Report, instance_id: str | None) -> bool:
    """It lists the process of this instance id as agreeing; a build that lists nobody is believed."""
    if report.members is None:
        return True
    return any(member.instance_id == instance_id and member.agreed for member in report.members)


def agreeing(peers: Iterable[Peer], me: Me, size: int) -> list[Peer]:
    """AGREE: peers that agree mutually, each node once."""
    found: dict[str, Peer] = {}
    for peer in peers:
        if agreed(peer, me, size) and peer.report is not None and attests(peer.report, me):
            found.setdefault(peer.instance_id or f"host:{peer.host}", peer)
    return list(found.values())


def members(peers: Iterable[Peer], me: Me) -> tuple[Member, ...]:
    """What this node says of whom it observes: itself first, then each fresh observation."""
    peers = tuple(peers)
    size = cluster_size(peers)
    lines = [Member(me.name, me.instance_id, True)]
    for peer in peers:
        if peer.fresh and not peer.is_self and peer.node_name is not None:
            lines.append(Member(peer.node_name, peer.instance_id, agreed(peer, me, size)))
    return tuple(lines)


def agreed(peer: Peer, me: Me, size: int) -> bool:
    """We say that this peer agrees with us.

    The live job set counts, not the one of the last poll: a reload here is noticed at once."""
    return (
        peer.status is PeerStatus.AGREED
        and peer.report is not None
        and peer.report.job_set_id == me.job_set_id
        and compatible(peer.report, me, size)
    )


def derive(peers: tuple[Peer, ...], me: Me) -> Derived:
    """Everything that follows from this view. The order of ``peers`` does not matter."""
    size = cluster_size(peers)
    quorum = quorum_size(size)
    agree = agreeing(peers, me, size)
    reports = [peer.report for peer in agree if peer.report is not None]
    live = frozenset({me.name, *(report.node_name for report in reports)})
    witnesses = Counter(name for report in reports for name in report.mutual_agreeing)
    bridge = sorted(name for name, count in witnesses.items() if name not in live and 1 + count >= quorum)
    direct = {report.node_name for report in reports if 1 + len(report.mutual_agreeing) >= quorum}
    eligible = frozenset(direct | set(bridge[:MOST_CANDIDATES])) - {me.name}
    vouched = sorted(direct | set(bridge))
    unconfirmed = frozenset().union(*(report.quorate_vouched for report in reports)) - live - eligible
    beyond = frozenset(witnesses) - live
    quorate = len(live) >= quorum
    policies, swapped = _policies(peers, me, size)
    return Derived(
        size=size,
        quorum=quorum,
        live=live,
        eligible=eligible,
        vouched=tuple(vouched[:MOST_CANDIDATES]),
        unconfirmed=unconfirmed,
        available=live | beyond,
        truncated=max((len(one) for one in (bridge, vouched) if len(one) > MOST_CANDIDATES), default=0),
        quorate=quorate,
        elected=elect_leader(me.name, live, eligible, size),
        conflict_names=tuple(sorted(duplicated_names(peers, me))),
        conflicting_sizes=tuple(sorted(_sizes(peers, size))),
        conflicting_policies=policies,
        swapped=swapped,
        twins=tuple(sorted(_twins(peers, me))),
    )


def owners(view: Derived, me: Me) -> frozenset[str]:
    """Among whom a Leader job's owner is chosen under spread; nobody without a quorum.

    A candidate that a peer vouches for and we cannot confirm is in: at worst we defer to it, which skips a run where
    two might have happened.
    """
    return (view.eligible | view.unconfirmed | {me.name}) if view.quorate else frozenset()


def settled(peers: Iterable[Peer], me: Me, third_round: float) -> bool:
    """A fresh view has converged (6.9): everybody was polled, and those who agree know this process.

    One that still does not, asked since ``third_round`` (boot seconds), never will: it has had a whole interval to ask
    us. Questions in between prove nothing, however many there are.
    """
    peers = tuple(peers)
    if any(peer.status is PeerStatus.UNKNOWN for peer in peers):
        return False
    agreed = [(peer, peer.report) for peer in peers if peer.status is PeerStatus.AGREED and peer.report is not None]
    return all(_knows(report, me) or (peer.sent or 0.0) >= third_round for peer, report in agreed)


def _knows(report: Report, me: Me) -> bool:
    return report.members is None or any(member.instance_id == me.instance_id for member in report.members)


def claimants(peers: Iterable[Peer], me: Me) -> list[Peer]:
    """Peers of our job set that say of themselves that they lead, or are about to."""
    return [
        peer
        for peer in peers
        if peer.status is PeerStatus.AGREED and peer.report is not None and peer.report.claim is not Claim.NONE
    ]


# -- conflicts --------------------------------------------------------------------------------------------------------


def duplicated_names(peers: Iterable[Peer], me: Me) -> Iterator[str]:
    """Names that two living nodes go by.

    What is seen directly counts; what only others tell counts when two of them tell it, so that no single liar can
    close the gate.
    """
    first: dict[str, set[str]] = {me.name: {me.instance_id}}
    told: dict[tuple[str, str], set[str]] = {}
    for peer in peers:
        if not peer.fresh or peer.is_self or peer.report is None:
            continue
        instance = peer.report.instance_id or f"host:{peer.host}"
        first.setdefault(peer.report.node_name, set()).add(instance)
        for member in peer.report.members or ():
            if member.instance_id is not None:
                told.setdefault((member.node_name, member.instance_id), set()).add(instance)
    for (name, instance), reporters in told.items():
        if len(reporters) >= 2:
            first.setdefault(name, set()).add(instance)
    return (name for name, instances in first.items() if len(instances) > 1)


def _reachable(peers: Iterable[Peer]) -> Iterator[Report]:
    for peer in peers:
        if peer.fresh and not peer.is_self and peer.report is not None:
            yield peer.report


def _sizes(peers: Iterable[Peer], size: int) -> set[int]:
    return {r.cluster_size for r in _reachable(peers) if r.cluster_size is not None and r.cluster_size != size}


def _policies(peers: tuple[Peer, ...], me: Me, size: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found: set[str] = set()
    swapped: set[str] = set()
    mine = _names(members(peers, me), size)
    for report in _reachable(peers):
        if report.distribution not in (None, me.distribution):
            found.add(f"distribution '{report.distribution}' != '{me.distribution}'")
        if report.elect_leader not in (None, me.elect_leader):
            found.add(f"electLeader {_yaml(report.elect_leader)} != {_yaml(me.elect_leader)}")
        theirs = _names(report.members or (), size)
        if mine is None or theirs is None or report.cluster_size not in (None, size) or mine == theirs:
            continue
        text = f"members '{', '.join(sorted(theirs - mine))}' != '{', '.join(sorted(mine - theirs))}'"
        (swapped if len(theirs - mine) == 1 else found).add(text)
    return tuple(sorted(found)), tuple(sorted(swapped))


def _yaml(value: bool | None) -> str:
    return str(value).lower()


def _names(lines: Iterable[Member], size: int) -> frozenset[str] | None:
    """The whole membership, None unless all of it is known."""
    names = frozenset(member.node_name for member in lines)
    return names if len(names) == size else None


def _twins(peers: Iterable[Peer], me: Me) -> Iterator[tuple[str, ...]]:
    for report in _reachable(peers):
        if report.node_name == me.name and report.instance_id is not None and report.instance_id < me.instance_id:
            yield tuple(sorted({me.name, *report.mutual_agreeing}))
