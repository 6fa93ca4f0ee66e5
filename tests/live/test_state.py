"""Durable state on a real directory: what comes back after kill -9, and a store that hangs."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

PATIENCE = 30.0
Wait = Callable[[Callable[[], object], float, str], None]


PLAIN = """\
import ctypes, os, sys
if os.geteuid() == 0:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
            sys.exit("cannot give up root's way past the modes of files")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Starts Python with the rest of the arguments as one to whom the modes of files apply, also where root runs this."""


class Daemon:
    """A daemon whose state is in a directory beside its log."""

    def __init__(self, directory: Path, waiting: Wait) -> None:
        self.directory = directory
        self.state = directory / "state" / "default"
        self._wait = waiting
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, jobs: str, *, ready: bool = True, plain: bool = False, text: str | None = None) -> None:
        config = self.directory / "cronstable.yaml"
        web = f"web:\n  listen: ['unix://{self.directory / 'web.sock'}']\n"
        config.write_text(text or f"{web}state:\n  path: {self.directory / 'state'}\njobs:\n{jobs}")
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *(("-c", PLAIN) if plain else ()), "-m", "cronstable", "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.directory,
            )
        if ready:
            self.until(lambda: self.ask("GET", "/readyz")[0] == 200, "the daemon to be ready")

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0

    def text(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def until(self, condition: Callable[[], object], what: str) -> None:
        self._wait(condition, PATIENCE, f"{what}\n{self.text()[-3000:]}")

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("localhost", timeout=5)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5)
        try:
            connection.sock.connect(str(self.directory / "web.sock"))
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data.startswith((b"{", b"[")) else data
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def job(self, name: str) -> dict[str, Any]:
        """What the API says of a job; nothing when it does not answer."""
        return self.ask("GET", f"/jobs/{name}")[1] or {}

    def decided(self, job: str) -> int:
        """The watermark of a job, as it stands in the store; 0 while it catches up."""
        try:
            newest = max(self.state.glob(f"records/catchup%2F{job}/*.json"))
            record = json.loads(newest.read_text().splitlines()[0])
        except (OSError, ValueError):
            return 0
        through: int = record["data"]["through"]
        return through if record["data"]["kind"] == "close" else 0

    def outcomes(self, job: str) -> list[str]:
        status, answer = self.ask("GET", f"/jobs/{job}/runs")
        return [run["outcome"] for run in answer["runs"]] if status == 200 else []


@pytest.fixture
def daemon(tmp_path: Path, waiting: Wait) -> Iterator[Daemon]:
    made = Daemon(tmp_path, waiting)
    yield made
    made.kill()
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


LONG = """\
  - name: long
    command: echo $$ > pid.new; mv pid.new pid; exec sleep 600
    schedule: '@yearly'
    concurrencyPolicy: Forbid
  - name: short
    command: 'echo the password is $DB_PASSWORD'
    schedule: '@yearly'
    captureStdout: true
    archiveOutput: true
    environment:
    - {key: DB_PASSWORD, value: hunter22}
