"""History, archived output and secrets over a restart, on virtual time and a store in memory."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.builtin.memory_state import Contents, MemoryStateStore
from cronstable.config import Config
from cronstable.config.model import StateConfig
from cronstable.core.decision import Decision, DecisionRing, Reason, Verdict
from cronstable.core.job import Job, JobOptions
from cronstable.core.records import decode, encode, merge_rows, run_of, run_row, stream
from cronstable.core.redaction import MASK, is_secret_variable, looks_secret, redact, sources
from cronstable.core.runs import LiveRun, Outcome, Resources, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.store import StoreUnavailable
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.plugin.state_store import RecordsUnreadable, StoredRecord, StoreInfo
from cronstable.runtime.archive import LONGEST, Archive, end_of
from cronstable.runtime.bus import EventBus
from cronstable.runtime.history import RunHistory
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.state import StateKeeper
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.host import FakeHost, SeededIds, SeededRng

BACKEND = StateStoreBackend(name="memory", factory="none:none")
NOTHING: MappingProxyType[str, Any] = MappingProxyType({})


class Store(MemoryStateStore):
    """The store in memory, which can also be down."""

    down = False
    bad = False
    """The newest record of each stream cannot be read."""

    def was_read(self, stream: str) -> None:
        """What else happens while somebody reads."""

    async def read(self, stream: str, *, limit: int | None = None, after: str = "") -> Sequence[StoredRecord]:
        found = await super().read(stream, limit=limit, after=after)
        self.was_read(stream)
        if self.bad and found:
            raise RecordsUnreadable("EIO", found[:-1])
        return found

    async def open(self) -> StoreInfo:
        if self.down:
            raise StoreUnavailable("down")
        return await super().open()


def job(name: str = "a", **raw: Any) -> Job:
    options = JobOptions(raw=MappingProxyType(raw), environment=(("DB_PASSWORD", "hunter22"), ("COLOR", "green")))
    return Job(name, "true", Schedule.parse("* * * * *", job_name=name, zone=UTC), options)


class World:
    """One life of a daemon's launcher, history and archive on ``contents``."""

    def __init__(self, contents: Contents, jobs: list[Job], max_runs: int | None = 1000, later: float = 0.0) -> None:
        self.clock = VirtualClock.of_loop(wall=1_800_000_000.0 + later)
        self.host = FakeHost(self.clock)
        self.store = Store(self.clock, contents)
        self.output: tuple[str | None, str | None] = (None, None)
        self.outcome = Outcome.SUCCESS
        self.meanwhile: Callable[[], object] = lambda: None
        self.told: list[tuple[str, int]] = []
        self.environ = {"API_TOKEN": "tok-12345", "HOME": "/home/x"}
        self.config = Config(
            tuple(jobs), None, {"web": {"authToken": {"value": "web-secret"}}}, {}, None, "id", (),
            StateConfig(BACKEND, None, {}, max_runs_per_job=max_runs),
        )  # fmt: skip
        self.keeper = StateKeeper(
            make=lambda policy, host: self.store,
            host=self.host,
            clock=self.clock,
            rng=SeededRng(),
            log=self.host.log,
        )
        self.keeper.configure(self.config.state)
        self.launcher = Launcher(
            execute=self._execute,
            clock=self.clock,
            ids=SeededIds(str(len(contents.streams))),
            bus=EventBus(self.host.log),
            hub=OutputHub(),
            log=self.host.log,
            node="node-a",
            decisions=DecisionRing(),
        )
        self.history = RunHistory(
            keeper=self.keeper,
            launcher=self.launcher,
            clock=self.clock,
            jobs=lambda: {job.name: job for job in jobs},
            log=self.host.log,
            recalled=lambda name, rows: self.told.append((name, len(rows))),
        )
        self.archive = Archive(keeper=self.keeper, host=self.host, config=lambda: self.config, environ=self.environ)
        self.launcher.listeners += (self.archive,)

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        now = self.clock.now().wall
        on_started(LiveRun(request.key, 7, now))
        await self.clock.sleep(1.0)
        self.meanwhile()
        out, err = self.output
        return RunRecord(request.key, self.outcome, 0, now, now + 1, 1.0, stdout=out, stderr=err)

    async def once(self, job: Job, at: int | None = None) -> None:
        run = Decision(Verdict.RUN, Reason.NO_ELECTION)
        self.launcher.start(job, run, scheduled_at=at, trigger=Trigger.SCHEDULE, recheck=lambda: run)
        await self.launcher.idle()


