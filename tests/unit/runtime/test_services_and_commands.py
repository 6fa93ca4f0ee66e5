"""Services restart alone and fail alone; commands obey the job's rules and are logged with who asked."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import cast

import anyio
import pytest

from cronstable.core.decision import DecisionRing
from cronstable.core.job import ConcurrencyPolicy, Job, JobOptions
from cronstable.core.runs import LiveRun, Outcome, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.plugin.descriptors import ServiceProvider
from cronstable.plugin.manager import PluginInfo, Provided
from cronstable.plugin.protocols import (
    Actor,
    CancelRun,
    Command,
    CommandOutcome,
    Done,
    Host,
    NoSuchJob,
    Pause,
    Refused,
    Resume,
    Service,
    Shutdown,
    Started,
    StartRun,
)
from cronstable.runtime.bus import EventBus
from cronstable.runtime.cluster_manager import ClusterManager
from cronstable.runtime.commands import Commands
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest
from cronstable.runtime.scheduler import Scheduler
from cronstable.runtime.services import Services
from cronstable.testing.clock import VirtualClock, run_virtual

LOG = logging.getLogger("test")
OPERATOR = Actor("operator", "test")


class FakeService:
    def __init__(self, log: list[str], settings: object) -> None:
        self._log = log
        self._settings = settings

    async def run(self, host: Host, *, task_status: Started) -> None:
        if self._settings == "broken":
            raise RuntimeError("port taken")
        self._log.append(f"start {self._settings}")
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self._log.append(f"stop {self._settings}")


def services(body: Callable[[Services], Awaitable[None]]) -> list[str]:
    async def run() -> list[str]:
        log: list[str] = []
        info = PluginInfo(name="web", distribution="cronstable", version="2.0.0", module="m", builtin=True)
        provider = Provided(ServiceProvider(name="web", section="web", factory="m:f"), info)

        def make(provided: Provided[ServiceProvider], settings: object, host: Host) -> Service:
            return FakeService(log, settings)

        supervisor = Services(providers={"web": provider}, make=make, host=cast(Host, None), log=LOG)
        async with anyio.create_task_group() as tasks:
            supervisor.bind(tasks)
            await body(supervisor)
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        return log

    return run_virtual(run)


def test_a_service_restarts_when_its_section_changes_and_only_then() -> None:
    async def body(supervisor: Services) -> None:
        await supervisor.reconcile({"web": "one"})
        await supervisor.reconcile({"web": "one"})
        await supervisor.reconcile({"web": "two"})
        await supervisor.reconcile({})

    assert services(body) == ["start one", "stop one", "start two", "stop two"]


def test_a_service_that_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def body(supervisor: Services) -> None:
        await supervisor.reconcile({"web": "broken"})
        await supervisor.reconcile({"web": "mended"})

    assert services(body)[0] == "start mended"
    assert "service web failed" in caplog.text


class Bench:
    """A launcher whose runs last until they are cancelled."""

    def __init__(self) -> None:
        self.clock = VirtualClock.of_loop()
        self.stopped = 0
        bus = EventBus(LOG)

        class Ids:
            n = 0

            def token(self, nbytes: int = 6) -> str:
                self.n += 1
                return f"run{self.n}"

        self.launcher = Launcher(
            execute=self._execute,
            clock=self.clock,
            ids=Ids(),
            bus=bus,
            hub=OutputHub(),
            log=LOG,
            node="node-a",
            decisions=DecisionRing(),
        )
        cluster = ClusterManager(
            make=lambda *_: pytest.fail("no election here"),
            host=cast(Host, None),
            bus=bus,
            clock=self.clock,
            log=LOG,
            job_set_id=lambda: "v1:0",
        )
        self.scheduler = Scheduler(clock=self.clock, cluster=cluster, launcher=self.launcher, log=LOG)
        self.commands = Commands(
            scheduler=self.scheduler, launcher=self.launcher, log=LOG, shutdown=self._note_shutdown
        )

    def _note_shutdown(self) -> None:
        self.stopped += 1

    async def _execute(
        self, request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
    ) -> RunRecord:
        permit()
        on_started(LiveRun(request.key, 4711, self.clock.now().wall))
        with request.cancellation.scope():
            await anyio.sleep_forever()
        return RunRecord(request.key, Outcome.CANCELLED, -15, 0.0, self.clock.now().wall, 1.0)

    async def do(self, command: Command) -> CommandOutcome:
        outcome = await self.commands.do(command, OPERATOR)
        await anyio.sleep(0.01)
        return outcome


def commands(body: Callable[[Bench], Awaitable[None]], *jobs: Job) -> Bench:
    async def run() -> Bench:
        bench = Bench()
        async with anyio.create_task_group() as tasks:
            bench.launcher.bind(tasks)
            bench.scheduler.load(jobs)
            await body(bench)
            tasks.cancel_scope.cancel()
        return bench

    return run_virtual(run)


def job(name: str = "a", policy: ConcurrencyPolicy = ConcurrencyPolicy.ALLOW, *, enabled: bool = True) -> Job:
    schedule = Schedule.parse("0 0 1 1 *", job_name=name, zone=UTC)
    return Job(name, "true", schedule, JobOptions(concurrency_policy=policy, enabled=enabled))


def test_a_manual_start_answers_with_the_run_id_and_the_run_lives() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.do(StartRun("a")) == Done("run1")
        assert [run.key.run_id for run in bench.launcher.live()["a"]] == ["run1"]

    commands(body, job())


def test_commands_for_an_unknown_job_say_so() -> None:
    async def body(bench: Bench) -> None:
        for command in (StartRun("x"), CancelRun("x"), Pause("x", 1.0), Resume("x")):
            assert await bench.do(command) == NoSuchJob("x")

    commands(body, job())


def test_two_starts_at_the_same_instant_cannot_both_pass_forbid() -> None:
    async def body(bench: Bench) -> None:
        first = await bench.commands.do(StartRun("a"), OPERATOR)
        second = await bench.commands.do(StartRun("a"), OPERATOR)
        assert isinstance(first, Done)
        assert isinstance(second, Refused)
        assert "Forbid" in second.reason

    commands(body, job(policy=ConcurrencyPolicy.FORBID))


def test_a_disabled_job_is_not_started() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.do(StartRun("a")) == Refused("the job is disabled")

    commands(body, job(enabled=False))


def test_cancel_ends_all_instances_and_says_how_many() -> None:
    async def body(bench: Bench) -> None:
        await bench.do(StartRun("a"))
        await bench.do(StartRun("a"))
        assert await bench.do(CancelRun("a")) == Done(2)
        assert bench.launcher.busy == 0
        assert await bench.do(CancelRun("a")) == Refused("the job is not running")

    commands(body, job())


def test_a_manual_start_is_refused_while_stopping() -> None:
    async def body(bench: Bench) -> None:
        bench.launcher.stopping = True
        assert await bench.do(StartRun("a")) == Refused("the daemon is stopping")

    commands(body, job())


def test_pause_and_resume_set_and_clear() -> None:
    async def body(bench: Bench) -> None:
        pause = Pause("a", 2e9, "maintenance")
        assert await bench.do(pause) == Done()
        assert bench.scheduler.pauses == {"a": pause}
        assert await bench.do(Resume("a")) == Done()
        assert bench.scheduler.pauses == {}

    commands(body, job())


def test_shutdown_is_passed_on_and_logged_with_who_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def body(bench: Bench) -> None:
        with caplog.at_level(logging.INFO):
            assert await bench.do(Shutdown()) == Done()

    assert commands(body, job()).stopped == 1
    assert "operator" in caplog.text
