"""What a job is told about its occurrence (DESIGN 4, 'The job can fence itself')."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.occurrence import occurrence_env, occurrence_id, scheduled_at_text
from cronstable.core.runs import RunKey, Trigger

KEY = RunKey("r1", "backup", 1767225600)


def test_every_run_gets_the_promised_variables() -> None:
    env = occurrence_env(KEY, "node-a", "prod", catchup=False, fence=7)
    assert env == {
        "CRONSTABLE_JOB_NAME": "backup",
        "CRONSTABLE_SCHEDULED_AT": "2026-01-01T00:00:00Z",
        "CRONSTABLE_OCCURRENCE_ID": occurrence_id("prod", "backup", 1767225600),
        "CRONSTABLE_ATTEMPT": "0",
        "CRONSTABLE_RUN_ID": "r1",
        "CRONSTABLE_NODE": "node-a",
        "CRONSTABLE_CATCHUP": "0",
        "CRONSTABLE_FENCE": "7",
    }


def test_a_fence_that_cannot_be_promised_is_left_out() -> None:
    assert "CRONSTABLE_FENCE" not in occurrence_env(KEY, "n", "d", catchup=True)


def test_a_late_start_says_so() -> None:
    assert occurrence_env(KEY, "n", "d", catchup=True)["CRONSTABLE_CATCHUP"] == "1"


def test_all_attempts_at_one_occurrence_share_its_id() -> None:
    retry = replace(KEY, run_id="r2", attempt=1, trigger=Trigger.RETRY)
    first, second = (occurrence_env(key, "n", "d", catchup=False) for key in (KEY, retry))
    assert first["CRONSTABLE_OCCURRENCE_ID"] == second["CRONSTABLE_OCCURRENCE_ID"]
    assert second["CRONSTABLE_ATTEMPT"] == "1"


def test_a_manual_run_has_no_time_and_an_occurrence_of_its_own() -> None:
    keys = [RunKey(run_id, "backup", None, trigger=Trigger.MANUAL) for run_id in ("m1", "m2")]
    one, two = (occurrence_env(key, "n", "d", catchup=False) for key in keys)
    assert one["CRONSTABLE_SCHEDULED_AT"] == ""
    assert one["CRONSTABLE_OCCURRENCE_ID"] != two["CRONSTABLE_OCCURRENCE_ID"]


def test_a_retry_of_a_manual_run_keeps_the_occurrence_of_its_first_attempt() -> None:
    first = occurrence_env(RunKey("m1", "backup", None), "n", "d", catchup=False)
    again = occurrence_env(RunKey("m2", "backup", None, 1), "n", "d", catchup=False, first_run_id="m1")
    assert again["CRONSTABLE_OCCURRENCE_ID"] == first["CRONSTABLE_OCCURRENCE_ID"]


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_different_deployments_and_jobs_never_share_an_occurrence(one: tuple[str, str], two: tuple[str, str]) -> None:
    assert (occurrence_id(*one, 60) == occurrence_id(*two, 60)) == (one == two)


def test_the_time_is_written_with_whole_seconds_in_utc() -> None:
    assert scheduled_at_text(0) == "1970-01-01T00:00:00Z"
