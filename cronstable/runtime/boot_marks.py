"""Markers of @reboot runs in the state store: which boot this is, and what ran in it on this host (reference 11)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from cronstable.core.boot import BOOT_ID, Marker, Start, boot_id, decide_start
from cronstable.core.clock import Clock, Seconds
from cronstable.core.fingerprint import job_digest
from cronstable.core.job import Job, Json
from cronstable.core.records import KEEP, WriteKind, stream
from cronstable.plugin.protocols import FileSystem, Threads

MANY: Final = 4 * KEEP[WriteKind.REBOOT_MARKER]
"""Markers kept where several hosts write into one stream: each has to find its own."""
READ_WITHIN: Final[Seconds] = 5.0


class Keeper(Protocol):
    """What is used of the state keeper."""

    @property
    def configured(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    @property
    def fail_closed(self) -> bool: ...
    async def append(
        self, kind: WriteKind, stream: str, data: Mapping[str, Json], *, keep: int | None = None
    ) -> bool: ...
    async def read(self, stream: str, *, limit: int | None = None) -> Sequence[Mapping[str, Json]] | None: ...


class BootMarks:
    """Knows whether an @reboot job ran in this boot. ``survives``: whether a run of before this daemon lives on."""

    def __init__(
        self,
        *,
        keeper: Keeper,
        clock: Clock,
        fs: FileSystem,
        threads: Threads,
        node: Callable[[], str],
        survives: Callable[[str], bool],
    ) -> None:
        self._keeper = keeper
        self._clock = clock
        self._fs = fs
        self._threads = threads
        self._node = node
        self._survives = survives
        self._boot_id: str | None = None

    @property
    def configured(self) -> bool:
        """There is a store to ask."""
        return self._keeper.configured

    @property
    def fail_closed(self) -> bool:
        """What nobody can tell is not run."""
        return self._keeper.fail_closed

    async def boot_id(self) -> str | None:
        """Which boot of the operating system this is; None where nobody can tell."""
        if self._boot_id is None:
            try:
                self._boot_id = boot_id(await self._threads.run(self._read, timeout=READ_WITHIN))
            except (OSError, TimeoutError):
                return None
        return self._boot_id

    def _read(self) -> str:
        fd = self._fs.open(BOOT_ID, os.O_RDONLY)
        try:
            return self._fs.read(fd, 256).decode("ascii", "replace")
        finally:
            self._fs.close(fd)

    async def decide(self, job: Job) -> Start:
        """What is to be done about an @reboot job of this host."""
        boot = await self.boot_id()
        records = await self._keeper.read(stream("reboot", job.name), limit=self._keep)
        return decide_start(
            records,
            host=self._node(),
            boot=boot,
            digest=job_digest(job),
            survives=self._survives(job.name),
            fail_closed=self._keeper.fail_closed,
        )

    async def mark(self, job: Job, *, survived: bool = False) -> bool:
        """Write the marker; whether it is known to stand."""
        boot = await self.boot_id()
        if boot is None:
            return False
        marker = Marker(self._node(), boot, job_digest(job), self._clock.now().wall, survived)
        name = stream("reboot", job.name)
        return await self._keeper.append(WriteKind.REBOOT_MARKER, name, marker.encode(), keep=self._keep)

    @property
    def _keep(self) -> int:
        return MANY if self._keeper.shared else KEEP[WriteKind.REBOOT_MARKER]
