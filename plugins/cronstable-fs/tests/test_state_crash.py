"""kill -9 at every change of the file system: nothing acknowledged is lost or corrupt, names and fences go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cronstable_fs.seal import Sealed, unseal
from cronstable_fs.state import FilesystemStateStore
from cronstable_fs.state_settings import StateSettings

from cronstable.api import Damage, Held, Holder
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.testing.host import FakeHost


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