def live(
    contents: Contents,
    jobs: list[Job],
    scene: Callable[[World], Awaitable[None]],
    *,
    down: bool = False,
    bad: bool = False,
    **how: Any,
) -> World:
    """One daemon's life on ``contents``."""

    async def main() -> World:
        world = World(contents, jobs, **how)
        world.store.down, world.store.bad = down, bad
        async with anyio.create_task_group() as tasks:
            world.launcher.bind(tasks)
            world.archive.bind(tasks)
            tasks.start_soon(world.keeper.run)
            tasks.start_soon(world.history.run)
            await world.keeper.settled(5)
            await scene(world)
            await world.archive.idle()
            await world.keeper.finish()
            tasks.cancel_scope.cancel()
        return world

    return run_virtual(main)


def test_a_job_may_be_removed_while_the_history_of_another_one_is_read() -> None:
    first, second = job("first", onlyIfLastSucceeded=True), job("second")
    jobs = [first, second]

    async def scene(world: World) -> None:
        world.store.was_read = lambda stream: jobs.__delitem__(slice(1, None))  # type: ignore[method-assign]  # a hook
        await world.clock.sleep(10)
        assert jobs == [first]
        await world.once(first, at=60)
        assert [row.outcome for row in world.launcher.history()["first"]] == [Outcome.SUCCESS]

    live(Contents(), jobs, scene)


def test_runs_and_skips_of_before_a_restart_are_there_again() -> None:
    contents = Contents()
    one = job()

    async def before(world: World) -> None:
        await world.once(one, at=60)
        world.launcher.record(one, 120, Decision(Verdict.SKIP, Reason.PAUSED))
        world.launcher.record(one, 180, Decision(Verdict.SKIP, Reason.NOT_LEADER))

    async def after(world: World) -> None:
        await until(lambda: world.told, within=10)
        rows = world.launcher.history()["a"]
        assert [(r.key.scheduled_at, r.outcome, r.skip_reason, r.node) for r in rows] == [
            (60, Outcome.SUCCESS, None, "node-a"),
            (120, Outcome.SKIPPED, "paused", "node-a"),
        ]
        await world.once(one, at=240)
        listed = await world.history.runs("a", 10)
        assert [r.key.scheduled_at for r in listed] == [240, 120, 60]
        assert [r.key.scheduled_at for r in await world.history.runs("a", 1)] == [240]
        assert list(await world.history.runs("nobody", 5)) == []

    live(contents, [one], before)
    live(contents, [one], after)


def test_the_last_run_outlives_any_number_of_skips_and_a_restart() -> None:
    contents = Contents()
    one = job()

    async def before(world: World) -> None:
        world.outcome = Outcome.FAILURE
        await world.once(one, at=60)
        for number in range(2, 42):
            world.launcher.record(one, 60 * number, Decision(Verdict.SKIP, Reason.PAUSED))
        assert {row.outcome for row in world.launcher.history()["a"]} == {Outcome.SKIPPED}
        last = world.launcher.last_runs()["a"]
        assert (last.run.key.scheduled_at, last.failing) == (60, True)
        assert world.launcher.last_runs() is world.launcher.last_runs()

    async def after(world: World) -> None:
        await until(lambda: world.told, within=10)
        last = world.launcher.last_runs()["a"]
        assert (last.run.key.scheduled_at, last.failing) == (60, True)
        await world.once(one, at=6000)
        assert not world.launcher.last_runs()["a"].failing
        world.launcher.forget({})
        assert not world.launcher.last_runs()

    live(contents, [one], before)
    live(contents, [one], after)


def counted(world: World, job: str) -> int:
    day = world.launcher.days().get(job)
    return 0 if day is None else sum(sum(counts) for _, counts in day.quarters(world.clock.now().wall))


