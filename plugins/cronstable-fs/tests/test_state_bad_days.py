"""The filesystem store on bad days: full, read-only, deleted, unmounted, torn, hung, overtaken."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cronstable_fs.layout import Layout
from cronstable_fs.settings import Topology
from cronstable_fs.state import FilesystemStateStore, make
from cronstable_fs.state_settings import StateSettings

from cronstable.api import Damage, Locking, PluginError, RecordsUnreadable, StoreUnavailable
from cronstable.api import Topology as Reach

LOCAL = "/dev/sda1 / ext4 rw 0 0\n"


class Bench:
    """A store of one node over the shared directory of a test, and what stands there."""

    def __init__(self, share: Any, run: Any, name: str = "a", topology: Topology = Topology.AUTO) -> None:
        self.node = share.node(name)
        self.run = run
        self.root: Path = share.root / "default"
        self.store = FilesystemStateStore(
            self.node.host, StateSettings(str(share.root), topology=topology), platform="linux"
        )

    def open(self) -> Any:
        return self.run(self.store.open())

    def append(self, data: str, stream: str = "runs/a") -> str:
        return str(self.run(self.store.append(stream, data.encode())))

    def read(self, stream: str = "runs/a", **kwargs: Any) -> list[str]:
        return [record.data.decode() for record in self.run(self.store.read(stream, **kwargs))]

    def inspect(self, repair: bool = False) -> list[Damage]:
        async def all_of() -> list[Damage]:
            return [damage async for damage in self.store.inspect(repair=repair)]

        found: list[Damage] = self.run(all_of())
        return found

    def records(self, stream: str = "runs%2Fa") -> list[Path]:
        return sorted((self.root / "records" / stream).glob("*.json"))


@pytest.fixture
def bench(share: Any, run: Any) -> Bench:
    bench = Bench(share, run)
    bench.open()
    return bench


def test_a_store_is_made_of_settings_that_this_plugin_parsed(share: Any) -> None:
    host = share.node("a").host
    assert isinstance(make(StateSettings("/x"), host), FilesystemStateStore)
    with pytest.raises(PluginError):
        make({"path": "/x"}, host)


def test_a_record_is_a_file_of_two_json_texts_that_nobody_else_may_read(bench: Bench) -> None:
    bench.append('{"schemaVersion": "v1", "data": {}}')
    bench.run(bench.store.put("d", b"{}", None))
    (file,) = bench.records()
    data, seal = file.read_text().splitlines()
    assert json.loads(data) == {"schemaVersion": "v1", "data": {}}
    assert set(json.loads(seal)) == {"mark", "sha256"}
    for path in bench.root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_locks_of_records_and_documents_are_counted(bench: Bench) -> None:
    assert isinstance(bench.store, Locking)
    before = bench.store.locks()
    bench.run(bench.store.put("d", b"{}", None))
    after = bench.store.locks()
    assert after.acquisitions > before.acquisitions
    assert after.waited == before.waited == 0


@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EIO", "EACCES", "ENOTCONN", "ESTALE"])
def test_an_error_at_any_call_is_unavailable_and_what_was_acknowledged_stays(
    code: str, make_share: Callable[[], Any], run: Any, fail_at: Any
) -> None:
    for number in range(1, 60):
        bench = Bench(make_share(), run)
        bench.open()
        bench.append("0")
        version = bench.run(bench.store.put("d", b"0", None)).version
        before = len(bench.node.disk.calls)
        fail_at(bench.node.disk, number, getattr(errno, code))
        acknowledged, written = ["0"], b"0"
        try:
            bench.append("1")
            acknowledged.append("1")
            bench.run(bench.store.put("d", b"1", version))
            written = b"1"
            bench.read()
        except StoreUnavailable:
            pass
        else:
            if len(bench.node.disk.calls) - before < number:
                assert number > 20
                return
        bench.open()
        found = bench.read()
        assert found in (acknowledged, ["0", "1"])
        stands = run(bench.store.get("d"))
        assert stands.data in {written, b"1"}
        assert bench.inspect() == []
    pytest.fail("the work never came to its end")


def test_a_full_disk_leaves_no_litter_and_the_store_goes_on_when_there_is_room(bench: Bench) -> None:
    def full(number: int, name: str) -> None:
        if name == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    bench.append("1")
    bench.node.disk.before = full
    with pytest.raises(StoreUnavailable, match="No space left") as caught:
        bench.append("2")
    assert not caught.value.ambiguous
    with pytest.raises(StoreUnavailable):
        bench.open()
    assert bench.read() == ["1"]
    bench.node.disk.before = lambda number, name: None
    assert os.listdir(bench.root / "tmp") == []
    bench.append("3")
    assert bench.read() == ["1", "3"]


def test_a_full_disk_can_be_trimmed(bench: Bench) -> None:
    for data in ("1", "2", "3"):
        bench.append(data)
    real = bench.node.disk.real.write

    def full(fd: int, data: bytes) -> int:
        if len(bench.records()) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = real(fd, data)
        return written

    bench.node.disk.real.write = full
    with pytest.raises(StoreUnavailable):
        bench.append("4")
    bench.run(bench.store.trim("runs/a", 1))
    assert bench.read() == ["3"]
    assert (bench.root / "records" / "runs%2Fa" / "low").read_text() == "2\n"
    bench.append("4")
    assert bench.read() == ["3", "4"]


def test_directories_that_were_removed_below_the_root_are_put_back(bench: Bench) -> None:
    bench.append("0")
    for name in ("records", "docs", "leases", "quarantine", "tmp"):
        shutil.rmtree(bench.root / name)
        bench.append(name)
        assert bench.read()[-1] == name
        assert bench.run(bench.store.put(name, b"1", None)) is not None


def test_a_root_that_was_removed_is_made_anew_by_open_and_by_nothing_else(bench: Bench) -> None:
    bench.append("1")
    shutil.rmtree(bench.root)
    for call in (
        lambda: bench.append("2"),
        bench.read,
        lambda: bench.run(bench.store.streams()),
        lambda: bench.run(bench.store.get("d")),
        lambda: bench.run(bench.store.put("d", b"1", None)),
        lambda: bench.run(bench.store.lease("l").observe()),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    assert not bench.root.exists()
    bench.open()
    bench.append("3")
    assert bench.read() == ["3"]


@pytest.mark.parametrize("number", [errno.EEXIST, errno.ESTALE], ids=errno.errorcode.get)
def test_a_directory_that_another_host_made_at_the_same_moment_is_no_failure(bench: Bench, number: int) -> None:
    shutil.rmtree(bench.root)
    real, times = bench.node.disk.real.makedirs, iter(range(99))

    def told(path: str, mode: int = 0o700) -> None:
        real(path, mode)
        if next(times) < 2:
            raise OSError(number, os.strerror(number), path)

    bench.node.disk.real.makedirs = told
    bench.open()
    bench.append("1")
    assert bench.read() == ["1"]


def test_a_file_that_another_host_made_at_the_same_moment_is_opened(bench: Bench) -> None:
    bench.open()
    real: Callable[[str, int, int], int] = bench.node.disk.real.open
    told: list[str] = []

    def raced(path: str, flags: int, mode: int = 0o600) -> int:
        fd = real(path, flags, mode)
        if flags & os.O_CREAT and not flags & os.O_EXCL and path not in told:
            told.append(path)
            bench.node.disk.real.close(fd)
            raise FileExistsError(errno.EEXIST, "File exists", path)
        return fd

    bench.node.disk.real.open = raced
    bench.append("1")
    assert bench.run(bench.store.put("d", b"1", None)) is not None
    assert any(path.endswith("d.lock") for path in told)
    assert bench.read() == ["1"]


@pytest.mark.parametrize("removed", [True, False], ids=["removed-again", "says-so-always"])
def test_a_file_that_exists_and_does_not_is_tried_a_few_times(bench: Bench, removed: bool) -> None:
    bench.open()
    real: Callable[[str, int, int], int] = bench.node.disk.real.open
    times = iter(range(99))

    def raced(path: str, flags: int, mode: int = 0o600) -> int:
        if not path.endswith("d.lock"):
            return real(path, flags, mode)
        if not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if next(times) < 2 or not removed:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        return real(path, flags, mode)

    bench.node.disk.real.open = raced
    if removed:
        assert bench.run(bench.store.put("d", b"1", None)) is not None
    else:
        with pytest.raises(StoreUnavailable, match="File exists"):
            bench.run(bench.store.put("d", b"1", None))


def test_a_share_that_is_not_mounted_any_more_is_not_made_anew_below(bench: Bench, share: Any) -> None:
    bench.node.disk.mount_table = f"{LOCAL}server:/x {share.root} nfs4 rw 0 0\n"
    assert bench.open().topology is Reach.SHARED
    bench.node.disk.mount_table = LOCAL
    shutil.rmtree(bench.root)
    with pytest.raises(StoreUnavailable, match="not mounted"):
        bench.open()
    assert not bench.root.exists()


@pytest.mark.parametrize(
    ("kind", "options", "given", "reach", "warned"),
    [
        ("ext4", "rw", Topology.AUTO, Reach.SINGLE_NODE, False),
        ("nfs4", "rw", Topology.AUTO, Reach.SHARED, False),
        ("fuse.glusterfs", "rw", Topology.AUTO, Reach.SHARED, False),
        ("nfs4", "rw", Topology.SINGLE_NODE, Reach.SINGLE_NODE, False),
        ("ext4", "rw", Topology.SHARED, Reach.SHARED, True),
        ("fuse.mine", "rw", Topology.SHARED, Reach.SHARED, False),
    ],
)
def test_the_mount_says_who_can_reach_the_store(
    share: Any, run: Any, kind: str, options: str, given: Topology, reach: Reach, warned: bool
) -> None:
    bench = Bench(share, run, topology=given)
    bench.node.disk.mount_table = f"x / {kind} {options} 0 0\n"
    assert bench.open().topology is reach
    assert bench.open().location == str(bench.root)
    assert len(bench.node.host.logged("is the share mounted?")) == int(warned)


def test_a_mount_whose_locks_are_fiction_is_refused(share: Any, run: Any) -> None:
    bench = Bench(share, run)
    bench.node.disk.mount_table = "x / nfs4 rw,nolock 0 0\n"
    with pytest.raises(StoreUnavailable, match="nolock"):
        bench.open()
    bench.node.disk.mount_table = LOCAL
    bench.node.disk.lock = lambda fd: True
    with pytest.raises(StoreUnavailable, match="no-ops"):
        bench.open()


def test_a_torn_record_is_put_aside_and_not_in_the_way(bench: Bench) -> None:
    for data in ("1", "2", "3", "4"):
        bench.append(data)
    torn, flipped = bench.records()[1], bench.records()[3]
    torn.write_bytes(torn.read_bytes()[:-7])
    flipped.write_bytes(b"5" + flipped.read_bytes()[1:])
    assert bench.read(limit=1) == ["3"]
    assert bench.read() == ["1", "3"]
    assert len(list((bench.root / "quarantine" / "records" / "runs%2Fa").iterdir())) == 2
    assert len(bench.node.host.logged("was damaged")) == 2
    bench.append("6")
    assert bench.read() == ["1", "3", "6"]


def test_a_directory_in_the_place_of_a_record_is_put_aside_and_keeps_nothing_from_being_written(bench: Bench) -> None:
    bench.append("one")
    (bench.root / "records" / "runs%2Fa" / f"{2:020}.json").mkdir()
    assert bench.append("two") == f"{3:020}"
    assert bench.read() == ["one", "two"]
    assert [path.is_dir() for path in (bench.root / "quarantine").rglob(f"{2:020}.json")] == [True]
    assert bench.inspect() == []


def test_a_torn_document_is_put_aside_and_can_be_written_anew(bench: Bench) -> None:
    bench.run(bench.store.put("d", b"1", None))
    file = bench.root / "docs" / "d.json"
    file.write_bytes(file.read_bytes()[:-3])
    assert bench.run(bench.store.get("d")) is None
    assert bench.run(bench.store.put("d", b"2", None)) is not None
    file.write_bytes(b"")
    assert bench.run(bench.store.put("d", b"3", None)) is not None
    assert bench.run(bench.store.get("d")).data == b"3"
    assert len(list((bench.root / "quarantine" / "docs").iterdir())) == 2


def test_a_mount_that_hangs_is_unavailable_in_time_on_either_lane(bench: Bench) -> None:
    bench.append("1")
    bench.node.host.threads.hang.add("cronstable-fs-state")
    with pytest.raises(StoreUnavailable, match="no answer from the mount within 9 s"):
        bench.read()
    assert bench.run(bench.store.lease("l").observe()) is not None
    bench.node.host.threads.hang.add("cronstable-fs-state-lease")
    with pytest.raises(StoreUnavailable):
        bench.run(bench.store.lease("l").observe())


def test_a_number_that_was_given_out_and_dropped_meanwhile_is_not_taken(share: Any, run: Any, bench: Bench) -> None:
    """The append was on its way when another node wrote the same number, more, and trimmed them away."""
    other = Bench(share, run, "b")
    other.open()
    bench.append("1")

    def overtake(number: int, name: str) -> None:
        if name == "link":
            bench.node.disk.before = lambda number, name: None
            names = [other.append("2"), other.append("3")]
            run(other.store.trim("runs/a", 0))
            assert names == [f"{2:020d}", f"{3:020d}"]

    bench.node.disk.before = overtake
    assert bench.append("4") == f"{4:020d}"
    assert bench.read() == other.read() == ["4"]


def test_a_link_that_the_server_repeats_after_a_lost_answer_is_known_by_its_mark(bench: Bench) -> None:
    real = bench.node.disk.real.link

    def twice(source: str, target: str) -> None:
        real(source, target)
        real(source, target)

    bench.node.disk.real.link = twice
    assert [bench.append("1"), bench.append("1")] == [f"{1:020d}", f"{2:020d}"]
    assert bench.read() == ["1", "1"]


def test_reading_the_newest_of_many_opens_one_file_and_asks_for_no_attributes(bench: Bench) -> None:
    for number in range(300):
        bench.append(str(number))
    bench.node.disk.calls.clear()
    assert bench.read(limit=1) == ["299"]
    assert bench.node.disk.calls.count("open") == 1
    assert bench.node.disk.calls.count("listdir") == 1
    assert "mtime" not in bench.node.disk.calls
    bench.node.disk.calls.clear()
    assert bench.run(bench.store.streams()) == ["runs/a"]
    assert bench.node.disk.calls == ["listdir"]


def test_a_stream_that_is_not_there_or_begins_costs_no_listing_of_all_others(bench: Bench) -> None:
    """With ten thousand jobs that would be the most expensive call of all."""
    listed: list[str] = []
    real = bench.node.disk.real.listdir

    def listing(path: str) -> list[str]:
        listed.append(path)
        names: list[str] = real(path)
        return names

    bench.node.disk.real.listdir = listing
    assert bench.read("runs/none") == []
    assert bench.run(bench.store.get("none")) is None
    bench.append("1", "runs/new")
    assert str(bench.root / "records") not in listed
    assert str(bench.root / "docs") not in listed


def _plant(bench: Bench) -> dict[str, Path]:
    """One damage of each kind; what was planted, by the name it is to be found under."""
    for stream in ("runs/a", "L" * 300):
        for data in ("1", "2"):
            bench.append(data, stream)
    for document in ("d", "e"):
        bench.run(bench.store.put(document, b"1", None))
    old = 1.0
    torn = bench.records()[0]
    torn.write_bytes(torn.read_bytes()[:5])
    nothing = bench.root / "records" / "runs%2Fa" / f"{9:020d}.json"
    nothing.write_bytes(b"")
    os.utime(nothing, (old, old))
    half = bench.root / "tmp" / "abc.tmp"
    half.write_bytes(b"half")
    os.utime(half, (old, old))
    planted = {
        "00000000000000000001": torn,
        "00000000000000000009": nothing,
        "tmp/abc.tmp": half,
        "notes.txt": bench.root / "notes.txt",
        "records/README": bench.root / "records" / "README",
        "stream 'runs/a', core": bench.root / "records" / "runs%2Fa" / "core",
        "docs/x.txt": bench.root / "docs" / "x.txt",
        "leases/y": bench.root / "leases" / "y",
        "docs/e.json": bench.root / "docs" / "e.json",
        "leases/slots%2Fa.lease": bench.root / "leases" / "slots%2Fa.lease",
    }
    for path in planted.values():
        if not path.exists():
            path.write_text("what is this?")
    (bench.root / "docs" / "e.json").write_bytes((bench.root / "docs" / "d.json").read_bytes())
    (name,) = (bench.root / "records").glob("%4C*/name")
    name.unlink()
    return {**planted, "records/%4C": name.parent}


def test_a_look_over_the_store_finds_every_planted_damage_and_repairs_it(bench: Bench) -> None:
    planted = _plant(bench)
    found = bench.inspect()
    for what in planted:
        assert [damage for damage in found if what in damage.what], what
    assert len(found) == len(planted)
    assert not any(damage.repaired for damage in found)
    assert all(path.exists() for path in planted.values())
    repaired = bench.inspect(repair=True)
    assert len(repaired) == len(planted)
    assert all(damage.repaired for damage in repaired)
    assert bench.inspect() == []
    assert bench.read() == ["2"]
    assert bench.run(bench.store.documents()) == ["d"]


@pytest.mark.parametrize("code", ["EIO", "EACCES"])
def test_a_record_that_the_disk_does_not_give_away_is_told_and_put_aside_only_by_a_repair(
    code: str, bench: Bench
) -> None:
    for data in ("1", "2", "3"):
        bench.append(data)
    bench.append("1", "runs/b")
    bad = str(bench.records()[1])
    real = bench.node.disk.real.open

    def failing(path: str, flags: int, mode: int = 0o600) -> int:
        if path == bad:
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)), path)
        fd: int = real(path, flags, mode)
        return fd

    bench.node.disk.real.open = failing
    for _ in range(20):
        with pytest.raises(RecordsUnreadable, match=f"{2:020d} cannot be read.*--repair") as caught:
            bench.read()
        assert [record.data for record in caught.value.readable] == [b"1", b"3"]
    # It is in nobody's way: not of the newest, not of another stream, not of what is to be written.
    assert bench.read(limit=1) == ["3"]
    assert bench.read("runs/b") == ["1"]
    bench.append("4")
    bench.node.disk.real.open = real
    assert bench.read() == ["1", "2", "3", "4"]
    bench.node.disk.real.open = failing
    (damage,) = bench.inspect()
    assert f"{2:020d}" in damage.what
    (repaired,) = bench.inspect(repair=True)
    assert repaired.repaired
    assert bench.read() == ["1", "3", "4"]
    assert bench.inspect() == []
    bench.node.disk.real.open = real
    (aside,) = (bench.root / "quarantine").rglob(f"{2:020d}.json")
    assert aside.read_bytes().startswith(b"2\n")


def test_a_disk_that_gives_nothing_away_any_more_is_a_store_that_fails(bench: Bench) -> None:
    for number in range(40):
        bench.append(str(number))
    real = bench.node.disk.real.open

    def dying(path: str, flags: int, mode: int = 0o600) -> int:
        if "/records/" in path and path.endswith(".json"):
            raise OSError(errno.EIO, "Input/output error", path)
        fd: int = real(path, flags, mode)
        return fd

    bench.node.disk.calls.clear()
    bench.node.disk.real.open = dying
    with pytest.raises(StoreUnavailable) as caught:
        bench.read()
    assert not isinstance(caught.value, RecordsUnreadable)
    # Each try on such a disk may take seconds.
    assert bench.node.disk.calls.count("open") <= 17


def test_a_directory_that_cannot_be_read_is_damage_that_nobody_repairs(bench: Bench) -> None:
    bench.append("1")
    bench.append("1", "runs/b")
    real = bench.node.disk.real.listdir

    def denied(path: str) -> list[str]:
        if path.endswith("runs%2Fb"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        names: list[str] = real(path)
        return names

    bench.node.disk.real.listdir = denied
    (damage,) = bench.inspect(repair=True)
    assert damage.what == "records/runs%2Fb"
    assert "Permission denied" in damage.detail
    assert not damage.repaired
    assert bench.read() == ["1"]


def test_what_an_election_keeps_in_the_same_directory_is_nothing_foreign(bench: Bench) -> None:
    layout = Layout.of(str(bench.root.parent), bench.root.name, "cluster/leader")
    for directory in (layout.reboot, layout.claims, layout.entries):
        os.makedirs(directory, exist_ok=True)
    for file in (layout.identity, layout.lock):
        Path(file).write_text("an election's\n")
    bench.append("1")
    assert bench.inspect(repair=True) == []
    assert Path(layout.identity).exists()
