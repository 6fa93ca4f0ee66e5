"""What is owed inside the window, and what becomes of it (claims.md 12 to 15)."""

from __future__ import annotations

from datetime import UTC
from types import MappingProxyType

from cronstable.core.claim_jobs import known_now
from cronstable.core.claim_log import initial, step
from cronstable.core.claim_records import apply
from cronstable.core.claim_values import Head, Known, Ledger, Loaded, Record, Skip, Start, Wants
from cronstable.core.clock import Instant
from cronstable.core.schedule import Schedule
from cronstable.core.sweep import Claimable, Horizon, Local, Mode, Rules, auto_window, sweep

HOUR = 1_800_000_000
FOREVER = Known()


def job(name: str = "job", *, every: int = 10, coalesce: bool = False, deadline: float | None = None) -> Claimable:
    text = f"*/{every} * * * * * *"
    return Claimable(name, 0, Schedule.parse(text, job_name=name, zone=UTC), coalesce, deadline)


def horizon(*jobs: Claimable, at: float = HOUR, window: float = 60.0) -> Horizon:
    made = Horizon(window)
    made.load(jobs, at)
    return made


def swept(
    horizon: Horizon,
    at: float,
    *,
    ledger: Ledger | None = None,
    known: Known = FOREVER,
    rules: Rules | None = None,
    local: Local | None = None,
    opened_at: float = 0.0,
) -> Wants:
    return sweep(horizon, ledger or Ledger(), known, rules or Rules(), local or Local(), at, opened_at)


def times(wants: Wants) -> list[int]:
    return [start.at - HOUR for start in wants.starts]


def skips(wants: Wants) -> list[tuple[int, str]]:
    return [(skip.at - HOUR, skip.reason) for skip in wants.skips]


def claimed(*starts: Start, floor: int = 0) -> Ledger:
    head = Head("n", "n", 1, "node", "token", HOUR, floor, 1, FOREVER)
    return apply(Ledger(), 1, Record(head, starts))


def test_rule_12_everything_in_the_window_that_nobody_claimed_is_owed_oldest_first() -> None:
    assert times(swept(horizon(job()), HOUR + 15)) == [10, -40, -30, -20, -10, 0]


def test_rule_12_what_is_claimed_is_not_owed() -> None:
    ledger = claimed(Start("job", HOUR), Start("job", HOUR - 20), floor=HOUR - 40)
    assert times(swept(horizon(job()), HOUR + 5, ledger=ledger)) == [-30, -10]


def test_rule_12_nothing_is_swept_before_its_time() -> None:
    made = horizon(job(), at=HOUR + 3600)
    assert max(times(swept(made, HOUR + 5))) == 0
    assert max(times(swept(made, HOUR + 9.9))) == 0
    assert max(times(swept(made, HOUR + 10))) == 10


def test_rule_12_every_sweep_shows_again_what_is_not_decided() -> None:
    made = horizon(job())
    assert times(swept(made, HOUR + 5)) == times(swept(made, HOUR + 6))


def test_rule_12_a_t_once_seen_does_not_age_out_while_it_waits() -> None:
    made = horizon(job(every=20))
    assert times(swept(made, HOUR + 15, rules=Rules(limit=1))) == [-40]
    assert times(swept(made, HOUR + 75, rules=Rules(limit=1))) == [-40]
    made.forget_waiting()
    assert -40 not in times(swept(made, HOUR + 76))


def test_rule_12_a_t_that_no_leader_saw_ages_out() -> None:
    made = horizon(job(every=20))
    made.advance(HOUR + 75)
    assert times(swept(made, HOUR + 75)) == [20, 40, 60]


def test_rule_12_on_time_beats_late_and_the_limit_holds_for_late_starts_only() -> None:
    made = horizon(job("b"), job("a", every=30))
    wants = swept(made, HOUR + 60, rules=Rules(limit=2))
    assert [(s.job, s.at - HOUR, s.late) for s in wants.starts] == [
        ("b", 50, False),
        ("b", 60, False),
        ("a", 60, False),
        ("b", 10, True),
        ("b", 20, True),
    ]
    assert wants.waiting == HOUR + 30


def test_rule_12_what_fell_due_under_an_earlier_term_is_late_however_recent() -> None:
    wants = swept(horizon(job()), HOUR + 2, opened_at=HOUR + 1.5)
    assert wants.starts[-1] == Start("job", HOUR, late=True)


def test_rule_12_forbid_and_replace_coalesce_into_the_newest() -> None:
    wants = swept(horizon(job(coalesce=True)), HOUR + 5)
    assert times(wants) == [0]
    assert skips(wants) == [(at, "coalesced") for at in (-50, -40, -30, -20, -10)]


