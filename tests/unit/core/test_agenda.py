"""The agenda: strictly future, each slot once, replays in turn, no storm after a gap, reload by difference."""

from __future__ import annotations

from datetime import UTC

import pytest

from cronstable.core.agenda import Agenda, Batch
from cronstable.core.job import Job, JobOptions
from cronstable.core.schedule import Schedule

MINUTE = 60
NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600


def job(name: str, schedule: str = "* * * * *", *, enabled: bool = True, command: str = "true") -> Job:
    return Job(name, command, Schedule.parse(schedule, job_name=name, zone=UTC), JobOptions(enabled=enabled))


def slots(batch: Batch) -> list[list[tuple[str, int]]]:
    return [[(d.job.name, d.scheduled_at - NOON) for d in due] for due in batch.rounds]


def agenda_at(wall: float, *jobs: Job) -> Agenda:
    agenda = Agenda()
    agenda.load(jobs, wall)
    return agenda


def test_the_slot_in_progress_at_start_never_fires() -> None:
    agenda = agenda_at(NOON, job("a"))
    assert agenda.next_at == NOON + MINUTE
    assert slots(agenda.take(NOON + 0.5)) == []


def test_a_slot_is_handed_out_once() -> None:
    agenda = agenda_at(NOON - 1, job("a"))
    assert slots(agenda.take(NOON)) == [[("a", 0)]]
    assert slots(agenda.take(NOON)) == []


def test_jobs_due_at_one_instant_come_in_configuration_order_in_one_round() -> None:
    agenda = agenda_at(NOON - 1, job("z"), job("a"), job("m"))
    assert slots(agenda.take(NOON)) == [[("z", 0), ("a", 0), ("m", 0)]]


def test_a_slow_pass_replays_each_missed_slot_in_successive_rounds() -> None:
    agenda = agenda_at(NOON - 1, job("tick", "* * * * * * *"))
    assert slots(agenda.take(NOON + 2.4)) == [[("tick", 0)], [("tick", 1)], [("tick", 2)]]


def test_a_backward_step_defers_and_never_fires_a_slot_again() -> None:
    agenda = agenda_at(NOON - 1, job("a"))
    agenda.take(NOON)
    assert slots(agenda.take(NOON - 3600)) == []
    assert slots(agenda.take(NOON)) == []
    assert slots(agenda.take(NOON + MINUTE)) == [[("a", MINUTE)]]


def test_after_a_suspend_of_hours_the_old_slots_are_skipped_and_said() -> None:
    agenda = agenda_at(NOON - 1, job("a"))
    batch = agenda.take(NOON + 7200 + 30)
    assert slots(batch) == []
    assert [(m.job.name, m.first - NOON, m.last - NOON) for m in batch.missed] == [("a", 0, 7200)]
    assert agenda.next_at == NOON + 7260


def test_after_a_suspend_only_the_newest_slot_runs_and_only_if_it_is_recent() -> None:
    agenda = agenda_at(NOON - 1, job("a"))
    batch = agenda.take(NOON + 7200 + 4)
    assert slots(batch) == [[("a", 7200)]]
    assert [(m.first - NOON, m.last - NOON) for m in batch.missed] == [(0, 7140)]


def test_a_per_second_job_runs_once_and_not_in_a_burst_after_a_gap() -> None:
    agenda = agenda_at(NOON - 1, job("tick", "* * * * * * *"))
    assert slots(agenda.take(NOON + 15.2)) == [[("tick", 15)]]


def test_a_reload_that_keeps_the_schedule_keeps_the_next_fire_even_on_the_very_minute() -> None:
    agenda = agenda_at(NOON - 30, job("a"))
    agenda.load([job("a", command="other")], NOON + 0.2)
    (due,) = agenda.take(NOON + 0.3).rounds
    assert [(d.scheduled_at - NOON, d.job.command) for d in due] == [(0, "other")]


def test_a_reload_that_changes_the_schedule_seeds_strictly_into_the_future() -> None:
    agenda = agenda_at(NOON - 30, job("a"))
    agenda.load([job("a", "*/5 * * * *")], NOON + 0.2)
    assert agenda.next_at == NOON + 300


def test_a_changed_schedule_never_fires_a_slot_again_that_the_job_already_had() -> None:
    agenda = agenda_at(NOON - 1, job("a"))
    agenda.take(NOON)
    agenda.load([job("a", "*/1 * * * *")], NOON - 5)
    assert agenda.next_at == NOON + MINUTE


def test_a_removed_job_is_never_due_again() -> None:
    agenda = agenda_at(NOON - 1, job("a"), job("b"))
    agenda.load([job("b")], NOON - 1)
    assert slots(agenda.take(NOON)) == [[("b", 0)]]


@pytest.mark.parametrize("quiet", [job("off", enabled=False), job("boot", "@reboot"), job("never", "0 0 31 2 *")])
def test_jobs_without_a_next_fire_never_wake_anybody(quiet: Job) -> None:
    agenda = agenda_at(NOON, quiet)
    assert agenda.next_at is None
    assert slots(agenda.take(NOON + 86_400)) == []


def test_a_clock_that_was_wrong_by_a_year_does_not_silence_jobs_for_a_year() -> None:
    agenda = agenda_at(NOON + 366 * 86_400, job("a"))
    agenda.reseed(NOON)
    assert agenda.next_at == NOON + MINUTE
