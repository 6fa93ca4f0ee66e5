"""``cronstable state`` on real stores in directories: look, check, collect, back up, restore and move."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from click.testing import CliRunner, Result

from cronstable.api import Held, Holder, StateStore
from cronstable.cli import state as command
from cronstable.cli import state_archive as archive
from cronstable.cli.state_copy import missing
from cronstable.core.records import encode
from cronstable.core.retention import MANIFEST_EVERY, Manifest

T = TypeVar("T")
pytestmark = pytest.mark.integration
DAY = 86_400.0


class Place:
    """A configuration with a store in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.root = directory / "state" / "default"
        self.wanted: command.Wanted | None = None
        self.config = directory / "c.yaml"
        self.config.write_text(f"state:\n  path: {directory / 'state'}\n")

    def do(self, work: Callable[[StateStore], Coroutine[Any, Any, T]]) -> T:
        """Work on the store as a daemon would."""

        wanted = self.wanted = self.wanted or command.wanted_of(str(self.config))

        async def main() -> T:
            async with command.Opened(wanted) as (store, _):
                return await work(store)

        return anyio.run(main)

    def fill(self, jobs: int = 3) -> None:
        async def work(store: StateStore) -> None:
            for job in range(jobs):
                for number in range(4):
                    await store.append(f"runs/Job {job}", encode({"n": number, "finishedAt": 5.0}))
            await store.append("logs/é", encode({"text": "\N{SNOWMAN}"}))
            await store.put("pauses", encode({"a": 1}), None)

        self.do(work)

    def contents(self) -> dict[tuple[str, str], list[bytes]]:
        async def work(store: StateStore) -> dict[tuple[str, str], list[bytes]]:
            found = {("s", n): [r.data for r in await store.read(n)] for n in await store.streams()}
            for name in await store.documents():
                document = await store.get(name)
                assert document is not None
                found["d", name] = [document.data]
            return found

        return self.do(work)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "one")


@pytest.fixture
def other(tmp_path: Path) -> Place:
    return Place(tmp_path / "two")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command.state_command, [str(argument) for argument in arguments])


def test_a_command_must_be_named_and_each_says_what_it_does() -> None:
    assert run().exit_code == 2
    assert run("nothing").exit_code == 2
    assert run("migrate").exit_code == 2
    assert "A daemon may run meanwhile" in " ".join(run("--help").output.split())
    for name in command.state_command.commands:
        assert run(name, "--help").exit_code == 0


