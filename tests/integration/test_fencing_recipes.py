"""Every recipe of docs/fencing.md, on the real thing: a run of an older term changes nothing any more."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "fencing.md"
ETCD = shutil.which("etcd", path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin")
DEADLINE = 60.0


def recipes() -> Mapping[str, str]:
    found = re.findall(r"<!-- recipe: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return dict(found)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Run:
    """Run a recipe as the job of a run: ``run(name, fence, occurrence, VARIABLE=...)``."""

    def as_job(name: str, fence: int, occurrence: str, **variables: str) -> subprocess.CompletedProcess[str]:
        facts = {"CRONSTABLE_FENCE": str(fence), "CRONSTABLE_OCCURRENCE_ID": occurrence, "CRONSTABLE_RUN_ID": "r1"}
        return subprocess.run(
            ["sh", "-c", recipes()[name]],
            env={"PATH": os.environ["PATH"], "no_proxy": "127.0.0.1", **facts, **variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    return as_job


def assert_refused(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (1, "a newer leader was here\n")


def test_every_recipe_of_the_page_is_tested_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    names = set(recipes())
    assert len(names) == 6
    assert {name for name in names if f'"{name}"' not in source} == set()


def test_a_database_refuses_an_older_fence_and_charges_an_occurrence_once() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(recipes()["schema.sql"])
    take, charge = recipes()["run.sql"].split(";\n\n")

    def run(fence: int, occurrence: str) -> int:
        given = {"fence": fence, "occurrence": occurrence, "amount": 5}
        database.execute("BEGIN IMMEDIATE")
        taken = database.execute(take, given).rowcount
        database.execute(charge, given)
        database.execute("COMMIT")
        return taken

    assert [run(1000, "a"), run(1000, "a"), run(1000, "b"), run(1007, "c")] == [1, 1, 1, 1]
    # The frozen job of the first leader wakes up; its client does not look at the count.
    assert run(1000, "late") == 0
    assert database.execute("SELECT occurrence FROM charges ORDER BY occurrence").fetchall() == [("a",), ("b",), ("c",)]
    assert database.execute("SELECT fence FROM fences").fetchall() == [(1007,)]


def test_a_file_under_a_lock_refuses_an_older_fence(run: Run, tmp_path: Path) -> None:
    where = {"DIR": str(tmp_path)}
    for fence, occurrence in ((1000, "a"), (1000, "b"), (999_999_999_999, "c")):
        done = run("file.sh", fence, occurrence, **where)
        assert (done.returncode, done.stderr) == (0, "")
    assert_refused(run("file.sh", 1000, "late", **where))
    assert (tmp_path / "report").read_text() == "report of c\n"
    assert (tmp_path / "fence").read_text() == "1000\n999999999999\n"


def test_of_files_named_by_their_fence_the_newest_is_read(run: Run, tmp_path: Path) -> None:
    for fence, occurrence in ((999, "a"), (1000, "b"), (999, "late")):
        assert run("names.sh", fence, occurrence, DIR=str(tmp_path)).returncode == 0
    read = re.search(r"Read it with `(.*?)`", PAGE.read_text(encoding="utf-8"))
    assert read is not None
    shown = subprocess.run(["sh", "-c", read[1]], env={"PATH": os.environ["PATH"], "DIR": str(tmp_path)},
                           capture_output=True, text=True, timeout=DEADLINE, check=True)  # fmt: skip
    assert shown.stdout == "report of b\n"


@pytest.mark.parametrize("name", ["file.sh", "names.sh", "object.sh", "etcd.sh"])
def test_without_a_fence_a_recipe_ends_before_it_writes(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", recipes()[name]],
        env={
            "PATH": os.environ["PATH"],
            "DIR": str(tmp_path),
            "URL": "http://127.0.0.1:1/",
            "ETCD": "http://127.0.0.1:1",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode != 0
    assert "CRONSTABLE_FENCE" in done.stderr
    assert list(tmp_path.iterdir()) == []


class Objects(ThreadingHTTPServer):
    """An object store with one object, which writes on condition. ``between``: called once after a read."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data: bytes | None = None
        self.between: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/report"

    @property
    def etag(self) -> str:
        return "" if self.data is None else f'"{hashlib.sha256(self.data).hexdigest()}"'


class Handler(BaseHTTPRequestHandler):
    server: Objects

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        found, etag = self.server.data, self.server.etag
        between, self.server.between = self.server.between, lambda: None
        between()
        self._answer(404 if found is None else 200, found or b"", etag)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["if-none-match"] == "*":
            fits = self.server.data is None
        else:
            fits = self.headers["if-match"] == self.server.etag != ""
        if fits:
            self.server.data = data
        self._answer(200 if fits else 412)

    def _answer(self, status: int, data: bytes = b"", etag: str = "") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("etag", etag)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def objects() -> Iterator[Objects]:
    with Objects() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_object_store_refuses_an_older_fence_also_when_it_looked_in_time(run: Run, objects: Objects) -> None:
    for fence, occurrence in ((1000, "a"), (1000, "b")):
        done = run("object.sh", fence, occurrence, URL=objects.url)
        assert (done.returncode, done.stderr) == (0, "")

    def overtaken() -> None:
        objects.data = b"fence 1007\nreport of c\n"

    objects.between = overtaken
    assert run("object.sh", 1000, "late", URL=objects.url).returncode != 0
    assert_refused(run("object.sh", 1000, "later", URL=objects.url))
    assert objects.data == b"fence 1007\nreport of c\n"


@pytest.fixture
def etcd(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[int]:
    """The port of an etcd."""
    if ETCD is None:
        pytest.skip("no etcd on this machine: Debian's etcd-server makes this test run")
    port, other = free_ports(2)
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}"
    command = [ETCD, "--data-dir", str(tmp_path / "etcd"), "--name", "m", "--log-level", "error"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait(10)


def value_of(port: int, key: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/v3/kv/range", json.dumps({"key": base64.b64encode(key.encode()).decode()}))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return base64.b64decode(answer["kvs"][0]["value"]).decode()


def test_an_etcd_refuses_an_older_fence(run: Run, etcd: int) -> None:
    where = {"ETCD": f"http://127.0.0.1:{etcd}"}
    patience = threading.Event()
    for _ in range(300):
        first = run("etcd.sh", 999, "a", **where)
        if first.returncode == 0:
            break
        patience.wait(0.1)
    assert first.returncode == 0, first.stderr
    for fence, occurrence in ((999, "b"), (1000, "c")):
        assert run("etcd.sh", fence, occurrence, **where).returncode == 0
    assert_refused(run("etcd.sh", 999, "late", **where))
    assert value_of(etcd, "report/last") == "c"
    assert value_of(etcd, "report/fence") == f"{1000:020d}"
