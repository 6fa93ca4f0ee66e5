"""Hears of the ends of processes: one epoll for all of their pidfds."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable


class Exits:
    """Calls back when a process ended. Belongs to the event loop in which it watches.

    The loop watches one descriptor, that of the epoll, and only while there is a process: a reader of the loop's own
    for each one would cost four times as much. Raises what the system says when there is no descriptor left.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: dict[int, Callable[[], None]] = {}

    def watch(self, pidfd: int, call: Callable[[], None]) -> None:
        """``call`` once, when the process behind ``pidfd`` ends; the descriptor belongs to this object from then on."""
        epoll = self._epoll or self._open()
        epoll.register(pidfd, select.EPOLLIN)
        self._calls[pidfd] = call

    def _open(self) -> select.epoll:
        loop, epoll = asyncio.get_running_loop(), select.epoll()
        try:
            loop.add_reader(epoll.fileno(), self._look)
        except OSError:
            # Not kept: nobody would ever look at it.
            epoll.close()
            raise
        self._loop, self._epoll = loop, epoll
        return epoll

    def _look(self) -> None:
        if self._epoll is None:
            return
        for pidfd, _ in self._epoll.poll(0):
            call = self._calls.pop(pidfd)
            # A copy that a child of another thread still holds would keep a closed one in the epoll.
            self._epoll.unregister(pidfd)
            os.close(pidfd)
            # One after the other: should one break, the rest is still there in the next turn of the loop.
            call()
        if not self._calls:
            self._close(self._epoll)

    def _close(self, epoll: select.epoll) -> None:
        if self._loop is not None:
            self._loop.remove_reader(epoll.fileno())
        epoll.close()
        self._epoll = self._loop = None
