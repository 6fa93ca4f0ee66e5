"""The election: pollers, the beat that notices a standstill, and what is answered to peers, around a ``Node``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from cronstable.api import ClusterView, ElectionContext, FleetReport, Host, Json, Seconds, Started
from cronstable_gossip import decisions, payload, settings
from cronstable_gossip.asking import Asker
from cronstable_gossip.load import NodeLoad
from cronstable_gossip.logbook import Logbook
from cronstable_gossip.model import Claim, Failed, Me, Reading, Report, Seen
from cronstable_gossip.network import Bounds, TlsNetwork
from cronstable_gossip.node import Node, Timing, scheme
from cronstable_gossip.payload import BadReport
from cronstable_gossip.settings import Settings, shares_node_stats
from cronstable_gossip.summaries import Summaries, fleet, own_entry
from cronstable_gossip.wire import Caller, MakeTransport, Reply, Transport, Untrusted

ROTATION_CHECK: Final[Seconds] = 60.0
"""How often the certificate files are looked at (reference 3.7)."""
BUILT_FOR: Final[Seconds] = 1.0
"""How long an answer that was built may be given again while nothing but run summaries changed (reference 6.4)."""
FIRST_ROUND: Final[Seconds] = 30.0
PUSH_DEADLINE: Final[Seconds] = 10.0
"""For telling the others of an @reboot run, which waits for it; less than the host gives the mark."""
PUBLISH_EVERY: Final[Seconds] = 5.0
"""Also how long the first answer of a round waits for the others, so that all are published together."""
STOP_DEADLINE: Final[Seconds] = 5.0
REFRESH_SHARE: Final = 0.9
"""Of connectTimeout: an immediate round ends before whoever waits for it gives up."""
GRACE_SHARE: Final = 0.05
"""Of connectTimeout: how long a question on its way is waited for before it is given up for a new one."""


def make(context: ElectionContext, host: Host) -> GossipElection:
    """The factory of the backend ``gossip``."""
    section = settings.read(context.cluster, context.node_name)
    bounds = Bounds(context.connect_timeout, section.interval * 2 + context.connect_timeout)

    def network(instance_id: str) -> Transport:
        return TlsNetwork(host, section.listen, section.peers, section.tls, instance_id, bounds)

    return GossipElection(context, host, section, network)


class GossipElection:
    """Implements ``Election``, ``Observable``, ``Refreshable``, ``Rehearsable`` and ``RebootLedger``.

    Each peer is polled on its own timer, start to start. Evidence is stamped when its question is sent.
    """

    def __init__(
        self,
        context: ElectionContext,
        host: Host,
        section: Settings,
        make_transport: MakeTransport,
        rotation_check: Seconds = ROTATION_CHECK,
        *,
        what: str = "cluster",
        node_load: NodeLoad | None = None,
    ) -> None:
        self._context = context
        self._host = host
        self._section = section
        self._timing = Timing(section.interval, context.connect_timeout)
        self._rotation_check = rotation_check
        self._load = node_load or NodeLoad(host)
        self._shares = shares_node_stats(context.beside.get("observability"))
        self._stats: Mapping[str, float] | None = None
        job_set_id = context.job_set_id()
        # Minted here: an election that is rebuilt is a new process to its peers and has to be attested again (6.9).
        me = Me(
            context.node_name,
            host.ids.token(16),
            job_set_id,
            scheme(job_set_id),
            context.distribution,
            context.elect_leader,
            section.drift_after,
        )
        self._node = Node(me, [str(peer) for peer in section.peers], self._timing, now=host.clock.now().boot)
        self._transport = make_transport(me.instance_id)
        self._summaries = Summaries(host)
        self._asker = Asker(host.clock, self._transport, lambda: self._node.peers, me.name)
        self._what = what
        self._logbook = Logbook(host.log, me.name, what, decides=what == "cluster", elects=me.elect_leader)
        count = len(section.peers)
        self._tags: list[str | None] = [None] * count
        self._cache: list[Report | None] = [None] * count
        self._headers: list[tuple[str, Mapping[str, float]] | None] = [None] * count
        self._polls: list[anyio.CancelScope | None] = [None] * count
        self._sent = [float("-inf")] * count
        self._instead = [False] * count
        self._wakes = [anyio.Event() for _ in range(count)]
        self._hangups = [float("-inf")] * count
        self._changed = anyio.Event()
        self._heard = anyio.Event()
        self._built: tuple[tuple[object, ...], float, payload.Body] | None = None
        self._looked = float("-inf")
        self._together = float("-inf")
        self._refreshing = 0
        self._stale = False
        self._announced = -1
        self._running = False

    # -- Election -----------------------------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        """The snapshot of this instant; the first look after a standstill notices it."""
        now = self._host.clock.now().boot
        self._node.adopt(self._context.job_set_id())
        if self._running and self._node.beat(now):
            self._doubt()
        return self._node.view(now) if self._running else self._node.idle_view()

    async def rehearse(self) -> None:
        """Whether the certificates load."""
        await self._transport.rehearse()

    async def run(self, host: Host, *, task_status: Started) -> None:
        """Answer and ask until cancelled. One whole round comes first, so that the first view is real.

        Who has not answered by ``FIRST_ROUND`` is not waited for: a start that takes too long is given up.
        """
        await self._transport.open(self)
        try:
            self._node.begin(self._now())
            self._running = True
            self._beat()
            async with anyio.create_task_group() as tasks:
                with anyio.move_on_after(FIRST_ROUND):
                    async with anyio.create_task_group() as first:
                        for index in range(len(self._section.peers)):
                            first.start_soon(self._poll, index)
                self._settle()
                for index in range(len(self._section.peers)):
                    tasks.start_soon(self._keep_asking, index)
                tasks.start_soon(self._rotate)
                tasks.start_soon(self._publish)
                task_status.started()
        finally:
            self._running = False
            self._host.publish(FleetReport(self._context.backend, ()))
            self._announce()
            with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_DEADLINE):
                await self._transport.close()

    async def wait_change(self) -> None:
        """Until the view may have changed."""
        await self._changed.wait()

    async def refresh(self) -> None:
        """Ask every peer again, now; back when all of whom there was news have answered or failed."""
        asked = self._now()
        self._refreshing += 1
        try:
            self._ask_everybody()
            while self._running and not self._node.asked_since(asked):
                await self._changed.wait()
        finally:
            self._refreshing -= 1

    def adjust(self, beside: Mapping[str, Json]) -> None:
        """``observability`` was edited: share, or share no more, from the next answer on."""
        self._shares = shares_node_stats(beside.get("observability"))

    def _now(self) -> float:
        return self._host.clock.now().boot

    def _announce(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # -- the beat -----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Prove that the loop runs, twice as often as it has to: a bare timer, since it fires all day long."""
        if not self._running:
            return
        asyncio.get_running_loop().call_later(self._timing.lag / 2, self._beat)
        if self._node.beat(self._now()):
            self._doubt()
        elif self._node.candidacy.claim is Claim.STANDING:
            self._settle()

    def _doubt(self) -> None:
        self._host.log.warning(
            "%s: this node stood still, so it asks its peers before it acts on what it knew", self._what
        )
        self._ask_everybody()
        self._announce()

    def _ask_everybody(self, but: int | None = None) -> None:
        for index in range(len(self._section.peers)):
            if index == but:
                continue
            poll = self._polls[index]
            # One that was asked instead of one that was given up has its whole time: jobs that are due each second make
            # everybody be asked each second, and a peer that says nothing would never be found to be silent.
            if poll is not None and not (self._instead[index] and self._node.counts(self._sent[index])):
                # A busy machine has the answer already, and to drop the question would cost both sides a handshake.
                grace = GRACE_SHARE * self._timing.timeout
                asyncio.get_running_loop().call_later(grace, self._give_up, index, poll)
            self._wakes[index].set()

    def _give_up(self, index: int, poll: anyio.CancelScope) -> None:
        if self._polls[index] is poll:
            self._instead[index] = True
            poll.cancel()

    def _settle(self) -> None:
        """Draw conclusions, and tell whoever waits when they differ."""
        before = self._node.candidacy.claim
        for index in self._node.settle(self._now()):
            sent = self._node.peers[index].sent or 0.0
            self._wake_in(index, sent + self._timing.fast - self._now())
        if before is not Claim.STANDING and self._node.candidacy.claim is Claim.STANDING:
            for wake in self._wakes:
                wake.set()
        stale, before_stale = self._node.stale(self._now()), self._stale
        self._stale = stale
        if self._node.generation != self._announced:
            self._announced = self._node.generation
            self._logbook.note(self._node.peers, self._node.derived())
            self._announce()
        elif self._refreshing or stale != before_stale:
            self._announce()

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _keep_asking(self, index: int) -> None:
        sent = float("-inf")
        while True:
            # A bare timer, as for the beat: a deadline around the wait would cost a cancellation for each question.
            wake = self._wakes[index]
            due = asyncio.get_running_loop().call_later(max(0.0, self._wait(index, sent)), wake.set)
            try:
                await wake.wait()
            finally:
                due.cancel()
            self._wakes[index] = anyio.Event()
            sent = self._sent[index] = self._now()
            with anyio.CancelScope() as self._polls[index]:
                await self._poll(index)
                self._instead[index] = False
            self._polls[index] = None

    def _wait(self, index: int, sent: float) -> Seconds:
        """How long peer ``index`` waits for its next question.

        Chance may make it a tenth of an interval earlier, so questions that are due within that of each other go out
        together: the loop wakes once for all of them.
        """
        now = self._now()
        due = now + self._node.wait(index, sent, now, self._host.rng.random())
        latest = sent + self._timing.interval
        earliest = latest - self._timing.interval / 10
        if due < earliest:
            return due - now
        if not max(earliest, now) <= self._together <= latest:
            self._together = due
        return self._together - now

    async def _poll(self, index: int) -> None:
        """One question to one peer, and what follows from it."""
        sent = self._now()
        timeout = self._timing.timeout * (REFRESH_SHARE if self._node.stale(sent) else 1.0)
        try:
            reply = await self._transport.ask(index, self._tags[index], timeout)
            outcome: Seen | Failed = Seen(self._read(index, reply), sent, self._host.clock.now().wall)
            self._load_of(index, reply.stats, sent)
        except Untrusted as error:
            outcome = Failed(str(error), sent, untrusted=True)
        except ConnectionRefusedError as error:
            outcome = Failed(str(error), sent, refused=True)
        except (OSError, BadReport) as error:
            outcome = Failed(str(error) or type(error).__name__, sent)
            if isinstance(error, ConnectionError) and self._node.peers[index].fresh:
                # A process that is killed may reset the first connection that comes after, and refuse only the next.
                self._wake_in(index, sent + self._timing.fast - self._now())
        except Exception as error:  # noqa: BLE001 - what we overlooked in an answer costs that peer, not the election
            outcome = Failed(f"its answer cannot be read: {type(error).__name__}: {error}", sent)
            self._logbook.note_odd(self._node.peers[index].host, error)
        self._heard.set()
        self._node.adopt(self._context.job_set_id())
        if self._node.polled(index, outcome, self._now()):
            self._ask_everybody(but=index)
        self._settle()

    def _read(self, index: int, reply: Reply) -> Report:
        """The report of a reply; a 304 repeats the one that its tag stands for."""
        if reply.status == 304:
            report = self._cache[index]
            if self._tags[index] is None or report is None:
                self._forget(index)
                raise BadReport("answered 304 to a question without a tag")
            return report
        self._forget(index)
        report = payload.parse(reply.body or b"")
        if reply.etag is not None:
            self._tags[index], self._cache[index] = reply.etag, report
        return report

    def _load_of(self, index: int, header: str | None, sent: float) -> None:
        """Keep what a peer says of its load. What is malformed says nothing: the reading before it ages."""
        before = self._headers[index]
        if header is None:
            self._headers[index] = None
            self._node.show(index, None)
            return
        values = before[1] if before is not None and before[0] == header else payload.parse_stats(header)
        if values:
            self._headers[index] = (header, values)
            self._node.show(index, Reading(values, sent))

    def _forget(self, index: int) -> None:
        self._tags[index], self._cache[index] = None, None

    async def _rotate(self) -> None:
        while True:
            await self._host.clock.sleep(self._rotation_check)
            await self._transport.rotate()

    async def _publish(self) -> None:
        """Give what the others say of their runs to whoever shows it: after each round of questions.

        Not at a time of its own: what was just asked would be as old again before it is shown.
        """
        interval = max(PUBLISH_EVERY, self._timing.interval)
        while True:
            self._heard = anyio.Event()
            self._stats = await self._load.look() if self._shares else None
            self._summaries.look()
            jobs, truncated = self._summaries.now(), self._summaries.truncated
            name, host, wall = self._context.node_name, str(self._section.listen), self._host.clock.now().wall
            own = own_entry(name, host, wall, jobs, truncated=truncated, stats=self._stats)
            self._node.forget_old_stats(self._now())
            nodes = fleet(own, self._node.peers, self._now())
            report = FleetReport(self._context.backend, nodes, self._timing.interval, self._asker.ask)
            self._host.publish(report)
            with anyio.move_on_after(interval):
                await self._heard.wait()
            await self._host.clock.sleep(PUBLISH_EVERY)

    # -- answering ----------------------------------------------------------------------------------------------------

    def peer(self, caller: Caller) -> Reply:
        """What this node says of itself; the first thing that runs after a standstill may be this."""
        now = self._now()
        self._node.adopt(self._context.job_set_id())
        if self._node.beat(now):
            self._doubt()
        if caller.instance_id is not None:
            self._meet(caller.instance_id, now)
        body = self._body(now, caller.etag)
        stats = payload.build_stats(self._stats) if self._shares and self._stats else None
        if caller.etag == body.etag:
            return Reply(304, body.etag, None, stats)
        return Reply(200, body.etag, body.content, stats)

    def _meet(self, instance_id: str, now: float) -> None:
        """Somebody we have no news of lives: ask those who are silent a little sooner.

        It may be the successor of one that still counts as fresh, where no connection was seen to end: who calls for
        the first time has everybody asked, so that it is attested soon. Once, since a node that lists us and that we do
        not list goes on to call.
        """
        first = self._node.called(instance_id, now)
        if self._node.knows(instance_id):
            return
        for index, peer in enumerate(self._node.peers):
            soonest = (peer.sent or 0.0) + self._timing.fast
            if first and peer.fresh:
                asyncio.get_running_loop().call_later(max(0.0, soonest - now), self._meet_at, index, instance_id, now)
            elif not peer.fresh and not peer.is_self and soonest < now:
                self._wakes[index].set()

    def _meet_at(self, index: int, instance_id: str, met: float) -> None:
        peer = self._node.peers[index]
        if not peer.is_self and (peer.sent or 0.0) < met and not self._node.knows(instance_id):
            self._wakes[index].set()

    def _body(self, now: float, known: str | None) -> payload.Body:
        """The answer of now. One that the caller knows need not be made again to count down."""
        if now - self._looked >= BUILT_FOR:
            self._looked = now
            self._summaries.look()
        node = self._node
        waits = node.waiting_for(now)
        key = (node.generation, node.me.job_set_id, node.stale(now), waits, self._summaries.version)
        if self._built is not None and self._built[0] == key:
            _, made, body = self._built
            if body.etag == known or now - made < BUILT_FOR:
                return body
        report = node.report(now, self._summaries.now(), truncated=self._summaries.truncated)
        body = payload.build(report, self._host.clock.now().wall)
        self._logbook.note_body(body)
        self._built = (key, now, body)
        return body

    def take(self, body: bytes) -> bool:
        """A push of another node; that of another job set is ignored."""
        try:
            job_set_id, names = payload.parse_reboot_ran(body)
        except BadReport:
            return False
        self._node.adopt(self._context.job_set_id())
        if self._node.mark_ran(job_set_id, names):
            self._announce()
        return True

    def decisions(self, job: str, limit: int) -> Callable[[], bytes]:
        """Why a job ran on this node or did not, for a peer that is asked so; taken now, written by the call."""
        name, records = self._context.node_name, self._host.decisions(job, limit)
        return lambda: decisions.build(name, records)

    def hung_up(self, index: int) -> None:
        """A peer may have ended: ask it now, not when its interval is over; only its closed port says that it did.

        Twice an interval at most, since there may be one that hangs up after each answer.
        """
        now = self._now()
        if self._running and self._hangups[index] <= now:
            self._hangups[index] = max(now, self._hangups[index] + self._timing.interval / 2)
            self._wake_in(index, self._hangups[index] - now)

    def _wake_in(self, index: int, seconds: Seconds) -> None:
        asyncio.get_running_loop().call_later(max(0.0, seconds), self._wake, index)

    def _wake(self, index: int) -> None:
        self._wakes[index].set()

    # -- RebootLedger -------------------------------------------------------------------------------------------------

    def reboot_ran(self, job: str) -> bool | None:
        """Did this @reboot job run in this cluster, under this job set?"""
        self._node.adopt(self._context.job_set_id())
        return self._node.reboot_ran(job)

    async def mark_reboot_ran(self, job: str) -> bool:
        """Remember it, and tell every peer before it starts, as far as they can be reached in time."""
        job_set_id = self._context.job_set_id()
        self._node.adopt(job_set_id)
        if self._node.reboot_ran(job):
            return False
        self._node.mark_ran(job_set_id, [job])
        body = payload.build_reboot_ran(job_set_id, [job])
        # Whatever becomes of telling them, it is remembered here now, and a run that is remembered has to happen.
        with anyio.move_on_after(min(self._timing.timeout, PUSH_DEADLINE)):
            async with anyio.create_task_group() as pushes:
                for index, peer in enumerate(self._node.peers):
                    if peer.fresh and not peer.is_self:
                        pushes.start_soon(self._push, index, body)
        return True

    async def _push(self, index: int, body: bytes) -> None:
        try:
            await self._transport.push(index, body, self._timing.timeout)
        except (OSError, BadReport) as error:
            # The next question of that peer tells it just as well.
            self._host.log.debug("cluster: %s was not told of an @reboot run: %s", self._node.peers[index].host, error)
