"""``statsd``: figures of each run over UDP, best effort (reference 2)."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from cronstable.core.clock import Seconds
from cronstable.core.job import Job, Json
from cronstable.core.runs import LiveRun, Outcome, Resources, RunRecord
from cronstable.core.values import dataclass
from cronstable.plugin.protocols import Threads
from cronstable.runtime.courier import Courier

DEADLINE: Seconds = 2.0
"""For a name that has to be looked up; the datagram itself waits for nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the figures of a job go, and what they are called."""

    prefix: str
    host: str
    port: int


def target_of(keys: Mapping[str, Json]) -> Target | None:
    """The target among the remaining keys of a job (``JobOptions.raw``)."""
    statsd = keys.get("statsd")
    if not isinstance(statsd, dict):
        return None
    prefix, host, port = statsd.get("prefix"), statsd.get("host"), statsd.get("port")
    if isinstance(prefix, str) and isinstance(host, str) and isinstance(port, int):
        return Target(prefix, host, port)
    return None


def start_figures(prefix: str) -> bytes:
    """The datagram of a start."""
    return f"{prefix}.start:1|g\n".encode()


def end_figures(prefix: str, *, success: bool, duration: Seconds, used: Resources | None = None) -> bytes:
    """The datagram of an end; ``duration`` in seconds, sent in milliseconds. ``used``: where that was sampled."""
    lines = [f"{prefix}.stop:1|g", f"{prefix}.success:{int(success)}|g", f"{prefix}.duration:{duration * 1000:.0f}|ms"]
    if used is not None:
        lines += [f"{prefix}.cpu:{used.cpu * 1000:.0f}|ms", f"{prefix}.max_rss:{used.max_rss}|g"]
    return "".join(f"{line}\n" for line in lines).encode()


class Statsd:
    """Implements the launcher's ``RunListener``."""

    def __init__(self, *, courier: Courier, threads: Threads) -> None:
        self._courier = courier
        self._threads = threads

    def started(self, job: Job, run: LiveRun) -> None:
        """Say that the run began."""
        target = target_of(job.options.raw)
        if target is not None:
            self._post(job.name, target, start_figures(target.prefix))

    def finished(self, job: Job, record: RunRecord) -> None:
        """Say how it went. Cancelled runs end too, without success."""
        target = target_of(job.options.raw)
        if target is not None:
            success, duration = record.outcome is Outcome.SUCCESS, record.duration or 0.0
            figures = end_figures(target.prefix, success=success, duration=duration, used=record.resources)
            self._post(job.name, target, figures)

    def _post(self, name: str, target: Target, figures: bytes) -> None:
        async def send() -> None:
            await self._threads.run(lambda: _send(target, figures), timeout=DEADLINE, lane="statsd")

        self._courier.post(name, send)


def _send(target: Target, figures: bytes) -> None:
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as udp:
        udp.setblocking(False)
        udp.sendto(figures, address)
