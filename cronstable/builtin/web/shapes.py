"""The JSON documents of the API, from a snapshot: pure functions (reference 7.2 to 7.4)."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from cronstable.api import (
    ClusterPolicy,
    ClusterView,
    Decided,
    DecisionRecord,
    Event,
    FleetReport,
    HostSnapshot,
    Job,
    Json,
    Lateness,
    LeaderChanged,
    LeaseView,
    Outcome,
    Pause,
    PeerView,
    QuorumChanged,
    Reloaded,
    Resources,
    RunFinished,
    RunKey,
    RunRecord,
    RunStarted,
    Tally,
    describe,
)

SPREAD = "spread"


def dumps(value: Json) -> bytes:
    """Compact JSON as UTF-8. Text that is not valid Unicode (undecodable output) is written as escapes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def iso(wall: float | None) -> str | None:
    """Wall seconds as ISO 8601 in UTC with its offset; None stays None.

    None too for what no calendar holds: the expiry in a lease comes from a file that anybody may have edited.
    """
    try:
        return None if wall is None else datetime.fromtimestamp(wall, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def countdown(snapshot: HostSnapshot, name: str, wall: float) -> float | None:
    """Seconds from ``wall`` to the next occurrence (negative when it is due and not started yet), None for never."""
    due = snapshot.next_fires.get(name)
    return None if due is None else round(due - wall, 6)


def never_fires(snapshot: HostSnapshot, job: Job) -> bool:
    """True when no occurrence lies ahead of an enabled job with a time schedule, or of a disabled one's schedule."""
    if job.schedule.reboot:
        return False
    if job.name in snapshot.next_fires:
        return snapshot.next_fires[job.name] is None
    return job.schedule.never_fires


def run_entry(record: RunRecord) -> dict[str, Json]:
    """One finished run or skip."""
    return {
        "outcome": record.outcome.value,
        "exit_code": record.exit_code,
        "started_at": iso(record.started_at),
        "finished_at": iso(record.finished_at),
        "duration": _seconds(record.duration),
        "fail_reason": record.fail_reason,
        "skip_reason": record.skip_reason,
        "resources": resources_entry(record.resources),
        "ranAt": iso(record.finished_at),
    }


def resources_entry(used: Resources | None) -> Json:
    """What a run used, null when nothing was sampled."""
    if used is None:
        return None
    return {
        "cpu_user_seconds": _seconds(used.cpu_user),
        "cpu_system_seconds": _seconds(used.cpu_system),
        "cpu_total_seconds": _seconds(used.cpu),
        "max_rss_bytes": used.max_rss,
        "samples": used.taken,
    }


def running_resources(running: Sequence[Resources]) -> Json:
    """What the living runs of a job use now, together."""
    return {
        "cpu_percent": _seconds(sum(used.cpu_percent for used in running)),
        "cpu_seconds": _seconds(sum(used.cpu for used in running)),
        "rss_bytes": sum(used.rss for used in running),
        "instances": len(running),
    }


def runs_document(name: str, records: Sequence[RunRecord], node: str) -> dict[str, Json]:
    """GET /jobs/{name}/runs: newest first, with figures over those runs; of ``node`` where a record does not say."""
    return {
        "name": name,
        "runs": [{**run_entry(r), **_which(r), "node": r.node or node} for r in reversed(records)],
        "stats": stats_of(records),
    }


def _which(record: RunRecord) -> dict[str, Json]:
    """Which attempt at which occurrence a row is about; of a skip there is no more than its scheduled time."""
    if record.key.run_id:
        return _key(record.key)
    return {"run_id": None, "scheduled_at": iso(record.key.scheduled_at), "attempt": None, "trigger": None}


def decisions_body(name: str, records: Sequence[DecisionRecord]) -> bytes:
    """GET /jobs/{name}/decisions, in the order given.

    Entry by entry: one call of the encoder for ten thousand of them would hold every other thread up until it is done.
    """
    return b'{"job":%b,"decisions":[%b]}' % (dumps(name), b",".join(dumps(decision_entry(r)) for r in records))


def decision_entry(record: DecisionRecord) -> dict[str, Json]:
    """Why a job ran, was skipped or waits, once. JSON has no infinity: such a figure is sent as text."""
    decision = record.decision
    return {
        "node": record.node,
        "scheduled_at": iso(record.scheduled_at),
        "decided_at": iso(record.decided_at),
        "verdict": decision.verdict.value,
        "reason": decision.reason.value,
        "evidence": {
            name: str(fact) if isinstance(fact, float) and not math.isfinite(fact) else fact
            for name, fact in decision.evidence.items()
        },
        "run_id": record.run_id,
        "provisional": record.provisional,
    }


def job_parts(snapshot: HostSnapshot, job: Job, *, words: bool = True) -> tuple[dict[str, Json], dict[str, Json]]:
    """What a job's entry says before and after ``scheduled_in``, the only field that changes all the time.

    ``words``: with its schedule in words, which are a fifth of most entries.
    """
    options = job.options
    live = snapshot.live.get(job.name, ())
    history = snapshot.history.get(job.name, ())
    paused = snapshot.paused.get(job.name)
    before: dict[str, Json] = {
        "name": job.name,
        "enabled": options.enabled,
        "schedule": job.schedule.text,
        **({"schedule_words": describe(job.schedule)} if words else {}),
        "command": job.command if isinstance(job.command, str) else shlex.join(job.command),
        "captureStdout": options.capture_stdout,
        "captureStderr": options.capture_stderr,
        "utc": options.utc,
        "timezone": options.timezone or ("UTC" if options.utc else None),
        "running": bool(live),
        "pids": [run.pid for run in live],
    }
    after: dict[str, Json] = {
        "never_fires": never_fires(snapshot, job),
        "schedule_findings": schedule_findings(job),
        "last_run": run_entry(history[-1]) if history else None,
        "failing": failing(snapshot, job),
        "history": [{"outcome": r.outcome.value, "duration": _seconds(r.duration)} for r in history],
        "paused": None if paused is None else pause_entry(paused),
        **_conditional(snapshot, job),
    }
    return before, after


def pause_entry(pause: Pause) -> dict[str, Json]:
    """A pause: since when and until when, and who asked for it."""
    return {
        "since": iso(pause.since),
        "until": iso(pause.until),
        "note": pause.note,
        "by": pause.by,
        "channel": pause.channel,
    }


def event_data(event: Event) -> dict[str, Json]:
    """What GET /events says of an event."""
    match event:
        case RunStarted(run):
            return {"job": run.key.job, **_key(run.key), "pid": run.pid, "started_at": iso(run.started_at)}
        case RunFinished(record):
            return {"job": record.key.job, **_which(record), **run_entry(record)}
        case Decided(decided):
            return {"job": decided.job, **decision_entry(decided)}
        case LeaderChanged():
            who: dict[str, Json] = {"node": event.node, "is_leader": event.is_leader, "leader": event.leader}
            return {**who, "reason": event.reason, "at": iso(event.at)}
        case QuorumChanged():
            return {"node": event.node, "quorate": event.quorate, "reason": event.reason, "at": iso(event.at)}
        case Reloaded():
            return {"ok": event.ok, "error": event.error, "job_set_id": event.job_set_id, "at": iso(event.at)}


def _key(key: RunKey) -> dict[str, Json]:
    return {
        "run_id": key.run_id,
        "scheduled_at": iso(key.scheduled_at),
        "attempt": key.attempt,
        "trigger": key.trigger.value,
    }


def job_entry(snapshot: HostSnapshot, job: Job, wall: float) -> dict[str, Json]:
    """One entry of GET /jobs (reference 7.3)."""
    before, after = job_parts(snapshot, job)
    return {**before, "scheduled_in": countdown(snapshot, job.name, wall), **after}


def status_entries(snapshot: HostSnapshot, wall: float) -> list[dict[str, Json]]:
    """GET /status as JSON."""
    entries: list[dict[str, Json]] = []
    for job in snapshot.jobs.values():
        entry: dict[str, Json] = {"job": job.name}
        if live := snapshot.live.get(job.name):
            entry |= {"status": "running", "pid": [run.pid for run in live]}
        elif not job.options.enabled:
            entry["status"] = "disabled"
        elif job.schedule.reboot:
            entry |= {"status": "scheduled", "scheduled_in": "@reboot"}
        else:
            entry |= {"status": "scheduled", "scheduled_in": countdown(snapshot, job.name, wall)}
            if never_fires(snapshot, job):
                entry["never_fires"] = True
        entries.append(entry)
    return entries


def status_text(entries: Iterable[dict[str, Json]]) -> str:
    """GET /status as lines, one a job; a line break in a name is shown escaped."""
    return "\n".join(f"{_one_line(str(entry['job']))}: {_status_words(entry)}" for entry in entries)


def summary(snapshot: HostSnapshot, wall: float) -> dict[str, Json]:
    """GET /summary."""
    jobs = snapshot.jobs.values()
    enabled = [job for job in jobs if job.options.enabled]
    due = [(t, job.name) for job in enabled if (t := snapshot.next_fires.get(job.name)) is not None]
    soonest = min(due, default=None, key=lambda pair: pair[0])
    return {
        "version": snapshot.version,
        "node_name": snapshot.node_name,
        "generated_at": iso(wall),
        "jobs": {
            "total": len(jobs),
            "enabled": len(enabled),
            "disabled": len(jobs) - len(enabled),
            "running": sum(1 for job in jobs if snapshot.live.get(job.name)),
            "paused": sum(1 for job in jobs if job.name in snapshot.paused),
            "failing": sum(1 for job in enabled if failing(snapshot, job)),
            "never_fires": sum(1 for job in enabled if never_fires(snapshot, job)),
        },
        "next_fire": None
        if soonest is None
        else {"job": soonest[1], "in": round(soonest[0] - wall, 6), "at": iso(soonest[0])},
        "reload": {
            "ok": snapshot.reload.ok,
            "at": iso(snapshot.reload.at),
            "last_success": iso(snapshot.reload.last_success),
            "error": snapshot.reload.error,
        },
        "cluster": _cluster_summary(snapshot),
    }


def cluster_document(snapshot: HostSnapshot) -> dict[str, Json]:
    """GET /cluster (reference 7.4): no section, a section that does not work, or the view."""
    view = snapshot.cluster
    if not snapshot.cluster_configured:
        return {"enabled": False, "peers": []}
    if view is None:
        return {
            "enabled": True,
            "error": snapshot.cluster_error or "the cluster backend has not started yet",
            "peers": [],
        }
    lease = view.lease is not None
    document: dict[str, Json] = {
        "enabled": True,
        "backend": view.backend,
        "node_name": view.node_name,
        "job_set_id": view.job_set_id,
        "cluster_size": view.cluster_size,
        "quorum": view.quorum,
        "elect_leader": view.elect_leader,
        "distribution": view.distribution,
        "conflict": view.conflict,
        "conflict_names": list(view.conflict_names),
        "size_conflict": bool(view.conflicting_sizes),
        "conflicting_sizes": list(view.conflicting_sizes),
        "policy_conflict": bool(view.conflicting_policies),
        "conflicting_policies": list(view.conflicting_policies),
        "candidates_truncated": view.candidates_truncated,
        "quorate": view.quorate,
        "leader": None if view.distribution == SPREAD else view.leader,
        "is_leader": view.is_leader and view.distribution != SPREAD,
        "peers": [] if lease else [peer_entry(peer) for peer in view.peers],
    }
    if view.lease is not None:
        document["lease"] = lease_entry(view.lease)
        document["claims"] = claims_entry(snapshot.tally)
        document["fleet"] = snapshot.fleet is not None
    else:
        document["node_stats"] = _own_stats(snapshot.fleet)
    return document


def _own_stats(fleet: FleetReport | None) -> Json:
    """How loaded this node tells its peers that it is; None when it does not tell them."""
    own = next((node for node in fleet.nodes if node.get("self")), None) if fleet is not None else None
    return None if own is None else own.get("node_stats")


def claims_entry(tally: Tally) -> dict[str, Json]:
    """How this node's writes to the claim log were answered since its start, and what it started late."""
    won = tally.claims.get("won", 0)
    return {"won": won, "other": sum(tally.claims.values()) - won, "catch_ups": tally.catch_ups}


def fleet_document(snapshot: HostSnapshot) -> dict[str, Json]:
    """GET /fleet (reference 7.5): the runs of every node, where nodes tell each other; display only."""
    view, fleet = snapshot.cluster, snapshot.fleet
    if fleet is None:
        return {"enabled": False, "nodes": []}
    # Nodes also tell each other when the election beside them could not start.
    return {
        "enabled": True,
        "backend": fleet.source if view is None else view.backend,
        "node_name": snapshot.node_name if view is None else view.node_name,
        "distribution": "single-leader" if view is None else view.distribution,
        "elect_leader": snapshot.election_configured if view is None else view.elect_leader,
        "interval": fleet.interval,
        "nodes": [dict(node) for node in fleet.nodes],
    }


def lease_entry(lease: LeaseView) -> dict[str, Json]:
    """The ``lease`` block: the backend's own entries, then who holds it; ``fence`` where the backend has one."""
    fields = dict(lease.fields)
    entry: dict[str, Json] = {key: value for key, value in fields.items() if key != "leaseId"}
    entry |= {"identity": lease.identity, "holder": lease.holder}
    if "leaseId" in fields:
        entry["leaseId"] = fields["leaseId"]
    if lease.fence is not None:
        entry["fence"] = lease.fence
    entry["expiry"] = iso(lease.expiry)
    return entry


def peer_entry(peer: PeerView) -> dict[str, Json]:
    """One of ``peers``."""
    return {
        "host": peer.host,
        "status": peer.status.value,
        "node_name": peer.node_name,
        "job_set_id": peer.job_set_id,
        "last_seen": iso(peer.last_seen),
        "last_error": peer.last_error,
        "mismatch_streak": peer.mismatch_streak,
        "node_stats": None if peer.node_stats is None else dict(peer.node_stats),
    }


def not_ready(snapshot: HostSnapshot) -> str | None:
    """Why this node is not ready, None when it is (GET /readyz). Says nothing that needs a token."""
    if snapshot.stopping:
        return "shutting down"
    if snapshot.reload.last_success <= 0:
        return "the configuration has not been loaded"
    if not snapshot.ready:
        return "still starting"
    if snapshot.cluster_configured and snapshot.cluster is None:
        return "the cluster backend is not running"
    return None


def schedule_findings(job: Job) -> list[Json]:
    """What the linter says about a job's schedule."""
    return [{"message": text} for text in job.schedule.findings()]


def owner(job: str, nodes: Iterable[str]) -> str | None:
    """The node that rendezvous hashing gives ``job`` to, None without nodes (reference, 'Conventions')."""

    def weight(node: str) -> tuple[int, str]:
        return int.from_bytes(hashlib.sha256(f"{job}\0{node}".encode()).digest()[:8], "big"), node

    return max(nodes, key=weight, default=None)


def cluster_owner(view: ClusterView, job: Job) -> str | None:
    """Who runs ``job`` under spread; None when nobody does (a Leader job without quorum)."""
    prefer = job.options.cluster_policy is ClusterPolicy.PREFER_LEADER
    return owner(job.name, view.available_owners if prefer else view.owners)


def _conditional(snapshot: HostSnapshot, job: Job) -> dict[str, Json]:
    options = job.options
    live = snapshot.live.get(job.name, ())
    entry: dict[str, Json] = {}
    schedule = job.schedule
    if schedule.resolved != schedule.text and not schedule.text.startswith(
        "@"
    ):  # nicknames resolve too, to no surprise
        entry["schedule_resolved"] = schedule.resolved
    if running := [snapshot.resources[run.key.run_id] for run in live if run.key.run_id in snapshot.resources]:
        entry["running_resources"] = running_resources(running)
    if job.name in snapshot.reboot_pending:
        entry["rebootPending"] = True
    if job.name in snapshot.queued:
        entry["queued"] = True
    if isinstance(limits := options.raw.get("sla"), dict):
        entry["sla"] = _sla(limits, snapshot.late.get(job.name, ()))
    if (retry := snapshot.retries.get(job.name)) is not None:
        entry["retry"] = {
            "attempt": retry.attempt,
            "maxAttempts": retry.maximum,
            "nextRetryAt": iso(retry.at),
            "delaySeconds": _seconds(retry.delay),
        }
    if options.raw.get("concurrencyScope") == "cluster":
        slot = snapshot.slots.get(job.name)
        entry["concurrencyScope"] = "cluster"
        entry["slot"] = {
            "held": slot is not None and slot.held,
            "holder": None if slot is None else slot.holder,
            "refs": 0 if slot is None else slot.refs,
        }
    if options.priority != "normal":
        entry["priority"] = options.priority
    if snapshot.election_configured:
        entry["clusterPolicy"] = options.cluster_policy.value
        view = snapshot.cluster
        spread = view is not None and view.distribution == SPREAD
        if view is not None and spread and options.cluster_policy is not ClusterPolicy.EVERY_NODE:
            entry["clusterOwner"] = cluster_owner(view, job)
    return entry


def _sla(limits: dict[str, Json], late: Sequence[Lateness]) -> Json:
    return {
        "thresholds": limits,
        "state": "late" if late else "ok",
        "breaches": [
            {
                "check": one.check,
                "since": iso(one.since),
                "observed_seconds": _seconds(one.observed),
                "threshold_seconds": one.threshold,
            }
            for one in late
        ],
    }


def _cluster_summary(snapshot: HostSnapshot) -> dict[str, Json]:
    view = snapshot.cluster
    if not snapshot.cluster_configured:
        return {"enabled": False}
    if view is None:
        return {"enabled": True, "quorate": False, "is_leader": False, "leader": None}
    spread = view.distribution == SPREAD
    return {
        "enabled": True,
        "distribution": view.distribution,
        "quorate": view.quorate,
        "is_leader": view.is_leader and not spread,
        "leader": None if spread else view.leader,
    }


def failing(snapshot: HostSnapshot, job: Job) -> bool:
    """Whether an enabled job's last run that came to a verdict failed; skips and cancelled runs say nothing."""
    last = snapshot.last_runs.get(job.name)
    return job.options.enabled and last is not None and last.failing


def stats_of(records: Sequence[RunRecord]) -> dict[str, Json]:
    """Figures over runs; skips are no runs, and cancelled ones do not count towards the success rate."""
    runs = [r for r in records if r.outcome is not Outcome.SKIPPED]
    count = {outcome: sum(1 for r in runs if r.outcome is outcome) for outcome in Outcome}
    durations = [r.duration for r in runs if r.duration is not None]
    judged = len(runs) - count[Outcome.CANCELLED]
    return {
        "total": len(runs),
        "success": count[Outcome.SUCCESS],
        "failure": count[Outcome.FAILURE],
        "cancelled": count[Outcome.CANCELLED],
        "unknown": count[Outcome.UNKNOWN],
        "success_rate": round(count[Outcome.SUCCESS] / judged, 6) if judged else None,
        "avg_duration": _seconds(sum(durations) / len(durations)) if durations else None,
        "min_duration": _seconds(min(durations, default=None)),
        "max_duration": _seconds(max(durations, default=None)),
        "last_duration": _seconds(durations[-1]) if durations else None,
        **_figures("cpu_seconds", [r.resources.cpu for r in runs if r.resources is not None]),
        **_figures("rss_bytes", [r.resources.max_rss for r in runs if r.resources is not None]),
    }


def _figures(what: str, values: Sequence[float]) -> dict[str, Json]:
    return {
        f"avg_{what}": _seconds(sum(values) / len(values)) if values else None,
        f"max_{what}": _seconds(max(values, default=None)),
        f"last_{what}": _seconds(values[-1]) if values else None,
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _one_line(name: str) -> str:
    return name if name.isprintable() else json.dumps(name, ensure_ascii=False)[1:-1]


def _status_words(entry: dict[str, Json]) -> str:
    pids = entry.get("pid")
    wait = entry.get("scheduled_in")
    if isinstance(pids, list):
        return f"running (pid: {', '.join(map(str, pids))})"
    if entry["status"] == "disabled":
        return "disabled"
    if entry.get("never_fires"):
        return "no future runs (check the schedule)"
    if isinstance(wait, int | float):
        return f"scheduled (in {_span(wait)})"
    return "scheduled (@reboot)" if wait == "@reboot" else "scheduled"


def _span(seconds: float) -> str:
    """A duration in its largest whole unit: ``3 hours``."""
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count != 1 else ''}"
    count = max(0, int(seconds))
    return f"{count} second{'s' if count != 1 else ''}"
