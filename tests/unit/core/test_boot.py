"""The marker rules of @reboot: once per boot of the operating system, host and definition (reference 11)."""

from __future__ import annotations

from typing import Any

import pytest

from cronstable.core.boot import Marker, Start, after_marking, boot_id, decide_start

MARK = Marker("node-a", "b1", "digest", 5.0)


def decide(records: Any = (), **changes: Any) -> Start:
    facts: dict[str, Any] = {
        "host": "node-a",
        "boot": "b1",
        "digest": "digest",
        "survives": False,
        "fail_closed": False,
    }
    return decide_start(records, **{**facts, **changes})


def test_a_job_that_ran_in_this_boot_does_not_run_again() -> None:
    assert decide([MARK.encode()]) is Start.RAN


@pytest.mark.parametrize(
    "other",
    [Marker("node-b", "b1", "digest", 5.0), Marker("node-a", "b0", "digest", 5.0), Marker("node-a", "b1", "old", 5.0)],
)
def test_a_marker_counts_for_its_host_its_boot_and_its_definition_alone(other: Marker) -> None:
    assert decide([other.encode()]) is Start.RUN
    assert decide([MARK.encode(), other.encode()]) is Start.RAN


@pytest.mark.parametrize(("fail_closed", "expected"), [(False, Start.RUN_UNMARKED), (True, Start.UNKNOWN)])
def test_what_cannot_be_verified_runs_or_not_as_configured(fail_closed: bool, expected: Start) -> None:
    assert decide(None, fail_closed=fail_closed) is expected
    assert decide([MARK.encode()], boot=None, fail_closed=fail_closed) is expected
    assert after_marking(False, fail_closed=fail_closed) is expected
    assert after_marking(True, fail_closed=fail_closed) is Start.RUN


def test_a_living_process_of_the_daemon_before_is_this_boots_run_whatever_the_store_says() -> None:
    for records in (None, [], [MARK.encode()]):
        assert decide(records, survives=True, fail_closed=True) is Start.SURVIVES


def test_a_marker_of_a_survivor_says_so_and_counts_like_any_other() -> None:
    survivor = Marker("node-a", "b1", "digest", 5.0, survived=True).encode()
    assert survivor["survived"] is True
    assert "survived" not in MARK.encode()
    assert decide([survivor]) is Start.RAN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6F1C7B0E-0d6e-4a55-9b6f-0a1b2c3d4e5f\n", "6f1c7b0e-0d6e-4a55-9b6f-0a1b2c3d4e5f"),
        ("", None),
        (None, None),
        ("  \n", None),
        ("not a boot id", None),
        ("a" * 65, None),
        ("abc", None),
    ],
)
def test_only_what_can_be_an_identity_of_a_boot_is_one(text: str | None, expected: str | None) -> None:
    assert boot_id(text) == expected


def test_a_record_that_is_no_marker_says_nothing() -> None:
    assert decide([{}, {"host": "node-a"}, {"host": 1, "bootId": [], "jobDigest": {}}]) is Start.RUN
