"""A real network file system: one GlusterFS server and three FUSE mounts on loopback, each standing for one host."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from cronstable_fs.backend import make
from cronstable_fs.layout import Layout
from cronstable_fs.lease import FilesystemLeaseStore
from cronstable_fs.settings import parse
from cronstable_fs.state import FilesystemStateStore
from cronstable_fs.state_settings import StateSettings

from cronstable.api import Held, Holder, PluginError, Seen, StateStore, StoreUnavailable, Topology, Vacant
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.system import SystemClock, SystemIds
from cronstable.runtime.threads import ThreadLanes
from cronstable.testing.clock import always, until
from cronstable.testing.host import FakeHost
from cronstable.testing.state_contract import StateStoreContract

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

STORAGE = """volume posix
  type storage/posix
  option directory {brick}
end-volume
"""
LOCKS = """volume locks
  type features/locks
  subvolumes posix
end-volume
"""
SERVER = """volume brick
  type performance/io-threads
  subvolumes {below}
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.brick.allow 127.0.0.1
  option auth.login.brick.allow *
  subvolumes brick
end-volume
"""
CLIENT = """volume remote
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume brick
end-volume
"""


Ports = Callable[[int], list[int]]


def missing() -> str | None:
    """Why this machine cannot run these tests; None when it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting needs root on Linux"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    absent = [name for name in ("glusterfs", "glusterfsd") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: glusterfs-server, glusterfs-client)" if absent else None


class Gluster:
    """The server and its mounts. Every process is ended by its own pid, every mount by its own path."""

    def __init__(self, directory: Path, port: int, mounts: int, *, locks: bool = True) -> None:
        self.directory = directory
        self.server: subprocess.Popen[bytes] | None = None
        self.clients: list[subprocess.Popen[bytes]] = []
        self.mounts = [directory / f"mount-{number}" for number in range(mounts)]
        (directory / "brick").mkdir(parents=True)
        storage = STORAGE.format(brick=directory / "brick") + (LOCKS if locks else "")
        server = SERVER.format(below="locks" if locks else "posix", port=port)
        (directory / "server.vol").write_text(storage + server)
        (directory / "client.vol").write_text(CLIENT.format(port=port))
        self._port = port

    async def start(self) -> None:
        await self.start_server()
        for number, mount in enumerate(self.mounts):
            mount.mkdir()
            volume, log = self.directory / "client.vol", self.directory / f"client-{number}.log"
            self.clients.append(self._spawn("glusterfs", volume, log, "--direct-io-mode=disable", str(mount)))
        await self.usable()

    async def start_server(self) -> None:
        self.server = self._spawn("glusterfsd", self.directory / "server.vol", self.directory / "server.log")
        await until(self._listening, within=20, every=0.05, what="the file server")

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    async def restart_server(self) -> None:
        """What makes a file server forget every lock."""
        self.kill_server()
        await self.start_server()
        await self.usable()

    async def usable(self) -> None:
        for mount in self.mounts:
            await until(partial(self._works, mount), within=30, every=0.05, what=f"the mount {mount}")

    def stop_client(self, number: int) -> None:
        """From now on every call on that mount hangs."""
        self.clients[number].send_signal(signal.SIGSTOP)

    def continue_client(self, number: int) -> None:
        self.clients[number].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for client, mount in zip(self.clients, self.mounts, strict=True):
            client.send_signal(signal.SIGCONT)
            subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)
            client.kill()
            client.wait()
        if self.server is not None:
            self.kill_server()

    def _spawn(self, program: str, volume: Path, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        command = [program, "-N", "-f", str(volume), "-l", str(log), *arguments]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    @staticmethod
    def _works(mount: Path) -> bool:
        try:
            (mount / ".alive").write_bytes(b"x")
        except OSError:
            return False
        return os.path.ismount(mount)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory, free_ports: Ports) -> Iterator[Gluster]:
    reason = missing()
    if reason is not None:
        pytest.skip(f"THE NETWORK FILE SYSTEM WAS NOT TESTED: {reason}")
    gluster = Gluster(tmp_path_factory.mktemp("gluster"), free_ports(1)[0], 3)
    try:
        anyio.run(gluster.start)
        yield gluster
    finally:
        gluster.close()


@pytest.fixture
def places(volume: Gluster, request: pytest.FixtureRequest) -> list[Path]:
    """The same new directory, as each of the three hosts sees it."""
    return [mount / request.node.name[:60] for mount in volume.mounts]


