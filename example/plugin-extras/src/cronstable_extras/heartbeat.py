"""A service: touches a file for as long as this node is ready."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cronstable.api import Host, Seconds, Service, Started


def make(settings: object, host: Host) -> Service:
    """The factory that the hook names. ``settings`` is the validated section."""
    assert isinstance(settings, Mapping)
    return Heartbeat(Path(str(settings["file"])), float(settings.get("interval", 10)))


class Heartbeat:
    """A ``Service``."""

    def __init__(self, file: Path, interval: Seconds) -> None:
        self._file, self._interval = file, interval

    async def run(self, host: Host, *, task_status: Started) -> None:
        """Until cancelled. A disk may hang, so it is touched in a thread and with a deadline."""
        task_status.started()
        while True:
            if host.snapshot().ready:
                try:
                    await host.threads.run(self._touch, timeout=5.0, lane="heartbeat")
                except (OSError, TimeoutError) as error:
                    host.log.warning("heartbeat: %s was not touched: %s", self._file, error or "no answer in 5 s")
            await host.clock.sleep(self._interval)

    def _touch(self) -> None:
        self._file.touch()
        os.utime(self._file)
