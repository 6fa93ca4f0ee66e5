"""Hot reload: once a wall minute by difference, on SIGHUP until it succeeds, and a bad edit harms nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from cronstable.config import Config, LoadResult
from cronstable.core.finding import Finding
from cronstable.runtime.reload import EARLY, Reloader
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import InlineThreads

LOG = logging.getLogger("test")
MINUTE_START = 1_800_000_000 - 1_800_000_000 % 60


def good(watched: tuple[str, ...], job_set_id: str = "v1:1") -> LoadResult:
    config = Config((), None, {}, {}, None, job_set_id, watched)
    return LoadResult(config, (), watched)


class Bench:
    """A reloader over real files, with a loader that reads the first one: ``bad`` in it makes a finding."""

    def __init__(self, *files: Path) -> None:
        self.files = files
        self.loads = 0
        self.explode: Exception | None = None
        self.clock = VirtualClock.of_loop(wall=MINUTE_START)
        watched = tuple(str(f) for f in files)
        self.reloader = Reloader(
            first=good(watched), load=self._load, clock=self.clock, threads=InlineThreads(self.clock), log=LOG
        )

    def _load(self) -> LoadResult:
        self.loads += 1
        if self.explode is not None:
            raise self.explode
        text = self.files[0].read_text()
        watched = tuple(str(f) for f in self.files)
        if "bad" in text:
            finding = Finding(str(self.files[0]), 3, 1, ("jobs", 0, "schedule"), "minute 61 is out of range")
            return LoadResult(None, (finding,), watched)
        return good(watched, text)


def scenario(body: Callable[[Bench], Awaitable[None]], *files: Path) -> Bench:
    async def run() -> Bench:
        bench = Bench(*files)
        await bench.reloader.prime()
        await body(bench)
        return bench

    return run_virtual(run)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text("one")
    return file


def test_unchanged_files_are_not_read_again(config: Path) -> None:
    async def body(bench: Bench) -> None:
        for _ in range(5):
            assert await bench.reloader.next_look() is None

    assert scenario(body, config).loads == 0


def test_an_edit_counts_just_before_the_next_full_minute(config: Path) -> None:
    async def body(bench: Bench) -> None:
        config.write_text("two")
        result = await bench.reloader.next_look()
        assert result is not None
        assert result.config is not None
        assert result.config.job_set_id == "two"
        assert bench.clock.now().wall == pytest.approx(MINUTE_START + 60 - EARLY)

    scenario(body, config)


def test_a_bad_edit_keeps_the_old_set_is_loud_and_a_mended_one_counts(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(bench: Bench) -> None:
        config.write_text("bad")
        assert await bench.reloader.next_look() is None
        health = bench.reloader.health
        assert not health.ok
        assert health.error is not None
        assert "c.yaml:3:1" in health.error
        config.write_text("three")
        assert await bench.reloader.next_look() is not None
        assert bench.reloader.health.ok

    scenario(body, config)
    assert "the old job set stays in force" in caplog.text
    assert "minute 61 is out of range" in caplog.text


def test_what_was_read_and_is_not_all_in_force_is_a_reload_that_failed_until_it_is(config: Path) -> None:
    async def body(bench: Bench) -> None:
        reloader = bench.reloader
        config.write_text("two")
        assert await reloader.next_look() is not None
        read = reloader.health.at
        for why in ("the key does not load", "the certificate does not load"):
            reloader.postpone(why)
            assert (reloader.health.ok, reloader.health.at, reloader.health.last_success, reloader.health.error) == (
                False,
                read,
                MINUTE_START,
                why,
            )
        assert await reloader.next_look() is None
        reloader.postpone(None)
        now = bench.clock.now().wall
        assert (reloader.health.ok, reloader.health.at, reloader.health.last_success) == (True, now, now)
        assert now > read
        reloader.postpone(None)
        assert reloader.health.at == now

    scenario(body, config)


def test_a_look_that_fails_is_not_mended_by_what_was_read_before_it(config: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.reloader.postpone("the key does not load")
        config.write_text("bad")
        assert await bench.reloader.next_look() is None
        failed = bench.reloader.health
        for why in ("the key does not load", None):
            bench.reloader.postpone(why)
            assert bench.reloader.health is failed

    scenario(body, config)


def test_a_bad_edit_is_not_read_every_minute_while_it_stays_as_it_is(config: Path) -> None:
    async def body(bench: Bench) -> None:
        config.write_text("bad")
        for _ in range(4):
            await bench.reloader.next_look()

    assert scenario(body, config).loads == 1


def test_sighup_reads_at_once_even_what_did_not_change(config: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.reloader.force()
        assert await bench.reloader.next_look() is not None
        assert bench.clock.now().wall < MINUTE_START + 1

    assert scenario(body, config).loads == 1


def test_a_sighup_that_met_a_bad_file_is_repeated_until_a_read_succeeds(config: Path) -> None:
    async def body(bench: Bench) -> None:
        config.write_text("bad")
        bench.reloader.force()
        assert await bench.reloader.next_look() is None
        assert await bench.reloader.next_look() is None
        config.write_text("good again")
        assert await bench.reloader.next_look() is not None

    assert scenario(body, config).loads == 3


def test_a_loader_that_blows_up_never_ends_the_daemon(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(bench: Bench) -> None:
        bench.explode = RecursionError("too deep")
        config.write_text("two")
        assert await bench.reloader.next_look() is None
        assert bench.reloader.health.error == "RecursionError: too deep"

    scenario(body, config)
    assert "the old job set stays in force" in caplog.text


def test_an_edited_env_file_alone_is_noticed(config: Path, tmp_path: Path) -> None:
    env = tmp_path / "x.env"
    env.write_text("A=1\n")

    async def body(bench: Bench) -> None:
        env.write_text("A=2\n")
        assert await bench.reloader.next_look() is not None

    scenario(body, config, env)


def test_a_configmap_whose_data_link_is_swapped_is_noticed(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "c.yaml").write_text(version)
    (tmp_path / "..data").symlink_to("v1")
    mounted = tmp_path / "c.yaml"
    mounted.symlink_to("..data/c.yaml")

    async def body(bench: Bench) -> None:
        (tmp_path / "..data_tmp").symlink_to("v2")
        os.rename(tmp_path / "..data_tmp", tmp_path / "..data")
        result = await bench.reloader.next_look()
        assert result is not None
        assert result.config is not None
        assert result.config.job_set_id == "v2"

    scenario(body, mounted)


def test_a_request_made_while_a_look_is_under_way_is_not_lost(config: Path) -> None:
    async def body(bench: Bench) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.reloader.next_look)
            await anyio.sleep(0.001)
            bench.reloader.force()
        bench.reloader.force()
        with anyio.fail_after(5):
            await bench.reloader.next_look()

    assert scenario(body, config).loads == 2
