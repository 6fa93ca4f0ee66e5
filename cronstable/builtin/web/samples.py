"""The samples of GET /metrics, from a snapshot: pure functions (reference 8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from cronstable.api import (
    Histogram,
    HostSnapshot,
    Job,
    JobTally,
    Lateness,
    Outcome,
    PeerStatus,
    Resources,
    RunRecord,
)
from cronstable.builtin.web import families as f
from cronstable.builtin.web.families import Family

Sample: TypeAlias = tuple[Family, tuple[str, ...], float | Histogram]
"""A family, the values of its labels, and what was measured."""

DROPS: Final = ("run-record", "checkpoint", "retry", "reboot-marker", "inflight", "counters", "manifest")
SPREAD: Final = "spread"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """All that the samples of one job are made of: while it is equal, they are."""

    job: Job
    tally: JobTally | None
    running: int
    paused: bool
    due: int | None
    last: RunRecord | None
    late: tuple[Lateness, ...]
    bounds: tuple[float, ...]


def facts_of(snapshot: HostSnapshot) -> Iterator[JobFacts]:
    """The facts of every configured job, in order."""
    for name, job in snapshot.jobs.items():
        last = snapshot.last_runs.get(name)
        yield JobFacts(
            job,
            snapshot.tally.jobs.get(name),
            len(snapshot.live.get(name, ())),
            name in snapshot.paused,
            snapshot.next_fires.get(name),
            None if last is None else last.run,
            snapshot.late.get(name, ()),
            snapshot.tally.bounds,
        )


def job_samples(facts: JobFacts) -> Iterator[Sample]:
    """The samples of one job, families in the order of ``families.OF_JOBS``."""
    job, name = facts.job, (facts.job.name,)
    tally = facts.tally or JobTally()
    for status in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.CANCELLED, Outcome.SKIPPED, Outcome.UNKNOWN):
        count: int = getattr(tally, status.value)
        if count or status is not Outcome.UNKNOWN:
            yield f.RUNS, (job.name, status.value), count
    yield f.DURATION, name, tally.duration or Histogram.empty(facts.bounds)
    yield f.RETRIES, name, tally.retries
    yield f.PERMANENT, name, tally.permanent_failures
    yield f.START_FAILURES, name, tally.start_failures
    if tally.last_success is not None:
        yield f.LAST_SUCCESS, name, tally.last_success
    if tally.last_failure is not None:
        yield f.LAST_FAILURE, name, tally.last_failure
    yield f.JOB_INFO, (job.name, job.schedule.text, job.options.cluster_policy.value), 1
    yield f.ENABLED, name, job.options.enabled
    yield f.RUNNING, name, facts.running
    yield f.PAUSED, name, facts.paused
    if facts.due is not None:
        yield f.NEXT_RUN, name, facts.due
    yield from _last_run(facts)
    late = {one.check for one in facts.late}
    for check in _checks(job):
        yield f.LATE, (job.name, check), check in late
    for check in _checks(job):
        yield f.BREACHES, (job.name, check), tally.breaches.get(check, 0)
    if tally.peak_rss:
        yield f.CPU, (job.name, "user"), tally.cpu_user
        yield f.CPU, (job.name, "system"), tally.cpu_system
        yield f.PEAK_RSS, name, tally.peak_rss
    yield from _last_resources(job.name, facts.last.resources if facts.last is not None else None)


def _checks(job: Job) -> list[str]:
    """The limits that the job has, under the names that reports call them by: without the unit."""
    limits = job.options.raw.get("sla")
    given = limits.items() if isinstance(limits, dict) else ()
    return [key.removesuffix("Seconds") for key, value in given if value is not None]


def _last_run(facts: JobFacts) -> Iterator[Sample]:
    last, name = facts.last, (facts.job.name,)
    if last is None:
        return
    yield f.LAST_RUN, name, last.finished_at
    if last.duration is not None:
        yield f.LAST_DURATION, name, last.duration
    if last.exit_code is not None:
        yield f.LAST_EXIT, name, last.exit_code
    yield f.LAST_OK, name, last.outcome is Outcome.SUCCESS


def _last_resources(job: str, used: Resources | None) -> Iterator[Sample]:
    if used is not None:
        yield f.LAST_CPU, (job,), used.cpu
        yield f.LAST_RSS, (job,), used.max_rss


def daemon_samples(snapshot: HostSnapshot) -> Iterator[Sample]:
    """The daemon and its configuration."""
    enabled = sum(1 for job in snapshot.jobs.values() if job.options.enabled)
    yield f.INFO, (snapshot.version,), 1
    yield f.START_TIME, (), snapshot.started_at
    yield f.JOB_SET, (snapshot.job_set_id,), 1
    yield f.JOBS, ("enabled",), enabled
    yield f.JOBS, ("disabled",), len(snapshot.jobs) - enabled
    yield f.RELOAD_OK, (), snapshot.reload.ok
    yield f.RELOAD_AT, (), snapshot.reload.last_success


def work_samples(snapshot: HostSnapshot) -> Iterator[Sample]:
    """What the daemon decided, claimed and told, and how late it was."""
    tally = snapshot.tally
    for (verdict, reason, final), count in sorted(tally.decisions.items()):
        yield f.DECISIONS, (verdict, reason, "true" if final else "false"), count
    yield f.DECISION_DELAY, (), tally.decision_delay
    yield f.CATCH_UPS, (), tally.catch_ups
    for answer, count in sorted(tally.claims.items()):
        yield f.CLAIMS, (answer,), count
    yield f.CLAIM_DELAY, (), tally.claim_delay
    yield f.LOOP_LAG, (), tally.loop_lag[0]
    yield f.LOOP_LAG_MAX, (), tally.loop_lag[1]
    for notifier, told in sorted(tally.notifiers.items()):
        for result, count in (("sent", told.sent), ("failed", told.failed), ("dropped", told.dropped)):
            yield f.MESSAGES, (notifier, result), count


def web_samples(snapshot: HostSnapshot, streams: int, own: Mapping[tuple[str, str], float]) -> Iterator[Sample]:
    """This service, and the certificates of all; ``own``: use and file of its own to the end, in wall seconds."""
    yield f.STREAMS, (), streams
    for labels, ends in {**snapshot.certificates, **own}.items():
        yield f.CERTIFICATE, labels, ends


def state_samples(snapshot: HostSnapshot) -> Iterator[Sample]:
    """The durable state, where there is a section for it."""
    state = snapshot.state
    if state is None:
        return
    yield f.STATE_INFO, (state.backend, state.info.topology.value if state.info is not None else "unknown"), 1
    for op, one in sorted(state.operations.items()):
        yield f.STATE_OPS, (op,), one.count
    for op, one in sorted(state.operations.items()):
        yield f.STATE_ERRORS, (op,), one.errors
    for op, one in sorted(state.operations.items()):
        yield f.STATE_SECONDS, (op,), one.seconds
    yield f.STATE_THROTTLED, (), state.throttled
    yield f.STATE_WAITED, (), state.throttle_wait
    if state.locks is not None:
        yield f.STATE_LOCKS, (), state.locks.acquisitions
        yield f.STATE_LOCK_WAIT, (), state.locks.waited
    for kind in dict.fromkeys((*DROPS, *state.dropped)):
        yield f.STATE_DROPPED, (kind,), state.dropped.get(kind, 0)
    yield f.STATE_CAPACITY, (), state.workers
    yield f.STATE_INFLIGHT, (), state.inflight
    yield f.STATE_PEAK, (), state.peak


def cluster_samples(snapshot: HostSnapshot) -> Iterator[Sample]:
    """What this node believes about its cluster."""
    view = snapshot.cluster
    yield f.CLUSTER, (), view is not None
    if view is not None:
        spread = view.distribution == SPREAD
        yield f.CLUSTER_INFO, (view.backend, view.node_name, view.distribution), 1
        yield f.CLUSTER_SIZE, (), view.cluster_size
        yield f.QUORUM, (), view.quorum
        yield f.QUORATE, (), view.quorate
        yield f.IS_LEADER, (), view.is_leader and not spread
        if view.leader is not None and not spread:
            yield f.LEADER, (view.leader,), 1
        yield f.CONFLICT, ("nodename",), bool(view.conflict_names)
        yield f.CONFLICT, ("size",), bool(view.conflicting_sizes)
        yield f.CONFLICT, ("policy",), bool(view.conflicting_policies)
        if view.lease is None:
            for status in PeerStatus:
                yield f.PEERS, (status.value,), sum(1 for peer in view.peers if peer.status is status)
    if snapshot.election_configured:
        yield f.LEADER_CHANGES, (), snapshot.tally.leader_transitions
        yield f.QUORUM_CHANGES, (), snapshot.tally.quorum_transitions
