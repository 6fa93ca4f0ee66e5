"""The commands about schedules as they are typed, against a real daemon."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from cronstable.cli.main import run

pytestmark = pytest.mark.integration

DEADLINE = 60.0
JOBS: list[dict[str, Any]] = [
    {"name": "nightly backup/1", "command": "backup", "schedule": "30 2 * * *", "timezone": "Europe/Berlin"},
    {"name": "every second", "command": "true", "schedule": "* * * * * * *"},
    {"name": "noon", "command": "mail", "schedule": "0 12 * * *"},
    {"name": "noon too", "command": "mail", "schedule": "0 12 * * *"},
    {"name": "hashed", "command": "backup", "schedule": "H H * * *"},
    {"name": "boot", "command": "one", "schedule": "@reboot"},
    {"name": "never", "command": "two", "schedule": "0 0 31 2 *"},
]
AUTUMN = ("--from", "2027-10-30T12:00:00Z")

Typed: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a running daemon; its socket is beside it."""
    directory = tmp_path_factory.mktemp("d")  # the path of a unix socket is short
    path, log = directory / "c.yaml", directory / "log"
    path.write_text(yaml.safe_dump({"web": {"listen": [f"unix://{directory}/s"]}, "jobs": JOBS}), encoding="utf-8")
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "cronstable", "-c", str(path)], stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + DEADLINE
        while not (directory / "s").exists():
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            select.select([], [], [], 0.05)
        yield path
    finally:
        process.terminate()
        process.wait(DEADLINE)


@pytest.fixture
def typed(config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run a command in this process; its exit code, stdout and stderr."""
    for name in ("CRONSTABLE_TOKEN", "CRONSTABLE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CRONSTABLE_URL", f"unix://{config.parent}/s")

    def typed(*words: str) -> tuple[int, str, str]:
        code = run(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return typed


@pytest.mark.parametrize("name", ["nightly backup/1", "hashed", "boot", "never"])
@pytest.mark.parametrize("form", [(), ("--json",), ("--tz", "Asia/Tokyo"), ("--tz", "UTC")])
def test_next_asks_the_node_for_its_job_and_shows_what_the_configuration_would(
    config: Path, typed: Typed, name: str, form: tuple[str, ...]
) -> None:
    asked = typed("next", name, *AUTUMN, *form)
    assert asked[0] == 0
    assert asked == typed("next", name, "-c", str(config), *AUTUMN, *form)


def test_next_shows_both_zones_and_what_a_clock_change_does(typed: Typed) -> None:
    _, out, _ = typed("next", "nightly backup/1", *AUTUMN, "-n", "1")
    assert out.splitlines() == [
        "nightly backup/1: 30 2 * * *: at 02:30 every day (Europe/Berlin)",
        "  2027-10-31T00:30:00Z  Sun 2027-10-31 02:30:00 CEST  DST: this wall time occurs twice, first time",
    ]


def test_next_lists_more_than_a_node_says_at_once_each_time_once(config: Path, typed: Typed) -> None:
    asked = typed("next", "every second", "-n", "2500", *AUTUMN, "--json")
    assert len(set(json.loads(asked[1]))) == 2500
    assert asked == typed("next", "every second", "-c", str(config), "-n", "2500", *AUTUMN, "--json")


def test_next_reads_an_expression_before_it_asks_anybody(typed: Typed) -> None:
    code, out, _ = typed("next", "0 0 * * *", "--url", "http://127.0.0.1:9", "-n", "1", *AUTUMN, "--json")
    assert (code, json.loads(out)) == (0, ["2027-10-31T00:00:00Z"])


def test_next_says_why_it_has_no_times(config: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = typed("next", "61 * * * *")
    assert (code, out) == (1, "")
    assert "has no job '61 * * * *', and as an expression: schedule '61 * * * *': minute: '61' is outside 0-59" in err
    assert typed("next", "noon", "-c", str(config), "--socket", f"{config.parent}/s")[0] == 2
    code, _, err = typed("next", "noon", "--url", "http://127.0.0.1:9")
    assert (code, "cannot be asked" in err) == (1, True)
    monkeypatch.delenv("CRONSTABLE_URL")
    assert typed("next", "noon", "--socket", f"{config.parent}/s")[0] == 0


def test_pressure_shows_the_fullest_minutes_and_their_jobs(typed: Typed) -> None:
    code, out, _ = typed("pressure", "-n", "1")
    first, headings, row = out.splitlines()
    assert code == 0
    assert re.match(r"144\d starts in 1440 minutes until 20", first)
    assert headings.split() == ["MINUTE", "STARTS", "JOBS"]
    assert row.split(None, 2)[1:] == ["3", "every second, noon, noon too"]
    assert len(json.loads(typed("pressure", "--json")[1])["minutes"]) == 1440


def test_duplicates_shows_who_runs_the_same(typed: Typed) -> None:
    code, out, _ = typed("duplicates")
    assert (code, [re.split(" {2,}", line) for line in out.splitlines()[1:]]) == (
        0,
        [
            ["different", "nightly backup/1, hashed", "backup"],
            ["the same", "noon, noon too", "mail"],
        ],
    )
    assert [group["command"] for group in json.loads(typed("duplicates", "--json")[1])["groups"]] == ["backup", "mail"]


def test_suggest_shows_where_there_is_room(typed: Typed) -> None:
    code, out, _ = typed("suggest", "--every", "hour", "-n", "60")
    assert (code, len(out.splitlines())) == (0, 61)
    found = json.loads(typed("suggest", "-n", "1", "--tz", "Europe/Berlin", "--json")[1])
    assert (found["every"], found["timezone"], len(found["suggestions"])) == ("day", "Europe/Berlin", 1)
    assert typed("suggest", "-n", "61")[0] == 2
    code, _, err = typed("suggest", "--tz", "Mars/Base")
    assert (code, "unknown timezone 'Mars/Base'" in err) == (1, True)


def test_calendar_is_what_the_node_says_byte_for_byte(config: Path) -> None:
    def printed(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "cronstable", "calendar", *words, "--socket", f"{config.parent}/s"]
        return subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False)

    whole, one = printed("--days", "2", "--limit", "3"), printed("noon", "--days", "3")
    for found, names in ((whole, {b"every second": 3, b"noon too": 2}), (one, {b"noon": 3, b"every second": 0})):
        assert found.returncode == 0, found.stderr
        assert found.stdout.startswith(b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\n")
        assert found.stdout.endswith(b"END:VCALENDAR\r\n")
        assert b"\r\r" not in found.stdout
        assert {name: found.stdout.count(b"SUMMARY:%b\r\n" % name) for name in names} == names
    missing = printed("nope")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert b"there is no job 'nope'" in missing.stderr
