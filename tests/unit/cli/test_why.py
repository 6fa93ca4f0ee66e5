"""``cronstable why`` against a server with canned answers; a real daemon answers in ``tests/live``."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cronstable.cli.ask import node_at
from cronstable.cli.main import run as run_cli
from cronstable.cli.why import why_command
from cronstable.core.clock import Instant
from cronstable.core.decision import Reason
from cronstable.core.reasons import WORDS

NEW_YEAR = 1_767_225_600  # 2026-01-01T00:00:00Z


@dataclass(frozen=True)
class StoppedClock:
    wall: float = NEW_YEAR + 43_200

    def now(self) -> Instant:
        return Instant(self.wall, 0.0)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here may wait")


def decision(at: str | None, verdict: str, reason: str, run_id: str | None = None, **evidence: Any) -> dict[str, Any]:
    return {
        "node": "node-a",
        "scheduled_at": at,
        "decided_at": f"{(at or '2026-01-01T11:00:00+00:00')[:19]}.250000+00:00",
        "verdict": verdict,
        "reason": reason,
        "evidence": evidence,
        "run_id": run_id,
        "provisional": False,
    }


def ended(
    run_id: str | None, outcome: str, fail_reason: str | None = None, *, at: str | None = None, attempt: int = 0
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "scheduled_at": at,
        "attempt": attempt,
        "outcome": outcome,
        "duration": 1.5,
        "fail_reason": fail_reason,
    }


@dataclass
class Served:
    """What the server answers, and what it was asked."""

    url: str = ""
    job: dict[str, Any] = field(default_factory=lambda: {"enabled": True, "timezone": "UTC", "scheduled_in": 60.0})
    decisions: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    schedule: dict[str, Any] | None = None
    refusal: tuple[int, bytes] | None = None
    asked: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, bytes]:
        if self.refusal is not None:
            return self.refusal
        asked, _, query = path.partition("?")
        fleet = {"channel": "gossip", "nodes": self.nodes} if self.nodes and "fleet=true" in query else {}
        if asked.endswith("/schedule/why") and self.schedule is None:
            return 404, b'{"error": "there is nothing here"}'
        limit = int(dict(part.split("=") for part in query.split("&") if part).get("limit", 10**9))
        for ending, body in (
            ("/decisions", {"decisions": self.decisions, **fleet}),
            ("/runs", {"runs": self.runs[:limit]}),
            ("/schedule/why", self.schedule),
        ):
            if asked.endswith(ending):
                return 200, json.dumps(body).encode()
        return 200, json.dumps(self.job).encode()


def handler_for(served: Served) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            served.tokens.append(self.headers["Authorization"])
            status, body = served.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: stderr is under test."""

    return Handler


def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def served() -> Iterator[Served]:
    canned = Served()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_for(canned))
    canned.url = f"http://127.0.0.1:{server.server_port}"
    for _ in serving(server):
        yield canned


@pytest.fixture
def on_a_socket() -> Iterator[tuple[Path, Served]]:
    canned = Served()
    with tempfile.TemporaryDirectory(prefix="cw") as directory:
        path = Path(directory) / "web.sock"
        server = socketserver.ThreadingUnixStreamServer(str(path), handler_for(canned))
        for _ in serving(server):
            yield path, canned


def why(*arguments: str, wall: float = NEW_YEAR + 43_200) -> Result:
    result = CliRunner().invoke(why_command, list(arguments), obj=StoppedClock(wall))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_every_reason_has_words() -> None:
    assert sorted(WORDS) == sorted(reason.value for reason in Reason)


def test_a_skip_is_told_with_its_reason_its_facts_and_whom_to_ask(served: Served) -> None:
    served.decisions = [
        decision("2026-01-01T03:00:00+00:00", "run", "leader", "r2"),
        decision(
            "2026-01-01T02:30:00+00:00", "skip", "not-leader", leader="node-b", expiry=NEW_YEAR + 0.5, quorate=True
        ),
    ]
    result = why("backup", "2026-01-01T03:30:00+01:00", "--url", served.url)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "backup, due 2026-01-01T02:30:00Z",
        "  skipped on node-a: another node leads (not-leader)",
        "    leader: node-b, expiry: 2026-01-01T00:00:00Z, quorate: yes",
        "    decided 2026-01-01T02:30:00Z",
        "    ask node-b what it did",
    ]


