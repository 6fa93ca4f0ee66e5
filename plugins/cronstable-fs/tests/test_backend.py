"""The whole backend on virtual time: start, refusal, handover, the view."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from cronstable_fs.backend import FilesystemElection, make
from cronstable_fs.settings import FilesystemSettings, Topology, parse

from cronstable.api import Election, ElectionContext, InvalidSettings, PluginError, RebootLedger
from cronstable.runtime.files import SystemFiles
from cronstable.testing.clock import VirtualClock, always, run_virtual, until
from cronstable.testing.host import FakeHost


class Running:
    """An election under way on virtual time."""

    def __init__(
        self, root: Path, name: str, skew: float = 0.0, files: Callable[[], Any] = SystemFiles, **settings: Any
    ) -> None:
        self.files = files()
        self.host = FakeHost(VirtualClock.of_loop(wall=1_800_000_000.0 + skew), name, fs=self.files)
        self.settings = parse({"path": str(root), "ttl": 15, **settings})
        context = self.host.context("filesystem", self.settings)
        self.memory = context.memory
        self.election = make(context, self.host)
        self.scope = anyio.CancelScope()

    @property
    def leads(self) -> bool:
        return self.election.view().is_leader

    async def run(self, *, task_status: Any) -> None:
        with self.scope:
            await self.election.run(self.host, task_status=task_status)


@asynccontextmanager
async def elections(root: Path, *names: str, **settings: Any) -> AsyncIterator[list[Running]]:
    nodes = [Running(root, name, **settings) for name in names]
    async with anyio.create_task_group() as tasks:
        for node in nodes:
            await tasks.start(node.run)
        yield nodes
        for node in nodes:
            node.scope.cancel()


def virtually(function: Callable[[], Awaitable[None]]) -> None:
    run_virtual(function)


def test_the_first_node_leads_once_it_is_ready_and_the_second_follows(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b") as (a, b):
            assert a.leads
            assert not b.leads
            assert b.election.view().leader == "a"
            assert b.election.view().quorate

    virtually(story)


def test_a_ready_election_says_where_and_as_whom(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a") as (a,):
            (line,) = a.host.logged("election ready")
            holder = json.loads(next((tmp_path / "default" / "leases").glob("*.lease")).read_text())["holder"]
            assert holder.startswith("a#")
            assert line == (
                f"cluster: filesystem election ready at {tmp_path} (election=cluster/leader, identity={holder}, ttl=15)"
            )

    virtually(story)


def test_the_lease_view_has_path_and_election_and_a_followers_fence_and_expiry(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b") as (a, b):
            mine, theirs = a.election.view().lease, b.election.view().lease
            assert mine is not None
            assert theirs is not None
            assert mine.fields == (("path", str(tmp_path)), ("electionName", "cluster/leader"))
            assert (theirs.holder, theirs.fence, theirs.expiry) == ("a", mine.fence, mine.expiry)

    virtually(story)


def test_a_graceful_stop_hands_over_within_half_a_second(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b") as (a, b):
            a.scope.cancel()
            await until(lambda: b.leads, within=0.5, what="the takeover after a release")

    virtually(story)


def test_a_dead_leader_is_replaced_within_the_documented_bound(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b") as (a, b):
            a.host.threads.hang.add("cronstable-fs")
            await until(lambda: not a.leads, within=14.01, what="standing down")
            assert not b.leads
            await until(lambda: b.leads, within=15 + 1 + 5, what="the takeover")
            assert b.election.view().lease

    virtually(story)


class Mortal(SystemFiles):
    """The files of a process that can end: the kernel then closes what it has open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        fd = super().open(path, flags, mode)
        self.opened.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.opened.discard(fd)
        super().close(fd)

    def end(self) -> None:
        for fd in list(self.opened):
            self.close(fd)

    def mounts(self) -> str | None:
        return "/dev/vda / ext4 rw 0 0\n"


@pytest.mark.parametrize("topology", ["auto", "single-node"])
def test_a_leader_whose_process_has_ended_is_replaced_within_half_a_second(tmp_path: Path, topology: str) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b", "c", files=Mortal, topology=topology) as (a, b, c):
            a.host.threads.hang.add("cronstable-fs")
            a.files.end()
            await until(lambda: b.leads or c.leads, within=0.5, what="the takeover")
            assert len(b.host.logged("has ended") + c.host.logged("has ended")) == 1

    virtually(story)


