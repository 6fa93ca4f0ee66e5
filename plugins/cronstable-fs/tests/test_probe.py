"""What is found out before electing: fictitious locks, who sees the directory, whose clock is off."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from cronstable_fs.probe import Findings, examine, mount_of
from cronstable_fs.settings import Topology

LOCAL_TABLE = "/dev/vda / ext4 rw,relatime 0 0\n"


def look(node: Any, topology: Topology = Topology.AUTO, platform: str = "linux", table: str | None = None) -> Findings:
    node.disk.mount_table = table
    return examine(node.disk, node.clock, node.layout, "unique", topology, platform)


def now_like_the_disk(node: Any, share: Any) -> None:
    """Set the node's clock by the directory it writes to."""
    share.root.mkdir(exist_ok=True)
    node.clock.wall = os.stat(share.root).st_mtime


def shared_table(share: Any, kind: str = "nfs4", options: str = "rw,vers=4.2") -> str:
    return f"{LOCAL_TABLE}server:/x {share.root} {kind} {options} 0 0\n"


def test_working_locks_on_a_network_mount_leave_nothing_to_say(share: Any) -> None:
    node = share.node("a")
    now_like_the_disk(node, share)
    assert look(node, table=shared_table(share)) == Findings(identity="unique")
    assert os.listdir(share.root / "default" / "leases") == []
    assert node.disk.fds == set()


def test_a_mount_that_grants_a_lock_twice_is_refused(share: Any) -> None:
    node = share.node("a")
    node.disk.lock = lambda fd: True
    assert look(node).refusal == "it grants two exclusive locks on one file (its locks are no-ops)"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_mount_that_cannot_lock_is_refused(share: Any, code: int) -> None:
    node = share.node("a")

    def strike(n: int, name: str) -> None:
        if name == "lock":
            raise OSError(code, os.strerror(code))

    node.disk.before = strike
    assert "it does not lock files" in str(look(node).refusal)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_mount_without_hard_links_is_refused_before_a_leader_waits_for_its_claims_for_ever(
    share: Any, code: int
) -> None:
    node = share.node("a")

    def strike(n: int, name: str) -> None:
        if name == "link":
            raise OSError(code, os.strerror(code))

    node.disk.before = strike
    assert "it has no hard links, of which the claim log is made" in str(look(node).refusal)
    assert os.listdir(node.layout.claims) == []
    assert os.listdir(node.layout.leases) == []


@pytest.mark.parametrize("step", range(1, 15))
def test_a_probe_that_cannot_run_is_no_refusal_but_is_told(share: Any, step: int) -> None:
    node = share.node("a")

    def strike(n: int, name: str) -> None:
        if n == step:
            raise OSError(errno.EACCES, "Permission denied")

    node.disk.before = strike
    findings = look(node)
    assert findings.refusal is None
    told = any("could not be tried" in text for text in findings.warnings)
    # Not told only where the failure says nothing about the locks: tidying up at the end.
    assert told or node.disk.calls[step - 1] in ("close", "unlock", "unlink", "listdir")


def test_a_new_file_that_is_locked_already_is_inconclusive(share: Any) -> None:
    node = share.node("a")
    node.disk.lock = lambda fd: False
    findings = look(node)
    assert findings.refusal is None
    assert any("locked already" in text for text in findings.warnings)


@pytest.mark.parametrize("option", ["nolock", "local_lock=flock", "local_lock=all"])
def test_nfs_options_that_fake_locks_are_refused(share: Any, option: str) -> None:
    findings = look(share.node("a"), table=shared_table(share, "nfs", f"rw,{option},vers=3"))
    assert option in str(findings.refusal)
    assert not (share.root / "default").exists()


def test_honest_nfs_options_and_options_of_other_file_systems_are_fine(share: Any) -> None:
    assert look(share.node("a"), table=shared_table(share, "nfs4", "rw,local_lock=none")).refusal is None
    assert look(share.node("b"), table=shared_table(share, "cifs", "rw,nolock")).refusal is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre", "ceph", "fuse.glusterfs", "fuse.sshfs", "efs"])
def test_a_network_mount_is_shared_without_being_told(share: Any, kind: str) -> None:
    node = share.node("a")
    now_like_the_disk(node, share)
    assert look(node, table=shared_table(share, kind)).warnings == ()


def test_a_local_directory_counts_as_single_node_and_says_so(share: Any) -> None:
    node = share.node("a")
    now_like_the_disk(node, share)
    (text,) = look(node, table=LOCAL_TABLE).warnings
    assert "its locks only exclude processes on THIS host" in text
    assert "cluster.filesystem.topology: shared" in text


