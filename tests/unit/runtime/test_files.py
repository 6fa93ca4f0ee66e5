"""The real file system seam: thin, uncached, with real locks."""

from __future__ import annotations

import os
import stat
import sys
import types
from pathlib import Path

import pytest

from cronstable.runtime.files import SystemFiles

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


def put(fs: SystemFiles, path: Path, data: bytes) -> None:
    fd = fs.open(str(path), NEW)
    assert fs.write(fd, data) == len(data)
    fs.fsync(fd)
    fs.close(fd)


def test_what_is_written_is_read_back_by_name(tmp_path: Path) -> None:
    fs = SystemFiles()
    put(fs, tmp_path / "a", b"abc")
    fd = fs.open(str(tmp_path / "a"), os.O_RDONLY)
    assert (fs.read(fd, 2), fs.read(fd, 9), fs.read(fd, 9)) == (b"ab", b"c", b"")
    fs.close(fd)


def test_a_new_file_is_private_and_its_descriptor_is_not_inherited(tmp_path: Path) -> None:
    fd = SystemFiles().open(str(tmp_path / "a"), NEW)
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_two_descriptors_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    fs = SystemFiles()
    one, other = (fs.open(str(tmp_path / "lock"), os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert fs.lock(one)
    assert not fs.lock(other)
    fs.unlock(one)
    assert fs.lock(other)
    fs.close(other)
    assert fs.lock(one)
    fs.close(one)


def test_a_lock_that_fails_is_an_error_and_not_a_refusal(tmp_path: Path) -> None:
    fs = SystemFiles()
    fd = fs.open(str(tmp_path / "lock"), NEW)
    fs.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        fs.lock(fd)


def test_replace_overwrites_and_link_does_not(tmp_path: Path) -> None:
    fs = SystemFiles()
    put(fs, tmp_path / "a", b"a")
    put(fs, tmp_path / "b", b"b")
    with pytest.raises(FileExistsError):
        fs.link(str(tmp_path / "a"), str(tmp_path / "b"))
    fs.link(str(tmp_path / "a"), str(tmp_path / "c"))
    fs.replace(str(tmp_path / "a"), str(tmp_path / "b"))
    fs.unlink(str(tmp_path / "c"))
    assert fs.listdir(str(tmp_path)) == ["b"]
    assert (tmp_path / "b").read_bytes() == b"a"


def test_every_directory_that_is_made_is_private_and_making_it_again_is_fine(tmp_path: Path) -> None:
    fs = SystemFiles()
    for _ in range(2):
        fs.makedirs(str(tmp_path / "x" / "y"), 0o700)
    assert [stat.S_IMODE(os.stat(tmp_path / p).st_mode) for p in ("x", "x/y")] == [0o700, 0o700]


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(FileExistsError):
        SystemFiles().makedirs(str(tmp_path / "x"))


def test_mtime_is_the_file_systems(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    os.utime(tmp_path / "x", (5.5, 7.25))
    assert SystemFiles().mtime(str(tmp_path / "x")) == 7.25


def test_the_mount_table_is_text_or_none(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_bytes(b"dev /mnt/\xff ext4 rw 0 0\n")
    table = SystemFiles(mount_table=str(tmp_path / "mounts")).mounts()
    assert table is not None
    assert table.endswith(" ext4 rw 0 0\n")
    assert SystemFiles(mount_table=str(tmp_path / "none")).mounts() is None


class FakeMsvcrt(types.ModuleType):
    """One byte-range lock per file, as Windows has it."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.owners: dict[int, int] = {}

    def locking(self, fd: int, mode: int, nbytes: int) -> None:
        assert (os.lseek(fd, 0, os.SEEK_CUR), nbytes) == (0, 1)
        inode = os.fstat(fd).st_ino
        if mode == self.LK_UNLCK:
            del self.owners[inode]
        elif self.owners.setdefault(inode, fd) != fd:
            raise PermissionError(13, "Permission denied")


def test_on_windows_locks_are_byte_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msvcrt", FakeMsvcrt())
    fs = SystemFiles(platform="win32")
    one, other = (fs.open(str(tmp_path / "lock"), os.O_RDWR | os.O_CREAT) for _ in range(2))
    fs.write(one, b"moves the file position")
    assert fs.lock(one)
    assert not fs.lock(other)
    fs.unlock(one)
    assert fs.lock(other)
    os.close(one)
    os.close(other)
