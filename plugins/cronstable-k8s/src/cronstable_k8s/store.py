"""The lease store: lease, claim log, entries and @reboot marks in one Lease, written by compare-and-swap (ADR 0033)."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeAlias, TypeVar

import anyio

from cronstable.api import (
    Appended,
    Fenced,
    Full,
    Grant,
    Held,
    Holder,
    Host,
    Json,
    LeaseRecord,
    Observation,
    Seconds,
    Seen,
    Span,
    StoreUnavailable,
    Taken,
    Vacant,
    Won,
)
from cronstable_k8s import log, marks, record
from cronstable_k8s.leases import Absent, Conflict, Denied, Found, Leases, NotAllowed
from cronstable_k8s.record import Lease

R = TypeVar("R")

TRIES: Final = 8
"""Writes in one call: another is due when somebody else's landed in between, which each costs them a round trip."""

NO_WATCH: Seconds = 300.0
"""Between two tries at a watch that RBAC does not allow."""

AT_ONCE: Seconds = 0.5
"""A watch that is over before that is none: to ask for another would be to spin."""

RELEASE_AGAIN: Seconds = 0.5
"""Between two tries at a release: at most two requests a second to an apiserver that fails (L4)."""

STALE_ENTRY: Seconds = 86_400.0
"""After which the entry of a process that is gone is removed by whoever writes its own."""

LARGEST_ENTRY: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Write(Generic[R]):
    """What to write, and what that amounts to once it stands, given the Lease as it is then."""

    body: Mapping[str, Json]
    then: Callable[[Lease], R]


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """Nothing is to be written."""

    value: R


Decision: TypeAlias = Write[R] | Answer[R]


