"""Processes for plugins: the seam to processes, behind the one call that the host offers (decision 0016)."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import anyio

from cronstable.core.clock import Clock, Seconds
from cronstable.plugin.protocols import ProcessEnd
from cronstable.runtime.spawn import Process, Spawner, SpawnFailed, SpawnSpec, Stream

OUTPUT_KEPT = 4096
"""Bytes of the end of what the program wrote."""
OUTPUT_GRACE: Seconds = 1.0
"""How long output is waited for that a process left behind may still write."""
KILL_TIMEOUT: Seconds = 2.0
"""Between SIGTERM and SIGKILL of a program that had its time."""
DEATH_WATCH: Seconds = 5.0
NAP: Seconds = 0.02

_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


class HostProcesses:
    """Implements ``cronstable.api.Processes``. ``environ``: the daemon's own environment."""

    def __init__(self, spawner: Spawner, clock: Clock, environ: Mapping[str, str]) -> None:
        self._spawner = spawner
        self._clock = clock
        self._environ = environ

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] = MappingProxyType({}), timeout: Seconds
    ) -> ProcessEnd:
        """Run ``argv`` to its end or for ``timeout`` seconds; ``OSError`` when it cannot be started."""
        spec = SpawnSpec(tuple(argv), {**self._environ, **env}, capture_stdout=True, capture_stderr=True)
        try:
            process = self._spawner.spawn(spec)
        except SpawnFailed as error:
            raise OSError(str(error)) from error
        over = False
        try:
            end = await self._accompany(process, timeout)
            over = True
        finally:
            if not over:
                # Bounded: both waits in it have a deadline.
                with anyio.CancelScope(shield=True):
                    await self._end_group(process)
            process.release()
        return end

    async def _accompany(self, process: Process, timeout: Seconds) -> ProcessEnd:
        output = _Output()
        code: int | None = None
        async with anyio.create_task_group() as tasks:
            for stream in _STREAMS:
                tasks.start_soon(output.collect, process, stream)
            with anyio.move_on_after(timeout) as limit:
                code = await process.wait()
            if limit.cancelled_caught:
                await self._end_group(process)
                # At once, unless it is stuck in the kernel.
                with anyio.move_on_after(DEATH_WATCH):
                    code = await process.wait()
            with anyio.move_on_after(OUTPUT_GRACE):
                await output.over.wait()
            process.end_output()
        return ProcessEnd(code, timed_out=limit.cancelled_caught, output=bytes(output.tail))

    async def _end_group(self, process: Process) -> None:
        """SIGTERM to the group, then SIGKILL to what is left of it."""
        process.signal_group(signal.SIGTERM)
        with anyio.move_on_after(KILL_TIMEOUT):
            await self._group_gone(process)
        process.signal_group(signal.SIGKILL)
        with anyio.move_on_after(DEATH_WATCH):
            await self._group_gone(process)

    async def _group_gone(self, process: Process) -> None:
        while process.group_alive():
            await self._clock.sleep(NAP)


class _Output:
    """The end of what a program writes to both streams."""

    def __init__(self) -> None:
        self.tail = bytearray()
        self.over = anyio.Event()
        self._streams = len(_STREAMS)

    async def collect(self, process: Process, stream: Stream) -> None:
        """Read one stream to its end."""
        while data := await process.read(stream):
            self.tail += data
            del self.tail[:-OUTPUT_KEPT]
        self._streams -= 1
        if self._streams == 0:
            self.over.set()
