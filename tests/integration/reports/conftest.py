"""Real daemons, and servers for them to tell: mail with STARTTLS and login, HTTP that misbehaves."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import yaml
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

CASES = Path(__file__).parents[2] / "cases"
PATIENCE = 20.0
"""Seconds for anything to happen on a busy machine."""


def until(condition: Callable[[], object], what: Callable[[], object]) -> None:
    """Wait for a condition with a deadline; ``what`` tells what there was instead."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what()
        pause.wait(0.02)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object], Callable[[], object]], None]:
    """``until`` for test modules."""
    return until


@pytest.fixture
def case() -> Callable[[str], dict[str, Any]]:
    """A case by its file's name."""
    return lambda name: cast("dict[str, Any]", yaml.safe_load((CASES / f"{name}.yaml").read_text("utf-8")))


# -- daemons ----------------------------------------------------------------------------------------------------------


@dataclass
class Daemon:
    """A daemon process. ``log``: its stderr so far."""

    process: subprocess.Popen[str]
    path: Path
    log: list[str] = field(default_factory=list)
    reading: threading.Thread | None = None

    @property
    def text(self) -> str:
        return "".join(self.log)

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.text, lambda: self.text)

    def reload(self, config: str) -> None:
        """Another configuration from now on."""
        self.path.write_text(config, encoding="utf-8")
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        if self.reading is not None:
            self.reading.join(PATIENCE)
        return code


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """``daemon(yaml text, level="INFO", **environment)``; stopped at the end whatever happens."""
    started: list[tuple[Daemon, threading.Thread]] = []

    def start(config: str, *, level: str = "INFO", **environment: str) -> Daemon:
        path = tmp_path / f"cronstable-{len(started)}.yaml"
        path.write_text(config, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "cronstable", "-c", str(path), "-l", level],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        made = Daemon(process, path)

        def read() -> None:
            assert process.stderr is not None
            with process.stderr:
                made.log.extend(process.stderr)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        made.reading = thread
        started.append((made, thread))
        return made

    yield start
    for made, thread in started:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait(PATIENCE)
        thread.join(PATIENCE)
        # Shown by pytest when the test failed.
        print(made.text)


# -- mail -------------------------------------------------------------------------------------------------------------


class MailServer:
    """Takes mails. ``commands``: what clients said, in order; ``logins``: the credentials they gave."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.receivers: list[list[str]] = []
        self.commands: list[str] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.port = 0

    async def handle_EHLO(
        self, server: SMTP, session: Session, envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        self.commands.append("EHLO")
        session.host_name = hostname
        return responses

    def handle_STARTTLS(self, server: SMTP, session: Session, envelope: Envelope) -> bool:
        self.commands.append("STARTTLS")
        return True

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        self.receivers.append(list(envelope.rcpt_tos))
        return "250 taken"

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword
    ) -> AuthResult:
        self.commands.append("AUTH")
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"sesame street", handled=False)

    def arrived(self, count: int = 1) -> list[EmailMessage]:
        until(lambda: len(self.mails) >= count, lambda: (self.mails, self.commands))
        return self.mails


class ClosingController(Controller):
    """Closes what clients left behind: after a handshake that fails, the server's side of it stays open."""

    def factory(self) -> SMTP:
        made = cast("SMTP", super().factory())  # type: ignore[no-untyped-call]
        self.made = [*getattr(self, "made", []), made]
        return made

    def stop(self, no_assert: bool = False) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(PATIENCE)
        super().stop(no_assert)

    async def _close(self) -> None:
        for smtp in getattr(self, "made", []):
            for transport in (smtp.transport, smtp._original_transport):
                if transport is not None:
                    transport.abort()
        # A transport is closed by the loop, one round later.
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def authority(tmp_path: Path) -> tuple[trustme.CA, str]:
    """A certificate authority and the file that daemons trust it by."""
    ca = trustme.CA()
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return ca, str(path)


@pytest.fixture
def mail_server(
    authority: tuple[trustme.CA, str], free_ports: Callable[[int], list[int]]
) -> Iterator[Callable[..., MailServer]]:
    """``mail_server(starttls=..., tls=..., login=...)``: a server on a port of the loopback address."""
    controllers: list[Controller] = []

    def start(*, starttls: bool = False, tls: bool = False, login: bool = False) -> MailServer:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority[0].issue_cert("localhost", "127.0.0.1").configure_cert(context)
        server = MailServer()
        options: dict[str, Any] = {}
        if starttls:
            options |= {"tls_context": context, "require_starttls": True}
        if login:
            # What it calls TLS is STARTTLS only, and without that it warns.
            options |= {"authenticator": server.authenticate, "auth_required": not tls, "auth_require_tls": not tls}
        (server.port,) = free_ports(1)
        controller = ClosingController(
            server, hostname="127.0.0.1", port=server.port, ssl_context=context if tls else None, **options
        )
        controller.start()
        controllers.append(controller)
        return server

    yield start
    for controller in controllers:
        controller.stop()


# -- HTTP -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What an endpoint was sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


class Endpoint(ThreadingHTTPServer):
    """Answers by the first word of the path: ``ok``, ``busy`` (503 once), ``away`` (302), ``no`` (403), ``hang``."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def of(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path.startswith(path)]

    def arrived(self, count: int = 1, path: str = "/") -> list[Request]:
        until(lambda: len(self.of(path)) >= count, lambda: self.requests)
        return self.of(path)


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        before = len(self.server.of(self.path))
        request = Request(self.command, self.path, dict(self.headers.items()), body, time.monotonic())
        self.server.requests.append(request)
        word = self.path.split("/")[1]
        if word == "hang":
            self.server.released.wait(PATIENCE * 2)
            return
        status = {"away": 302, "no": 403}.get(word, 200)
        if word == "busy" and before == 0:
            status = 503
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"{self.server.url}/ok/redirected")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An HTTP server on a port of the loopback address."""
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join(PATIENCE)
    server.server_close()
