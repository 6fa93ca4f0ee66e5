"""What a message says, as values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.hooks import JobEvent, Lateness
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import Outcome, Resources, RunKey, RunRecord
from cronstable.core.schedule import Schedule
from cronstable.plugin.protocols import LeaderChange, QuorumLoss, Report
from cronstable.plugin.variables import OUTPUT_TAIL, tail, template_variables

WALL = 1_767_225_600.0

RECORD = RunRecord(
    key=RunKey("r1", "backup", int(WALL), attempt=2),
    outcome=Outcome.FAILURE,
    exit_code=3,
    started_at=WALL,
    finished_at=WALL + 2,
    duration=1.5,
    fail_reason="failsWhen=nonzeroReturn and retcode=3",
    stdout="done\n",
    stderr="disk full\n",
)


def report(event: JobEvent = "onFailure", record: RunRecord = RECORD, facts: Lateness | None = None) -> Report:
    options = JobOptions(environment=(("LANG", "C"), ("TEAM", "ops")))
    schedule = Schedule.parse("0 2 * * *", job_name="backup", zone=UTC)
    return Report(event, Job("backup", ("backup", "--to", "a b"), schedule, options), record, "host-1", facts)


def test_a_failure_has_its_reason_and_the_tail_of_both_streams_in_words() -> None:
    found = template_variables(report())
    assert found["subject"] == "Cron job 'backup' failed"
    assert found["message"] == (
        "job: backup\n"
        "reason: failsWhen=nonzeroReturn and retcode=3\n"
        "host: host-1\n"
        "exit code: 3\n"
        "started: 2026-01-01T00:00:00+00:00\n"
        "took: 1.5 s\n"
        "attempt: 3\n"
        "run: r1\n\n"
        "stdout:\ndone\n\n"
        "stderr:\ndisk full\n"
    )


def test_the_variables_of_the_reference_are_all_there() -> None:
    found = template_variables(report(), {"LANG": "de", "HOME": "/root"})
    expected = {
        "event": "onFailure",
        "name": "backup",
        "success": False,
        "fail_reason": "failsWhen=nonzeroReturn and retcode=3",
        "stdout": "done\n",
        "stderr": "disk full\n",
        "exit_code": 3,
        "command": "backup --to 'a b'",
        "shell": "/bin/sh",
        "environment": {"LANG": "C", "HOME": "/root", "TEAM": "ops"},
        "host": "host-1",
        "schedule": "0 2 * * *",
        "started_at": "2026-01-01T00:00:00+00:00",
        "run_id": "r1",
        "cpu_seconds": None,
        "max_rss_bytes": None,
        "sla_check": None,
    }
    assert {key: found[key] for key in expected} == expected


def test_what_a_run_used_is_there_when_it_was_sampled() -> None:
    found = template_variables(report(record=replace(RECORD, resources=Resources(1.0, 0.5, 4096))))
    keys = ("cpu_seconds", "cpu_user_seconds", "cpu_system_seconds", "max_rss_bytes")
    assert [found[key] for key in keys] == [1.5, 1.0, 0.5, 4096]


def test_a_late_job_says_which_limit_and_by_how_much() -> None:
    found = template_variables(report("onLate", facts=Lateness("lateAfterSeconds", 60, 600, WALL)))
    assert found["subject"] == "Cron job 'backup' is late"
    assert found["sla_check"] == "lateAfterSeconds"
    assert (found["threshold_seconds"], found["observed_seconds"]) == (60, 600)
    assert found["last_success_at"] == "2026-01-01T00:00:00+00:00"
    assert "reason: lateAfterSeconds: 600 s, the limit is 60 s" in str(found["message"])


def test_a_success_that_said_nothing_has_an_empty_message() -> None:
    quiet = replace(RECORD, outcome=Outcome.SUCCESS, stdout="", stderr=None, fail_reason=None)
    assert template_variables(report("onSuccess", quiet))["message"] == ""
    loud = replace(quiet, stdout="12 files\n")
    assert "12 files" in str(template_variables(report("onSuccess", loud))["message"])


def test_events_of_the_cluster_have_the_same_variables_and_their_own() -> None:
    of_job = template_variables(report())
    won = template_variables(LeaderChange("node-a", True, "node-a", WALL, "elected at start", "host-1"))
    lost = template_variables(LeaderChange("node-a", False, "node-b", WALL, "the view changed", "host-1"))
    alone = template_variables(QuorumLoss("node-a", WALL, "the view changed", "host-1"))
    for found in (won, lost, alone):
        assert set(found) >= set(of_job) - {"outcome"}
        assert (found["name"], found["host"], found["success"]) == ("node-a", "host-1", False)
    assert (won["event"], won["role"], won["is_leader"]) == ("leader_change", "leader", True)
    assert won["message"] == "Node node-a became the leader (elected at start)."
    assert (lost["role"], lost["leader"]) == ("follower", "node-b")
    assert lost["subject"] == "node node-a is no longer the leader"
    assert (alone["event"], alone["quorate"]) == ("quorum_loss", False)


def test_output_is_cut_to_its_tail_with_a_mark() -> None:
    long = "first\n" + "x" * OUTPUT_TAIL + "\nlast"
    found = template_variables(report(record=replace(RECORD, stdout=long)))
    assert found["stdout_truncated"] is True
    assert found["stderr_truncated"] is False
    text = str(found["stdout"])
    assert text.startswith("[... 11 bytes cut ...]\n")
    assert text.endswith("\nlast")
    assert "first" not in text


@given(st.text(max_size=80), st.integers(1, 40))
def test_a_tail_is_never_longer_than_its_limit_and_never_half_a_character(text: str, limit: int) -> None:
    kept, cut = tail(text, limit)
    assert kept is not None
    if cut:
        end = kept.partition("\n")[2]
        assert len(end.encode("utf-8", "replace")) <= limit
        assert text.encode("utf-8", "replace").decode().endswith(end)
    else:
        assert kept == text
