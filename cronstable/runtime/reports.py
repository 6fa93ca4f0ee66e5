"""Reports: tells people how runs end and who leads, off the scheduling path (reference 2.3, 2.4, 9).

Each distinct section of a reporter is a *target* with a bounded queue and one task while there is something to say, so
that an endpoint that hangs delays nobody else. Messages of one job to reporters of one kind keep their order even when
their sections differ: the next is not begun before the last is delivered or given up.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import anyio
from anyio.abc import TaskGroup

from cronstable.config.reporters import notifier_settings
from cronstable.core.clock import Seconds
from cronstable.core.events import LeaderChanged, QuorumChanged
from cronstable.core.hooks import hooks_of
from cronstable.core.job import Job, Json
from cronstable.core.runs import RunRecord
from cronstable.plugin.descriptors import NotifierBackend
from cronstable.plugin.errors import InvalidSettings, NotDelivered
from cronstable.plugin.manager import Provided
from cronstable.plugin.protocols import Bounded, Host, LeaderChange, Message, Notifier, QuorumLoss, Report
from cronstable.runtime.bus import EventBus

QUEUE: int = 1000
"""Messages that wait for one target; more drop the oldest. A shared cause makes hundreds of jobs fail in one minute."""
SEND_DEADLINE: Seconds = 60.0
"""For one try of a notifier that does not bound itself."""
BOUNDED_EXTRA: Seconds = 5.0
"""What a notifier that bounds itself is given beyond its word."""
MAKE_DEADLINE: Seconds = 30.0
ATTEMPTS: int = 3
PAUSE: Seconds = 1.0
"""Before the second try; four times as long before the third."""
LONGEST_PAUSE: Seconds = 30.0
"""However long the other side asks us to wait."""
GRACE: Seconds = 5.0
"""At the daemon's stop: how long what waits may still be delivered."""

MakeNotifier = Callable[[Provided[NotifierBackend], object, Host], Notifier]
Chain = tuple[str, str]


