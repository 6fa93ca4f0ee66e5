"""Real daemons, and the real Chromium of this machine with a page that must not complain, nor ask anybody else."""

from __future__ import annotations

import http.client
import json
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import pytest
import yaml
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DEADLINE = 60.0
WAIT = 30_000
"""Milliseconds that the page gets for anything."""
expect.set_options(timeout=WAIT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="no chromium on this machine"))


@dataclass
class Daemon:
    """A daemon with its API on a port of the loopback address."""

    config: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def write(self, **config: Any) -> None:
        self.config.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    def start(self) -> None:
        with self.config.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cronstable", "-c", str(self.config)], stdout=log, stderr=log
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while self.get("readyz") != {"status": "ready"}:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            select.select([], [], [], 0.05)

    def get(self, path: str) -> Any:
        """What the API says; None when it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10.0)
        try:
            connection.request("GET", f"/{path}", headers=self.headers)
            return json.loads(connection.getresponse().read())
        except OSError:
            return None
        finally:
            connection.close()

    @property
    def log(self) -> str:
        return self.config.with_suffix(".log").read_text("utf-8", "replace")[-4000:]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


@pytest.fixture(scope="session")
def daemons(
    tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]
) -> Iterator[Callable[..., Daemon]]:
    """Start a daemon with these jobs and sections; it lives as long as the session."""
    running: list[Daemon] = []

    def start(*jobs: dict[str, Any], name: str = "node-a", web: dict[str, Any] | None = None, **more: Any) -> Daemon:
        (port,) = free_ports(1)
        one = Daemon(tmp_path_factory.mktemp(name) / f"{name}.yaml", port)
        listen = {"listen": [f"http://127.0.0.1:{port}"], **(web or {})}
        one.write(jobs=[{"schedule": "@yearly", "command": "true", **job} for job in jobs], web=listen, **more)
        running.append(one)
        one.start()
        return one

    yield start
    for one in running:
        one.stop()


HOSTILE = '<img src=x onerror="window.pwned=1">'
JOBS: tuple[dict[str, Any], ...] = (
    {"name": "a"},
    {"name": "bad", "command": "exit 3"},
    {
        "name": "long",
        "captureStdout": True,
        "command": "seq -f 'line %g' 200; printf '\\033[31mred\\033[0m\\n' >&2; sleep 300",
    },
    {"name": "idle", "enabled": False},
    {"name": "spring", "schedule": "30 2 28 3 *", "timezone": "Europe/Berlin"},
    {"name": "ticker", "schedule": "*/2 * * * * * *", "command": "echo tick", "captureStdout": True},
    {
        "name": f"{HOSTILE} a/b%2F\"'",
        "command": f"echo '{HOSTILE}'; echo '<script>window.pwned=1</script>'",
        "captureStdout": True,
    },
)


@pytest.fixture
def springs() -> list[datetime]:
    """When the job "spring" is due the next ten times, in UTC."""
    now, found = datetime.now(UTC), []
    for year in range(now.year, now.year + 11):
        wall = datetime(year, 3, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
        due = wall.astimezone(UTC)
        if due.astimezone(wall.tzinfo).hour != wall.hour:
            # No such time in a year in which this is the last Sunday of March: it is due when the clocks go forward.
            due = due.replace(hour=1, minute=0)
        found.append(due)
    return [due for due in found if due > now][:10]


@pytest.fixture(scope="session")
def node(daemons: Callable[..., Daemon]) -> Daemon:
    """A daemon that runs alone, with a job of each kind; tests change their own job only."""
    one = daemons(*JOBS)
    one.wait_until_ready()
    return one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of a module, not of the session: its event loop stands in the way of tests that have their own."""
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


class Complaints:
    """What a page said against itself, and whom it asked besides its own node."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.hosts: set[str] = set()

    def console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.heard.append(f"{message.type}: {message.text}")

    def request(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.hosts.add(request.url.split("/")[2])

    @property
    def unexpected(self) -> list[str]:
        return [text for text in self.heard if not any(part in text for part in self.expected)]


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def fulfilled() -> Callable[[Page, str, Any], None]:
    """Let a page believe that the node says this value at this path, whatever is asked of it there."""

    def fulfil(page: Page, path: str, value: Any) -> None:
        body = json.dumps(value)
        page.route(
            lambda url: urlsplit(url).path == f"/{path}",
            lambda route: route.fulfill(body=body, content_type="application/json"),
        )

    return fulfil


@pytest.fixture
def open_page(browser: Browser, complaints: Complaints) -> Iterator[Callable[..., Page]]:
    """Open a page in a window of its own; at the end it has neither complained nor asked another host."""
    pages: list[Page] = []

    def opened(url: str, *, size: tuple[int, int] = (1280, 800), zone: str = "Europe/Berlin", **options: Any) -> Page:
        viewport: ViewportSize = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, timezone_id=zone, locale="en-GB", **options)
        context.set_default_timeout(WAIT)
        page = context.new_page()
        page.on("console", complaints.console)
        page.on("pageerror", lambda error: complaints.heard.append(f"exception: {error}"))
        page.on("request", complaints.request)
        pages.append(page)
        page.goto(url)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert complaints.unexpected == []
    assert len(complaints.hosts) <= 1