def test_a_configuration_without_a_store_is_refused_with_a_hint(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    for text, says in (
        ("jobs: []\n", "no state section"),
        ("state: {backend: memory}\n", "gone with its daemon"),
        ("state: {path: ' '}\n", "cannot be used"),
        ("state: {path: /dev/null/x}\n", "the store cannot be used: open: Not a directory: /dev/null/x"),
    ):
        config.write_text(text)
        result = run("info", "-c", config)
        assert (result.exit_code, says in result.output) == (1, True), result.output


def test_info_says_which_store_it_is_and_what_is_in_it(place: Place) -> None:
    place.fill()
    result = run("info", "-c", place.config)
    assert result.exit_code == 0
    assert f"filesystem at {place.root} (of this machine)" in result.output
    told = json.loads(run("info", "--json", "-c", place.config).output)
    assert told["streams"] == {"logs": 1, "runs": 3}
    assert told["documents"] == 1


def test_check_finds_each_planted_damage_and_repair_puts_it_aside(place: Place) -> None:
    place.fill()
    assert run("check", "-c", place.config).output == "no damage\n"

    async def work(store: StateStore) -> None:
        await store.append("runs/new", b'{"schemaVersion":"v9","data":{}}')
        await store.append("runs/new", b"{")
        await store.append("runs/new", b"{}")
        await store.append("runs/new", encode({"fine": True}))
        held = await store.lease("slots/a").acquire(Holder("a", "a"), 30.0, nonce="n")
        assert isinstance(held, Held)
        await store.append("slots/a", encode({"fence": held.grant.fence + 5}))

    place.do(work)
    torn = next((place.root / "records").glob("runs*ob%200/*1.json"))
    torn.write_bytes(torn.read_bytes()[:9])
    (place.root / "foreign.txt").write_text("?")
    half = place.root / "tmp" / "x.tmp"
    half.write_bytes(b"half")
    hour_ago = time.time() - 3600
    os.utime(half, (hour_ago, hour_ago))
    told = json.loads(run("check", "--json", "-c", place.config).output)
    text = json.dumps(told)
    for what in ("runs/new", "'v9'", "no JSON", "no schemaVersion", "Job 0", "foreign.txt", "x.tmp", "its fence is"):
        assert what in text, what
    assert (len(told["damage"]), told["left"]) == (7, 7)
    assert torn.exists()
    result = run("check", "--repair", "-c", place.config)
    assert "7 found, 1 left" in result.output
    assert result.exit_code == 1, "the fence cannot be put right"
    again = run("check", "-c", place.config)
    assert again.output.startswith("DAMAGED  lease 'slots/a'")
    assert place.contents()["s", "runs/new"] == [encode({"fine": True})]


def test_gc_drops_only_what_nobody_knows_any_more(place: Place) -> None:
    now = time.time()

    async def work(store: StateStore) -> None:
        for number in range(32, -1, -1):
            manifest = Manifest("a", "id", frozenset({"kept"}), now - number * MANIFEST_EVERY)
            await store.append("manifests/a", encode(manifest.row()))
        for job, at in (("kept", 1.0), ("gone", 1.0), ("fresh", now)):
            await store.append(f"runs/{job}", encode({"finishedAt": at}))

    assert "nothing may go yet" in run("gc", "-c", place.config).output
    place.do(work)
    result = run("gc", "--dry-run", "-c", place.config)
    assert (result.exit_code, result.output) == (0, "would go  runs/gone\n1 streams would go\n")
    assert ("s", "runs/gone") in place.contents()
    assert run("gc", "-c", place.config).output == "dropped  runs/gone\n1 streams dropped\n"
    assert sorted(place.contents()) == [("s", "manifests/a"), ("s", "runs/fresh"), ("s", "runs/kept")]
    place.config.write_text(place.config.read_text() + "  gcGraceSeconds: 0\n")
    assert "nothing is ever collected" in run("gc", "-c", place.config).output


def test_a_backup_comes_back_whole_in_another_store(place: Place, other: Place, tmp_path: Path) -> None:
    place.fill()
    place.do(lambda store: store.append("blobs/x", b"\xff\0"))
    file = tmp_path / "b.jsonl"
    result = run("backup", "-c", place.config, file)
    assert result.exit_code == 0, result.output
    assert "5 streams and 1 documents, read back and found whole" in result.output
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert run("backup", "-c", place.config, file).exit_code == 1
    assert run("backup", "--force", "-c", place.config, file).exit_code == 0
    result = run("restore", "-c", other.config, file)
    assert result.exit_code == 0, result.output
    assert "found whole" in result.output
    assert other.contents() == place.contents()
    again = run("restore", "-c", other.config, file)
    assert "0 records written, 15 were there" in again.output


def test_a_backup_that_was_interrupted_goes_on_and_forgets_what_is_gone(
    place: Place, other: Place, tmp_path: Path
) -> None:
    place.fill()
    file = tmp_path / "b.jsonl"
    assert run("backup", "-c", place.config, file).exit_code == 0
    lines = file.read_bytes().splitlines(keepends=True)
    for cut in range(0, len(lines), 3):
        partial = Path(f"{file}.partial")
        extra = archive.Item("stream", "runs/dropped", (b"x",)).line()
        partial.write_bytes(b"".join([*lines[:1], extra, *lines[1:cut]])[:-3] if cut else b"")
        file.unlink()
        assert run("backup", "-c", place.config, file).exit_code == 0
        assert not partial.exists()
    assert run("restore", "-c", other.config, file).exit_code == 0
    assert other.contents() == place.contents()


def test_a_damaged_or_unfinished_archive_is_refused_before_anything_is_written(
    place: Place, other: Place, tmp_path: Path
) -> None:
    place.fill()
    file = tmp_path / "b.jsonl"
    assert run("backup", "-c", place.config, file).exit_code == 0
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    for broken, says in (
        (b"".join(lines[:-1]), "the end is missing"),
        (whole[:-5], "line 7: it was cut off"),
        (whole.replace(b"finishedAt", b"finishedat", 1), "line 3: the stream 'runs/Job 0' is not what was written"),
        (b"".join([*lines[:2], *lines[3:]]), "the end does not agree"),
        (whole + lines[1], "something follows the end"),
        (b"[]\n" + whole, "line 1"),
        (b"", "line 1"),
    ):
        file.write_bytes(broken)
        result = run("restore", "-c", other.config, file)
        assert (result.exit_code, says in result.output) == (1, True), result.output
    assert other.contents() == {}
    file.with_name("b.jsonl.partial").write_text("my own notes\n")
    result = run("backup", "--force", "-c", place.config, file)
    assert (result.exit_code, "does not begin as a backup" in result.output) == (1, True)
    assert file.with_name("b.jsonl.partial").read_text() == "my own notes\n"


def test_restore_refuses_a_store_with_other_things_unless_it_is_told(
    place: Place, other: Place, tmp_path: Path
) -> None:
    place.fill()
    file = tmp_path / "b.jsonl"
    run("backup", "-c", place.config, file)
    other.do(lambda store: store.append("runs/Job 1", b"other"))
    other.do(lambda store: store.append("runs/mine", b"mine"))
    other.do(lambda store: store.put("pauses", b"other", None))
    before = other.contents()
    result = run("restore", "-c", other.config, file)
    assert (result.exit_code, "the store is not empty" in result.output) == (1, True)
    assert other.contents() == before
    assert run("restore", "--force", "-c", other.config, file).exit_code == 0
    assert other.contents() == {**place.contents(), ("s", "runs/mine"): [b"mine"]}


def test_a_move_goes_on_where_it_was_interrupted_and_leaves_other_things_alone(place: Place, other: Place) -> None:
    place.fill()
    other.do(lambda store: store.append("runs/Job 0", encode({"n": 0, "finishedAt": 5.0})))
    other.do(lambda store: store.append("runs/Job 0", encode({"n": 0, "finishedAt": 5.0})))
    result = run("migrate", "-c", place.config, "--to", other.config)
    assert result.exit_code == 0, result.output
    assert "13 records written, 1 were there" in result.output
    moved = other.contents()
    assert moved.pop(("s", "runs/Job 0"))[1:] == place.contents()["s", "runs/Job 0"]
    assert moved == {key: value for key, value in place.contents().items() if key != ("s", "runs/Job 0")}
    again = run("migrate", "-c", place.config, "--to", other.config)
    assert "0 records written, 14 were there" in again.output
    place.do(lambda store: store.append("paused/x", b"1"))
    other.do(lambda store: store.append("paused/x", b"2"))
    result = run("migrate", "-c", place.config, "--to", other.config)
    assert (result.exit_code, "left alone" in result.output) == (1, True)
    assert other.contents()["s", "paused/x"] == [b"2"]
    assert run("migrate", "-c", place.config, "--to", place.config).exit_code == 1


@pytest.mark.parametrize(
    ("source", "target", "rest"),
    [
        ("abc", "", "abc"),
        ("abc", "ab", "c"),
        ("abc", "abc", ""),
        ("abc", "abb", "c"),
        ("aab", "a", "ab"),
        ("aab", "aaa", "b"),
        ("abc", "b", None),
        ("abc", "abcd", None),
        ("", "a", None),
        ("", "", ""),
    ],
)
def test_what_is_missing_follows_a_beginning_and_nothing_else(source: str, target: str, rest: str | None) -> None:
    found = missing([c.encode() for c in source], [c.encode() for c in target])
    assert (None if found is None else b"".join(found).decode()) == rest
