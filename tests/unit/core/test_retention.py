"""What of a removed job may go (reference 4.7)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cronstable.core.job import Json
from cronstable.core.records import stream
from cronstable.core.retention import (
    LARGEST_HOLE,
    MANIFEST_EVERY,
    Manifest,
    Retention,
    manifest_of,
    manifests_kept,
    record_time,
)

DAY = 86_400.0
GRACE = 7 * DAY
NOW = 1_800_000_000.0


def history(
    names: frozenset[str], *, days: float = 8, until: float = NOW, host: str = "a", every: float = MANIFEST_EVERY
) -> list[Manifest]:
    """Manifests of one node over ``days`` up to ``until``."""
    count = int(days * DAY / every)
    return [Manifest(host, "id", names, until - every * number) for number in range(count, -1, -1)]


def said(*manifests: Manifest) -> Retention:
    return Retention.of(manifests, GRACE, NOW)


def test_a_job_that_nobody_names_any_more_may_go_once_its_newest_record_is_old() -> None:
    retention = said(*history(frozenset({"kept"})))
    assert retention.candidate("runs/gone")
    assert retention.may_go({"finishedAt": NOW - GRACE})
    assert not retention.may_go({"finishedAt": NOW - GRACE + 1})
    assert not retention.candidate("runs/kept")


def test_a_job_that_any_node_named_within_the_grace_stays() -> None:
    manifests = history(frozenset({"kept"}))
    assert not said(*manifests, Manifest("b", "id", frozenset({"rare"}), NOW - GRACE + 1)).candidate("runs/rare")
    assert said(*manifests, Manifest("b", "id", frozenset({"rare"}), NOW - GRACE)).candidate("runs/rare")


def test_nothing_goes_before_the_manifests_cover_a_whole_grace() -> None:
    assert not said().covered
    assert not said(*history(frozenset(), days=6.9)).covered
    assert said(*history(frozenset(), days=7)).covered
    assert not said(*history(frozenset(), days=6.9)).candidate("runs/gone")


def test_a_fleet_that_rested_waits_a_whole_grace_again() -> None:
    old = history(frozenset({"x"}), until=NOW - 30 * DAY)
    assert not said(*old, *history(frozenset({"x"}), days=1)).covered
    assert said(*old, *history(frozenset({"x"}), days=7)).covered


@pytest.mark.parametrize(("hole", "covered"), [(LARGEST_HOLE, True), (LARGEST_HOLE + 60, False)])
def test_a_hole_of_a_day_is_no_rest_and_a_longer_one_is(hole: float, covered: bool) -> None:
    late = history(frozenset(), days=3)
    early = history(frozenset(), days=6, until=late[0].at - hole)
    assert said(*early, *late).covered is covered
    assert said(*history(frozenset(), days=9, until=NOW - hole)).covered is covered


def test_what_one_node_leaves_out_another_fills() -> None:
    a = history(frozenset({"x"}), days=4, until=NOW - 4 * DAY)
    b = history(frozenset({"y"}), days=4, host="b")
    assert said(*a, *b).covered
    assert not said(*a, *b).candidate("runs/x")
    assert not said(*a, *b).candidate("runs/y")


def test_a_manifest_from_the_future_names_its_jobs_and_fills_no_hole() -> None:
    future = Manifest("b", "id", frozenset({"x"}), NOW + 90 * DAY)
    assert not said(*history(frozenset()), future).candidate("runs/x")
    assert not said(*history(frozenset(), days=9, until=NOW - 2 * DAY), future).covered


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("runs/gone", True),
        ("retries/gone", True),
        ("catchup/gone/node-a", True),
        ("slots/a/b", True),
        ("runs/kept", False),
        ("catchup/kept", False),
        ("catchup/kept/node-a", False),
        ("runs/team/kept", False),
        ("runs/kept-not", True),
        ("counters/host", False),
        ("manifests/host", False),
        ("meta", False),
        ("runs", False),
        ("cluster/reboot-ran", False),
        ("artifacts/gone", False),
        ("later/gone", False),
        (stream("runs", "gone" * 200), True),
        (stream("runs", "long" * 200), False),
        (stream("catchup", "gone" * 200, "node"), False),
    ],
)
def test_only_streams_of_a_job_that_nobody_names_are_candidates(name: str, may: bool) -> None:
    retention = said(*history(frozenset({"kept", "team/kept", "long" * 200})))
    assert retention.candidate(name) is may


def test_a_record_that_tells_no_time_stays() -> None:
    retention = said(*history(frozenset()))
    assert not retention.may_go(None)
    assert not retention.may_go({})
    assert not retention.may_go({"at": True, "finishedAt": "yesterday"})
    assert not retention.may_go({"at": "2020-01-01T00:00:00"})
    assert retention.may_go({"at": "2020-01-01T00:00:00Z"})


def test_the_latest_time_of_a_record_counts() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert record_time({"at": at.isoformat(), "notBefore": at.timestamp() + 60, "other": 9e12}) == at.timestamp() + 60


def test_a_manifest_comes_back_from_its_row_and_other_rows_are_none() -> None:
    manifest = Manifest("a", "id", frozenset({"x", "y"}), 5.0)
    assert manifest_of(manifest.row()) == manifest
    rows: list[dict[str, Json]] = [{}, {"names": "x", "at": 5}, {"names": [], "at": True}, {"names": []}]
    rows.append({"names": [5], "at": 5})
    for row in rows:
        assert manifest_of(row) is None


@pytest.mark.parametrize("grace", [DAY, GRACE, 90 * DAY])
def test_a_node_keeps_enough_manifests_to_cover_the_grace(grace: float) -> None:
    manifests = [Manifest("a", "id", frozenset(), NOW - 60 - MANIFEST_EVERY * n) for n in range(manifests_kept(grace))]
    assert Retention.of(manifests, grace, NOW).covered
    assert manifests_kept(None) > 0
