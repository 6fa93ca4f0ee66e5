"""The log as JSON: one object a line, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys

from cronstable.core.runs import RunKey
from cronstable.runtime.capture import LineBatch, format_prefix
from cronstable.runtime.jsonlog import JsonFormatter, json_lines

KEY = RunKey("r1", "a", 60, attempt=2)


def test_a_record_is_one_line_with_utc_time_level_logger_and_message() -> None:
    record = logging.LogRecord("cronstable", logging.WARNING, "f", 1, "job %s:\nfailed", ("ä",), None)
    record.created = 1_800_000_000.25
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "cronstable",
        "message": "job ä:\nfailed",
    }


def test_an_exception_is_a_part_of_its_record() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "oops", (), sys.exc_info())
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert "ValueError: bad" in json.loads(text)["exception"]


def test_each_line_of_output_is_an_object_and_has_no_prefix() -> None:
    batch = LineBatch(KEY, "stdout", "[a stdout] ", 7, ["one", 'two "\ufffd'], 1_800_000_000.0)
    lines = [json.loads(line) for line in json_lines(batch).splitlines()]
    head = {"time": "2027-01-15T08:00:00.000Z", "job": "a", "run_id": "r1", "attempt": 2, "stream": "stdout"}
    assert lines == [{**head, "number": 7, "line": "one"}, {**head, "number": 8, "line": 'two "\ufffd'}]


def test_an_empty_stream_prefix_passes_lines_through_as_they_are() -> None:
    batch = LineBatch(KEY, "stdout", format_prefix("", "a", "stdout"), 1, ['{"level":"info"}', "x"], 0.0)
    assert batch.logged() == '{"level":"info"}\nx\n'