def test_rule_12_mode_last_coalesces_every_job_and_mode_none_starts_nothing_late() -> None:
    assert times(swept(horizon(job()), HOUR + 5, rules=Rules(Mode.LAST))) == [0]
    wants = swept(horizon(job()), HOUR + 5, rules=Rules(Mode.NONE))
    assert times(wants) == [0]
    assert {reason for _, reason in skips(wants)} == {"catch-up-off"}


def test_rule_12_the_starting_deadline_bounds_late_starts_too() -> None:
    wants = swept(horizon(job(deadline=25)), HOUR + 5)
    assert times(wants) == [0, -20, -10]
    assert skips(wants) == [(-50, "starting-deadline"), (-40, "starting-deadline"), (-30, "starting-deadline")]


def test_rule_12_the_window_follows_the_worst_handover() -> None:
    assert auto_window(7) == 60
    assert auto_window(40) == 120


def test_a_huge_jump_of_the_clock_owes_no_more_than_the_window() -> None:
    made = horizon(job(every=1))
    assert len(swept(made, HOUR + 86_400 * 365).starts) == 60


def test_a_clock_that_goes_back_is_looked_at_anew() -> None:
    made = horizon(job())
    made.advance(HOUR + 7200)
    assert times(swept(made, HOUR + 5)) == [0, -50, -40, -30, -20, -10]


def test_what_waits_holds_the_floor_down() -> None:
    wants = swept(horizon(job(coalesce=True)), HOUR + 5)
    assert wants.waiting == HOUR - 50


def test_rule_13_a_new_job_does_not_back_fill() -> None:
    known = Known("set", HOUR - 1000, MappingProxyType({"job": HOUR - 25}))
    assert times(swept(horizon(job()), HOUR + 5, known=known)) == [0, -20, -10]


def test_rule_13_nothing_is_owed_for_a_job_that_is_gone() -> None:
    made = horizon(job("old"))
    swept(made, HOUR + 5, rules=Rules(limit=1))
    made.load([job("new", every=30)], HOUR + 6)
    assert {start.job for start in swept(made, HOUR + 7).starts} == {"new"}


def test_rule_13_editing_only_the_command_resets_nothing() -> None:
    state = initial("a", "t", 60)
    for at in (100, 200):
        state, _ = step(state, Loaded({"job": "schedule, zone, enabled"}), Instant(at, at))
    assert known_now(state).of("job") == 100
    state, _ = step(state, Loaded({"job": "another schedule"}), Instant(300, 300))
    assert known_now(state).of("job") == 300


def test_rule_14_a_node_does_not_sweep_what_it_started_itself() -> None:
    local = Local(started=lambda name, at: at == HOUR)
    wants = swept(horizon(job()), HOUR + 5, local=local)
    assert times(wants) == [-50, -40, -30, -20, -10]
    assert skips(wants) == [(0, "started-unclaimed")]


def test_rule_15_a_job_is_paused_for_t_when_t_lies_in_the_pause() -> None:
    local = Local(paused=lambda name, at: HOUR - 45 <= at <= HOUR - 15)
    wants = swept(horizon(job()), HOUR + 5, local=local)
    assert times(wants) == [0, -50, -10]
    assert skips(wants) == [(-40, "paused"), (-30, "paused"), (-20, "paused")]


def test_a_run_that_forbids_another_turns_what_is_owed_into_skips() -> None:
    wants = swept(horizon(job(coalesce=True)), HOUR + 5, local=Local(blocked=lambda name: True))
    assert wants.starts == ()
    assert wants.skips[-1] == Skip("job", HOUR, "concurrency-forbid")


def test_what_ages_out_of_the_window_undecided_is_told_once() -> None:
    watched = horizon(job())
    assert swept(watched, HOUR).lost == ()
    # Nothing was claimed, and nobody looked for two windows.
    late = swept(watched, HOUR + 120)
    assert [at - HOUR for _, at in late.lost] == [10, 20, 30, 40, 50, 60]
    assert 60 not in times(late)
    assert 70 in times(late)
    assert swept(watched, HOUR + 120).lost == ()


def test_what_another_node_decided_before_it_aged_out_is_not_lost() -> None:
    watched = horizon(job())
    assert swept(watched, HOUR + 120, ledger=claimed(floor=HOUR + 60)).lost == ()
    assert swept(horizon(job()), HOUR + 120, known=Known("", HOUR + 60)).lost == ()


def test_of_a_long_outage_only_the_oldest_few_are_told_one_by_one() -> None:
    watched = horizon(job(every=1))
    swept(watched, HOUR)
    assert [at - HOUR for _, at in swept(watched, HOUR + 3600).lost] == list(range(1, 21))


def test_what_thousands_of_jobs_lost_is_told_in_pieces_and_all_of_it() -> None:
    watched = horizon(*(job(f"job-{number}") for number in range(300)))
    swept(watched, HOUR)
    pieces = [len(swept(watched, HOUR + 120).lost) for _ in range(3)]
    assert pieces == [1000, 800, 0]
