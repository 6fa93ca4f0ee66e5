"""Retry records: what stands in the store, which one decides, and what a starting or scanning node makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.retry import RetryPolicy
from cronstable.core.retry_records import (
    OVERDUE,
    Claim,
    Facts,
    Handoff,
    Leave,
    Pending,
    Place,
    Rearm,
    RetryRecord,
    Settle,
    Settled,
    Settling,
    at_boot,
    decode,
    encode,
    in_microseconds,
    in_scan,
    still_mine,
)

NOW = 1_800_000_000.0
PLACE = Place(2, "run0", int(NOW) - 100, "digest", NOW + 5, NOW - 5)
MINE = Pending(PLACE, "node-a", "token", NOW - 5)
FACTS = Facts("digest", enabled=True, reboot=False, policy=RetryPolicy(3))

INSTANTS = st.floats(1e9, 4e9, allow_nan=False).map(in_microseconds)
TEXTS = st.text(max_size=20)
VOIDS = st.lists(TEXTS, max_size=3).map(tuple)
PLACES = st.builds(
    Place,
    st.integers(1, 10**6),
    TEXTS,
    st.none() | st.integers(10**9, 4 * 10**9),
    TEXTS,
    INSTANTS,
    INSTANTS,
)
RECORDS: st.SearchStrategy[RetryRecord] = st.one_of(
    st.builds(Pending, PLACES, TEXTS, TEXTS, INSTANTS, st.none() | TEXTS, st.none() | TEXTS, VOIDS),
    st.builds(Handoff, PLACES, TEXTS, TEXTS, INSTANTS, VOIDS),
    st.builds(Settled, st.sampled_from(Settling), TEXTS, TEXTS, INSTANTS, st.none() | st.integers(0, 10**6)),
)


@given(RECORDS)
def test_a_record_comes_back_as_it_was_written(record: RetryRecord) -> None:
    assert decode(encode(record)) == record


def test_a_pending_record_has_the_documented_fields() -> None:
    assert encode(replace(MINE, claimed_from="node-b", boot_id="b")) == {
        "kind": "pending",
        "attempt": 2,
        "firstRunId": "run0",
        "scheduledAt": "2027-01-15T07:58:20.000000Z",
        "jobDigest": "digest",
        "notBefore": "2027-01-15T08:00:05.000000Z",
        "armedAt": "2027-01-15T07:59:55.000000Z",
        "host": "node-a",
        "token": "token",
        "at": "2027-01-15T07:59:55.000000Z",
        "claimedFrom": "node-b",
        "bootId": "b",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"kind": None},
        {"attempt": 0},
        {"attempt": True},
        {"attempt": "2"},
        {"notBefore": "soon"},
        {"notBefore": "2027-01-15T08:00:05"},
        {"notBefore": 5},
        {"host": None},
        {"firstRunId": 4},
        {"claimedFrom": 4},
        {"scheduledAt": "x"},
    ],
)
def test_what_is_no_record_leaves_nothing_to_do(change: dict[str, Any]) -> None:
    data = encode(MINE)
    assert decode(data) == MINE
    assert decode({**data, **change}) is None
    assert decode({key: value for key, value in data.items() if key not in change} | change) is None


def test_a_settled_record_with_an_unknown_reason_is_no_record() -> None:
    settled = encode(Settled(Settling.LAUNCHED, "node-a", "t", NOW))
    assert decode({**settled, "reason": "whatever"}) is None


# -- at boot


@pytest.mark.parametrize(("ahead", "delay"), [(5.0, 5.0), (0.0, 0.0), (-3600.0, 0.0), (3600.0, FACTS.policy.longest)])
def test_an_own_attempt_is_waited_for_until_its_absolute_time_and_no_longer_than_its_policy_has_it(
    ahead: float, delay: float
) -> None:
    mine = replace(MINE, place=replace(PLACE, not_before=NOW + ahead))
    assert at_boot(mine, FACTS, host="node-a", boot_id=None, now=NOW) == Rearm(mine, delay)


SETTLED_BY = [
    (replace(FACTS, digest=None), Settling.JOB_REMOVED),
    (replace(FACTS, enabled=False), Settling.DISABLED),
    (replace(FACTS, digest="other"), Settling.CONFIG_CHANGED),
    (replace(FACTS, policy=RetryPolicy(1)), Settling.EXHAUSTED),
    (replace(FACTS, last_start=NOW - 4), Settling.SUPERSEDED_BY_RUN),
    (replace(FACTS, last_scheduled=int(NOW) - 99), Settling.SUPERSEDED_BY_RUN),
]


def test_a_manual_run_in_between_does_not_end_a_ladder_that_is_taken_up_again() -> None:
    assert isinstance(at_boot(MINE, replace(FACTS, last_start=NOW - 4), host="node-a", boot_id=None, now=NOW), Rearm)


@pytest.mark.parametrize(("facts", "reason"), [one for one in SETTLED_BY if one[0].last_start is None])
def test_an_own_attempt_that_makes_no_sense_any_more_is_settled_at_boot(facts: Facts, reason: Settling) -> None:
    assert at_boot(MINE, facts, host="node-a", boot_id=None, now=NOW) == Settle(reason)


def test_an_own_attempt_older_than_the_starting_deadline_is_settled() -> None:
    facts = replace(FACTS, deadline=60.0)
    late = replace(MINE, place=replace(PLACE, not_before=NOW - 61))
    assert at_boot(late, facts, host="node-a", boot_id=None, now=NOW) == Settle(Settling.STARTING_DEADLINE)
    assert isinstance(at_boot(MINE, facts, host="node-a", boot_id=None, now=NOW + 64), Rearm)


@pytest.mark.parametrize(
    ("then", "now", "settled"), [("b1", "b2", True), ("b1", "b1", False), (None, "b1", False), ("b1", None, False)]
)
def test_an_attempt_of_a_reboot_job_is_settled_only_after_a_real_reboot(
    then: str | None, now: str | None, settled: bool
) -> None:
    mine = replace(MINE, boot_id=then)
    found = at_boot(mine, replace(FACTS, reboot=True), host="node-a", boot_id=now, now=NOW)
    assert found == (Settle(Settling.REBOOTED) if settled else Rearm(mine, 5.0))
    assert isinstance(at_boot(mine, FACTS, host="node-a", boot_id=now, now=NOW), Rearm)


@pytest.mark.parametrize(
    "newest",
    [
        None,
        replace(MINE, host="node-b"),
        Handoff(PLACE, "node-a", "t", NOW),
        Settled(Settling.LAUNCHED, "node-a", "t", NOW),
    ],
)
def test_what_is_not_an_own_wait_is_left_alone_at_boot(newest: RetryRecord | None) -> None:
    assert at_boot(newest, FACTS, host="node-a", boot_id=None, now=NOW) == Leave()


# -- in a scan


def scan(newest: RetryRecord | None, facts: Facts = FACTS, now: float = NOW, grace: float = OVERDUE) -> object:
    return in_scan(newest, facts, unsure=None, grace=grace, now=now)


def test_a_handoff_is_claimed_at_once() -> None:
    assert scan(Handoff(PLACE, "node-b", "t", NOW)) == Claim(PLACE, "node-b")


def test_an_attempt_of_another_node_is_claimed_only_when_it_is_overdue() -> None:
    due = PLACE.not_before + OVERDUE
    assert scan(MINE, now=due - 0.001) == Leave(due)
    assert scan(MINE, now=due) == Claim(PLACE, "node-a")


def test_where_the_other_node_cannot_start_it_any_more_nothing_is_waited_for_but_the_attempts_own_time() -> None:
    assert scan(MINE, now=NOW + 4.9, grace=0.0) == Leave(NOW + 5)
    assert scan(MINE, now=NOW + 5.0, grace=0.0) == Claim(PLACE, "node-a")


def test_an_own_record_of_unknown_fate_is_claimed_at_once() -> None:
    assert in_scan(MINE, FACTS, unsure=MINE, grace=OVERDUE, now=NOW) == Claim(PLACE, "node-a")
    assert isinstance(in_scan(MINE, FACTS, unsure=replace(MINE, token="x"), grace=OVERDUE, now=NOW), Leave)


@pytest.mark.parametrize(("facts", "reason"), SETTLED_BY)
def test_a_claim_is_validated_and_a_different_configuration_is_no_reason_to_settle(
    facts: Facts, reason: Settling
) -> None:
    elsewhere = {Settling.JOB_REMOVED, Settling.CONFIG_CHANGED, Settling.DISABLED}
    expected = Leave() if reason in elsewhere else Settle(reason)
    assert scan(MINE, facts, now=NOW + 100) == expected


@pytest.mark.parametrize("newest", [None, Settled(Settling.CANCELLED, "node-b", "t", NOW)])
def test_nothing_is_claimed_where_nothing_is_left_to_do(newest: RetryRecord | None) -> None:
    assert scan(newest, now=NOW + 1000) == Leave()


def test_a_run_is_compared_with_the_instant_of_arming_wherever_the_record_has_been_since() -> None:
    handed = Handoff(PLACE, "node-b", "t", NOW + 50)
    assert scan(handed, replace(FACTS, last_start=NOW - 4), now=NOW + 60) == Settle(Settling.SUPERSEDED_BY_RUN)
    assert scan(handed, replace(FACTS, last_start=NOW - 6), now=NOW + 60) == Claim(PLACE, "node-b")


# -- whose it is


def test_the_newest_record_decides_whose_an_attempt_is() -> None:
    launched = Settled(Settling.LAUNCHED, "node-a", "t", NOW, 2)
    theirs = replace(MINE, host="node-b", token="other")
    assert still_mine([theirs, MINE], MINE, [])
    assert still_mine([MINE, launched], MINE, [launched])
    assert not still_mine([MINE, launched], MINE, [])
    assert not still_mine([MINE, theirs], MINE, [launched])
    assert not still_mine([MINE, theirs, launched], MINE, [launched])
    assert not still_mine([], MINE, [])