def test_a_run_is_told_with_what_came_out_of_it(served: Served) -> None:
    served.decisions = [decision("2026-01-01T02:30:00+00:00", "run", "leader", "r1", deadline=5.25, boot=1.0)]
    served.runs = [ended("r1", "failure", "exit code 3")]
    result = why("backup", "02:30", "--url", served.url)
    assert result.stdout.splitlines() == [
        "backup, due 2026-01-01T02:30:00Z",
        "  ran on node-a: this node leads (leader)",
        "    run r1: failure in 1.5 s: exit code 3",
        "    decided 2026-01-01T02:30:00Z",
    ]


def test_the_retries_of_a_run_are_told_with_it(served: Served) -> None:
    due = "2026-01-01T02:30:00+00:00"
    served.decisions = [decision(due, "run", "leader", "r1")]
    served.runs = [
        ended("m1", "success"),
        ended("r2", "success", at=due, attempt=1),
        ended(None, "skipped", at=due),
        ended("r1", "failure", "exit code 3", at=due),
    ]
    result = why("backup", "02:30", "--url", served.url)
    assert [line for line in result.stdout.splitlines() if line.startswith("    run")] == [
        "    run r1: failure in 1.5 s: exit code 3",
        "    run r2 (attempt 1): success in 1.5 s",
    ]


def test_a_run_that_is_not_over_and_one_that_waits_are_told(served: Served) -> None:
    served.decisions = [decision("2026-01-01T02:30:00+00:00", "defer", "queued", "r2", behind="r1")]
    result = why("backup", "--url", served.url)
    assert "  waits on node-a: an earlier run still lives, and this one waits for it to end (queued)" in result.stdout
    assert "    run r2: it lives, or is older than the node's history" in result.stdout
    assert "    behind: r1" in result.stdout


def test_without_a_time_the_newest_decision_is_shown(served: Served) -> None:
    served.decisions = [decision(None, "run", "manual"), decision("2026-01-01T02:30:00+00:00", "run", "leader")]
    result = why("backup", "--url", served.url)
    assert result.stdout.splitlines()[:2] == [
        "backup, asked for by hand or at boot",
        "  ran on node-a: somebody asked for it (manual)",
    ]


def test_a_time_of_day_is_today_s_in_the_zone_of_the_job(served: Served) -> None:
    served.job["timezone"] = "Asia/Tokyo"
    served.decisions = [
        decision("2026-01-01T01:30:00+00:00", "run", "no-election"),  # 10:30 in Tokyo, today
        decision("2025-12-31T01:30:00+00:00", "skip", "paused"),
    ]
    result = why("backup", "10:30", "--url", served.url)
    assert result.exit_code == 0
    assert "due 2026-01-01T01:30:00Z" in result.stdout
    assert "paused" not in result.stdout


def test_a_time_of_day_that_clocks_show_twice_is_both(served: Served) -> None:
    served.job["timezone"] = "Europe/Berlin"
    served.decisions = [
        decision("2027-10-31T01:30:00+00:00", "run", "no-election", "second"),
        decision("2027-10-31T00:30:00+00:00", "run", "no-election", "first"),
    ]
    result = why("backup", "02:30", "--url", served.url, "--json", wall=1_824_980_400)  # noon of that day
    assert [row["run_id"] for row in json.loads(result.stdout)["decisions"]] == ["second", "first"]


def test_a_minute_holds_all_its_seconds_and_text_shows_ten_of_them(served: Served) -> None:
    served.decisions = [decision(f"2026-01-01T02:30:{s:02}+00:00", "run", "leader") for s in reversed(range(60))]
    text = why("backup", "02:30", "--url", served.url).stdout
    listed = json.loads(why("backup", "02:30", "--url", served.url, "--json").stdout)
    one = why("backup", "02:30:07", "--url", served.url).stdout
    assert text.count("backup, due") == 10
    assert text.splitlines()[-1] == "and 50 earlier ones; --json shows all"
    assert len(listed["decisions"]) == 60
    assert one.splitlines()[0] == "backup, due 2026-01-01T02:30:07Z"


