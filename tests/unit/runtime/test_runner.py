"""The course of one run, on virtual time and a spawner that only pretends."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar
from zoneinfo import ZoneInfo

import anyio
import pytest

from cronstable.core.clock import Seconds
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import EXECUTION_TIMEOUT, LAUNCH_FAILED, LiveRun, Outcome, RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.runtime.capture import LineBatch
from cronstable.runtime.runner import HURRIED_KILL, Cancellation, RunRequest, RunTools, run_job
from cronstable.runtime.spawn import SpawnFailed, SpawnSpec, Stream
from cronstable.testing.clock import VirtualClock, run_virtual

T = TypeVar("T")

KEY = RunKey("run", "job", 60)
LOG = logging.getLogger("cronstable.test")


class InLine:
    """Blocking calls, made on the spot; or never answered, as on a mount that hangs."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.hangs = False

    async def run(self, call: Callable[[], T], *, timeout: Seconds, lane: str = "default") -> T:
        if self.hangs:
            await self.clock.sleep(timeout)
            raise TimeoutError
        return call()


class Sink:
    """Takes lines; congested until ``flow`` is set."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.flow = anyio.Event()
        self.flow.set()

    def write(self, batch: LineBatch) -> None:
        self.texts.extend(batch.texts)

    async def ready(self) -> None:
        await self.flow.wait()


class Pretender:
    """A process that ends after ``lifetime`` seconds with ``code``, or at a signal that it does not ``ignore``."""

    pid = 4242

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.lifetime = 10.0
        self.code: int | None = 0
        self.ignores: set[int] = set()
        self.survivors_until = 0.0
        self.chunks: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self.holds_pipe = False
        self.refusal: str | None = None
        self.direct = False
        self.denies_priority = False
        self.signals: list[tuple[float, int]] = []
        self.released = False
        self.began = clock.now().boot
        self._ended = anyio.Event()
        self._output_ended = anyio.Event()

    async def started(self) -> None:
        if self.refusal is not None:
            self._ended.set()
            raise SpawnFailed(self.refusal)

    def when_over(self, call: Callable[[], None]) -> None:
        async def follow() -> None:
            await self.wait()
            call()

        self.following = asyncio.get_running_loop().create_task(follow())

    async def wait(self) -> int | None:
        with anyio.move_on_after(max(0.0, self.began + self.lifetime - self.clock.now().boot)):
            await self._ended.wait()
        self._ended.set()
        return self.code

    async def read(self, stream: Stream) -> bytes:
        if self.chunks[stream]:
            return self.chunks[stream].pop(0)
        if self.holds_pipe:
            await self._output_ended.wait()
        elif not self._output_ended.is_set():
            await self.wait()
        return b""

    def end_output(self) -> None:
        self._output_ended.set()

    def signal_group(self, signum: int) -> None:
        self.signals.append((round(self.clock.now().boot - self.began, 3), signum))
        if signum in (signal.SIGTERM, signal.SIGKILL) and signum not in self.ignores:
            self.code = -signum if not self._ended.is_set() else self.code
            self._ended.set()
        if signum == signal.SIGKILL:
            self.survivors_until = 0.0

    def group_alive(self) -> bool:
        return not self._ended.is_set() or self.clock.now().boot - self.began < self.survivors_until

    def renice(self, nice: int) -> None:
        if self.denies_priority:
            raise PermissionError(13, "Permission denied")

    def release(self) -> None:
        self.released = True


class Stage:
    """One run and everything around it."""

    def __init__(self, **options: object) -> None:
        self.clock = VirtualClock.of_loop()
        self.process = Pretender(self.clock)
        self.sink = Sink()
        self.threads = InLine(self.clock)
        self.cancellation = Cancellation()
        self.failure: str | None = None
        self.specs: list[SpawnSpec] = []
        self.started: list[LiveRun] = []
        self.job = Job("job", "command", Schedule("* * * * *", ZoneInfo("UTC")), JobOptions(**options))  # type: ignore[arg-type]

    def spawn(self, spec: SpawnSpec) -> Pretender:
        self.specs.append(spec)
        if self.failure is not None:
            raise SpawnFailed(self.failure)
        return self.process

    async def run(self) -> RunRecord:
        tools = RunTools(self, self.clock, self.threads, self.sink, LOG, {"PATH": "/bin"})
        request = RunRequest(KEY, self.job, self.cancellation)
        return await run_job(request, tools, on_started=self.started.append)

    async def run_beside(self, other: Callable[[], Coroutine[object, object, None]]) -> RunRecord:
        """The run, while ``other`` goes on."""
        records: list[RunRecord] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            records.append(await self.run())
        return records[0]


def staged(play: Callable[[], Awaitable[T]]) -> T:
    return run_virtual(play)


def test_the_duration_is_that_of_the_boot_clock() -> None:
    async def play() -> RunRecord:
        return await Stage().run()

    record = staged(play)
    assert (record.outcome, record.exit_code, record.duration) == (Outcome.SUCCESS, 0, 10.0)


def test_a_timeout_is_a_failure_whatever_the_command_answers_to_sigterm() -> None:
    async def play() -> tuple[RunRecord, list[tuple[float, int]], bool]:
        stage = Stage(execution_timeout=3.0)
        record = await stage.run()
        return record, stage.process.signals, stage.process.released

    record, signals, released = staged(play)
    assert (record.outcome, record.exit_code) == (Outcome.FAILURE, EXECUTION_TIMEOUT)
    assert record.fail_reason == "failsWhen=nonzeroReturn and retcode=-100 (executionTimeout of 3 s expired)"
    assert signals == [(3.0, signal.SIGTERM), (3.0, signal.SIGCONT), (3.0, signal.SIGKILL)]
    assert released


def test_sigkill_follows_after_the_kill_timeout() -> None:
    async def play() -> tuple[RunRecord, list[tuple[float, int]]]:
        stage = Stage(execution_timeout=3.0, kill_timeout=2.0)
        stage.process.ignores.add(signal.SIGTERM)
        return await stage.run(), stage.process.signals

    record, signals = staged(play)
    assert signals[-1] == (5.0, signal.SIGKILL)
    assert record.duration == 5.0


def test_a_member_of_the_group_that_outlives_the_leader_gets_all_of_the_kill_timeout() -> None:
    async def play() -> list[tuple[float, int]]:
        stage = Stage(execution_timeout=1.0, kill_timeout=30.0)
        stage.process.survivors_until = 6.0
        await stage.run()
        return stage.process.signals

    at, last = staged(play)[-1]
    assert last == signal.SIGKILL
    assert 6.0 <= at < 7.0


def test_a_group_that_sigkill_does_not_end_is_warned_of_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> RunRecord:
        stage = Stage(execution_timeout=1.0, kill_timeout=1.0)
        stage.process.ignores |= {signal.SIGTERM, signal.SIGKILL}
        stage.process.lifetime = 100.0
        return await stage.run()

    record = staged(play)
    assert record.duration == 100.0
    assert "still there 5 s after SIGKILL" in caplog.text


def test_a_timeout_counts_the_time_that_the_machine_was_suspended() -> None:
    async def play() -> RunRecord:
        stage = Stage(execution_timeout=3600.0)
        stage.process.lifetime = 1e6

        async def suspend() -> None:
            await stage.clock.sleep(10)
            stage.clock.advance(7200)

        return await stage.run_beside(suspend)

    record = staged(play)
    assert record.exit_code == EXECUTION_TIMEOUT
    assert record.duration is not None
    assert record.duration < 7200 + 10 + 61


def test_a_cancelled_run_is_neither_success_nor_failure() -> None:
    async def play() -> RunRecord:
        stage = Stage()

        async def cancel() -> None:
            await stage.clock.sleep(2)
            stage.cancellation.request("replaced")
            stage.cancellation.request("a later reason")

        return await stage.run_beside(cancel)

    record = staged(play)
    assert (record.outcome, record.exit_code, record.fail_reason) == (Outcome.CANCELLED, -15, "replaced")


def test_hurry_cuts_the_kill_timeout_short() -> None:
    async def play() -> float | None:
        stage = Stage(kill_timeout=600.0)
        stage.process.ignores.add(signal.SIGTERM)
        stage.process.lifetime = 1e6

        async def cancel() -> None:
            await stage.clock.sleep(2)
            stage.cancellation.request("stopping")
            await stage.clock.sleep(5)
            stage.cancellation.request("told twice", grace=HURRIED_KILL)

        record = await stage.run_beside(cancel)
        return record.duration

    assert staged(play) == 8.0


@pytest.mark.parametrize(
    ("first", "later", "over_at"),
    [
        (None, 3.0, 8.0),  # cancelled by a person, then its lease is lost
        (None, 0.0, 5.0),
        (20.0, 3.0, 8.0),
        (4.0, 3.0, 6.0),  # the first one is over sooner
        (4.0, None, 6.0),
        (None, 900.0, 602.0),
    ],
)
def test_a_run_that_is_being_ended_is_left_no_more_than_a_later_request_grants(
    first: float | None, later: float | None, over_at: float
) -> None:
    async def play() -> RunRecord:
        stage = Stage(kill_timeout=600.0)
        stage.process.ignores.add(signal.SIGTERM)
        stage.process.lifetime = 1e6

        async def cancel() -> None:
            await stage.clock.sleep(2)
            stage.cancellation.request("cancelled", grace=first)
            await stage.clock.sleep(3)
            stage.cancellation.request("the lease is lost", grace=later)

        return await stage.run_beside(cancel)

    record = staged(play)
    assert (record.duration, record.outcome, record.fail_reason) == (over_at, Outcome.CANCELLED, "cancelled")


def test_a_lease_that_is_lost_while_the_execution_timeout_ends_the_run_leaves_it_no_more_either() -> None:
    async def play() -> RunRecord:
        stage = Stage(execution_timeout=2.0, kill_timeout=600.0)
        stage.process.ignores.add(signal.SIGTERM)
        stage.process.lifetime = 1e6

        async def lose() -> None:
            await stage.clock.sleep(5)
            stage.cancellation.request("the lease is lost", grace=0.0)

        return await stage.run_beside(lose)

    record = staged(play)
    assert (record.duration, record.outcome, record.exit_code) == (5.0, Outcome.FAILURE, EXECUTION_TIMEOUT)


def test_a_cancellation_after_the_end_changes_nothing() -> None:
    async def play() -> RunRecord:
        stage = Stage()
        record = await stage.run()
        stage.cancellation.request("too late")
        return record

    assert staged(play).outcome is Outcome.SUCCESS


def test_a_failed_spawn_is_a_record(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> tuple[RunRecord, list[LiveRun]]:
        stage = Stage()
        stage.failure = "no such command"
        return await stage.run(), stage.started

    record, started = staged(play)
    assert (record.outcome, record.exit_code, started) == (Outcome.FAILURE, LAUNCH_FAILED, [])
    assert record.fail_reason == "failsWhen=nonzeroReturn and retcode=127 (launch failed: no such command)"
    assert "launch failed: no such command" in caplog.text


def test_a_start_that_the_helper_refuses_is_a_failed_launch_and_leaves_nothing() -> None:
    async def play() -> tuple[RunRecord, bool, list[LiveRun]]:
        stage = Stage()
        stage.process.refusal = "cannot switch to uid 5"
        return await stage.run(), stage.process.released, stage.started

    record, released, started = staged(play)
    assert record.exit_code == LAUNCH_FAILED
    assert "cannot switch to uid 5" in (record.fail_reason or "")
    assert (released, started) == (True, [])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"working_directory": "/mnt/hangs"}, "the working directory '/mnt/hangs'"),
        ({"env_file": "/mnt/hangs"}, "env_file '/mnt/hangs'"),
        ({"user": "nobody"}, "the account database"),
    ],
)
def test_a_mount_that_hangs_fails_the_launch_and_stops_nobody_else(options: dict[str, str], what: str) -> None:
    async def play() -> tuple[RunRecord, list[SpawnSpec]]:
        stage = Stage(**options)
        stage.threads.hangs = True
        return await stage.run(), stage.specs

    record, specs = staged(play)
    assert f"{what} did not answer within 10 s" in (record.fail_reason or "")
    assert specs == []


def test_a_status_that_was_taken_by_somebody_else_is_an_unknown_outcome() -> None:
    async def play() -> RunRecord:
        stage = Stage()
        stage.process.code = None
        return await stage.run()

    record = staged(play)
    assert (record.outcome, record.exit_code) == (Outcome.UNKNOWN, None)


def test_a_survivor_that_holds_the_pipe_is_waited_for_a_second_that_does_not_count() -> None:
    async def play() -> tuple[RunRecord, float]:
        stage = Stage(capture_stdout=True)
        stage.process.holds_pipe = True
        stage.process.chunks["stdout"] = [b"done\n"]
        return await stage.run(), stage.clock.now().boot - stage.process.began

    record, passed = staged(play)
    assert (record.duration, record.stdout, passed) == (10.0, "done\n", 11.0)


def test_a_congested_log_stops_the_reading_and_not_the_daemon() -> None:
    async def play() -> tuple[list[str], list[str], RunRecord]:
        stage = Stage(capture_stdout=True)
        stage.process.chunks["stdout"] = [b"one\n", b"two\n", b"three\n"]
        stage.sink.flow = anyio.Event()
        early: list[str] = []

        async def open_up() -> None:
            await stage.clock.sleep(5)
            early.extend(stage.sink.texts)
            stage.sink.flow.set()

        record = await stage.run_beside(open_up)
        return early, stage.sink.texts, record

    early, late, record = staged(play)
    assert early == ["one"]
    assert late == ["one", "two", "three"]
    assert record.stdout == "one\ntwo\nthree\n"


def test_a_log_that_never_opens_up_does_not_keep_a_run_that_has_ended() -> None:
    async def play() -> tuple[RunRecord, float]:
        stage = Stage(capture_stdout=True)
        stage.process.chunks["stdout"] = [b"one\n", b"two\n"]
        stage.sink.flow = anyio.Event()
        return await stage.run(), stage.clock.now().boot - stage.process.began

    record, passed = staged(play)
    assert (passed, record.stdout) == (11.0, "one\ntwo\n")


def test_a_priority_that_is_not_allowed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> RunRecord:
        stage = Stage(priority="high")
        stage.process.denies_priority = True
        return await stage.run()

    assert staged(play).outcome is Outcome.SUCCESS
    assert "priority high was not set: Permission denied" in caplog.text


def test_a_run_whose_task_is_cancelled_kills_its_group_first() -> None:
    async def play() -> tuple[list[tuple[float, int]], bool]:
        stage = Stage()
        stage.process.ignores.add(signal.SIGTERM)
        with anyio.move_on_after(2):
            await stage.run()
        return stage.process.signals, stage.process.released

    signals, released = staged(play)
    assert signals == [(2.0, signal.SIGTERM), (3.0, signal.SIGKILL)]
    assert released
