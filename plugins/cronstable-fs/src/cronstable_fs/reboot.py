"""Reboot marks: one file per (job-set id, job), created once and never rewritten (claims.md 14)."""

from __future__ import annotations

import json
import os.path
from typing import Final

from cronstable.api import FileSystem, Grant
from cronstable_fs import disk
from cronstable_fs.layout import Layout, decode_name, encode_name
from cronstable_fs.record import MAX_BYTES
from cronstable_fs.section import Section

KEPT: Final = 512
"""Marks kept over all job-set ids, the newest (reference 3.5)."""


class RebootShelf:
    """The marks of one deployment. Blocking: for threads only. All methods raise ``OSError``."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout

    def names(self, job_set_id: str) -> frozenset[str]:
        """Jobs marked under this id. A mark too fresh for a cached listing is missed here, and caught by ``create``."""
        directory = self._layout.marks(job_set_id)
        names: set[str] = set()
        for entry in self._entries(directory):
            name = decode_name(entry)
            if name is None:
                name = self._name_inside(os.path.join(directory, entry))
            if name is not None:
                names.add(name)
        return frozenset(names)

    def create(self, section: Section, grant: Grant, job_set_id: str, job: str, nonce: str) -> bool:
        """Make the mark; True only if it is there afterwards with ``nonce`` inside."""
        directory = self._layout.marks(job_set_id)
        self._fs.makedirs(directory, 0o700)
        document = {
            "jobSetId": job_set_id,
            "job": job,
            "holder": str(grant.holder),
            "fence": grant.fence,
            "nonce": nonce,
        }
        path = os.path.join(directory, encode_name(job))
        found = section.create(directory, path, json.dumps(document).encode() + b"\n")
        return _read(found).get("nonce") == nonce

    def prune(self, job_set_id: str) -> None:
        """Drop the oldest marks of other job-set ids beyond ``KEPT``: those of the live one are still asked for."""
        mine = encode_name(job_set_id)
        live = 0
        others: list[tuple[float, str]] = []
        for directory in self._entries(self._layout.reboot):
            for entry in self._entries(os.path.join(self._layout.reboot, directory)):
                if directory == mine:
                    live += 1
                else:
                    path = os.path.join(self._layout.reboot, directory, entry)
                    others.append((self._fs.mtime(path), path))
        others.sort()
        for _, path in others[: max(0, min(len(others), live + len(others) - KEPT))]:
            disk.unlink_quietly(self._fs, path)

    def _name_inside(self, path: str) -> str | None:
        name = _read(disk.read_file(self._fs, path, MAX_BYTES)).get("job")
        return name if isinstance(name, str) else None

    def _entries(self, directory: str) -> list[str]:
        try:
            return self._fs.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _read(data: bytes | None) -> dict[str, object]:
    try:
        document = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
