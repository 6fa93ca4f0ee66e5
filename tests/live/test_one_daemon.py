"""One real daemon: signals, reloads and runs as a user meets them (cases of the kinds exec, reload and signal)."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], object], float, str], None]


class Daemon:
    """A daemon with one web socket, its configuration in a file that a test edits."""

    def __init__(self, directory: Path, wait: Wait) -> None:
        self.directory = directory
        self.config = directory / "cronstable.yaml"
        self.log = directory / "log"
        self._wait = wait
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, jobs: str) -> None:
        web = self.directory / "web.sock"
        self.config.write_text(f"web:\n  listen:\n    - unix://{web}\n{jobs}")

    def start(
        self, jobs: str, *arguments: str, wait: bool = True, environ: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.write(jobs)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cronstable", "-c", str(self.config), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.directory,
                env={**os.environ, **environ},
            )
        if wait:
            self._wait(lambda: (self.ask("GET", "/readyz") or (0, b""))[0] == 200, 20, "the daemon to be ready")

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def exit_code(self, within: float = 20) -> int:
        assert self.process is not None
        return self.process.wait(within)

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def ask(self, method: str, path: str) -> tuple[int, bytes] | None:
        connection = http.client.HTTPConnection("localhost", timeout=5)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5)
        try:
            connection.sock.connect(str(self.directory / "web.sock"))
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def job(self, name: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/jobs/{name}")
        assert answer is not None
        assert answer[0] == 200, answer
        found: dict[str, Any] = json.loads(answer[1])
        return found

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


@pytest.fixture
def daemon(tmp_path: Path, waiting: Wait) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, waiting)
    yield daemon
    daemon.kill()
    for orphan in processes(unique_sleep()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)
    print(daemon.text()[-4000:])


def job(name: str, command: str, schedule: str = "0 0 1 1 *", extra: str = "") -> str:
    return f"  - name: {name}\n    command: {json.dumps(command)}\n    schedule: '{schedule}'\n{extra}"


def processes(marker: str) -> list[int]:
    """Living processes whose command line holds ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if marker in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(entry.name))
    return found


def unique_sleep() -> str:
    """A sleep that no other process of this machine has."""
    return f"sleep 6{os.getpid():06d}"


def test_a_daemon_runs_what_is_due_and_prints_its_output_with_a_prefix(daemon: Daemon, waiting: Wait) -> None:
    daemon.start("jobs:\n" + job("tick", "echo hello", "* * * * * * *", "    captureStdout: true\n"))
    waiting(lambda: daemon.text().count("[tick stdout] hello") >= 2, 15, "two runs")
    assert daemon.job("tick")["last_run"]["outcome"] == "success"


