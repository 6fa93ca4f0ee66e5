"""Certificates: loaded at start, loaded again when they change, kept while what is on disk is half-written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from cronstable_etcd.settings import TlsFiles
from cronstable_etcd.tls import LANE, READ_TIMEOUT, RECHECK, Tls

from cronstable.api import PluginError
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.host import FakeHost


class Files:
    """A CA and a client certificate on disk."""

    def __init__(self, directory: Path) -> None:
        self.ca, self.cert, self.key = (directory / name for name in ("ca.pem", "client.pem", "client.key"))
        self.settings = TlsFiles(str(self.ca), str(self.cert), str(self.key))
        self._stamp = 1_700_000_000
        self.issue()

    def issue(self) -> None:
        authority = trustme.CA()
        leaf = authority.issue_cert("client.example")
        authority.cert_pem.write_to_path(str(self.ca))
        leaf.cert_chain_pems[0].write_to_path(str(self.cert))
        leaf.private_key_pem.write_to_path(str(self.key))
        self.touch()

    def touch(self) -> None:
        """Make sure that the times differ, however fast the test is."""
        self._stamp += 10
        for path in (self.ca, self.cert, self.key):
            if path.exists():
                os.utime(path, (self._stamp, self._stamp))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def host() -> FakeHost:
    return FakeHost(VirtualClock(), "a")


def run(function: Any) -> None:
    run_virtual(function)


def test_without_files_there_is_no_context(host: FakeHost) -> None:
    async def story() -> None:
        tls = Tls(TlsFiles(), host)
        await tls.load()
        await tls.keep()
        assert tls.context is None

    run(story)


def test_unchanged_files_keep_their_context(files: Files, host: FakeHost) -> None:
    async def story() -> None:
        tls = Tls(files.settings, host)
        await tls.load()
        before = tls.context
        await tls.refresh()
        assert before is not None
        assert tls.context is before

    run(story)


def test_rotated_files_give_a_new_context(files: Files, host: FakeHost) -> None:
    async def story() -> None:
        tls = Tls(files.settings, host)
        await tls.load()
        before = tls.context
        files.issue()
        await tls.refresh()
        assert tls.context is not before
        assert host.logged("were loaded again")
        again = tls.context
        await tls.refresh()
        assert tls.context is again

    run(story)


@pytest.mark.parametrize("damage", ["half a certificate", "another key", "no key", "empty ca"])
def test_row_23_a_half_written_rotation_changes_nothing_and_is_tried_again(
    files: Files, host: FakeHost, tmp_path: Path, damage: str
) -> None:
    async def story() -> None:
        tls = Tls(files.settings, host)
        await tls.load()
        before = tls.context
        files.issue()
        good = {path: path.read_bytes() for path in (files.ca, files.cert, files.key)}
        match damage:
            case "half a certificate":
                files.cert.write_bytes(good[files.cert][:300])
            case "another key":
                trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(files.key))
            case "no key":
                files.key.unlink()
            case _:
                files.ca.write_bytes(b"")
        files.touch()
        for _ in range(3):
            await tls.refresh()
        assert tls.context is before
        assert len(host.logged("stay in use")) == 1
        for path, content in good.items():
            path.write_bytes(content)
        files.touch()
        await tls.refresh()
        assert tls.context is not before

    run(story)


def test_a_swapped_symlink_is_a_rotation(tmp_path: Path, host: FakeHost) -> None:
    """As Kubernetes mounts secrets."""

    async def story() -> None:
        for version in ("one", "two"):
            (tmp_path / version).mkdir()
            Files(tmp_path / version)
        link = tmp_path / "current"
        link.symlink_to("one")
        tls = Tls(TlsFiles(ca=str(link / "ca.pem")), host)
        await tls.load()
        before = tls.context
        link.unlink()
        link.symlink_to("two")
        await tls.refresh()
        assert tls.context is not before

    run(story)


def test_the_files_are_looked_at_twice_a_minute(files: Files) -> None:
    async def story() -> None:
        host = FakeHost(VirtualClock.of_loop(), "a")
        tls = Tls(files.settings, host)
        await tls.load()
        before = tls.context
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tls.keep)
            files.issue()
            await until(lambda: tls.context is not before, within=RECHECK + 1, what="the new context")
            tasks.cancel_scope.cancel()

    run(story)


def test_a_disk_that_hangs_refuses_the_start_and_later_only_keeps_the_old(files: Files) -> None:
    async def story() -> None:
        host = FakeHost(VirtualClock.of_loop(), "a")
        tls = Tls(files.settings, host)
        host.threads.hang.add(LANE)
        with pytest.raises(PluginError, match="no answer from the disk"):
            await tls.load()
        host.threads.hang.clear()
        await tls.load()
        before = tls.context
        host.threads.hang.add(LANE)
        await tls.refresh()
        assert tls.context is before
        assert host.logged(f"cluster.etcd.tls: no answer from the disk within {READ_TIMEOUT:g} s")

    run(story)


@pytest.mark.parametrize("which", ["ca", "cert", "key"])
def test_a_file_that_is_no_certificate_or_key_is_named(files: Files, host: FakeHost, which: str) -> None:
    async def story() -> None:
        getattr(files, which).write_text("hello")
        with pytest.raises(PluginError, match=str(getattr(files, which))):
            await Tls(files.settings, host).load()

    run(story)
