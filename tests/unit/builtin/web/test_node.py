"""How loaded the node is, how a job did lately, and what the state store says of itself."""

from __future__ import annotations

import os
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import anyio
import pytest

from cronstable.api import Instant, OpCount, Outcome, RunKey, RunRecord, StateStatus, StoreInfo, Topology
from cronstable.builtin.web.node import Group, Machine, Sample, Usage, cpu_percent, glance, read_group, read_proc

pytestmark = pytest.mark.anyio

NOON = 1_800_000_000.0
USAGE = Usage(NOON, 100.0, "host", 50.0, 2.0, 1, 4, (0.1,), 1.0, 1, 1)


def test_a_control_group_has_the_tightest_limits_of_itself_and_those_above(host: Any) -> None:
    top = "/sys/fs/cgroup"
    host.fs.texts |= {
        "/proc/self/cgroup": "0::/pod/box\n",
        f"{top}/pod/cpu.max": "50000 100000\n",
        f"{top}/pod/memory.max": "1000000\n",
        f"{top}/pod/box/cpu.max": "max 100000\n",
        f"{top}/pod/box/memory.max": "2000000\n",
        f"{top}/pod/box/memory.current": "600000\n",
        f"{top}/pod/box/memory.stat": "anon 1\ninactive_file 100000\n",
        f"{top}/pod/box/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    }
    assert read_group(host.fs) == Group(2.5, 0.5, 500_000, 1_000_000)


@pytest.mark.parametrize("text", [None, "12:cpu:/x\n", "0::/../../etc\n", "nonsense"])
def test_without_a_group_of_version_2_there_are_no_figures_of_one(host: Any, text: str | None) -> None:
    if text is not None:
        host.fs.texts["/proc/self/cgroup"] = text
    assert read_group(host.fs) == Group()


def test_a_group_without_limits_or_with_broken_files_has_none(host: Any) -> None:
    host.fs.texts |= {
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/cpu.max": "10 0\n",
        "/sys/fs/cgroup/memory.max": "max\n",
    }
    assert read_group(host.fs) == Group()


PROC = {
    "/proc/stat": "cpu  100 20 30 4000 500 6 7 8 90 9\ncpu0 1 2 3 4 5 6 7 8 9 0\n",
    "/proc/meminfo": "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n",
    "/proc/self/stat": "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 120 30 0 0 20 0 5 0 99 1000000 2000 18446744073",
}


def test_linux_says_in_files_how_loaded_it_is(host: Any) -> None:
    host.fs.texts |= PROC
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert read_proc(host.fs) == Machine(171 / tick, 600 * 1024, 1000 * 1024, 150 / tick, 2000 * page, 5)


@pytest.mark.parametrize("path", list(PROC))
@pytest.mark.parametrize("text", ["", "cpu 1 2\n", "MemTotal: many kB\n"])
def test_where_a_file_says_something_else_another_is_asked(host: Any, path: str, text: str) -> None:
    host.fs.texts |= {**PROC, path: text}
    assert read_proc(host.fs) is None


def test_between_whole_looks_only_what_moves_is_read(host: Any) -> None:
    host.fs.texts |= PROC
    assert glance(host.fs, replace(USAGE, plain=True, memory_total=1000 * 1024)) == (
        171 / os.sysconf("SC_CLK_TCK"),
        600 * 1024,
    )


@pytest.mark.parametrize("whole", [USAGE, replace(USAGE, plain=True, source="cgroup-v2")])
def test_a_group_and_files_of_another_program_are_not_read_on_the_loop(host: Any, whole: Usage) -> None:
    host.fs.texts |= PROC
    assert glance(host.fs, whole) is None


@pytest.mark.parametrize("path", ["/proc/stat", "/proc/meminfo"])
@pytest.mark.parametrize(
    "text",
    ["", "cpu 1 2\n", "MemTotal: 1 kB\nMemFree: 1 kB\nBuffers: 1 kB\n", "MemTotal: 1 kB\nMemFree: 1 kB\nMemAvailable:"],
)
def test_a_glance_at_odd_files_sees_nothing(host: Any, path: str, text: str) -> None:
    host.fs.texts |= {**PROC, path: text}
    assert glance(host.fs, replace(USAGE, plain=True)) is None


def test_the_share_of_the_processors_is_between_two_looks_of_one_kind() -> None:
    first = Sample(USAGE, Instant(NOON, 100.0), 50.0, 1)
    later = Sample(USAGE, Instant(NOON + 10, 110.0), 60.0, 1)
    assert cpu_percent(first, later) == 50.0
    assert cpu_percent(None, later) is None
    assert cpu_percent(later, later) is None
    assert cpu_percent(first._replace(whole=replace(USAGE, source="cgroup-v2")), later) is None
    assert cpu_percent(first, later._replace(whole=replace(USAGE, cores=0.0))) is None
    assert cpu_percent(first, later._replace(cpu=900.0)) == 100.0
    assert cpu_percent(first, later._replace(cpu=0.0)) == 0.0


@pytest.mark.parametrize("mounted", [None, "proc /proc proc rw 0 0\n"])
async def test_the_load_of_this_node_is_looked_at_now_and_then_and_kept_for_a_while(
    serve: Any, host: Any, mounted: str | None
) -> None:
    host.fs.texts |= PROC
    host.fs.mounted = mounted
    async with serve(nodeHistory={"interval": 2, "points": 10}) as call:
        now = (await call("GET", "/node")).json
        for _ in range(12):
            seen = (await call("GET", "/node/history")).json["points"]
            host.clock.advance(2)
            with anyio.fail_after(10):
                while (await call("GET", "/node/history")).json["points"] == seen:
                    pass
        past = (await call("GET", "/node/history")).json
    resources = now["resources"]
    assert (now["node_name"], resources["source"]) == ("node-a", "host")
    assert 0 < resources["memory_used_bytes"] <= resources["memory_total_bytes"]
    assert set(resources["process"]) == {"cpu_seconds", "rss_bytes", "threads"}
    assert (past["enabled"], past["interval"], len(past["points"])) == (True, 2.0, 10)
    assert [point[0] for point in past["points"]] == [NOON + 2 * n for n in range(3, 13)]
    assert all(0 <= point[2] <= 100 for point in past["points"])


async def test_what_a_glance_leaves_out_is_looked_at_when_asked_and_not_again_until_the_next_glance(
    serve: Any, host: Any
) -> None:
    def threads(count: int) -> None:
        host.fs.texts["/proc/self/stat"] = PROC["/proc/self/stat"].replace(" 0 5 0 ", f" 0 {count} 0 ")

    async def told(call: Any) -> int:
        return int((await call("GET", "/node")).json["resources"]["process"]["threads"])

    host.fs.texts |= PROC
    host.fs.mounted = "proc /proc proc rw 0 0\n"
    async with serve(nodeHistory={"interval": 2, "points": 10}) as call:
        seen = [await told(call)]
        threads(9)
        seen.append(await told(call))
        before = (await call("GET", "/node/history")).json["points"]
        host.clock.advance(2)
        with anyio.fail_after(10):
            while (await call("GET", "/node/history")).json["points"] == before:
                pass
        seen.append(await told(call))
        threads(11)
        seen.append(await told(call))
    assert seen == [5, 5, 9, 9]


async def test_without_a_history_the_load_is_looked_at_when_asked(serve: Any, host: Any) -> None:
    async with serve(nodeHistory=False) as call:
        now, past = (await call("GET", "/node")).json, (await call("GET", "/node/history")).json
    assert now["resources"]["cpu_cores"] > 0
    assert past == {"node_name": "node-a", "enabled": False, "interval": 5.0, "points": []}


async def test_trends_are_the_figures_of_windows_up_to_now(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    ages = (40 * 86_400, 2 * 86_400, 7_200, 60)
    host.rows["a"] = tuple(
        RunRecord(
            RunKey(f"r{age}", "a", None),
            Outcome.FAILURE if age == 60 else Outcome.SUCCESS,
            0,
            NOON - age - 4,
            NOON - age,
            4.0,
            node="node-b",
        )
        for age in ages
    )
    store = StoreInfo("memory", Topology.PROCESS, "memory")
    host.set(state=StateStatus("memory", store, None))
    async with serve() as call:
        found = (await call("GET", "/jobs/a/trends")).json
        runs = (await call("GET", "/jobs/a/runs?limit=2")).json
        missing = await call("GET", "/jobs/b/trends")
    assert (found["name"], found["source"]) == ("a", "durable")
    totals = {label: window["total"] for label, window in found["windows"].items()}
    assert totals == {"1h": 1, "24h": 2, "7d": 3, "30d": 3, "all": 4}
    assert (found["windows"]["1h"]["success_rate"], found["windows"]["24h"]["success_rate"]) == (0.0, 0.5)
    assert [(run["run_id"], run["node"]) for run in runs["runs"]] == [("r60", "node-b"), ("r7200", "node-b")]
    assert missing.status == 404


async def test_the_state_store_is_shown_without_what_it_contains_and_404_without_one(serve: Any, host: Any) -> None:
    async with serve() as call:
        none = await call("GET", "/state")
        broken = StateStatus(
            "filesystem",
            None,
            "/mnt/x: no such directory",
            fail_closed=True,
            dropped=MappingProxyType({"run-record": 2}),
            operations=MappingProxyType({"append": OpCount(3, 1, 0.25)}),
        )
        host.set(state=broken)
        shown = await call("GET", "/state")
        info = StoreInfo("filesystem", Topology.SHARED, "/mnt/x")
        host.set(state=StateStatus("filesystem", info, "No space left on device"))
        lost = await call("GET", "/state")
    assert (none.status, none.json) == (404, {"error": "there is no state section in the configuration"})
    assert shown.json["open"] is False
    assert (shown.json["error"], shown.json["on_store_unavailable"]) == ("/mnt/x: no such directory", "fail-closed")
    assert shown.json["dropped_writes"] == {"run-record": 2}
    assert lost.json["open"] is False
    assert (lost.json["topology"], lost.json["error"]) == ("shared", "No space left on device")
    assert shown.json["operations"] == {"append": {"count": 3, "errors": 1, "seconds": 0.25}}


async def test_names_in_the_state_store_are_listed_without_what_they_contain(serve: Any, host: Any) -> None:
    async with serve() as call:
        none = await call("GET", "/state/records")
        host.set(state=StateStatus("memory", None, None))
        silent = await call("GET", "/state/documents")
        host.names = {"streams": ["runs/a", "runs/b", "paused/a"], "documents": ["x"]}
        records = await call("GET", "/state/records?prefix=runs/")
        documents = await call("GET", "/state/documents")
        wrong = await call("GET", "/state/documents?prefix=" + "x" * 513)
    assert (none.status, silent.status, wrong.status) == (404, 504, 400)
    assert records.json == {"streams": ["runs/a", "runs/b"], "total": 2}
    assert documents.json == {"documents": ["x"], "total": 1}
