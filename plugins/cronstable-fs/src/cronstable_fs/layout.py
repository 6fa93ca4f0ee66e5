"""Where things are below ``cluster.filesystem.path`` (reference 4, layout)."""

from __future__ import annotations

import hashlib
import os.path
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

_KEPT: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST: Final = 180
"""Most file systems stop at 255 bytes; suffixes and temporary names must fit too."""
_HEAD: Final = 100


def encode_name(name: str) -> str:
    """A file name for any text: ``[a-z0-9_-]`` stay, every other byte becomes ``%XX``.

    Injective also where a file system folds case. An encoded name has no dot; a name that grew too long is cut and
    ends in a dot and its digest, so the two forms cannot meet.
    """
    raw = name.encode("utf-8", "surrogatepass")
    text = "".join(chr(b) if b in _KEPT else f"%{b:02X}" for b in raw)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_HEAD]}.{hashlib.sha256(raw).hexdigest()}"


def decode_name(encoded: str) -> str | None:
    """The text that ``encode_name`` was given; None when it was cut, or when this is no encoded name."""
    try:
        name = unquote_to_bytes(encoded).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return name if encode_name(name) == encoded else None


@dataclass(frozen=True, slots=True)
class Place:
    """One file that is written under a lock. ``lock`` is created once and never replaced: it is only a mutex.

    ``directory``: where ``file`` is. ``tmp``: where it is written before it gets its name. ``limit``: bytes read of it.
    """

    directory: str
    file: str
    lock: str
    tmp: str
    limit: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one deployment. ``lock`` is created once and never replaced or removed: it is only a mutex.

    ``life``: where each process that may hold the lease has a file.
    ``identity``: a file that tells this directory from the empty one below it, where no share is mounted.
    """

    root: str
    leases: str
    tmp: str
    reboot: str
    claims: str
    entries: str
    life: str
    lease: str
    lock: str
    identity: str

    @classmethod
    def of(cls, path: str, deployment: str, election: str) -> Layout:
        """The layout below ``path``, made absolute, for one lease of one deployment."""
        root = os.path.join(os.path.abspath(path), encode_name(deployment))
        leases = os.path.join(root, "leases")
        lease = os.path.join(leases, encode_name(election))
        return cls(
            root=root,
            leases=leases,
            tmp=os.path.join(root, "tmp"),
            reboot=os.path.join(root, "reboot"),
            claims=os.path.join(root, "claims", encode_name(election)),
            entries=os.path.join(root, "entries", encode_name(election)),
            life=os.path.join(root, "life", encode_name(election)),
            lease=f"{lease}.lease",
            lock=f"{lease}.lock",
            identity=os.path.join(root, "store-id"),
        )

    def place(self, limit: int) -> Place:
        """Where the lease is written."""
        return Place(self.leases, self.lease, self.lock, self.tmp, limit)

    def temporary(self, unique: str) -> str:
        """A name for a file on its way to another name."""
        return os.path.join(self.tmp, f"{unique}.tmp")

    def marks(self, job_set_id: str) -> str:
        """The directory of the reboot marks of one job-set id."""
        return os.path.join(self.reboot, encode_name(job_set_id))
