"""Why a job ran, was skipped or waits, as the API tells it; and which run a row of history is about."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from cronstable.api import (
    Decision,
    DecisionRecord,
    FleetReport,
    NodeDecisions,
    Outcome,
    Reason,
    RunKey,
    RunRecord,
    Trigger,
    Verdict,
)
from cronstable.builtin.web import everywhere

pytestmark = pytest.mark.anyio

NOON = 1_800_000_000


def decided(
    job: str, scheduled_at: int | None, verdict: Verdict, reason: Reason, run_id: str | None = None, **evidence: Any
) -> DecisionRecord:
    at = (scheduled_at or NOON) + 0.25
    decision = Decision(verdict, reason, MappingProxyType(evidence))
    return DecisionRecord("node-a", job, scheduled_at, at, decision, run_id, verdict is Verdict.DEFER)


async def test_decisions_are_newest_first_with_all_that_is_known(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"), make_job("b"))
    host.decided = [
        decided("a", NOON, Verdict.SKIP, Reason.NOT_LEADER, leader="node-b", quorate=True),
        decided("b", NOON, Verdict.RUN, Reason.LEADER, "of-b"),
        decided("a", NOON + 60, Verdict.RUN, Reason.LEADER, "0123", fence=7),
        decided("a", NOON + 120, Verdict.DEFER, Reason.QUEUED, "4567", behind="0123"),
        decided("a", None, Verdict.RUN, Reason.MANUAL, "89ab"),
    ]
    async with serve() as call:
        reply = await call("GET", "/jobs/a/decisions")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert list(reply.json) == ["job", "decisions"]
    assert reply.json["job"] == "a"
    rows = reply.json["decisions"]
    assert [(row["verdict"], row["reason"], row["run_id"]) for row in rows] == [
        ("run", "manual", "89ab"),
        ("defer", "queued", "4567"),
        ("run", "leader", "0123"),
        ("skip", "not-leader", None),
    ]
    assert rows[0]["scheduled_at"] is None
    assert [row["provisional"] for row in rows] == [False, True, False, False]
    assert rows[3] == {
        "node": "node-a",
        "scheduled_at": "2027-01-15T08:00:00+00:00",
        "decided_at": "2027-01-15T08:00:00.250000+00:00",
        "verdict": "skip",
        "reason": "not-leader",
        "evidence": {"leader": "node-b", "quorate": True},
        "run_id": None,
        "provisional": False,
    }


async def test_a_limit_keeps_the_newest_decisions_and_without_one_there_are_a_hundred(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a"))
    host.decided = [decided("a", NOON + i, Verdict.RUN, Reason.NO_ELECTION) for i in range(150)]
    async with serve() as call:
        two = (await call("GET", "/jobs/a/decisions?limit=2")).json["decisions"]
        some = (await call("GET", "/jobs/a/decisions")).json["decisions"]
        every = (await call("GET", "/jobs/a/decisions?limit=10000")).json["decisions"]
    assert [row["scheduled_at"][14:19] for row in two] == ["02:29", "02:28"]
    assert (len(some), len(every)) == (100, 150)


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "1.5", "٣", "9999999999"])
async def test_a_limit_of_decisions_that_is_no_count_is_refused(
    serve: Any, host: Any, make_job: Any, limit: str
) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        reply = await call("GET", f"/jobs/a/decisions?limit={quote(limit)}")
    assert reply.status == 400
    assert "limit" in reply.json["error"]


async def test_decisions_of_a_job_that_is_none_are_404_and_of_one_without_any_an_empty_list(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a/b 50%"))
    host.decided = [decided("gone", NOON, Verdict.RUN, Reason.LEADER)]
    async with serve() as call:
        gone = await call("GET", "/jobs/gone/decisions")
        empty = await call("GET", f"/jobs/{quote('a/b 50%', safe='')}/decisions")
        posted = await call("POST", "/jobs/gone/decisions")
    assert (gone.status, gone.json) == (404, {"error": "there is no job 'gone'"})
    assert (empty.status, empty.json) == (200, {"job": "a/b 50%", "decisions": []})
    assert posted.status == 405


async def test_evidence_that_json_cannot_say_as_a_number_is_sent_as_text(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    host.decided = [decided("a", NOON, Verdict.RUN, Reason.LEADER, until=float("inf"), left=0.5, odd="\udcff")]
    async with serve() as call:
        reply = await call("GET", "/jobs/a/decisions")
    assert reply.json["decisions"][0]["evidence"] == {"until": "inf", "left": 0.5, "odd": "\udcff"}


async def test_decisions_need_the_token_that_reading_needs(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve(authToken={"value": "sesame"}) as call:
        without = await call("GET", "/jobs/a/decisions")
        allowed = await call("GET", "/jobs/a/decisions", {"Authorization": "Bearer sesame"})
    assert (without.status, allowed.status) == (401, 200)


async def test_a_row_of_history_says_which_attempt_at_which_occurrence_it_was(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a"))
    skipped, retried, manual = (
        RunKey("", "a", NOON),
        RunKey("beef", "a", NOON - 60, 2, Trigger.RETRY),
        RunKey("cafe", "a", None, 0, Trigger.MANUAL),
    )
    host.set(
        history={
            "a": (
                RunRecord(manual, Outcome.SUCCESS, 0, NOON - 90.0, NOON - 80.0, 10.0),
                RunRecord(retried, Outcome.FAILURE, 1, NOON - 10.0, NOON - 5.0, 5.0),
                RunRecord(skipped, Outcome.SKIPPED, None, None, NOON + 0.5, None, skip_reason="paused"),
            )
        }
    )
    async with serve() as call:
        runs = (await call("GET", "/jobs/a/runs")).json["runs"]
        last_run = (await call("GET", "/jobs/a")).json["last_run"]
    told = [[row[key] for key in ("run_id", "scheduled_at", "attempt", "trigger", "node")] for row in runs]
    assert told == [
        [None, "2027-01-15T08:00:00+00:00", None, None, "node-a"],
        ["beef", "2027-01-15T07:59:00+00:00", 2, "retry", "node-a"],
        ["cafe", None, 0, "manual", "node-a"],
    ]
    assert "run_id" not in last_run, "GET /jobs stays as it is"


def row(t: int, verdict: str, reason: str, **more: Any) -> dict[str, Any]:
    at = f"2027-01-15T08:{t // 60:02}:{t % 60:02}"
    decided = {"scheduled_at": f"{at}+00:00", "decided_at": f"{at}.500000+00:00", "verdict": verdict, "reason": reason}
    return {**decided, "evidence": {}, "run_id": None, "provisional": False, **more}


def own_and(host: Any, make_job: Any, **report: Any) -> None:
    host.add(make_job("a"))
    host.decided = [decided("a", NOON + t, Verdict.SKIP, Reason.NOT_LEADER) for t in (0, 60)]
    if report:
        host.set(fleet=FleetReport("gossip", **report))


async def test_for_the_whole_fleet_what_each_node_decided_about_one_time_stands_together(
    serve: Any, host: Any, make_job: Any
) -> None:
    asked: list[tuple[str, int]] = []

    async def ask(job: str, limit: int) -> Sequence[NodeDecisions]:
        asked.append((job, limit))
        return (
            NodeDecisions("node-b", "b:1", (row(60, "run", "leader", node="node-a"), row(0, "run", "leader"))),
            NodeDecisions(None, "c:1", (), "not in contact"),
        )

    own_and(host, make_job, nodes=(), decisions=ask)
    async with serve() as call:
        plain = (await call("GET", "/jobs/a/decisions")).json
        whole = (await call("GET", "/jobs/a/decisions?fleet=true&limit=7")).json
    assert list(plain) == ["job", "decisions"]
    assert asked == [("a", 7)], "nobody is asked for those who poll"
    told = [(one["scheduled_at"][14:19], one["node"], one["verdict"]) for one in whole["decisions"]]
    assert told == [
        ("01:00", "node-b", "run"),
        ("01:00", "node-a", "skip"),
        ("00:00", "node-b", "run"),
        ("00:00", "node-a", "skip"),
    ]
    assert whole["channel"] == "gossip"
    assert whole["nodes"] == [
        {"node": "node-a", "host": None, "self": True, "answered": True, "count": 2, "problem": None},
        {"node": "node-b", "host": "b:1", "self": False, "answered": True, "count": 2, "problem": None},
        {"node": None, "host": "c:1", "self": False, "answered": False, "count": 0, "problem": "not in contact"},
    ]


async def test_nodes_that_do_not_see_each_other_say_so_and_tell_their_own(serve: Any, host: Any, make_job: Any) -> None:
    own_and(host, make_job)
    async with serve() as call:
        alone = (await call("GET", "/jobs/a/decisions?fleet=true")).json
        wrong = await call("GET", "/jobs/a/decisions?fleet=yes")
    assert (alone["channel"], len(alone["decisions"]), len(alone["nodes"])) == ("none", 2, 1)
    assert wrong.status == 400


async def test_a_channel_that_cannot_be_asked_and_one_that_does_not_end_are_no_data(
    serve: Any, host: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(job: str, limit: int) -> Sequence[NodeDecisions]:
        await anyio.sleep_forever()
        return ()

    monkeypatch.setattr(everywhere, "PATIENCE", 0.01)
    nodes: tuple[Any, ...] = ({"node_name": "node-a", "self": True}, {"node_name": "node-b", "host": "b:1"}, {})
    own_and(host, make_job, nodes=nodes)
    async with serve() as call:
        mute = (await call("GET", "/jobs/a/decisions?fleet=true")).json
        host.set(fleet=FleetReport("gossip", nodes, decisions=never))
        slow = (await call("GET", "/jobs/a/decisions?fleet=true")).json
    assert [one["problem"] for one in mute["nodes"]][1:] == [
        "not asked: what the nodes tell each other does not include decisions"
    ] * 2
    assert [(one["node"], one["problem"]) for one in slow["nodes"]][1:] == [
        ("node-b", "no answer in time"),
        (None, "no answer in time"),
    ]
    assert len(mute["decisions"]) == len(slow["decisions"]) == 2