"""


def test_a_killed_daemon_comes_back_with_its_history_its_pauses_and_the_run_that_outlived_it(daemon: Daemon) -> None:
    daemon.start(LONG)
    assert daemon.ask("POST", "/jobs/short/start")[0] == 200
    daemon.until(lambda: daemon.outcomes("short") == ["success"], "the short run")
    assert daemon.ask("POST", "/jobs/short/pause", '{"durationSeconds": 3600, "note": "tea"}')[0] == 200
    assert daemon.ask("POST", "/jobs/long/start")[0] == 200
    daemon.until((daemon.directory / "pid").exists, "the long run")
    pid = int((daemon.directory / "pid").read_text())
    daemon.until(lambda: list(daemon.state.glob("records/inflight%2Flong/*.json")), "the record of the long run")
    daemon.until(lambda: list(daemon.state.glob("records/paused%2Fshort/*.json")), "the record of the pause")
    daemon.until(lambda: list(daemon.state.glob("records/logs%2Fshort/*.json")), "the archived output")
    daemon.kill()

    daemon.start(LONG)
    daemon.until(lambda: daemon.outcomes("short") == ["success"], "the history")
    daemon.until(lambda: (daemon.job("short").get("paused") or {}).get("note") == "tea", "the pause")
    daemon.until(lambda: daemon.job("long").get("pids") == [pid], "the run that outlived its daemon")
    assert daemon.ask("POST", "/jobs/long/start")[0] in (200, 409)
    assert (daemon.directory / "pid").read_text().strip() == str(pid)
    # A stop does not wait for what is not its own, and the next daemon finds it again.
    daemon.stop()
    os.kill(pid, 0)
    daemon.start(LONG)
    daemon.until(lambda: daemon.job("long").get("pids") == [pid], "the run once more")
    os.kill(pid, signal.SIGKILL)
    daemon.until(lambda: "unknown" in daemon.outcomes("long"), "the row of the run that outlived its daemon")
    daemon.until(lambda: daemon.job("long").get("pids") == [], "the run to be gone")
    assert daemon.ask("POST", "/jobs/long/start")[0] == 200
    daemon.until(lambda: (daemon.directory / "pid").read_text().strip() != str(pid), "the next run")

    (archived,) = daemon.state.glob("records/logs%2Fshort/*.json")
    assert "the password is [redacted]" in archived.read_text()
    assert not [path for path in daemon.state.rglob("*.json") if "hunter22" in path.read_text()]
    assert "Traceback" not in daemon.text()


def test_a_run_that_died_with_its_daemon_is_unknown_and_blocks_nothing(daemon: Daemon) -> None:
    daemon.start(LONG)
    assert daemon.ask("POST", "/jobs/long/start")[0] == 200
    daemon.until((daemon.directory / "pid").exists, "the long run")
    pid = int((daemon.directory / "pid").read_text())
    daemon.until(lambda: list(daemon.state.glob("records/inflight%2Flong/*.json")), "the record of the long run")
    daemon.kill()
    os.kill(pid, signal.SIGKILL)
    daemon.start(LONG)
    daemon.until(lambda: daemon.outcomes("long") == ["unknown"], "the row")
    assert daemon.ask("POST", "/jobs/long/start")[0] == 200
    daemon.until(lambda: (daemon.directory / "pid").read_text().strip() != str(pid), "the next run")


EACH_SECOND = """\
  - name: tick
    command: 'echo $CRONSTABLE_CATCHUP $CRONSTABLE_SCHEDULED_AT >> stamps'
    schedule: '* * * * * * *'
    onMissed: run-all
