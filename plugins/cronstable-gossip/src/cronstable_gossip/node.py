"""One node of the cluster without its sockets and timers: told what happened and when, asked what to believe.

All times are boot seconds, the clock that counts suspend; wall seconds only pass through to be shown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cronstable.api import ClusterView, Json, PeerStatus, PeerView, Seconds
from cronstable_gossip import payload
from cronstable_gossip.candidacy import Candidacy, advance, doubted, hidden, may_be_quorate, silence
from cronstable_gossip.derive import (
    MOST_CANDIDATES,
    Derived,
    agreed,
    agreeing,
    attests,
    claimants,
    cluster_size,
    derive,
    members,
    owners,
    settled,
)
from cronstable_gossip.model import NOT_SEEN, Claim, Failed, Me, Peer, Reading, Report, Seen, observe

SPREAD: Final = "spread"
FASTEST: Final[Seconds] = 0.05
SLOWEST_FAST: Final[Seconds] = 0.5
"""While something is about to be settled a peer is asked ten times an interval at most, within these bounds."""
LONGEST_GAP: Final = 0.25
"""Of the interval, under spread: the longest between two questions while something is about to be settled."""
ASK_AT_ONCE: Final[Seconds] = 0.001
STATS_INTERVALS: Final = 3
CALLERS: Final = 4096
"""Instances whose last question is remembered."""


@dataclass(frozen=True, slots=True)
class Timing:
    """``interval`` and ``connectTimeout`` of the configuration, and what follows from them (DESIGN 4, the end)."""

    interval: Seconds
    timeout: Seconds

    @property
    def patience(self) -> Seconds:
        """How old evidence may be."""
        return self.interval + self.timeout

    @property
    def lag(self) -> Seconds:
        """How long the loop may stand still before the view is doubted."""
        return min(1.0, self.timeout / 4)

    @property
    def fast(self) -> Seconds:
        """Between two questions while something is about to be settled."""
        return min(self.interval, max(FASTEST, min(SLOWEST_FAST, self.interval / 10)))


@dataclass(frozen=True, slots=True)
class _Called:
    """When a process asked us last, and when it last got an answer that lists it as agreeing (boot seconds)."""

    last: float
    attested: float | None


class Node:
    """The state of one process in the cluster. Not thread-safe; nothing here waits."""

    def __init__(self, me: Me, hosts: Collection[str], timing: Timing, *, now: float) -> None:
        self._me = me
        self._timing = timing
        self.peers: tuple[Peer, ...] = tuple(Peer(host) for host in hosts)
        self.candidacy = Candidacy()
        self.generation = 0
        self._derived: tuple[int, str, Derived] | None = None
        self._view: tuple[tuple[int, int, str, bool], ClusterView] | None = None
        self._looks = 0
        self._concluded: tuple[int, str] | None = None
        self._settled = False
        self._third_round = now + timing.interval
        self._last_beat = now
        self._eldest: tuple[tuple[Peer, ...], float, float] | None = None
        self._valid_from = float("-inf")
        self._owners: frozenset[str] = frozenset()
        self._owners_since = now
        self._owners_before: tuple[frozenset[str], float] = (frozenset(), now)
        self._callers: OrderedDict[str, _Called] = OrderedDict()
        self._unsettled_since: list[float | None] = [None] * len(self.peers)
        self._at_issue: list[frozenset[str]] = [frozenset()] * len(self.peers)
        self._told: list[frozenset[str]] = [frozenset()] * len(self.peers)
        self._ran: tuple[str, set[str]] = ("", set())

    # -- who we are ---------------------------------------------------------------------------------------------------

    @property
    def me(self) -> Me:
        """This node with the job set of the last ``adopt``."""
        return self._me

    def adopt(self, job_set_id: str) -> None:
        """The live job set; a reload here changes who agrees with us at once."""
        if job_set_id != self._me.job_set_id:
            self._me = replace(self._me, job_set_id=job_set_id, scheme_version=scheme(job_set_id))
            self._touch()

    def derived(self) -> Derived:
        """The sets of this view."""
        if self._derived is None or self._derived[:2] != (self.generation, self._me.job_set_id):
            self._derived = (self.generation, self._me.job_set_id, derive(self.peers, self._me))
        return self._derived[2]

    def _touch(self) -> None:
        self.generation += 1

    # -- what happens -------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Peers can ask us from now on, and each of them does within an interval (reference 6.9)."""
        self._third_round = now + self._timing.interval
        self.beat(now)

    def polled(self, index: int, outcome: Seen | Failed, now: float) -> bool:
        """A poll of peer ``index`` is over; call ``settle`` next. True when everybody else has to be asked at once.

        What was sent before a doubt began proves nothing. A node that leads and loses a peer asks the others
        before it acts again: it may be the one that was cut off, and whoever it lost counts the seconds from the last
        question that came through.
        """
        if not self.counts(outcome.sent):
            return False
        peers = list(self.peers)
        before = peers[index]
        peers[index] = observe(before, outcome, self._me)
        if isinstance(outcome, Failed) and before.fresh and before.node_name == self.derived().elected:
            peers[index] = replace(peers[index], may_lead=True)
        self.peers = tuple(peers)
        self._looks += 1
        if _same_news(before, peers[index]):
            return False
        self._touch()
        if isinstance(outcome, Seen):
            self._learn(outcome.report, peers[index])
            return False
        if before.status is not PeerStatus.AGREED or self.candidacy.claim is Claim.NONE:
            return False
        self._doubt(now)
        return True

    def counts(self, sent: float) -> bool:
        """What becomes of a question that left then is evidence: it left after the last doubt began."""
        return sent >= self._valid_from

    def show(self, index: int, reading: Reading | None) -> None:
        """The node stats that came with a peer's answer, None when it shares none; display only."""
        if self.peers[index].stats != reading:
            peers = list(self.peers)
            peers[index] = replace(peers[index], stats=reading)
            self.peers = tuple(peers)
            self._looks += 1

    def forget_old_stats(self, now: float) -> None:
        """What was read three intervals ago says nothing of now (reference 6.4)."""
        for index, peer in enumerate(self.peers):
            if peer.stats is not None and now - peer.stats.at > STATS_INTERVALS * self._timing.interval:
                self.show(index, None)

    def called(self, instance_id: str, now: float) -> bool:
        """A process asked us; True when it did so for the first time."""
        before = self._callers.pop(instance_id, None)
        listed = any(
            peer.instance_id == instance_id and agreed(peer, self._me, self.derived().size) for peer in self.peers
        )
        attested = now if listed else before.attested if before is not None else None
        self._callers[instance_id] = _Called(now, attested)
        while len(self._callers) > CALLERS:
            self._callers.popitem(last=False)
        return before is None

    def knows(self, instance_id: str) -> bool:
        """There is a fresh observation of this process."""
        return any(peer.fresh and peer.instance_id == instance_id for peer in self.peers)

    def beat(self, now: float) -> bool:
        """The loop runs; True when it did not for too long, so that everything known has to be asked again."""
        stood, self._last_beat = now - self._last_beat, now
        if stood <= self._timing.lag:
            return False
        self._doubt(now)
        if stood > self._timing.timeout:
            # Long enough for others to have given our jobs away and taken them back.
            self._owners_since = now
            self._owners_before = (frozenset(), now)
        return True

    def _doubt(self, now: float) -> None:
        self._valid_from = now
        self.candidacy = doubted(self.candidacy, now)
        self._touch()

    def settle(self, now: float) -> Collection[int]:
        """Draw the conclusions: candidacy, owners, the end of the convergence hold; nothing to do without news.

        Peers that are to be asked again soon for what has become known, by index: their pollers may be asleep until an
        interval is over.
        """
        news = (self.generation, self._me.job_set_id)
        if self._concluded == news and self._settled and self.candidacy.claim is not Claim.STANDING:
            return ()
        soon = self._conclude(now)
        self._concluded = (self.generation, self._me.job_set_id)
        return soon

    def _conclude(self, now: float) -> Collection[int]:
        view = self.derived()
        before = self.candidacy
        elects = self._me.elect_leader and self._me.distribution != SPREAD
        self.candidacy = advance(
            before,
            self.peers,
            self._me,
            elected=elects and view.elected == self._me.name,
            silent_until=max(self._silence().values(), default=float("-inf")),
            detour=2 * self._timing.interval,
            now=now,
        )
        if self.candidacy != before:
            self._touch()
        found = owners(view, self._me)
        if found != self._owners:
            self._owners_before = (self._owners, self._owners_since)
            self._owners, self._owners_since = found, now
        if not self._settled and settled(self.peers, self._me, self._third_round):
            self._settled = True
            self._touch()
        return self._note_unsettled(now)

    def _silence(self) -> Mapping[str, float]:
        return silence(self.peers, self._heard, self._timing.patience)

    def _heard(self, peer: Peer) -> float | None:
        """When a peer that we have lost last asked us something whose answer it may lead on.

        An answer that does not list it takes our voice from it, and it may go on asking for as long as it lives. But it
        need not have been ours that it leads on.
        """
        called = self._callers.get(peer.instance_id) if peer.instance_id is not None else None
        if called is None:
            return None
        return called.last if may_be_quorate(peer, self.peers, self.derived().size) else called.attested

    def waiting_for(self, now: float) -> frozenset[str]:
        """Whom we have lost and give time to notice."""
        return frozenset(name for name, until in self._silence().items() if until > now)

    def _note_unsettled(self, now: float) -> Collection[int]:
        size = cluster_size(self.peers)
        mutual = {peer.host for peer in agreeing(self.peers, self._me, size)}
        elected = self.derived().elected
        lost = frozenset(hidden(self.peers)) if self._wants or elected in hidden(self.peers) else frozenset()
        new: list[int] = []
        for i, peer in enumerate(self.peers):
            found, told = self._unsettled(peer, mutual, lost), self._named_by(peer)
            before, told_before = self._at_issue[i], self._told[i]
            self._at_issue[i], self._told[i] = found, told
            if not found:
                self._unsettled_since[i] = None
            elif not found <= before or told != told_before:
                # What it says now may be followed by more, as word goes from one to the next.
                self._unsettled_since[i] = now
                new.append(i)
        return new

    def _named_by(self, peer: Peer) -> frozenset[str]:
        """Whom it may give jobs to under spread; nobody in a cluster that does otherwise."""
        spread = self._me.distribution == SPREAD
        return _named(peer.report) if spread and peer.report is not None else frozenset()

    def _unsettled(self, peer: Peer, mutual: Collection[str], lost: frozenset[str]) -> frozenset[str]:
        """Asking this peer again soon may settle something: about whom, and nobody when it may not.

        It stands in our way, it has yet to notice us, or it may still count on a leader that we have lost.
        """
        me = frozenset({self._me.name})
        if peer.is_self:
            return frozenset()
        report = peer.report
        if self._wants and (peer.may_lead and not peer.fresh and not peer.refused):
            return me
        if report is None:
            return frozenset()
        blocks = report.claim is not Claim.NONE or bool(report.waiting_for - me)
        if self._wants and (blocks or self._unasked(peer.sent)):
            return me
        if peer.host not in mutual and not attests(report, self._me):
            return me
        spread = self._me.distribution == SPREAD and peer.host in mutual
        return (lost & report.mutual_agreeing) | (self._miscounted(report) if spread else frozenset())

    def _miscounted(self, report: Report) -> frozenset[str]:
        """Under spread it is about to give jobs to other owners than we do, and the sooner we hear of it, the better.

        It still names somebody whom we have lost, and so we defer to that one; or it does not count itself among the
        owners yet, and so we run what it is about to run.
        """
        found = self.derived()
        named = _named(report)
        lost = {peer.node_name for peer in self.peers if not peer.fresh and not peer.is_self}
        uncounted = 1 + len(report.mutual_agreeing) < found.quorum <= len(found.live)
        return (named & lost) | ({report.node_name} if uncounted else set())

    @property
    def _wants(self) -> bool:
        """This node is elected, and does not lead yet."""
        single = self._me.elect_leader and self._me.distribution != SPREAD
        return single and self.candidacy.claim is not Claim.LEADING and self.derived().elected == self._me.name

    def _unasked(self, sent: float | None) -> bool:
        return self.candidacy.claim is Claim.STANDING and (sent is None or sent <= self.candidacy.asked)

    # -- what to believe ----------------------------------------------------------------------------------------------

    def stale(self, now: float) -> bool:
        """This view is doubted: the loop stood still and not everybody was asked again, or evidence is too old."""
        if now - self._last_beat > self._timing.lag:
            return True
        sent, evidence = self._oldest()
        return sent < self._valid_from or now - evidence > self._timing.patience

    def _oldest(self) -> tuple[float, float]:
        """When the least recent questions left, the last to each peer and the last that it answered.

        Found once for what is known of the peers: each question and each answer looks at it several times.
        """
        if self._eldest is None or self._eldest[0] is not self.peers:
            known = [peer for peer in self.peers if peer.fresh and not peer.is_self]
            sent = min((peer.sent or float("-inf") for peer in known), default=float("inf"))
            evidence = min((peer.evidence for peer in known if peer.evidence is not None), default=float("inf"))
            self._eldest = (self.peers, sent, evidence)
        return self._eldest[1:]

    def asked_since(self, moment: float) -> bool:
        """Every peer that there was news of has been asked again since."""
        return all(not peer.fresh or peer.is_self or (peer.sent or 0.0) >= moment for peer in self.peers)

    def wait(self, index: int, sent: float, now: float, chance: float) -> Seconds:
        """How long until peer ``index`` is asked again, whose last question left at ``sent``.

        Start to start; ``chance`` in [0, 1) makes it up to a tenth earlier, never later.
        """
        if self.peers[index].fresh and self._unasked(sent):
            return ASK_AT_ONCE
        pause = self._fast_pause(index, sent, now)
        if pause is None:
            pause = self._timing.interval * (1 - chance / 10)
        return max(0.0, sent + pause - now)

    def _fast_pause(self, index: int, sent: float, now: float) -> Seconds | None:
        """Until the next question to a peer while something is about to be settled with it; None when nothing is.

        Under spread a link that is broken for good leaves everybody unsettled for good, so the pause grows. Whoever has
        ended is missed by everybody an interval after the first who did, and then there is one more question.
        """
        timing, since = self._timing, self._unsettled_since[index]
        if since is None:
            return None
        if self._me.distribution != SPREAD:
            return timing.fast if now - since < timing.interval + timing.patience else None
        gap, age = LONGEST_GAP * timing.interval, max(0.0, sent - since)
        return min(max(timing.fast, min(age, gap)), timing.interval) if age < timing.interval + gap else None

    def view(self, now: float) -> ClusterView:
        """The snapshot of this instant; the same object while nothing changes."""
        stale = self.stale(now)
        self.forget_old_stats(now)
        key = (self.generation, self._looks, self._me.job_set_id, stale)
        if self._view is None or self._view[0] != key:
            self._view = (key, self._make_view(stale=stale))
        return self._view[1]

    def idle_view(self) -> ClusterView:
        """The view of a node that does not take part: before its first round, and after its end."""
        me = self._me
        return ClusterView(
            backend="gossip",
            node_name=me.name,
            job_set_id=me.job_set_id,
            cluster_size=self.derived().size,
            quorum=self.derived().quorum,
            elect_leader=me.elect_leader,
            distribution=me.distribution,
            settled=False,
            peers=tuple(_shown(peer) for peer in self.peers),
        )

    def _make_view(self, *, stale: bool) -> ClusterView:
        me, found = self._me, self.derived()
        single = me.elect_leader and me.distribution != SPREAD
        leads = single and not stale and self.candidacy.claim is Claim.LEADING and found.elected == me.name
        free = self._settled
        return ClusterView(
            backend="gossip",
            node_name=me.name,
            job_set_id=me.job_set_id,
            cluster_size=found.size,
            quorum=found.quorum,
            elect_leader=me.elect_leader,
            distribution=me.distribution,
            quorate=found.quorate and not stale,
            leader=None if stale or not single else self._leader(found, leads=leads),
            is_leader=leads,
            available=free and min(found.available) == me.name and not any(t[0] == me.name for t in found.twins),
            settled=free,
            conflict_names=found.conflict_names,
            conflicting_sizes=found.conflicting_sizes,
            conflicting_policies=found.conflicting_policies,
            candidates_truncated=found.truncated,
            peers=tuple(_shown(peer) for peer in self.peers),
            owners=() if stale else tuple(sorted(owners(found, me))),
            available_owners=tuple(sorted(found.available)),
            stale=stale,
            since=self.candidacy.since if single else self._owners_since,
            owners_before=() if single else tuple(sorted(self._owners_before[0])),
            since_before=None if single else self._owners_before[1],
            twins=found.twins,
        )

    def _leader(self, found: Derived, *, leads: bool) -> str | None:
        if leads or found.elected != self._me.name:
            return found.elected
        leading = [p.node_name for p in claimants(self.peers, self._me) if p.report and p.report.claim is Claim.LEADING]
        return min((name for name in leading if name is not None), default=None)

    def report(self, now: float, summaries: Mapping[str, Json] | None, *, truncated: bool = False) -> Report:
        """What peers are told.

        A node that doubts itself vouches for nobody and is no candidate: a leader elsewhere must not yield to it. Under
        spread there is nobody to yield, and all would take all jobs if those who doubt had no candidates.
        """
        me, found = self._me, self.derived()
        silent = me.distribution != SPREAD and self.stale(now)
        return Report(
            node_name=me.name,
            job_set_id=me.job_set_id,
            scheme_version=me.scheme_version,
            instance_id=me.instance_id,
            cluster_size=found.size,
            distribution=me.distribution,
            elect_leader=me.elect_leader,
            members=members(self.peers, me),
            mutual_agreeing=frozenset() if silent else found.live - {me.name},
            quorate_vouched=frozenset() if silent else frozenset(found.vouched[:MOST_CANDIDATES]),
            ran_reboot_jobs=frozenset(payload.advertised_reboot_names(self.ran())),
            claim=self.candidacy.claim,
            waiting_for=self.waiting_for(now),
            summaries=summaries,
            truncated=truncated,
        )

    # -- @reboot ------------------------------------------------------------------------------------------------------

    def ran(self) -> set[str]:
        """The @reboot jobs that ran in this cluster under the live job set."""
        if self._ran[0] != self._me.job_set_id:
            self._ran = (self._me.job_set_id, set())
        return self._ran[1]

    def reboot_ran(self, job: str) -> bool | None:
        """True: it ran. None: not everybody has been asked yet."""
        if job in self.ran():
            return True
        return False if self._settled else None

    def mark_ran(self, job_set_id: str, names: Collection[str]) -> bool:
        """Remember runs of ``job_set_id``; False when that is not ours, or all were known."""
        if job_set_id != self._me.job_set_id:
            return False
        known = self.ran()
        new = set(names) - known
        room = payload.MOST_REBOOT_NAMES - len(known)
        known.update(sorted(new)[: max(0, room)])
        if new:
            self._touch()
        return bool(new)

    def _learn(self, report: Report, peer: Peer) -> None:
        if peer.status not in NOT_SEEN and report.job_set_id == self._me.job_set_id:
            self.mark_ran(report.job_set_id, report.ran_reboot_jobs)


def scheme(job_set_id: str) -> str:
    """The version prefix of a job-set id; ids of different schemes cannot be compared."""
    prefix, colon, _ = job_set_id.partition(":")
    return prefix if colon and prefix else "v1"


def _shown(peer: Peer) -> PeerView:
    return PeerView(
        host=peer.host,
        status=peer.status,
        node_name=peer.node_name,
        job_set_id=peer.job_set_id,
        last_seen=peer.last_seen,
        last_error=peer.last_error,
        mismatch_streak=peer.streak,
        node_stats=None if peer.stats is None else peer.stats.values,
    )


def _named(report: Report) -> frozenset[str]:
    return report.mutual_agreeing | report.quorate_vouched


def _same_news(before: Peer, after: Peer) -> bool:
    """The peer said what it said before, so that only the time of its evidence is new."""
    return (
        after.report is not None
        and after.report is before.report
        and (after.status, after.streak, after.is_self) == (before.status, before.streak, before.is_self)
    )
