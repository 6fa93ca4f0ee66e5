"""The worked examples of the plugin author guide: built, installed beside the host, and used by it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

REPO = Path(__file__).parents[2]
DEADLINE = 180.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which both examples were installed from their wheels."""
    target = tmp_path_factory.mktemp("site")
    for name in ("plugin-lease", "plugin-extras"):
        options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(REPO / "example" / name)],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def environ(installed: Path) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "200"}


def cronstable(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cronstable", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_the_example_backend_passes_the_contract_kit(environ: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(REPO / "example/plugin-lease/tests")],
        env=environ,
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_both_examples_are_listed_with_their_distribution(environ: Mapping[str, str]) -> None:
    done = cronstable(environ, "plugins", "--json")
    found: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in json.loads(done.stdout)}
    for name, distribution in (("sqlite", "cronstable-sqlite"), ("extras", "cronstable-extras")):
        assert found[name]["ok"], found[name]["error"]
        assert found[name]["distribution"] == distribution


def test_the_keys_of_both_examples_are_accepted(environ: Mapping[str, str], tmp_path: Path) -> None:
    config = tmp_path / "cronstable.yaml"
    config.write_text(
        "cluster: {backend: sqlite, sqlite: {path: lease.db, ttl: 5}}\n"
        f"heartbeat: {{file: {tmp_path}/alive}}\n"
        "jobs:\n"
        "  - {name: a, command: 'true', schedule: '@daily', team: billing}\n"
        "  - name: b\n"
        "    command: 'true'\n"
        "    schedule: '@daily'\n"
        "    onFailure: {report: {journal: {file: journal}}}\n",
        encoding="utf-8",
    )
    done = cronstable(environ, "--validate-config", "-c", str(config))
    assert done.returncode == 0, done.stderr
    assert "jobs[1].name  advisory: this job has no team and others have" in done.stderr
    assert "cronstable-extras" in done.stderr


def test_a_ttl_that_the_examples_schema_forbids_is_refused_with_its_place(
    environ: Mapping[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "cronstable.yaml"
    config.write_text("cluster:\n  backend: sqlite\n  sqlite:\n    path: lease.db\n    ttl: 1\n", encoding="utf-8")
    done = cronstable(environ, "--validate-config", "-c", str(config))
    assert done.returncode == 1
    assert f"{config}:5:" in done.stderr
    assert "cluster.sqlite.ttl" in done.stderr
    assert "cronstable-sqlite" in done.stderr


def test_the_example_command_runs(environ: Mapping[str, str], tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs: [{name: a, team: billing}, {name: b, team: billing}, {name: c}]\n", encoding="utf-8")
    done = cronstable(environ, "teams", str(file))
    assert (done.returncode, done.stdout) == (0, "billing: 2\nnobody: 1\n")


@contextmanager
def running(environ: Mapping[str, str], config: Path, log: Path) -> Iterator[Callable[[], None]]:
    """A daemon, ended in order at the end; what it yields fails when it is not alive."""
    with log.open("wb") as output:
        command = [sys.executable, "-m", "cronstable", "-c", str(config)]
        daemon = subprocess.Popen(command, env=environ, stdout=output, stderr=output)

    def alive() -> None:
        assert daemon.poll() is None, log.read_text(encoding="utf-8")

    try:
        yield alive
    finally:
        daemon.terminate()
        assert daemon.wait(timeout=DEADLINE) == 0


def test_the_example_service_runs_in_a_daemon(environ: Mapping[str, str], tmp_path: Path) -> None:
    mark, config, log = tmp_path / "alive", tmp_path / "cronstable.yaml", tmp_path / "log"
    config.write_text(f"heartbeat: {{file: {mark}, interval: 0.1}}\n", encoding="utf-8")
    with running(environ, config, log) as alive:
        deadline = time.monotonic() + DEADLINE
        while not mark.exists():
            alive()
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            select.select([], [], [], 0.05)


def test_the_example_notifier_appends_a_line(environ: Mapping[str, str], tmp_path: Path) -> None:
    script = """
import sys
from cronstable.api import LeaderChange
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost
from cronstable_extras.journal import make

notifier = make({"file": sys.argv[1]}, FakeHost(VirtualClock()))
run_virtual(lambda: notifier.send(LeaderChange("node-a", True, "node-a", 0.0)))
"""
    journal = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", script, str(journal)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(journal.read_text(encoding="utf-8")) == {
        "event": "leader_change",
        "node": "node-a",
        "leads": True,
    }


def test_a_daemon_tells_the_example_notifier(environ: Mapping[str, str], tmp_path: Path) -> None:
    journal, config = tmp_path / "journal", tmp_path / "cronstable.yaml"
    report = f"{{report: {{journal: {{file: {journal}}}}}}}"
    config.write_text(
        f"jobs:\n  - name: a\n    command: exit 3\n    schedule: '@reboot'\n"
        f"    onFailure: {report}\n    onPermanentFailure: {report}\n",
        encoding="utf-8",
    )
    with running(environ, config, tmp_path / "log") as alive:
        deadline = time.monotonic() + DEADLINE
        while not (journal.exists() and len(journal.read_text(encoding="utf-8").splitlines()) == 2):
            alive()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text(encoding="utf-8")
            select.select([], [], [], 0.05)
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["onFailure", "onPermanentFailure"]
    assert lines[0]["reason"] == "failsWhen=nonzeroReturn and retcode=3"
