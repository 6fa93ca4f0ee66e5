"""Before electing over a directory: can its locks be believed, who else sees it, and do our clocks agree?

Blocking; runs in a thread at start. What it finds is a value, the backend says it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cronstable.api import Clock, FileSystem, Seconds
from cronstable_fs import disk
from cronstable_fs.layout import Layout
from cronstable_fs.settings import Topology

CLOCK_TOLERANCE: Final = 1.0
"""Seconds between our wall clock and the file server's before it is worth a warning."""

LITTER_AGE: Final = 600.0
"""Seconds after which a temporary file belongs to a process that died: no write takes a hundredth of that."""

LITTER_SWEPT: Final = 1000

MAX_IDENTITY: Final = 200

_NETWORK: Final = frozenset(
    {"nfs", "nfs3", "nfs4", "efs", "cifs", "smb3", "smbfs", "lustre", "glusterfs", "ceph", "cephfs", "sshfs"}
)
"""File systems that other hosts see (reference 4, topology); FUSE puts ``fuse.`` before the name."""

_LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "vfat"})
_DRAWS_INODES: Final = frozenset({"vfat"})
"""It keeps no inode numbers on the disk, and draws them anew."""
_FAKE_LOCK_OPTIONS: Final = ("nolock", "local_lock=flock", "local_lock=all")
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
_NO_LINKS: Final = disk.NO_LINKS | {errno.EXDEV}
"""Some file systems have hard links inside one directory only."""

_RECOVER_LOST_LOCKS: Final = "/sys/module/nfs/parameters/recover_lost_locks"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    point: str
    kind: str
    options: tuple[str, ...]

    @property
    def is_network(self) -> bool:
        """Other hosts see it."""
        return self.kind.removeprefix("fuse.") in _NETWORK

    @property
    def is_nfs(self) -> bool:
        """NFS of any version, where the client may be told to pretend that it locks."""
        return self.kind.startswith("nfs") or self.kind == "efs"


@dataclass(frozen=True, slots=True)
class Findings:
    """``refusal``: why nobody may elect over this directory, None when nothing was found against it.

    ``warnings``: what an operator should read at start. ``identity``: which directory it is, None: not known.
    """

    refusal: str | None = None
    warnings: tuple[str, ...] = ()
    identity: str | None = None


def mount_of(table: str, path: str) -> Mount | None:
    """The mount that holds ``path`` (absolute, symlinks resolved): the latest that covers it.

    One that comes later on the same point, or above it, hides what was mounted there before. But for the root: an early
    boot mounts /proc or /run first, and moves them into it.
    """
    best: Mount | None = None
    for mount in _mounts(table):
        prefix = mount.point.rstrip("/") + "/"
        inside = path == mount.point or path.startswith(prefix)
        if inside and (best is None or mount.point != "/" or best.point == "/"):
            best = mount
    return best


def _mounts(table: str) -> Iterator[Mount]:
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4:
            yield Mount(_unescape(fields[1]), fields[2], tuple(fields[3].split(",")))


def _unescape(text: str) -> str:
    """Blank, tab, newline and backslash stand in the table as a backslash and three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def examine(
    fs: FileSystem,
    clock: Clock,
    layout: Layout,
    unique: str,
    topology: Topology,
    platform: str,
    known: str | None = None,
) -> Findings:
    """Try locks and hard links, read the mount table, compare clocks, sweep litter. Raises no ``OSError``.

    ``known``: the identity of the directory that this process elected over before. Nothing is made in another one.
    """
    if known is not None and (refusal := is_another(fs, layout, known)) is not None:
        return Findings(refusal)
    identity = known
    table = fs.mounts() if platform == "linux" else None
    mount = mount_of(table, os.path.realpath(layout.leases)) if table is not None else None
    refusal = fake_lock_option(mount)
    if refusal is not None:
        return Findings(refusal)
    notes = list(_topology_notes(topology, mount, table is not None, platform))
    notes.extend(_lost_lock_notes(fs, mount))
    scratch = os.path.join(layout.leases, f".probe-{unique}")
    try:
        fs.makedirs(layout.leases, 0o700)
        before = clock.now().wall
        disk.create_file(fs, scratch, b"probe\n")
        after = clock.now().wall
        try:
            refusal = locks_are_fiction(fs, scratch) or links_are_missing(fs, scratch, layout.claims)
            written = fs.mtime(scratch)
            notes.extend(_clock_notes(before, written, after))
            sweep(fs, layout.tmp, written)
            identity = identity or identify(fs, layout, unique)
        finally:
            disk.unlink_quietly(fs, scratch)
    except OSError as error:
        notes.append(f"whether its locks work could not be tried: {disk.describe(error)}")
    return Findings(refusal, tuple(notes), identity)


def is_another(fs: FileSystem, layout: Layout, known: str) -> str | None:
    """Why this cannot be the directory with the identity ``known``; None when it is that one."""
    try:
        found = disk.read_file(fs, layout.identity, MAX_IDENTITY)
    except OSError as error:
        return f"whether it is still the directory of this daemon cannot be told: {disk.describe(error)}"
    if found is not None and found.decode("utf-8", "replace").strip() == known:
        return None
    what = "is not there" if found is None else "is another one"
    return (
        f"it is not the directory that this daemon elected over before ({layout.identity} {what}): is the share "
        "mounted? When it is meant to be another one, restart the daemon"
    )


def identify(fs: FileSystem, layout: Layout, unique: str) -> str | None:
    """The identity of this directory: ``unique`` if it has none yet. Whoever comes first names it.

    Raises ``OSError``.
    """
    found = disk.read_file(fs, layout.identity, MAX_IDENTITY)
    if found is None:
        scratch = f"{layout.identity}.{unique}"
        disk.create_file(fs, scratch, unique.encode() + b"\n")
        try:
            fs.link(scratch, layout.identity)
        except FileExistsError:
            # Another node was first; the identity read below is its.
            pass
        finally:
            disk.unlink_quietly(fs, scratch)
        found = disk.read_file(fs, layout.identity, MAX_IDENTITY)
    return (found or b"").decode("utf-8", "replace").strip() or None


def fake_lock_option(mount: Mount | None) -> str | None:
    """Why the mount's own options say that its locks do not reach other hosts; None when they do not say so."""
    if mount is None or not mount.is_nfs:
        return None
    for option in _FAKE_LOCK_OPTIONS:
        if option in mount.options:
            return f"the NFS mount at {mount.point} has the option {option}: its locks do not reach other hosts"
    return None


