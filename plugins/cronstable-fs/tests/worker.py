"""A process that takes, renews, drops and releases one lease at random and writes down what it was told.

Run as a script: ``worker.py PATH NAME OPERATIONS SEED`` prints one JSON line per ``Held``. It takes over whatever it
sees, alive or not: the store must keep terms apart without any help from time.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import anyio
from cronstable_fs.layout import Layout
from cronstable_fs.lease import FilesystemLeaseStore

from cronstable.api import Grant, Held, Holder, Observation, Seen, StoreUnavailable, Vacant
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.host import FakeHost


class Worker:
    """One process's side of the storm."""

    def __init__(self, path: str, name: str, seed: int) -> None:
        host: Any = FakeHost(SystemClock(), name, fs=SystemFiles())
        host.threads, host.ids = ThreadLanes(), SystemIds()
        self.ids, self.clock = host.ids, host.clock
        layout = Layout.of(path, "default", "storm")
        self.store = FilesystemLeaseStore(host, layout, "storm", ttl=15.0, op_timeout=30.0, signs=True)
        self.me = Holder(name, self.ids.token())
        self.dice = random.Random(seed)
        self.grant: Grant | None = None
        self.unavailable = 0

    async def step(self) -> None:
        nonce, throw = self.ids.token(8), self.dice.random()
        sent = self.clock.now().boot
        kind, answer = "look", None
        try:
            if self.grant is None:
                kind, answer = "win", await self.campaign(nonce)
            elif throw < 0.8:
                kind, answer = "renew", await self.store.renew(self.grant, nonce=nonce)
            else:
                if throw < 0.9:
                    await self.store.release(self.grant, ())
                self.grant = None
        except StoreUnavailable:
            self.unavailable += 1
            self.grant = None
        if isinstance(answer, Held):
            self.grant = answer.grant
            times = {"sent": sent, "got": self.clock.now().boot}
            print(json.dumps({"kind": kind, "fence": self.grant.fence, "who": str(self.me), **times}))
        elif kind == "renew":
            self.grant = None

    async def campaign(self, nonce: str) -> Observation:
        standing = await self.store.observe()
        match standing:
            case Seen():
                return await self.store.acquire(self.me, 15.0, nonce=nonce, over=standing)
            case Vacant():
                return await self.store.acquire(self.me, 15.0, nonce=nonce)
            case _:
                raise AssertionError(f"nobody garbled the lease, yet: {standing}")


async def main(path: str, name: str, operations: int, seed: int) -> None:
    worker = Worker(path, name, seed)
    for _ in range(operations):
        await worker.step()
    print(json.dumps({"kind": "end", "unavailable": worker.unavailable}))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
