"""The state store ``filesystem``: every call in a thread of its own lane, with a deadline."""

from __future__ import annotations

import errno
import os.path
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from cronstable.api import (
    Damage,
    Document,
    Host,
    LeaseStore,
    LockCount,
    PluginError,
    RecordsUnreadable,
    Seconds,
    StoredRecord,
    StoreInfo,
    Topology,
)
from cronstable_fs import disk, settings
from cronstable_fs.access import Access
from cronstable_fs.lease import FilesystemLeaseStore
from cronstable_fs.probe import Mount, fake_lock_option, is_local, locks_are_fiction, mount_of, sweep
from cronstable_fs.seal import Damaged
from cronstable_fs.section import Attempt
from cronstable_fs.state_documents import DocumentShelf
from cronstable_fs.state_inspect import DamagedRecord, Inspection, Piece
from cronstable_fs.state_layout import StateLayout
from cronstable_fs.state_records import DoubtfulError, NoLinksError, StreamShelf
from cronstable_fs.state_settings import StateSettings

LANE: Final = "cronstable-fs-state"
LEASE_LANE: Final = "cronstable-fs-state-lease"
"""Of their own: a renewal must not queue behind a thousand records (reference 13, row 35)."""
OP_TIMEOUT: Final = 9.0
"""Seconds; a little less than the host waits, so that it hears what was waited for."""
SWEPT_AGE: Final = 86_400.0
"""Seconds after which ``open`` removes what a process left half written; a look over the store finds it before."""
DEFAULT_TTL: Final = 30.0
"""Seconds, for a lease whose writer stored none."""

R = TypeVar("R")


def make(given: object, host: Host) -> FilesystemStateStore:
    """The factory of the descriptor. Touches no file."""
    if not isinstance(given, StateSettings):
        raise PluginError(f"cronstable-fs: state was not parsed by this plugin: {given!r}")
    return FilesystemStateStore(host, given)


