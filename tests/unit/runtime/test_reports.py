"""Reports never delay anything, keep their order per job, are bounded, and say what was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC

import anyio
import pytest

from cronstable.core.events import LeaderChanged, QuorumChanged
from cronstable.core.finding import Problem
from cronstable.core.job import Job, JobOptions, Json
from cronstable.core.runs import Outcome, RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.plugin.descriptors import NotifierBackend, Section
from cronstable.plugin.errors import InvalidSettings, NotDelivered
from cronstable.plugin.manager import PluginInfo, Provided
from cronstable.plugin.protocols import Host, LeaderChange, Message, Notifier, QuorumLoss, Report
from cronstable.runtime.bus import EventBus
from cronstable.runtime.reports import ATTEMPTS, GRACE, QUEUE, SEND_DEADLINE, Counts, Reports
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.host import FakeHost

INFO = PluginInfo(name="post", distribution="acme-post", version="1.0", module="m", builtin=False)


@dataclass
class World:
    """What the notifiers were told, and how they behave: ``hang``, ``refuse`` and the like name targets."""

    host: FakeHost
    bus: EventBus
    reports: Reports
    told: list[tuple[str, str]] = field(default_factory=list)
    tries: list[tuple[str, float]] = field(default_factory=list)
    hang: set[str] = field(default_factory=set)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    stopping: bool = False

    def logged(self, text: str) -> list[str]:
        return self.host.logged(text)

    async def delivered(self, count: int, within: float = 1000.0) -> None:
        await until(lambda: len(self.told) >= count, within=within, what=f"{count} messages")


class Post:
    def __init__(self, world: World, to: str) -> None:
        self._world = world
        self._to = to

    async def send(self, message: Message) -> None:
        world = self._world
        world.tries.append((self._to, world.host.clock.now().boot))
        await anyio.lowlevel.checkpoint()
        if self._to in world.hang:
            await anyio.sleep_forever()
        waiting = world.errors.get(self._to)
        if waiting:
            raise waiting.pop(0)
        world.told.append((self._to, label(message)))


def label(message: Message) -> str:
    match message:
        case Report():
            return f"{message.job.name} {message.event} {message.record.key.run_id}"
        case LeaderChange():
            return f"leader={message.is_leader} {message.reason}"
        case QuorumLoss():
            return f"quorum lost: {message.detail}"


def parse(section: Section) -> object:
    to = section.get("to")
    if to == "broken":
        raise InvalidSettings([Problem(("to",), "nobody is called that")])
    if to == "worse":
        raise ZeroDivisionError("the password is sesame")
    return to


def world(body: Callable[[World], Awaitable[None]]) -> World:
    async def run() -> World:
        host = FakeHost(VirtualClock.of_loop())
        bus = EventBus(host.log)
        backend = NotifierBackend(name="post", factory="m:f", parse=parse)
        other = NotifierBackend(name="fax", factory="m:f", parse=parse)

        def make(provided: Provided[NotifierBackend], settings: object, host: Host) -> Notifier:
            if settings == "unmade":
                raise ImportError("no module named sesame")
            return Post(made, str(settings))

        reports = Reports(
            notifiers={"post": Provided(backend, INFO), "fax": Provided(other, INFO)},
            make=make,
            host=host,
            bus=bus,
            log=host.log,
            hostname="host-1",
            stopping=lambda: made.stopping,
        )
        made = World(host, bus, reports)
        async with anyio.create_task_group() as tasks:
            reports.bind(tasks)
            tasks.start_soon(reports.follow)
            await anyio.lowlevel.checkpoint()
            await body(made)
            tasks.cancel_scope.cancel()
        return made

    return run_virtual(run)


def job(name: str = "job", **hooks: Json) -> Job:
    options = JobOptions(raw={event: {"report": report} for event, report in hooks.items()})
    return Job(name, "true", Schedule.parse("* * * * *", job_name=name, zone=UTC), options)


def record(run_id: str = "1", outcome: Outcome = Outcome.FAILURE, name: str = "job") -> RunRecord:
    return RunRecord(RunKey(run_id, name, 0), outcome, 1, 0.0, 1.0, 1.0, fail_reason="why")


def to(whom: str, **more: Json) -> dict[str, Json]:
    return {"post": {"to": whom, **more}}


def over(world: World, which: Job, run_id: str = "1", outcome: Outcome = Outcome.FAILURE) -> None:
    world.reports.run_over(which, record(run_id, outcome, which.name), will_retry=False)


# -- who is told ------------------------------------------------------------------------------------------------------


def test_each_hook_tells_its_own_reporters() -> None:
    which = job(onFailure=to("f"), onPermanentFailure=to("p"), onSuccess=to("s"), onLate=to("l"))

    async def body(world: World) -> None:
        world.reports.run_over(which, record("1"), will_retry=True)
        await world.delivered(1)
        world.reports.run_over(which, record("2"), will_retry=False)
        await world.delivered(3)
        world.reports.run_over(which, record("3", Outcome.SUCCESS), will_retry=False)
        await world.delivered(4)
        world.reports.run_over(which, record("4", Outcome.CANCELLED), will_retry=False)
        world.reports.report(Report("onLate", which, record("5")))
        await world.delivered(5)
        world.reports.gave_up(which, record("6"))
        await world.delivered(6)

    assert world(body).told == [
        ("f", "job onFailure 1"),
        ("f", "job onFailure 2"),
        ("p", "job onPermanentFailure 2"),
        ("s", "job onSuccess 3"),
        ("l", "job onLate 5"),
        ("p", "job onPermanentFailure 6"),
    ]


def test_a_job_without_reports_and_a_section_that_names_nobody_tell_nobody() -> None:
    async def body(world: World) -> None:
        over(world, job())
        over(world, job(onFailure={"post": {"to": None}, "pager": {"to": "x"}}))
        world.reports.announce(LeaderChange("node-a", True, "node-a", 0.0))
        await anyio.sleep(10)

    told = world(body)
    assert told.tries == []
    assert told.host.log_lines == []


def test_a_failure_while_the_daemon_stops_is_not_told_but_a_success_is() -> None:
    which = job(onFailure=to("f"), onSuccess=to("s"))

    async def body(world: World) -> None:
        world.stopping = True
        over(world, which, "1")
        over(world, which, "2", Outcome.SUCCESS)
        await world.delivered(1)
        await anyio.sleep(1)

    assert world(body).told == [("s", "job onSuccess 2")]


def test_a_report_without_a_host_gets_the_name_of_this_one() -> None:
    seen: list[str] = []

    class Seeing:
        async def send(self, message: Message) -> None:
            assert isinstance(message, Report)
            seen.append(message.host)

    async def run() -> None:
        host = FakeHost(VirtualClock.of_loop())
        backend = Provided(NotifierBackend(name="post", factory="m:f"), INFO)
        reports = Reports(
            notifiers={"post": backend},
            make=lambda provided, settings, host: Seeing(),
            host=host,
            bus=EventBus(host.log),
            log=host.log,
            hostname="host-1",
        )
        async with anyio.create_task_group() as tasks:
            reports.bind(tasks)
            reports.report(Report("onLate", job(onLate=to("x")), record()))
            await until(lambda: seen, within=10)

    run_virtual(run)
    assert seen == ["host-1"]


# -- cluster events ---------------------------------------------------------------------------------------------------


def test_each_change_of_leadership_and_each_loss_of_quorum_is_told_once_to_every_notifier() -> None:
    async def body(world: World) -> None:
        world.reports.configure({"events": ["leader_change", "quorum_loss"], "report": {**to("a"), "fax": {"to": "b"}}})
        world.bus.emit(QuorumChanged(True, "elected at start", 1.0, "node-a"))
        world.bus.emit(LeaderChanged(True, "node-a", "elected at start", 1.0, "node-a"))
        world.bus.emit(QuorumChanged(False, "the view changed", 2.0, "node-a"))
        world.bus.emit(LeaderChanged(False, None, "the view changed", 2.0, "node-a"))
        await world.delivered(6)
        await anyio.sleep(60)

    expected = ["leader=True elected at start", "quorum lost: the view changed", "leader=False the view changed"]
    told = world(body).told
    assert [text for whom, text in told if whom == "a"] == expected
    assert [text for whom, text in told if whom == "b"] == expected
    assert len(told) == 6


@pytest.mark.parametrize(("events", "count"), [(["leader_change"], 1), (["quorum_loss"], 1), ([], 0)])
def test_only_the_events_that_are_named_are_told(events: list[Json], count: int) -> None:
    async def body(world: World) -> None:
        world.reports.configure({"events": events, "report": to("a")})
        world.bus.emit(LeaderChanged(True, "node-a", "", 1.0, "node-a"))
        world.bus.emit(QuorumChanged(False, "", 2.0, "node-a"))
        await anyio.sleep(10)

    assert len(world(body).told) == count


def test_a_node_that_is_told_to_stop_loses_leadership_but_no_quorum() -> None:
    async def body(world: World) -> None:
        world.reports.configure({"report": to("a")})
        world.stopping = True
        world.bus.emit(QuorumChanged(False, "the daemon is stopping", 1.0, "node-a"))
        world.bus.emit(LeaderChanged(False, None, "the daemon is stopping", 1.0, "node-a"))
        await world.reports.finish()

    assert world(body).told == [("a", "leader=False the daemon is stopping")]


def test_a_reload_changes_who_is_told() -> None:
    async def body(world: World) -> None:
        message = LeaderChange("node-a", True, "node-a", 0.0)
        for report in (to("a"), to("b"), None):
            world.reports.configure({"report": report} if report else None)
            world.reports.announce(message)
            await anyio.sleep(1)

    assert [whom for whom, _ in world(body).told] == ["a", "b"]


# -- hanging, order, bounds -------------------------------------------------------------------------------------------


def test_a_notifier_that_hangs_delays_no_other() -> None:
    async def body(world: World) -> None:
        world.hang.add("stuck")
        over(world, job("one", onFailure=to("stuck")))
        over(world, job("two", onFailure=to("fine")))
        over(world, job("one", onFailure={"fax": {"to": "fine"}}))
        start = world.host.clock.now().boot
        await world.delivered(2)
        assert world.host.clock.now().boot - start < 1

    assert sorted(world(body).told) == [("fine", "one onFailure 1"), ("fine", "two onFailure 1")]


def test_a_try_that_never_ends_is_given_up_and_counted() -> None:
    async def body(world: World) -> None:
        world.hang.add("stuck")
        over(world, job(onFailure=to("stuck")))
        await until(lambda: world.logged("no end within"), within=SEND_DEADLINE + 1)
        world.hang.clear()
        over(world, job(onFailure=to("stuck")), "2")
        await world.delivered(1)

    done = world(body)
    assert done.logged("could not be told") == ["job job: onFailure: post could not be told: no end within 60 s"]
    assert done.reports.counts["post"].failed == 1
    assert done.told == [("stuck", "job onFailure 2")]


def test_a_notifier_that_bounds_itself_is_given_its_time() -> None:
    class Patient:
        longest_send = 300.0

        async def send(self, message: Message) -> None:
            await anyio.sleep(299)
            done.append(message)

    done: list[Message] = []

    async def run() -> None:
        host = FakeHost(VirtualClock.of_loop())
        backend = Provided(NotifierBackend(name="post", factory="m:f"), INFO)
        reports = Reports(
            notifiers={"post": backend},
            make=lambda provided, settings, host: Patient(),
            host=host,
            bus=EventBus(host.log),
            log=host.log,
            hostname="h",
        )
        async with anyio.create_task_group() as tasks:
            reports.bind(tasks)
            reports.report(Report("onLate", job(onLate=to("x")), record()))
            await until(lambda: done, within=400, every=1)

    run_virtual(run)
    assert len(done) == 1


def test_a_notifier_whose_bound_breaks_costs_its_message_only() -> None:
    class Broken:
        @property
        def longest_send(self) -> float:
            raise ZeroDivisionError

        async def send(self, message: Message) -> None:
            raise AssertionError("without a bound it is not asked")

    async def run() -> Reports:
        host = FakeHost(VirtualClock.of_loop())
        backend = Provided(NotifierBackend(name="post", factory="m:f"), INFO)
        reports = Reports(
            notifiers={"post": backend},
            make=lambda provided, settings, host: Broken(),
            host=host,
            bus=EventBus(host.log),
            log=host.log,
            hostname="h",
        )
        async with anyio.create_task_group() as tasks:
            reports.bind(tasks)
            reports.report(Report("onLate", job(onLate=to("x")), record()))
            await until(lambda: not reports.waiting, within=400, every=1)
        return reports

    assert run_virtual(run).counts["post"] == Counts(failed=1)


def test_messages_of_one_job_keep_their_order_though_their_sections_differ() -> None:
    failing, fine = job(onFailure=to("f", note="1")), job(onSuccess=to("s"))

    async def body(world: World) -> None:
        world.errors["f"] = [NotDelivered("busy", retry=True)]
        over(world, failing, "1")
        over(world, fine, "2", Outcome.SUCCESS)
        over(world, failing, "3")
        over(world, job("other", onSuccess=to("s")), "4", Outcome.SUCCESS)
        await world.delivered(4)

    told = world(body).told
    assert told[0] == ("s", "other onSuccess 4"), "another job does not wait for this one's retry"
    assert [text for _, text in told[1:]] == ["job onFailure 1", "job onSuccess 2", "job onFailure 3"]


def test_a_full_queue_drops_the_oldest_and_says_so() -> None:
    async def body(world: World) -> None:
        world.hang.add("stuck")
        for i in range(QUEUE + 3):
            over(world, job(onFailure=to("stuck")), str(i))
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        assert world.reports.waiting == QUEUE + 1
        world.hang.clear()
        await world.delivered(QUEUE)

    done = world(body)
    assert done.reports.counts["post"].dropped == 2
    assert done.logged("was not told")[-1] == "job job: onFailure: post was not told, 1000 others wait (2 dropped)"
    assert [text.split()[-1] for _, text in done.told] == [str(i) for i in range(3, QUEUE + 3)]


def test_nothing_is_kept_of_a_target_once_it_is_served() -> None:
    async def body(world: World) -> None:
        for i in range(50):
            over(world, job(onFailure=to(f"someone {i}")), str(i))
        await world.delivered(50)
        await anyio.sleep(1)
        assert world.reports.waiting == 0
        assert vars(world.reports)["_targets"] == {}
        assert vars(world.reports)["_chains"] == {}

    assert world(body).reports.counts["post"].sent == 50


def test_a_reload_forgets_what_was_made_of_sections_that_may_be_gone() -> None:
    async def body(world: World) -> None:
        over(world, job(onFailure=to("someone")))
        await world.delivered(1)
        assert len(vars(world.reports)["_settings"]) == 1
        world.reports.configure(None)
        assert vars(world.reports)["_settings"] == {}

    assert world(body).told == [("someone", "job onFailure 1")]


# -- failures ---------------------------------------------------------------------------------------------------------


def test_what_another_try_can_help_is_tried_again_with_growing_pauses() -> None:
    async def body(world: World) -> None:
        world.errors["a"] = [NotDelivered("503", retry=True), OSError("connection refused")]
        over(world, job(onFailure=to("a")))
        await world.delivered(1)

    done = world(body)
    first, second, third = (at for _, at in done.tries)
    assert 0.75 <= second - first <= 1.25
    assert 3 <= third - second <= 5
    assert done.logged("tried again in")
    assert done.reports.counts["post"].failed == 0


def test_the_other_side_may_ask_for_a_longer_pause_but_not_for_any() -> None:
    async def body(world: World) -> None:
        world.errors["a"] = [NotDelivered("429", retry=True, after=12), NotDelivered("429", retry=True, after=9999)]
        over(world, job(onFailure=to("a")))
        await world.delivered(1)

    first, second, third = (at for _, at in world(body).tries)
    assert second - first == pytest.approx(12)
    assert third - second == pytest.approx(30)


def test_the_tries_have_an_end() -> None:
    async def body(world: World) -> None:
        world.errors["a"] = [NotDelivered("503", retry=True) for _ in range(10)]
        over(world, job(onFailure=to("a")))
        await until(lambda: world.logged("could not be told"), within=60)

    assert len(world(body).tries) == ATTEMPTS


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotDelivered("the server answers 404"), "the server answers 404"),
        (InvalidSettings([Problem(("fromFile",), "the secret cannot be read")]), "the secret cannot be read"),
        (ValueError("bad address https://sesame"), "ValueError in the notifier"),
    ],
)
def test_what_no_try_can_help_is_said_once_without_what_a_stranger_s_error_quotes(error: Exception, said: str) -> None:
    async def body(world: World) -> None:
        world.errors["a"] = [error]
        over(world, job(onFailure=to("a")))
        await until(lambda: world.logged("could not be told"), within=60)
        await anyio.sleep(30)

    done = world(body)
    assert [text for _, text in done.host.log_lines] == [f"job job: onFailure: post could not be told: {said}"]
    assert len(done.tries) == 1
    assert done.reports.counts["post"].failed == 1


@pytest.mark.parametrize(
    ("whom", "said"),
    [
        ("broken", "nobody is called that"),
        ("worse", "ZeroDivisionError in the notifier"),
        ("unmade", "ImportError in the notifier"),
    ],
)
def test_a_notifier_that_cannot_be_made_takes_nothing_with_it(whom: str, said: str) -> None:
    async def body(world: World) -> None:
        over(world, job(onFailure={**to(whom), "fax": {"to": "fine"}}))
        await world.delivered(1)
        await until(lambda: world.logged("could not be told"), within=10)

    done = world(body)
    assert done.told == [("fine", "job onFailure 1")]
    assert [line for line in done.logged("post could not be told") if said in line]
    assert done.logged("sesame") == []


# -- the end ----------------------------------------------------------------------------------------------------------


def test_at_the_stop_what_waits_is_still_delivered() -> None:
    async def body(world: World) -> None:
        for i in range(5):
            over(world, job(onFailure=to("a")), str(i))
        await world.reports.finish()

    assert len(world(body).told) == 5


def test_at_the_stop_nobody_waits_longer_than_the_grace() -> None:
    async def body(world: World) -> None:
        world.hang.add("stuck")
        for i in range(3):
            over(world, job(onFailure=to("stuck")), str(i))
        start = world.host.clock.now().boot
        await world.reports.finish()
        assert world.host.clock.now().boot - start == pytest.approx(GRACE)

    done = world(body)
    assert done.reports.counts["post"].dropped == 2
    assert len(done.logged("the daemon stops")) == 3


def test_a_stop_with_nothing_to_say_takes_no_time() -> None:
    async def body(world: World) -> None:
        start = world.host.clock.now().boot
        await world.reports.finish()
        assert world.host.clock.now().boot == start

    assert world(body).told == []
