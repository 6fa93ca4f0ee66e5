"""What goes along with a run: statsd figures, check-ins with a fake switch, samples of a fake system."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from types import MappingProxyType

import anyio
import pytest

from cronstable.core.job import Job, JobOptions, Json
from cronstable.core.runs import LiveRun, Outcome, Resources, RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.plugin.protocols import HttpResponse
from cronstable.runtime.checkins import TAIL, CheckIns, address, monitor_of, run_uuid
from cronstable.runtime.courier import Courier
from cronstable.runtime.resources import Monitoring, ResourceMonitor, Usage, monitoring_of
from cronstable.runtime.statsd import Statsd, end_figures, start_figures
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost, InlineThreads

KEY = RunKey("0123456789abcdef", "a", 60)
LIVE = LiveRun(KEY, 4711, 100.0)


def job(**raw: Json) -> Job:
    options = JobOptions(raw=MappingProxyType(raw))
    return Job("a", "true", Schedule.parse("* * * * *", job_name="a", zone=UTC), options)


def record(outcome: Outcome = Outcome.SUCCESS, **facts: object) -> RunRecord:
    return RunRecord(KEY, outcome, 0, 100.0, 101.5, 1.5, **facts)  # type: ignore[arg-type]  # the test's own keywords


# -- statsd -----------------------------------------------------------------------------------------------------------


@contextmanager
def udp_server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        yield server


def test_the_figures_have_the_documented_form() -> None:
    assert start_figures("cron.a") == b"cron.a.start:1|g\n"
    wanted = b"cron.a.stop:1|g\ncron.a.success:0|g\ncron.a.duration:1500|ms\n"
    assert end_figures("cron.a", success=False, duration=1.5) == wanted
    sampled = end_figures("cron.a", success=False, duration=1.5, used=Resources(0.25, 0.5, 4096))
    assert sampled == wanted + b"cron.a.cpu:750|ms\ncron.a.max_rss:4096|g\n"


def test_each_run_sends_a_datagram_at_its_start_and_at_its_end() -> None:
    with udp_server() as server:
        statsd: Json = {"prefix": "p", "host": "127.0.0.1", "port": server.getsockname()[1]}

        async def scenario() -> None:
            host = FakeHost(VirtualClock.of_loop())
            courier = Courier("statsd", log=host.log, deadline=3)
            async with anyio.create_task_group() as tasks:
                courier.bind(tasks)
                sender = Statsd(courier=courier, threads=host.threads)
                for each in (job(statsd=statsd), job()):
                    sender.started(each, LIVE)
                    sender.finished(each, record())
                await courier.idle()

        run_virtual(scenario)
        assert [server.recv(1000), server.recv(1000)] == [
            b"p.start:1|g\n",
            b"p.stop:1|g\np.success:1|g\np.duration:1500|ms\n",
        ]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(1000)


# -- check-ins --------------------------------------------------------------------------------------------------------


class Switch:
    """Remembers what was posted, and answers ``status`` or hangs."""

    def __init__(self, status: int = 200, *, hangs: bool = False) -> None:
        self.status = status
        self.hangs = hangs
        self.seen: list[tuple[str, bytes]] = []

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: float,
        tls: object = None,
    ) -> HttpResponse:
        assert method == "POST"
        if self.hangs:
            await anyio.sleep(timeout)
            raise TimeoutError
        self.seen.append((url, content))
        return HttpResponse(self.status, {}, b"")


def check_in(monitor: Json, *ends: RunRecord, switch: Switch | None = None) -> tuple[Switch, FakeHost]:
    to = switch or Switch()

    async def scenario() -> FakeHost:
        host = FakeHost(VirtualClock.of_loop(), http=to)
        courier = Courier("check-in", log=host.log, deadline=15)
        async with anyio.create_task_group() as tasks:
            courier.bind(tasks)
            listener = CheckIns(courier=courier, host=host)
            listener.started(job(monitor=monitor), LIVE)
            for end in ends:
                listener.finished(job(monitor=monitor), end)
            with anyio.fail_after(100):
                await courier.idle()
        return host

    return to, run_virtual(scenario)


URL: Json = {"value": "https://hc.example/ping/uuid"}
RID = f"rid={run_uuid(KEY.run_id)}"


def test_a_run_checks_in_at_its_start_and_after_its_success() -> None:
    switch, _ = check_in({"url": URL}, record())
    assert switch.seen == [
        (f"https://hc.example/ping/uuid/start?{RID}", b""),
        (f"https://hc.example/ping/uuid?{RID}", b""),
    ]


def test_a_failure_checks_in_with_its_reason_and_the_end_of_its_output() -> None:
    failed = record(Outcome.FAILURE, fail_reason="retcode=3", stdout="x" * TAIL, stderr="last words")
    switch, _ = check_in({"url": URL, "start": False}, failed)
    ((url, body),) = switch.seen
    assert url == f"https://hc.example/ping/uuid/fail?{RID}"
    assert body.endswith(b"last words")
    assert len(body) == TAIL
    short, _ = check_in({"url": URL, "start": False}, record(Outcome.FAILURE, fail_reason="retcode=3"))
    assert short.seen[0][1] == b"retcode=3"


def test_what_is_not_wanted_is_not_sent_and_the_log_only_when_wanted() -> None:
    quiet: Json = {"url": URL, "start": False, "success": False, "fail": False}
    assert check_in(quiet, record(), record(Outcome.FAILURE))[0].seen == []
    logs, _ = check_in({"url": URL, "start": False, "success": False, "log": True}, record(stdout="out\n"))
    assert logs.seen == [(f"https://hc.example/ping/uuid/log?{RID}", b"out\n")]


def test_a_cancelled_run_checks_in_with_nothing_at_its_end() -> None:
    assert len(check_in({"url": URL}, record(Outcome.CANCELLED))[0].seen) == 1


def test_the_query_of_an_address_is_kept_and_a_run_id_looks_like_a_uuid() -> None:
    assert address("https://h/p/?create=1", "start", "r") == f"https://h/p/start?create=1&rid={run_uuid('r')}"
    assert [len(part) for part in run_uuid("r").split("-")] == [8, 4, 4, 4, 12]
    assert run_uuid("r") != run_uuid("s")


@pytest.mark.parametrize(
    ("switch", "says"), [(Switch(404), "HTTP 404"), (Switch(hangs=True), "no answer in time")], ids=["404", "hangs"]
)
def test_a_switch_that_refuses_or_hangs_is_logged_without_its_address(switch: Switch, says: str) -> None:
    _, host = check_in({"url": URL}, record(), switch=switch)
    assert ("WARNING", f"check-in of job a: {says}") in host.log_lines
    assert "uuid" not in str(host.log_lines)
    assert "hc.example" not in str(host.log_lines)


def test_no_repr_of_a_monitor_shows_the_address() -> None:
    assert "hc.example" not in repr(monitor_of({"monitor": {"url": URL}}))


# -- resources --------------------------------------------------------------------------------------------------------


def sampled(
    usages: list[Usage | None], raw: Json, script: Callable[[ResourceMonitor], Awaitable[None]]
) -> tuple[RunRecord, list[int]]:
    asked: list[int] = []

    def sample(pid: int) -> Usage | None:
        asked.append(pid)
        return usages[min(len(asked), len(usages)) - 1]

    async def scenario() -> RunRecord:
        clock = VirtualClock.of_loop()
        monitor = ResourceMonitor(clock=clock, threads=InlineThreads(clock), log=FakeHost(clock).log, sample=sample)
        async with anyio.create_task_group() as tasks:
            monitor.bind(tasks)
            monitor.started(job(monitorResources=raw), LIVE)
            await script(monitor)
            done = monitor.complete(record())
        assert monitor.live() == {}
        return done

    return run_virtual(scenario), asked


def test_a_run_is_sampled_at_its_interval_and_the_record_has_the_most_of_it() -> None:
    async def script(monitor: ResourceMonitor) -> None:
        await anyio.sleep(2.5)
        now = monitor.live()[KEY.run_id]
        assert (now.max_rss, now.rss, now.taken) == (300, 200, 3)
        assert now.cpu_percent == 0.0, "a figure that went back is no negative use"

    usages: list[Usage | None] = [Usage(1.0, 0.5, 100), Usage(2.0, 0.5, 300), Usage(1.5, 0.75, 200)]
    done, asked = sampled(usages, {"interval": 1, "history": 2}, script)
    assert asked == [4711, 4711, 4711]
    assert done.resources is not None
    assert (done.resources.cpu_user, done.resources.cpu_system, done.resources.max_rss) == (2.0, 0.75, 300)
    assert [sample.rss for sample in done.resources.samples] == [300, 200]


def test_a_sample_that_breaks_costs_the_sample_only() -> None:
    done: list[RunRecord] = []

    async def scenario() -> None:
        asked: list[int] = []

        def sample(pid: int) -> Usage:
            asked.append(pid)
            if len(asked) == 1:
                raise IndexError("a line of /proc that nobody foresaw")
            return Usage(1.0, 0.5, 100)

        clock = VirtualClock.of_loop()
        monitor = ResourceMonitor(clock=clock, threads=InlineThreads(clock), log=FakeHost(clock).log, sample=sample)
        async with anyio.create_task_group() as tasks:
            monitor.bind(tasks)
            monitor.started(job(monitorResources={"interval": 1}), LIVE)
            await anyio.sleep(1.5)
            done.append(monitor.complete(record()))

    run_virtual(scenario)
    assert done[0].resources is not None
    assert done[0].resources.taken == 1


def test_the_use_of_the_moment_is_what_happened_between_the_last_two_samples() -> None:
    async def script(monitor: ResourceMonitor) -> None:
        await anyio.sleep(2.5)
        assert monitor.live()[KEY.run_id].cpu_percent == pytest.approx(75.0)

    done, _ = sampled([Usage(1.0, 0.5, 100), Usage(2.0, 1.0, 300)], {"interval": 2, "history": 0}, script)
    assert done.resources is not None
    assert (done.resources.taken, done.resources.samples) == (2, ())


def test_a_process_that_is_gone_leaves_no_figures() -> None:
    async def script(monitor: ResourceMonitor) -> None:
        await anyio.sleep(1)

    assert sampled([None], True, script)[0].resources is None


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ({}, None),
        ({"monitorResources": False}, None),
        ({"monitorResources": {"enabled": False}}, None),
        ({"monitorResources": True}, Monitoring(1.0, 120)),
        ({"monitorResources": {"interval": 0.5, "history": 0}}, Monitoring(0.5, 0)),
    ],
)
def test_sampling_is_off_unless_asked_for(raw: dict[str, Json], wanted: Monitoring | None) -> None:
    assert monitoring_of(raw) == wanted
