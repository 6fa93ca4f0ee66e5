"""Counts and manifests over a restart, on virtual time and a store in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.config import Config
from cronstable.config.model import StateConfig
from cronstable.core.counters import PARTS, by_part, jobs_of, part_of, record
from cronstable.core.events import RunFinished
from cronstable.core.job import ClusterPolicy, Job, JobOptions
from cronstable.core.records import WriteKind, decode, encode
from cronstable.core.runs import Outcome, RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.core.tally import Histogram, JobTally
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.runtime.state import StateKeeper
from cronstable.runtime.state_counters import Counters, Manifests
from cronstable.runtime.state_gc import Collector
from cronstable.runtime.tally import TallyKeeper
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost, SeededRng

STATE = StateConfig(StateStoreBackend(name="memory", factory="none:none"), None, {})


def config(*jobs: Job) -> Config:
    return Config(jobs, None, {}, {}, None, "v1:id", (), STATE)


def job(name: str, policy: ClusterPolicy = ClusterPolicy.LEADER) -> Job:
    return Job(name, "true", Schedule.parse("@daily", job_name=name, zone=UTC), JobOptions(cluster_policy=policy))


class World:
    def __init__(self, contents: Contents, names: list[str]) -> None:
        self.clock = VirtualClock.of_loop()
        self.host = FakeHost(self.clock)
        store = MemoryStateStore(self.clock, contents)
        self.keeper = StateKeeper(
            make=lambda policy, host: store, host=self.host, clock=self.clock, rng=SeededRng(), log=self.host.log
        )
        self.keeper.configure(STATE)
        self.tally = TallyKeeper(clock=self.clock)
        self.tally.configure(None, names)
        self.counters = Counters(keeper=self.keeper, counts=self.tally, clock=self.clock, node=lambda: "node-a")
        jobs = [job(name) for name in names] + [job("every", ClusterPolicy.EVERY_NODE)]
        self.manifests = Manifests(
            keeper=self.keeper, config=lambda: config(*jobs), clock=self.clock, node=lambda: "node-a"
        )

    def ran(self, name: str, outcome: Outcome = Outcome.SUCCESS, took: float = 0.3) -> None:
        key = RunKey(f"{name}{self.clock.now().wall}", name, None)
        self.tally.heard(RunFinished(RunRecord(key, outcome, 0, 0.0, 10.0, took)))


def live(contents: Contents, names: list[str], seconds: float, scene: Callable[[World], Awaitable[None]]) -> World:
    async def main() -> World:
        world = World(contents, names)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.keeper.run)
            tasks.start_soon(world.counters.run)
            tasks.start_soon(world.manifests.run)
            await scene(world)
            await world.clock.sleep(seconds)
            tasks.cancel_scope.cancel()
        return world

    return run_virtual(main)


def test_counts_go_on_where_they_were() -> None:
    contents = Contents()

    async def first(world: World) -> None:
        world.ran("a")
        world.ran("a", Outcome.FAILURE, 2.0)
        world.ran("gone")

    live(contents, ["a", "gone"], 40, first)

    async def second(world: World) -> None:
        world.ran("a")

    world = live(contents, ["a"], 40, second)
    found = world.tally.view().jobs
    assert (found["a"].success, found["a"].failure) == (2, 1)
    assert found["a"].duration is not None
    assert sum(found["a"].duration.counts) == 3
    assert "gone" not in found


def test_nothing_is_written_while_nothing_changes() -> None:
    contents = Contents()

    async def scene(world: World) -> None:
        world.ran("a")
        await world.clock.sleep(40)
        before = contents.written
        await world.clock.sleep(3600)
        assert contents.written == before
        world.ran("a")

    live(contents, ["a", "b"], 40, scene)
    assert len([name for name in contents.streams if name.startswith("counters/")]) == 1


def test_a_manifest_names_every_job_and_comes_every_six_hours() -> None:
    contents = Contents()
    names = [f"job-{number}" for number in range(7000)]

    async def scene(world: World) -> None:
        """Let it run."""

    live(contents, names, 13 * 3600, scene)
    records = [decode(raw) or {} for raw in contents.streams["manifests/node-a"].values()]
    assert len(records) == 3 * 2
    found: set[Any] = set()
    for one in records[:2]:
        listed = one["names"]
        assert isinstance(listed, list)
        found.update(listed)
    assert found == {*names, "every"}


COUNT, SECONDS = st.integers(0, 2**40), st.floats(0, 1e9)
TALLIES = st.builds(
    JobTally,
    success=COUNT,
    skipped=COUNT,
    retries=COUNT,
    duration=st.none() | st.builds(Histogram, st.just((1.0, 2.0)), st.tuples(COUNT, COUNT, st.just(1)), SECONDS),
    last_success=st.none() | SECONDS,
    breaches=st.dictionaries(st.text(), COUNT),
    cpu_user=SECONDS,
    peak_rss=COUNT,
)


@given(st.dictionaries(st.text(), TALLIES, max_size=4))
def test_a_record_of_counts_says_all_of_them(jobs: dict[str, JobTally]) -> None:
    data = decode(encode(record(jobs)))
    assert data is not None
    assert jobs_of(data) == jobs


DAY = 86_400


def test_what_a_removed_job_left_goes_after_its_grace_and_not_before() -> None:
    contents = Contents()

    async def scene(world: World) -> None:
        now = world.clock.now().wall
        for name in ("a", "removed", "recent"):
            at = now - (1 if name == "recent" else 0)
            world.keeper.write(WriteKind.RUN_RECORD, f"runs/{name}", {"finishedAt": at})
        collector = Collector(keeper=world.keeper, clock=world.clock, rng=SeededRng(), log=world.host.log)
        await world.clock.sleep(3 * DAY)
        assert await collector.collect() == 0
        await world.clock.sleep(5 * DAY)
        world.keeper.write(WriteKind.RUN_RECORD, "runs/recent", {"finishedAt": world.clock.now().wall})
        await world.keeper.flush()
        assert await collector.collect() == 1
        assert sorted(name for name in contents.streams if name.startswith("runs/")) == ["runs/a", "runs/recent"]
        assert await collector.collect() == 0

    live(contents, ["a"], 1, scene)


def test_the_collection_comes_once_a_day() -> None:
    contents = Contents()

    async def scene(world: World) -> None:
        world.keeper.write(WriteKind.RUN_RECORD, "runs/removed", {"finishedAt": world.clock.now().wall})
        collector = Collector(keeper=world.keeper, clock=world.clock, rng=SeededRng(), log=world.host.log)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.run)
            await world.clock.sleep(6 * DAY)
            assert "runs/removed" in contents.streams
            await world.clock.sleep(3 * DAY)
            assert not contents.streams.get("runs/removed")
            tasks.cancel_scope.cancel()

    live(contents, ["a"], 1, scene)


JUNK = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
KEYS = st.sampled_from(["success", "duration", "breaches", "cpu", "last_success"])


@given(st.dictionaries(st.text(), JUNK | st.dictionaries(KEYS, JUNK), max_size=3))
def test_counts_that_cannot_be_read_are_left_out(jobs: dict[str, Any]) -> None:
    assert set(jobs_of({"jobs": jobs})) <= set(jobs)
    assert jobs_of({"jobs": 3}) == {}


def test_jobs_are_spread_over_parts() -> None:
    names = [f"job-{number}" for number in range(1000)]
    parts = by_part(names)
    assert set(parts) == set(range(PARTS))
    assert all(part_of(name) == part for part, found in parts.items() for name in found)
