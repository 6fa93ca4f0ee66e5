"""kill -9 at every change of the file system: nothing acknowledged is lost or corrupt, names and fences go on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cronstable_fs.seal import Sealed, unseal
from cronstable_fs.state import FilesystemStateStore
from cronstable_fs.state_settings import StateSettings

from cronstable.api import Damage, Held, Holder
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.testing.clock import until
from cronstable.testing.host import FakeHost

KILLS = 3 * int(os.environ.get("CRONSTABLE_ENDURANCE_ROUNDS", "2"))


class Unsynced(SystemFiles):
    """Nothing here outlives the power."""

    def fsync(self, fd: int) -> None:
        return None


@dataclass
class Model:
    """What must be there: streams as lists of (name, data), documents, and all names and fences ever told."""

    streams: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)

    def apply(self, kind: str, args: list[Any], answer: Any) -> None:
        records = self.streams.setdefault(str(args[0]), []) if kind in ("append", "trim", "put_aside") else []
        match kind:
            case "append":
                records.append((answer, args[1]))
                self.names.append(answer)
            case "trim":
                del records[: max(0, len(records) - args[1])]
            case "put_aside":
                records[:] = [record for record in records if record[0] != args[1]]
            case "put":
                self.documents[args[0]] = args[1]
            case "delete":
                del self.documents[args[0]]
            case "acquire":
                self.fences.append(answer)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="cronstable-fs-state-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


class After:
    """A process that comes to the store behind the one that was killed."""

    def __init__(self, path: Path, run: Any) -> None:
        host: Any = FakeHost(SystemClock(), "after", fs=Unsynced())
        host.ids = SystemIds()
        self.path, self.run, self.host = path, run, host
        self.store = FilesystemStateStore(host, StateSettings(str(path)))

    def damage(self) -> list[Damage]:
        async def all_of() -> list[Damage]:
            return [damage async for damage in self.store.inspect(repair=False)]

        found: list[Damage] = self.run(all_of())
        return found

    def aside(self) -> list[str]:
        found = []
        for file in sorted((self.path / "default" / "quarantine").rglob("*.json")):
            opened = unseal(file.read_bytes())
            assert isinstance(opened, Sealed)
            found.append(opened.data.decode())
        return found

    def holds(self, log: Path) -> None:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        model = Model()
        for step, told in zip(lines[::2], lines[1::2], strict=False):
            model.apply(step["kind"], step["args"], told["answer"])
        under_way = lines[-1] if len(lines) % 2 else {"kind": "nothing", "args": []}
        self.run(self.store.open())
        assert self.damage() == []
        for stream in ("runs/A", "L" * 300):
            self.holds_stream(stream, model, under_way)
        self.holds_documents(model, under_way)
        held = self.run(self.store.lease("slots/a").observe())
        fence = self.run(self.take(held))
        assert all(fence > earlier for earlier in model.fences)

    def holds_stream(self, stream: str, model: Model, under_way: dict[str, Any]) -> None:
        must = [data for _, data in model.streams.get(stream, [])]
        found = [record.data.decode() for record in self.run(self.store.read(stream))]
        mine = under_way["args"][:1] == [stream]
        match under_way["kind"] if mine else "":
            case "append":
                assert found in (must, [*must, under_way["args"][1]])
            case "trim":
                assert len(found) >= min(len(must), under_way["args"][1])
                assert found == must[len(must) - len(found) :]
            case "put_aside":
                assert sorted(found + self.aside()) == sorted(must)
            case _:
                assert found == must
        assert (stream in self.run(self.store.streams())) == bool(found)
        name = self.run(self.store.append(stream, b"next"))
        assert all(name > earlier for earlier in model.names if stream == "runs/A")
        assert self.run(self.store.read(stream, limit=1))[0].data == b"next"

    def holds_documents(self, model: Model, under_way: dict[str, Any]) -> None:
        stands = self.run(self.store.get("D"))
        found = stands.data.decode() if stands is not None else None
        allowed = {model.documents.get("D")}
        if under_way["kind"] == "put":
            allowed.add(under_way["args"][1])
        if under_way["kind"] == "delete":
            allowed.add(None)
        assert found in allowed
        assert self.run(self.store.put("D", b"next", stands.version if stands is not None else None)) is not None

    async def take(self, stands: Any) -> int:
        over = stands if hasattr(stands, "record") else None
        held = await self.store.lease("slots/a").acquire(Holder("after", "a"), 30.0, nonce="after", over=over)
        assert isinstance(held, Held)
        return held.grant.fence


@pytest.mark.integration
def test_a_kill_at_any_change_loses_nothing_that_was_acknowledged_and_corrupts_nothing(scratch: Path, run: Any) -> None:
    script = Path(__file__).with_name("state_writer.py")
    ended = subprocess.run([sys.executable, str(script), str(scratch)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    processes = int(ended.stdout)
    assert processes > 100
    for number in range(1, processes + 1):
        After(scratch / str(number), run).holds(scratch / f"{number}.log")


class Storm:
    """Three processes on one stream, one of which is killed again and again, and one that follows."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        self.root = root
        self.stack = stack
        self.started = 0

    def start(self, *who: str) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("state_storm.py")
        process = subprocess.Popen([sys.executable, str(script), str(self.root), *who])
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        self.started += 1
        return self.start(f"w{self.started}")

    def lines(self, name: str) -> list[tuple[str, str]]:
        file = self.root / name
        text = file.read_text() if file.exists() else ""
        return [(line[0], line[1]) for line in map(json.loads, text.splitlines())]

    def have(self, name: str, number: int) -> bool:
        return len(self.lines(name)) > number

    async def blow(self) -> None:
        follower = self.start()
        workers = [self.worker() for _ in range(3)]
        for kill in range(KILLS):
            enough = len(self.lines("acks")) + 40
            await until(partial(self.have, "acks", enough), within=60, what="more records")
            victim = workers.pop(0)
            assert victim.poll() is None, f"a worker ended by itself before kill {kill}"
            victim.kill()
            workers.append(self.worker())
        await until(partial(self.have, "seen", 100), within=60, what="records that were followed")
        assert [process.poll() for process in (*workers, follower)] == [None] * 4
        for process in (*workers, follower):
            process.kill()
            process.wait()


@pytest.mark.integration
@pytest.mark.anyio
async def test_processes_that_are_killed_while_they_trim_each_other_use_no_number_twice_and_lose_nothing(
    scratch: Path, run: Any
) -> None:
    with contextlib.ExitStack() as stack:
        storm = Storm(scratch, stack)
        await storm.blow()
    acks, seen = storm.lines("acks"), storm.lines("seen")
    names = [name for name, _ in acks]
    assert len(set(names)) == len(names), "a number was given out twice"
    by_writer: dict[str, str] = {}
    for name, data in acks:
        who = data.split()[0]
        assert by_writer.get(who, "") < name, "the order of one writer"
        by_writer[who] = name
    assert [name for name, _ in seen] == sorted({name for name, _ in seen}), "a follower saw a name below the last"
    after = After(scratch, run)
    run(after.store.open())
    assert after.damage() == []
    stands = {record.name: record.data.decode() for record in run(after.store.read("s"))}
    aside = {path.stem for path in (scratch / "default" / "quarantine" / "records" / "s").glob("*.json")}
    lowest = min(stands, default="9" * 20)
    assert [name for name in names if name > lowest and name not in stands and name not in aside] == []
    told = dict(acks)
    assert all(told.get(name, data) == data for name, data in stands.items())