def test_the_day_of_a_job_holds_more_than_its_rows_and_what_the_store_gave_of_before() -> None:
    contents = Contents()
    one, idle = job(), job("idle")
    foreign = RunRecord(RunKey("other", "a", 60), Outcome.SUCCESS, 0, None, 1_800_000_010.0, 1.0)

    async def before(world: World) -> None:
        for number in range(30):
            await world.once(one, at=60 * number)
        assert (len(world.launcher.history()["a"]), counted(world, "a"), counted(world, "idle")) == (20, 30, 0)
        assert "idle" not in world.launcher.days()
        assert world.launcher.days() is world.launcher.days()
        contents.streams[stream("runs", "a")]["9"] = encode(run_row(foreign, "node-b"))

    async def after(world: World) -> None:
        begun = world.clock.now()
        await world.clock.sleep(1)
        await world.once(one, at=6000)
        await until(lambda: world.told, within=10)
        day = world.launcher.days()["a"]
        assert day.since(world.clock.now()) < begun.wall
        assert counted(world, "a") in range(19, 22)  # 20 rows were read at most, and one ran since
        seen = counted(world, "a")
        world.launcher.recall("a", [foreign])
        world.launcher.recall("a", world.launcher.history()["a"])
        assert counted(world, "a") == seen
        world.launcher.forget({})
        assert not world.launcher.days()
        await world.clock.sleep(5)
        await world.once(one, at=6060)
        # What was forgotten is not said to be known.
        assert world.launcher.days()["a"].since(world.clock.now()) > begun.wall
        assert counted(world, "a") == 1

    live(contents, [one, idle], before)
    live(contents, [one, idle], after, later=3600.0)


def test_more_rows_are_read_only_where_the_newest_ones_are_all_skips() -> None:
    contents = Contents()
    jobs = [job("skipped"), job("ran")]
    for one in jobs:
        rows = [RunRecord(RunKey("", one.name, n), Outcome.SKIPPED, None, None, n, None) for n in range(30)]
        rows.append(RunRecord(RunKey("r", one.name, 5), Outcome.SUCCESS, 0, 5.5, 5.5 if one is jobs[0] else 90.0, 1.0))
        rows.sort(key=lambda row: row.finished_at)
        contents.streams[stream("runs", one.name)] = {
            f"{n:09}": encode(run_row(row, "n")) for n, row in enumerate(rows)
        }
    reads: list[str] = []

    async def scene(world: World) -> None:
        world.store.was_read = lambda stream: reads.append(stream)  # type: ignore[method-assign]  # a hook
        await until(lambda: len(world.told) == 2, within=10)
        assert {name: last.run.finished_at for name, last in world.launcher.last_runs().items()} == {
            "skipped": 5.5,
            "ran": 90.0,
        }

    live(contents, jobs, scene)
    assert sorted(reads) == ["runs/ran", "runs/skipped", "runs/skipped"]


def test_without_an_answer_the_list_is_what_the_node_remembers() -> None:
    one = job()

    async def scene(world: World) -> None:
        await world.once(one, at=60)
        assert [r.key.scheduled_at for r in await world.history.runs("a", 10)] == [60]
        assert await world.history.last("a") is None
        assert world.launcher.history()["a"][0].node is None

    live(Contents(), [one], scene, down=True)


def test_the_history_of_ten_thousand_jobs_comes_in_the_background() -> None:
    contents = Contents()
    jobs = [job(f"job-{number}") for number in range(10_000)]
    for one in jobs:
        row = run_row(RunRecord(RunKey(one.name, one.name, 60), Outcome.SUCCESS, 0, 60.0, 61.0, 1.0), "n")
        contents.streams[stream("runs", one.name)] = {"1": encode(row)}

    async def scene(world: World) -> None:
        assert not world.launcher.history()
        await until(lambda: len(world.launcher.history()) == 10_000, within=60)

    live(contents, jobs, scene)


def test_a_row_that_cannot_be_read_is_left_out_and_keeps_no_other_history_back() -> None:
    contents = Contents()
    jobs = [job(f"job-{number}") for number in range(30)]
    gated = job("gated", onlyIfLastSucceeded=True)
    for one in (*jobs, gated):
        rows = [RunRecord(RunKey(f"r{n}", one.name, n), Outcome.SUCCESS, 0, n, n + 1.0, 1.0) for n in (60, 120)]
        contents.streams[stream("runs", one.name)] = {str(n): encode(run_row(row, "n")) for n, row in enumerate(rows)}

    async def scene(world: World) -> None:
        await until(lambda: len(world.launcher.history()) == len(jobs), within=30)
        assert {len(rows) for rows in world.launcher.history().values()} == {1}
        assert [row.key.scheduled_at for row in await world.history.runs("job-3", 10)] == [60]
        world.store.bad = False
        # What decides whether a job runs is not taken from an older row; it is asked for again.
        await until(lambda: "gated" in world.launcher.history(), within=30)
        assert len(world.launcher.history()["gated"]) == 2

    live(contents, [gated, *jobs], scene, bad=True)


