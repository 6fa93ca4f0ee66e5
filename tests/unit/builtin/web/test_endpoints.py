"""What each endpoint answers, over a real connection."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from cronstable.api import (
    Actor,
    CancelRun,
    ClusterPolicy,
    ClusterView,
    Done,
    FleetReport,
    Json,
    LastRun,
    LeaseView,
    LiveRun,
    Outcome,
    Pause,
    PeerStatus,
    PeerView,
    Refused,
    ReloadHealth,
    RunKey,
    RunRecord,
    StartRun,
    Tally,
)

pytestmark = pytest.mark.anyio

NOON = 1_800_000_000.0
JSON = {"Accept": "text/html, application/json;q=0.9"}
AWKWARD = ["a/b", 'say "hi"', "emoji 🦀", "two\nlines", "50%2F50", "braces {x}", "plus+plus", "ünï", "a?b#c", "%"]


def live(job: str, pid: int) -> LiveRun:
    return LiveRun(RunKey(f"run-{pid}", job, None), pid, NOON - 5)


def ran(
    job: str, outcome: Outcome, finished: float = NOON - 10, duration: float | None = 2.0, **more: Any
) -> RunRecord:
    started = None if outcome is Outcome.SKIPPED else finished - (duration or 0)
    return RunRecord(RunKey(f"{job}-{finished}", job, None), outcome, 0, started, finished, duration, **more)


async def test_version_is_plain_text(serve: Any) -> None:
    async with serve() as call:
        reply = await call("GET", "/version")
    assert (reply.status, reply.body) == (200, b"2.0.0")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"


async def test_a_request_without_accept_header_is_answered(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        reply = await call.raw(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        old = await call.raw(b"GET /status HTTP/1.0\r\n\r\n")
    assert reply.status == old.status == 200
    assert reply.body == b"a: scheduled (in 1 minute)"


async def test_status_says_what_each_job_does_in_text_and_json(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("runs"), make_job("off", enabled=False), make_job("boot", "@reboot"), make_job("waits"))
    host.add(make_job("never", "0 0 31 2 *"), due=None)
    host.set(live={"runs": (live("runs", 41), live("runs", 42))})
    async with serve() as call:
        text = await call("GET", "/status")
        listed = await call("GET", "/status", JSON)
    assert text.body.decode().splitlines() == [
        "runs: running (pid: 41, 42)",
        "off: disabled",
        "boot: scheduled (@reboot)",
        "waits: scheduled (in 1 minute)",
        "never: no future runs (check the schedule)",
    ]
    assert listed.json == [
        {"job": "runs", "status": "running", "pid": [41, 42]},
        {"job": "off", "status": "disabled"},
        {"job": "boot", "status": "scheduled", "scheduled_in": "@reboot"},
        {"job": "waits", "status": "scheduled", "scheduled_in": 90.0},
        {"job": "never", "status": "scheduled", "scheduled_in": None, "never_fires": True},
    ]


async def test_a_job_name_with_a_line_break_stays_one_line_of_status(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("two\nlines"))
    async with serve() as call:
        reply = await call("GET", "/status")
    assert reply.body == b"two\\nlines: scheduled (in 1 minute)"


async def test_summary_counts_jobs_and_names_the_next(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("late"), make_job("off", enabled=False))
    host.add(make_job("soon"), due=30)
    host.add(make_job("never", "0 0 31 2 *"), due=None)
    host.set(
        live={"late": (live("late", 7),)},
        history={"soon": (ran("soon", Outcome.FAILURE), ran("soon", Outcome.SKIPPED, NOON - 1, None))},
        paused={"late": Pause("late", NOON + 60)},
    )
    async with serve() as call:
        reply = await call("GET", "/summary")
    assert reply.json == {
        "version": "2.0.0",
        "node_name": "node-a",
        "generated_at": "2027-01-15T08:00:00+00:00",
        "jobs": {
            "total": 4,
            "enabled": 3,
            "disabled": 1,
            "running": 1,
            "paused": 1,
            "failing": 1,
            "never_fires": 1,
        },
        "next_fire": {"job": "soon", "in": 30.0, "at": "2027-01-15T08:00:30+00:00"},
        "reload": {
            "ok": True,
            "at": "2027-01-15T07:59:00+00:00",
            "last_success": "2027-01-15T07:59:00+00:00",
            "error": None,
        },
        "cluster": {"enabled": False},
    }


async def test_a_job_entry_has_every_documented_field(serve: Any, host: Any, make_job: Any) -> None:
    job = make_job("back up", "37 20 * * *", ("tar", "c", "my files"), "America/Santiago", capture_stdout=True)
    host.add(job)
    host.set(history={"back up": (ran("back up", Outcome.FAILURE, fail_reason="exit code 1"),)})
    async with serve() as call:
        one = await call("GET", "/jobs/back%20up")
        every = await call("GET", "/jobs?words=true")
        short = [(await call("GET", path)).json[0] for path in ("/jobs", "/jobs?words=false")]
        wrong = await call("GET", "/jobs?words=yes")
    assert every.json == [one.json]
    assert short == [{name: value for name, value in one.json.items() if name != "schedule_words"}] * 2
    assert (wrong.status, wrong.json) == (400, {"error": "words must be true or false, not 'yes'"})
    assert one.json == {
        "name": "back up",
        "enabled": True,
        "schedule": "37 20 * * *",
        "schedule_words": "at 20:37 every day",
        "command": "tar c 'my files'",
        "captureStdout": True,
        "captureStderr": True,
        "utc": True,
        "timezone": "America/Santiago",
        "running": False,
        "pids": [],
        "scheduled_in": 90.0,
        "never_fires": False,
        "schedule_findings": [{"message": text} for text in job.schedule.findings()],
        "last_run": {
            "outcome": "failure",
            "exit_code": 0,
            "started_at": "2027-01-15T07:59:48+00:00",
            "finished_at": "2027-01-15T07:59:50+00:00",
            "duration": 2.0,
            "fail_reason": "exit code 1",
            "skip_reason": None,
            "resources": None,
            "ranAt": "2027-01-15T07:59:50+00:00",
        },
        "failing": True,
        "history": [{"outcome": "failure", "duration": 2.0}],
        "paused": None,
    }


async def test_a_job_that_failed_stays_failing_through_any_number_of_skips(
    serve: Any, host: Any, make_job: Any
) -> None:
    failed = ran("a", Outcome.FAILURE)
    skips = tuple(ran("a", Outcome.SKIPPED, NOON + n, None) for n in range(20))
    host.add(make_job("a"), make_job("off", enabled=False), make_job("new"))
    host.set(history={"a": skips}, last_runs={"a": LastRun(failed, failed), "off": LastRun(failed, failed)})
    async with serve() as call:
        summary, jobs = (await call("GET", "/summary")).json, (await call("GET", "/jobs")).json
        activity, metrics = (await call("GET", "/activity")).json, (await call("GET", "/metrics")).body.decode()
        assert (summary["jobs"]["failing"], [job["failing"] for job in jobs]) == (1, [True, False, False])
        assert [run["outcome"] for run in activity["jobs"]["a"]] == ["failure"]
        assert 'cronstable_job_last_run_success{job_name="a"} 0' in metrics
        # The same rows, of which the last run is known later.
        host.set(last_runs={})
        host.clock.advance(1)
        assert [job["failing"] for job in (await call("GET", "/jobs")).json] == [False, False, False]
        assert "cronstable_job_last_run_success{" not in (await call("GET", "/metrics")).body.decode()


async def test_the_zone_is_the_frame_that_the_schedule_is_read_in(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("plain"), make_job("zoned", zone="Europe/Paris"), make_job("local", utc=False))
    async with serve() as call:
        zones = [job["timezone"] for job in (await call("GET", "/jobs")).json]
    assert zones == ["UTC", "Europe/Paris", None]


async def test_what_a_hash_resolves_to_is_shown(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("h", "H 3 * * *"), make_job("daily", "@daily"))
    async with serve() as call:
        hashed, nick = (await call("GET", "/jobs")).json
    assert re.fullmatch(r"\d+ 3 \* \* \*", hashed["schedule_resolved"])
    assert "schedule_resolved" not in nick


async def test_policy_is_shown_only_under_election_and_owner_only_under_spread(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(
        make_job("tick-leader-only"),
        make_job("tick-prefer-leader", cluster_policy=ClusterPolicy.PREFER_LEADER),
        make_job("tick-all", cluster_policy=ClusterPolicy.EVERY_NODE),
    )
    names = ("cronstable-a", "cronstable-b", "cronstable-c")
    spread = ClusterView(
        "gossip", "cronstable-a", "v1:x", distribution="spread", quorate=True, owners=names, available_owners=names
    )
    async with serve() as call:
        without = (await call("GET", "/jobs")).json
        host.set(cluster_configured=True, election_configured=True, cluster=spread)
        quorate = (await call("GET", "/jobs")).json
        lonely = ClusterView(
            "gossip", "cronstable-a", "v1:x", distribution="spread", available_owners=("cronstable-a",)
        )
        host.set(cluster=lonely)
        alone = (await call("GET", "/jobs")).json
        host.set(cluster=ClusterView("gossip", "cronstable-a", "v1:x", leader="cronstable-a", quorate=True))
        single = (await call("GET", "/jobs")).json
    assert not any("clusterPolicy" in job or "clusterOwner" in job for job in without)
    assert [job["clusterPolicy"] for job in quorate] == ["Leader", "PreferLeader", "EveryNode"]
    assert [job.get("clusterOwner", "absent") for job in quorate] == ["cronstable-a", "cronstable-c", "absent"]
    assert [job.get("clusterOwner", "absent") for job in alone] == [None, "cronstable-a", "absent"]
    assert not any("clusterOwner" in job for job in single)


async def test_reading_fifty_times_only_counts_down(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    before = dict(host.state.next_fires)
    seen = []
    async with serve() as call:
        for _ in range(50):
            seen.append((await call("GET", "/jobs")).json[0]["scheduled_in"])
            host.clock.advance(0.25)
    assert seen == [90 - 0.25 * n for n in range(50)]
    assert host.state.next_fires == before
    assert host.commands == []


async def test_an_unchanged_job_list_is_answered_with_304_until_something_changes(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a"), make_job("b"))
    async with serve() as call:
        first = await call("GET", "/jobs")
        host.clock.advance(7)
        again = await call("GET", "/jobs", {"If-None-Match": f'"other", {first.headers["etag"]}'})
        host.set(live={"b": (live("b", 9),)})
        changed = await call("GET", "/jobs", {"If-None-Match": first.headers["etag"]})
        host.set(next_fires={"a": int(NOON + 500), "b": int(NOON + 90)})
        moved = await call("GET", "/jobs", {"If-None-Match": changed.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert changed.status == moved.status == 200
    assert changed.json[1]["pids"] == [9]
    assert moved.json[0]["scheduled_in"] == 493.0


async def test_a_removed_job_leaves_the_list(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"), make_job("b"))
    async with serve() as call:
        first = await call("GET", "/jobs")
        host.set(jobs={"b": host.state.jobs["b"]})
        second = await call("GET", "/jobs", {"If-None-Match": first.headers["etag"]})
    assert [job["name"] for job in second.json] == ["b"]


async def test_a_long_job_list_is_compressed_for_who_takes_gzip(serve: Any, host: Any, make_job: Any) -> None:
    host.add(*(make_job(f"job {n}") for n in range(50)))
    async with serve() as call:
        plain = await call("GET", "/jobs")
        refused = await call("GET", "/jobs", {"Accept-Encoding": "gzip;q=0, br"})
        packed = await call("GET", "/jobs", {"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in refused.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert len(packed.body) < len(plain.body) / 5
    assert json.loads(gzip.decompress(packed.body)) == plain.json


@pytest.mark.parametrize("name", AWKWARD)
async def test_any_job_name_can_be_read_started_and_cancelled(serve: Any, host: Any, make_job: Any, name: str) -> None:
    host.add(make_job(name))
    host.answers["CancelRun"] = Done(2)
    target = "/jobs/" + quote(name, safe="")
    async with serve() as call:
        read = await call("GET", target)
        started = await call("POST", f"{target}/start")
        cancelled = await call("POST", f"{target}/cancel")
    assert read.json["name"] == name
    assert started.json == {"started": name, "run_id": "run-1"}
    assert cancelled.json == {"cancelled": name, "instances": 2}
    by = Actor("anonymous", "api")
    assert host.commands == [(StartRun(name), by), (CancelRun(name), by)]


async def test_the_second_start_of_a_forbid_job_is_a_conflict(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve(headers={"X-Site": "x"}) as call:
        first = await call("POST", "/jobs/a/start")
        host.answers["StartRun"] = Refused("job 'a' is still running and its concurrencyPolicy is Forbid")
        second = await call("POST", "/jobs/a/start")
    assert first.status == 200
    assert second.status == 409
    assert second.json == {"error": "job 'a' is still running and its concurrencyPolicy is Forbid"}
    assert second.headers["x-site"] == "x"


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", "/jobs/zz"), ("GET", "/jobs/zz/runs"), ("POST", "/jobs/zz/start"), ("POST", "/jobs/zz/cancel")],
)
async def test_an_unknown_job_is_not_found(serve: Any, method: str, target: str) -> None:
    async with serve() as call:
        reply = await call(method, target)
    assert (reply.status, reply.json) == (404, {"error": "there is no job 'zz'"})


async def test_runs_are_newest_first_with_figures(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"), make_job("new"))
    records = (
        ran("a", Outcome.SUCCESS, NOON - 50, 1.0),
        ran("a", Outcome.FAILURE, NOON - 40, 3.0, fail_reason="exit code 3"),
        ran("a", Outcome.CANCELLED, NOON - 30, 5.0),
        ran("a", Outcome.SKIPPED, NOON - 20, None, skip_reason="concurrency-forbid"),
    )
    host.set(history={"a": records})
    async with serve() as call:
        every = (await call("GET", "/jobs/a/runs")).json
        two = (await call("GET", "/jobs/a/runs?limit=2")).json
        none = (await call("GET", "/jobs/new/runs")).json
    assert [run["outcome"] for run in every["runs"]] == ["skipped", "cancelled", "failure", "success"]
    assert every["runs"][0]["skip_reason"] == "concurrency-forbid"
    stats = every["stats"]
    assert (stats["total"], stats["success"], stats["failure"], stats["cancelled"]) == (3, 1, 1, 1)
    assert stats["success_rate"] == 0.5
    assert [stats[f"{kind}_duration"] for kind in ("avg", "min", "max", "last")] == [3.0, 1.0, 5.0, 5.0]
    assert len(two["runs"]) == 2
    assert none["runs"] == []
    assert none["stats"]["success_rate"] is None


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "1.5", "٣", "9999999999"])
async def test_a_limit_that_is_no_count_is_refused(serve: Any, host: Any, make_job: Any, limit: str) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        reply = await call("GET", f"/jobs/a/runs?limit={quote(limit)}")
    assert reply.status == 400
    assert "limit" in reply.json["error"]


async def test_the_job_set_id_is_text_or_json(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        text = await call("GET", "/job-set-id")
        listed = await call("GET", "/job-set-id", JSON)
    assert text.body.decode() == host.state.job_set_id
    assert listed.json == {"job_set_id": host.state.job_set_id, "jobs": 1}


async def test_without_a_cluster_section_cluster_is_not_enabled(serve: Any) -> None:
    async with serve() as call:
        reply = await call("GET", "/cluster")
    assert reply.json == {"enabled": False, "peers": []}


async def test_a_cluster_that_failed_to_start_says_so(serve: Any, host: Any) -> None:
    host.set(cluster_configured=True, cluster_error="etcd: connection refused")
    async with serve() as call:
        reply = await call("GET", "/cluster")
        summary = await call("GET", "/summary")
    assert reply.json == {"enabled": True, "error": "etcd: connection refused", "peers": []}
    assert summary.json["cluster"]["enabled"] is True


async def test_the_fleet_is_what_was_published_and_off_without_a_channel(serve: Any, host: Any) -> None:
    view = ClusterView("gossip", "a", "v1:x", distribution="spread")
    async with serve() as call:
        off = await call("GET", "/fleet")
        host.set(cluster_configured=True, cluster=view)
        still_off = await call("GET", "/fleet")
        host.set(fleet=FleetReport("gossip", ({"node_name": "a", "jobs": None},), 30.0))
        on = await call("GET", "/fleet")
    assert off.json == still_off.json == {"enabled": False, "nodes": []}
    assert on.json == {
        "enabled": True,
        "backend": "gossip",
        "node_name": "a",
        "distribution": "spread",
        "elect_leader": True,
        "interval": 30.0,
        "nodes": [{"node_name": "a", "jobs": None}],
    }


async def test_the_fleet_is_told_also_when_the_election_beside_it_did_not_start(serve: Any, host: Any) -> None:
    nodes: tuple[dict[str, Json], ...] = ({"node_name": "a", "jobs": {}}, {"node_name": "b", "jobs": None})
    async with serve() as call:
        host.set(cluster_configured=True, cluster_error="etcd: refused", fleet=FleetReport("observability", nodes, 5.0))
        told = await call("GET", "/fleet")
    assert told.json["enabled"] is True
    assert (told.json["backend"], told.json["interval"]) == ("observability", 5.0)
    assert told.json["nodes"] == [*nodes]


async def test_the_gossip_view_has_the_documented_fields(serve: Any, host: Any) -> None:
    peers = (
        PeerView("b:8443", PeerStatus.AGREED, "b", "v1:x", NOON - 3),
        PeerView("c:8443", PeerStatus.UNREACHABLE, last_error="refused", mismatch_streak=2),
    )
    view = ClusterView(
        "gossip", "a", "v1:x", cluster_size=3, quorum=2, quorate=True, leader="a", is_leader=True, peers=peers,
        conflicting_sizes=(4,),
    )  # fmt: skip
    host.set(cluster_configured=True, cluster=view)
    async with serve() as call:
        reply = await call("GET", "/cluster")
        host.set(cluster=ClusterView("gossip", "a", "v1:x", distribution="spread", leader="a", is_leader=True))
        spread = await call("GET", "/cluster")
    assert reply.json == {
        "enabled": True,
        "backend": "gossip",
        "node_name": "a",
        "job_set_id": "v1:x",
        "cluster_size": 3,
        "quorum": 2,
        "elect_leader": True,
        "distribution": "single-leader",
        "conflict": True,
        "conflict_names": [],
        "size_conflict": True,
        "conflicting_sizes": [4],
        "policy_conflict": False,
        "conflicting_policies": [],
        "candidates_truncated": 0,
        "quorate": True,
        "leader": "a",
        "is_leader": True,
        "node_stats": None,
        "peers": [
            {
                "host": "b:8443",
                "status": "agreed",
                "node_name": "b",
                "job_set_id": "v1:x",
                "last_seen": "2027-01-15T07:59:57+00:00",
                "last_error": None,
                "mismatch_streak": 0,
                "node_stats": None,
            },
            {
                "host": "c:8443",
                "status": "unreachable",
                "node_name": None,
                "job_set_id": None,
                "last_seen": None,
                "last_error": "refused",
                "mismatch_streak": 2,
                "node_stats": None,
            },
        ],
    }
    assert (spread.json["leader"], spread.json["is_leader"]) == (None, False)


@pytest.mark.parametrize(
    ("backend", "fields", "fence", "expected"),
    [
        ("filesystem", (("path", "/mnt"), ("electionName", "e")), 7, "path electionName identity holder fence expiry"),
        ("etcd", (("electionName", "e"), ("leaseId", 5)), None, "electionName identity holder leaseId expiry"),
        ("kubernetes", (("name", "n"), ("namespace", "s")), None, "name namespace identity holder expiry"),
    ],
)
async def test_a_lease_view_has_the_fields_of_its_backend(
    serve: Any, host: Any, backend: str, fields: Any, fence: int | None, expected: str
) -> None:
    lease = LeaseView("a", "b", NOON + 15, fence, fields)
    host.set(cluster_configured=True, cluster=ClusterView(backend, "a", "v1:x", quorate=True, leader="b", lease=lease))
    async with serve() as call:
        document = (await call("GET", "/cluster")).json
    assert document["peers"] == []
    assert (document["cluster_size"], document["quorum"], document["conflict"]) == (1, 1, False)
    assert list(document["lease"]) == expected.split()
    assert document["lease"]["expiry"] == "2027-01-15T08:00:15+00:00"
    assert document["claims"] == {"won": 0, "other": 0, "catch_ups": 0}


async def test_claims_are_counted_in_the_view_also_while_the_view_stands_still(serve: Any, host: Any) -> None:
    lease = LeaseView("a", "a", NOON + 15, 7, (("path", "/mnt"),))
    host.set(cluster_configured=True, cluster=ClusterView("filesystem", "a", "v1:x", leader="a", lease=lease))
    async with serve() as call:
        await call("GET", "/cluster")
        host.set(tally=Tally(claims={"won": 3, "taken": 1, "unknown": 1}, catch_ups=2))
        document = (await call("GET", "/cluster")).json
    assert document["claims"] == {"won": 3, "other": 2, "catch_ups": 2}


@pytest.mark.parametrize("expiry", [1e308, -1e308, float("nan"), float("inf")])
async def test_an_expiry_that_no_calendar_holds_is_shown_as_unknown(serve: Any, host: Any, expiry: float) -> None:
    lease = LeaseView("a", "b", expiry, 7, (("path", "/mnt"),))
    host.set(cluster_configured=True, cluster=ClusterView("filesystem", "a", "v1:x", leader="b", lease=lease))
    async with serve() as call:
        answer = await call("GET", "/cluster")
    assert answer.status == 200
    assert answer.json["lease"]["expiry"] is None


async def test_the_cluster_document_follows_the_view(serve: Any, host: Any) -> None:
    seen = []
    async with serve() as call:
        for leader in (None, "a", "a", "b"):
            host.set(cluster_configured=True, cluster=ClusterView("gossip", "a", "v1:x", leader=leader))
            seen.append((await call("GET", "/cluster")).json["leader"])
    assert seen == [None, "a", "a", "b"]


async def test_the_cluster_document_has_the_load_that_this_node_tells_its_peers(serve: Any, host: Any) -> None:
    stats: Json = {"cpu_percent": 3.5, "cpu_count": 2}
    seen = []
    async with serve() as call:
        host.set(cluster_configured=True, cluster=ClusterView("gossip", "a", "v1:x", leader="a"))
        seen.append((await call("GET", "/cluster")).json)
        for own in (stats, None):
            other: dict[str, Json] = {"self": False, "node_stats": {"cpu_percent": 9.0}}
            nodes = (other, {"self": True, "node_stats": own})
            host.set(fleet=FleetReport("gossip", nodes, 30.0))
            seen.append((await call("GET", "/cluster")).json)
    assert [one["node_stats"] for one in seen] == [None, stats, None]
    assert all("fleet" not in one for one in seen)


async def test_the_cluster_document_of_a_lease_backend_says_whether_nodes_tell_each_other(
    serve: Any, host: Any
) -> None:
    lease = LeaseView("a", "b", None, 7, ())
    seen = []
    async with serve() as call:
        for fleet in (None, FleetReport("observability", ({"self": True, "node_stats": {"cpu_count": 2}},), 30.0)):
            view = ClusterView("filesystem", "a", "v1:x", leader="b", lease=lease)
            host.set(cluster_configured=True, cluster=view, fleet=fleet)
            seen.append((await call("GET", "/cluster")).json)
    assert [one["fleet"] for one in seen] == [False, True]
    assert all("node_stats" not in one for one in seen)


async def test_probes_need_no_token_and_readiness_gives_its_reason(serve: Any, host: Any) -> None:
    async with serve(authToken={"value": "s"}) as call:
        alive = await call("GET", "/healthz")
        ready = await call("GET", "/readyz")
        reasons = []
        for change in (
            {"stopping": True},
            {"stopping": False, "ready": False},
            {"ready": True, "reload": ReloadHealth(False, NOON, 0.0, "bad")},
            {"reload": ReloadHealth(True, NOON, NOON), "cluster_configured": True, "cluster_error": "secret address"},
        ):
            host.set(**change)
            reply = await call("GET", "/readyz")
            reasons.append((reply.status, reply.json["error"]))
    assert (alive.status, ready.status) == (200, 200)
    assert reasons == [
        (503, "shutting down"),
        (503, "still starting"),
        (503, "the configuration has not been loaded"),
        (503, "the cluster backend is not running"),
    ]


async def test_unknown_paths_and_wrong_methods_are_json_errors(serve: Any) -> None:
    async with serve() as call:
        missing = await call("GET", "/metric")
        wrong = await call("PUT", "/jobs")
        get_start = await call("GET", "/jobs/a/start")
    assert (missing.status, missing.json) == (404, {"error": "there is no /metric"})
    assert wrong.status == get_start.status == 405
    assert wrong.headers["allow"] == "GET, HEAD, OPTIONS"
    assert get_start.headers["allow"] == "OPTIONS, POST"
    assert "PUT" in wrong.json["error"]
    assert {reply.headers["content-type"] for reply in (missing, wrong)} == {"application/json"}


async def test_a_bug_is_a_json_500_without_its_detail_and_is_logged(
    serve: Any, host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host.broken = True
    async with serve() as call:
        reply = await call("GET", "/jobs")
    assert reply.status == 500
    assert "secret detail" not in reply.body.decode()
    assert "error" in reply.json
    assert "secret detail" in caplog.text


async def test_head_has_the_headers_and_options_the_methods(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        full = await call("GET", "/jobs")
        head = await call("HEAD", "/jobs")
        options = await call("OPTIONS", "/jobs/a/start")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == full.headers["etag"]
    assert head.headers["content-length"] == str(len(full.body))
    assert (options.status, options.headers["allow"]) == (204, "OPTIONS, POST")


async def test_a_status_that_is_asked_for_all_the_time_is_kept_and_follows_every_change_at_once(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        waits = []
        for seconds in (0.0, 0.1, 0.2):
            host.clock.advance(seconds)
            waits.append((await call("GET", "/status", {"Accept": "application/json"})).json[0]["scheduled_in"])
        text = (await call("GET", "/status")).body
        host.set(live={"a": (LiveRun(RunKey("r", "a", None), 7, NOON),)})
        running = (await call("GET", "/status")).body
    assert waits == [90.0, 90.0, 89.7]
    assert text == b"a: scheduled (in 1 minute)"
    assert running == b"a: running (pid: 7)"
