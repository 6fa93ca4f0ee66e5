"""What plugin authors import, and all of it: hooks, descriptors, protocols, values, events, errors.

Anything not in ``__all__`` here is private to the host. The version of this surface is ``API_VERSION``.

A name is fetched from its module when it is first asked for: a plugin's hooks need a descriptor or two, and every
command line that reads a configuration pays for what they pull in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cronstable.core.claim_records import may_be_record
    from cronstable.core.clock import Clock, EpochSeconds, Instant, Seconds
    from cronstable.core.day import Day
    from cronstable.core.decision import Decision, DecisionRecord, Reason, Verdict
    from cronstable.core.definition import Definition, definitions, seal, sealing_key
    from cronstable.core.events import (
        Decided,
        Event,
        LeaderChanged,
        QuorumChanged,
        Reloaded,
        RunFinished,
        RunStarted,
    )
    from cronstable.core.finding import KeyPath, Problem, Severity
    from cronstable.core.hooks import JobEvent, Lateness
    from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, FailsWhen, Job, JobOptions, Json
    from cronstable.core.last_run import LastRun
    from cronstable.core.quorum import elect_leader, hrw_owner, quorum_size
    from cronstable.core.reasons import because
    from cronstable.core.runs import (
        Line,
        LiveRun,
        Outcome,
        PendingRetry,
        Resources,
        ResourceSample,
        RunKey,
        RunRecord,
        Trigger,
    )
    from cronstable.core.schedule import Schedule, ScheduleError
    from cronstable.core.store import (
        Appended,
        Fenced,
        Full,
        Grant,
        Held,
        HeldTerm,
        Holder,
        LeaseRecord,
        Observation,
        Seen,
        Span,
        StoreUnavailable,
        Taken,
        Unknown,
        Unreadable,
        Vacant,
        Won,
    )
    from cronstable.core.tally import Histogram, JobTally, NotifierTally, Tally
    from cronstable.core.view import ClusterView, LeaseView, PeerStatus, PeerView
    from cronstable.core.wording import describe
    from cronstable.plugin.descriptors import (
        API_VERSION,
        Capability,
        CliCommand,
        ConfigFragment,
        Descriptor,
        ElectionBackend,
        JsonSchema,
        NotifierBackend,
        Section,
        ServiceProvider,
        StateStoreBackend,
    )
    from cronstable.plugin.errors import InvalidSettings, NotDelivered, PluginError
    from cronstable.plugin.hookspecs import hookimpl
    from cronstable.plugin.protocols import (
        Actor,
        Adjustable,
        AskDecisions,
        Bounded,
        CancelRun,
        Claimant,
        ClaimLog,
        Claims,
        Command,
        CommandOutcome,
        Done,
        Election,
        ElectionContext,
        FileSystem,
        FleetReport,
        Hasty,
        Host,
        HostSnapshot,
        Http,
        HttpResponse,
        HttpStream,
        HttpStreams,
        Ids,
        LeaderChange,
        LeaseStore,
        Message,
        NodeDecisions,
        NoSuchJob,
        Notifier,
        Observable,
        OpCount,
        Pause,
        ProcessEnd,
        Processes,
        QuorumLoss,
        RebootLedger,
        RebootMarks,
        Refreshable,
        Refused,
        Rehearsable,
        ReloadHealth,
        Report,
        Resume,
        Rng,
        Service,
        Shutdown,
        SlotView,
        Started,
        StartRun,
        StateStatus,
        Threads,
    )
    from cronstable.plugin.secret import SecretSource
    from cronstable.plugin.state_store import (
        Damage,
        Document,
        Inspectable,
        LockCount,
        Locking,
        RecordsUnreadable,
        StateStore,
        StoredRecord,
        StoreInfo,
        Topology,
    )
    from cronstable.plugin.variables import template_variables

__all__ = [
    "API_VERSION",
    "Actor",
    "Adjustable",
    "Appended",
    "AskDecisions",
    "Bounded",
    "CancelRun",
    "Capability",
    "ClaimLog",
    "Claimant",
    "Claims",
    "CliCommand",
    "Clock",
    "ClusterPolicy",
    "ClusterView",
    "Command",
    "CommandOutcome",
    "ConcurrencyPolicy",
    "ConfigFragment",
    "Damage",
    "Day",
    "Decided",
    "Decision",
    "DecisionRecord",
    "Definition",
    "Descriptor",
    "Document",
    "Done",
    "Election",
    "ElectionBackend",
    "ElectionContext",
    "EpochSeconds",
    "Event",
    "FailsWhen",
    "Fenced",
    "FileSystem",
    "FleetReport",
    "Full",
    "Grant",
    "Hasty",
    "Held",
    "HeldTerm",
    "Histogram",
    "Holder",
    "Host",
    "HostSnapshot",
    "Http",
    "HttpResponse",
    "HttpStream",
    "HttpStreams",
    "Ids",
    "Inspectable",
    "Instant",
    "InvalidSettings",
    "Job",
    "JobEvent",
    "JobOptions",
    "JobTally",
    "Json",
    "JsonSchema",
    "KeyPath",
    "LastRun",
    "Lateness",
    "LeaderChange",
    "LeaderChanged",
    "LeaseRecord",
    "LeaseStore",
    "LeaseView",
    "Line",
    "LiveRun",
    "LockCount",
    "Locking",
    "Message",
    "NoSuchJob",
    "NodeDecisions",
    "NotDelivered",
    "Notifier",
    "NotifierBackend",
    "NotifierTally",
    "Observable",
    "Observation",
    "OpCount",
    "Outcome",
    "Pause",
    "PeerStatus",
    "PeerView",
    "PendingRetry",
    "PluginError",
    "Problem",
    "ProcessEnd",
    "Processes",
    "QuorumChanged",
    "QuorumLoss",
    "Reason",
    "RebootLedger",
    "RebootMarks",
    "RecordsUnreadable",
    "Refreshable",
    "Refused",
    "Rehearsable",
    "ReloadHealth",
    "Reloaded",
    "Report",
    "ResourceSample",
    "Resources",
    "Resume",
    "Rng",
    "RunFinished",
    "RunKey",
    "RunRecord",
    "RunStarted",
    "Schedule",
    "ScheduleError",
    "Seconds",
    "SecretSource",
    "Section",
    "Seen",
    "Service",
    "ServiceProvider",
    "Severity",
    "Shutdown",
    "SlotView",
    "Span",
    "StartRun",
    "Started",
    "StateStatus",
    "StateStore",
    "StateStoreBackend",
    "StoreInfo",
    "StoreUnavailable",
    "StoredRecord",
    "Taken",
    "Tally",
    "Threads",
    "Topology",
    "Trigger",
    "Unknown",
    "Unreadable",
    "Vacant",
    "Verdict",
    "Won",
    "because",
    "definitions",
    "describe",
    "elect_leader",
    "hookimpl",
    "hrw_owner",
    "may_be_record",
    "quorum_size",
    "seal",
    "sealing_key",
    "template_variables",
]

_HOMES = {
    "cronstable.core.claim_records": "may_be_record",
    "cronstable.core.clock": "Clock EpochSeconds Instant Seconds",
    "cronstable.core.day": "Day",
    "cronstable.core.decision": "Decision DecisionRecord Reason Verdict",
    "cronstable.core.definition": "Definition definitions seal sealing_key",
    "cronstable.core.events": "Decided Event LeaderChanged QuorumChanged Reloaded RunFinished RunStarted",
    "cronstable.core.finding": "KeyPath Problem Severity",
    "cronstable.core.hooks": "JobEvent Lateness",
    "cronstable.core.job": "ClusterPolicy ConcurrencyPolicy FailsWhen Job JobOptions Json",
    "cronstable.core.last_run": "LastRun",
    "cronstable.core.quorum": "elect_leader hrw_owner quorum_size",
    "cronstable.core.reasons": "because",
    "cronstable.core.runs": "Line LiveRun Outcome PendingRetry ResourceSample Resources RunKey RunRecord Trigger",
    "cronstable.core.schedule": "Schedule ScheduleError",
    "cronstable.core.store": (
        "Appended Fenced Full Grant Held HeldTerm Holder LeaseRecord Observation Seen Span StoreUnavailable Taken "
        "Unknown Unreadable Vacant Won"
    ),
    "cronstable.core.tally": "Histogram JobTally NotifierTally Tally",
    "cronstable.core.view": "ClusterView LeaseView PeerStatus PeerView",
    "cronstable.core.wording": "describe",
    "cronstable.plugin.descriptors": (
        "API_VERSION Capability CliCommand ConfigFragment Descriptor ElectionBackend JsonSchema "
        "NotifierBackend Section ServiceProvider StateStoreBackend"
    ),
    "cronstable.plugin.errors": "InvalidSettings NotDelivered PluginError",
    "cronstable.plugin.hookspecs": "hookimpl",
    "cronstable.plugin.protocols": (
        "Actor Adjustable AskDecisions Bounded CancelRun Claimant ClaimLog Claims Command CommandOutcome Done Election "
        "ElectionContext FileSystem FleetReport Hasty Host HostSnapshot Http HttpResponse HttpStream "
        "HttpStreams Ids LeaderChange LeaseStore Message NodeDecisions NoSuchJob Notifier Observable OpCount Pause "
        "ProcessEnd Processes "
        "QuorumLoss RebootLedger RebootMarks Refreshable Refused Rehearsable ReloadHealth Report Resume Rng Service "
        "Shutdown SlotView Started StartRun StateStatus Threads"
    ),
    "cronstable.plugin.secret": "SecretSource",
    "cronstable.plugin.state_store": (
        "Damage Document Inspectable LockCount Locking RecordsUnreadable StateStore StoredRecord StoreInfo Topology"
    ),
    "cronstable.plugin.variables": "template_variables",
}
"""Module to the public names that live there: the imports above, for when the program runs."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Fetch a public name from its module and keep it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'cronstable.api' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
