"""From being elected to leading: nobody leads before everybody in reach has been asked, after saying so. Pure.

A view is as old as its last poll, so two nodes can elect themselves at once: at start, when the lowest name comes
back, when a stopped node wakes. Each therefore says first that it is *standing*, asks every peer in reach again, and
leads only when none of them, asked after that, stands or leads itself. Of two that stand at the same time at least
one has asked after the other said so; the one that elects the other lets go, and the other sees it. Two cannot be
asked: a leader that fell silent is given the time in which it notices by itself, by everybody on whose evidence it may
have lived, which they tell each other; and a node that only others reach
the time in which it hears of us from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from cronstable.api import PeerStatus, Seconds, quorum_size
from cronstable_gossip.derive import claimants, lists
from cronstable_gossip.model import Claim, Me, Peer


@dataclass(frozen=True, slots=True)
class Candidacy:
    """``asked``: boot seconds since which peers are told of it; ``since``: boot seconds since which it leads.

    A leader that doubts itself stands again and keeps its ``since``, unless somebody else turns out to have stood.
    """

    claim: Claim = Claim.NONE
    asked: float = 0.0
    since: float | None = None


def advance(
    before: Candidacy,
    peers: Iterable[Peer],
    me: Me,
    *,
    elected: bool,
    silent_until: float,
    detour: Seconds,
    now: float,
) -> Candidacy:
    """The next state. ``silent_until``: until when a leader that fell silent may still believe in itself.

    ``detour``: how long news of us takes to a node that we cannot reach, through one that can.
    """
    if not elected:
        return Candidacy()
    if before.claim is Claim.LEADING:
        return before
    peers = tuple(peers)
    rivals = claimants(peers, me)
    if before.claim is Claim.NONE:
        # Not against somebody who stands already: a leader that only confirms itself keeps its term.
        return before if rivals else Candidacy(Claim.STANDING, asked=now)
    if rivals or now < silent_until:
        return replace(before, since=None)
    if others_wait(peers, me):
        return before
    if before.since is None and hidden(peers) and now < before.asked + detour:
        return before
    in_reach = [peer for peer in peers if peer.fresh and not peer.is_self]
    if all(peer.sent is not None and peer.sent > before.asked for peer in in_reach):
        return replace(before, claim=Claim.LEADING, since=now if before.since is None else before.since)
    return before


def hidden(peers: Iterable[Peer]) -> set[str]:
    """Names of peers that we have no news of and others have: they may lead without our hearing of it."""
    peers = tuple(peers)
    seen = frozenset().union(*(peer.report.mutual_agreeing for peer in peers if peer.report is not None))
    names = (peer.node_name for peer in peers if not peer.fresh and not peer.is_self)
    return {name for name in names if name is not None and name in seen}


def doubted(before: Candidacy, now: float) -> Candidacy:
    """A leader that may have been replaced unnoticed has to be confirmed; one that stands has to ask anew."""
    return before if before.claim is Claim.NONE else replace(before, claim=Claim.STANDING, asked=now)


def silence(peers: Iterable[Peer], heard: Callable[[Peer], float | None], patience: Seconds) -> Mapping[str, float]:
    """Who may lead without our hearing of it, by name, and until when (boot seconds).

    ``heard``: when this peer last asked us something whose answer it may lead on. From that request it can believe in
    us for ``patience`` seconds (interval + connectTimeout). A peer at whose address nobody listens has ended.
    """
    until: dict[str, float] = {}
    for peer in peers:
        if peer.may_lead and not peer.fresh and not peer.refused and peer.node_name is not None:
            last = max((at for at in (heard(peer), peer.evidence) if at is not None), default=None)
            if last is not None:
                until[peer.node_name] = max(last + patience, until.get(peer.node_name, last))
    return until


def may_be_quorate(lost: Peer, peers: Iterable[Peer], size: int) -> bool:
    """A peer that we have lost may have a majority without us, as far as we hear.

    Those may count for it who say that they agree with it, and those whom we do not hear; not one whose port is closed.
    """
    others = [peer for peer in peers if peer is not lost and not peer.is_self]
    known = sum(lists(peer.report, lost.instance_id) for peer in others if peer.report is not None)
    unheard = sum(peer.report is None and not peer.refused for peer in others)
    return 1 + known + unheard >= quorum_size(size)


def others_wait(peers: Iterable[Peer], me: Me) -> bool:
    """A peer of ours waits for a leader that fell silent: that one may have lived on its evidence, not on ours."""
    return any(
        peer.status is PeerStatus.AGREED and peer.report is not None and peer.report.waiting_for - {me.name}
        for peer in peers
    )
