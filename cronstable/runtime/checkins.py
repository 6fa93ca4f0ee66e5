"""``monitor``: check-ins of runs with a dead man's switch such as healthchecks, from the node that ran."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from cronstable.core.clock import Seconds
from cronstable.core.job import Job, Json
from cronstable.core.runs import LiveRun, Outcome, RunRecord
from cronstable.core.values import dataclass
from cronstable.plugin.protocols import Host
from cronstable.plugin.secret import SecretSource
from cronstable.runtime.courier import Courier, Refusal

TIMEOUT: Seconds = 5.0
TAIL = 10_000
"""Bytes of output that go with a check-in."""


@dataclass(frozen=True, slots=True)
class Monitor:
    """Where a job checks in, and with what."""

    url: SecretSource
    start: bool = True
    success: bool = True
    fail: bool = True
    log: bool = False


def monitor_of(keys: Mapping[str, Json]) -> Monitor | None:
    """The monitor among the remaining keys of a job (``JobOptions.raw``)."""
    section = keys.get("monitor")
    if not isinstance(section, dict):
        return None
    url = SecretSource.of(section.get("url"))
    if url is None:
        return None
    wanted = {key: section.get(key, key != "log") is True for key in ("start", "success", "fail", "log")}
    return Monitor(url, **wanted)


def run_uuid(run_id: str) -> str:
    """The run id in the form of a UUID, which is what a switch pairs a start and an end by."""
    digits = hashlib.sha256(run_id.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"


def address(url: str, signal: str, run_id: str) -> str:
    """The address of a signal (empty: success): one step below the URL, the run as ``rid``; its query is kept."""
    parts = urlsplit(url.strip())
    path = parts.path.rstrip("/") + (f"/{signal}" if signal else "")
    query = "&".join(text for text in (parts.query, f"rid={run_uuid(run_id)}") if text)
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def tail(record: RunRecord) -> bytes:
    """The reason of a failure and the end of what was captured."""
    texts = [text for text in (record.fail_reason, record.stdout, record.stderr) if text]
    return "\n".join(texts).encode("utf-8", "replace")[-TAIL:]


class CheckIns:
    """Implements the launcher's ``RunListener``. A cancelled run checks in with nothing at its end."""

    def __init__(self, *, courier: Courier, host: Host) -> None:
        self._courier = courier
        self._host = host

    def started(self, job: Job, run: LiveRun) -> None:
        """A run began."""
        monitor = monitor_of(job.options.raw)
        if monitor is not None and monitor.start:
            self._post(job.name, monitor, "start", run.key.run_id, b"")

    def finished(self, job: Job, record: RunRecord) -> None:
        """A run came to a verdict."""
        monitor = monitor_of(job.options.raw)
        if monitor is None or record.outcome not in (Outcome.SUCCESS, Outcome.FAILURE):
            return
        run_id = record.key.run_id
        if monitor.log:
            self._post(job.name, monitor, "log", run_id, tail(record))
        if record.outcome is Outcome.SUCCESS and monitor.success:
            self._post(job.name, monitor, "", run_id, b"")
        if record.outcome is Outcome.FAILURE and monitor.fail:
            self._post(job.name, monitor, "fail", run_id, tail(record))

    def _post(self, name: str, monitor: Monitor, signal: str, run_id: str, body: bytes) -> None:
        async def send() -> None:
            url = address(await monitor.url.reveal(self._host), signal, run_id)
            answer = await self._host.http.request(
                "POST", url, headers={"content-type": "text/plain; charset=utf-8"}, content=body, timeout=TIMEOUT
            )
            if answer.status >= 300:
                raise Refusal(f"HTTP {answer.status}")

        self._courier.post(name, send)