"""


def moments(stamps: Path) -> list[int]:
    """The scheduled times of the runs, in the order in which they were written."""
    lines = stamps.read_text().splitlines() if stamps.exists() else []
    return [int(datetime.fromisoformat(line.split()[1]).timestamp()) for line in lines]


def test_what_was_missed_is_caught_up_and_nothing_is_run_twice(daemon: Daemon, rounds: int) -> None:
    stamps = daemon.directory / "stamps"
    for _ in range(max(1, rounds // 2)):
        outage(daemon, stamps)
    before = len(moments(stamps))
    daemon.start(EACH_SECOND)

    def whole() -> bool:
        late = [line.startswith("1") for line in stamps.read_text().splitlines()[before:]]
        return sum(late) >= 3 and not late[-1]

    daemon.until(whole, "the missed runs, and runs on time after them")
    daemon.stop()
    times = moments(stamps)
    assert len(times) == len(set(times)), times
    caught = [at for at, line in zip(times, stamps.read_text().splitlines(), strict=True) if line.startswith("1")]
    assert caught == sorted(caught)
    gaps = [two - one for one, two in itertools.pairwise(sorted(times))]
    # The daemon may have been killed between the decision about a second and its process: that one is decided.
    assert sum(gap > 1 for gap in gaps) <= max(1, rounds // 2), times


def outage(daemon: Daemon, stamps: Path) -> None:
    """A daemon works, is killed, and nobody works for some seconds."""
    before = len(moments(stamps))
    daemon.start(EACH_SECOND)

    def settled() -> bool:
        # Killed between a spawn and its watermark, the daemon would start that second once more: the guide says so.
        found = moments(stamps)
        return len(found) >= before + 3 and daemon.decided("tick") == found[-1]

    daemon.until(settled, "three runs and their watermark")
    daemon.kill()
    end = time.time() + 4
    daemon.until(lambda: time.time() > end, "four seconds without a daemon")


@contextlib.contextmanager
def hanging(directory: Path) -> Iterator[None]:
    """Every access below ``directory`` waits: a FUSE file system is mounted there whose requests nobody reads."""
    fuse, libc = os.open("/dev/fuse", os.O_RDWR), ctypes.CDLL(None, use_errno=True)
    try:
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"nobody", bytes(directory), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount", str(directory))
        try:
            yield
        finally:
            # What waits there gets an error, so that it can end.
            os.close(fuse)
            fuse = -1
            libc.umount2(bytes(directory), 2)
    finally:
        if fuse >= 0:
            os.close(fuse)


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounting needs root and /dev/fuse")
def test_runs_start_while_the_store_hangs(daemon: Daemon) -> None:
    daemon.start(EACH_SECOND)
    daemon.until(lambda: list(daemon.state.glob("records/catchup%2Ftick/*.json")), "the first watermark")
    stamps = daemon.directory / "stamps"
    with hanging(daemon.state / "records"):
        before = len(moments(stamps))
        daemon.until(lambda: "state: the store failed" in daemon.text(), "the daemon to notice")
        daemon.until(lambda: len(moments(stamps)) >= before + 4, "four runs")
        assert daemon.ask("GET", "/readyz")[0] == 200
    daemon.stop()


def test_permissions_that_are_taken_away_cost_nothing_that_was_written_and_no_run(daemon: Daemon) -> None:
    """Unreadable, unwritable, and unwritable for one job; given back, the store has all of it again."""
    stamps, records = daemon.directory / "stamps", daemon.state / "records"

    def kept(stream: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in records.glob(f"{stream}/*.json")}

    def rows() -> set[str]:
        data = (json.loads(raw.splitlines()[0])["data"] for raw in kept("runs%2Ftick").values())
        return {str(row["scheduledAt"]) for row in data if row["outcome"] == "success"}

    def has_rows(of: set[str]) -> bool:
        return of <= rows()

    def looks(key: str) -> Any:
        status, answer = daemon.ask("GET", "/state")
        return answer[key] if status == 200 else None

    daemon.start(EACH_SECOND, plain=True)
    daemon.until(lambda: len(rows()) >= 2, "the first rows")
    for directory, mode in ((daemon.state, 0), (daemon.state / "tmp", 0o500)):
        before, began, said = kept("runs%2Ftick"), len(moments(stamps)), daemon.text().count(AGAIN)
        directory.chmod(mode)
        daemon.until(lambda: "Permission denied" in (looks("error") or ""), "the word of it")
        daemon.until(partial(has_run, stamps, began + 3), "runs without a store")
        assert daemon.ask("GET", "/readyz")[0] == 200
        directory.chmod(0o700)
        daemon.until(partial(says, daemon, AGAIN, said + 1), "the store again")
        wanted = {str(at) for at in moments(stamps)}
        daemon.until(partial(has_rows, wanted), "the rows of all runs, also of those that had to wait")
        assert before.items() <= kept("runs%2Ftick").items()

    before = kept("runs%2Ftick")
    (records / "runs%2Ftick").chmod(0o500)
    # The store opens, and only this stream refuses: its rows are given up and counted, and others go on.
    daemon.until(lambda: "run-record" in (looks("dropped_writes") or {}), "a row that is dropped")
    mark = daemon.decided("tick")
    daemon.until(lambda: daemon.decided("tick") > mark, "the watermark to go on")
    (records / "runs%2Ftick").chmod(0o700)
    daemon.until(lambda: len(kept("runs%2Ftick")) > len(before), "rows again")
    assert before.items() <= kept("runs%2Ftick").items()

    # One record alone costs one row of what is shown, and only while it cannot be read.
    victim = max(records.glob("runs%2Ftick/*.json"))
    victim.chmod(0)
    daemon.until(lambda: daemon.outcomes("tick") and "cannot be read: Permission denied" in daemon.text(), "the gap")
    assert looks("error") is None
    victim.chmod(0o600)
    daemon.stop()
    assert "Traceback" not in daemon.text()
    times = moments(stamps)
    assert len(times) == len(set(times)) == times[-1] - times[0] + 1, "a run that was missed or doubled"


AGAIN = "the store answers again"


def has_run(stamps: Path, count: int) -> bool:
    return len(moments(stamps)) >= count


def says(daemon: Daemon, text: str, count: int) -> bool:
    return daemon.text().count(text) >= count


FAILING = """\
  - name: bad
    command: exit 3
    schedule: '@yearly'
    onFailure:
      retry: {maximumRetries: 5, initialDelay: 600, maximumDelay: 600, backoffMultiplier: 1}
"""


def test_a_store_that_a_reload_brings_keeps_the_retries_from_then_on(daemon: Daemon) -> None:
    daemon.start(FAILING)
    config = daemon.directory / "cronstable.yaml"
    with_state = config.read_text()
    daemon.stop()
    without = "".join(itertools.takewhile(lambda line: line != "state:\n", with_state.splitlines(True)))
    shutil.rmtree(daemon.directory / "state")
    daemon.start(FAILING, text=without + "jobs:\n" + FAILING)
    assert daemon.process is not None
    config.write_text(with_state)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(daemon.state.exists, "the store to be opened")
    daemon.until(lambda: daemon.ask("POST", "/jobs/bad/start")[0] in (200, 202), "the job to be started")
    daemon.until(lambda: list(daemon.state.glob("records/retr*bad*/*.json")), "the attempt that is due to stand in it")
    daemon.stop()
