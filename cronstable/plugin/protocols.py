"""The contracts between the host and what plugins provide. Signatures only; the documentation is the contract."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from cronstable.core.clock import Clock, EpochSeconds, Seconds
from cronstable.core.day import Day
from cronstable.core.decision import DecisionRecord
from cronstable.core.events import Event
from cronstable.core.hooks import JobEvent, Lateness
from cronstable.core.job import Job, Json
from cronstable.core.last_run import LastRun
from cronstable.core.runs import Line, LiveRun, PendingRetry, Resources, RunRecord
from cronstable.core.store import Appended, Grant, HeldTerm, Holder, Observation, Seen, Span
from cronstable.core.tally import Tally
from cronstable.core.values import dataclass
from cronstable.core.view import ClusterView

if TYPE_CHECKING:
    import ssl

    from cronstable.plugin.state_store import LockCount, StoreInfo

T = TypeVar("T")


# -- seams ------------------------------------------------------------------------------------------------------------


class Rng(Protocol):
    """Randomness for jitter; never for secrets or identity."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class Ids(Protocol):
    """Unguessable identifiers: tokens, nonces, run ids."""

    def token(self, nbytes: int = 6) -> str:
        """``nbytes`` of fresh randomness as lower-case hex."""
        ...


class Threads(Protocol):
    """Blocking calls off the event loop."""

    async def run(self, call: Callable[[], T], *, timeout: Seconds, lane: str = "default") -> T:
        """Run ``call`` in a thread and return its result.

        Raises ``TimeoutError`` when it does not end within ``timeout`` seconds. The call is then abandoned, not stopped
        (a hung mount cannot be interrupted), and may still take effect. A lane runs a few calls at once; while it
        is full of hung calls, new ones time out without having started.
        """
        ...


