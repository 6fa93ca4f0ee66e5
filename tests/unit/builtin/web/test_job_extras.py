"""What a job's entry says about retries, lateness, the queue and what its runs use: only when there is something."""

from __future__ import annotations

import dataclasses
from datetime import UTC
from types import MappingProxyType
from typing import Any

import pytest

from cronstable.api import (
    HostSnapshot,
    Job,
    JobOptions,
    Json,
    Lateness,
    LiveRun,
    Outcome,
    PendingRetry,
    ReloadHealth,
    Resources,
    ResourceSample,
    RunKey,
    RunRecord,
    SlotView,
)
from cronstable.builtin.web.shapes import job_entry, run_entry, runs_document
from cronstable.core.schedule import Schedule

KEY = RunKey("r1", "a", 60)
USED = Resources(1.25, 0.5, 4096, rss=2048, cpu_percent=12.5, taken=3)


def entry(raw: dict[str, Json] | None = None, **facts: object) -> dict[str, Json]:
    options = JobOptions(raw=MappingProxyType(raw or {}))
    job = Job("a", "true", Schedule.parse("* * * * *", job_name="a", zone=UTC), options)
    base: dict[str, object] = {
        "version": "2.0.0",
        "node_name": "node-a",
        "at": 100.0,
        "started_at": 0.0,
        "jobs": {"a": job},
        "live": {},
        "next_fires": {"a": 120},
        "history": {},
        "job_set_id": "v1:0",
        "reload": ReloadHealth(ok=True, at=0.0, last_success=0.0),
    }
    return job_entry(HostSnapshot(**{**base, **facts}), job, 100.0)  # type: ignore[arg-type]  # the test's own keywords


def test_a_job_with_nothing_special_has_none_of_it() -> None:
    assert not {"retry", "sla", "queued", "running_resources"} & entry().keys()


def test_the_next_attempt_has_its_number_limit_time_and_delay() -> None:
    assert entry(retries={"a": PendingRetry(2, None, 160.5, 60.0)})["retry"] == {
        "attempt": 2,
        "maxAttempts": None,
        "nextRetryAt": "1970-01-01T00:02:40.500000+00:00",
        "delaySeconds": 60.0,
    }


def test_limits_are_shown_with_what_breaks_them_and_since_when() -> None:
    limits: dict[str, Json] = {"sla": {"maxRuntimeSeconds": 1}}
    assert entry(limits)["sla"] == {"thresholds": {"maxRuntimeSeconds": 1}, "state": "ok", "breaches": []}
    late = {"a": (Lateness("maxRuntime", 1.0, 40.25, since=60.0),)}
    assert entry(limits, late=late)["sla"] == {
        "thresholds": {"maxRuntimeSeconds": 1},
        "state": "late",
        "breaches": [
            {
                "check": "maxRuntime",
                "since": "1970-01-01T00:01:00+00:00",
                "observed_seconds": 40.25,
                "threshold_seconds": 1.0,
            }
        ],
    }


def test_living_runs_are_summed_up_and_a_finished_one_keeps_its_figures() -> None:
    live = {
        "a": (LiveRun(KEY, 1, 60.0), LiveRun(RunKey("r2", "a", 61), 2, 61.0), LiveRun(RunKey("r3", "a", 62), 3, 62.0))
    }
    assert entry(live=live, resources={"r1": USED, "r2": USED})["running_resources"] == {
        "cpu_percent": 25.0,
        "cpu_seconds": 3.5,
        "rss_bytes": 4096,
        "instances": 2,
    }
    record = RunRecord(KEY, Outcome.SUCCESS, 0, 0.0, 1.0, 1.0, resources=USED)
    assert run_entry(record)["resources"] == {
        "cpu_user_seconds": 1.25,
        "cpu_system_seconds": 0.5,
        "cpu_total_seconds": 1.75,
        "max_rss_bytes": 4096,
        "samples": 3,
    }
    stats = runs_document("a", [record], "node-a")["stats"]
    assert isinstance(stats, dict)
    assert (stats["avg_cpu_seconds"], stats["max_rss_bytes"]) == (1.75, 4096)


