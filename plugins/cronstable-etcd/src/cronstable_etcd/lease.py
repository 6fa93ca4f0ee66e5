"""The lease store: four coroutines over three keys and one etcd lease (ADR 0022, claims.md 9 and 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio

from cronstable.api import (
    Appended,
    Fenced,
    Grant,
    Held,
    Holder,
    Host,
    Json,
    Observation,
    Seconds,
    Seen,
    Span,
    StoreUnavailable,
    Vacant,
)
from cronstable_etcd import wire
from cronstable_etcd.claims import ClaimShelf
from cronstable_etcd.client import Client
from cronstable_etcd.entries import EntryShelf
from cronstable_etcd.gateway import Denied, Gateway
from cronstable_etcd.reboot import RebootShelf
from cronstable_etcd.record import Bond, Keys, Standing, encode, fence_document, term_document

TRIES: Final = 3
"""Transactions in one call: another round is due when what was compared has moved, and moving takes others as long."""

REMEMBERED: Final = 32

RELEASE_AGAIN: Seconds = 0.5
"""Between two tries at a release: at most two requests a second to an etcd that fails (L4)."""

ENTRY_TTLS: Final = 2
"""An entry that stands still for one ttl is a dead process's; etcd keeps it a little longer (claims.md 16)."""


class EtcdLeaseStore:
    """``LeaseStore``, ``RebootMarks`` and ``ClaimLog`` over one election name. One instance per process and lease.

    ``ttl``: seconds asked for; each ``acquire`` says it anew. ``watch``: how long ``observe`` may wait for the end of
    the term that it showed last (0: never).
    """

    def __init__(self, host: Host, gateway: Gateway, election: str, *, ttl: Seconds, watch: Seconds = 0.0) -> None:
        self._host = host
        self._client = Client(host, gateway)
        self._keys = Keys.of(election)
        self._ttl = ttl
        self._watch = watch
        self._shelf = RebootShelf(self._keys, self._client.transact)
        self._claims = ClaimShelf(self._keys, self._client.transact, partial(host.log.warning, "cluster: %s"))
        self._entries = EntryShelf(host, self._client, self._keys, ENTRY_TTLS * ttl)
        self._highest = 0
        self._lease = 0
        self._nonces: tuple[str, ...] = ()
        self._ended = 0
        self._shown: Seen | Vacant | None = None
        self._no_watch_before = -math.inf
        self._put_by_hand: tuple[int, float] | None = None

    # -- LeaseStore

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """See ``LeaseStore.acquire``."""
        self._ttl = ttl
        standing = await self._look()
        lease, granted, held = 0, ttl, False
        try:
            for _ in range(TRIES):
                shown = self._show(standing)
                if isinstance(shown, Seen):
                    found = shown.record
                    if found.holder.token == me.token and found.nonce == nonce:
                        held = True
                        return Held(Grant(me, found.fence, nonce, found.ttl, data=standing.bond))
                    over_it = over is not None and found.mark == over.record.mark
                    if not over_it and not self._is_left_over(standing, shown):
                        return shown
                elif over is not None:
                    return shown
                wall = self._host.clock.now().wall
                if not lease:
                    lease, granted = await self._client.new_lease(ttl)
                fence = max(self._highest + 1, int(wall))
                grant = Grant(me, fence, nonce, granted, wall + granted)
                answer = await self._create(standing, grant, lease)
                if answer.succeeded:
                    held = True
                    self._highest = max(self._highest, fence)
                    # A key that is written over keeps its create revision.
                    created = standing.leader.create if standing.leader is not None else answer.revision
                    return Held(replace(grant, data=Bond(lease, created, answer.revision)))
                standing = Standing.of(answer)
            return self._show(standing)
        finally:
            if lease and not held:
                await self._client.end_lease(lease)

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """See ``LeaseStore.renew``. The transaction proves that the term is ours, then the keepalive extends it.

        In this order: etcd asks for no token at a keepalive, and a holder that may write no more would keep its key
        from everybody for ever.
        """
        bond = await self._bond_of(grant)
        if not isinstance(bond, Bond):
            return bond
        wall = self._host.clock.now().wall
        self._remember(bond.lease, nonce)
        wanted = replace(grant, nonce=nonce, tried=())
        proven = await self._write_again(grant, wanted, bond)
        if not isinstance(proven, Bond):
            return proven
        granted = await self._client.keep_alive(bond.lease, self._ttl)
        if granted <= 0:
            self._ended = bond.lease
            return self._show(await self._look())
        return Held(replace(wanted, ttl=granted, expires_at=wall + granted, data=proven))

    async def observe(self) -> Observation:
        """See ``LeaseStore.observe``. Waits for the end of a term that was shown before."""
        standing = await self._look()
        shown = self._show(standing)
        if self._may_watch() and _same_holder(self._shown, shown):
            with anyio.move_on_after(self._watch):
                await self._until_it_changes(standing)
            standing = await self._look()
        if await self._removed_by_hand_put(standing):
            standing = await self._look()
        self._shown = shown = self._show(standing)
        return shown

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """See ``LeaseStore.release``. The keys go in one write that keeps fence and run ids, then the lease goes.

        It is tried until the host ends it, etcd denies it, or the lease is over by itself: whoever waits for it waits
        for a whole ttl otherwise, and longer where a keepalive that nobody answered is still on its way.
        """
        until, refused = self._host.clock.now().boot + grant.ttl, False
        while True:
            try:
                bond = await self._bond_of(grant)
                if not isinstance(bond, Bond) or not await self._let_go(grant, bond, returned):
                    return
                break
            except StoreUnavailable as error:
                # A full store refuses that write, but not the end of a lease, which takes the keys along.
                known = grant.data if isinstance(grant.data, Bond) and not returned and not refused else None
                if known is not None and await self._client.end_lease(known.lease):
                    return
                refused = True
                if isinstance(error, Denied) or self._host.clock.now().boot + RELEASE_AGAIN >= until:
                    raise
                self._host.log.debug("cluster: the lease is not released yet: %s", error)
            await self._host.clock.sleep(RELEASE_AGAIN)
        await self._client.end_lease(bond.lease)

    # -- RebootMarks

    async def reboot_marks(self, job_set_id: str) -> frozenset[str]:
        """See ``RebootMarks.reboot_marks``. After a mark was made, old ones of other ids are pruned in passing."""
        return await self._shelf.names(job_set_id)

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        """See ``RebootMarks.mark_reboot``."""
        bond = await self._bond_of_term(grant)
        if bond is None:
            return False
        return await self._shelf.create(bond, grant, job_set_id, job, nonce)

    # -- ClaimLog

    async def append(self, grant: Grant, number: int, record: bytes) -> Appended:
        """See ``ClaimLog.append``. Never ``Full``: an etcd out of space may refuse what it has written."""
        bond = await self._bond_of_term(grant)
        return Fenced() if bond is None else await self._claims.append(bond, number, record)

    async def read(self, number: int) -> bytes | None:
        """See ``ClaimLog.read``."""
        return await self._claims.read(number)

    async def span(self) -> Span:
        """See ``ClaimLog.span``. No hint: etcd tells it as it is."""
        return await self._claims.span()

    async def trim(self, grant: Grant, first: int) -> None:
        """See ``ClaimLog.trim``."""
        bond = await self._bond_of_term(grant)
        if bond is not None:
            await self._claims.trim(bond, first)

    async def put_entry(self, entry: bytes) -> None:
        """See ``ClaimLog.put_entry``."""
        await self._entries.put(entry)

    async def entries(self) -> Sequence[bytes]:
        """See ``ClaimLog.entries``."""
        return await self._entries.all()

    @property
    def lease_id(self) -> int | None:
        """The etcd lease of this process's last term."""
        return self._lease or None

    # -- what stands there

    async def _look(self) -> Standing:
        answer = await self._client.transact((), self._keys.all_three)
        try:
            return Standing.of(answer)
        except wire.Malformed as error:
            raise StoreUnavailable(str(error)) from None

    def _show(self, standing: Standing) -> Seen | Vacant:
        shown = standing.shown(self._ttl)
        last = shown.record.fence if isinstance(shown, Seen) else 0
        self._highest = max(self._highest, standing.highest, last)
        if standing.leader is not None and standing.leader.lease == self._ended != 0:
            # etcd has said that this lease is over; its keys are about to go.
            return standing.vacancy()
        return shown

    def _is_left_over(self, standing: Standing, shown: Seen) -> bool:
        """Its key was deleted under this very process, which is not leading on it any more: it asks to acquire."""
        term = standing.term
        mine = term is not None and term.lease == self._lease != 0
        return standing.leader is None and mine and shown.record.nonce in self._nonces

    async def _bond_of(self, grant: Grant) -> Bond | Observation:
        """The tie of ``grant``, looked up when the host rebuilt it; else what stands there instead."""
        if isinstance(grant.data, Bond):
            return grant.data
        standing = await self._look()
        shown, bond = self._show(standing), standing.bond
        return bond if isinstance(shown, Seen) and grant.owns(shown.record) and bond is not None else shown

    async def _bond_of_term(self, grant: Grant) -> Bond | None:
        """The tie of ``grant``'s term, None when it is over.

        Not ``owns``: a renewal may have changed the nonce since ``grant`` was taken, and marks and claims need none.
        """
        if isinstance(grant.data, Bond):
            return grant.data
        standing = await self._look()
        shown = self._show(standing)
        return standing.bond if isinstance(shown, Seen) and _same_term(grant, shown) else None

    # -- writes

    async def _create(self, standing: Standing, grant: Grant, lease: int) -> wire.Answer:
        keys = self._keys
        self._lease, self._nonces = lease, (grant.nonce,)
        return await self._client.transact(
            standing.unchanged(keys),
            (
                wire.put(keys.leader, encode(grant.holder.name), lease),
                wire.put(keys.term, term_document(grant), lease),
                wire.put(keys.fence, fence_document(grant.fence)),
            ),
            keys.all_three,
        )

    async def _write_again(self, grant: Grant, wanted: Grant, bond: Bond) -> Bond | Seen | Vacant:
        """Write name and term anew if we wrote last; the tie as it is then, or what stands there instead."""
        keys = self._keys
        shown: Seen | Vacant
        for _ in range(TRIES):
            answer = await self._client.transact(
                bond.is_last_writer(keys),
                (
                    wire.put(keys.leader, encode(wanted.holder.name), bond.lease),
                    wire.put(keys.term, term_document(wanted), bond.lease),
                ),
                keys.all_three,
            )
            if answer.succeeded:
                return replace(bond, mod=answer.revision)
            standing = Standing.of(answer)
            shown, now = self._show(standing), standing.bond
            if _deleted_under(bond, standing):
                # To others the term stands until its lease ends; to us it is over.
                return standing.vacancy()
            if not isinstance(shown, Seen) or now is None:
                return shown
            if wanted.owns(shown.record):
                # It had landed before, and only the answer was lost.
                return now
            if not grant.owns(shown.record):
                return shown
            bond = now
        return shown

    async def _let_go(self, grant: Grant, bond: Bond, returned: Sequence[str]) -> bool:
        keys = self._keys
        for _ in range(TRIES):
            answer = await self._client.transact(
                bond.is_last_writer(keys),
                (
                    wire.put(keys.fence, fence_document(grant.fence, returned)),
                    wire.delete(keys.leader),
                    wire.delete(keys.term),
                ),
                keys.all_three,
            )
            if answer.succeeded:
                return True
            standing = Standing.of(answer)
            if _deleted_under(bond, standing):
                return True
            shown, now = self._show(standing), standing.bond
            if not isinstance(shown, Seen) or now is None or not grant.owns(shown.record):
                return False
            bond = now
        return False

    def _remember(self, lease: int, nonce: str) -> None:
        if lease != self._lease:
            self._lease, self._nonces = lease, ()
        self._nonces = (*self._nonces, nonce)[-REMEMBERED:]

    # -- changes

    def _may_watch(self) -> bool:
        return self._watch > 0 and self._host.clock.now().boot >= self._no_watch_before

    async def _until_it_changes(self, standing: Standing) -> None:
        """Until the key that stands there is deleted. Renewals are no news, and a watch that fails is made up for."""
        found = standing.leader or standing.term
        assert found is not None, "only what stands there is watched"
        begin = str(standing.revision + 1)
        request: dict[str, Json] = {"key": wire.b64(found.key), "start_revision": begin, "filters": ["NOPUT"]}
        try:
            async with self._client.gateway.watch(request) as messages:
                async for message in messages:
                    if message.get("events"):
                        return
                    if message.get("canceled"):
                        raise StoreUnavailable(str(message.get("cancel_reason") or "etcd ended the watch"))
            raise StoreUnavailable("the watch ended")
        except StoreUnavailable as error:
            self._no_watch_before = self._host.clock.now().boot + self._ttl
            self._host.log.debug("cluster: no watch for %g s, polling: %s", self._ttl, error)

    async def _removed_by_hand_put(self, standing: Standing) -> bool:
        """Delete a key that hangs on no lease, and so would stand in the way for ever, once it stood for one ttl."""
        found = standing.leader or standing.term
        if found is None or found.lease != 0:
            self._put_by_hand = None
            return False
        boot = self._host.clock.now().boot
        if self._put_by_hand is None or self._put_by_hand[0] != found.mod:
            self._put_by_hand = (found.mod, boot)
            self._host.log.warning(
                "cluster: the etcd key of the election was written without a lease, by hand? It is removed in %g s",
                self._ttl,
            )
        if boot < self._put_by_hand[1] + self._ttl:
            return False
        compare = (wire.leased(found.key, 0), wire.modified(found.key, found.mod))
        return (await self._client.transact(compare, (wire.delete(found.key),))).succeeded


def _deleted_under(bond: Bond, standing: Standing) -> bool:
    """The leader key was deleted by hand; the term still hangs on the lease of ``bond``."""
    return standing.leader is None and standing.term is not None and standing.term.lease == bond.lease


def _same_holder(one: Observation | None, other: Observation) -> bool:
    if not isinstance(one, Seen) or not isinstance(other, Seen):
        return False
    return one.record.holder == other.record.holder and one.record.fence == other.record.fence


def _same_term(grant: Grant, shown: Seen) -> bool:
    return shown.record.holder.token == grant.holder.token and shown.record.fence == grant.fence
