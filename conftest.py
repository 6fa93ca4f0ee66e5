"""What the tests of the host and those of its plugins share: ports that nobody else takes meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest

PORTS = range(20_000, 32_000)
"""Below what systems give to outgoing connections: one of those could have a port between its choice and its use."""


def _numbers() -> Iterator[int]:
    """Each worker has ports of its own, and another run of the suite on this machine most likely begins elsewhere."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    first = os.getpid() * 97 % len(mine)
    yield from (*mine[first:], *mine[:first])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As a server does it: a port that only a closed connection still remembers counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.fixture(scope="session")
def free_ports() -> Callable[[int], list[int]]:
    """So many ports of the loopback address to listen at; none is given out twice."""
    free = filter(_is_free, _numbers())
    return lambda count: [next(free) for _ in range(count)]
