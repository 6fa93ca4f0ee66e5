"""What one node knows of itself and of each peer, and how a poll changes it (reference 6.5). Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cronstable.api import Json, PeerStatus

NOT_SEEN: Final = frozenset({PeerStatus.UNKNOWN, PeerStatus.UNREACHABLE, PeerStatus.UNTRUSTED})
"""Statuses of a peer of which there is no fresh observation."""


class Claim(StrEnum):
    """What a node says about its own leadership: nothing, that it is about to lead, or that it leads."""

    NONE = "none"
    STANDING = "standing"
    LEADING = "leading"


@dataclass(frozen=True, slots=True)
class Member:
    """One line of a node's ``members``: whom it observes, and whether it finds the same job set there."""

    node_name: str
    instance_id: str | None
    agreed: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says of itself (reference 6.2). None where an older build says nothing.

    ``waiting_for``: whom it has lost and gives time to notice (see ``candidacy``).
    ``summaries``: run summaries by job, display only; None when there are none worth showing.
    """

    node_name: str
    job_set_id: str
    scheme_version: str
    instance_id: str | None = None
    cluster_size: int | None = None
    distribution: str | None = None
    elect_leader: bool | None = None
    members: tuple[Member, ...] | None = None
    mutual_agreeing: frozenset[str] = frozenset()
    quorate_vouched: frozenset[str] = frozenset()
    ran_reboot_jobs: frozenset[str] = frozenset()
    claim: Claim = Claim.NONE
    waiting_for: frozenset[str] = frozenset()
    summaries: Mapping[str, Json] | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Me:
    """This node as its peers are told about it."""

    name: str
    instance_id: str
    job_set_id: str
    scheme_version: str
    distribution: str
    elect_leader: bool
    drift_after: int = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """A poll that was answered. ``sent``: boot seconds before the request left; ``wall``: now."""

    report: Report
    sent: float
    wall: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A poll that was not. ``untrusted``: TLS or the host name did not hold; ``refused``: nobody listens there."""

    reason: str
    sent: float
    untrusted: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """How loaded a peer said it was. ``at``: boot seconds at which the question left."""

    values: Mapping[str, float]
    at: float


@dataclass(frozen=True, slots=True)
class Peer:
    """One configured peer as last observed.

    ``report``: the fresh observation, None after a failure. ``node_name``, ``instance_id``, ``streak`` and
    ``summaries`` outlive a failure. ``is_self``: it once proved to be this node. ``sent``: boot seconds at which the
    last completed poll left, whatever came of it; ``evidence``: the same of the last one that was answered.
    ``summaries_at``: boot seconds at which the question left that they first answered, from when they count down.
    ``may_lead``: it led or stood when it was last heard of, or we elected it when we lost it; ``refused``: nobody
    listens at its address since.
    """

    host: str
    status: PeerStatus = PeerStatus.UNKNOWN
    report: Report | None = None
    node_name: str | None = None
    instance_id: str | None = None
    job_set_id: str | None = None
    is_self: bool = False
    streak: int = 0
    last_seen: float | None = None
    last_error: str | None = None
    sent: float | None = None
    evidence: float | None = None
    may_lead: bool = False
    refused: bool = False
    summaries: Mapping[str, Json] | None = None
    summaries_at: float = 0.0
    truncated: bool = False
    stats: Reading | None = None

    @property
    def fresh(self) -> bool:
        """There is a fresh observation of it."""
        return self.status not in NOT_SEEN


def observe(peer: Peer, outcome: Seen | Failed, me: Me) -> Peer:
    """``peer`` after one completed poll."""
    if isinstance(outcome, Failed):
        return _failed(peer, outcome)
    report = outcome.report
    status, streak, is_self = _judge(peer, report, me)
    return replace(
        peer,
        status=status,
        streak=streak,
        is_self=is_self,
        report=report,
        node_name=report.node_name,
        instance_id=report.instance_id,
        job_set_id=report.job_set_id,
        last_seen=outcome.wall,
        last_error=None,
        sent=outcome.sent,
        evidence=outcome.sent,
        may_lead=report.claim is not Claim.NONE,
        refused=False,
        summaries=report.summaries,
        # What is repeated (304) counts down from when it was first said.
        summaries_at=outcome.sent if report.summaries is not peer.summaries else peer.summaries_at,
        truncated=report.truncated,
    )


def _judge(peer: Peer, report: Report, me: Me) -> tuple[PeerStatus, int, bool]:
    if report.node_name == me.name:
        if report.instance_id is not None and report.instance_id != me.instance_id:
            return PeerStatus.CONFLICT, peer.streak, False
        return PeerStatus.SELF, 0, True
    if report.scheme_version != me.scheme_version:
        return PeerStatus.DRIFTED, peer.streak, False
    if report.job_set_id == me.job_set_id:
        return PeerStatus.AGREED, 0, False
    streak = peer.streak + 1
    return (PeerStatus.DRIFTED if streak >= me.drift_after else PeerStatus.SYNCING), streak, False


def _failed(peer: Peer, outcome: Failed) -> Peer:
    """The name, the instance and the streak stay: a peer that flaps must not look new each time."""
    status = PeerStatus.UNTRUSTED if outcome.untrusted else PeerStatus.UNREACHABLE
    return replace(
        peer,
        status=PeerStatus.SELF if peer.is_self else status,
        report=None,
        last_error=outcome.reason,
        sent=outcome.sent,
        refused=outcome.refused,
    )
