"""Mails: what is in their headers and text, and what cannot get in there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from email import message_from_bytes, policy
from email.message import EmailMessage

import anyio
import pytest

from cronstable.builtin import mail as mail_reporter
from cronstable.builtin.mail import MailSettings, make, parse
from cronstable.core.job import Json
from cronstable.plugin.errors import InvalidSettings, NotDelivered
from cronstable.plugin.protocols import LeaderChange, Message, Report
from cronstable.plugin.variables import template_variables
from cronstable.testing.host import FakeHost

MakeReport = Callable[..., Report]

SECTION: Mapping[str, Json] = {"from": "Cron <cron@example.org>", "to": "ops@example.org, Bo <bo@example.org>"}


def compose(host: FakeHost, message: Message, **section: Json) -> EmailMessage | None:
    settings = parse({**SECTION, **section})
    return make(settings, host).compose(template_variables(message))  # type: ignore[attr-defined,no-any-return]


def composed(host: FakeHost, message: Message, **section: Json) -> EmailMessage:
    mail = compose(host, message, **section)
    assert mail is not None
    return mail


def text_of(mail: EmailMessage) -> str:
    part = mail.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


def test_a_mail_has_every_header_that_servers_ask_for(fake_host: FakeHost, make_report: MakeReport) -> None:
    mail = composed(fake_host, make_report(stderr="disk full\n"))
    assert mail["Date"] == "Thu, 01 Jan 2026 00:00:00 +0000"
    assert mail["Message-ID"].startswith("<")
    assert mail["Message-ID"].endswith("@example.org>")
    assert (mail["From"], mail["To"]) == ("Cron <cron@example.org>", "ops@example.org, bo@example.org")
    assert mail["Subject"] == "Cron job 'backup' failed"
    assert "reason: failsWhen=nonzeroReturn and retcode=3" in text_of(mail)
    assert "disk full" in text_of(mail)


def test_output_that_looks_encoded_is_no_header_either(fake_host: FakeHost, make_report: MakeReport) -> None:
    # Within an encoded word: a line break and Bcc. The email package decodes it when it is given as text.
    evil = make_report(stdout="=?utf-8?b?DQpCY2M6IGV2ZUBleGFtcGxlLm5ldA==?= =?utf-8?q?=0D=0ABcc:_eve?=")
    mail = composed(fake_host, evil, subject="{{ stdout }}")
    read = message_from_bytes(bytes(mail), policy=policy.default)
    assert read["Bcc"] is None
    assert set(read.keys()) == set(composed(fake_host, make_report()).keys())
    assert "\n" not in str(read["Subject"])


@pytest.mark.parametrize("html", [False, True])
def test_what_no_mail_can_hold_is_replaced(fake_host: FakeHost, make_report: MakeReport, *, html: bool) -> None:
    # Bytes of the environment that are no UTF-8 are half of a surrogate pair each in Python.
    mail = composed(fake_host, make_report(stdout="a\udcffb"), body="{{ stdout }}", html=html)
    assert b"Subject: " in bytes(mail)


def test_each_mail_has_an_id_of_its_own(fake_host: FakeHost, make_report: MakeReport) -> None:
    ids = {composed(fake_host, make_report())["Message-ID"] for _ in range(10)}
    assert len(ids) == 10


def test_no_job_can_write_headers(fake_host: FakeHost, make_report: MakeReport) -> None:
    evil = make_report(stdout="x\r\nBcc: eve@example.net\r\n\r\nhello\u2028Bcc: eve@example.net")
    mail = composed(fake_host, evil, subject="{{ name }} {{ stdout }}", body="{{ stdout }}")
    assert "\n" not in mail["Subject"]
    assert mail["Bcc"] is None
    head = bytes(mail).partition(b"\r\n\r\n")[0]
    assert b"\r\nBcc" not in head
    assert mail.get_all("Subject") == [mail["Subject"]]


@pytest.mark.parametrize("line_break", ["\n", "\x85", "\u2028"])
@pytest.mark.parametrize("key", ["from", "to"])
def test_an_address_with_a_line_break_is_refused(key: str, line_break: str) -> None:
    with pytest.raises(InvalidSettings, match="not a mail address"):
        parse({**SECTION, key: f"a@example.org{line_break}Bcc: eve@example.net"})


def test_a_success_that_has_nothing_to_say_sends_no_mail(fake_host: FakeHost, make_report: MakeReport) -> None:
    assert compose(fake_host, make_report("onSuccess")) is None
    assert compose(fake_host, make_report("onSuccess"), body=" {{ stdout }}\n") is None
    assert compose(fake_host, make_report("onSuccess", stdout="12 files")) is not None
    assert compose(fake_host, make_report("onSuccess"), body="all went well") is not None
    assert compose(fake_host, make_report("onFailure"), body="{{ stdout }}") is not None


def test_html_comes_with_plain_text_beside_it_and_is_escaped(fake_host: FakeHost, make_report: MakeReport) -> None:
    failed = make_report(stderr="<script>alert(1)</script>")
    for body in ({}, {"body": "<p>{{ stderr }}</p>"}):
        mail = composed(fake_host, failed, html=True, **body)
        html = mail.get_body(("html",))
        assert html is not None
        assert "<script>" not in html.get_content()
        assert "&lt;script&gt;" in html.get_content()
        assert "<script>alert(1)</script>" in text_of(mail)


def test_a_template_that_fails_sends_the_plain_report(fake_host: FakeHost, make_report: MakeReport) -> None:
    mail = composed(fake_host, make_report(), subject="{{ 1 // 0 }}", body="{{ name + 1 }}")
    assert mail["Subject"] == "Cron job 'backup' failed"
    assert "reason: " in text_of(mail)
    assert len(fake_host.logged("job backup: the template")) == 2


def test_an_event_of_the_cluster_is_named_in_the_subject(fake_host: FakeHost) -> None:
    mail = composed(fake_host, LeaderChange("node-a", True, "node-a", 0.0, "elected at start", "host-1"))
    assert mail["Subject"] == "cronstable leader_change: node node-a became the leader"
    assert "became the leader (elected at start)" in text_of(mail)


@pytest.mark.parametrize("missing", ["from", "to"])
def test_without_a_sender_or_receivers_nobody_is_told(missing: str) -> None:
    assert parse({**SECTION, missing: None}) is None
    assert parse({**SECTION, missing: "  "}) is None


def test_the_defaults_are_those_of_the_reference() -> None:
    settings = parse(SECTION)
    assert isinstance(settings, MailSettings)
    found = (settings.server, settings.port, settings.tls, settings.starttls, settings.validate_certs, settings.html)
    assert found == ("localhost", 25, False, False, True, False)


def test_tls_and_starttls_exclude_each_other() -> None:
    with pytest.raises(InvalidSettings, match="exclude each other"):
        parse({**SECTION, "tls": True, "starttls": True})


def test_a_mistake_in_a_template_is_a_finding() -> None:
    with pytest.raises(InvalidSettings) as raised:
        parse({**SECTION, "subject": "{{ name", "body": "{% if %}"})
    assert [problem.path for problem in raised.value.problems] == [("subject",), ("body",)]


def test_settings_do_not_show_the_password() -> None:
    assert "sesame" not in repr(parse({**SECTION, "password": {"value": "sesame"}}))


@pytest.mark.anyio
@pytest.mark.parametrize("greeting", [b"", b"220 mail.example.org\r\n"])
async def test_a_server_that_accepts_and_then_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, fake_host: FakeHost, make_report: MakeReport, greeting: bytes
) -> None:
    monkeypatch.setattr(mail_reporter, "TIMEOUT", 0.2)
    over = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    settings = parse({**SECTION, "smtpHost": "127.0.0.1", "smtpPort": server.sockets[0].getsockname()[1]})
    try:
        with anyio.fail_after(20), pytest.raises(NotDelivered, match="Timeout") as caught:
            await make(settings, fake_host).send(make_report(stderr="disk full"))
        assert caught.value.retry
    finally:
        over.set()
        server.close()
        await server.wait_closed()