def test_reboot_runs_once_and_not_again_on_reload(daemon: Daemon, waiting: Wait) -> None:
    jobs = "jobs:\n" + job("boot", "echo up", "@reboot", "    captureStdout: true\n")
    daemon.start(jobs)
    waiting(lambda: "[boot stdout] up" in daemon.text(), 15, "the boot job")
    daemon.write(jobs + job("beat", "echo beat", "* * * * * * *", "    captureStdout: true\n"))
    daemon.send(signal.SIGHUP)
    waiting(lambda: "reloaded: job set" in daemon.text(), 15, "the reload")
    # By its second beat whatever the reload itself would have started has run.
    waiting(lambda: daemon.text().count("[beat stdout] beat") >= 2, 15, "two beats of the new job")
    assert daemon.text().count("[boot stdout] up") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_lets_the_run_end_starts_nothing_more_and_exits_with_0(
    daemon: Daemon, waiting: Wait, number: int, tmp_path: Path
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    wait_for_gate = f"while [ ! -e {gate} ]; do sleep 0.05; done; echo bye > {out}"
    daemon.start("jobs:\n" + job("long", wait_for_gate) + job("tick", "echo tick", "* * * * * * *"))
    answer = daemon.ask("POST", "/jobs/long/start")
    assert answer is not None
    assert answer[0] == 200
    waiting(lambda: daemon.job("long")["running"], 15, "the long run")
    daemon.send(number)
    waiting(lambda: "stopping: no new runs" in daemon.text(), 15, "the daemon to stop starting")
    assert daemon.process is not None
    assert daemon.process.poll() is None
    gate.write_text("")
    assert daemon.exit_code() == 0
    assert out.read_text() == "bye\n"
    assert "Traceback" not in daemon.text()


def test_a_second_signal_ends_the_runs_and_leaves_no_orphan(daemon: Daemon, waiting: Wait) -> None:
    sleeping = unique_sleep()
    daemon.start("jobs:\n" + job("long", f"{sleeping} & {sleeping} & wait"))
    daemon.ask("POST", "/jobs/long/start")
    waiting(lambda: len(processes(sleeping)) >= 2, 15, "the children")
    daemon.send(signal.SIGTERM)
    waiting(lambda: "stopping: no new runs" in daemon.text(), 15, "the first signal to count")
    daemon.send(signal.SIGTERM)
    assert daemon.exit_code() == 0
    assert processes(sleeping) == []


def test_sighup_puts_an_edit_into_force_and_leaves_running_jobs_alone(daemon: Daemon, waiting: Wait) -> None:
    sleeping = unique_sleep()
    long = job("long", sleeping, extra="    concurrencyPolicy: Forbid\n")
    daemon.start("jobs:\n" + long)
    daemon.ask("POST", "/jobs/long/start")
    waiting(lambda: daemon.job("long")["running"], 15, "the long run")
    pid = daemon.job("long")["pids"][0]
    daemon.write("jobs:\n" + long + job("new", "true"))
    daemon.send(signal.SIGHUP)
    waiting(lambda: (daemon.ask("GET", "/jobs/new") or (0, b""))[0] == 200, 15, "the new job")
    assert daemon.job("long")["pids"] == [pid]
    refused = daemon.ask("POST", "/jobs/long/start")
    assert refused is not None
    assert refused[0] == 409
    assert "error" in json.loads(refused[1])


def test_a_job_deleted_while_it_runs_finishes_and_is_never_scheduled_again(
    daemon: Daemon, waiting: Wait, tmp_path: Path
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    command = f"echo x >> {out}; while [ ! -e {gate} ]; do sleep 0.05; done; echo done >> {out}"
    daemon.start("jobs:\n" + job("gone", command, "* * * * * * *", "    concurrencyPolicy: Forbid\n"))
    waiting(out.exists, 15, "the run")
    daemon.write("jobs:\n" + job("other", "true"))
    daemon.send(signal.SIGHUP)
    waiting(lambda: (daemon.ask("GET", "/jobs/gone") or (0, b""))[0] == 404, 15, "the job to be gone")
    gate.write_text("")
    waiting(lambda: "done" in out.read_text(), 15, "the run to finish")
    waiting(lambda: daemon.text().count("Traceback") == 0 and not processes(str(gate)), 15, "the end of the run")
    assert out.read_text() == "x\ndone\n"


def test_a_changed_command_counts_at_the_next_run(daemon: Daemon, waiting: Wait) -> None:
    daemon.start("jobs:\n" + job("tick", "echo old", "* * * * * * *", "    captureStdout: true\n"))
    waiting(lambda: "[tick stdout] old" in daemon.text(), 15, "the old command")
    daemon.write("jobs:\n" + job("tick", "echo new", "* * * * * * *", "    captureStdout: true\n"))
    daemon.send(signal.SIGHUP)
    waiting(lambda: "[tick stdout] new" in daemon.text(), 15, "the new command")
    assert "[tick stdout] old" not in daemon.text().split("[tick stdout] new", 1)[1]


def test_an_edited_env_file_counts_at_the_next_run(daemon: Daemon, waiting: Wait, tmp_path: Path) -> None:
    env = tmp_path / "x.env"
    env.write_text("A=file\nB=file\n# c\n\nC=a=b\n")
    extra = f"    captureStdout: true\n    env_file: {env}\n    environment:\n      - key: A\n        value: job\n"
    daemon.start("jobs:\n" + job("tick", "echo $A $B $C", "* * * * * * *", extra))
    waiting(lambda: "[tick stdout] job file a=b" in daemon.text(), 15, "the first values")
    env.write_text("B=edited\n")
    waiting(lambda: "[tick stdout] job edited" in daemon.text(), 15, "the edited values")


def test_a_bad_edit_keeps_the_jobs_running_and_names_the_line(daemon: Daemon, waiting: Wait) -> None:
    daemon.start("jobs:\n" + job("tick", "echo tick", "* * * * * * *", "    captureStdout: true\n"))
    daemon.write("jobs:\n" + job("tick", "echo tick", "61 * * * *"))
    daemon.send(signal.SIGHUP)
    waiting(lambda: "the old job set stays in force" in daemon.text(), 15, "the complaint")
    assert "cronstable.yaml:7" in daemon.text()
    assert "jobs[0].schedule" in daemon.text()
    count = daemon.text().count("[tick stdout]")
    waiting(lambda: daemon.text().count("[tick stdout]") >= count + 2, 15, "the old job to go on")


def test_cancel_reaches_the_whole_group_so_that_children_can_clean_up(daemon: Daemon, waiting: Wait) -> None:
    command = "sh -c 'trap \"echo got; exit 0\" TERM; echo ready; while :; do sleep 0.1; done'; true"
    daemon.start("jobs:\n" + job("trap", command, extra="    captureStdout: true\n"))
    daemon.ask("POST", "/jobs/trap/start")
    waiting(lambda: "[trap stdout] ready" in daemon.text(), 15, "the child")
    answer = daemon.ask("POST", "/jobs/trap/cancel")
    assert answer is not None
    assert answer[0] == 200
    waiting(lambda: "[trap stdout] got" in daemon.text(), 15, "the child to clean up")
    waiting(lambda: daemon.job("trap")["last_run"], 15, "the record")
    assert daemon.job("trap")["last_run"]["outcome"] == "cancelled"


def test_forbid_does_not_stay_stuck_after_the_daemon_was_killed_during_a_run(daemon: Daemon, waiting: Wait) -> None:
    jobs = "jobs:\n" + job(
        "tick", "echo tick; sleep 0.2", "* * * * * * *", "    concurrencyPolicy: Forbid\n    captureStdout: true\n"
    )
    daemon.start(jobs)
    waiting(lambda: "[tick stdout] tick" in daemon.text(), 15, "a run")
    daemon.kill()
    count = daemon.text().count("[tick stdout] tick")
    daemon.start(jobs)
    waiting(lambda: daemon.text().count("[tick stdout] tick") > count, 15, "a run of the new daemon")


def test_a_broken_third_party_plugin_is_a_warning_and_the_daemon_runs(
    daemon: Daemon, waiting: Wait, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    info = site / "acme_broken-3.1.dist-info"
    info.mkdir(parents=True)
    (site / "acme_broken.py").write_text("import a_module_that_is_not_there\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-broken\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text("[cronstable.plugins]\nacme = acme_broken\n")
    os.environ["PYTHONPATH"] = str(site)
    try:
        daemon.start("jobs:\n" + job("tick", "echo tick", "* * * * * * *", "    captureStdout: true\n"))
    finally:
        del os.environ["PYTHONPATH"]
    waiting(lambda: "[tick stdout] tick" in daemon.text(), 15, "a run")
    assert "acme-broken 3.1" in daemon.text()
    assert "Traceback" not in daemon.text()


def test_a_daemon_without_a_valid_configuration_exits_with_1_and_every_finding(daemon: Daemon) -> None:
    daemon.start("jobs:\n" + job("a", "true", "61 * * * *", "    conurrencyPolicy: Forbid\n"), wait=False)
    assert daemon.exit_code() == 1
    assert "jobs[0].schedule" in daemon.text()
    assert "concurrencyPolicy" in daemon.text()
    assert "Traceback" not in daemon.text()


def test_a_flood_of_output_neither_stalls_the_daemon_nor_fills_its_memory(daemon: Daemon, waiting: Wait) -> None:
    daemon.start("jobs:\n" + job("flood", "yes line | head -n 2000000", extra="    captureStdout: true\n"))
    assert daemon.process is not None

    def memory() -> int:
        assert daemon.process is not None
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])

    before = memory()
    daemon.ask("POST", "/jobs/flood/start")
    waiting(lambda: daemon.job("flood")["last_run"], 120, "the flood to end")
    assert daemon.job("flood")["last_run"]["outcome"] == "success"
    assert memory() - before < 64 * 1024


# -- what goes along with runs ----------------------------------------------------------------------------------------


def retry(times: int, delay: float = 0.2) -> str:
    return (
        "    onFailure:\n      retry:\n"
        f"        maximumRetries: {times}\n        initialDelay: {delay}\n"
        "        maximumDelay: 1\n        backoffMultiplier: 2\n"
    )


def test_a_failed_run_is_tried_again_as_the_same_occurrence_until_its_budget_is_spent(
    daemon: Daemon, waiting: Wait, tmp_path: Path
) -> None:
    out = tmp_path / "attempts"
    command = f"echo $CRONSTABLE_ATTEMPT $CRONSTABLE_OCCURRENCE_ID $CRONSTABLE_RUN_ID >> {out}; exit 3"
    told = tmp_path / "told"
    hook = f"    onPermanentFailure:\n      report:\n        shell:\n          command: echo final >> {told}\n"
    daemon.start("jobs:\n" + job("bad", command, extra=retry(3) + hook))
    daemon.ask("POST", "/jobs/bad/start")
    waiting(lambda: out.exists() and len(out.read_text().splitlines()) == 4, 20, "four attempts")
    waiting(told.exists, 20, "the report of the final failure")
    rows = [line.split() for line in out.read_text().splitlines()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert len({row[1] for row in rows}) == 1
    assert len({row[2] for row in rows}) == 4
    assert told.read_text() == "final\n"
    waiting(lambda: "failed for good after 3 retries" in daemon.text(), 20, "the log to say so")
    assert "retry" not in daemon.job("bad")


def test_the_next_attempt_is_shown_and_can_be_cancelled(daemon: Daemon, waiting: Wait) -> None:
    hour = retry(-1, 3600).replace("maximumDelay: 1\n", "maximumDelay: 3600\n")
    daemon.start("jobs:\n" + job("bad", "exit 3", extra=hour))
    daemon.ask("POST", "/jobs/bad/start")
    waiting(lambda: "retry" in daemon.job("bad"), 15, "the attempt to be waited for")
    shown = daemon.job("bad")["retry"]
    assert (shown["attempt"], shown["maxAttempts"], shown["delaySeconds"]) == (1, None, 3600.0)
    answer = daemon.ask("POST", "/jobs/bad/cancel")
    assert answer is not None
    assert answer[0] == 200
    assert "retry" not in daemon.job("bad")
    daemon.send(signal.SIGTERM)
    assert daemon.exit_code() == 0


def test_one_run_waits_in_the_queue_and_the_next_is_refused(daemon: Daemon, waiting: Wait, tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    command = f"echo in >> {out}; while [ ! -e {gate} ]; do sleep 0.05; done; echo out >> {out}"
    daemon.start("jobs:\n" + job("one", command, extra="    concurrencyPolicy: Queue\n"))
    answers = [daemon.ask("POST", "/jobs/one/start") for _ in range(3)]
    assert [answer[0] for answer in answers if answer is not None] == [200, 200, 409]
    waiting(out.exists, 15, "the first run")
    assert len(daemon.job("one")["pids"]) <= 1
    assert daemon.job("one")["queued"] is True
    gate.write_text("")
    waiting(lambda: out.read_text().count("out") == 2, 15, "both runs")
    assert "queued" not in daemon.job("one")
    assert out.read_text() == "in\nout\nin\nout\n"


def case(name: str) -> dict[str, Any]:
    path = Path(__file__).resolve().parents[1] / "cases" / "extra" / f"{name}.yaml"
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_a_stop_that_takes_too_long_ends_the_runs(daemon: Daemon, waiting: Wait) -> None:
    wanted = case("signal-shutdown-grace")
    sleeping = f"{unique_sleep()}.25"
    daemon.start("jobs:\n" + job("long", f"{sleeping} & wait"), *wanted["input"]["arguments"])
    daemon.ask("POST", "/jobs/long/start")
    waiting(lambda: processes(sleeping), 15, "the run")
    daemon.send(signal.SIGTERM)
    assert daemon.exit_code() == wanted["expected"]["exit_code"]
    assert processes(sleeping) == []
    waiting(lambda: wanted["expected"]["log_says"] in daemon.text(), 20, "the log to say so")


def waiting_for_a_retry(daemon: Daemon, waiting: Wait, name: str) -> tuple[str, dict[str, Any]]:
    """A daemon whose job waits an hour for its next attempt; the jobs, and what the case expects."""
    wanted = case(name)
    jobs = "jobs:\n" + yaml.safe_dump([{"name": "bad", "schedule": "0 0 1 1 *", **wanted["input"]["job"]}])
    daemon.start(jobs)
    daemon.ask("POST", "/jobs/bad/start")
    waiting(lambda: "retry" in daemon.job("bad"), 15, "the attempt to be waited for")
    expected: dict[str, Any] = wanted["expected"]
    return jobs, expected


def test_a_stop_does_not_wait_for_the_next_attempt(daemon: Daemon, waiting: Wait) -> None:
    _, expected = waiting_for_a_retry(daemon, waiting, "signal-stop-cancels-retries")
    daemon.send(signal.SIGTERM)
    assert daemon.exit_code() == expected["exit_code"]
    waiting(lambda: expected["log_says"] in daemon.text(), 20, "the log to say so")


def test_an_attempt_of_a_job_that_was_removed_is_not_made(daemon: Daemon, waiting: Wait) -> None:
    _, expected = waiting_for_a_retry(daemon, waiting, "reload-retry-of-removed-job")
    daemon.write("jobs:\n" + job("other", "true"))
    daemon.send(signal.SIGHUP)
    waiting(lambda: expected["log_says"] in daemon.text(), 15, "the end of the matter")
    assert "Traceback" not in daemon.text()


def test_an_edit_of_another_job_leaves_the_attempt_alone(daemon: Daemon, waiting: Wait) -> None:
    jobs, expected = waiting_for_a_retry(daemon, waiting, "reload-retry-survives-other-edit")
    before = daemon.job("bad")["retry"]
    daemon.write(jobs + yaml.safe_dump([{"name": "other", "command": "true", "schedule": "0 0 1 1 *"}]))
    daemon.send(signal.SIGHUP)
    waiting(lambda: (daemon.ask("GET", "/jobs/other") or (0, b""))[0] == 200, 15, "the other job")
    assert daemon.job("bad")["retry"] == before
    assert before["attempt"] == expected["still_waits_for_attempt"]


def test_the_log_and_the_output_can_be_json(daemon: Daemon, waiting: Wait) -> None:
    tick = job("tick", "echo out; echo err >&2", "* * * * * * *", "    captureStdout: true\n")
    daemon.start("jobs:\n" + tick, environ={"CRONSTABLE_LOG_FORMAT": "json"})
    waiting(lambda: daemon.text().count('"line"') >= 4, 15, "two runs")
    daemon.send(signal.SIGTERM)
    assert daemon.exit_code() == 0
    entries = [json.loads(line) for line in daemon.text().splitlines()]
    assert {"out", "err"} <= {entry["line"] for entry in entries if "line" in entry}
    assert {"tick"} == {entry["job"] for entry in entries if "job" in entry}
    assert any(entry.get("message") == "stopped" for entry in entries)


def test_an_empty_prefix_passes_output_through(daemon: Daemon, waiting: Wait) -> None:
    extra = "    captureStdout: true\n    streamPrefix: ''\n"
    daemon.start("jobs:\n" + job("raw", 'echo "{\\"a\\":1}"', "* * * * * * *", extra))
    waiting(lambda: '\n{"a":1}\n' in daemon.text(), 15, "a line as it was written")
    assert "stdout]" not in daemon.text()


class Switch(http.server.BaseHTTPRequestHandler):
    """Remembers what checked in."""

    seen: list[str] = []  # noqa: RUF012 - filled by the handler that the server makes for each request

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.seen.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def switch() -> Iterator[http.server.ThreadingHTTPServer]:
    Switch.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Switch) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def test_a_run_checks_in_and_its_address_is_in_no_log(
    daemon: Daemon, waiting: Wait, switch: http.server.ThreadingHTTPServer
) -> None:
    url = f"http://127.0.0.1:{switch.server_port}/ping/s3cret"
    extra = "    monitor:\n      url:\n        fromEnvVar: CHECK_URL\n"
    jobs = "jobs:\n" + job("good", "true", extra=extra) + job("bad", "exit 3", extra=extra)
    daemon.start(jobs, "-l", "debug", environ={"CHECK_URL": url})
    daemon.ask("POST", "/jobs/good/start")
    waiting(lambda: len(Switch.seen) == 2, 15, "two check-ins")
    daemon.ask("POST", "/jobs/bad/start")
    waiting(lambda: len(Switch.seen) == 4, 15, "two more")
    paths, rids = zip(*(path.split("?rid=") for path in Switch.seen), strict=True)
    assert paths == ("/ping/s3cret/start", "/ping/s3cret", "/ping/s3cret/start", "/ping/s3cret/fail")
    assert rids[0] == rids[1] != rids[2] == rids[3]
    assert "s3cret" not in daemon.text()


def test_a_switch_that_is_down_neither_delays_nor_fails_a_run(daemon: Daemon, waiting: Wait) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        extra = f"    monitor:\n      url:\n        value: http://127.0.0.1:{silent.getsockname()[1]}/x\n"
        daemon.start("jobs:\n" + job("tick", "true", "* * * * * * *", extra))
        waiting(lambda: len(daemon.job("tick")["history"]) >= 3, 15, "three runs")
        assert {entry["outcome"] for entry in daemon.job("tick")["history"]} == {"success"}
        daemon.send(signal.SIGTERM)
        assert daemon.exit_code() == 0


def test_figures_go_to_statsd_and_samples_into_the_record(daemon: Daemon, waiting: Wait, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def sampled() -> bool:
        answer = daemon.ask("GET", "/jobs/busy/resources")
        return answer is not None and any(run["series"] for run in json.loads(answer[1])["live"])

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(15)
        port = server.getsockname()[1]
        extra = (
            f"    statsd:\n      prefix: cron.busy\n      host: 127.0.0.1\n      port: {port}\n"
            "    monitorResources:\n      interval: 0.1\n"
        )
        busy = f"while [ ! -e {gate} ]; do :; done"
        daemon.start("jobs:\n" + job("busy", busy, extra=extra))
        daemon.ask("POST", "/jobs/busy/start")
        assert server.recv(1000) == b"cron.busy.start:1|g\n"
        waiting(sampled, 30, "a sample")
        gate.touch()
        stop, success, duration, cpu, rss = server.recv(1000).splitlines()
        assert (stop, success) == (b"cron.busy.stop:1|g", b"cron.busy.success:1|g")
        assert duration.startswith(b"cron.busy.duration:")
        assert duration.endswith(b"|ms")
        assert cpu.startswith(b"cron.busy.cpu:")
        assert rss.startswith(b"cron.busy.max_rss:")
    waiting(lambda: daemon.job("busy")["last_run"], 15, "the record")
    used = daemon.job("busy")["last_run"]["resources"]
    assert used["max_rss_bytes"] > 100_000
    assert used["samples"] >= 1
    assert used["cpu_total_seconds"] == pytest.approx(used["cpu_user_seconds"] + used["cpu_system_seconds"])


def test_the_daemon_s_traceparent_reaches_the_job(daemon: Daemon, waiting: Wait) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    tick = job("tick", "echo $TRACEPARENT", "* * * * * * *", "    captureStdout: true\n")
    daemon.start("jobs:\n" + tick, environ={"TRACEPARENT": trace})
    waiting(lambda: f"[tick stdout] {trace}" in daemon.text(), 15, "the variable")
    assert "is not installed" not in daemon.text()