def test_a_run_that_waits_in_the_queue_is_shown() -> None:
    assert entry(queued=frozenset({"a"}))["queued"] is True


@pytest.mark.anyio
async def test_the_samples_of_runs_are_told(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a", raw={"monitorResources": {"interval": 0.5}}), make_job("b"))
    samples = (ResourceSample(60.0, 0.25, 1024), ResourceSample(60.5, 0.5, 2048))
    used = dataclasses.replace(USED, samples=samples)
    done = [RunRecord(KEY, Outcome.SUCCESS, 0, 0.0, float(i), 1.0, resources=used) for i in (1, 2)]
    host.set(
        live={"a": (LiveRun(KEY, 7, 60.0), LiveRun(RunKey("r9", "a", 61), 8, 61.0))},
        resources={"r1": used},
        history={"a": (*done, RunRecord(KEY, Outcome.SUCCESS, 0, 0.0, 3.0, 1.0))},
    )
    async with serve() as call:
        told = (await call("GET", "/jobs/a/resources")).json
        one = (await call("GET", "/jobs/a/resources?limit=1")).json
        none = (await call("GET", "/jobs/b/resources")).json
        lost = await call("GET", "/jobs/zz/resources")
    series = [[60.0, 0.25, 1024], [60.5, 0.5, 2048]]
    assert (told["monitored"], told["interval"]) == (True, 0.5)
    assert told["live"] == [
        {
            "started_at": "1970-01-01T00:01:00+00:00",
            "pid": 7,
            "current": {"cpu_percent": 12.5, "cpu_seconds": 1.75, "rss_bytes": 2048},
            "series": series,
        }
    ]
    assert [run["finished_at"][-8:-6] for run in told["runs"]] == ["02", "01"]
    assert told["runs"][0]["resources"]["series"] == series
    assert len(one["runs"]) == 1
    assert none == {"name": "b", "monitored": False, "interval": None, "live": [], "runs": []}
    assert lost.status == 404


@pytest.mark.anyio
async def test_the_kept_list_of_jobs_follows_what_passes(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a", raw={"sla": {"maxRuntimeSeconds": 1}}), make_job("b"))
    live = {"a": (LiveRun(KEY, 7, 60.0),)}
    host.set(live=live)
    steps: list[dict[str, object]] = [
        {"retries": {"a": PendingRetry(1, 3, 160.5, 60.0)}},
        {"retries": {"a": PendingRetry(2, 3, 190.5, 60.0)}},
        {"late": {"a": (Lateness("maxRuntime", 1.0, 40.0, since=60.0),)}},
        {"queued": frozenset({"a"})},
        {"resources": {"r1": USED}},
        {"resources": {"r1": dataclasses.replace(USED, rss=1)}},
    ]
    async with serve() as call:
        seen = [(await call("GET", "/jobs?words=true")).json]
        for step in steps:
            host.set(live=live, **step)
            listed = (await call("GET", "/jobs?words=true")).json
            assert {**listed[0], "scheduled_in": 0} == {**(await call("GET", "/jobs/a")).json, "scheduled_in": 0}
            assert listed != seen[-1]
            seen.append(listed)


@pytest.mark.anyio
async def test_a_job_with_one_slot_for_all_nodes_says_who_has_it(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a", raw={"concurrencyScope": "cluster"}), make_job("b"))
    async with serve() as call:
        unknown = (await call("GET", "/jobs?words=true")).json
        host.set(slots={"a": SlotView(held=False, holder="node-b", refs=0)})
        held = (await call("GET", "/jobs?words=true")).json
    assert unknown[0]["slot"] == {"held": False, "holder": None, "refs": 0}
    assert held[0]["slot"] == {"held": False, "holder": "node-b", "refs": 0}
    assert held[0]["concurrencyScope"] == "cluster"
    assert "slot" not in held[1]
