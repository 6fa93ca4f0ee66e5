"""A process that appends to one stream, trims it and puts records aside at random, or one that only follows it.

Run as a script: ``state_storm.py ROOT NAME`` writes what was acknowledged to ``ROOT/acks``, a line (name, data) each;
``state_storm.py ROOT`` writes what it reads to ``ROOT/seen``. Both until they are killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

import anyio
from cronstable_fs.settings import Topology
from cronstable_fs.state import FilesystemStateStore
from cronstable_fs.state_settings import StateSettings

from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds, SystemRng
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.host import FakeHost


class Unsynced(SystemFiles):
    """Nothing here outlives the power."""

    def fsync(self, fd: int) -> None:
        return None


async def opened(root: str) -> FilesystemStateStore:
    host: Any = FakeHost(SystemClock(), "storm", fs=Unsynced())
    host.threads, host.ids, host.rng = ThreadLanes(), SystemIds(), SystemRng()
    store = FilesystemStateStore(host, StateSettings(root, topology=Topology.SHARED), op_timeout=30.0)
    await store.open()
    return store


def told(file: int, name: str, data: bytes) -> None:
    os.write(file, json.dumps([name, data.decode()]).encode() + b"\n")


async def work(root: str, who: str) -> None:
    store, dice = await opened(root), random.Random(who)
    acks = os.open(os.path.join(root, "acks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    number = 0
    while True:
        number += 1
        data = f"{who} {number}".encode()
        told(acks, await store.append("s", data), data)
        if dice.random() < 0.2:
            await store.trim("s", dice.choice([0, 1, 3, 20]))
        if dice.random() < 0.1:
            for record in await store.read("s", limit=1):
                await store.put_aside("s", record.name)


async def follow(root: str) -> None:
    store, after = await opened(root), ""
    seen = os.open(os.path.join(root, "seen"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        for record in await store.read("s", after=after):
            after = record.name
            told(seen, record.name, record.data)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        anyio.run(work, sys.argv[1], sys.argv[2])
    else:
        anyio.run(follow, sys.argv[1])
