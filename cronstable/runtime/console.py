"""Writing to the daemon's own stdout and stderr without ever waiting for whoever reads them."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque

from cronstable.core.clock import Seconds

BUFFERED_BYTES = 8 * 1024 * 1024
"""What a slow reader may leave unread before output is dropped, per stream."""


def hold_standard_descriptors() -> None:
    """Open the null device in the place of a closed stdin, stdout or stderr. Once, before anything else is opened.

    Else the first socket or file would get the number, and what a job prints would be written into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is ours, since all below it are open by now.
            os.open(os.devnull, os.O_RDWR)


GATHER: Seconds = 0.1
"""How long a first line may wait for company. Each wake-up of the writing thread takes the interpreter lock from the
event loop, and on a busy machine it is given back only when that thread was scheduled: ten a second are enough."""


class Console:
    """A thread that empties a bounded buffer into a file descriptor.

    A full pipe behind stdout would otherwise stop the event loop, and with it lease renewals (reference 13, row 69).
    What does not fit is dropped and counted; a line says so once there is room again.
    """

    def __init__(self, fd: int, *, limit: int = BUFFERED_BYTES) -> None:
        self._fd = fd
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._closed = False
        self._ready = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Queue ``data``; returns at once."""
        with self._ready:
            if self._size + len(data) > self._limit:
                self._dropped += 1
                return
            first = not self._chunks
            self._chunks.append(data)
            self._size += len(data)
            if self._thread is None:
                # A daemon thread: a reader that never reads must not keep the process from exiting.
                self._thread = threading.Thread(target=self._drain, name="cronstable-console", daemon=True)
                self._thread.start()
            elif first:
                self._ready.notify()

    @property
    def congested(self) -> bool:
        """More than half of the buffer waits for a reader."""
        return self._size > self._limit // 2

    def close(self, timeout: Seconds = 2.0) -> None:
        """Write out what is queued, for at most ``timeout`` seconds."""
        with self._ready:
            self._closed = True
            self._ready.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _drain(self) -> None:
        while True:
            with self._ready:
                while not self._chunks and not self._closed:
                    self._ready.wait()
                if not self._chunks:
                    return
                if not self._closed:
                    # Whatever else comes in this moment goes out in the same write: a burst of jobs wakes us once.
                    self._ready.wait(GATHER)
                data = b"".join(self._chunks)
                self._chunks.clear()
                self._size = 0
                dropped, self._dropped = self._dropped, 0
            if dropped:
                data += b"cronstable: %d writes dropped, nobody reads this stream fast enough\n" % dropped
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    # Somebody made the shared terminal non-blocking: wait for room like anybody else.
                    _wait_writable(self._fd)
                except OSError:
                    # The reader is gone (EPIPE) or the disk is full: there is nowhere to say so.
                    break


def _wait_writable(fd: int) -> None:
    select.select([], [fd], [], 1.0)


class SecondsFormatter(logging.Formatter):
    """The text form of the log. Writes out each second once: a burst of runs says hundreds of lines in the same one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s (%(name)s) %(message)s")
        self._second = -1
        self._text = ""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or more when there is a traceback."""
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        # What the format above says, at half its cost: nearly every line comes here.
        return f"{self.formatTime(record)} {record.levelname} ({record.name}) {record.getMessage()}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """The local time with milliseconds, as logging writes it by default."""
        second = int(record.created)
        if second != self._second:
            self._text = super().formatTime(record, self.default_time_format)
            self._second = second
        return f"{self._text},{int(record.msecs):03d}"


class ConsoleHandler(logging.Handler):
    """A logging handler on top of a ``Console``."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Format and queue."""
        try:
            self._console.write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001 - logging's own contract: a bad record is reported, never raised
            self.handleError(record)
