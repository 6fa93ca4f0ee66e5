"""Streams: nothing lost, nothing twice, nothing unbounded, and over when the service is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cronstable.api import (
    ClusterView,
    Decided,
    Decision,
    DecisionRecord,
    LeaderChanged,
    Line,
    LiveRun,
    Outcome,
    PeerStatus,
    PeerView,
    QuorumChanged,
    Reason,
    Reloaded,
    RunFinished,
    RunKey,
    RunRecord,
    RunStarted,
    Verdict,
)
from cronstable.builtin.web import doors, eventlog, streams
from cronstable.builtin.web.tails import PENDING, Place, Tail, Written
from cronstable.runtime.capture import LineBatch
from cronstable.runtime.output import LINES_PER_RUN

pytestmark = pytest.mark.anyio

NOON = 1_800_000_000.0
KEY = RunKey("r1", "a", None)


class Reader:
    """One stream as a client sees it, event by event."""

    def __init__(self, incoming: Any) -> None:
        self.incoming = incoming
        self.head: list[str] = []
        self.id = ""

    async def begin(self) -> None:
        head = await self.incoming.readuntil(b"\r\n\r\n")
        self.head = head.decode().lower().split("\r\n")

    async def block(self) -> list[str]:
        """The lines up to the next empty one, chunk framing taken off."""
        lines: list[str] = []
        while True:
            raw = (await self.incoming.readline()).decode()
            if not raw:
                raise EOFError
            text = raw.rstrip("\n")
            if text.endswith("\r"):  # the frame of a chunk: its size, or the end of its data
                if text == "0\r":
                    raise EOFError
                continue
            if text == "":
                return lines
            lines.append(text)

    async def event(self) -> tuple[str, Any]:
        """The next event and its data; comments and advice to the browser are passed over."""
        while True:
            fields = dict(line.split(": ", 1) for line in await self.block())
            if "id" in fields:
                self.id = fields["id"]
            if "event" in fields:
                return fields["event"], json.loads(fields["data"])

    async def rest(self) -> list[tuple[str, Any]]:
        found = []
        try:
            while True:
                found.append(await self.event())
        except EOFError:
            return found


@pytest.fixture
def stream() -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(client: Any, target: str, last: str = "") -> AsyncIterator[Reader]:
        incoming, outgoing = await client.open()
        try:
            given = f"Last-Event-ID: {last}\r\n" if last else ""
            outgoing.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{given}\r\n".encode())
            reader = Reader(incoming)
            await reader.begin()
            yield reader
        finally:
            outgoing.close()

    return opened


def say(host: Any, first: int, *texts: str, stream: str = "stdout", run: str = "r1") -> None:
    host.hub.extend(run, LineBatch(RunKey(run, "a", None), stream, "", first, texts, NOON))


def live(host: Any, *runs: str) -> None:
    host.set(live={"a": tuple(LiveRun(RunKey(run, "a", None), 7, NOON) for run in runs)} if runs else {})


def over(host: Any, run: str, **kept: Any) -> None:
    record = RunRecord(RunKey(run, "a", None), Outcome.SUCCESS, 0, NOON, NOON + 1, 1.0, **kept)
    host.set(live={}, history={"a": (*host.state.history.get("a", ()), record)})


async def test_a_tail_has_old_lines_then_new_ones_then_the_end(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    host.hub.open("r1")
    live(host, "r1")
    say(host, 1, "one", "two\rlines?")
    mine = {"X-Mine": "yes", "Content-Type": "text/html"}
    async with serve(headers=mine) as call, stream(call, "/jobs/a/logs") as tail:
        assert {
            "content-type: text/event-stream",
            "x-accel-buffering: no",
            "cache-control: no-cache",
            "x-mine: yes",
        } <= set(tail.head)
        assert await tail.event() == ("run", {"run_id": "r1", "started_at": None})
        kind, data = await tail.event()
        assert (kind, data["stream"], data["line"], data["number"]) == ("line", "stdout", "one", 1)
        assert (await tail.event())[1]["line"] == "two\rlines?"
        assert tail.id == "r1:2"
        say(host, 3, "three", stream="stderr")
        assert (await tail.event())[1] == {
            "stream": "stderr",
            "line": "three",
            "number": 3,
            "at": "2027-01-15T08:00:00+00:00",
        }
        host.hub.close("r1")
        assert await tail.rest() == [("end", {})]


async def test_a_reader_that_comes_back_loses_nothing_and_sees_nothing_twice_although_the_next_run_lives(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    host.hub.open("r1")
    live(host, "r1")
    say(host, 1, *[f"line {n}" for n in range(1, 51)])
    async with serve() as call:
        seen = []
        async with stream(call, "/jobs/a/logs") as tail:
            await tail.event()
            seen += [(await tail.event())[1]["number"] for _ in range(20)]
            last = tail.id
        say(host, 51, *[f"line {n}" for n in range(51, 101)])
        host.hub.close("r1")
        over(host, "r1")
        host.hub.open("r2")
        live(host, "r2")
        say(host, 1, "of the next run", run="r2")
        async with stream(call, "/jobs/a/logs", last) as tail:
            *lines, end = await tail.rest()
        assert end == ("end", {})
        seen += [data["number"] for _, data in lines]
        assert seen == list(range(1, 101))
        async with stream(call, "/jobs/a/logs?run=r2", last) as tail:
            assert await tail.event() == ("run", {"run_id": "r2", "started_at": None})
            assert (await tail.event())[1]["line"] == "of the next run"


async def test_a_bare_number_is_the_last_line_of_the_run_that_is_shown(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    host.hub.open("r1")
    over(host, "r1")
    say(host, 1, "one", "two", "three")
    host.hub.close("r1")
    async with serve() as call, stream(call, "/jobs/a/logs", "2") as tail:
        assert [(kind, data.get("line")) for kind, data in await tail.rest()] == [("line", "three"), ("end", None)]


async def test_what_was_overwritten_meanwhile_is_a_gap_with_its_numbers(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    host.hub.open("r1")
    over(host, "r1")
    say(host, 1, *["x"] * (LINES_PER_RUN + 10))
    host.hub.close("r1")
    async with serve() as call, stream(call, "/jobs/a/logs", "r1:4") as tail:
        found = await tail.rest()
    assert found[0] == ("gap", {"from": 5, "to": 10})
    assert [data["number"] for kind, data in found if kind == "line"] == list(range(11, LINES_PER_RUN + 11))


async def test_a_run_whose_lines_are_forgotten_shows_what_its_record_kept(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    over(host, "r1", stdout="one\ntwo\n", stderr="bad\n")
    async with serve() as call, stream(call, "/jobs/a/logs?run=r1") as tail:
        found = await tail.rest()
    lines = [(data["number"], data["stream"], data["line"]) for kind, data in found if kind == "line"]
    assert lines == [(1, "stdout", "one"), (2, "stdout", "two"), (3, "stderr", "bad")]
    assert found[-1] == ("end", {})


async def test_a_reader_of_what_a_record_kept_comes_back_and_loses_nothing(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    over(host, "r1", stdout="1\n2\n3\n4\n", stderr="5\n6\n")
    seen, last = [], ""
    async with serve() as call:
        for _ in range(3):
            async with stream(call, "/jobs/a/logs", last) as tail:
                if not last:
                    assert (await tail.event())[0] == "run"
                seen.append((await tail.event())[1]["line"])
                last = tail.id
        assert (seen, last) == (["1", "2", "3"], "r1:kept-3")
        async with stream(call, "/jobs/a/logs?run=r1", last) as tail:
            found = await tail.rest()
        async with stream(call, "/jobs/a/logs", "r1:kept-6") as tail:
            assert await tail.rest() == [("end", {})]
    assert [data["line"] for _, data in found[:-1]] == ["4", "5", "6"]
    assert found[-1] == ("end", {})


@pytest.mark.parametrize("last", ["r1:3", "r1:kept-3"])
@pytest.mark.parametrize("target", ["/jobs/a/logs", "/jobs/a/logs?run=r1"])
@pytest.mark.parametrize("has_a_record", [True, False])
async def test_a_reader_that_comes_back_to_a_run_that_is_forgotten_is_not_told_that_it_has_all(
    serve: Any, host: Any, make_job: Any, stream: Any, last: str, target: str, has_a_record: bool
) -> None:
    host.add(make_job("a"))
    if has_a_record:
        over(host, "r1")  # as the state store gives it back: without its output
    async with serve() as call, stream(call, target, last) as tail:
        assert await tail.rest() == [("end", {"reason": "forgotten"})]


async def test_lines_of_a_record_are_not_taken_for_those_that_followed_the_last_one_of_the_run(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    over(host, "r1", stdout="998\n999\n1000\n")  # the last three of a thousand
    async with serve() as call, stream(call, "/jobs/a/logs", "r1:2") as tail:
        assert await tail.rest() == [("end", {"reason": "forgotten"})]


async def test_a_reader_that_has_every_line_of_a_run_that_is_remembered_is_told_so(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    host.hub.open("r1")
    over(host, "r1", stdout="one\ntwo\n")
    say(host, 1, "one", "two")
    host.hub.close("r1")
    async with serve() as call, stream(call, "/jobs/a/logs", "r1:2") as tail:
        assert await tail.rest() == [("end", {})]


@pytest.mark.parametrize("known_from", ["live", "history", "decisions"])
async def test_the_run_of_another_job_is_not_shown(
    serve: Any, host: Any, make_job: Any, stream: Any, known_from: str
) -> None:
    host.add(make_job("a"), make_job("b"))
    host.hub.open("r1")
    say(host, 1, "of a", "of a, too")
    over(host, "r1")
    host.hub.close("r1")
    key = RunKey("r2", "b", None)
    host.hub.open("r2")
    host.hub.extend("r2", LineBatch(key, "stdout", "", 1, ("of b", "of b, too"), NOON))
    if known_from == "live":
        host.set(live={"b": (LiveRun(key, 7, NOON),)})
    else:
        host.hub.close("r2")
    if known_from == "history":
        record = RunRecord(key, Outcome.SUCCESS, 0, NOON, NOON + 1, 1.0)
        host.set(history={**host.state.history, "b": (record,)})
    if known_from == "decisions":
        decision = Decision(Verdict.RUN, Reason.MANUAL)
        host.decided.append(DecisionRecord("node-a", "b", None, NOON, decision, "r2"))
    async with serve() as call:
        refused = await call("GET", "/jobs/a/logs?run=r2")
        async with stream(call, "/jobs/a/logs", "r2:1") as tail:
            anew = await tail.rest()
        async with stream(call, "/jobs/b/logs?run=r2", "r2:1") as tail:
            assert (await tail.event())[1]["line"] == "of b, too"
    assert (refused.status, refused.json) == (404, {"error": "'r2' is no run of the job 'a'"})
    assert anew[0] == ("run", {"run_id": "r1", "started_at": "2027-01-15T08:00:00+00:00"})
    assert [data["line"] for kind, data in anew if kind == "line"] == ["of a", "of a, too"]


async def test_a_job_without_output_says_so_and_one_that_is_not_there_is_404(
    serve: Any, host: Any, make_job: Any, stream: Any
) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        async with stream(call, "/jobs/a/logs") as tail:
            assert await tail.rest() == [
                ("run", {"run_id": None, "started_at": None}),
                ("end", {"reason": "no-output"}),
            ]
        missing = await call("GET", "/jobs/b/logs")
        wrong = await call("GET", "/jobs/a/logs?run=")
        head = await call("HEAD", "/jobs/a/logs")
    assert (missing.status, missing.json) == (404, {"error": "there is no job 'b'"})
    assert wrong.status == 400
    assert (head.status, head.headers["content-type"], head.body) == (200, "text/event-stream", b"")


async def test_silence_is_broken_by_comments_and_ends_with_the_service(
    serve: Any, host: Any, make_job: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PING", 0.01)
    host.add(make_job("a"))
    host.hub.open("r1")
    live(host, "r1")
    async with serve() as call:
        incoming, outgoing = await call.open()
        outgoing.write(b"GET /jobs/a/logs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await incoming.readuntil(b": ping\n\n")
        await incoming.readuntil(b": ping\n\n")
    with anyio.fail_after(10):
        rest = await incoming.read()
    assert b"event: end" not in rest
    outgoing.close()


async def test_a_reader_that_does_not_read_is_dropped_and_holds_up_nobody(
    serve: Any,
    host: Any,
    make_job: Any,
    stream: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(streams, "SEND_TIMEOUT", 0.05)
    caplog.set_level("INFO")
    host.add(make_job("a"))
    host.hub.open("r1")
    live(host, "r1")
    async with serve() as call:
        _, deaf = await call.open()
        deaf.transport.pause_reading()
        deaf.write(b"GET /jobs/a/logs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with stream(call, "/jobs/a/logs") as tail:
            await tail.event()
            number = 0
            while "does not read its stream" not in caplog.text:
                number += 1
                say(host, number, "x" * 20_000)
                while (await tail.event())[1].get("number") != number:
                    pass
        deaf.close()
    assert [record.levelname for record in caplog.records if "does not read" in record.message] == ["INFO"]


async def test_more_streams_than_there_may_be_are_refused(
    serve: Any, host: Any, make_job: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST", 1)
    host.add(make_job("a"))
    async with serve() as call, stream(call, "/events") as first:
        await first.event()
        refused = await call("GET", "/events")
        tail = await call("GET", "/jobs/a/logs")
    assert (refused.status, refused.json) == (503, {"error": "1 streams are open, which is the most"})
    assert (tail.status, tail.json) == (refused.status, refused.json)


async def test_streams_leave_a_quarter_of_the_connections_to_others(
    serve: Any, host: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "MOST", 4)
    async with serve() as call, stream(call, "/events") as one, stream(call, "/events") as two:
        async with stream(call, "/events") as three:
            for reader in (one, two, three):
                await reader.event()
            refused = await call("GET", "/events")
        assert (await call("GET", "/healthz")).status == 200
    assert (refused.status, refused.json) == (503, {"error": "3 streams are open, which is the most"})


def decided(verdict: Verdict, reason: Reason, provisional: bool = False) -> Decided:
    record = DecisionRecord("node-a", "a", 1_800_000_000, NOON, Decision(verdict, reason), None, provisional)
    return Decided(record)


async def test_events_have_a_name_each_and_the_facts_of_their_documents(serve: Any, host: Any, stream: Any) -> None:
    async with serve() as call, stream(call, "/events") as reader:
        assert (await reader.event())[0] == "hello"
        host.bus.emit(RunStarted(LiveRun(KEY, 7, NOON)))
        host.bus.emit(RunFinished(RunRecord(KEY, Outcome.FAILURE, 3, NOON, NOON + 1, 1.0, "exit code 3")))
        host.bus.emit(decided(Verdict.SKIP, Reason.PAUSED))
        host.bus.emit(decided(Verdict.SKIP, Reason.NOT_LEADER, provisional=True))
        host.bus.emit(LeaderChanged(True, "node-a", "elected", NOON, "node-a"))
        host.bus.emit(QuorumChanged(False, "alone", NOON, "node-a"))
        host.bus.emit(Reloaded(False, "c.yaml:1:1 wrong", "v1:abc", NOON))
        found = dict([await reader.event() for _ in range(7)])
    assert list(found) == ["started", "finished", "skipped", "decided", "leadership", "quorum", "reloaded"]
    assert (found["started"]["job"], found["started"]["run_id"], found["started"]["pid"]) == ("a", "r1", 7)
    assert (found["finished"]["outcome"], found["finished"]["exit_code"]) == ("failure", 3)
    assert (found["skipped"]["reason"], found["decided"]["reason"]) == ("paused", "not-leader")
    assert found["leadership"] == {
        "node": "node-a",
        "is_leader": True,
        "leader": "node-a",
        "reason": "elected",
        "at": "2027-01-15T08:00:00+00:00",
    }
    assert (found["quorum"]["quorate"], found["reloaded"]["error"]) == (False, "c.yaml:1:1 wrong")


async def test_a_reader_hears_of_what_the_node_believes_of_others_and_nobody_looks_while_nobody_reads(
    serve: Any, host: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    real = host.snapshot

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return real()

    async def tick() -> None:
        while True:
            host.clock.advance(eventlog.LOOK)
            await anyio.wait_all_tasks_blocked()

    monkeypatch.setattr(host, "snapshot", counted)
    peer = PeerView("node-b:1", PeerStatus.AGREED, "node-b")
    view = ClusterView("gossip", "node-a", "v1:a", quorate=True, leader="node-b", peers=(peer,))
    host.set(cluster_configured=True, cluster=view)
    async with serve() as call, anyio.create_task_group() as tasks:
        await anyio.wait_all_tasks_blocked()
        unread = looks
        for _ in range(20):
            host.clock.advance(eventlog.LOOK)
            await anyio.wait_all_tasks_blocked()
        assert looks == unread
        tasks.start_soon(tick)
        async with stream(call, "/events?kinds=cluster") as reader:
            assert (await reader.event())[0] == "hello"
            host.set(cluster=dataclasses.replace(view, leader="node-c"))
            moved = await reader.event()
            gone = dataclasses.replace(peer, status=PeerStatus.UNREACHABLE)
            host.set(cluster=dataclasses.replace(view, leader=None, quorate=False, peers=(gone,)))
            lost = await reader.event()
        tasks.cancel_scope.cancel()
    same = {"is_leader": False, "conflict": False}
    assert moved == ("cluster", {"leader": "node-c", "quorate": True, "agreed": 1, **same})
    assert lost == ("cluster", {"leader": None, "quorate": False, "agreed": 0, **same})


async def test_a_reader_of_events_goes_on_where_it_was_or_is_told_that_it_cannot(
    serve: Any, host: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as call:
        async with stream(call, "/events?kinds=quorum") as reader:
            await reader.event()
            host.bus.emit(QuorumChanged(True, "1", NOON, "n"))
            await reader.event()
            last = reader.id
        for n in range(2, 300):
            host.bus.emit(QuorumChanged(True, str(n), NOON, "n"))
            host.bus.emit(LeaderChanged(True, "n", str(n), NOON, "n"))
        async with stream(call, "/events?kinds=quorum", last) as reader:
            await reader.event()
            assert [(await reader.event())[1]["reason"] for _ in range(298)] == [str(n) for n in range(2, 300)]
        for n in range(eventlog.KEPT):
            host.bus.emit(QuorumChanged(True, str(n), NOON, "n"))
            if n % 500 == 0:
                await anyio.lowlevel.checkpoint()
        async with stream(call, "/events", last) as reader:
            await reader.event()
            assert await reader.event() == ("reset", {"reason": "events were missed"})
            assert (await reader.event())[1]["reason"] == "0"
        async with stream(call, "/events", "beef:3") as reader:
            assert await reader.event() == ("reset", {"reason": "the node or its service started anew"})
        wrong = await call("GET", "/events?kinds=quorum,nothing")
    assert wrong.status == 400


async def test_what_waits_for_a_slow_reader_is_bounded_whatever_the_run_writes(host: Any) -> None:
    host.hub.open("r1")
    tail = Tail(host, Written(), Place("r1", 0), None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tail.follow)
        for first in range(1, 5_001, 100):
            say(host, first, *["x" * 400] * 100)
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        chunk = await tail.take()
        assert chunk is not None
        assert PENDING <= len(chunk) < PENDING + 1_000
        tasks.cancel_scope.cancel()


def test_a_line_is_written_once_for_all_its_readers_and_forgotten_in_time() -> None:
    written = Written()
    line = Line(1, "stdout", "x" * 1_000, NOON)
    first = written.line("r1", line)
    assert written.line("r1", line) is first
    assert written.line("r2", line) != first
    for number in range(2, 6_000):
        written.line("r1", Line(number, "stdout", "x" * 1_000, NOON))
    assert written.line("r1", line) is not first