def test_shared_asserted_over_a_local_disk_asks_whether_the_share_is_mounted(share: Any) -> None:
    node = share.node("a")
    now_like_the_disk(node, share)
    (text,) = look(node, Topology.SHARED, table=LOCAL_TABLE).warnings
    assert "is the share mounted?" in text


@pytest.mark.parametrize(("platform", "locks"), [("win32", "byte-range locks"), ("darwin", "file locks")])
def test_where_there_is_no_mount_table_shared_rests_on_the_operator(share: Any, platform: str, locks: str) -> None:
    node = share.node("a")
    now_like_the_disk(node, share)
    (text,) = look(node, Topology.SHARED, platform, LOCAL_TABLE).warnings
    assert text.startswith("cross-host lock fidelity cannot be verified on this platform (no /proc/mounts)")
    assert locks in text


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_where_there_is_no_mount_table_auto_counts_as_single_node(share: Any, platform: str) -> None:
    node = share.node("a")
    now_like_the_disk(node, share)
    (text,) = look(node, Topology.AUTO, platform).warnings
    assert "its locks only exclude processes on THIS host" in text


def test_the_kernel_taking_lost_locks_again_is_worth_a_warning(share: Any, monkeypatch: Any, tmp_path: Any) -> None:
    parameter = tmp_path / "recover_lost_locks"
    monkeypatch.setattr("cronstable_fs.probe._RECOVER_LOST_LOCKS", str(parameter))
    node = share.node("a")
    now_like_the_disk(node, share)
    parameter.write_text("N\n")
    assert look(node, table=shared_table(share)).warnings == ()
    parameter.write_text("Y\n")
    (text,) = look(node, table=shared_table(share)).warnings
    assert "nfs.recover_lost_locks is on" in text


@pytest.mark.parametrize(("skew", "word"), [(2.5, "2.5 s ahead of"), (-2.5, "2.5 s behind"), (0.9, ""), (-0.9, "")])
def test_a_clock_off_by_more_than_a_second_is_told(share: Any, skew: float, word: str) -> None:
    node = share.node("a")
    written: list[float] = []
    real = node.disk.mtime

    def mtime(path: str) -> float:
        # The test's clock stands still: it is set to the disk's first, so that only the skew is left.
        if not written:
            written.append(node.clock.wall)
        real(path)
        return written[0] + skew

    node.disk.mtime = mtime
    warnings = look(node, table=shared_table(share)).warnings
    assert [word in text for text in warnings] == ([True] if word else [])


def test_litter_of_dead_processes_is_swept_and_fresh_files_are_not(share: Any) -> None:
    node = share.node("a")
    node.observe()
    tmp = share.root / "default" / "tmp"
    for name in ("dead.tmp", "alive.tmp", "other"):
        (tmp / name).write_bytes(b"")
    for name in ("dead.tmp", "other"):
        os.utime(tmp / name, (1, 1))
    look(node)
    assert share.litter() == ["alive.tmp", "other"]


def test_the_latest_mount_that_covers_a_path_holds_it() -> None:
    table = "a / ext4 rw 0 0\nb /mnt nfs rw 0 0\nc /mnt/deep xfs rw 0 0\nd /mnt/deep tmpfs rw 0 0\nshort line\n"
    assert getattr(mount_of(table, "/mnt/deep/x"), "kind", None) == "tmpfs"
    assert getattr(mount_of(table, "/mnt/deeper"), "kind", None) == "nfs"
    assert getattr(mount_of(table, "/srv"), "kind", None) == "ext4"
    assert mount_of("b /mnt nfs rw 0 0\n", "/srv") is None


def test_a_share_that_is_mounted_above_a_local_mount_hides_it() -> None:
    table = "a / ext4 rw 0 0\nb /data/x ext4 rw 0 0\nc /data nfs4 rw 0 0\n"
    assert getattr(mount_of(table, "/data/x/y"), "kind", None) == "nfs4"


def test_a_root_that_is_mounted_late_hides_nothing() -> None:
    table = "rootfs / rootfs rw 0 0\na /run tmpfs rw 0 0\nb / ext4 rw 0 0\n"
    assert getattr(mount_of(table, "/run/x"), "kind", None) == "tmpfs"
    assert getattr(mount_of(table, "/srv"), "kind", None) == "ext4"


def test_blanks_in_a_mount_point_are_unescaped() -> None:
    mount = mount_of("srv /mnt/my\\040share\\134x nfs rw,nolock 0 0\n", "/mnt/my share\\x/dir")
    assert mount is not None
    assert mount.options == ("rw", "nolock")