def real_host(name: str, fs: SystemFiles) -> Any:
    host: Any = FakeHost(SystemClock(), name, fs=fs)
    host.threads, host.ids = ThreadLanes(), SystemIds()
    return host


class Host:
    """One host's process: a store on its own mount."""

    def __init__(self, place: Path, name: str, *, op_timeout: float = 30.0, fs: SystemFiles | None = None) -> None:
        self.host = host = real_host(name, fs or SystemFiles())
        self.me = Holder(name, host.ids.token())
        self.layout = Layout.of(str(place), "default", "e")
        self.store = FilesystemLeaseStore(host, self.layout, "e", ttl=15.0, op_timeout=op_timeout, signs=True)

    async def win(self, over: Seen | None = None) -> Any:
        answer = await self.store.acquire(self.me, 15.0, nonce=self.host.ids.token(), over=over)
        assert isinstance(answer, Held), answer
        return answer.grant

    async def seen(self) -> Seen:
        answer = await self.store.observe()
        assert isinstance(answer, Seen), answer
        return answer


async def test_a_write_on_one_host_is_seen_by_the_next_read_on_another(places: list[Path]) -> None:
    a, b = Host(places[0], "a"), Host(places[1], "b")
    assert await b.store.observe() == Vacant(None)
    grant = await a.win()
    assert (await b.seen()).record.nonce == grant.nonce
    for number in range(20):
        answer = await a.store.renew(grant, nonce=f"n{number}")
        assert isinstance(answer, Held)
        grant = answer.grant
        assert (await b.seen()).record.nonce == f"n{number}"
    await a.store.release(grant, ("run-1",))
    assert await b.store.observe() == Vacant(grant.fence, ("run-1",))


async def test_the_end_of_a_process_on_another_host_cannot_be_proven_and_nobody_tries(places: list[Path]) -> None:
    a, b = Host(places[0], "a"), Host(places[1], "b")
    grant = await a.win()
    assert "life" not in json.loads(Path(b.layout.lease).read_bytes())
    assert not os.path.exists(b.layout.life)
    assert grant.owns((await b.seen()).record)


async def test_three_hosts_storming_one_lease_keep_terms_apart(places: list[Path], storm: Any) -> None:
    helds = await anyio.to_thread.run_sync(lambda: storm.blow(places, 150))
    storm.judge(helds)
    assert {held["who"][:2] for held in helds} == {"w0", "w1", "w2"}


async def test_a_reboot_mark_is_made_by_one_host_only(places: list[Path]) -> None:
    a, b = Host(places[0], "a"), Host(places[1], "b")
    first = await a.win()
    assert await a.store.mark_reboot(first, "set", "job", nonce="n1")
    second = await b.win(over=await b.seen())
    assert not await b.store.mark_reboot(second, "set", "job", nonce="n2")
    assert await b.store.reboot_marks("set") == {"job"}


async def test_a_holder_frozen_inside_the_lock_blocks_everybody_and_nothing_is_taken(
    volume: Gluster, places: list[Path]
) -> None:
    a, b = Host(places[0], "a"), Host(places[1], "b", op_timeout=1.0)
    grant = await a.win()
    judged = await b.seen()
    fd = os.open(a.layout.lock, os.O_RDWR)
    assert a.host.fs.lock(fd)
    volume.stop_client(0)
    try:
        with pytest.raises(StoreUnavailable, match="the lock was not free"):
            await b.win(over=judged)
        assert grant.owns((await b.seen()).record)
    finally:
        volume.continue_client(0)
        os.close(fd)


async def test_a_mount_that_hangs_is_unavailable_in_time_and_works_again_afterwards(
    volume: Gluster, places: list[Path]
) -> None:
    a, b = Host(places[0], "a", op_timeout=1.0), Host(places[1], "b")
    grant = await a.win()
    volume.stop_client(0)
    try:
        with pytest.raises(StoreUnavailable, match="no answer from the mount"):
            await a.store.renew(grant, nonce="hung")
        assert (await b.seen()).record.nonce == grant.nonce
    finally:
        volume.continue_client(0)
    answers: list[Any] = []

    async def renew_again() -> None:
        while not answers:
            try:
                answers.append(await a.store.renew(replace(grant, tried=("hung",)), nonce="after"))
            except StoreUnavailable:
                await anyio.lowlevel.checkpoint()

    with anyio.fail_after(30):
        await renew_again()
    assert isinstance(answers[0], Held)


