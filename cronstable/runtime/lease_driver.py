"""The driver of a lease: carries out what ``core.lease`` decides, one request at a time, and shows the result.

Every decision, deadline and retry is in the state machine. What is here: reading the clock, asking the store within a
deadline, logging, waking whoever waits for a change, and the @reboot marks that go with a lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, assert_never

import anyio

from cronstable.core.clock import Instant, Seconds
from cronstable.core.handover import Inheritance
from cronstable.core.lease import (
    CHALLENGER_MARGIN,
    RELEASE_WITHIN,
    available,
    is_leader,
    is_quorate,
    leader_name,
    next_change,
    step,
)
from cronstable.core.lease_values import (
    Acquire,
    Answered,
    Command,
    Cut,
    Event,
    Failed,
    Finished,
    Gained,
    LeaseState,
    LeaseTiming,
    Level,
    Loss,
    Lost,
    Note,
    Observe,
    Phase,
    Quorum,
    Ready,
    Release,
    Renew,
    Request,
    Resign,
    Stop,
    Tick,
    Wait,
    initial,
)
from cronstable.core.store import Grant, HeldTerm, Holder, Observation, StoreUnavailable
from cronstable.core.view import ClusterView, LeaseView
from cronstable.plugin.descriptors import Capability
from cronstable.plugin.protocols import (
    ClaimLog,
    Claims,
    ElectionContext,
    Host,
    LeaseStore,
    RebootMarks,
    Started,
)
from cronstable.runtime.claim_door import ClaimDoor
from cronstable.runtime.reboot_marks import MarksLedger, MemoryLedger

LeaseField: TypeAlias = "tuple[str, str | int | None]"

SHORTEST_WAIT: Seconds = 0.001
"""A wait that rounds to nothing would spin."""

HURRIED: Seconds = 1.0
"""What a release that is under way is left, once it has to hurry."""

QUIET: Seconds = 60.0
"""How often a complaint that goes on is repeated in the log."""


class LeaseBackend:
    """An ``Election`` (and ``RebootLedger``, ``Observable``) over any ``LeaseStore``.

    ``timing``: cadence and deadlines, usually ``LeaseTiming.for_ttl(ttl, context.connect_timeout)``.
    ``capabilities``: those of the backend's descriptor; EXPIRES_ITSELF keeps the host from ever taking over a standing
    record. ``lease_fields``: the backend's own entries of the ``lease`` block in GET /cluster, constant or computed
    for each view (no I/O, must not raise). ``identity``: the display name written to the store, the node's name by
    default. ``describe``: given the identity with its token, the rest of the line ``cluster: X election ready ...``.
    """

    def __init__(
        self,
        store: LeaseStore,
        context: ElectionContext,
        host: Host,
        *,
        timing: LeaseTiming,
        capabilities: frozenset[Capability] = frozenset(),
        lease_fields: Sequence[LeaseField] | Callable[[], Sequence[LeaseField]] = (),
        identity: str | None = None,
        describe: Callable[[str], str] | None = None,
    ) -> None:
        self._store = store
        self._context = context
        self._host = host
        self._timing = timing
        self._lease_fields = lease_fields
        self._describe = describe
        self._state = initial(
            Holder(identity or context.node_name, host.ids.token(6)),
            timing,
            expires_itself=Capability.EXPIRES_ITSELF in capabilities,
        )
        self._log = Complaints(host, context.backend)
        self._change: anyio.Event | None = None
        self._rescheduled = anyio.Event()
        self._sleep = anyio.CancelScope()
        self._store_free = anyio.Lock()
        self._hurried = anyio.Event()
        self._ledger: MarksLedger | MemoryLedger = (
            MarksLedger(store, context.job_set_id, host, timing.op_timeout)
            if isinstance(store, RebootMarks)
            else MemoryLedger(context.job_set_id)
        )
        self._door = (
            ClaimDoor(
                store,
                self,
                host,
                op_timeout=timing.op_timeout,
                ttl=timing.ttl,
                worst_handover=2 * timing.ttl + timing.renew_every + CHALLENGER_MARGIN,
            )
            if isinstance(store, ClaimLog) and Capability.OCCURRENCE_CLAIMS in capabilities
            else None
        )
        self._inheritance = Inheritance()

    # -- what others ask ----------------------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        """The view of this instant: comparisons with the boot clock, nothing cached."""
        state, boot = self._state, self._host.clock.now().boot
        fields = self._lease_fields
        return ClusterView(
            backend=self._context.backend,
            node_name=self._context.node_name,
            job_set_id=self._context.job_set_id(),
            quorate=is_quorate(state, boot),
            leader=leader_name(state, boot),
            is_leader=is_leader(state, boot),
            available=available(state, boot),
            deadline=state.deadline,
            lease=LeaseView(
                identity=state.me.name,
                holder=state.holder.name if state.holder is not None else None,
                expiry=state.expiry,
                fence=state.fence,
                fields=tuple(fields() if callable(fields) else fields),
            ),
        )

    async def wait_change(self) -> None:
        """Return after the next change of leadership, quorum, the known leader or the @reboot marks."""
        if self._change is None:
            self._change = anyio.Event()
        await self._change.wait()

    def reboot_ran(self, job: str) -> bool | None:
        """Whether a deferred @reboot job has run under the live job-set id; None until that is known for this term."""
        return self._ledger.ran(job)

    async def mark_reboot_ran(self, job: str) -> bool:
        """Record the run before it starts; only a leader can. False: do not run."""
        async with self._store_free:
            state = self._state
            if state.grant is None or not is_leader(state, self._host.clock.now().boot):
                return False
            return await self._ledger.mark(state.grant, job)

    # -- claims -------------------------------------------------------------------------------------------------------

    @property
    def claims(self) -> Claims | None:
        """The claim log of the term held, None when the store keeps none."""
        return self._door

    @property
    def grant(self) -> Grant | None:
        """The term held now, also when it may not be acted on; None while there is none."""
        return None if self._state.resigning else self._state.grant

    @property
    def term(self) -> HeldTerm | None:
        """See ``Claims.term``."""
        return self._inheritance.term(self.grant)

    @property
    def leads(self) -> bool:
        """Whether the term may be acted on at this instant."""
        return is_leader(self._state, self._host.clock.now().boot)

    @property
    def store_free(self) -> anyio.Lock:
        """Held by whoever asks the store for something: one writer at a time (claims.md 9)."""
        return self._store_free

    async def stand_down(self, seconds: Seconds) -> None:
        """Let go of the lease, and leave it to others for ``seconds``."""
        async with self._store_free:
            self._step(Resign(seconds))
            self._sleep.cancel()

    def hurry(self) -> None:
        """See ``Hasty.hurry``. A release that is under way has one more second: a second signal may follow at once."""
        self._hurried.set()

    # -- the task -----------------------------------------------------------------------------------------------------

    async def run(self, host: Host, *, task_status: Started) -> None:
        """Elect until cancelled; then release, shielded and within a deadline. Once: a term ends with its process."""
        if self._state.phase is not Phase.RUNNING:
            raise RuntimeError("a LeaseBackend runs once: build a new one")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_deadlines)
                await self._first_round()
                task_status.started()
                while True:
                    await self._turn()
                    await self._read_marks()
        finally:
            with anyio.move_on_after(RELEASE_WITHIN + HURRIED, shield=True):
                async with anyio.create_task_group() as last:
                    last.start_soon(self._cut_when_hurried, last.cancel_scope)
                    await self._let_go()
                    last.cancel_scope.cancel()
            if self._state.in_flight is not None:
                self._step(Failed("there was no time left"))

    async def _first_round(self) -> None:
        """One bounded round, so that the first view is real: what stands there, and the lease if it is free."""
        await self._turn()
        if self._state.vacant is not None:
            await self._turn()
        await self._read_marks()
        identity = str(self._state.me)
        rest = self._describe(identity) if self._describe else f"(identity={identity}, ttl={self._timing.ttl:g})"
        if is_quorate(self._state, self._host.clock.now().boot):
            self._host.log.info("cluster: %s election ready %s", self._context.backend, rest)
        else:
            self._host.log.warning("cluster: %s election starts without contact %s", self._context.backend, rest)

    async def _turn(self) -> bool:
        """Do the next thing; False when there is nothing left to do."""
        ids = self._host.ids
        wait: Wait | None = None
        # The deadline of a request is counted from here on, so the store must be free before.
        async with self._store_free:
            for command in self._step(Ready(ids.token(8), ids.token(6), self._host.rng.random())):
                match command:
                    case Wait():
                        wait = command
                    case Acquire() | Renew() | Observe() | Release():
                        event = await self._ask(command)
                        self._inheritance = self._inheritance.note(command, event)
                        self._step(event)
                    case Finished():
                        return False
                    case Gained() | Lost() | Quorum() | Note():
                        pass
                    case _:
                        assert_never(command)
        if wait is not None:
            await self._rest(wait.until)
        return True

    async def _rest(self, until: float) -> None:
        with anyio.CancelScope() as self._sleep:
            await self._host.clock.sleep(max(until - self._host.clock.now().boot, SHORTEST_WAIT))

    async def _ask(self, request: Request) -> Event:
        cut = request.cut if isinstance(request, Observe) else None
        until = request.by if cut is None else min(cut, request.by)
        patience = max(0.0, until - self._host.clock.now().boot)
        with anyio.move_on_after(patience):
            try:
                return Answered(await self._send(request))
            except StoreUnavailable as error:
                return Failed(str(error) or "the store is unavailable")
            except Exception as error:  # noqa: BLE001 - a store's bug must cost leadership, never the daemon
                self._log.bug(error)
                return Failed(f"{type(error).__name__}: {error}")
        if cut is not None and cut < request.by:
            return Cut()
        return Failed(f"no answer within {min(patience, self._timing.op_timeout):.3g} s")

    def _send(self, request: Request) -> Awaitable[Observation | None]:
        store = self._store
        match request:
            case Acquire(me, ttl, nonce, over):
                return store.acquire(me, ttl, nonce=nonce, over=over)
            case Renew(grant, nonce):
                return store.renew(grant, nonce=nonce)
            case Observe():
                return store.observe()
            case Release(grant):
                return store.release(grant, self._door.returned if self._door is not None else ())
            case _:
                assert_never(request)

    async def _read_marks(self) -> None:
        state, boot = self._state, self._host.clock.now().boot
        if not self._ledger.due(state.grant, boot):
            return
        async with self._store_free:
            failure = await self._ledger.read(state.grant)
        if failure is None:
            self._notify()
        else:
            self._log.note(Note("marks", Level.WARNING, f"the @reboot marks could not be read: {failure}"))

    async def _watch_deadlines(self) -> None:
        """Announce what time alone changes, also while the store hangs."""
        while True:
            boot = self._host.clock.now().boot
            at = next_change(self._state, boot)
            with anyio.move_on_after(None if at is None else max(at - boot, SHORTEST_WAIT)):
                await self._rescheduled.wait()
            self._step(Tick())

    async def _cut_when_hurried(self, scope: anyio.CancelScope) -> None:
        await self._hurried.wait()
        await self._host.clock.sleep(HURRIED)
        scope.cancel()

    async def _let_go(self) -> None:
        self._step(Stop())
        while await self._turn():
            pass

    # -- the machine --------------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> tuple[Command, ...]:
        now = self._host.clock.now()
        before = self._state
        self._state, commands = step(before, event, now)
        for command in commands:
            self._log.command(command)
        if isinstance(event, Answered) and event.observation is not None and not self._state.failures:
            self._log.round_worked()
        if self._shown(before, now) != self._shown(self._state, now) or before.leading != self._state.leading:
            self._notify()
        if (before.deadline, before.quorum_until) != (self._state.deadline, self._state.quorum_until):
            self._rescheduled.set()
            self._rescheduled = anyio.Event()
        return commands

    @staticmethod
    def _shown(state: LeaseState, now: Instant) -> tuple[bool, bool, str | None]:
        return state.leading, state.quorate, leader_name(state, now.boot)

    def _notify(self) -> None:
        event, self._change = self._change, None
        if event is not None:
            event.set()


class Complaints:
    """What the election says in the log. A complaint that goes on is repeated once a minute, with a count."""

    def __init__(self, host: Host, backend: str) -> None:
        self._host = host
        self._backend = backend
        self._last: dict[str, float] = {}
        self._held_back: dict[str, int] = {}
        self._bugs: set[str] = set()

    def command(self, command: Command) -> None:
        """Log what is worth an operator's line."""
        log = self._host.log
        match command:
            case Gained(fence):
                log.info("cluster: this node is the leader (%s, fence %d)", self._backend, fence)
            case Lost(reason):
                say = log.info if reason is Loss.STOPPED else log.warning
                say("cluster: leadership lost: %s", reason)
            case Quorum(quorate):
                if quorate:
                    log.info("cluster: in contact with the %s lease", self._backend)
                else:
                    log.warning("cluster: no contact with the %s lease: Leader jobs stop here", self._backend)
            case Note():
                self.note(command)
            case Acquire() | Renew() | Observe() | Release() | Wait() | Finished():
                pass
            case _:
                assert_never(command)

    def note(self, note: Note) -> None:
        """Log a note, unless the same kind was logged within the last minute."""
        boot = self._host.clock.now().boot
        if boot - self._last.get(note.kind, -QUIET) < QUIET:
            self._held_back[note.kind] = self._held_back.get(note.kind, 0) + 1
            return
        again = self._held_back.pop(note.kind, 0)
        self._last[note.kind] = boot
        suffix = f" ({again} more like it in the last minute)" if again else ""
        text = f"{self._backend} election round failed: {note.text}" if note.kind == "round" else note.text
        say = {
            Level.INFO: self._host.log.info,
            Level.WARNING: self._host.log.warning,
            Level.ERROR: self._host.log.error,
        }
        say[note.level]("cluster: %s%s", text, suffix)

    def round_worked(self) -> None:
        """A round worked: the next failure is news again."""
        if self._last.pop("round", None) is not None:
            self._held_back.pop("round", None)
            self._host.log.info("cluster: %s election rounds work again", self._backend)

    def bug(self, error: Exception) -> None:
        """A store raised what it may not raise: the traceback is logged once per sort of error."""
        sort = f"{type(error).__name__}: {error}"[:200]
        if sort not in self._bugs and len(self._bugs) < 20:
            self._bugs.add(sort)
            self._host.log.error(
                "cluster: a bug in the %s store, only StoreUnavailable may leave it; treated as unavailable",
                self._backend,
                exc_info=error,
            )
