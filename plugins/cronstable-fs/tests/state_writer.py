"""A process that works on a state store and is killed at a system call, again and again, each time one call later.

Run as a script: ``state_writer.py ROOT``. Process number n works on ``ROOT/n`` and sends itself SIGKILL instead of its
n-th call that changes the file system (half way through, when that is a write): between two of those the disk is the
same, wherever the process dies. What it was about to do, and what it was told, stands in ``ROOT/n.log``. The script
ends when a process came through; it prints how many there were.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from cronstable_fs.state import FilesystemStateStore
from cronstable_fs.state_settings import StateSettings

from cronstable.api import Held, Holder
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.testing.host import FakeHost


class Killing(SystemFiles):
    """The calls of ``os``, of which one is the last. Nothing here outlives the power, so nothing is really synced."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.left = last

    def count(self) -> bool:
        self.left -= 1
        return self.left == 0

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, fd: int, data: bytes) -> int:
        if self.count():
            super().write(fd, data[: len(data) // 2])
            self.die()
        return super().write(fd, data)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT and self.count():
            self.die()
        return super().open(path, flags, mode)

    def fsync(self, fd: int) -> None:
        return None


def counted(name: str) -> Any:
    def call(self: Killing, *args: Any) -> Any:
        if self.count():
            self.die()
        return getattr(SystemFiles, name)(self, *args)

    return call


for _name in ("replace", "link", "unlink", "makedirs"):
    setattr(Killing, _name, counted(_name))


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Nothing waits here: calls run in line, and no lock is ever taken by somebody else."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


class Work:
    """What is done, with a line before each step and one behind it."""

    def __init__(self, path: str, log: int, last: int) -> None:
        host: Any = FakeHost(SystemClock(), "writer", fs=Killing(last))
        host.ids = SystemIds()
        self.store = FilesystemStateStore(host, StateSettings(path))
        self.log = log

    def step(self, kind: str, *args: str | int | None) -> Any:
        self.say({"kind": kind, "args": args})
        answer = getattr(self, f"do_{kind}")(*args)
        self.say({"answer": answer})
        return answer

    def say(self, what: dict[str, Any]) -> None:
        os.write(self.log, json.dumps(what).encode() + b"\n")

    def do_open(self) -> None:
        drive(self.store.open())

    def do_append(self, stream: str, data: str) -> str:
        return str(drive(self.store.append(stream, data.encode())))

    def do_trim(self, stream: str, keep: int) -> None:
        drive(self.store.trim(stream, keep))

    def do_put_aside(self, stream: str, name: str) -> None:
        drive(self.store.put_aside(stream, name))

    def do_put(self, document: str, data: str, expect: str | None) -> str:
        return str(drive(self.store.put(document, data.encode(), expect)).version)

    def do_delete(self, document: str, expect: str) -> bool:
        return bool(drive(self.store.delete(document, expect)))

    def do_acquire(self, lease: str, nonce: str) -> int:
        held = drive(self.store.lease(lease).acquire(Holder("writer", nonce), 30.0, nonce=nonce))
        assert isinstance(held, Held)
        drive(self.store.lease(lease).release(held.grant, ()))
        return held.grant.fence

    def run(self) -> None:
        self.step("open")
        for number in range(3):
            self.step("append", "runs/A", f"a{number}")
        self.step("trim", "runs/A", 1)
        name = self.step("append", "runs/A", "a3")
        self.step("put_aside", "runs/A", name)
        self.step("append", "runs/A", "a4")
        self.step("trim", "runs/A", 0)
        self.step("append", "runs/A", "a5")
        self.step("append", "L" * 300, "long")
        version = self.step("put", "D", "d0", None)
        version = self.step("put", "D", "d1", version)
        self.step("delete", "D", version)
        self.step("put", "D", "d2", None)
        self.step("acquire", "slots/a", "n1")
        self.step("acquire", "slots/a", "n2")


def main(root: str) -> int:
    for number in range(1, 5000):
        log = os.open(os.path.join(root, f"{number}.log"), os.O_WRONLY | os.O_CREAT, 0o600)
        child = os.fork()
        if child == 0:
            Work(os.path.join(root, str(number)), log, number).run()
            os._exit(0)
        os.close(log)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(number)
            return os.WEXITSTATUS(status)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
