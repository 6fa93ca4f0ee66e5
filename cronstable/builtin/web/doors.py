"""How many connections are open at once, counted by their descriptors; the ones beyond are closed before they cost any.

The daemon shares its descriptors between the connections of its clients and the pipes of its runs. Whoever reaches the
port can open connections, also without a token; without a bound the jobs would be the ones that get no descriptor.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import weakref
from typing import Any, Final

from cronstable.api import Clock, Seconds

MOST: Final = 1024
"""Connections at once over all listeners of the service, where the limit on open files leaves room for them."""
SHARE: Final = 2
"""One descriptor out of so many may be a connection; all others are left to the jobs."""
QUIET: Final[Seconds] = 60.0
"""Refused connections are logged at most once in this many seconds."""
AT_ONCE: Final = 128
"""Connections that are refused before others have their turn."""


def most_connections() -> int:
    """``MOST``, or a share of the descriptors that this process may have open."""
    if sys.platform == "win32":
        return MOST
    import resource  # there is none on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // SHARE))


class Doors:
    """The connections of one service."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self.most = most_connections()
        self._clock = clock
        self._log = log
        # Weak: a connection whose handshake fails may be let go of without being closed.
        self._inside: weakref.WeakSet[Visitor] = weakref.WeakSet()
        self._quiet_until = float("-inf")
        self._unlogged = 0

    @property
    def open(self) -> int:
        """How many connections are open, those in a TLS handshake included."""
        return len(self._inside)

    def door(self, listening: socket.socket) -> Door:
        """``listening``, which is used up, as a socket that lets in no more than there is room for."""
        return Door(self, listening)

    def enter(self, visitor: Visitor) -> bool:
        """Count an accepted connection; False when there is no room for it."""
        if len(self._inside) >= self.most:
            return False
        self._inside.add(visitor)
        return True

    def leave(self, visitor: Visitor) -> None:
        """Count a connection no more."""
        self._inside.discard(visitor)

    def note_refused(self) -> None:
        """Log a connection that was refused; a flood of them becomes one line a minute with a count."""
        now = self._clock.now().boot
        if now < self._quiet_until:
            self._unlogged += 1
            return
        self._log.warning(
            "web: refused a connection, %d are open, which is the most (%d more since the last such line)",
            self.most,
            self._unlogged,
        )
        self._unlogged = 0
        self._quiet_until = now + QUIET


class Visitor(socket.socket):
    """An accepted connection, counted until its descriptor is closed, whoever closes it."""

    def __init__(self, doors: Doors, accepted: socket.socket) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._doors = doors

    def close(self) -> None:
        """Close it, and make room for another one."""
        super().close()
        self._doors.leave(self)


class Door(socket.socket):
    """A listening socket of the service. An event loop accepts on it as on any other."""

    def __init__(self, doors: Doors, listening: socket.socket) -> None:
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._doors = doors

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that there is room for; ``BlockingIOError`` when there is none."""
        for _ in range(AT_ONCE):
            accepted, address = super().accept()
            visitor = Visitor(self._doors, accepted)
            if self._doors.enter(visitor):
                return visitor, address
            visitor.close()
            self._doors.note_refused()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