class FilesystemStateStore:
    """Implements ``StateStore``, ``Inspectable`` and ``Locking`` over a directory. Nothing is open between calls."""

    def __init__(
        self,
        host: Host,
        given: StateSettings,
        *,
        op_timeout: Seconds = OP_TIMEOUT,
        platform: str = sys.platform,
    ) -> None:
        self._host = host
        self._given = given
        self._op_timeout = op_timeout
        self._platform = platform
        self._layout = layout = StateLayout.of(given.path, given.deployment)
        self._access = Access(
            host, layout.root, layout.directories, op_timeout=op_timeout, lane=LANE, platform=platform, made=True
        )
        self._lease_access = Access(
            host, layout.root, layout.directories, op_timeout=op_timeout, lane=LEASE_LANE, platform=platform, made=True
        )
        self._streams = StreamShelf(host.fs, layout, host.ids.token, platform)
        self._documents = DocumentShelf(host.fs, layout, host.ids.token, platform, self._note)
        self._leases: dict[str, FilesystemLeaseStore] = {}
        self._mount: Mount | None = None
        self._warned = False
        self._no_links = False

    # -- Locking

    def locks(self) -> LockCount:
        """Those of documents and streams, and those of leases."""
        both = (self._access, self._lease_access)
        return LockCount(sum(one.acquisitions for one in both), sum(one.waited for one in both))

    # -- StateStore

    async def open(self) -> StoreInfo:
        """See ``StateStore.open``. Makes the directories, but not on another mount than the first time."""
        topology, warning = await self._access.unlocked("open", self._layout.root, self._open)
        if warning is not None and not self._warned:
            self._warned = True
            self._host.log.warning("state: %s", warning)
        self._streams.fresh = topology is Topology.SHARED
        return StoreInfo("filesystem", topology, self._layout.root)

    async def aclose(self) -> None:
        """See ``StateStore.aclose``; nothing is open."""

    async def append(self, stream: str, data: bytes) -> str:
        """See ``StateStore.append``."""
        what, mark, doubt = f"append to {stream!r}", self._host.ids.token(), None
        if not self._no_links:
            try:
                return await self._healing(what, lambda attempt: self._streams.append(attempt, stream, data, mark))
            except NoLinksError:
                self._no_links = True
            except DoubtfulError as error:
                doubt = error.number
        return await self._access.locked(
            what,
            self._streams.place(stream),
            lambda section: self._streams.append_locked(section, stream, data, mark, doubt),
        )

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        """See ``StateStore.read``."""
        if limit is not None and limit <= 0:
            return ()
        what = f"read {stream!r}"
        found = await self._healing(what, lambda attempt: self._streams.read(stream, limit, after))
        for name, damage in found.damaged.items():
            await self.put_aside(stream, name)
            self._note(f"record {name} of {stream!r} was damaged ({damage.detail}) and is in {self._layout.quarantine}")
        for name, error in found.unreadable.items():
            where = f"{disk.describe(error)} ({self._layout.stream(stream)})"
            text = f"{what}: record {name} cannot be read: {where}; `cronstable state check --repair` puts it aside"
            raise RecordsUnreadable(text, found.records)
        return found.records

    async def trim(self, stream: str, keep: int) -> None:
        """See ``StateStore.trim``."""
        what = f"trim {stream!r}"
        if await self._healing(what, lambda attempt: self._streams.has_more(stream, keep)):
            place = self._streams.place(stream)
            await self._access.locked(what, place, lambda section: self._streams.trim(section, stream, keep))

    async def put_aside(self, stream: str, name: str) -> None:
        """See ``StateStore.put_aside``."""
        what = f"put a record of {stream!r} aside"
        if await self._healing(what, lambda attempt: self._streams.has(stream, name)):
            place = self._streams.place(stream)
            await self._access.locked(what, place, lambda section: self._streams.put_aside(section, stream, name))

    async def get(self, document: str) -> Document | None:
        """See ``StateStore.get``."""
        what = f"read {document!r}"
        found = await self._healing(what, lambda attempt: self._documents.get(document))
        if not isinstance(found, Damaged):
            return found
        place = self._documents.place(document)
        await self._access.locked(what, place, lambda section: self._documents.sound(section, document, section.read()))
        return await self.get(document)

    async def put(self, document: str, data: bytes, expect: str | None) -> Document | None:
        """See ``StateStore.put``."""
        new, says = self._documents.sealed(document, data)
        done = await self._access.locked(
            f"write {document!r}",
            self._documents.place(document),
            lambda section: self._documents.write(section, document, new, expect),
        )
        return says if done else None

    async def delete(self, document: str, expect: str) -> bool:
        """See ``StateStore.delete``."""
        return await self._access.locked(
            f"delete {document!r}",
            self._documents.place(document),
            lambda section: self._documents.remove(section, document, expect),
        )

    async def streams(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.streams``."""
        return await self._healing("list the streams", lambda attempt: self._streams.names(prefix))

    async def documents(self, prefix: str = "") -> Sequence[str]:
        """See ``StateStore.documents``."""
        return await self._healing("list the documents", lambda attempt: self._documents.names(prefix))

    def lease(self, name: str) -> LeaseStore:
        """See ``StateStore.lease``. One object a name: it remembers terms whose lock was lost."""
        if name not in self._leases:
            self._leases[name] = FilesystemLeaseStore(
                self._host,
                self._layout.lease(name),
                name,
                ttl=DEFAULT_TTL,
                op_timeout=self._op_timeout,
                platform=self._platform,
                access=self._lease_access,
            )
        return self._leases[name]

    # -- Inspectable

    async def inspect(self, *, repair: bool) -> AsyncIterator[Damage]:
        """See ``Inspectable.inspect``."""
        inspection = Inspection(self._host.fs, self._layout, self._streams, self._host.ids.token)
        now = await self._access.unlocked("look over the store", self._layout.root, self._server_time)
        pieces = await self._access.unlocked("look over the store", self._layout.root, inspection.pieces)
        for what, piece in pieces:
            look = partial(_all_of, piece, now, repair)
            for damage in await self._access.unlocked(f"look over {what}", self._layout.root, look):
                yield await self._put_right(damage, repair)

    async def _put_right(self, damage: Damage | DamagedRecord, repair: bool) -> Damage:
        if isinstance(damage, Damage):
            return damage
        if repair:
            await self.put_aside(damage.stream, damage.name)
        return Damage(f"stream {damage.stream!r}, {damage.name}", damage.detail, repaired=repair)

    # -- blocking

    def _open(self) -> tuple[Topology, str | None]:
        layout, fs = self._layout, self._host.fs
        table = fs.mounts() if self._platform == "linux" else None
        mount = mount_of(table, os.path.realpath(layout.root)) if table is not None else None
        if self._mount is not None and mount is not None and mount.point != self._mount.point:
            # Made anew on what is below the mount point, the store would be an empty one that nobody else sees.
            raise OSError(errno.ENODEV, f"it was on the mount {self._mount.point}, which is not mounted now")
        refusal = fake_lock_option(mount)
        if refusal is None:
            self._access.make_directories()
            scratch = layout.temporary(self._host.ids.token())
            disk.create_file(fs, scratch, b"probe\n")
            try:
                refusal = locks_are_fiction(fs, scratch)
                sweep(fs, layout.tmp, fs.mtime(scratch), SWEPT_AGE)
            finally:
                disk.unlink_quietly(fs, scratch)
        if refusal is not None:
            raise OSError(errno.ENOLCK, f"documents and leases need locks, but {refusal}")
        self._mount = mount
        return self._topology(mount)

    def _topology(self, mount: Mount | None) -> tuple[Topology, str | None]:
        given = self._given.topology
        if given is settings.Topology.AUTO:
            return (Topology.SHARED if mount is not None and mount.is_network else Topology.SINGLE_NODE), None
        if given is settings.Topology.SINGLE_NODE:
            return Topology.SINGLE_NODE, None
        if mount is not None and is_local(mount):
            where = f"{mount.point} is a local {mount.kind} file system"
            return Topology.SHARED, f"topology says shared, but {where}: is the share mounted?"
        return Topology.SHARED, None

    def _server_time(self) -> float:
        """Wall seconds by the clock that dates the files."""
        scratch = self._layout.temporary(self._host.ids.token())
        disk.create_file(self._host.fs, scratch, b"")
        try:
            return self._host.fs.mtime(scratch)
        finally:
            disk.unlink_quietly(self._host.fs, scratch)

    # -- around it

    async def _healing(self, what: str, call: Callable[[Attempt], R]) -> R:
        """Run ``call``; put back directories that somebody removed, and look again at what went stale."""

        def healed(attempt: Attempt) -> R:
            for _ in range(disk.STALE_RETRIES):
                try:
                    return call(attempt)
                except OSError as error:
                    # A write that may have landed is not made twice.
                    if attempt.written or error.errno not in (errno.ENOENT, errno.ESTALE):
                        raise
                    if error.errno == errno.ENOENT:
                        self._access.restore_directories()
                attempt.insist()
            return call(attempt)

        return await self._access.attempted(what, self._layout.root, healed)

    def _note(self, text: str) -> None:
        self._host.log.error("state: %s", text)


def _all_of(piece: Piece, now: float, repair: bool) -> list[Damage | DamagedRecord]:
    return list(piece(now, repair))
