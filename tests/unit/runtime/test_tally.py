"""What happens is counted when it happens, once, and forgotten with its job."""

from __future__ import annotations

import logging
import math
from datetime import UTC

import anyio
import pytest

from cronstable.core.clock import Instant
from cronstable.core.decision import Decision, DecisionRecord, Reason, Verdict
from cronstable.core.events import Decided, LeaderChanged, RunFinished, RunStarted
from cronstable.core.hooks import JobEvent, Lateness
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import LAUNCH_FAILED, LiveRun, Outcome, Resources, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.core.tally import DURATION_BOUNDS, Histogram, JobTally, NotifierTally, Observed
from cronstable.plugin.protocols import Report
from cronstable.runtime.bus import BACKLOG, EventBus
from cronstable.runtime.reports import Counts
from cronstable.runtime.tally import LOOK, LOOKS, TallyKeeper, duration_bounds
from cronstable.testing.clock import VirtualClock

NOON = 1_800_000_000.0


def keeper() -> TallyKeeper:
    return TallyKeeper(clock=VirtualClock(wall=NOON))


def finished(outcome: Outcome = Outcome.SUCCESS, took: float | None = 2.0, **more: object) -> RunFinished:
    key = RunKey("r", "a", None)
    started = None if took is None else NOON - took
    exit_code = more.pop("exit_code", 0)
    assert isinstance(exit_code, int)
    resources = more.pop("resources", None)
    assert resources is None or isinstance(resources, Resources)
    return RunFinished(RunRecord(key, outcome, exit_code, started, NOON, took, resources=resources))


def decided(verdict: Verdict, reason: Reason, *, final: bool = True, late: float = 0.0) -> Decided:
    record = DecisionRecord("n", "a", int(NOON), NOON + late, Decision(verdict, reason), None, not final)
    return Decided(record)


def report(event: JobEvent, facts: Lateness | None = None) -> Report:
    job = Job("a", "true", Schedule.parse("* * * * *", job_name="a", zone=UTC), JobOptions())
    return Report(event, job, finished().record, facts=facts)


def test_runs_are_counted_by_their_end_with_how_long_they_took() -> None:
    tally = keeper()
    for event in (
        finished(took=0.1),
        finished(took=99_999.0),
        finished(Outcome.FAILURE, took=0.2, resources=Resources(cpu_user=1.0, cpu_system=0.5, max_rss=7)),
        finished(Outcome.FAILURE, took=None, exit_code=LAUNCH_FAILED),
        finished(Outcome.FAILURE, took=1.0, exit_code=LAUNCH_FAILED),
        finished(Outcome.CANCELLED),
        finished(Outcome.UNKNOWN),
    ):
        tally.heard(event)
    job = tally.view().jobs["a"]
    assert (job.success, job.failure, job.cancelled, job.unknown, job.skipped) == (2, 3, 1, 1, 0)
    assert job.start_failures == 1
    assert job.duration is not None
    assert job.duration.counts == (1, 1, 1, 0, 0, 0, 0, 0, 0, 1)
    assert job.duration.total == pytest.approx(100_000.3)
    assert (job.cpu_user, job.cpu_system, job.peak_rss) == (1.0, 0.5, 7)
    assert (job.last_success, job.last_failure) == (NOON, NOON)


def test_decisions_are_counted_by_verdict_reason_and_whether_they_are_final() -> None:
    tally = keeper()
    tally.heard(decided(Verdict.RUN, Reason.LEADER, late=0.2))
    tally.heard(decided(Verdict.SKIP, Reason.NOT_LEADER, final=False))
    tally.heard(decided(Verdict.SKIP, Reason.PAUSED))
    tally.heard(decided(Verdict.SKIP, Reason.PAUSED))
    seen = tally.view()
    assert seen.decisions == {
        ("run", "leader", True): 1,
        ("skip", "not-leader", False): 1,
        ("skip", "paused", True): 2,
    }
    assert seen.jobs["a"].skipped == 2
    assert sum(seen.decision_delay.counts) == 1
    assert seen.decision_delay.total == pytest.approx(0.2, abs=1e-6)


