"""``logs``: nothing is taken for all there is while more may come; and how long a stream may be silent."""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cronstable.cli import ask, logs
from cronstable.cli.ask import PATIENCE, STREAM_SILENCE, Node
from cronstable.cli.logs import logs_command

AT = "2026-11-30T19:50:00+00:00"


def event(kind: str, identity: str = "", **data: Any) -> bytes:
    return f"id: {identity}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def line(number: int, text: str) -> bytes:
    return event("line", f"r1:{number}", stream="stdout", line=text, number=number, at=AT)


RUN = event("run", run_id="r1", started_at=None)
END = event("end")


class Story:
    """A node. ``streams``: what each connection to a log is given; all but those with an end stay open and silent."""

    def __init__(self) -> None:
        self.streams: list[bytes] = []
        self.asked: list[tuple[str, str]] = []
        self.rows: list[dict[str, Any]] = []
        self.entry: dict[str, Any] = {"running": True}
        self.over = threading.Event()
        self.url = ""

    def document(self, path: str) -> dict[str, Any]:
        if path == "/summary":
            return {"generated_at": AT}
        return {"runs": self.rows} if path == "/jobs/a/runs" else self.entry


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    monkeypatch.setattr(logs, "AGAIN", 0.0)
    # So short that it is over whenever a connection is looked at and has nothing.
    monkeypatch.setattr(logs, "SETTLED", 1e-6)
    made = Story()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tail = self.path.startswith("/jobs/a/logs")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if tail else "application/json")
            self.end_headers()
            if not tail:
                self.wfile.write(json.dumps(made.document(self.path)).encode())
                return
            made.asked.append((self.path, self.headers.get("Last-Event-ID", "")))
            body = made.streams.pop(0)
            self.wfile.write(body)
            if b"event: end" not in body:
                made.over.wait()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: stderr is under test."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def shown(story: Story, *more: str) -> Result:
    result = CliRunner().invoke(logs_command, ["a", "--url", story.url, *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_run_that_lives_and_is_silent_has_said_all_by_now(story: Story) -> None:
    story.streams = [RUN + line(1, "one")]
    result = shown(story)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\n", "")


@pytest.mark.parametrize(
    ("rows", "entry"), [([{"run_id": "r1"}], {"running": True}), ([], {"running": False, "queued": False})]
)
def test_the_end_of_a_run_that_is_over_is_waited_for_however_silent_the_node_is(
    story: Story, rows: list[dict[str, Any]], entry: dict[str, Any]
) -> None:
    story.streams = [RUN + line(1, "one"), line(2, "two") + END]
    story.rows, story.entry = rows, entry
    result = shown(story)
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
    assert story.asked == [("/jobs/a/logs", ""), ("/jobs/a/logs?run=r1", "r1:1")]


def test_a_run_that_is_over_and_has_shown_nothing_yet_is_shown_from_its_first_line(story: Story) -> None:
    story.streams = [RUN, RUN + line(1, "one") + END]
    story.rows = [{"run_id": "r1"}]
    result = shown(story)
    assert (result.exit_code, result.stdout) == (0, "one\n")
    assert story.asked == [("/jobs/a/logs", ""), ("/jobs/a/logs?run=r1", "")]


def test_a_log_whose_end_does_not_come_is_an_error(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "STREAM_SILENCE", 0.3)
    story.streams = [RUN + line(1, "one"), b""]
    story.rows = [{"run_id": "r1"}]
    result = shown(story)
    assert result.exit_code == 1
    assert "says nothing more, and the log is not at its end" in result.stderr


def test_a_run_that_was_forgotten_meanwhile_is_not_shown_as_a_whole(story: Story) -> None:
    story.streams = [RUN + line(1, "one"), event("end", reason="forgotten")]
    story.rows = [{"run_id": "r1"}]
    result = shown(story)
    assert (result.exit_code, result.stdout) == (0, "one\n")
    assert result.stderr == "cronstable: run r1: what followed is not kept any more\n"


class Wire(socket.socket):
    """A socket that remembers how long it was told to wait."""

    waits: list[float | None]

    def settimeout(self, value: float | None, /) -> None:
        self.waits.append(value)
        super().settimeout(value)


@pytest.mark.parametrize(("then", "after"), [(None, []), (1.0, [1.0])])
def test_the_silence_of_a_stream_is_counted_by_its_own_measure_although_its_answer_is_the_last(
    then: float | None, after: list[float]
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire(fileno=ours.detach())
        wire.waits = []
        theirs.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + END)
        theirs.shutdown(socket.SHUT_WR)

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self.sock = wire

        node = Node("node", lambda timeout: Connection("node", timeout=timeout))
        with closing(node.stream("/events", then=then)) as stream:
            assert [message.event for message in stream] == ["end"]
        wire.close()
    assert wire.waits == [STREAM_SILENCE, *after]
    assert PATIENCE < STREAM_SILENCE