@dataclass(slots=True)
class Counts:
    """Of one notifier, since the daemon started. ``dropped``: given up without a try, the queue being full."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    """A message on its way. ``chain``: what it keeps its order with."""

    message: Message
    chain: Chain


@dataclass(slots=True, eq=False)
class _Target:
    """One section and what waits for it."""

    key: tuple[str, str]
    provided: Provided[NotifierBackend]
    settings: object
    queue: deque[_Entry] = field(default_factory=deque)
    wake: anyio.Event = field(default_factory=anyio.Event)

    @property
    def name(self) -> str:
        return self.key[0]


class Reports:
    """The queues and who empties them. What says that something happened is a plain call: it never waits or raises."""

    def __init__(
        self,
        *,
        notifiers: Mapping[str, Provided[NotifierBackend]],
        make: MakeNotifier,
        host: Host,
        bus: EventBus,
        log: logging.Logger,
        hostname: str,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._notifiers = notifiers
        self._make = make
        self._host = host
        self._bus = bus
        self._clock = host.clock
        self._rng = host.rng
        self._log = log
        self._hostname = hostname
        self._stopping = stopping
        self._notify: Mapping[str, Json] = MappingProxyType({})
        self._tasks: TaskGroup | None = None
        self._targets: dict[tuple[str, str], _Target] = {}
        self._chains: dict[Chain, deque[_Entry]] = {}
        self._settings: dict[tuple[str, str], object] = {}
        self._idle = anyio.Event()
        self.counts: dict[str, Counts] = {name: Counts() for name in notifiers}
        self.heard: Callable[[Report], None] | None = None
        """Hears of every hook that fires, whether anybody is to be told or not."""

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group deliveries live in; once, before the first message."""
        self._tasks = tasks

    def configure(self, notify: Mapping[str, Json] | None) -> None:
        """Take over the ``notify`` section; at start and at each reload."""
        self._notify = notify or MappingProxyType({})
        self._settings.clear()

    @property
    def waiting(self) -> int:
        """Messages that are not delivered yet, those under way included."""
        return sum(len(chain) for chain in self._chains.values())

    # -- what happened ------------------------------------------------------------------------------------------------

    def run_over(self, job: Job, record: RunRecord, *, will_retry: bool) -> None:
        """A run is over: whatever hooks follow from its outcome are told."""
        for event in hooks_of(record.outcome, will_retry=will_retry, stopping=self._stopping()):
            self.report(Report(event, job, record, self._hostname))

    def gave_up(self, job: Job, record: RunRecord) -> None:
        """Retries of a failed run end without another try: its failure is permanent after all."""
        self.report(Report("onPermanentFailure", job, record, self._hostname))

    def report(self, report: Report) -> None:
        """Tell whoever the job names for this event."""
        report = report if report.host else replace(report, host=self._hostname)
        if self.heard is not None:
            self.heard(report)
        hook = report.job.options.raw.get(report.event)
        if isinstance(hook, Mapping):
            self._tell(report, hook.get("report"), report.job.name, f"job {report.job.name}: {report.event}")

    def announce(self, message: LeaderChange | QuorumLoss) -> None:
        """Tell whoever the ``notify`` section names, if it names this event."""
        event = "leader_change" if isinstance(message, LeaderChange) else "quorum_loss"
        events = self._notify.get("events")
        if not isinstance(events, list) or event in events:
            self._tell(message, self._notify.get("report"), "", f"notify: {event}")

    async def follow(self) -> None:
        """Announce each change of leadership and each loss of quorum, until cancelled."""
        async for event in self._bus.subscribe(LeaderChanged, QuorumChanged):
            if isinstance(event, LeaderChanged):
                self.announce(
                    LeaderChange(event.node, event.is_leader, event.leader, event.at, event.reason, self._hostname)
                )
            elif isinstance(event, QuorumChanged) and not event.quorate and not self._stopping():
                # A node that is told to stop loses no quorum, it leaves.
                self.announce(QuorumLoss(event.node, event.at, event.reason, self._hostname))

    async def finish(self, grace: Seconds = GRACE) -> None:
        """The daemon stops: what waits has ``grace`` seconds to be delivered; what is left is dropped."""
        # Whoever follows the bus gets to see the last events first.
        await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(grace):
            while self._targets:
                self._idle = anyio.Event()
                await self._idle.wait()
        for target in tuple(self._targets.values()):
            for entry in tuple(target.queue):
                self._drop(target, entry, "the daemon stops")
        for (_, name), chain in self._chains.items():
            for entry in chain:
                self._count(name).failed += 1
                self._log.warning("%s: %s may not have been told, the daemon stops", said(entry.message), name)

    # -- queues -------------------------------------------------------------------------------------------------------

    def _tell(self, message: Message, sections: Json, subject: str, what: str) -> None:
        if not isinstance(sections, Mapping):
            return
        for name, section in sections.items():
            if isinstance(section, Mapping) and name in self._notifiers:
                target = self._target(name, section, what)
                if target is not None:
                    self._offer(target, _Entry(message, (subject, name)))

    def _target(self, name: str, section: Mapping[str, Json], what: str) -> _Target | None:
        """The target of a section; None when it names nobody to tell."""
        key = (name, json.dumps(section, sort_keys=True, default=str))
        known = self._targets.get(key)
        if known is not None:
            return known
        provided = self._notifiers[name]
        if key not in self._settings:
            try:
                self._settings[key] = notifier_settings(provided.descriptor, section)
            except Exception as error:  # noqa: BLE001 - the parse function comes from a plugin
                self._count(name).failed += 1
                self._log.error("%s: %s could not be told: %s", what, name, _reason(error))
                return None
        settings = self._settings[key]
        if settings is None:
            return None
        target = self._targets[key] = _Target(key, provided, settings)
        assert self._tasks is not None, "bind() comes first"
        self._tasks.start_soon(self._work, target)
        return target

    def _offer(self, target: _Target, entry: _Entry) -> None:
        if len(target.queue) >= QUEUE:
            self._drop(target, target.queue[0], f"{QUEUE} others wait")
        target.queue.append(entry)
        self._chains.setdefault(entry.chain, deque()).append(entry)
        target.wake.set()

    def _drop(self, target: _Target, entry: _Entry, why: str) -> None:
        target.queue.remove(entry)
        self._over(entry)
        counts = self._count(target.name)
        counts.dropped += 1
        self._log.warning("%s: %s was not told, %s (%d dropped)", said(entry.message), target.name, why, counts.dropped)

    def _over(self, entry: _Entry) -> None:
        chain = self._chains[entry.chain]
        chain.remove(entry)
        if not chain:
            del self._chains[entry.chain]
        for target in self._targets.values():
            target.wake.set()

    def _count(self, name: str) -> Counts:
        return self.counts.setdefault(name, Counts())

    # -- deliveries ---------------------------------------------------------------------------------------------------

    async def _work(self, target: _Target) -> None:
        """Deliver what waits for a target, then end: nothing is kept of it, so a reload has nothing to replace."""
        try:
            notifier: Notifier | None = None
            while target.queue:
                entry = next((one for one in target.queue if self._chains[one.chain][0] is one), None)
                if entry is None:
                    await target.wake.wait()
                    target.wake = anyio.Event()
                    continue
                target.queue.remove(entry)
                try:
                    notifier = notifier or await self._made(target, entry.message)
                    if notifier is not None:
                        await self._deliver(target, notifier, entry.message)
                finally:
                    self._over(entry)
        finally:
            del self._targets[target.key]
            self._idle.set()

    async def _made(self, target: _Target, message: Message) -> Notifier | None:
        """The notifier, made in a thread: its imports can take longer than the loop may stand still."""
        try:
            return await self._host.threads.run(
                lambda: self._make(target.provided, target.settings, self._host), timeout=MAKE_DEADLINE, lane="notify"
            )
        except Exception as error:  # noqa: BLE001 - the factory comes from a plugin
            self._failed(target, message, _reason(error))
            return None

    async def _deliver(self, target: _Target, notifier: Notifier, message: Message) -> None:
        try:
            deadline = notifier.longest_send + BOUNDED_EXTRA if isinstance(notifier, Bounded) else SEND_DEADLINE
        except Exception as error:  # noqa: BLE001 - a notifier comes from a plugin
            self._failed(target, message, _reason(error))
            return
        for attempt in range(1, ATTEMPTS + 1):
            reason, pause = await self._try(notifier, message, deadline, attempt)
            if reason is None:
                self._count(target.name).sent += 1
                return
            if pause is None or attempt == ATTEMPTS:
                self._failed(target, message, reason)
                return
            self._log.info("%s: %s: %s; tried again in %.1f s", said(message), target.name, reason, pause)
            await self._clock.sleep(pause)

    async def _try(
        self, notifier: Notifier, message: Message, deadline: Seconds, attempt: int
    ) -> tuple[str | None, Seconds | None]:
        """What went wrong, None when nothing did, and how long to wait before it can go better, None for never."""
        usual = PAUSE * 4 ** (attempt - 1) * (0.75 + self._rng.random() / 2)
        with anyio.move_on_after(deadline) as limit:
            try:
                await notifier.send(message)
                return None, None
            except NotDelivered as error:
                asked = usual if error.after is None else min(max(error.after, usual), LONGEST_PAUSE)
                return _reason(error), asked if error.retry else None
            except OSError as error:
                return _reason(error), usual
            except Exception as error:  # noqa: BLE001 - a notifier comes from a plugin
                return _reason(error), None
        assert limit.cancelled_caught
        return f"no end within {deadline:g} s", None

    def _failed(self, target: _Target, message: Message, reason: str) -> None:
        counts = self._count(target.name)
        counts.failed += 1
        self._log.error("%s: %s could not be told: %s", said(message), target.name, reason)


def said(message: Message) -> str:
    """What a message is about, for the log."""
    match message:
        case Report():
            return f"job {message.job.name}: {message.event}"
        case LeaderChange():
            return "notify: leader_change"
        case QuorumLoss():
            return "notify: quorum_loss"


def _reason(error: Exception) -> str:
    """What the log may say of a failure: any other exception may quote the address or the secret that it was given."""
    if isinstance(error, NotDelivered | InvalidSettings | OSError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__} in the notifier"
