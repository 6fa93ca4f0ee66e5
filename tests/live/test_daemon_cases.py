"""Cases of a whole daemon as data: what a user does to it, step by step, and what has to be there at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.integration

EXTRA = Path(__file__).parents[1] / "cases" / "extra"
PATIENCE = 25.0
"""Seconds for any step on a busy machine."""

Wait = Callable[[Callable[[], object], float, str], None]


def cases() -> list[Any]:
    found = [yaml.safe_load(path.read_text()) for path in sorted(EXTRA.glob("*.yaml"))]
    return [pytest.param(case, id=case["id"]) for case in found if case["input"].get("how") == "daemon"]


class Stage:
    """A daemon, its directory, and the steps that cases are made of. Methods named ``do_*`` are steps."""

    def __init__(self, directory: Path, waiting: Wait, number: int) -> None:
        self.directory = directory
        self._wait = waiting
        self.unique = f"sleep 7{os.getpid():06d}.{number}"
        self.process: subprocess.Popen[bytes] | None = None
        self._mark = ""

    # -- looking --------------------------------------------------------------------------------------------------

    def says(self, text: str) -> bool:
        """The log has it."""
        return text in self.text()

    def text(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def after_mark(self) -> str:
        return self.text().split(self._mark, 1)[1]

    def until(self, condition: Callable[[], object], what: object) -> None:
        self._wait(condition, PATIENCE, f"{what}\n{self.text()[-3000:]}")

    def ask(self, method: str, path: str) -> tuple[int, Any]:
        connection = HTTPConnection("localhost", timeout=5)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5)
        try:
            connection.sock.connect(str(self.directory / "web.sock"))
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if body.startswith((b"{", b"[")) else body
        except (OSError, HTTPException):
            return 0, None
        finally:
            connection.close()

    def living(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line == self.unique:
                        found.append(int(entry.name))
        return found

    # -- steps ----------------------------------------------------------------------------------------------------

    def jobs(self, jobs: list[Mapping[str, Any]]) -> str:
        web = {"listen": [f"unix://{self.directory / 'web.sock'}"]}
        return yaml.safe_dump({"web": web, "jobs": jobs}).replace("UNIQUE", self.unique)

    def do_config(self, jobs: list[Mapping[str, Any]]) -> None:
        (self.directory / "cronstable.yaml").write_text(self.jobs(jobs))

    def do_rename_config(self, jobs: list[Mapping[str, Any]]) -> None:
        (self.directory / "new").write_text(self.jobs(jobs))
        (self.directory / "new").rename(self.directory / "cronstable.yaml")

    def do_restart(self, _: object = None) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cronstable", "-c", "cronstable.yaml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.directory,
            )
        self.until(lambda: self.ask("GET", "/readyz")[0] == 200, "the daemon to be ready")

    def do_kill(self, _: object = None) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)

    def do_signal(self, name: str) -> None:
        assert self.process is not None
        # The daemon may be gone by the last of several.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.Signals[f"SIG{name}"])

    def do_start(self, job: str) -> None:
        assert self.ask("POST", f"/jobs/{job}/start")[0] == 200

    def do_refused(self, job: str) -> None:
        assert self.ask("POST", f"/jobs/{job}/start")[0] == 409

    def do_cancel(self, job: str) -> None:
        assert self.ask("POST", f"/jobs/{job}/cancel")[0] == 200

    def do_gone(self, job: str) -> None:
        self.until(lambda: self.ask("GET", f"/jobs/{job}")[0] == 404, f"{job} to be gone")

    def do_there(self, job: str) -> None:
        self.until(lambda: self.ask("GET", f"/jobs/{job}")[0] == 200, f"{job} to be there")

    def do_ended(self, wanted: list[str]) -> None:
        job, outcome = wanted

        def over() -> bool:
            status, body = self.ask("GET", f"/jobs/{job}")
            last = body.get("last_run") if status == 200 else None
            return last is not None and last["outcome"] == outcome

        self.until(over, f"{job} to end with {outcome}")

    def do_living(self, count: int) -> None:
        self.until(lambda: len(self.living()) >= count, f"{count} processes")

    def do_file(self, file: list[str]) -> None:
        (self.directory / file[0]).write_text(file[1])

    def do_remove(self, name: str) -> None:
        (self.directory / name).unlink()

    def do_link(self, link: list[str]) -> None:
        (self.directory / "link").symlink_to(link[1])
        (self.directory / "link").rename(self.directory / link[0])

    def do_mark(self, text: str) -> None:
        self.until(lambda: text in self.text(), text)
        self._mark = text

    def log(self, text: str, times: int) -> None:
        self.until(lambda: (self.after_mark() if self._mark else self.text()).count(text) >= times, text)

    def step(self, step: Mapping[str, Any]) -> None:
        if "log" in step:
            self.log(step["log"], step.get("times", 1))
        else:
            ((name, value),) = step.items()
            getattr(self, f"do_{name}")(value)


@pytest.fixture
def stage(tmp_path: Path, waiting: Wait, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(tmp_path, waiting, abs(hash(request.node.name)) % 10_000)
    yield made
    made.do_kill()
    for pid in made.living():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("case", cases())
def test_a_daemon_does_what_its_case_says(case: Mapping[str, Any], stage: Stage) -> None:
    given, expected = case["input"], case["expected"]
    for name, text in given.get("files", {}).items():
        (stage.directory / name).parent.mkdir(exist_ok=True)
        (stage.directory / name).write_text(text)
    for name, target in given.get("links", {}).items():
        (stage.directory / name).symlink_to(target)
    stage.do_config(given["jobs"])
    stage.do_restart()
    for step in given["steps"]:
        stage.step(step)
    if "exit_code" in expected:
        assert stage.process is not None
        assert stage.process.wait(PATIENCE) == expected["exit_code"]
    if "processes_left" in expected:
        stage.until(lambda: len(stage.living()) == expected["processes_left"], "the end of the processes")
    for text in expected.get("log_has", ()):
        stage.until(partial(stage.says, text), f"the log to say {text!r}")
    for text in expected.get("log_lacks", ()):
        assert text not in stage.text()
    for text in expected.get("log_lacks_after_mark", ()):
        assert text not in stage.after_mark()
    for text, count in expected.get("log_count", {}).items():
        assert stage.text().count(text) == count
    assert "Traceback" not in stage.text()
