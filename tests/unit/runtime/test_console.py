"""The console: order kept, a reader that does not read costs lines and never time."""

from __future__ import annotations

import logging
import os

from cronstable.runtime.console import Console, ConsoleHandler


def drained(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as reader:
        return reader.read()


def test_what_is_written_comes_out_in_order() -> None:
    reading, writing = os.pipe()
    console = Console(writing)
    for i in range(1000):
        console.write(b"%d\n" % i)
    console.close()
    os.close(writing)
    assert drained(reading) == b"".join(b"%d\n" % i for i in range(1000))


def test_a_reader_that_never_reads_costs_lines_but_no_waiting_and_is_told_afterwards() -> None:
    reading, writing = os.pipe()
    console = Console(writing, limit=1 << 20)
    chunk = b"x" * 4095 + b"\n"
    for _ in range(1000):
        console.write(chunk)
    assert console.congested
    got = b""
    while b"writes dropped" not in got:
        got += os.read(reading, 1 << 16)
        console.write(b"tail\n")
    console.close()
    os.close(writing)
    assert len(got) < 1000 * len(chunk)
    os.close(reading)


def test_a_reader_that_went_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    console = Console(writing)
    console.write(b"to nobody\n")
    console.close()
    os.close(writing)
    assert not console.congested


def test_a_log_record_becomes_a_line() -> None:
    reading, writing = os.pipe()
    console = Console(writing)
    handler = ConsoleHandler(console)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.emit(logging.LogRecord("x", logging.WARNING, __file__, 1, "disk %s", ("full",), None))
    console.close()
    os.close(writing)
    assert drained(reading) == b"WARNING disk full\n"
