"""The families of GET /metrics: their names, kinds, labels, and what they mean. One table, for the page as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """``name`` without the ``_total`` of a counter's samples."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name as a query has it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _gauge(name: str, about: str, *labels: str) -> Family:
    return Family(f"cronstable_{name}", "gauge", about, labels)


def _counter(name: str, about: str, *labels: str) -> Family:
    return Family(f"cronstable_{name}", "counter", about, labels)


def _histogram(name: str, about: str, *labels: str) -> Family:
    return Family(f"cronstable_{name}", "histogram", about, labels)


INFO: Final = _gauge("info", "Always 1, with the version.", "version")
START_TIME: Final = _gauge("start_time_seconds", "When the daemon started, in Unix time.")
JOB_SET: Final = _gauge("job_set_info", "Always 1, with the ID of the job set in force.", "job_set_id")
JOBS: Final = _gauge("jobs", "Configured jobs by whether they are enabled.", "state")
RELOAD_OK: Final = _gauge("config_last_reload_successful", "1 when the last look at the configuration could use it.")
RELOAD_AT: Final = _gauge(
    "config_last_reload_success_timestamp_seconds", "When a configuration was last put into force."
)

RUNS: Final = _counter("job_runs", "Runs that are over and occurrences that were skipped.", "job_name", "status")
DURATION: Final = _histogram("job_duration_seconds", "How long runs took that ended by themselves.", "job_name")
RETRIES: Final = _counter("job_retries", "Further attempts that were started.", "job_name")
PERMANENT: Final = _counter("job_permanent_failures", "Failures after which nothing is tried again.", "job_name")
START_FAILURES: Final = _counter("job_start_failures", "Commands that could not be started.", "job_name")
LAST_SUCCESS: Final = _gauge("job_last_success_timestamp_seconds", "When a run last succeeded.", "job_name")
LAST_FAILURE: Final = _gauge("job_last_failure_timestamp_seconds", "When a run last failed.", "job_name")
JOB_INFO: Final = _gauge("job_info", "Always 1, with facts of the job.", "job_name", "schedule", "cluster_policy")
ENABLED: Final = _gauge("job_enabled", "1 when the job is enabled.", "job_name")
RUNNING: Final = _gauge("job_running", "Runs that live.", "job_name")
PAUSED: Final = _gauge("job_paused", "1 while the job is paused.", "job_name")
NEXT_RUN: Final = _gauge("job_next_run_timestamp_seconds", "The next scheduled time, if there is one.", "job_name")
LAST_RUN: Final = _gauge("job_last_run_timestamp_seconds", "When the last run ended.", "job_name")
LAST_DURATION: Final = _gauge("job_last_run_duration_seconds", "How long the last run took.", "job_name")
LAST_EXIT: Final = _gauge("job_last_run_exit_code", "The exit code of the last run.", "job_name")
LAST_OK: Final = _gauge("job_last_run_success", "1 when the last run succeeded.", "job_name")
LATE: Final = _gauge("job_late", "1 while a limit of the job's sla is exceeded.", "job_name", "check")
BREACHES: Final = _counter(
    "job_sla_breaches", "How often a limit of the job's sla was found exceeded.", "job_name", "check"
)
CPU: Final = _counter("job_cpu_seconds", "Processor time of sampled runs.", "job_name", "mode")
PEAK_RSS: Final = _gauge("job_peak_rss_bytes", "The most memory that a sampled run used.", "job_name")
LAST_CPU: Final = _gauge("job_last_run_cpu_seconds", "Processor time of the last run, if sampled.", "job_name")
LAST_RSS: Final = _gauge("job_last_run_max_rss_bytes", "The most memory of the last run, if sampled.", "job_name")

DECISIONS: Final = _counter(
    "decisions",
    "Decisions about occurrences. One that is not final may be followed by another.",
    "verdict",
    "reason",
    "final",
)
DECISION_DELAY: Final = _histogram("decision_delay_seconds", "From the scheduled time to the decision to run.")
CATCH_UPS: Final = _counter("catchup_runs", "Late starts after a handover or an outage.")
CLAIMS: Final = _counter("claim_appends", "Writes to the claim log by how they were answered.", "answer")
CLAIM_DELAY: Final = _histogram("claim_append_seconds", "How long writes to the claim log took.")
LOOP_LAG: Final = _gauge("event_loop_lag_seconds", "How late the event loop was at the last look, once in 5 s.")
LOOP_LAG_MAX: Final = _gauge("event_loop_lag_max_seconds", "The same, the worst within a minute.")
MESSAGES: Final = _counter("notifier_messages", "Messages by what became of them.", "notifier", "result")
STREAMS: Final = _gauge("web_streams", "Streams of the HTTP API that are open.")
CERTIFICATE: Final = _gauge("certificate_expiry_timestamp_seconds", "When a certificate in use ends.", "use", "file")

