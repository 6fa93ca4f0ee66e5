"""The daemon's log and the output of jobs as one JSON object a line, for collectors that want no text."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from cronstable.runtime.capture import LineBatch


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``, and ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def json_lines(batch: LineBatch) -> str:
    """A batch of output: ``time``, ``job``, ``run_id``, ``attempt``, ``stream``, ``number``, ``line``; no prefix."""
    head = {
        "time": _time(batch.at),
        "job": batch.key.job,
        "run_id": batch.key.run_id,
        "attempt": batch.key.attempt,
        "stream": batch.stream,
    }
    return "".join(json.dumps({**head, "number": line.number, "line": line.text}) + "\n" for line in batch.lines())