def locks_are_fiction(fs: FileSystem, path: str) -> str | None:
    """Why the locks of the file at ``path`` cannot be believed; None when two descriptors exclude each other."""
    with contextlib.ExitStack() as stack:
        first, second = (fs.open(path, os.O_RDWR) for _ in range(2))
        stack.callback(disk.close_quietly, fs, first)
        stack.callback(disk.close_quietly, fs, second)
        try:
            if not fs.lock(first):
                raise OSError(errno.EAGAIN, "a new file is locked already", path)
            twice = fs.lock(second)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return f"it does not lock files ({disk.describe(error)})"
            raise
        return "it grants two exclusive locks on one file (its locks are no-ops)" if twice else None


def links_are_missing(fs: FileSystem, path: str, directory: str) -> str | None:
    """Why the file at ``path`` cannot have a second name in ``directory``; None when it can.

    Without that no record of the claim log could be written, and a leader would wait for ever to start its first job.
    """
    fs.makedirs(directory, 0o700)
    second = os.path.join(directory, os.path.basename(path))
    try:
        fs.link(path, second)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        why = disk.describe(error)
        return f"it has no hard links, of which the claim log is made ({why}): use another mount or backend"
    disk.unlink_quietly(fs, second)
    return None


def _topology_notes(topology: Topology, mount: Mount | None, has_table: bool, platform: str) -> Iterator[str]:
    if topology is Topology.SHARED:
        if not has_table:
            how = "byte-range locks" if platform == "win32" else "file locks"
            text = (
                "cross-host lock fidelity cannot be verified on this platform (no /proc/mounts); the election is safe "
                f"only if the mount honours {how} across hosts"
            )
            yield text
        elif mount is not None and is_local(mount):
            text = f"topology says shared, but {mount.point} is a local {mount.kind} file system: is the share mounted?"
            yield text
    elif topology is Topology.SINGLE_NODE or mount is None or not mount.is_network:
        kind = f" ({mount.kind} at {mount.point})" if mount is not None else ""
        text = (
            f"the directory counts as single-node{kind}: its locks only exclude processes on THIS host; set "
            "cluster.filesystem.topology: shared if it really is a mount that other hosts share"
        )
        yield text


def _lost_lock_notes(fs: FileSystem, mount: Mount | None) -> Iterator[str]:
    if mount is None or not mount.is_nfs:
        return
    try:
        value = disk.read_file(fs, _RECOVER_LOST_LOCKS, 16)
    except OSError:
        return
    if value is not None and value.strip() in (b"Y", b"1"):
        text = "nfs.recover_lost_locks is on: the kernel takes lost locks again without saying so; turn it off"
        yield text


def _clock_notes(before: float, written: float, after: float) -> Iterator[str]:
    skew: Seconds = max(written - after, before - written)
    if skew > CLOCK_TOLERANCE:
        side = "ahead of" if written > after else "behind"
        text = (
            f"the file server's clock is {skew:.1f} s {side} ours: run NTP on every host, since a takeover compares "
            "clocks (it waits for the bytes to stand still as well)"
        )
        yield text


def sweep(fs: FileSystem, directory: str, now: float, age: Seconds = LITTER_AGE) -> None:
    """Remove temporary files of processes that died. ``now`` by the clock that dates them."""
    with contextlib.suppress(OSError):
        for path in litter(fs, directory, now, age):
            disk.unlink_quietly(fs, path)


def litter(fs: FileSystem, directory: str, now: float, age: Seconds = LITTER_AGE) -> Iterator[str]:
    """Temporary files of processes that died."""
    for name in sorted(fs.listdir(directory))[:LITTER_SWEPT]:
        path = os.path.join(directory, name)
        if name.endswith(".tmp") and fs.mtime(path) < now - age:
            yield path


def is_local(mount: Mount) -> bool:
    """A file system that is known to be of this host alone."""
    return mount.kind in _LOCAL


def is_one_kernel(mount: Mount) -> bool:
    """All who see it ask one kernel for its locks, which frees them when a process has ended, and not before."""
    return is_local(mount) and mount.kind not in _DRAWS_INODES
