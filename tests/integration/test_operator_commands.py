"""The operator's commands as they are typed, against a real daemon that asks for tokens."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cronstable.cli import logs
from cronstable.cli.main import run

pytestmark = pytest.mark.integration

DEADLINE = 60.0
JOBS: list[dict[str, Any]] = [
    {
        "name": "good",
        "command": "echo one; echo two >&2",
        "captureStdout": True,
        "failsWhen": {"producesStdout": False, "producesStderr": False},
        "environment": [{"key": "MODE", "value": "1234"}],
    },
    {
        "name": "bad job/1",
        "command": "exit 3",
        "onFailure": {
            "report": {
                "mail": {
                    "from": "a@example.org",
                    "to": "b@example.org",
                    "smtpHost": "127.0.0.1",
                    "smtpPort": 1,
                    "password": {"value": "sesame"},
                }
            }
        },
    },
    {"name": "chatty", "command": "while :; do echo word; sleep 0.1; done", "captureStdout": True},
    {"name": "ticker", "command": "echo tick", "captureStdout": True, "schedule": "* * * * * * *"},
]


class Daemon:
    """A running daemon and the files around it."""

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port
        self.config = directory / "cronstable.yaml"
        self.socket = directory / "api.sock"
        self.token = directory / "token"
        self.token.write_text("letmein\n", encoding="utf-8")
        tokens = [
            {"fromFile": str(self.token), "scopes": ["control"], "label": "ops"},
            {"value": "look", "scopes": ["view"], "label": "wall"},
        ]
        web = {"listen": [f"http://127.0.0.1:{self.port}", f"unix://{self.socket}"], "authTokens": tokens}
        self.document = {"jobs": [{"schedule": "@yearly", **job} for job in JOBS], "web": web}
        self.config.write_text(yaml.safe_dump(self.document), encoding="utf-8")
        self.log = directory / "log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "cronstable", "-c", str(self.config)], stderr=log)

    def until_it_answers(self) -> None:
        def answers() -> bool:
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self.socket)) == 0

        self.until(answers)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert self.process.poll() is None, self.log.read_text("utf-8")
            assert time.monotonic() < deadline, self.log.read_text("utf-8")
            select.select([], [], [], 0.1)

    def children(self) -> list[int]:
        """The processes of the runs that talk without an end."""
        found: list[int] = []

        def look() -> bool:
            listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            found[:] = [int(pid) for pid in listed if b"echo word" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            return bool(found)

        self.until(look)
        return found

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "cronstable", *words]

    @property
    def environ(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CRONSTABLE_", "_CRONSTABLE"))}
        return {**kept, "CRONSTABLE_URL": f"unix://{self.socket}", "CRONSTABLE_TOKEN_FILE": str(self.token)}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]) -> Iterator[Daemon]:
    # The path of a unix socket is short.
    one = Daemon(tmp_path_factory.mktemp("d"), *free_ports(1))
    try:
        yield one
    finally:
        one.process.terminate()
        one.process.wait(DEADLINE)


@pytest.fixture
def cronstable(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; its exit code, stdout and stderr."""
    for name in ("CRONSTABLE_URL", "CRONSTABLE_TOKEN", "CRONSTABLE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in daemon.environ.items():
        if name.startswith("CRONSTABLE_"):
            monkeypatch.setenv(name, value)

    def typed(*words: str) -> tuple[int, str, str]:
        code = run(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    daemon.until(lambda: typed("status", "--json")[0] == 0)
    return typed


def test_the_jobs_are_listed_and_picked_by_pattern(cronstable: Any) -> None:
    code, out, _ = cronstable("list")
    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines()] == ["JOB", "good", "bad job/1", "chatty", "ticker"]
    assert "every second" in out
    assert [row["name"] for row in json.loads(cronstable("list", "*o*", "--json")[1])] == ["good", "bad job/1"]
    assert cronstable("list", "nope") == (1, "", "Error: no job is called 'nope'\n")


def test_a_run_is_started_and_waited_for_and_its_end_is_the_exit_code(cronstable: Any) -> None:
    code, out, err = cronstable("run", "good", "--wait")
    assert code == 0
    assert out.startswith("good: success in ")
    assert err.startswith("started good, run ")
    code, out, _ = cronstable("run", "bad job/1", "--wait", "--json")
    assert (code, json.loads(out)["exit_code"]) == (1, 3)
    code, out, _ = cronstable("runs", "bad job/1", "-n", "1")
    assert code == 0
    assert "failsWhen=nonzeroReturn and retcode=3" in out.splitlines()[2]
    code, out, _ = cronstable("status")
    assert (code, out.splitlines()[2].split()[0]) == (0, "failed")  # the failing ones come first
    assert cronstable("run", "nope")[0] == 1


def test_the_log_of_a_run_that_is_over_is_printed_by_stream(cronstable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a machine that is so busy that the node is silent in the middle of it.
    monkeypatch.setattr(logs, "SETTLED", 1e-6)
    cronstable("run", "good", "--wait")
    assert cronstable("logs", "good") == (0, "one\n", "two\n")
    lines = [json.loads(line) for line in cronstable("logs", "good", "--json")[1].splitlines()]
    assert sorted((line["stream"], line["line"]) for line in lines) == [("stderr", "two"), ("stdout", "one")]


def test_the_log_of_a_run_that_never_stops_talking_ends_where_it_was_asked_for(cronstable: Any) -> None:
    assert cronstable("run", "chatty")[0] == 0
    code, out, deadline = 0, "", time.monotonic() + DEADLINE
    while code == 0 and not out:  # it may not have said anything yet
        assert time.monotonic() < deadline
        code, out, _ = cronstable("logs", "chatty")
    assert (code, set(out.splitlines())) == (0, {"word"})
    assert cronstable("cancel", "chatty")[1] == "cancelled chatty: 1 run\n"
    code, _, err = cronstable("cancel", "good")
    assert code == 1
    assert err.endswith("the job is not running\n")


def test_a_followed_log_goes_on_with_the_next_runs_until_ctrl_c(daemon: Daemon, cronstable: Any) -> None:
    assert cronstable("status")[0] == 0
    follow = subprocess.Popen(
        daemon.command("logs", "-f", "ticker"), stdout=subprocess.PIPE, env=daemon.environ, text=True
    )
    assert follow.stdout is not None
    assert [follow.stdout.readline() for _ in range(3)] == ["tick\n"] * 3  # each line is another run
    follow.send_signal(signal.SIGINT)
    assert follow.wait(DEADLINE) == 130
    follow.stdout.close()


def test_a_pause_has_an_end_and_a_note_and_is_ended(cronstable: Any) -> None:
    assert cronstable("pause", "good", "--for", "2h", "--note", "disk is full")[1].startswith("paused good until 20")
    assert "disk is full" in cronstable("status", "good")[1]
    assert cronstable("resume", "good")[1] == "resumed good\n"
    assert json.loads(cronstable("status", "good", "--json")[1])["jobs"][0]["paused"] is None
    assert cronstable("pause", "good", "--until", "2000-01-01T00:00:00Z")[0] == 1
    assert cronstable("pause", "good", "--until", "2099-01-01T00:00:00")[0] == 2
    assert cronstable("pause", "good", "--for", "1h", "--until", "2099-01-01T00:00:00Z")[0] == 2


def test_what_a_reload_would_change_is_told(
    daemon: Daemon, cronstable: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cronstable("diff", str(daemon.config)) == (0, "nothing would change\n", "")
    other = tmp_path / "other.yaml"
    mail: dict[str, Any] = {"from": "a@example.org", "to": "b@example.org", "smtpHost": "127.0.0.1"}
    mail |= {"smtpPort": 1, "password": {"value": "other"}}
    jobs = [
        {"schedule": "@yearly", **JOBS[0], "command": "echo other", "environment": [{"key": "MODE", "value": "9999"}]},
        {"schedule": "@yearly", **JOBS[1], "onFailure": {"report": {"mail": {**mail, "subject": "gone wrong"}}}},
        {"name": "new", "command": "true", "schedule": "@daily"},
    ]
    other.write_text(yaml.safe_dump({"jobs": jobs}, sort_keys=False), encoding="utf-8")
    lines = [line.strip() for line in other.read_text(encoding="utf-8").splitlines()]

    def at(text: str) -> str:
        return f"  [{other}:{lines.index(text) + 1}]"

    common = [
        "- chatty",
        "- ticker",
        f"+ new{at('- name: new')}",
        "~ good",
        f"    command: echo one; echo two >&2 -> echo other{at('command: echo other')}",
    ]
    mailed = f"    onFailure.report.mail.subject: (none) -> gone wrong{at('subject: gone wrong')}"
    code, out, _ = cronstable("diff", str(other))
    assert (code, out.splitlines()) == (
        3,
        [
            *common,
            f"    environment: a hidden value changes{at('environment:')}",
            "~ bad job/1",
            mailed,
            f"    onFailure: a hidden value changes{at('onFailure:')}",
        ],
    )
    whole = json.loads(cronstable("diff", str(other), "--json")[1])
    assert (whole["added"], whole["untold"]) == (["new"], {})
    assert whole["changed"]["good"]["command"] == {
        "old": "echo one; echo two >&2",
        "new": "echo other",
        "file": str(other),
        "line": lines.index("command: echo other") + 1,
    }
    monkeypatch.delenv("CRONSTABLE_TOKEN_FILE")
    monkeypatch.setenv("CRONSTABLE_TOKEN", "look")
    code, out, _ = cronstable("diff", str(other))
    untold = "not compared: hidden values of 2 job(s) under environment, onFailure"
    assert (code, out.splitlines()) == (3, [*common, "~ bad job/1", mailed, untold])
    code, out, _ = cronstable("diff", str(daemon.config))
    assert (code, out.splitlines()) == (0, ["nothing would change", untold])
    other.write_text("jobs: 3\n", encoding="utf-8")
    assert cronstable("diff", str(other))[0] == 1


def test_who_may_not_is_told_what_is_missing(cronstable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRONSTABLE_TOKEN_FILE")
    code, _, err = cronstable("list")
    assert code == 1
    assert "a valid token is needed; --token-file names a file with a token" in err
    monkeypatch.setenv("CRONSTABLE_TOKEN", "look")
    assert cronstable("list")[0] == 0
    code, _, err = cronstable("run", "good")
    assert code == 1
    assert "token 'wall' lacks the scope 'control'" in err


def test_no_command_takes_a_token_on_its_command_line(cronstable: Any) -> None:
    code, _, err = cronstable("list", "--token", "letmein")
    assert code == 2
    assert "--token-file" in err


def test_watching_on_a_terminal_shows_the_jobs_again_and_again(daemon: Daemon, cronstable: Any) -> None:
    assert cronstable("status")[0] == 0
    ours, theirs = pty.openpty()
    command = daemon.command("status", "--watch", "--interval", "0.5")
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**daemon.environ, "TERM": "xterm"})
    os.close(theirs)
    try:
        seen, deadline = "", time.monotonic() + DEADLINE
        while seen.count("ticker") < 2:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 1.0)[0]:
                seen += os.read(ours, 65536).decode("utf-8", "replace")
        assert "\x1b[" in seen
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cronstable re", {"resume"}),
        ("cronstable pause --n", {"--note"}),
        ("cronstable run ", {"good", "bad job/1", "chatty", "ticker"}),
        ("cronstable next ch", {"chatty"}),
        ("cronstable logs -f ch", {"chatty"}),
        ("cronstable completion f", {"fish"}),
    ],
)
def test_commands_options_and_jobs_are_completed(
    line: str, expected: set[str], cronstable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_CRONSTABLE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_WORDBREAKS", " ")
    code, out, _ = cronstable()
    assert code == 0
    assert {line.partition(",")[2] for line in out.splitlines()} == expected


def test_without_a_daemon_the_names_come_from_the_configuration(
    daemon: Daemon, cronstable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRONSTABLE_URL", "http://127.0.0.1:9")
    assert cronstable("list")[0] == 1
    monkeypatch.setenv("_CRONSTABLE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", f"cronstable run -c {daemon.config} goo")
    monkeypatch.setenv("COMP_WORDBREAKS", " ")
    assert cronstable()[1] == "plain,good\n"


def test_every_command_says_how_it_ends_and_shows_an_example(cronstable: Any) -> None:
    looking = ("list", "status", "runs", "logs", "next", "pressure", "duplicates", "suggest", "calendar")
    for name in (*looking, "run", "cancel", "pause", "resume", "diff", "completion"):
        code, out, _ = cronstable(name, "--help")
        assert code == 0
        assert "Ends with 0" in " ".join(out.split()), name
        assert out.count("cronstable ") >= 2, name


def test_a_run_whose_daemon_was_killed_and_started_again_is_not_waited_for_for_ever(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    one = Daemon(tmp_path, *free_ports(1))
    waiting = None
    try:
        one.until_it_answers()
        command = one.command("run", "chatty", "--wait")
        waiting = subprocess.Popen(command, env=one.environ, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith("started chatty, run ")
        (shell,) = one.children()
        one.process.kill()
        one.process.wait(DEADLINE)
        os.killpg(shell, signal.SIGKILL)
        one.start()
        _, said = waiting.communicate(timeout=DEADLINE)
        assert (waiting.returncode, "forgot the run" in said) == (1, True), said
    finally:
        if waiting is not None and waiting.poll() is None:
            waiting.kill()
            waiting.communicate()
        one.process.terminate()
        one.process.wait(DEADLINE)
