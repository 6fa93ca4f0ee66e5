"""Decisions in plain words. The words are for values that a node sends, which may be newer than this program."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cronstable.core.decision import Reason, Verdict

VERDICTS: Final[Mapping[str, str]] = MappingProxyType(
    {Verdict.RUN.value: "ran", Verdict.SKIP.value: "skipped", Verdict.DEFER.value: "waits"}
)

_WORDS: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.NO_ELECTION: "no cluster is configured, so this node runs everything",
        Reason.EVERY_NODE: "its clusterPolicy is EveryNode, so every node runs it",
        Reason.LEADER: "this node leads",
        Reason.OWNER: "this node owns the job",
        Reason.AVAILABLE: "its clusterPolicy is PreferLeader, and this node leads or knows of no leader",
        Reason.MANAGER_ABSENT: "the cluster backend does not run: PreferLeader jobs run then, Leader jobs do not",
        Reason.MANUAL: "somebody asked for it",
        Reason.NOT_LEADER: "another node leads",
        Reason.NOT_OWNER: "another node owns the job",
        Reason.NO_QUORUM: "this node has no fresh contact with the store, or sees too few of its peers",
        Reason.CONFLICT: "the peers disagree on names, sizes or policies",
        Reason.CONVERGING: "what this node knows of its peers was too fresh to be relied on",
        Reason.DEADLINE_PASSED: "this node had led, and could not renew its lease in time",
        Reason.STALE_VIEW: "this node doubted what it knew of its peers",
        Reason.DUE_BEFORE_TERM: "it came due before this node began to lead, so it was another node's to run",
        Reason.GATE_ERROR: "the cluster backend failed to say whether this node may; the log says more",
        Reason.CONCURRENCY_FORBID: "an earlier run still lived, and concurrencyPolicy does not allow two",
        Reason.QUEUED: "an earlier run still lives, and this one waits for it to end",
        Reason.QUEUE_FULL: "an earlier run still lived, and another one waited for it already",
        Reason.PAUSED: "the job is paused",
        Reason.DISABLED: "the job is disabled or not configured any more",
        Reason.STOPPING: "the daemon was stopping",
        Reason.LATE_RESYNC: "it was noticed too late: the daemon, the machine or its clock stood still",
        Reason.REBOOT_DEFERRED: "it is an @reboot job, and the node that is to run it is not known yet",
        Reason.REBOOT_ALREADY_RAN: "it is an @reboot job, and it ran in this cluster already",
        Reason.START_FAILED: "its process could not be started",
        Reason.CATCH_UP: "it was started late, after a change of leadership or an outage of the store",
        Reason.CATCH_UP_OFF: "it would have been a late start, and cluster.catchUp.mode is none",
        Reason.CLAIM_TAKEN: "the claim log has a decision about it already",
        Reason.CLAIMED_NOT_STARTED: "a node claimed it and ended before it said that it had started it",
        Reason.COALESCED: "several occurrences were late, and only the newest was started",
        Reason.FENCED: "the term of this node ended before its claim was written",
        Reason.LOG_FULL: "the claim log has no room",
        Reason.OUTSIDE_WINDOW: "it was too old when somebody could decide about it",
        Reason.RETRY_SETTLED: "another attempt was claimed, and is not wanted any more",
        Reason.SLOT_HELD: "another node ran it, and its concurrencyScope is cluster",
        Reason.STARTED_UNCLAIMED: "this node started it while the store did not answer",
        Reason.STARTING_DEADLINE: "it was later than startingDeadlineSeconds allows",
        Reason.STORE_UNAVAILABLE: "the store did not answer, so that it could not be claimed or looked up",
        Reason.LAST_NOT_SUCCEEDED: "its last run did not succeed, and onlyIfLastSucceeded asks for that",
    }
)

WORDS: Final[Mapping[str, str]] = MappingProxyType({reason.value: words for reason, words in _WORDS.items()})
"""By the value of the reason; a clause that says why."""


def because(reason: str) -> str:
    """The clause for ``reason``; one that this version does not know is said as it is."""
    return WORDS.get(reason, "for a reason that this version of cronstable has no words for")