class FileSystem(Protocol):
    """The calls of ``os`` that stores use, under their own names. Blocking: call them through ``Threads``."""

    def open(self, path: str, flags: int, mode: int = 0o600) -> int: ...
    def read(self, fd: int, n: int) -> bytes: ...
    def write(self, fd: int, data: bytes) -> int: ...
    def fsync(self, fd: int) -> None: ...
    def close(self, fd: int) -> None: ...
    def lock(self, fd: int) -> bool:
        """Take an exclusive advisory lock without waiting; False when another descriptor has it."""
        ...

    def unlock(self, fd: int) -> None: ...
    def replace(self, source: str, target: str) -> None: ...
    def link(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def makedirs(self, path: str, mode: int = 0o700) -> None: ...
    def listdir(self, path: str) -> list[str]: ...
    def mtime(self, path: str) -> float: ...
    def inode(self, fd: int) -> tuple[int, int]:
        """Device and number of an open file. While it is open, no other file of this machine has the same."""
        ...

    def mounts(self) -> str | None:
        """The text of /proc/self/mounts, or None where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete answer; ``headers`` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Http(Protocol):
    """An HTTP client. Proxies and credentials of the environment are not used, redirects are not followed."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: Seconds,
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        """One exchange. Raises ``OSError`` when no complete answer came.

        ``TimeoutError``: not within ``timeout`` seconds. ``ConnectionResetError``: the connection broke when the
        request had been sent, at least in part: it may have been carried out.
        """
        ...


@dataclass(frozen=True, slots=True)
class HttpStream:
    """An answer that is still coming; ``lines`` are its lines as they arrive, without their ends.

    Reading them raises ``OSError`` when the connection breaks or a line is longer than 1 MiB, and never by itself when
    nothing comes: bound the wait. ``headers`` have lower-case names.
    """

    status: int
    headers: Mapping[str, str]
    lines: AsyncIterator[bytes]


@runtime_checkable
class HttpStreams(Protocol):
    """Optional side of ``Http``: answers without an end, such as a watch. The daemon's client has it."""

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: Seconds,
        tls: ssl.SSLContext | None = None,
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Begin an exchange; entering raises ``OSError`` when no answer began within ``timeout`` seconds."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process of ``Processes`` ended. ``exit_code``: -N after signal N, None when it is not known.

    ``timed_out``: it was ended because its time was up. ``output``: the tail of what it wrote to stdout and stderr.
    """

    exit_code: int | None
    timed_out: bool = False
    output: bytes = b""


class Processes(Protocol):
    """Runs programs for plugins: never blocking the loop, never leaving a process behind."""

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] = MappingProxyType({}), timeout: Seconds
    ) -> ProcessEnd:
        """Run ``argv`` in a session of its own, ``env`` on top of the daemon's environment, stdin empty.

        After ``timeout`` seconds, and when the caller is cancelled, its whole process group is ended. Raises
        ``OSError`` when it cannot be started.
        """
        ...


class Started(Protocol):
    """What a ``run`` coroutine is given to say that it is ready (an ``anyio.abc.TaskStatus``)."""

    def started(self, value: None = None) -> None:
        """Ready: whoever started this may go on."""
        ...


# -- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asked: ``label`` for the log, ``channel`` such as ``api``, ``cli`` or ``signal``."""

    label: str
    channel: str


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start a job now. Never gated by the cluster; ``concurrencyPolicy`` is obeyed."""

    job: str


@dataclass(frozen=True, slots=True)
class CancelRun:
    """End all living runs of a job; they are neither reported nor retried."""

    job: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Skip scheduled runs of a job until ``until`` (wall seconds).

    ``since``: wall seconds of when it began; ``by`` and ``channel``: who asked for it and how. For people to read.
    """

    job: str
    until: float
    note: str = ""
    since: float | None = None
    by: str = ""
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """End a pause."""

    job: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop as on SIGTERM."""


Command: TypeAlias = StartRun | CancelRun | Pause | Resume | Shutdown


@dataclass(frozen=True, slots=True)
class Done:
    """It was done. ``detail``: the run id, or how many instances were cancelled."""

    detail: str | int | None = None


@dataclass(frozen=True, slots=True)
class NoSuchJob:
    """There is no job of that name."""

    job: str


@dataclass(frozen=True, slots=True)
class Refused:
    """It was not done, for a reason that the caller can be told."""

    reason: str


CommandOutcome: TypeAlias = Done | NoSuchJob | Refused


# -- the host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReloadHealth:
    """How the last read of the configuration went. ``at``, ``last_success``: wall seconds."""

    ok: bool
    at: float
    last_success: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class OpCount:
    """How often an operation of the state store was asked for, how often in vain, and the seconds that it took."""

    count: int
    errors: int
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class StateStatus:
    """The durable state of a node, as far as its daemon can tell. Counts are since its start.

    ``info``: what the store said of itself, None until it opened. ``error``: why it does not answer, None while it
    does. ``pending``: writes that wait. ``dropped``: writes that were given up, by kind. ``throttled``: operations
    that waited for ``maxOpsPerSecond``, and ``throttle_wait`` how many seconds together. ``workers``: writes that may
    be under way at once; ``inflight``: operations under way, ``peak``: how many there were at most. ``locks``: those
    that the store took, None when it takes none.
    """

    backend: str
    info: StoreInfo | None
    error: str | None
    fail_closed: bool = False
    pending: int = 0
    dropped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    operations: Mapping[str, OpCount] = field(default_factory=lambda: MappingProxyType({}))
    throttled: int = 0
    throttle_wait: Seconds = 0.0
    workers: int = 0
    inflight: int = 0
    peak: int = 0
    locks: LockCount | None = None


@dataclass(frozen=True, slots=True)
class SlotView:
    """The cluster-wide slot of a job, as this node knows it. ``held``: by this node, for ``refs`` runs of its own.

    ``holder``: the node that runs the job, by name, None when nobody is known to.
    """

    held: bool
    holder: str | None
    refs: int


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The daemon at one instant. All mappings are immutable; ``jobs`` is in configuration order.

    ``next_fires``: job name to T of the next occurrence, None when there is none; @reboot and disabled jobs are absent.
    ``history``: finished runs and skips of a job, oldest first, at most 20.
    ``last_runs``: the last run of each job that had any, however many skips there were since.
    ``days``: what ended here in the last 24 hours, of each job of which anything did.
    ``cluster_configured``: the configuration has a ``cluster`` section; ``election_configured``: and it elects.
    ``cluster``: the view, None when there is no section or its backend failed to start (then ``cluster_error``).
    ``retries``: jobs whose last run failed and is to be tried again.
    ``late``: jobs that trip limits of their ``sla``, and what was found at the last look.
    ``resources``: what living runs used so far, by run id, where that is sampled.
    ``queued``: jobs of which a run waits for another one to end (``concurrencyPolicy: Queue``).
    ``ready``: configuration loaded and every configured backend started or given up on.
    ``stopping``: a shutdown is under way.
    ``fleet``: what was last published of all nodes, None when there is no channel between them.
    ``state``: the durable state, None without a ``state`` section.
    ``tally``: how often things happened here since the daemon started.
    ``certificates``: use and file of each certificate that somebody told of, and its end in wall seconds.
    ``slots``: what is known of cluster-wide slots (``concurrencyScope: cluster``), by job.
    """

    version: str
    node_name: str
    at: float
    started_at: float
    jobs: Mapping[str, Job]
    live: Mapping[str, tuple[LiveRun, ...]]
    next_fires: Mapping[str, EpochSeconds | None]
    history: Mapping[str, tuple[RunRecord, ...]]
    job_set_id: str
    reload: ReloadHealth
    cluster_configured: bool = False
    election_configured: bool = False
    cluster: ClusterView | None = None
    cluster_error: str | None = None
    reboot_pending: frozenset[str] = frozenset()
    reboot_ran: frozenset[str] = frozenset()
    paused: Mapping[str, Pause] = field(default_factory=lambda: MappingProxyType({}))
    retries: Mapping[str, PendingRetry] = field(default_factory=lambda: MappingProxyType({}))
    late: Mapping[str, tuple[Lateness, ...]] = field(default_factory=lambda: MappingProxyType({}))
    resources: Mapping[str, Resources] = field(default_factory=lambda: MappingProxyType({}))
    queued: frozenset[str] = frozenset()
    ready: bool = True
    stopping: bool = False
    fleet: FleetReport | None = None
    state: StateStatus | None = None
    tally: Tally = field(default_factory=Tally)
    certificates: Mapping[tuple[str, str], float] = field(default_factory=lambda: MappingProxyType({}))
    slots: Mapping[str, SlotView] = field(default_factory=lambda: MappingProxyType({}))
    last_runs: Mapping[str, LastRun] = field(default_factory=lambda: MappingProxyType({}))
    days: Mapping[str, Day] = field(default_factory=lambda: MappingProxyType({}))


class Host(Protocol):
    """What every factory is given. A wish for a private door is a change to this list and an ADR."""

    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> Rng: ...
    @property
    def ids(self) -> Ids: ...
    @property
    def log(self) -> logging.Logger: ...
    @property
    def fs(self) -> FileSystem: ...
    @property
    def http(self) -> Http: ...
    @property
    def threads(self) -> Threads: ...
    @property
    def processes(self) -> Processes: ...

    def snapshot(self) -> HostSnapshot:
        """The daemon as it is now. Cheap: no I/O and no waiting."""
        ...

    def events(self, *kinds: type[Event]) -> AsyncIterator[Event]:
        """Events of these kinds (none named: all), from the moment iteration begins.

        A consumer that falls behind by more than 1,000 events loses the oldest, which is logged.
        """
        ...

    def output(self, run_id: str, after: int = 0) -> AsyncIterator[Line]:
        """Lines of a run with ``number`` above ``after``, live, ending when the run's output ends."""
        ...

    def decisions(self, job: str, limit: int = 100) -> Sequence[DecisionRecord]:
        """Why ``job`` ran, was skipped or waits on this node: the newest ``limit`` decisions, newest first.

        The node remembers 10,000 over all jobs, those of jobs that are configured no more among them, and none from
        before its start. Cheap: no I/O and no waiting.
        """
        ...

    async def runs(self, job: str, limit: int = 100) -> Sequence[RunRecord]:
        """The newest ``limit`` finished runs and skips of ``job``, newest first, without their output.

        From the durable state, as far as ``maxRunsPerJob`` keeps them; without one, or when it does not answer within
        ten seconds, those that the node remembers, 20 at most.
        """
        ...

    async def do(self, command: Command, by: Actor) -> CommandOutcome:
        """Carry out a command; it is logged with its actor."""
        ...

    def publish(self, fleet: FleetReport) -> None:
        """Replace what is known of the other nodes (gossip and the observability mesh)."""
        ...

    def certificates(self, use: str, ends: Sequence[tuple[str, float]]) -> None:
        """Replace what is known of the certificates in ``use``: their files and ends, in wall seconds; none: no more.

        For whoever watches over them; nothing else comes of it.
        """
        ...

    async def stored(self, kind: Literal["streams", "documents"], prefix: str = "") -> Sequence[str] | None:
        """Names in the durable state that begin with ``prefix``, sorted; never what they contain.

        None without a state store, and when it does not answer within ten seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class NodeDecisions:
    """What another node answered when it was asked for its decisions on a job, or why there is no answer.

    ``node``: its name, None when it is not known. ``host``: where it was asked. ``decisions``: newest first, each as in
    GET /jobs/{name}/decisions but without ``node``, which is this one. Display only: nothing is decided on them.
    ``problem``: why there is no data, in words for people; None when it answered.
    """

    node: str | None
    host: str
    decisions: tuple[Mapping[str, Json], ...] = ()
    problem: str | None = None


AskDecisions: TypeAlias = Callable[[str, int], Awaitable[Sequence[NodeDecisions]]]
"""Asks every other node for its newest decisions on a job, so many at most; a line for each node, within 2 seconds.

Never raises for what a node answers or does not. However often it is called, it bounds what that costs the nodes.
"""


@dataclass(frozen=True, slots=True)
class FleetReport:
    """Run summaries of the nodes that ``source`` knows, this one first, each as in GET /fleet; display only.

    ``interval``: seconds between two looks at a node. No nodes: there is nothing to tell any more. ``decisions``: how
    the other nodes are asked why a job ran or did not, None where that cannot be asked.
    """

    source: str
    nodes: tuple[Mapping[str, Json], ...]
    interval: Seconds | None = None
    decisions: AskDecisions | None = None


# -- what plugins provide ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ElectionContext:
    """The ``cluster`` section as an election factory needs it.

    ``settings``: what the descriptor's ``parse`` returned. ``cluster``: the whole validated section.
    ``job_set_id``: call it for the live id. ``connect_timeout`` in seconds. ``beside``: the keys of the section that
    belong to services, such as ``observability``; a change of these alone does not restart an election. ``memory``:
    what a backend wants to know again when its election is built anew in the same process; empty when that starts.
    """

    backend: str
    node_name: str
    settings: object
    cluster: Mapping[str, Json]
    job_set_id: Callable[[], str]
    connect_timeout: Seconds = 10.0
    elect_leader: bool = True
    distribution: str = "single-leader"
    beside: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))
    memory: MutableMapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Election(Protocol):
    """Decides who leads. Full control; a plain lease backend uses ``LeaseBackend`` instead.

    May also have ``reboot_ran(job) -> bool`` and ``mark_reboot_ran(job)`` (see ``RebootLedger``).
    """

    def view(self) -> ClusterView:
        """One immutable snapshot for this very instant; no I/O, no waiting, never raises."""
        ...

    async def run(self, host: Host, *, task_status: Started) -> None:
        """Elect until cancelled, then let go of leadership within a deadline of its own.

        Call ``task_status.started()`` after one bounded round, so that the first view is real. Raising before that
        is a failed start: the node then has no manager and its Leader jobs fail closed.
        """
        ...


@runtime_checkable
class Observable(Protocol):
    """Optional side of an ``Election``: announces that its view changed, so that nobody has to poll for it."""

    async def wait_change(self) -> None:
        """Return once the view may have changed since this was called; spurious returns are fine."""
        ...


@runtime_checkable
class Refreshable(Protocol):
    """Optional side of an ``Election`` whose view can be ``stale``: it can be told to look now."""

    async def refresh(self) -> None:
        """Ask everybody once more, and return when the view is as fresh as one round makes it.

        The host waits ``connect_timeout`` seconds at most, then decides on what ``view()`` says.
        """
        ...


@runtime_checkable
class Adjustable(Protocol):
    """Optional side of an ``Election`` that reads ``ElectionContext.beside``: it is told when that changed."""

    def adjust(self, beside: Mapping[str, Json]) -> None:
        """Go on under these. No I/O, no waiting, never raises."""
        ...


@runtime_checkable
class Rehearsable(Protocol):
    """Optional side of an ``Election`` that needs files, such as certificates: it can be asked whether they load."""

    async def rehearse(self) -> None:
        """Load what a start would load from files, and nothing else: no port, no lease, no request to anybody.

        Asked of an election that was made for an edited section, before the one that runs is stopped for it. Raising
        keeps that one in force, and the edit is tried again each minute; the message is for the operator. The host
        waits for a bounded time.
        """
        ...


@runtime_checkable
class Hasty(Protocol):
    """Optional side of an ``Election`` whose end waits for others, as for a store: it can be told not to."""

    def hurry(self) -> None:
        """End within about a second once ``run`` is cancelled, or was; no I/O, no waiting, never raises."""
        ...


@runtime_checkable
class RebootLedger(Protocol):
    """Optional side of an ``Election``: which deferred @reboot jobs have run in this cluster."""

    def reboot_ran(self, job: str) -> bool | None:
        """True: it ran; False: it surely did not; None: not known yet, ask again."""
        ...

    async def mark_reboot_ran(self, job: str) -> bool:
        """Record the run before it starts. False: another node was first, or it could not be recorded."""
        ...


class LeaseStore(Protocol):
    """One lease in a shared store. Four coroutines; the host owns cadence, deadlines and judgement.

    Each call may be cancelled at its deadline. Only ``StoreUnavailable`` may be raised.
    """

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """Try to become the holder, in one atomic step; leave ``nonce`` as the mark of this write.

        ``over`` None: only if nobody holds the lease. ``over`` given: the host judged this record's holder dead; take
        its place only if the record still stands exactly so (compare-and-swap on ``mark``).
        Returns ``Held`` with a fence above every earlier one, or what stands in the way. The grant's ``ttl`` may be
        less than asked. The record must be this holder's to renew from then on, also through a grant that the host
        rebuilt from a ``Seen`` of it (``data`` is None then): that is how a lost answer is made good.
        """
        ...

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """Extend the term, in one atomic step, only if the record is still ``grant``'s own (``grant.owns``).

        ``Held`` with ``nonce`` as the new mark, or what stands there instead. Never acquires.
        """
        ...

    async def observe(self) -> Observation:
        """What stands in the store, read afresh; never ``Held``. May wait for a change (a watch, a long poll)."""
        ...

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """Let go at once if the lease is still ours, keeping the fence; ``returned`` run ids go into the same write."""
        ...


@runtime_checkable
class ClaimLog(Protocol):
    """Optional side of a ``LeaseStore``, capability OCCURRENCE_CLAIMS: numbered appends bound to a term.

    Records are immutable and numbers are never used again, also after a trim. Only ``StoreUnavailable`` may be raised;
    from ``append`` it means what ``Unknown`` means.
    """

    async def append(self, grant: Grant, number: int, record: bytes) -> Appended:
        """Create record ``number`` only if it is absent and only while the term of ``grant`` holds, in one step.

        The term is told by holder and fence; a renewal may have changed the nonce since ``grant`` was taken. Numbers
        that were trimmed away are ``Taken``.
        """
        ...

    async def read(self, number: int) -> bytes | None:
        """Record ``number``, None when there is none."""
        ...

    async def span(self) -> Span:
        """Where the log begins and ends. A hint: what counts is whether a number can be created."""
        ...

    async def trim(self, grant: Grant, first: int) -> None:
        """Let go of records below ``first`` while the term of ``grant`` holds: best effort, a bounded piece of work."""
        ...

    async def put_entry(self, entry: bytes) -> None:
        """Replace this process's entry of unfinished runs; empty: remove it."""
        ...

    async def entries(self) -> Sequence[bytes]:
        """The entries of all processes."""
        ...


class Claims(Protocol):
    """The claim log as the host uses it: bound to the term of this process, one writer together with the lease.

    None of these raises: what the store cannot answer is ``Unknown`` or None.
    """

    @property
    def worst_handover(self) -> Seconds:
        """How long nobody may lead, in seconds, when a holder dies and the store works."""
        ...

    @property
    def ttl(self) -> Seconds:
        """How long an entry may stand still before its process counts as dead, in seconds."""
        ...

    @property
    def term(self) -> HeldTerm | None:
        """The term held now, whether or not its deadline has passed; None while there is none."""
        ...

    async def append(self, number: int, record: bytes) -> Appended:
        """See ``ClaimLog.append``; ``Fenced`` without a term."""
        ...

    async def read(self, number: int) -> tuple[bytes | None] | None:
        """What ``ClaimLog.read`` answered, in a tuple; None when it did not."""
        ...

    async def span(self) -> Span | None:
        """See ``ClaimLog.span``."""
        ...

    async def trim(self, first: int) -> None:
        """See ``ClaimLog.trim``."""
        ...

    async def put_entry(self, entry: bytes) -> None:
        """See ``ClaimLog.put_entry``; best effort."""
        ...

    async def entries(self) -> Sequence[bytes] | None:
        """See ``ClaimLog.entries``."""
        ...

    def give_back(self, run_ids: Sequence[str]) -> None:
        """Write these into the very write that releases the lease (claims.md 7)."""
        ...

    async def stand_down(self, seconds: Seconds) -> None:
        """Let go of the lease and do not ask for it again for so long, so that a fitter node may have it."""
        ...


@runtime_checkable
class Claimant(Protocol):
    """Optional side of an ``Election`` on a store that keeps claims."""

    @property
    def claims(self) -> Claims | None:
        """The claim log, None when this election has none."""
        ...


@runtime_checkable
class RebootMarks(Protocol):
    """Optional side of a ``LeaseStore``, capability REBOOT_MARKS: @reboot runs, remembered per job-set id."""

    async def reboot_marks(self, job_set_id: str) -> frozenset[str]:
        """Names of the jobs marked under this id."""
        ...

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        """Create the mark; True only when this very call (this nonce) created it."""
        ...


class Service(Protocol):
    """A long-running companion of the daemon: web API, metrics, a mesh."""

    async def run(self, host: Host, *, task_status: Started) -> None:
        """Serve until cancelled; ``task_status.started()`` once ready. An exception is logged, never fatal."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """A job report. ``event``: which hook of the job it comes from; ``job``: the definition that ran.

    ``host``: name of the machine. ``facts``: of an ``onLate`` report, which check found what; None otherwise.
    """

    event: JobEvent
    job: Job
    record: RunRecord
    host: str = ""
    facts: Lateness | None = None


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """This node gained or lost leadership. ``at``: wall seconds; ``host``: name of the machine."""

    node: str
    is_leader: bool
    leader: str | None
    at: float
    reason: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class QuorumLoss:
    """This node ceased to be quorate. ``at``: wall seconds; ``host``: name of the machine."""

    node: str
    at: float
    detail: str = ""
    host: str = ""


Message: TypeAlias = Report | LeaderChange | QuorumLoss


class Notifier(Protocol):
    """Tells somebody. Called off the scheduling path, one message at a time and in order per job."""

    async def send(self, message: Message) -> None:
        """Deliver or raise; the host bounds the time, tries again where that can help, logs and counts.

        ``NotDelivered`` says whether another try can help; after an ``OSError`` it can. Texts of these two are logged:
        they must name no secret. Of any other exception only the type is logged.
        """
        ...


@runtime_checkable
class Bounded(Protocol):
    """Optional side of a ``Notifier``: it bounds its own time."""

    @property
    def longest_send(self) -> Seconds:
        """How long one ``send`` can take; the host gives up 5 s later. Without this it gives up after 60 s."""
        ...