def test_retries_catch_ups_hooks_claims_and_messages_are_counted() -> None:
    counts = {"mail": Counts(sent=3, failed=1, dropped=2)}
    tally = TallyKeeper(clock=VirtualClock(wall=NOON), transitions=lambda: (4, 5), delivered=lambda: counts)
    for trigger in (Trigger.RETRY, Trigger.CATCHUP, Trigger.SCHEDULE):
        tally.heard(RunStarted(LiveRun(RunKey("r", "a", None, 1, trigger), 7, NOON)))
    tally.heard(LeaderChanged(True, "n", "elected", NOON, "n"))
    tally.reported(report("onPermanentFailure"))
    tally.reported(report("onFailure"))
    tally.reported(report("onLate", Lateness("lateAfter", 1.0, 2.0)))
    tally.claimed(0.02, "won")
    tally.claimed(7.0, "unknown")
    seen = tally.view()
    job = seen.jobs["a"]
    assert (job.retries, job.permanent_failures, job.breaches) == (1, 1, {"lateAfter": 1})
    assert (seen.catch_ups, seen.leader_transitions, seen.quorum_transitions) == (1, 4, 5)
    assert seen.claims == {"won": 1, "unknown": 1}
    assert sum(seen.claim_delay.counts) == 2
    assert seen.notifiers == {"mail": NotifierTally(3, 1, 2)}


def test_a_job_that_is_gone_takes_its_numbers_along_and_one_that_did_not_change_is_the_same_object() -> None:
    tally = keeper()
    tally.heard(finished())
    first = tally.view()
    assert tally.view().jobs is first.jobs
    tally.configure({}, {"a"})
    assert tally.view().jobs["a"] == first.jobs["a"]
    tally.configure({}, {"b"})
    assert tally.view().jobs == {}
    assert first.jobs["a"].success == 1


def test_other_buckets_count_durations_anew_and_nothing_else() -> None:
    tally = keeper()
    tally.heard(finished())
    tally.configure({"metrics": {"durationBuckets": [1, 10]}}, {"a"})
    tally.heard(finished(took=10.0))
    seen = tally.view()
    assert seen.bounds == (1.0, 10.0)
    assert seen.jobs["a"] == JobTally(success=2, duration=Histogram((1.0, 10.0), (0, 1, 0), 10.0), last_success=NOON)


@pytest.mark.parametrize(
    "web",
    [
        None,
        {"metrics": True},
        {"metrics": {}},
        {"metrics": {"durationBuckets": [2, 1]}},
        {"metrics": {"durationBuckets": [math.inf]}},
        {"metrics": {"durationBuckets": []}},
    ],
)
def test_without_usable_buckets_the_usual_ones_hold(web: object) -> None:
    assert duration_bounds(web) == DURATION_BOUNDS


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    seen = Observed((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        seen.add(value)
    assert seen.value().counts == (2, 2, 1)


def test_counts_do_not_go_through_a_queue_that_can_drop() -> None:
    bus, tally = EventBus(logging.getLogger("test")), keeper()
    bus.counts = tally.heard
    for _ in range(BACKLOG + 10):
        bus.emit(finished())
    assert tally.view().jobs["a"].success == BACKLOG + 10


class LateClock:
    """A clock whose sleeps take longer than asked for, by what is in ``late``; then they never end."""

    def __init__(self, *late: float) -> None:
        self.late = list(late)
        self.boot = 0.0

    def now(self) -> Instant:
        return Instant(NOON + self.boot, self.boot)

    async def sleep(self, seconds: float) -> None:
        if not self.late:
            await anyio.sleep_forever()
        self.boot += seconds + self.late.pop(0)


@pytest.mark.anyio
async def test_the_lag_of_the_event_loop_is_the_last_one_and_the_worst_of_a_minute() -> None:
    async def seen(*late: float) -> tuple[float, float]:
        tally = TallyKeeper(clock=LateClock(*late))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tally.run)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        return tally.view().loop_lag

    assert await seen() == (0.0, 0.0)
    assert list(await seen(0.0, 0.5, 0.25)) == pytest.approx([0.25, 0.5])
    assert await seen(9.0, *[0.0] * LOOKS) == (0.0, 0.0)
    assert await seen(-LOOK) == (0.0, 0.0)
