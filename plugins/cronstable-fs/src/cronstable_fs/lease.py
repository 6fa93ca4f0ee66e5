"""The lease store: four coroutines over one small file and its lock (reference 4, claims.md 10 and 11)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, assert_never

from cronstable.api import (
    Appended,
    Fenced,
    Grant,
    Held,
    Holder,
    Host,
    LeaseRecord,
    Observation,
    Seconds,
    Seen,
    Span,
    StoreUnavailable,
    Unreadable,
    Vacant,
)
from cronstable_fs import disk, record
from cronstable_fs.access import Access
from cronstable_fs.claims import ClaimShelf
from cronstable_fs.layout import Layout
from cronstable_fs.life import SignsOfLife
from cronstable_fs.reboot import RebootShelf
from cronstable_fs.section import Attempt, LockLostError, Section

LANE: Final = "cronstable-fs"
"""Our own threads: an election must not queue behind anybody's slow reads (reference 13, row 35)."""

R = TypeVar("R")


class FilesystemLeaseStore:
    """``LeaseStore``, ``RebootMarks`` and ``ClaimLog`` over a directory. One instance per process and lease.

    ``ttl`` stands in for records whose writer stored none. ``op_timeout``: seconds one call may take, lock included;
    ``access`` given, that one's count. ``signs``: let the end of a holder's process be proven where that is possible.
    Of the file nothing is remembered between two calls, no descriptor, no inode, no content, but the highest fence.
    """

    def __init__(
        self,
        host: Host,
        layout: Layout,
        election: str,
        *,
        ttl: Seconds,
        op_timeout: Seconds,
        platform: str = sys.platform,
        access: Access | None = None,
        signs: bool = False,
    ) -> None:
        self._host = host
        self._layout = layout
        self._place = layout.place(record.MAX_BYTES)
        self._election = election
        self._ttl = ttl
        directories = (layout.leases, layout.tmp, layout.reboot, layout.claims, layout.entries)
        self._access = access or Access(
            host, layout.root, directories, op_timeout=op_timeout, lane=LANE, platform=platform
        )
        self._shelf = RebootShelf(host.fs, layout)
        self._claims = ClaimShelf(host.fs, layout, partial(host.log.warning, "cluster: %s"))
        self._platform = platform
        self._signs = SignsOfLife(host.fs, layout.life, host.ids.token) if signs and platform == "linux" else None
        self._entry = host.ids.token(6)
        self._prune_due = False
        self._lost: tuple[str, int] | None = None
        self._highest = 0

    # -- LeaseStore

    async def acquire(self, me: Holder, ttl: Seconds, *, nonce: str, over: Seen | None = None) -> Observation:
        """See ``LeaseStore.acquire``.

        The fence is max(highest known + 1, unix seconds), so that losing the file does not lower it: of the nodes that
        live on each knows the last one, and those that do not come later.
        """
        await self._show_sign()

        def body(section: Section) -> Observation:
            before = section.read()
            standing = self._decode(before)
            match standing:
                case Unreadable():
                    return standing
                case Seen(found) if found.holder.token == me.token and found.nonce == nonce:
                    return Held(_grant_of(found))
                case Seen(found):
                    if over is None or found.mark != over.record.mark:
                        return standing
                case Vacant():
                    if over is not None:
                        return standing
                case _:
                    assert_never(standing)
            wall = self._host.clock.now().wall
            grant = Grant(me, max(self._highest + 1, int(wall)), nonce, ttl, wall + ttl)
            answer = self._put(section, before, grant, durable=True)
            self._close_astray(answer, section)
            return answer

        return await self._locked("acquire", body)

    async def renew(self, grant: Grant, *, nonce: str) -> Observation:
        """See ``LeaseStore.renew``. Also refuses a lease that was released, or written while its lock was lost."""

        def body(section: Section) -> Observation:
            before = section.read()
            standing = self._decode(before)
            if not isinstance(standing, Seen):
                return standing
            found = standing.record
            if self._is_lost(grant):
                # The bytes may be ours, but they may also have covered those of a newer term. They no longer bear
                # this process out: let them stand still for their ttl like anybody's.
                return Seen(replace(found, nonce=f"lost {found.nonce}"))
            landed = found.nonce == nonce and found.holder.token == grant.holder.token and found.fence == grant.fence
            if not landed and not grant.owns(found):
                return standing
            if landed:
                return Held(replace(grant, nonce=nonce, tried=(), expires_at=found.expires_at))
            expires_at = self._host.clock.now().wall + grant.ttl
            wanted = replace(grant, nonce=nonce, tried=(), expires_at=expires_at)
            return self._put(section, before, wanted, durable=False)

        return await self._locked("renew", body)

    async def observe(self) -> Observation:
        """See ``LeaseStore.observe``. Answers at once; the host polls.

        A lease whose holder's process has ended, as is proven, is let go on its behalf, and thus seen vacant.
        """

        def look(attempt: Attempt) -> tuple[Observation, LeaseRecord | None]:
            data = self._read()
            if data is None:
                self._insist_on_directories()
            found = self._decode(data)
            if data is None or not isinstance(found, Seen) or not self._is_dead(data, found.record):
                return found, None
            dead = found.record if self._let_go(attempt, data, found.record) else None
            return self._decode(self._read()), dead

        answer, dead = await self._access.attempted("read", self._layout.lease, look)
        if dead is not None:
            self._host.log.warning(
                "cluster: the holder's process has ended: its lease is let go (%s, fence %d)",
                dead.holder.name,
                dead.fence,
            )
        return answer

    async def release(self, grant: Grant, returned: Sequence[str]) -> None:
        """See ``LeaseStore.release``. The file stays, expired in place: it is the only home of the fence."""
        mark = self._host.ids.token()

        def body(section: Section) -> None:
            before = section.read()
            standing = self._decode(before)
            if isinstance(standing, Seen) and grant.owns(standing.record) and not self._is_lost(grant):
                section.write(before, record.encode_released(self._election, grant, mark, returned), durable=False)

        await self._locked("release", body)

    # -- signs of life (ADR 0042)

    async def _show_sign(self) -> None:
        """Before a lease is written in our name. Without a sign others wait for our ttl, that is all."""
        if self._signs is None:
            return
        try:
            await self._unlocked("show a sign of life", partial(self._show, self._signs))
        except StoreUnavailable as error:
            self._host.log.debug("cluster: no sign of life, so that others would wait for the ttl: %s", error)

    def _show(self, signs: SignsOfLife) -> None:
        signs.show(record.sign_of(self._read()))

    def _close_astray(self, answer: Observation, section: Section) -> None:
        """The lease was just written with our sign of now, so that it names none of the signs before."""
        if self._signs is None or not isinstance(answer, Held):
            return
        try:
            self._signs.let_go_astray(record.sign_of(section.read()))
        except OSError as error:
            self._doubt(error)

    async def retire(self) -> None:
        """Once nothing is asked of this store any more: take the sign away, unless the lease still names it.

        One try: while the lock is busy, or the lease stands in our name since its release failed, the sign stays for as
        long as the process does. Raises ``StoreUnavailable``.
        """
        signs = self._signs
        if signs is None or not signs.is_made:
            return

        def end(attempt: Attempt) -> None:
            self._section(attempt).run(lambda section: signs.retire(record.sign_of(section.read())))

        await self._access.attempted("take the sign of life away", self._layout.lease, end)

    def _is_dead(self, data: bytes, found: LeaseRecord) -> bool:
        """Whether it is proven that the process of the holder of the lease ``data`` has ended. Any doubt: it is not.

        A fence below one that we saw is a doubt: somebody put that lease back, and its holder is not the last one.
        """
        sign = record.sign_of(data)
        if self._signs is None or sign is None or found.fence < self._highest:
            return False
        try:
            return self._signs.has_ended(sign)
        except OSError as error:
            self._doubt(error)
            return False

    def _let_go(self, attempt: Attempt, data: bytes, found: LeaseRecord) -> bool:
        """Whether the lease ``data`` of a dead holder was let go here: as it would have done it, if it still stands.

        One try: while the lock is busy somebody else is at it, or the next look will be.
        """
        released = record.encode_released(self._election, _grant_of(found), self._host.ids.token(), ())

        def body(section: Section) -> bool:
            return section.read() == data and section.write(data, released, durable=False) == released

        try:
            if self._section(attempt).run(body) is not True:
                return False
        except (OSError, LockLostError) as error:
            self._doubt(error)
            return False
        sign = record.sign_of(data)
        if self._signs is not None and sign is not None:
            try:
                self._signs.bury(sign)
            except OSError as error:
                self._doubt(error)
        return True

    def _doubt(self, error: Exception) -> None:
        self._host.log.debug("cluster: the lease of a holder that may be dead is left alone for now: %r", error)

    def _section(self, attempt: Attempt) -> Section:
        return Section(self._host.fs, self._place, attempt, self._host.ids.token(), self._platform)

    # -- RebootMarks

    async def reboot_marks(self, job_set_id: str) -> frozenset[str]:
        """See ``RebootMarks.reboot_marks``."""
        names = await self._unlocked("read reboot marks", lambda: self._shelf.names(job_set_id))
        if self._prune_due:
            await self._prune(job_set_id)
        return names

    async def mark_reboot(self, grant: Grant, job_set_id: str, job: str, *, nonce: str) -> bool:
        """See ``RebootMarks.mark_reboot``. Also False when the term of ``grant`` is over."""

        def body(section: Section) -> bool:
            if not self._holds(section, grant):
                return False
            return self._shelf.create(section, grant, job_set_id, job, nonce)

        created = await self._locked("mark reboot", body)
        self._prune_due = self._prune_due or created
        return created

    async def _prune(self, job_set_id: str) -> None:
        """Not in ``mark_reboot``: a mark that is made but not reported in time is a job that never runs."""
        self._prune_due = False
        try:
            await self._unlocked("prune reboot marks", lambda: self._shelf.prune(job_set_id))
        except StoreUnavailable as error:
            self._host.log.debug("cluster: old reboot marks stay for now: %s", error)

    # -- ClaimLog

    async def append(self, grant: Grant, number: int, record: bytes) -> Appended:
        """See ``ClaimLog.append``.

        A name that landed while the lease went to somebody else stays: it comes before whatever that term appends, so
        that term reads it before it starts anything.
        """

        def body(section: Section) -> Appended:
            if not self._holds(section, grant):
                return Fenced()
            answer = self._claims.create(section, number, record)
            return answer if self._holds(section, grant) else Fenced()

        return await self._locked("append to the claim log", body)

    async def read(self, number: int) -> bytes | None:
        """See ``ClaimLog.read``."""
        return await self._unlocked("read the claim log", lambda: self._claims.read(number))

    async def span(self) -> Span:
        """See ``ClaimLog.span``."""
        name = f"{self._host.ids.token()}.tmp"
        return await self._unlocked("look at the claim log", lambda: self._claims.span(name))

    async def trim(self, grant: Grant, first: int) -> None:
        """See ``ClaimLog.trim``."""

        def body(section: Section) -> bool:
            holds = self._holds(section, grant)
            if holds:
                self._claims.raise_low(section, first)
            return holds

        if await self._locked("trim the claim log", body):
            await self._unlocked("trim the claim log", self._claims.remove_below_low)

    async def put_entry(self, entry: bytes) -> None:
        """See ``ClaimLog.put_entry``."""
        temporary = self._layout.temporary(self._host.ids.token())
        await self._unlocked("write the unfinished runs", lambda: self._claims.put_entry(self._entry, temporary, entry))

    async def entries(self) -> Sequence[bytes]:
        """See ``ClaimLog.entries``."""
        return await self._unlocked("read the unfinished runs", self._claims.entries)

    # -- inside a section

    def _holds(self, section: Section, grant: Grant) -> bool:
        """Whether the lease still stands in the name of ``grant``'s term.

        Not ``owns``: a renewal may have changed the nonce since ``grant`` was taken, and link() needs none.
        """
        standing = self._decode(section.read())
        if not isinstance(standing, Seen) or self._is_lost(grant):
            return False
        found = standing.record
        return found.holder.token == grant.holder.token and found.fence == grant.fence

    def _read(self) -> bytes | None:
        return disk.read_file(self._host.fs, self._layout.lease, record.MAX_BYTES)

    def _decode(self, data: bytes | None) -> Seen | Vacant | Unreadable:
        found = record.decode(data, self._election, self._ttl)
        match found:
            case Seen(lease):
                self._highest = max(self._highest, lease.fence)
            case Vacant(fence):
                self._highest = max(self._highest, fence or 0)
            case Unreadable():
                pass
            case _:
                assert_never(found)
        return found

    def _put(self, section: Section, before: bytes | None, wanted: Grant, *, durable: bool) -> Observation:
        data = record.encode(self._election, wanted, self._signs.mine() if self._signs is not None else None)
        try:
            # Counted before it stands: a rename whose answer is lost has used its fence.
            self._highest = max(self._highest, wanted.fence)
            found = section.write(before, data, durable=durable)
        except LockLostError as loss:
            if loss.written:
                self._lost = (wanted.holder.token, wanted.fence)
            raise
        return Held(wanted) if found == data else self._decode(found)

    def _is_lost(self, grant: Grant) -> bool:
        return self._lost == (grant.holder.token, grant.fence)

    def _insist_on_directories(self) -> None:
        """No file is a vacancy only where it could be: an unmounted share is none."""
        try:
            self._host.fs.listdir(self._layout.leases)
        except FileNotFoundError:
            self._access.restore_directories()

    async def _locked(self, what: str, body: Callable[[Section], R]) -> R:
        return await self._access.locked(what, self._place, body)

    async def _unlocked(self, what: str, call: Callable[[], R]) -> R:
        return await self._access.unlocked(what, self._layout.lease, call)


def _grant_of(found: LeaseRecord) -> Grant:
    return Grant(found.holder, found.fence, found.nonce, found.ttl, found.expires_at)
