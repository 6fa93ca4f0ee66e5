"""Comparing the jobs of a node with those of a configuration."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from cronstable.api import Job, JobOptions, Schedule
from cronstable.cli.diff import compare


def job(name: str, command: str = "true", **options: Any) -> Job:
    return Job(name, command, Schedule.parse("0 3 * * *", job_name=name, zone=UTC), JobOptions(**options))


def entry(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "schedule": "0 3 * * *", "timezone": "UTC", "command": "true", "enabled": True,
        "captureStdout": False, "captureStderr": True, **changes,
    }  # fmt: skip


def test_equal_jobs_are_no_difference() -> None:
    assert not compare([entry("a")], (job("a"),), same_id=True)


def test_what_comes_and_goes_is_named_in_its_order() -> None:
    found = compare([entry("z"), entry("y"), entry("a")], (job("a"), job("m"), job("b")), same_id=False)
    assert (found.added, found.removed, dict(found.changed)) == (("m", "b"), ("z", "y"), {})


def test_a_changed_field_has_its_old_and_new_value() -> None:
    found = compare([entry("a", command="false", priority="high")], (job("a", enabled=False),), same_id=False)
    assert found.changed == {
        "a": {"command": ("false", "true"), "enabled": (True, False), "priority": ("high", "normal")}
    }


def test_a_field_that_the_node_leaves_out_is_not_compared() -> None:
    assert not compare([entry("a")], (job("a"),), same_id=True).changed
    assert "clusterPolicy" in compare([entry("a", clusterPolicy="EveryNode")], (job("a"),), same_id=False).changed["a"]


def test_a_difference_in_what_nobody_sees_is_still_one() -> None:
    found = compare([entry("a")], (job("a"),), same_id=False)
    assert found.other
    assert found
