"""``run --wait`` across what happens to the node meanwhile."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cronstable.cli import act
from cronstable.cli.act import run_command

ROW = {"run_id": "r1", "outcome": "success", "exit_code": 0, "duration": 2.0, "fail_reason": None}
IDLE: Mapping[str, Any] = {"running": False}


class Story:
    """A node whose streams each say hello and end. ``marks``, ``entries`` and ``rows`` have one item a question.

    The last item of each goes on for good.
    """

    def __init__(self) -> None:
        self.marks: list[str] = ["a"]
        self.entries: list[Mapping[str, Any]] = [IDLE]
        self.rows: list[list[Mapping[str, Any]]] = [[]]
        self.more = b""
        self.streams = 0
        self.url = ""

    def answer(self, path: str) -> tuple[str, bytes]:
        def now(items: list[Any]) -> Any:
            return items.pop(0) if len(items) > 1 else items[0]

        if path.startswith("/events"):
            self.streams += 1
            return "text/event-stream", b"id: %s:5\nevent: hello\ndata: {}\n\n" % now(self.marks).encode() + self.more
        found = {"runs": now(self.rows)} if path.startswith("/jobs/a/runs") else now(self.entries)
        return "application/json", json.dumps(found).encode()


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    monkeypatch.setattr(act, "AGAIN", 0.0)
    made = Story()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(*made.answer(self.path))

        def do_POST(self) -> None:
            self.say("application/json", b'{"started": "a", "run_id": "r1"}')

        def say(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: stderr is under test."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


def waited(story: Story) -> Result:
    result = CliRunner().invoke(run_command, ["a", "--wait", "--url", story.url])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_run_that_a_restarted_node_knows_nothing_of_is_waited_for_no_longer(story: Story) -> None:
    story.marks = ["a", "b"]
    result = waited(story)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "started anew, and the node forgot the run r1 of 'a'" in result.stderr
    assert story.streams == 2


@pytest.mark.parametrize("busy", [{"running": True}, {"running": False, "queued": True}, {"retry": {"attempt": 1}}])
def test_a_restarted_node_that_is_at_it_is_waited_for(story: Story, busy: Mapping[str, Any]) -> None:
    story.marks = ["a", "b", "b", "c"]
    story.entries = [busy, busy]
    story.rows = [[], [], [], [], [ROW]]
    result = waited(story)
    assert (result.exit_code, result.stdout) == (0, "a: success in 2.0 s\n")


def test_a_restarted_node_that_was_at_another_run_is_asked_again_when_that_is_over(story: Story) -> None:
    story.marks = ["a", "b"]
    story.entries = [{"running": True}, IDLE]
    story.more = b'id: b:6\nevent: finished\ndata: {"job": "a", "run_id": "r2"}\n\n'
    result = waited(story)
    assert (result.exit_code, "forgot the run r1" in result.stderr) == (1, True)
    assert story.streams == 2


def test_a_run_that_ends_while_the_node_is_asked_is_not_forgotten(story: Story) -> None:
    story.marks, story.rows = ["a", "b"], [[], [], [ROW]]
    assert waited(story).exit_code == 0
    assert story.streams == 2


def test_a_lost_stream_alone_forgets_nothing(story: Story) -> None:
    story.rows = [[], [], [], [], [ROW]]  # it waits for a slot, say, and is neither running nor queued here
    assert waited(story).exit_code == 0
    assert story.streams == 5
