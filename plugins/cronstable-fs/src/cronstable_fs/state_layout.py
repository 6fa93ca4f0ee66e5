"""Where the state store keeps things below ``state.path`` (reference 4, layout)."""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from typing import Final

from cronstable_fs.layout import Layout, Place, encode_name
from cronstable_fs.seal import MAX_FILE

DIGITS: Final = 20
RECORD: Final = ".json"
LOW: Final = "low"
"""In the directory of a stream: up to which number records were dropped."""
MAYBE_EMPTY: Final = ".empty"
"""Of a file beside a stream's directory: there may be no record in it."""
LOCK: Final = ".lock"
"""Of a mutex beside a stream's directory, a document or a lease."""
NAME: Final = "name"
"""In the directory of a stream whose name was too long for one: the name."""


def is_name(text: str) -> bool:
    """Whether ``text`` can be the name of a record."""
    return len(text) == DIGITS and text.isascii() and text.isdigit()


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The paths of one deployment."""

    root: str
    records: str
    documents: str
    leases: str
    quarantine: str
    tmp: str

    @classmethod
    def of(cls, path: str, deployment: str) -> StateLayout:
        """The layout below ``path``, made absolute."""
        root = os.path.join(os.path.abspath(path), encode_name(deployment))
        names = ("records", "docs", "leases", "quarantine", "tmp")
        return cls(root, *(os.path.join(root, name) for name in names))

    @property
    def directories(self) -> tuple[str, ...]:
        """Those that are there from the start."""
        return (self.records, self.documents, self.leases, self.quarantine, self.tmp)

    def stream(self, name: str) -> str:
        """The directory of a stream."""
        return os.path.join(self.records, encode_name(name))

    def document(self, name: str) -> Place:
        """The file of a document and its lock."""
        path = os.path.join(self.documents, encode_name(name))
        return Place(self.documents, f"{path}{RECORD}", f"{path}{LOCK}", self.tmp, MAX_FILE)

    def lease(self, name: str) -> Layout:
        """A lease. It has neither marks nor claims, so their places are never looked at."""
        path = os.path.join(self.leases, encode_name(name))
        nowhere = os.path.join(self.tmp, "unused")
        return Layout(
            root=self.root,
            leases=self.leases,
            tmp=self.tmp,
            reboot=nowhere,
            claims=nowhere,
            entries=nowhere,
            life=nowhere,
            identity=nowhere,
            lease=f"{path}.lease",
            lock=f"{path}{LOCK}",
        )

    def temporary(self, unique: str) -> str:
        """A name for a file on its way to another name."""
        return os.path.join(self.tmp, f"{unique}.tmp")

    def aside(self, *parts: str) -> str:
        """A place in the quarantine."""
        return os.path.join(self.quarantine, *parts)
