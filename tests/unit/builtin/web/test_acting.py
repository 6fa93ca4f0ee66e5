"""Pausing and resuming over HTTP, and the list of recent runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cronstable.api import (
    ConcurrencyPolicy,
    Day,
    Decided,
    Decision,
    DecisionRecord,
    Done,
    Event,
    Instant,
    Outcome,
    Pause,
    Reason,
    Resume,
    RunFinished,
    RunKey,
    RunRecord,
    StateStatus,
    Verdict,
)
from cronstable.builtin.web import acting

pytestmark = pytest.mark.anyio

NOON = 1_800_000_000.0


async def test_a_pause_lasts_an_hour_unless_something_else_is_asked_for(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        plain = await call("POST", "/jobs/a/pause")
        short = await call(
            "POST", "/jobs/a/pause", body=json.dumps({"durationSeconds": 60, "note": "disk", "by": "ann"}).encode()
        )
        until = await call("POST", "/jobs/a/pause", body=b'{"until": "2027-01-15T09:30:00+01:00"}')
        resumed = await call("POST", "/jobs/a/resume")
        missing = await call("POST", "/jobs/b/pause")
    assert (plain.status, plain.json) == (
        200,
        {
            "paused": {
                "since": "2027-01-15T08:00:00+00:00",
                "until": "2027-01-15T09:00:00+00:00",
                "note": "",
                "by": "anonymous",
                "channel": "api",
            }
        },
    )
    assert (short.json["paused"]["until"], short.json["paused"]["by"]) == ("2027-01-15T08:01:00+00:00", "ann")
    assert until.json["paused"]["until"] == "2027-01-15T08:30:00+00:00"
    assert (resumed.status, resumed.json) == (200, {"paused": None})
    assert missing.status == 404
    assert [command for command, _ in host.commands] == [
        Pause("a", NOON + 3600, "", NOON, "anonymous", "api"),
        Pause("a", NOON + 60, "disk", NOON, "ann", "api"),
        Pause("a", NOON + 1800, "", NOON, "anonymous", "api"),
        Resume("a"),
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("[]", "a JSON object"),
        ("{", "a JSON object"),
        ("[" * 30_000, "a JSON object"),
        ('{"durationSeconds": 0}', "from 1 to 2592000"),
        ('{"durationSeconds": 2592001}', "from 1 to 2592000"),
        ('{"durationSeconds": true}', "from 1 to 2592000"),
        ('{"durationSeconds": NaN}', "from 1 to 2592000"),
        ('{"durationSeconds": 5, "until": "2027-01-15T09:00:00Z"}', "exclude each other"),
        ('{"until": "2027-01-15T09:00:00"}', "with its offset"),
        ('{"until": 5}', "with its offset"),
        ('{"until": "2027-01-15T07:00:00Z"}', "must lie ahead"),
        ('{"until": "2028-01-15T07:00:00Z"}', "must lie ahead"),
        (json.dumps({"note": "x" * 501}), "at most 500"),
        (json.dumps({"by": "x" * 101}), "at most 100"),
        ('{"for": 5}', "unknown key 'for'"),
    ],
)
async def test_a_pause_that_cannot_be_is_refused_with_what_is_wrong(
    serve: Any, host: Any, make_job: Any, body: str, says: str
) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        reply = await call("POST", "/jobs/a/pause", body=body.encode())
    assert reply.status == 400
    assert says in reply.json["error"]
    assert host.commands == []


async def test_activity_counts_a_day_by_the_quarter_and_says_since_when(serve: Any, host: Any, make_job: Any) -> None:
    day = Day(Instant(NOON - 3600, host.clock.boot - 3600))
    for ago, outcome in ((3000, Outcome.FAILURE), (3000, Outcome.SKIPPED), (1, Outcome.SUCCESS), (0, Outcome.SUCCESS)):
        ended = RunRecord(RunKey("r", "a", None), outcome, 0, None, NOON - ago, None)
        day = day.counting(ended, Instant(NOON - ago, host.clock.boot - ago))
    host.add(make_job("a"), make_job("idle"), make_job("empty"))
    host.set(days={"a": day, "empty": Day(Instant(NOON, 0.0)), "gone": day})
    first, last = int(NOON) - 3600, int(NOON)
    known = {"since": "2027-01-15T07:00:00+00:00", "quarters": [[first, 0, 1, 0, 0, 1], [last - 900, 1, 0, 0, 0, 0]]}
    async with serve() as call:
        now = (await call("GET", "/activity")).json
        again = (await call("GET", "/activity?limit=1")).json
        host.clock.advance(24 * 3600 - 1800)
        later = (await call("GET", "/activity")).json
        host.clock.advance(24 * 3600)
        over = (await call("GET", "/activity")).json
    assert (
        now == again == {"jobs": {}, "days": {"a": {**known, "quarters": [*known["quarters"], [last, 1, 0, 0, 0, 0]]}}}
    )
    assert later["days"]["a"]["quarters"] == [[last - 900, 1, 0, 0, 0, 0], [last, 1, 0, 0, 0, 0]]
    assert over == {"jobs": {}, "days": {}}


async def test_activity_has_the_runs_of_every_job_newest_first_and_an_entity_tag(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a"), make_job("idle"))
    rows = [
        RunRecord(RunKey(f"r{n}", "a", None), outcome, 0, NOON + n, NOON + n + 1, 1.0)
        for n, outcome in enumerate((Outcome.SUCCESS, Outcome.FAILURE))
    ]
    skip = RunRecord(RunKey("", "a", 1), Outcome.SKIPPED, None, None, NOON, None, skip_reason="paused")
    host.set(history={"a": (*rows, skip)})
    async with serve() as call:
        full = await call("GET", "/activity")
        one = await call("GET", "/activity?limit=1")
        same = await call("GET", "/activity", {"If-None-Match": full.headers["etag"]})
        wrong = await call("GET", "/activity?limit=0")
    assert [run["outcome"] for run in full.json["jobs"]["a"]] == ["failure", "success"]
    assert set(full.json["jobs"]) == {"a"}
    assert one.json == {
        "jobs": {
            "a": [
                {
                    "started_at": "2027-01-15T08:00:01+00:00",
                    "finished_at": "2027-01-15T08:00:02+00:00",
                    "outcome": "failure",
                }
            ]
        },
        "days": {},
    }
    assert (same.status, same.body) == (304, b"")
    assert wrong.status == 400


def decided(
    verdict: Verdict, reason: Reason, run_id: str | None = None, at: int | None = None, **evidence: Any
) -> Event:
    return Decided(DecisionRecord("node-a", "a", at, NOON, Decision(verdict, reason, evidence), run_id))


def finished(run_id: str) -> Event:
    return RunFinished(RunRecord(RunKey(run_id, "a", None), Outcome.UNKNOWN, None, None, NOON, None))


OTHERS = (
    decided(Verdict.SKIP, Reason.SLOT_HELD, at=int(NOON), holder="node-b"),
    decided(Verdict.RUN, Reason.MANUAL, "another"),
    finished("another"),
)
"""What happens to the job meanwhile and is not about the run that was asked for."""


@pytest.mark.parametrize(
    ("events", "status", "says"),
    [
        ((decided(Verdict.RUN, Reason.MANUAL, "run-7"),), 200, "run-7"),
        ((finished("run-7"),), 200, "run-7"),
        (
            (decided(Verdict.SKIP, Reason.SLOT_HELD, holder="node-b"),),
            409,
            "node-b runs the job, and its concurrencyScope is cluster",
        ),
        (
            (decided(Verdict.SKIP, Reason.STORE_UNAVAILABLE, what="slot"),),
            409,
            "not started: the store did not answer, so that it could not be claimed or looked up",
        ),
        ((), 200, "run-7"),
    ],
)
async def test_a_start_that_other_nodes_are_asked_about_answers_what_came_of_it(
    serve: Any,
    host: Any,
    make_job: Any,
    monkeypatch: pytest.MonkeyPatch,
    events: tuple[Event, ...],
    status: int,
    says: str,
) -> None:
    monkeypatch.setattr(acting, "SLOT_ANSWER", 5.0 if events else 0.05)
    shared = {"raw": {"concurrencyScope": "cluster"}, "concurrency_policy": ConcurrencyPolicy.FORBID}
    host.add(make_job("a", **shared), make_job("b", **shared))
    host.set(state=StateStatus("filesystem", None, None))
    host.answers["StartRun"] = Done("run-7")
    host.then["StartRun"] = (*OTHERS, *events)
    async with serve() as call:
        reply = await call("POST", "/jobs/a/start")
    assert (reply.status, says) == (status, reply.json.get("error") or reply.json["run_id"])


async def test_without_a_store_or_a_slot_nobody_is_waited_for(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("own", concurrency_policy=ConcurrencyPolicy.FORBID))
    host.add(make_job("free", raw={"concurrencyScope": "cluster"}, concurrency_policy=ConcurrencyPolicy.ALLOW))
    async with serve() as call:
        host.set(state=StateStatus("filesystem", None, None))
        replies = [await call("POST", f"/jobs/{name}/start") for name in ("own", "free")]
        host.add(make_job("a", raw={"concurrencyScope": "cluster"}, concurrency_policy=ConcurrencyPolicy.FORBID))
        host.set(state=None)
        replies.append(await call("POST", "/jobs/a/start"))
    assert [reply.status for reply in replies] == [200, 200, 200]