def test_as_many_rows_are_kept_as_the_configuration_says() -> None:
    contents = Contents()
    one = job()

    async def scene(world: World) -> None:
        for number in range(40):
            await world.once(one, at=60 * number)
        await world.keeper.flush()

    live(contents, [one], scene, max_runs=10)
    assert 10 <= len(contents.streams["runs/a"]) <= 18
    live(contents, [one], scene, max_runs=None)
    assert len(contents.streams["runs/a"]) >= 50


def test_output_is_archived_when_asked_for_and_without_secrets(tmp_path: Path) -> None:
    contents = Contents()
    (tmp_path / "secret").write_text("from-a-file\n")
    report = {"report": {"webhook": {"url": {"fromFile": str(tmp_path / "secret")}}}}
    kept, plain = job("kept", archiveOutput=True, onFailure=report), job("plain")
    quiet = job("raw", archiveOutput=True, redactArchivedSecrets=False)
    text = "hunter22 green tok-12345 from-a-file web-secret /home/x\n"

    async def scene(world: World) -> None:
        world.output = (text, "")
        for one in (kept, plain, quiet):
            await world.once(one)

    live(contents, [kept, plain, quiet], scene)
    assert sorted(name for name in contents.streams if name.startswith("logs/")) == ["logs/kept", "logs/raw"]
    (record,) = contents.streams["logs/kept"].values()
    data = decode(record)
    assert data is not None
    assert data["stdout"] == f"{MASK} green {MASK} {MASK} {MASK} /home/x\n"
    assert data["stderr"] == ""
    (raw,) = contents.streams["logs/raw"].values()
    assert json.loads(raw)["data"]["stdout"] == text


def test_output_whose_secrets_cannot_be_looked_up_is_not_kept(tmp_path: Path) -> None:
    contents = Contents()
    report = {"report": {"webhook": {"url": {"fromFile": str(tmp_path / "gone")}}}}
    one = job(archiveOutput=True, onFailure=report)

    async def scene(world: World) -> None:
        world.output = ("hunter22", None)
        await world.once(one)

    world = live(contents, [one], scene)
    assert "logs/a" not in contents.streams
    assert world.host.logged("archived output of job a")


@pytest.mark.parametrize("readable", [True, False])
def test_secrets_that_are_replaced_while_a_run_lives_are_masked_as_it_was_given_them(
    tmp_path: Path, readable: bool
) -> None:
    contents, env_file = Contents(), tmp_path / "env"
    one = job(archiveOutput=True)
    one = replace(one, options=replace(one.options, env_file=str(env_file)))
    if readable:
        env_file.write_text("APP_PASSWORD=marlin88\n")

    async def scene(world: World) -> None:
        world.output = ("marlin88 then swordfish", None)
        world.meanwhile = lambda: env_file.write_text("APP_PASSWORD=swordfish\n")
        await world.once(one)

    world = live(contents, [one], scene)
    texts = [(decode(record) or {}).get("stdout") for record in contents.streams.get("logs/a", {}).values()]
    assert texts == ([f"{MASK} then {MASK}"] if readable else [])
    assert bool(world.host.logged("archived output of job a")) is not readable


def test_of_too_much_output_the_end_is_kept() -> None:
    assert end_of("short") == "short"
    text = end_of("x" * LONGEST + "the end")
    assert text.endswith("the end")
    assert "7 characters discarded" in text
    assert len(encode({"text": end_of("\N{SNOWMAN}" * LONGEST)})) < LONGEST


def test_names_that_tell_of_a_secret() -> None:
    secret = [
        "DB_PASSWORD",
        "PGPASSWORD",
        "API_KEY",
        "TOKEN",
        "PASS",
        "AWS_SECRET_ACCESS_KEY",
        "SENTRY_DSN",
        "MYSQL_PWD",
        "DATABASE_URL",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ]
    assert [name for name in secret if not looks_secret(name)] == []
    assert [
        name
        for name in ("PATH", "HOME", "KEYBOARD", "MONKEY", "PASSAGE", "CURL_CA_BUNDLE", "LANG")
        if looks_secret(name)
    ] == []