class KubernetesLeaseStore:
    """``LeaseStore``, ``RebootMarks`` and ``ClaimLog`` over one Lease. One instance per process and lease.

    ``ttl`` stands in for a duration that a foreign holder did not store. ``pace``: seconds from one look to the next
    while another node holds the lease. ``watch``: how long ``observe`` may wait for a change, 0: it only polls.
    """

    def __init__(
        self,
        host: Host,
        leases: Leases,
        *,
        ttl: Seconds,
        pace: Seconds = 0.0,
        watch: Seconds = 0.0,
    ) -> None:
        self._host = host
        self._leases = leases
        self._ttl = ttl
        self._pace = pace
        self._watch = watch
        self._entry = f"{record.ENTRY}{host.ids.token(6)}"
        self._base: Found | None = None
        self._highest = 0
        self._shown: Observation | None = None
        self._looked = -math.inf
        self._followed = False
        self._no_watch_before = -math.inf
        self._forbidden = 0
        self._unpacked: tuple[str | None, log.Log] = (None, log.Log())

    # -- LeaseStore

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """See ``LeaseStore.acquire``."""

        def decide(found: Found) -> Decision[Observation]:
            shown = self._show(found)
            if isinstance(shown, Seen):
                standing = shown.record
                if standing.holder == me and standing.nonce == nonce:
                    return Answer(Held(_grant_of(standing)))
                if over is None or standing.mark != over.record.mark:
                    return Answer(shown)
            elif over is not None:
                return Answer(shown)
            wall = self._host.clock.now().wall
            granted = float(max(1, int(ttl)))
            grant = Grant(me, max(self._highest + 1, int(wall)), nonce, granted, wall + granted)
            terms = 0 if isinstance(found, Absent) else record.transitions_of(found) + 1
            spec = record.held(grant, wall, transitions=terms)
            body = self._body(found, spec, {record.TERM: record.term_of(grant)})
            return Write(body, lambda lease: self._now_held(lease, grant))

        return await self._update(decide, fresh=True)

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """See ``LeaseStore.renew``. A 409 after which the term still shows our last nonce is no loss (claims.md 9)."""

        def decide(found: Found) -> Decision[Observation]:
            shown = self._show(found)
            if not isinstance(shown, Seen):
                return Answer(shown)
            standing, mine = shown.record, replace(grant, nonce=nonce, tried=())
            if mine.owns(standing):
                return Answer(Held(replace(mine, expires_at=grant.expires_at)))
            if not grant.owns(standing):
                return Answer(shown)
            wall = self._host.clock.now().wall
            wanted = replace(mine, expires_at=wall + grant.ttl)
            spec = record.held(wanted, wall, transitions=None)
            body = self._body(found, spec, {record.TERM: record.term_of(wanted)})
            return Write(body, lambda lease: self._now_held(lease, wanted))

        return await self._update(decide)

    async def observe(self) -> Observation:
        """See ``LeaseStore.observe``. Waits for a change where RBAC allows a watch, else keeps ``pace``."""
        if not self._may_watch():
            await self._keep_pace()
        if not (self._followed and self._may_watch()):
            await self._look()
        shown = self._show(await self._known())
        if self._may_watch() and _same(shown, self._shown):
            with anyio.move_on_after(self._watch):
                self._followed = await self._follow(shown)
            if not self._followed:
                await self._look()
            shown = self._show(await self._known())
        else:
            self._followed = False
        self._shown = shown
        return shown

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """See ``LeaseStore.release``. It is tried until it stands or is denied, the host ends it, or the lease is over.

        Whoever waits for this lease waits for its whole duration otherwise, and longer where a renewal that nobody
        answered is still on its way: an apiserver that stands still for two seconds is reason enough.
        """

        def decide(found: Found) -> Decision[None]:
            shown = self._show(found)
            if not isinstance(shown, Seen) or not grant.owns(shown.record):
                return Answer(None)
            body = self._body(found, record.released(), {record.TERM: record.term_of(grant, returned)})
            return Write(body, lambda lease: None)

        until = self._host.clock.now().boot + grant.ttl
        while True:
            try:
                return await self._update(decide)
            except StoreUnavailable as error:
                if isinstance(error, Denied) or self._host.clock.now().boot + RELEASE_AGAIN >= until:
                    raise
                self._host.log.debug("cluster: the lease is not released yet: %s", error)
            await self._host.clock.sleep(RELEASE_AGAIN)

    # -- RebootMarks

    async def reboot_marks(self, job_set_id: str) -> frozenset[str]:
        """See ``RebootMarks.reboot_marks``."""
        found = await self._look()
        return frozenset() if isinstance(found, Absent) else marks.of(found.annotations.get(record.MARKS), job_set_id)

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        """See ``RebootMarks.mark_reboot``."""

        def decide(found: Found) -> Decision[bool]:
            if isinstance(found, Absent) or not found.is_term(grant):
                return Answer(False)
            text = found.annotations.get(record.MARKS)
            if job in marks.of(text, job_set_id):
                return Answer(marks.nonce_of(text, job_set_id, job) == nonce)
            body = self._body(found, {}, {record.MARKS: marks.added(text, job_set_id, job, nonce)})
            if record.size(body) > record.LIMIT:
                raise StoreUnavailable("the annotations of the Lease have no room for a mark of an @reboot job")
            return Write(body, lambda lease: True)

        return await self._update(decide)

    # -- ClaimLog

    async def append(self, grant: Grant, number: int, record_: bytes) -> Appended:
        """See ``ClaimLog.append``."""

        def decide(found: Found) -> Decision[Appended]:
            if isinstance(found, Absent) or not found.is_term(grant):
                return Answer(Fenced())
            standing = self._log_of(found)
            if number <= standing.last:
                there = standing.read(number)
                return Answer(Won(found.at) if there == record_ else Taken(there or b""))
            if number != standing.last + 1:
                # The log that this term has read is not there any more: the term is to be opened anew.
                return Answer(Fenced())
            body = self._body(found, {}, {record.CLAIMS: log.encode(standing.appended(record_))})
            spare = record.SPARE if len(record_) <= record.SMALL else 0
            if record.size(body) > record.BUDGET + spare:
                return Answer(Full(found.at))
            return Write(body, lambda lease: Won(lease.at))

        return await self._update(decide)

    async def read(self, number: int) -> bytes | None:
        """See ``ClaimLog.read``. Records never change, so that one which is known is not asked for again."""
        if isinstance(self._base, Lease):
            known = self._log_of(self._base).read(number)
            if known is not None:
                return known
        found = await self._look()
        return None if isinstance(found, Absent) else self._log_of(found).read(number)

    async def span(self) -> Span:
        """See ``ClaimLog.span``. Never behind: it comes with the Lease."""
        found = await self._look()
        standing = log.Log() if isinstance(found, Absent) else self._log_of(found)
        return Span(standing.first, standing.last, found.at)

    async def trim(self, grant: Grant, first: int) -> None:
        """See ``ClaimLog.trim``."""

        def decide(found: Found) -> Decision[None]:
            if isinstance(found, Absent) or not found.is_term(grant):
                return Answer(None)
            standing = self._log_of(found)
            left = standing.without(first)
            if left == standing:
                return Answer(None)
            return Write(self._body(found, {}, {record.CLAIMS: log.encode(left)}), lambda lease: None)

        await self._update(decide)

    async def put_entry(self, entry: bytes) -> None:
        """See ``ClaimLog.put_entry``. Under a key of its own, over whatever stands in the Lease at that moment."""
        wall = self._host.clock.now().wall

        def decide(found: Found) -> Decision[None]:
            there = {} if isinstance(found, Absent) else found.annotations
            entries = {key: _written(text) for key, text in there.items() if key.startswith(record.ENTRY)}
            stale = {key: None for key, written in entries.items() if written < wall - STALE_ENTRY}
            changed: dict[str, str | None] = {**stale, self._entry: _pack(entry, wall) if entry else None}
            if not entry and not stale and self._entry not in there:
                return Answer(None)
            body = self._body(found, {}, changed)
            if record.size(body) > record.LIMIT:
                raise StoreUnavailable("the annotations of the Lease have no room for unfinished runs")
            return Write(body, lambda lease: None)

        await self._update(decide)

    async def entries(self) -> Sequence[bytes]:
        """See ``ClaimLog.entries``."""
        found = await self._look()
        there = {} if isinstance(found, Absent) else found.annotations
        packed = [there[key] for key in sorted(there) if key.startswith(record.ENTRY)]
        return [entry for text in packed if (entry := _unpack(text)) is not None]

    # -- reading

    async def _look(self) -> Found:
        self._followed = False
        self._base = found = await self._leases.get()
        self._looked = self._host.clock.now().boot
        return found

    async def _known(self) -> Found:
        return await self._look() if self._base is None else self._base

    def _show(self, found: Found) -> Seen | Vacant:
        shown = Vacant(None) if isinstance(found, Absent) else found.shown(self._ttl)
        fence = shown.record.fence if isinstance(shown, Seen) else shown.fence
        self._highest = max(self._highest, fence or 0)
        return shown

    def _log_of(self, lease: Lease) -> log.Log:
        text = lease.annotations.get(record.CLAIMS)
        if text != self._unpacked[0]:
            unpacked, damage = log.decode(text)
            if damage:
                self._host.log.error("cluster: Lease %s: %s", self._leases.name, damage)
            self._unpacked = text, unpacked
        return self._unpacked[1]

    # -- writing

    async def _update(self, decide: Callable[[Found], Decision[R]], *, fresh: bool = False) -> R:
        """Read, decide, write if the Lease is still what was read; again from the start if it is not.

        What was read may be our own last write's answer: an older one is refused with a 409, so that only decisions
        not to write need a fresh look.
        """
        base, is_fresh = self._base, False
        for _ in range(TRIES):
            if base is None or isinstance(base, Absent) or fresh:
                base, is_fresh, fresh = await self._look(), True, False
            decision = decide(base)
            if isinstance(decision, Answer):
                if is_fresh:
                    return decision.value
                fresh = True
                continue
            answer = await self._write(base, decision.body)
            if isinstance(answer, Lease):
                self._base = answer
                return decision.then(answer)
            fresh = True
        raise StoreUnavailable(f"the Lease changed {TRIES} times under our hands")

    async def _write(self, base: Found, body: Mapping[str, Json]) -> Lease | Conflict:
        if isinstance(base, Absent):
            return await self._leases.create(body)
        return await self._leases.replace(body)

    def _body(
        self, found: Found, spec: Mapping[str, Json], annotations: Mapping[str, str | None]
    ) -> Mapping[str, Json]:
        if isinstance(found, Lease):
            return found.replaced(spec, annotations)
        present = {key: value for key, value in annotations.items() if value is not None}
        return record.fresh(self._leases.name, self._leases.namespace, spec, present)

    def _now_held(self, lease: Lease, grant: Grant) -> Observation:
        self._highest = max(self._highest, grant.fence)
        return Held(grant) if lease.is_term(grant) else self._show(lease)

    # -- waiting

    def _may_watch(self) -> bool:
        return self._watch > 0 and self._host.clock.now().boot >= self._no_watch_before

    async def _keep_pace(self) -> None:
        pause = self._looked + self._pace - self._host.clock.now().boot
        if pause > 0:
            await self._host.clock.sleep(pause)

    async def _follow(self, shown: Observation) -> bool:
        """Wait for a Lease that shows something else; True when one came. A watch that fails is made up for."""
        base = self._base
        if not isinstance(base, Lease):
            await self._host.clock.sleep(self._pace or self._watch)
            return False
        begun = self._host.clock.now().boot
        try:
            async with self._leases.watch(base.version, self._watch) as changes:
                self._forbidden = 0
                async for found in changes:
                    self._base = found
                    self._looked = self._host.clock.now().boot
                    if not _same(self._show(found), shown):
                        return True
            if self._host.clock.now().boot < begun + AT_ONCE:
                raise StoreUnavailable("the watch ended at once")
        except NotAllowed:
            # An apiserver that has just started forbids everything for a moment.
            self._forbidden += 1
            self._give_up_watching(self._ttl if self._forbidden == 1 else NO_WATCH, "the role allows no watch")
        except StoreUnavailable as error:
            self._give_up_watching(self._ttl, str(error))
        return False

    def _give_up_watching(self, seconds: Seconds, why: str) -> None:
        self._no_watch_before = self._host.clock.now().boot + seconds
        self._host.log.debug("cluster: no watch for %g s, polling: %s", seconds, why)


def _same(one: Observation | None, other: Observation | None) -> bool:
    if isinstance(one, Seen) and isinstance(other, Seen):
        return one.record.mark == other.record.mark
    return one is not None and one == other


def _grant_of(found: LeaseRecord) -> Grant:
    return Grant(found.holder, found.fence, found.nonce, found.ttl, found.expires_at)


def _pack(entry: bytes, wall: float) -> str:
    return json.dumps([int(wall), base64.b64encode(zlib.compress(entry)).decode("ascii")])


def _written(text: str) -> float:
    """When an entry was written, wall seconds; what is none counts as old."""
    try:
        return float(json.loads(text)[0])
    except (ValueError, TypeError, LookupError, RecursionError):
        return 0.0


def _unpack(text: str) -> bytes | None:
    try:
        return zlib.decompressobj().decompress(base64.b64decode(json.loads(text)[1]), LARGEST_ENTRY)
    except (ValueError, TypeError, LookupError, RecursionError, zlib.error):
        return None