def test_a_disk_that_hangs_holds_up_a_stop_by_a_second_more_at_most_for_the_sign_of_life(tmp_path: Path) -> None:
    ended: dict[str, float] = {}

    async def story() -> None:
        for topology in ("single-node", "shared"):
            node = Running(tmp_path / topology, "a", files=Mortal, topology=topology)
            async with anyio.create_task_group() as tasks:
                await tasks.start(node.run)
                node.host.threads.hang.add("cronstable-fs")
                began = anyio.current_time()
                node.scope.cancel()
            ended[topology] = anyio.current_time() - began
            node.files.end()

    virtually(story)
    assert 0 < ended["single-node"] - ended["shared"] <= 1.0


def test_where_the_directory_is_said_to_be_shared_the_end_of_a_process_is_no_proof(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b", files=Mortal, topology="shared") as (a, b):
            a.host.threads.hang.add("cronstable-fs")
            a.files.end()
            await always(lambda: not b.leads, during=14, what="waiting for the ttl")
            await until(lambda: b.leads, within=1 + 5 + 1, what="the takeover")

    virtually(story)


def test_an_election_that_ended_leaves_no_sign_of_life(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b", files=Mortal) as nodes:
            signs = tmp_path / "default" / "life" / "cluster%2Fleader"
            assert len(list(signs.iterdir())) == 1
            for node in nodes:
                node.scope.cancel()
            await until(lambda: not any(node.files.opened for node in nodes), within=3, what="the end of both")
            assert list(signs.iterdir()) == []

    virtually(story)


def test_two_nodes_never_lead_at_one_instant_while_one_hangs_now_and_then(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b", ttl=3) as nodes:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hiccups, nodes)
                await always(lambda: sum(n.leads for n in nodes) <= 1, during=300, what="at most one leader")
                tasks.cancel_scope.cancel()
            assert len({n.election.view().lease.fence for n in nodes}) == 1  # type: ignore[union-attr]

    async def hiccups(nodes: list[Running]) -> None:
        clock = nodes[0].host.clock
        while True:
            for node in nodes:
                node.host.threads.hang.add("cronstable-fs")
                await clock.sleep(7)
                node.host.threads.hang.clear()
                await clock.sleep(9)

    virtually(story)


@pytest.mark.parametrize("skew", [-3600.0, -60.0, 60.0, 3600.0])
def test_a_challenger_with_a_wrong_clock_takes_over_the_dead_only(tmp_path: Path, skew: float) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a") as (a,):
            b = Running(tmp_path, "b", skew)
            async with anyio.create_task_group() as tasks:
                await tasks.start(b.run)
                await always(lambda: a.leads and not b.leads, during=120, what="the living leader's lead")
                a.host.threads.hang.add("cronstable-fs")
                await until(lambda: b.leads or not a.leads, within=15, what="the end of the dead one's lead")
                assert not b.leads
                await until(lambda: b.leads, within=2 * 15 + 5 + 1, what="the takeover")
                b.scope.cancel()

    virtually(story)


def test_locks_that_are_fiction_are_refused_with_the_documented_text(tmp_path: Path) -> None:
    class NoLocks(SystemFiles):
        def lock(self, fd: int) -> bool:
            return True

    async def story() -> None:
        host = FakeHost(VirtualClock.of_loop(), "a", fs=NoLocks())
        election = make(host.context("filesystem", parse({"path": str(tmp_path)})), host)
        with pytest.raises(PluginError) as refusal, anyio.fail_after(60):
            await election.run(host, task_status=anyio.TASK_STATUS_IGNORED)
        assert str(refusal.value) == (
            f"cluster.backend filesystem: refusing to elect over {tmp_path}: "
            "it grants two exclusive locks on one file (its locks are no-ops)"
        )
        assert not election.view().quorate

    virtually(story)


def test_a_mount_that_hangs_at_start_elects_nobody_and_recovers_by_itself(tmp_path: Path) -> None:
    async def story() -> None:
        node = Running(tmp_path, "a")
        node.host.threads.hang.add("cronstable-fs")
        async with anyio.create_task_group() as tasks:
            await tasks.start(node.run)
            assert not node.election.view().quorate
            assert node.host.logged("could not be tried: no answer within 9 s")
            node.host.threads.hang.clear()
            await until(lambda: node.leads, within=5, what="leading once the mount answers")
            node.scope.cancel()

    virtually(story)


def test_a_local_directory_is_warned_about_at_start(tmp_path: Path) -> None:
    class LocalDisk(SystemFiles):
        def mounts(self) -> str | None:
            return "/dev/vda / ext4 rw 0 0\n"

    async def story() -> None:
        host = FakeHost(VirtualClock.of_loop(), "a", fs=LocalDisk())
        settings = FilesystemSettings(str(tmp_path), topology=Topology.SINGLE_NODE)
        election = FilesystemElection(host.context("filesystem", settings), host, settings, platform="linux")
        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda *, task_status: election.run(host, task_status=task_status))
            tasks.cancel_scope.cancel()
        (line,) = host.logged("its locks only exclude processes on THIS host")
        assert line.startswith(f"cluster.backend filesystem: {tmp_path}: the directory counts as single-node")

    virtually(story)


def test_only_the_leader_marks_reboot_jobs_and_the_successor_knows(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b") as (a, b):
            await until(lambda: a.election.reboot_ran("warm-up") is False, within=5)
            assert await a.election.mark_reboot_ran("warm-up")
            assert not await b.election.mark_reboot_ran("warm-up")
            assert a.election.reboot_ran("warm-up")
            a.scope.cancel()
            await until(lambda: b.leads, within=1)
            await until(lambda: b.election.reboot_ran("warm-up") is not None, within=5)
            assert b.election.reboot_ran("warm-up")

    virtually(story)


def test_the_election_has_all_the_sides_the_host_looks_for(tmp_path: Path) -> None:
    async def story() -> None:
        election = Running(tmp_path, "a").election
        assert isinstance(election, Election)
        assert isinstance(election, RebootLedger)
        async with elections(tmp_path, "b") as (b,):
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(b.election.wait_change)
                    b.host.threads.hang.add("cronstable-fs")

    virtually(story)


def test_settings_of_somebody_else_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        host = FakeHost(VirtualClock.of_loop(), "a")
        context: ElectionContext = replace(host.context("filesystem"), settings={"path": str(tmp_path)})
        with pytest.raises(PluginError, match="not parsed by this plugin"):
            make(context, host)
        with pytest.raises(InvalidSettings):
            parse({})

    virtually(story)


def rebuilt(root: Path, before: Running) -> Running:
    """What a reload of the cluster section makes in the same process."""
    after = Running(root, "a")
    after.election = make(replace(after.host.context("filesystem", after.settings), memory=before.memory), after.host)
    return after


def test_a_reload_while_the_share_is_not_mounted_elects_over_no_other_directory(tmp_path: Path) -> None:
    root, away = tmp_path / "mnt", tmp_path / "away"

    async def story() -> None:
        async with elections(root, "a") as (a,):
            assert a.leads
        root.rename(away)
        root.mkdir()
        with pytest.raises(PluginError, match=r"not the directory that this daemon elected over before .*mounted"):
            await rebuilt(root, a).run(task_status=anyio.TASK_STATUS_IGNORED)
        assert list(root.iterdir()) == []
        root.rmdir()
        away.rename(root)
        async with anyio.create_task_group() as tasks:
            again = rebuilt(root, a)
            await tasks.start(again.run)
            await until(lambda: again.leads, within=20)
            again.scope.cancel()

    virtually(story)


def test_a_reload_over_another_store_is_refused_and_a_start_is_not(tmp_path: Path) -> None:
    root, away = tmp_path / "mnt", tmp_path / "away"

    async def story() -> None:
        async with elections(root, "a") as (a,):
            assert a.leads
        root.rename(away)
        async with elections(root, "b") as (b,):
            assert b.leads
        with pytest.raises(PluginError, match="store-id is another one"):
            await rebuilt(root, a).run(task_status=anyio.TASK_STATUS_IGNORED)

    virtually(story)


def test_nodes_that_start_at_once_agree_on_the_identity_of_their_directory(tmp_path: Path) -> None:
    async def story() -> None:
        async with elections(tmp_path, "a", "b", "c") as nodes:
            assert len({text for node in nodes for text in node.memory.values()}) == 1

    virtually(story)