class Interrupted(SystemFiles):
    """Does something in the middle of a locked section, once: right before the named call."""

    def __init__(self, call: str, interruption: Callable[[], None]) -> None:
        super().__init__()
        self.call, self.interruption, self.done = call, interruption, False

    def _strike(self, call: str) -> None:
        if call == self.call and not self.done:
            self.done = True
            self.interruption()

    def replace(self, source: str, target: str) -> None:
        self._strike("replace")
        super().replace(source, target)

    def fsync(self, fd: int) -> None:
        self._strike("fsync")
        super().fsync(fd)


async def test_a_server_restart_between_the_last_check_and_the_rename_makes_no_second_leader(
    volume: Gluster, places: list[Path]
) -> None:
    """The worst place for it: the lock is gone, another host takes over, and then our rename covers its record."""
    b = Host(places[1], "b")
    won: list[Any] = []

    async def restart_and_take_over() -> None:
        judged = await b.seen()
        await volume.restart_server()
        won.append(await b.win(over=judged))

    disk = Interrupted("replace", lambda: anyio.from_thread.run(restart_and_take_over))
    a = Host(places[0], "a", fs=disk)
    disk.done = True
    grant = await a.win()
    disk.done = False
    a.host.threads = Here()
    with pytest.raises(StoreUnavailable, match="forgot our lock") as failure:
        await a.store.renew(grant, nonce="covering")
    assert failure.value.ambiguous
    assert len(won) == 1
    a.host.threads = ThreadLanes()
    tried = replace(grant, tried=("covering",))
    assert not isinstance(await a.store.renew(tried, nonce="again"), Held)
    assert won[0].fence > grant.fence


async def test_a_server_restart_before_the_write_only_means_taking_the_lock_again(
    volume: Gluster, places: list[Path]
) -> None:
    b = Host(places[1], "b")
    disk = Interrupted("fsync", lambda: anyio.from_thread.run(volume.restart_server))
    a = Host(places[0], "a", fs=disk)
    disk.done = True
    grant = await a.win()
    disk.done = False
    a.host.threads = Here()
    answer: Any = None
    # Perhaps the descriptor of the half-written file does not survive: then the next round renews.
    with contextlib.suppress(StoreUnavailable):
        answer = await a.store.renew(grant, nonce="n2")
    if answer is None:
        answer = await a.store.renew(grant, nonce="n3")
    assert disk.done
    assert isinstance(answer, Held)
    assert (await b.seen()).record.nonce == answer.grant.nonce


class Here:
    """Threads that know the loop they were started from, so that a fault in the middle can use it."""

    async def run(self, call: Callable[[], Any], *, timeout: float, lane: str = "default") -> Any:
        with anyio.fail_after(timeout):
            return await anyio.to_thread.run_sync(call)


