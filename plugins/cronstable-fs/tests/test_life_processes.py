"""Signs of life of real processes: what ends them is a proof at once, and what only stops them is none (ADR 0042)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from cronstable_fs.layout import Layout
from cronstable_fs.lease import FilesystemLeaseStore

from cronstable.api import Observation, Seen, Vacant
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.host import FakeHost

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("holder.py")
LOOKS = 20


class Keeper:
    """A process that holds the lease of a directory, and does what it is told."""

    def __init__(self, path: Path, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(SCRIPT), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.children: list[int] = []
        assert self._line() == "held"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> int:
        """The process that its answer speaks of."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        done, told, pid = self._line().split()
        assert (done, told) == ("done", word)
        if word in ("fork", "child"):
            self.children.append(int(pid))
        return int(pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def keep() -> Iterator[Callable[..., Keeper]]:
    with ExitStack() as stack:

        def start(path: Path, *prefix: str) -> Keeper:
            keeper = Keeper(path, *prefix)
            stack.callback(keeper.close)
            return keeper

        yield start


def follower(path: Path) -> FilesystemLeaseStore:
    host: Any = FakeHost(SystemClock(), "follower", fs=SystemFiles())
    host.threads, host.ids = ThreadLanes(), SystemIds()
    layout = Layout.of(str(path), "default", "life")
    return FilesystemLeaseStore(host, layout, "life", ttl=3600.0, op_timeout=30.0, signs=True)


def look(path: Path) -> Observation:
    return anyio.run(follower(path).observe)


def assert_alive(path: Path) -> None:
    assert all(isinstance(look(path), Seen) for _ in range(LOOKS))


def assert_let_go(path: Path) -> None:
    assert isinstance(look(path), Vacant)


def test_kill_9_is_a_proof_once_the_process_is_gone(tmp_path: Path, keep: Callable[..., Keeper]) -> None:
    keeper = keep(tmp_path)
    assert_alive(tmp_path)
    keeper.kill()
    assert_let_go(tmp_path)
    keep(tmp_path)
    assert_alive(tmp_path)
    assert len(list((tmp_path / "default" / "life" / "life").iterdir())) == 1


def test_an_end_without_any_cleaning_up_is_one_too(tmp_path: Path, keep: Callable[..., Keeper]) -> None:
    keeper = keep(tmp_path)
    assert keeper.process.stdin is not None
    keeper.process.stdin.close()
    assert keeper.process.wait(30) == 3
    assert_let_go(tmp_path)


def test_a_stopped_process_is_not_proven_dead_until_it_is(tmp_path: Path, keep: Callable[..., Keeper]) -> None:
    keeper = keep(tmp_path)
    keeper.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, keeper.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert_alive(tmp_path)
    keeper.kill()
    assert_let_go(tmp_path)


def test_a_zombie_has_ended(tmp_path: Path, keep: Callable[..., Keeper]) -> None:
    keeper = keep(tmp_path)
    keeper.process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, keeper.process.pid, os.WEXITED | os.WNOWAIT)
    assert_let_go(tmp_path)


def test_a_child_that_was_started_like_a_job_does_not_keep_the_dead_alive(
    tmp_path: Path, keep: Callable[..., Keeper]
) -> None:
    keeper = keep(tmp_path)
    child = keeper.tell("child")
    keeper.kill()
    os.kill(child, 0)
    assert_let_go(tmp_path)


def test_a_fork_without_exec_does_which_is_the_safe_side(tmp_path: Path, keep: Callable[..., Keeper]) -> None:
    keeper = keep(tmp_path)
    keeper.tell("fork")
    keeper.kill()
    assert_alive(tmp_path)


def test_a_process_that_becomes_another_program_has_ended_as_what_it_was(
    tmp_path: Path, keep: Callable[..., Keeper]
) -> None:
    keeper = keep(tmp_path)
    assert keeper.tell("exec") == keeper.process.pid
    assert_let_go(tmp_path)


def test_many_that_look_at_once_find_it_free_and_the_next_holds_it(tmp_path: Path, keep: Callable[..., Keeper]) -> None:
    keeper = keep(tmp_path)
    stores = [follower(tmp_path) for _ in range(6)]
    answers: list[Observation] = []

    async def look_until_free(store: FilesystemLeaseStore) -> None:
        answers.append(await until_vacant(store))

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(look_until_free, store)
            await anyio.to_thread.run_sync(keeper.kill)

    anyio.run(all_of_them)
    assert answers == answers[:1] * len(stores)
    keep(tmp_path)


# -- one kernel, several views of it ----------------------------------------------------------------------------------


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Mount something for the time of a test, or skip with the reason."""
    with ExitStack() as stack:

        def do(target: Path, *arguments: str) -> None:
            if os.geteuid() != 0 or shutil.which("mount") is None:
                pytest.skip("mounting needs root and mount(8)")
            target.mkdir(exist_ok=True)
            done = subprocess.run(["mount", *arguments, str(target)], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"this machine mounts nothing: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", str(target)], check=True)

        yield do


def test_a_bind_mount_shows_the_same_files_and_the_same_locks(
    tmp_path: Path, keep: Callable[..., Keeper], mount: Callable[..., None]
) -> None:
    shared, bound = tmp_path / "shared", tmp_path / "bound"
    shared.mkdir()
    mount(bound, "--bind", str(shared))
    keeper = keep(shared)
    assert_alive(bound)
    keeper.kill()
    assert_let_go(bound)


@pytest.mark.parametrize("apart", [False, True], ids=["one disk", "two disks"])
def test_an_overlay_keeps_its_locks_apart_from_the_layer_below_so_that_nothing_is_proven_there(
    tmp_path: Path, keep: Callable[..., Keeper], mount: Callable[..., None], apart: bool
) -> None:
    """An overlay over several file systems may tell inodes of the layer below as its own."""
    lower, layer, merged = tmp_path / "lower", tmp_path / "layer", tmp_path / "merged"
    lower.mkdir()
    layer.mkdir()
    if apart:
        mount(layer, "-t", "tmpfs", "tmpfs")
    upper, work = layer / "upper", layer / "work"
    upper.mkdir()
    work.mkdir()
    mount(merged, "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}")
    keeper = keep(merged)
    assert_alive(merged)
    # The kernel gives anybody the lock of the same file here, while its process lives.
    (sign,) = (upper / "default" / "life" / "life").iterdir()
    assert subprocess.run(["flock", "--nonblock", str(sign), "true"], check=False).returncode == 0
    assert_alive(upper)
    keeper.kill()
    assert isinstance(look(upper), Seen)
    assert_let_go(merged)


def test_a_holder_in_another_pid_namespace_is_no_different(tmp_path: Path, keep: Callable[..., Keeper]) -> None:
    unshare = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine makes no pid namespaces for us")
    keeper = keep(tmp_path, *unshare)
    assert_alive(tmp_path)
    keeper.kill()
    # It is a child of the process that was killed that holds the lease: the kernel ends it too, in its time.
    anyio.run(until_vacant, follower(tmp_path))


async def until_vacant(store: FilesystemLeaseStore) -> Observation:
    with anyio.fail_after(30):
        while not isinstance(answer := await store.observe(), Vacant):
            await anyio.lowlevel.checkpoint()
    return answer