STATE_INFO: Final = _gauge("state_info", "Always 1, with facts of the state store.", "backend", "topology")
STATE_OPS: Final = _counter("state_ops", "Operations that the state store was asked for.", "op")
STATE_ERRORS: Final = _counter("state_op_errors", "Of these, the ones in vain.", "op")
STATE_SECONDS: Final = _counter("state_op_seconds", "How long they took together.", "op")
STATE_THROTTLED: Final = _counter("state_throttled_ops", "Operations that waited for maxOpsPerSecond.")
STATE_WAITED: Final = _counter("state_throttle_wait_seconds", "How long they waited together.")
STATE_LOCKS: Final = _counter("state_lock_acquisitions", "Locks that the state store took, where it has any.")
STATE_LOCK_WAIT: Final = _counter("state_lock_wait_seconds", "How long it waited for those that other nodes held.")
STATE_DROPPED: Final = _counter("state_dropped_writes", "Writes that were given up.", "kind")
STATE_CAPACITY: Final = _gauge("state_workers_capacity", "Operations that may be under way at once.")
STATE_INFLIGHT: Final = _gauge("state_workers_inflight", "Operations under way.")
STATE_PEAK: Final = _gauge("state_workers_peak", "The most there were at once.")

CLUSTER: Final = _gauge("cluster_enabled", "1 while a cluster backend is running.")
CLUSTER_INFO: Final = _gauge(
    "cluster_info", "Always 1, with facts of the cluster.", "backend", "node_name", "distribution"
)
CLUSTER_SIZE: Final = _gauge("cluster_size", "Nodes of the cluster, by the configuration.")
QUORUM: Final = _gauge("cluster_quorum", "Nodes that make a majority.")
QUORATE: Final = _gauge("cluster_quorate", "1 while this node is part of a majority.")
IS_LEADER: Final = _gauge("cluster_is_leader", "1 while this node leads.")
LEADER: Final = _gauge("cluster_leader_info", "Always 1, with the leader; absent when there is none.", "leader")
CONFLICT: Final = _gauge("cluster_conflict", "1 while a conflict keeps this node from leading.", "kind")
PEERS: Final = _gauge("cluster_peers", "Peers by status, where nodes poll each other.", "status")
LEADER_CHANGES: Final = _counter("cluster_leader_transitions", "How often this node gained or lost leadership.")
QUORUM_CHANGES: Final = _counter("cluster_quorum_transitions", "How often this node gained or lost quorum.")

OF_JOBS: Final = (
    RUNS,
    DURATION,
    RETRIES,
    PERMANENT,
    START_FAILURES,
    LAST_SUCCESS,
    LAST_FAILURE,
    JOB_INFO,
    ENABLED,
    RUNNING,
    PAUSED,
    NEXT_RUN,
    LAST_RUN,
    LAST_DURATION,
    LAST_EXIT,
    LAST_OK,
    LATE,
    BREACHES,
    CPU,
    PEAK_RSS,
    LAST_CPU,
    LAST_RSS,
)
OF_NODE: Final = (
    INFO,
    START_TIME,
    JOB_SET,
    JOBS,
    RELOAD_OK,
    RELOAD_AT,
    DECISIONS,
    DECISION_DELAY,
    CATCH_UPS,
    CLAIMS,
    CLAIM_DELAY,
    LOOP_LAG,
    LOOP_LAG_MAX,
    MESSAGES,
    STREAMS,
    CERTIFICATE,
    STATE_INFO,
    STATE_OPS,
    STATE_ERRORS,
    STATE_SECONDS,
    STATE_THROTTLED,
    STATE_WAITED,
    STATE_LOCKS,
    STATE_LOCK_WAIT,
    STATE_DROPPED,
    STATE_CAPACITY,
    STATE_INFLIGHT,
    STATE_PEAK,
    CLUSTER,
    CLUSTER_INFO,
    CLUSTER_SIZE,
    QUORUM,
    QUORATE,
    IS_LEADER,
    LEADER,
    CONFLICT,
    PEERS,
    LEADER_CHANGES,
    QUORUM_CHANGES,
)