def test_slots_that_were_slept_through_are_found_in_the_decision_that_covers_them(served: Served) -> None:
    first, last = NEW_YEAR + 3600, NEW_YEAR + 7200
    served.decisions = [decision("2026-01-01T02:00:00+00:00", "skip", "late-resync", first=first, last=last)]
    result = why("backup", "01:30", "--url", served.url)
    assert "it was noticed too late" in result.stdout
    assert "first: 2026-01-01T01:00:00Z, last: 2026-01-01T02:00:00Z" in result.stdout
    assert why("backup", "00:30", "--url", served.url).exit_code == 1


def test_json_has_the_row_of_the_node_with_words_and_the_run(served: Served) -> None:
    row = decision("2026-01-01T02:30:00+00:00", "run", "leader", "r1", fence=7)
    served.decisions, served.runs = [row], [ended("r1", "success")]
    result = why("backup", "02:30", "--url", served.url, "--json")
    assert json.loads(result.stdout) == {
        "job": "backup",
        "decisions": [{**row, "because": "this node leads", "runs": [ended("r1", "success")]}],
    }


def test_a_reason_of_a_newer_node_is_shown_as_it_is(served: Served) -> None:
    served.decisions = [
        decision("2026-01-01T02:30:00+00:00", "vetoed", "moon-phase", expiry=1e300, depth=0.25, why=None)
    ]
    result = why("backup", "--url", served.url)
    assert (
        "vetoed on node-a: for a reason that this version of cronstable has no words for (moon-phase)" in result.stdout
    )
    assert "expiry: 1e+300, depth: 0.250, why: none" in result.stdout


def test_what_is_not_remembered_is_said_with_how_far_back_memory_goes(served: Served) -> None:
    served.decisions = [decision("2026-01-01T02:30:00+00:00", "run", "leader")]
    result = why("backup", "02:00", "--url", served.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: {served.url} remembers no decision about 'backup' at 2026-01-01T02:00:00Z (it remembers 1, back to "
        "2026-01-01T02:30:00Z); it is due next at 2026-01-01T12:01:00Z\n"
    )


def test_a_time_that_has_not_come_and_a_disabled_job_are_said(served: Served) -> None:
    ahead = why("backup", "13:00", "--url", served.url)
    assert "'backup' at 2026-01-01T13:00:00Z: that time has not come; it is due next at" in ahead.stderr
    served.job = {"enabled": False, "timezone": None, "scheduled_in": None}
    disabled = why("backup", "--url", served.url)
    assert disabled.stderr == f"Error: {served.url} has not decided about 'backup' yet; the job is disabled\n"
    assert (ahead.exit_code, disabled.exit_code) == (1, 1)


def test_names_are_quoted_and_a_prefix_is_kept(served: Served) -> None:
    served.decisions = [decision(None, "run", "manual")]
    assert why("a/b 50%", "--url", f"{served.url}/cron/").exit_code == 0
    assert served.asked[0] == "/cron/jobs/a%2Fb%2050%25"


def test_a_unix_socket_is_asked_by_path_and_by_url(on_a_socket: tuple[Path, Served]) -> None:
    path, served = on_a_socket
    served.decisions = [decision(None, "run", "manual")]
    assert why("backup", "--socket", str(path)).exit_code == 0
    assert why("backup", "--url", f"unix://{path}").exit_code == 0
    assert len(served.asked) == 6


def test_the_first_listener_of_a_configuration_is_asked(served: Served, tmp_path: Path) -> None:
    served.decisions = [decision(None, "run", "manual")]
    config = tmp_path / "cronstable.yaml"
    everywhere = served.url.replace("127.0.0.1", "0.0.0.0")
    config.write_text(f"web: {{listen: ['{everywhere}', 'unix:///nowhere/at/all']}}\njobs: []\n")
    assert why("backup", "-c", str(config)).exit_code == 0
    config.write_text("jobs: []\n")
    without = why("backup", "-c", str(config))
    config.write_text("jobs: [{}]\n")
    broken = why("backup", "-c", str(config))
    assert (without.exit_code, broken.exit_code) == (1, 1)
    assert "has no web.listen" in without.stderr
    assert "cannot be used" in broken.stderr


@pytest.mark.parametrize(
    ("listen", "asked"),
    [
        ("http://0.0.0.0:8080", "127.0.0.1"),
        ("http://*:8080", "127.0.0.1"),
        ("https://[::]:8443", "::1"),
        ("http://cron-a:8080", "cron-a"),
    ],
)
def test_a_node_that_listens_everywhere_is_asked_on_this_machine(listen: str, asked: str) -> None:
    assert node_at(listen).open(1.0).host == asked


def test_the_token_of_a_file_is_sent_and_asked_for_when_it_is_missing(served: Served, tmp_path: Path) -> None:
    served.decisions = [decision(None, "run", "manual")]
    token = tmp_path / "token"
    token.write_text("sesame\n")
    assert why("backup", "--url", served.url, "--token-file", str(token)).exit_code == 0
    assert set(served.tokens) == {"Bearer sesame"}
    served.refusal = (401, b'{"error": "a valid token is needed"}')
    refused = why("backup", "--url", served.url)
    assert refused.exit_code == 1
    assert refused.stderr == f"Error: {served.url}: a valid token is needed; --token-file names a file with a token\n"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"two\nlines"])
