"""How loaded this node is, for its peers to show (reference 6.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cronstable.api import Host, Seconds

LOOK_TIMEOUT: Final[Seconds] = 5.0


class NodeLoad:
    """Looks at the machine and at this process. ``read``: how, for tests."""

    def __init__(self, host: Host, read: Callable[[], Mapping[str, float]] | None = None) -> None:
        self._host = host
        self._read = read or _Psutil().read

    async def look(self) -> Mapping[str, float] | None:
        """The figures of now; None when the machine cannot be looked at, which is worth no more than a debug line."""
        try:
            return await self._host.threads.run(self._read, timeout=LOOK_TIMEOUT, lane="node-load")
        except Exception as error:  # noqa: BLE001 - psutil raises its own on odd machines; nothing hangs on a figure
            self._host.log.debug("cluster: the load of this node is not known: %s", type(error).__name__)
            return None


class _Psutil:
    """psutil, imported when the first figure is asked for. Percentages are since the call before, 0 at the first."""

    def read(self) -> Mapping[str, float]:
        import psutil

        memory, process = psutil.virtual_memory(), psutil.Process()
        return {
            "cpu_percent": psutil.cpu_percent(),
            "cpu_count": float(psutil.cpu_count() or 1),
            "mem_percent": memory.percent,
            "mem_used_bytes": float(memory.total - memory.available),
            "mem_total_bytes": float(memory.total),
            "proc_rss_bytes": float(process.memory_info().rss),
            "proc_cpu_percent": process.cpu_percent(),
        }
