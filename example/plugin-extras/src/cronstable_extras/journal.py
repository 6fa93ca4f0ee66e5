"""A notifier: one line of JSON for each message, appended to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cronstable.api import Host, Json, LeaderChange, Message, Notifier, QuorumLoss, Report


def make(settings: object, host: Host) -> Notifier:
    """The factory that the hook names."""
    assert isinstance(settings, Mapping)
    return Journal(str(settings["file"]), host)


class Journal:
    """A ``Notifier``. The host bounds the time, logs and counts failures: simply raise."""

    def __init__(self, file: str, host: Host) -> None:
        self._file, self._host = file, host

    async def send(self, message: Message) -> None:
        """Append the message."""
        entry: dict[str, Json]
        match message:
            case Report(event, job, record):
                entry = {"event": event, "job": job.name, "outcome": record.outcome, "reason": record.fail_reason}
            case LeaderChange(node, is_leader):
                entry = {"event": "leader_change", "node": node, "leads": is_leader}
            case QuorumLoss(node):
                entry = {"event": "quorum_loss", "node": node}
        await self._host.threads.run(lambda: self._append(json.dumps(entry)), timeout=10.0, lane="journal")

    def _append(self, line: str) -> None:
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(line + "\n")
