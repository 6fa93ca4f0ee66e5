"""Mails that a real server has taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any, Protocol

import pytest
import trustme

pytestmark = pytest.mark.integration

Case = Callable[[str], dict[str, Any]]


class MailServer(Protocol):
    mails: list[EmailMessage]
    receivers: list[list[str]]
    commands: list[str]
    logins: list[tuple[bytes, bytes]]
    port: int

    def arrived(self, count: int = 1) -> list[EmailMessage]: ...


class Daemon(Protocol):
    text: str

    def wait_for(self, text: str) -> None: ...
    def stop(self) -> int: ...


StartDaemon = Callable[..., Daemon]
StartServer = Callable[..., MailServer]


def config(port: int, command: str = "exit 3", hook: str = "onFailure", **mail: Any) -> str:
    section = {"from": "Cron <cron@example.org>", "to": "ops@example.org", "smtpHost": "localhost", "smtpPort": port}
    job = {
        "name": "loud",
        "command": command,
        "schedule": "@reboot",
        "captureStdout": True,
        hook: {"report": {"mail": {**section, **mail}}},
    }
    # JSON is YAML.
    return json.dumps({"jobs": [job]})


LOGIN: dict[str, Any] = {"username": "cron", "password": {"fromEnvVar": "MAIL_PASSWORD"}}
SECRETS = {"MAIL_PASSWORD": "sesame street"}


def test_a_mail_has_date_and_message_id(daemon: StartDaemon, mail_server: StartServer, case: Case) -> None:
    wanted = case("report-mail-has-date-and-message-id")["expected"]["headers"]
    server = mail_server()
    running = daemon(config(server.port, "echo 12 files; echo disk full >&2; exit 3"))
    (mail,) = server.arrived()
    assert [name for name in wanted if mail[name]] == wanted
    assert server.receivers == [["ops@example.org"]]
    body = mail.get_body()
    assert body is not None
    text = str(body.get_content())
    for words in ("failsWhen=nonzeroReturn and retcode=3", "12 files", "disk full"):
        assert words in text
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("name", "server_has", "section"),
    [
        ("report-mail-starttls-login", {"starttls": True}, {"starttls": True}),
        ("extra/report-mail-tls-from-the-first-byte", {"tls": True}, {"tls": True}),
    ],
)
def test_the_login_comes_after_tls(
    daemon: StartDaemon,
    mail_server: StartServer,
    authority: tuple[trustme.CA, str],
    case: Case,
    name: str,
    server_has: dict[str, bool],
    section: dict[str, Any],
) -> None:
    wanted = case(name)["expected"]
    server = mail_server(login=True, **server_has)
    text = config(server.port, **section, **LOGIN)
    running = daemon(text, level="DEBUG", SSL_CERT_FILE=authority[1], **SECRETS)
    server.arrived()
    assert server.commands == wanted["order"]
    assert server.logins == [(b"cron", b"sesame street")]
    assert running.stop() == 0
    assert wanted["password_never_logged"]
    assert "sesame" not in running.text


def test_a_server_with_an_unknown_certificate_gets_neither_mail_nor_password(
    daemon: StartDaemon, mail_server: StartServer, case: Case
) -> None:
    wanted = case("extra/report-mail-refuses-an-unknown-certificate")["expected"]
    server = mail_server(login=True, starttls=True)
    running = daemon(config(server.port, starttls=True, **LOGIN), level="DEBUG", **SECRETS)
    running.wait_for("tried again in")
    assert (len(server.mails), len(server.logins)) == (wanted["mails"], wanted["logins"])
    assert "sesame" not in running.text


def test_a_certificate_need_not_be_checked(daemon: StartDaemon, mail_server: StartServer) -> None:
    server = mail_server(starttls=True)
    daemon(config(server.port, starttls=True, validate_certs=False))
    assert len(server.arrived()) == 1


def test_a_wrong_password_is_an_error_that_is_not_repeated_and_not_logged(
    daemon: StartDaemon, mail_server: StartServer, authority: tuple[trustme.CA, str]
) -> None:
    server = mail_server(login=True, starttls=True)
    text = config(server.port, starttls=True, **LOGIN)
    running = daemon(text, level="DEBUG", SSL_CERT_FILE=authority[1], MAIL_PASSWORD="open sesame")
    running.wait_for("mail could not be told: the server answers 535 (AuthenticationError)")
    assert running.stop() == 0
    assert "sesame" not in running.text
    assert "tried again" not in running.text
    assert set(server.logins) == {(b"cron", b"open sesame")}


def test_html_has_plain_text_beside_it(daemon: StartDaemon, mail_server: StartServer, case: Case) -> None:
    wanted = case("extra/report-mail-html-has-plain-text")
    server = mail_server()
    body = "<p>{{ name }}</p><pre>{{ stderr }}</pre>"
    daemon(config(server.port, wanted["input"]["job"]["command"], html=True, body=body))
    (mail,) = server.arrived()
    assert [name for name in wanted["expected"]["headers"] if mail[name] is None] == []
    assert [part.get_content_type() for part in mail.iter_parts()] == wanted["expected"]["parts"]
    html = mail.get_body(("html",))
    assert html is not None
    assert wanted["expected"]["html_contains"] in html.get_content()


def test_a_success_without_output_sends_no_mail(daemon: StartDaemon, mail_server: StartServer, case: Case) -> None:
    wanted = case("extra/report-mail-success-without-output")["expected"]
    server = mail_server()
    text = json.loads(config(server.port, "true", "onSuccess"))
    loud = {**text["jobs"][0], "name": "second", "command": "echo 12 files"}
    running = daemon(json.dumps({"jobs": [*text["jobs"], loud]}))
    running.wait_for("job loud: success")
    server.arrived()
    assert running.stop() == 0
    assert [mail["Subject"] for mail in server.mails] == ["Cron job 'second' succeeded"] * wanted["mails"]


def test_output_cannot_write_headers(daemon: StartDaemon, mail_server: StartServer, case: Case) -> None:
    wanted = case("extra/report-mail-header-injection")
    server = mail_server()
    daemon(config(server.port, wanted["input"]["job"]["command"], subject=wanted["input"]["subject"]))
    (mail,) = server.arrived()
    assert server.receivers == [wanted["expected"]["receivers"]]
    assert [name for name in wanted["expected"]["headers_absent"] if mail[name] is not None] == []
    assert "Bcc: eve@example.net" in mail["Subject"]


def test_a_server_that_is_not_there_is_an_error_with_its_address(daemon: StartDaemon) -> None:
    running = daemon(config(1))
    running.wait_for("job loud: onFailure: mail: localhost:1: SMTPConnect")
