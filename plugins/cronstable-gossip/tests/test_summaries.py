"""What a node tells the others of its runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

from cronstable_gossip.summaries import Summaries

from cronstable.api import HostSnapshot, Job, JobOptions, LastRun, Outcome, RunKey, RunRecord, Schedule
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost


class Node(FakeHost):
    """A host whose snapshot is given."""

    now: HostSnapshot

    def snapshot(self) -> HostSnapshot:
        """What was given."""
        return self.now


def test_the_last_run_is_told_through_any_number_of_skips_which_are_nothing_new() -> None:
    async def scene() -> None:
        host = Node(VirtualClock.of_loop())
        job = Job("a", "true", Schedule.parse("* * * * *", job_name="a", zone=UTC), JobOptions())
        failed = RunRecord(RunKey("r", "a", 60), Outcome.FAILURE, 3, 60.0, 61.0, 1.0)
        skips = tuple(RunRecord(RunKey("", "a", n), Outcome.SKIPPED, None, None, n, None) for n in range(120, 140))
        host.now = replace(
            FakeHost.snapshot(host), jobs={"a": job}, history={"a": skips}, last_runs={"a": LastRun(failed, failed)}
        )
        summaries = Summaries(host)
        summaries.look()
        (told,) = summaries.now().values()
        assert isinstance(told, dict)
        assert told["last"] == {
            "outcome": "failure",
            "finished_at": "1970-01-01T00:01:01+00:00",
            "duration": 1.0,
            "exit_code": 3,
        }
        host.now = replace(host.now, history={"a": skips[1:]})
        before = summaries.version
        summaries.look()
        assert summaries.version == before

    run_virtual(scene)