class Running:
    """A whole election on one host."""

    def __init__(self, place: Path, name: str) -> None:
        self.host = real_host(name, SystemFiles())
        settings = parse({"path": str(place), "ttl": 3})
        self.election = make(self.host.context("filesystem", settings), self.host)
        self.scope = anyio.CancelScope()

    @property
    def leads(self) -> bool:
        return self.election.view().is_leader

    async def run(self, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            await self.election.run(self.host, task_status=task_status)


@asynccontextmanager
async def elections(places: list[Path]) -> AsyncIterator[list[Running]]:
    nodes = [Running(place, name) for place, name in zip(places, "abc", strict=True)]
    async with anyio.create_task_group() as tasks:
        for node in nodes:
            await tasks.start(node.run)
        yield nodes
        for node in nodes:
            node.scope.cancel()


async def test_a_network_mount_is_elected_over_without_a_warning_about_its_topology(places: list[Path]) -> None:
    async with elections(places) as nodes:
        assert [node.leads for node in nodes] == [True, False, False]
        assert nodes[0].host.logged("THIS host") == []
        assert nodes[0].host.logged(f"election ready at {places[0]} ")


def nonce_in(lease: Path) -> str:
    return str(json.loads(lease.read_text())["nonce"])


async def test_a_leader_whose_mount_hangs_stands_down_before_another_leads(volume: Gluster, places: list[Path]) -> None:
    async with elections(places) as nodes:
        a, others = nodes[0], nodes[1:]
        async with anyio.create_task_group() as watch:
            watch.start_soon(never_two, nodes)
            lease = Path(Layout.of(str(places[1]), "default", "cluster/leader").lease)
            nonce = nonce_in(lease)
            # Right after a renewal the leader is outside its locked section, or its lock would keep everybody out.
            await until(lambda: nonce_in(lease) != nonce, within=10, what="a renewal")
            volume.stop_client(0)
            try:
                await until(lambda: not a.leads, within=10, what="standing down")
                await until(lambda: any(node.leads for node in others), within=30, what="the takeover")
            finally:
                volume.continue_client(0)
            await until(lambda: a.election.view().leader in ("b", "c"), within=30, what="the old leader following")
            watch.cancel_scope.cancel()


async def test_leadership_survives_a_restart_of_the_file_server(volume: Gluster, places: list[Path]) -> None:
    async with elections(places) as nodes, anyio.create_task_group() as watch:
        watch.start_soon(never_two, nodes)
        await volume.restart_server()
        lease = Path(Layout.of(str(places[1]), "default", "cluster/leader").lease)
        nonce = nonce_in(lease)
        await until(lambda: nonce_in(lease) != nonce, within=30, what="a renewal after the restart")
        await until(lambda: sum(node.leads for node in nodes) == 1, within=30, what="one leader after the restart")
        watch.cancel_scope.cancel()


async def never_two(nodes: list[Running]) -> None:
    await always(lambda: sum(node.leads for node in nodes) <= 1, during=120, every=0.01, what="at most one leader")


async def test_a_mount_without_lock_support_is_refused(volume: Gluster, tmp_path: Path, free_ports: Ports) -> None:
    lockless = Gluster(tmp_path / "lockless", free_ports(1)[0], 1, locks=False)
    try:
        await lockless.start()
        node = Running(lockless.mounts[0] / "share", "a")
        with (
            pytest.raises(PluginError, match=r"refusing to elect over .*: it does not lock"),
            anyio.fail_after(60),
        ):
            await node.run()
        assert not node.election.view().quorate
    finally:
        lockless.close()


class StateDoor:
    """A ``StateDoor`` whose handles are processes of three hosts in turn. Its clocks stay as they are."""

    def __init__(self, places: list[Path]) -> None:
        self.first = places[0]
        self.places = itertools.cycle(places)
        self.hosts: list[Any] = []
        self.down = False

    def store(self) -> StateStore:
        host = real_host("state", Gone() if self.down else SystemFiles())
        self.hosts.append(host)
        return FilesystemStateStore(host, StateSettings(str(next(self.places))), op_timeout=30.0)

    def step_clock(self, seconds: float) -> None:
        return None

    async def aside(self) -> Sequence[bytes]:
        files = sorted((self.first / "default" / "quarantine").rglob("*.json"))
        return [file.read_bytes().rpartition(b"\n{")[0] for file in files]

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self.down = True
        for host in self.hosts:
            host.threads = Unplugged()
        yield
        self.down = False
        for host in self.hosts:
            host.threads = ThreadLanes()


class Gone(SystemFiles):
    """A mount that is not there."""

    def makedirs(self, path: str, mode: int = 0o700) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", path)


class Unplugged:
    """Threads that never answer in time."""

    async def run(self, call: Callable[[], Any], *, timeout: float, lane: str = "default") -> Any:
        raise TimeoutError


class TestStateOfThreeHosts(StateStoreContract):
    """The whole contract of a state store, each handle on another host."""

    @pytest.fixture
    def door(self, places: list[Path]) -> StateDoor:
        return StateDoor(places)


async def test_a_restart_of_the_file_server_loses_no_acknowledged_record(volume: Gluster, places: list[Path]) -> None:
    door = StateDoor(places)
    acknowledged: list[bytes] = []
    over = anyio.Event()

    async def write(who: int) -> None:
        store = door.store()
        number = 0
        while not (over.is_set() and number > 10):
            data = b"%d-%d" % (who, number)
            try:
                await store.open()
                await store.append("runs/a", data)
            except StoreUnavailable:
                await anyio.lowlevel.checkpoint()
                continue
            acknowledged.append(data)
            number += 1

    async with anyio.create_task_group() as tasks:
        for who in range(3):
            tasks.start_soon(write, who)
        await until(lambda: len(acknowledged) > 10, within=30, what="the first records")
        await volume.restart_server()
        before = len(acknowledged)
        await until(lambda: len(acknowledged) > before + 10, within=60, what="records after the restart")
        over.set()
    store = door.store()
    assert (await store.open()).topology is Topology.SHARED
    found = [record.data for record in await store.read("runs/a")]
    assert sorted(set(found)) == sorted(acknowledged)