def test_a_file_without_a_token_is_refused_before_anything_is_sent(
    served: Served, tmp_path: Path, content: bytes
) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    result = why("backup", "--url", served.url, "--token-file", str(token))
    missing = why("backup", "--url", served.url, "--token-file", str(tmp_path / "none"))
    assert (result.exit_code, missing.exit_code, served.asked) == (1, 1, [])
    assert f"the token file {token} holds" in result.stderr
    assert "cannot be read: No such file or directory" in missing.stderr


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((404, b'{"error": "there is no job \'backup\'"}'), "there is no job 'backup'"),
        ((503, b"{}"), "status 503"),
        ((200, b"hello"), "answers 200 without a JSON object: is this the API of a cronstable 2?"),
        ((404, b"[]"), "answers 404 without a JSON object"),
        ((200, b'{"decisions": 1}'), "the answer has no decisions"),
        ((200, b'{"decisions": [{}]}'), "some decisions lack node"),
    ],
)
def test_an_answer_that_is_of_no_use_is_said_in_one_line(served: Served, refusal: tuple[int, bytes], said: str) -> None:
    served.refusal = refusal
    result = why("backup", "--url", served.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_node_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        gone = why("backup", "--url", url)
    missing = why("backup", "--socket", str(tmp_path / "none.sock"))
    assert (gone.exit_code, missing.exit_code) == (1, 1)
    assert gone.stderr == f"Error: {url} cannot be asked: [Errno 111] Connection refused; is the daemon running?\n"
    assert missing.stderr.endswith("No such file or directory; is the daemon running?\n")


def test_something_that_speaks_no_http_is_said_in_one_line() -> None:
    class Nonsense(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"220 mail.example.org\r\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Nonsense)
    for _ in serving(server):
        result = why("backup", "--url", f"http://127.0.0.1:{server.server_address[1]}")
        assert result.exit_code == 1
        assert "cannot be asked: 220 mail.example.org" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("backup", "--url", "ftp://x"),
        ("backup", "--url", "http://x:port"),
        ("backup", "--url", "http://x", "--socket", "y"),
        ("backup", "25:00", "--url", "http://x"),
        ("backup", "soon", "--url", "http://x"),
        ("backup", "2026-01-01T02:30:00", "--url", "http://x"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...]) -> None:
    result = why(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


def test_without_any_node_the_ways_to_name_one_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cronstable.cli.node.DEFAULT_CONFIG", "/nowhere/at/all")
    result = why("backup")
    assert result.exit_code == 2
    assert "which node? --url http://HOST:PORT, --socket PATH, -c CONFIG, or CRONSTABLE_URL" in result.stderr


def test_the_command_line_knows_it(capsys: pytest.CaptureFixture[str], served: Served) -> None:
    served.decisions = [decision("2026-01-01T02:30:00+00:00", "run", "leader")]
    assert run_cli(["why", "backup", "2026-01-01T02:30:00Z", "--url", served.url]) == 0
    assert "ran on node-a" in capsys.readouterr().out


# -- the whole fleet --------------------------------------------------------------------------------------------------


def asked(name: str | None, problem: str | None = None, *, this: bool = False, host: str = "b:1") -> dict[str, Any]:
    count = 0 if problem else 1
    return {
        "node": name,
        "host": None if this else host,
        "self": this,
        "answered": problem is None,
        "count": count,
        "problem": problem,
    }


def test_what_each_node_decided_about_a_time_stands_together_and_who_is_silent_is_named(served: Served) -> None:
    due = "2026-01-01T02:30:00+00:00"
    served.nodes = [
        asked("node-a", this=True),
        asked("node-b"),
        asked("node-c", "no answer in time"),
        asked("node-d"),
        asked(None, "not in contact", host="e:1"),
    ]
    served.decisions = [
        {**decision(due, "run", "leader", "r1"), "node": "node-b"},
        decision(due, "skip", "not-leader", leader="node-b"),
        decision("2026-01-01T02:00:00+00:00", "skip", "not-leader", leader="node-z"),
        {**decision("2026-01-01T01:00:00+00:00", "skip", "not-leader"), "node": "node-d"},
    ]
    served.runs = [ended("r1", "success", at=due)]
    for arguments in (("backup", "02:30"), ("backup",)):
        assert why(*arguments, "--url", served.url).stdout.splitlines() == [
            "backup, due 2026-01-01T02:30:00Z",
            "  ran on node-b: this node leads (leader)",
            "    run r1: ask node-b what came of it",
            "    decided 2026-01-01T02:30:00Z",
            "  skipped on node-a: another node leads (not-leader)",
            "    run r1: success in 1.5 s",
            "    leader: node-b",
            "    decided 2026-01-01T02:30:00Z",
            "  no decision of node-d (it tells 1, back to 2026-01-01T01:00:00Z)",
            "no answer from node-c: no answer in time",
            "no answer from e:1: not in contact",
        ]
    assert "    ask node-z what it did" in why("backup", "02:00", "--url", served.url).stdout.splitlines()
    told = json.loads(why("backup", "02:30", "--url", served.url, "--json").stdout)
    assert [(row["node"], len(row["runs"])) for row in told["decisions"]] == [("node-b", 0), ("node-a", 1)]
    assert (told["channel"], told["nodes"]) == ("gossip", served.nodes)


def test_what_is_not_remembered_counts_what_the_asked_node_remembers(served: Served) -> None:
    served.nodes = [asked("node-a", this=True), asked("node-b")]
    served.decisions = [{**decision("2026-01-01T02:30:00+00:00", "run", "leader"), "node": "node-b"}]
    assert "(it remembers none)" in why("backup", "02:00", "--url", served.url).stderr


def test_as_many_runs_are_asked_for_as_are_needed(served: Served) -> None:
    times = [f"2026-01-01T{11 - n // 60:02}:{59 - n % 60:02}:00+00:00" for n in range(300)]
    served.decisions = [decision(at, "run", "leader", f"r{n}") for n, at in enumerate(times)]
    served.runs = [ended(f"r{n}", "success", at=at) for n, at in enumerate(times)]
    assert "    run r7: success in 1.5 s" in why("backup", "11:52", "--url", served.url).stdout.splitlines()
    assert [path for path in served.asked if "/runs" in path] == ["/jobs/backup/runs?limit=100"]
    assert "    run r299: success in 1.5 s" in why("backup", "07:00", "--url", served.url).stdout.splitlines()
    assert served.asked[-1] == "/jobs/backup/runs?limit=10000"


# -- a time that was not due ------------------------------------------------------------------------------------------


def scheduled(**changes: Any) -> dict[str, Any]:
    return {
        "job": "backup",
        "schedule": "30 2 * * 1",
        "words": "at 02:30 on Mondays",
        "timezone": "UTC",
        "at": "2026-01-01T02:00:00+00:00",
        "local": "2026-01-01T02:00:00+00:00",
        "fires": False,
        "mark": "none",
        "columns": {"second": True, "minute": False, "hour": True, "day": False, "month": True, "year": True},
        "previous": {"at": "2025-12-29T02:30:00+00:00", "local": "2025-12-29T02:30:00+00:00", "mark": "none"},
        "next": None,
        **changes,
    }


def test_a_time_that_was_not_due_is_said_with_what_does_not_match_and_what_is_around_it(served: Served) -> None:
    served.schedule = scheduled()
    result = why("a&b", "02:00", "--url", served.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "a&b, 2026-01-01T02:00:00Z",
        "  was not due, by the schedule it has now: 30 2 * * 1 (at 02:30 on Mondays)",
        "  that is 2026-01-01T02:00:00+00:00 in its time zone, UTC",
        "  does not match: minute, day of the month or week",
        "  due before: 2025-12-29T02:30:00Z (2025-12-29T02:30:00+00:00)",
        "  due after: never",
    ]
    assert served.asked[-1] == "/schedule/why?job=a%26b&at=2026-01-01T02:00:00Z"
    told = json.loads(why("a&b", "02:00", "--url", served.url, "--json").stdout)
    assert told == {"job": "a&b", "decisions": [], "schedule": served.schedule}


@pytest.mark.parametrize(
    "changes",
    [
        {"fires": True},
        {"next": {"at": "2026-01-01T02:00:30+00:00", "local": "x", "mark": "none"}},
        {"fires": None},
    ],
    ids=["due", "due within the minute", "another API"],
)
def test_a_time_that_was_due_and_is_not_remembered_is_no_time_that_was_not_due(
    served: Served, changes: dict[str, Any]
) -> None:
    served.schedule = scheduled(**changes)
    result = why("backup", "02:00", "--url", served.url)
    assert result.exit_code == 1
    assert "remembers no decision about 'backup' at 2026-01-01T02:00:00Z" in result.stderr


def test_the_schedule_is_not_asked_about_a_time_that_has_not_come(served: Served) -> None:
    served.schedule = scheduled()
    assert "that time has not come" in why("backup", "13:00", "--url", served.url).stderr


def test_a_time_that_the_clocks_leave_out_is_said_to_be_one(served: Served) -> None:
    moved = {"at": "2026-03-29T01:00:00+00:00", "local": "2026-03-29T03:00:00+02:00", "mark": "moved"}
    served.job["timezone"] = "Europe/Berlin"
    served.schedule = scheduled(next=moved, timezone="Europe/Berlin", columns={"minute": False}, fires=True)
    served.decisions = [decision("2026-03-29T00:30:00+00:00", "run", "leader")]  # 01:30: not what is asked about
    noon = 1_774_778_400
    result = why("backup", "02:30", "--url", served.url, wall=noon)
    assert result.stdout.splitlines()[:3] == [
        "backup, 02:30",
        "  was not due, by the schedule it has now: 30 2 * * 1 (at 02:30 on Mondays)",
        "  clocks are set forward on that day and leave this time out",
    ]
    assert result.stdout.splitlines()[4:] == [
        "  due after: 2026-03-29T01:00:00Z (2026-03-29T03:00:00+02:00, moved to the end of what clocks leave out)"
    ]
    served.schedule = scheduled()
    with_offset = why("backup", "2026-03-29T02:30:00+01:00", "--url", served.url, wall=noon)
    assert "  clocks are set forward on that day and leave this time out" in with_offset.stdout.splitlines()
    elsewhere = why("backup", "2026-03-29T02:30:00Z", "--url", served.url, wall=noon)
    assert "leave this time out" not in elsewhere.stdout
