"""Every case of the suite is played by a test, and none of those that were given stands alone."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import pytest
import yaml

Sources: TypeAlias = Mapping[Path, ast.Module]
Case: TypeAlias = Mapping[str, Any]

ONE_DAEMON = "tests/live/test_one_daemon.py"
FAILOVER = "tests/live/test_failover.py"
ELSEWHERE = MappingProxyType(
    {
        "exec-forbid-survives-crash": (
            ONE_DAEMON,
            "test_forbid_does_not_stay_stuck_after_the_daemon_was_killed_during_a_run",
        ),
        "exec-lock-loss-reacquired": (
            FAILOVER,
            "test_a_retry_is_abandoned_by_a_node_that_lost_the_job_while_it_waited_and_the_node_can_lead_again",
        ),
        "exec-reboot-once": (ONE_DAEMON, "test_reboot_runs_once_and_not_again_on_reload"),
        "reload-configmap-symlink-swap": (
            "tests/unit/runtime/test_reload.py",
            "test_a_configmap_whose_data_link_is_swapped_is_noticed",
        ),
        "reload-env-file-change": (ONE_DAEMON, "test_an_edited_env_file_counts_at_the_next_run"),
        "reload-reload-while-long-job-runs": (
            ONE_DAEMON,
            "test_sighup_puts_an_edit_into_force_and_leaves_running_jobs_alone",
        ),
        "reload-removed-job-running": (
            ONE_DAEMON,
            "test_a_job_deleted_while_it_runs_finishes_and_is_never_scheduled_again",
        ),
        "reload-renamed-command-next-run": (ONE_DAEMON, "test_a_changed_command_counts_at_the_next_run"),
        "signal-no-orphans-after-daemon-exit": (
            ONE_DAEMON,
            "test_a_second_signal_ends_the_runs_and_leaves_no_orphan",
        ),
        "signal-sighup-reloads": (ONE_DAEMON, "test_sighup_puts_an_edit_into_force_and_leaves_running_jobs_alone"),
        "signal-sigint-same-as-sigterm": (
            ONE_DAEMON,
            "test_a_stop_signal_lets_the_run_end_starts_nothing_more_and_exits_with_0",
        ),
        "signal-sigterm-drains": (
            ONE_DAEMON,
            "test_a_stop_signal_lets_the_run_end_starts_nothing_more_and_exits_with_0",
        ),
    }
)
"""Cases whose test was written out, with nothing left to read from the file."""
LATER: Mapping[str, str] = MappingProxyType({})
"""Cases that wait for a part that does not exist yet."""
ALIKE_ELSEWHERE = MappingProxyType(
    {
        "lock-loss-reacquired": (
            (FAILOVER, "test_a_leader_frozen_past_its_lease_starts_nothing_when_it_wakes"),
            (FAILOVER, "test_a_store_that_is_away_for_ten_seconds_closes_the_gate_and_its_return_makes_everything_up"),
        )
    }
)
"""Given cases whose likes take a fleet, which no file describes."""
BY_NAME = ("config", "schedule")
"""Kinds of which one test plays every file."""
PLAYED = frozenset({"run", "subreaper", "clock", "daemon", "http", "tail", "look"})
"""Values of ``input.how`` of which one test plays every file."""
PAIRED = frozenset({"config", "exec", "reload", "report", "signal", "web"})
"""Kinds of which each given case has two likes."""


@pytest.fixture(scope="module")
def given(repo: Path) -> Mapping[str, Case]:
    return {
        path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted((repo / "tests/cases").glob("*.yaml"))
    }


@pytest.fixture(scope="module")
def extra(repo: Path) -> Mapping[str, Case]:
    paths = sorted((repo / "tests/cases/extra").glob("*.yaml"))
    return {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in paths}


@pytest.fixture(scope="module")
def words(suite_sources: Sources) -> frozenset[str]:
    """Every text constant of every test but this one."""
    return frozenset(
        node.value
        for path, tree in suite_sources.items()
        if path.name != Path(__file__).name or path.parent.name != "architecture"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def is_named(stem: str, words: frozenset[str]) -> bool:
    names = {stem, f"{stem}.yaml", f"extra/{stem}", stem.removeprefix("web-")}
    return bool(names & words)


def test_a_file_is_called_after_its_kind_and_its_id(given: Mapping[str, Case], extra: Mapping[str, Case]) -> None:
    both = [*given.items(), *extra.items()]
    assert [stem for stem, case in both if stem != f"{case['kind']}-{case['id']}"] == []
    assert [name for name, count in Counter(stem for stem, _ in both).items() if count > 1] == []


def test_every_case_is_played_or_waits_for_a_named_part(
    given: Mapping[str, Case], extra: Mapping[str, Case], words: frozenset[str]
) -> None:
    left = [
        stem
        for stem, case in [*given.items(), *extra.items()]
        if case["kind"] not in BY_NAME
        and case["input"].get("how") not in PLAYED
        and stem not in ELSEWHERE
        and stem not in LATER
        and not is_named(stem, words)
    ]
    assert left == []
    assert set(ELSEWHERE) | set(LATER) <= set(given)


def test_the_tests_that_stand_for_cases_exist(suite_sources: Sources) -> None:
    likes = [where for pair in ALIKE_ELSEWHERE.values() for where in pair]
    missing = [
        f"{path}::{name}"
        for path, name in [*ELSEWHERE.values(), *likes]
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in suite_sources[Path(path)].body)
    ]
    assert missing == []


def test_a_given_case_has_two_more_of_its_kind(given: Mapping[str, Case], extra: Mapping[str, Case]) -> None:
    likes = Counter((case["kind"], case["like"]) for case in extra.values() if "like" in case)
    known = {(case["kind"], case["id"]) for case in given.values()}
    assert set(likes) - known == set()
    alone = [
        stem
        for stem, case in given.items()
        if case["kind"] in PAIRED
        and stem not in LATER
        and likes[case["kind"], case["id"]] + len(ALIKE_ELSEWHERE.get(case["id"], ())) < 2
    ]
    assert alone == []


def test_every_case_of_a_paired_kind_says_what_it_is_like(extra: Mapping[str, Case]) -> None:
    assert [stem for stem, case in extra.items() if case["kind"] in PAIRED and "like" not in case] == []