@pytest.mark.parametrize(
    ("name", "value", "taken_out"),
    [
        ("DB_PASSWORD", "correct horse", True),
        ("DATABASE_URL", "postgres://app:correct@db/app", True),
        ("HOOK_URL", "https://hooks.example/x?token=correct", True),
        ("WEBHOOK_URL", "https://hooks.example/T0/B0/correct", True),
        ("CI_SERVER_URL", "https://ci.example/runs", False),
        ("BASE_URI", "http://10.0.0.1:8080/", False),
        ("MAX_VALUE", "1000", False),
        ("HOME", "/root", False),
    ],
)
def test_an_address_without_a_secret_in_it_stays_in_what_is_archived(name: str, value: str, *, taken_out: bool) -> None:
    assert is_secret_variable(name, value) is taken_out


def test_sources_of_secrets_are_known_by_their_shape() -> None:
    tree = {
        "a": [{"b": {"fromFile": "/x"}}],
        "c": {"value": "v", "fromEnvVar": "E"},
        "env": [{"key": "k", "value": "v"}],
    }
    assert list(sources(tree)) == [{"fromFile": "/x"}, {"value": "v", "fromEnvVar": "E"}]


def test_the_lines_of_a_long_secret_are_masked_each_for_itself() -> None:
    key = "-----BEGIN-----\nAbCdEf\nGhIjKl\n-----END-----\n"
    assert redact("x AbCdEf y", [key]) == f"x {MASK} y"
    assert redact("abc", ["abc", ""]) == "abc"
    assert redact("longer-secret", ["secret", "longer-secret"]) == MASK


TIMES = st.floats(min_value=0, max_value=2e9)
ROWS = st.builds(
    RunRecord,
    st.builds(
        RunKey, st.text(), st.just("a"), st.none() | st.integers(0, 2**31), st.integers(0, 9), st.sampled_from(Trigger)
    ),
    st.sampled_from(Outcome),
    st.none() | st.integers(-128, 255),
    st.none() | TIMES,
    TIMES,
    st.none() | TIMES,
    fail_reason=st.none() | st.text(),
    skip_reason=st.none() | st.text(),
    resources=st.none() | st.builds(Resources, TIMES, TIMES, st.integers(0, 2**40), taken=st.integers(0, 9)),
    node=st.just("node-a"),
)


@given(ROWS)
def test_a_row_says_all_of_a_run_but_its_output(record: RunRecord) -> None:
    row = decode(encode(run_row(record, "node-a")))
    assert row is not None
    assert run_of("a", row) == record


KEYS = st.sampled_from(["outcome", "finishedAt", "trigger", "attempt", "exitCode"])


@given(st.dictionaries(KEYS, st.none() | st.booleans() | st.text() | st.just([]) | st.just("success")))
def test_what_is_no_row_is_none_and_never_an_error(row: dict[str, Any]) -> None:
    # A time of the wrong type is never a row.
    assert run_of("a", row) is None


@given(st.lists(ROWS, max_size=8), st.lists(ROWS, max_size=8), st.integers(0, 6))
def test_the_latest_run_is_the_one_that_ended_last_whatever_order_records_stand_in(
    one: list[RunRecord], two: list[RunRecord], limit: int
) -> None:
    merged = merge_rows(limit, one, two, reversed(one))
    ends = [record.finished_at for record in merged]
    assert ends == sorted(ends)
    assert len(merged) <= limit
    ids = [record.key.run_id for record in merged if record.key.run_id]
    assert len(ids) == len(set(ids))
    whole = merge_rows(1000, one, two)
    assert merged == whole[len(whole) - len(merged) :]
    assert len(merged) == min(limit, len(whole))


def test_who_ran_a_run_knows_how_it_ended_better_than_who_took_it_for_dead() -> None:
    key = RunKey("r1", "a", 60, 0, Trigger.SCHEDULE)
    guessed = RunRecord(key, Outcome.UNKNOWN, None, 60.0, 70.0, None, node="node-a")
    ended = RunRecord(key, Outcome.SUCCESS, 0, 60.0, 90.0, 30.0, node="node-a")
    assert merge_rows(20, [guessed], [ended]) == merge_rows(20, [ended], [guessed]) == (ended,)
    assert run_row(guessed, "node-b")["node"] == "node-a"


def test_every_job_has_a_stream_that_a_store_takes_and_no_two_share_one() -> None:
    names = ["a", "a/b", "/", "//", "/a", "a/", "x" * 600, "x" * 601, "etc/cron.d/x:3"]
    streams = [stream("runs", name) for name in names]
    assert len(set(streams)) == len(names)
    assert all(len(one) <= 512 and all(one.split("/")) for one in streams)
    assert streams[0] == "runs/a"
