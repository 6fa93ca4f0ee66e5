"""The reporter ``mail``: SMTP with STARTTLS, TLS and login (reference 2.4)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, getaddresses
from typing import TYPE_CHECKING, Final

from cronstable.api import (
    Host,
    InvalidSettings,
    Json,
    Message,
    NotDelivered,
    Notifier,
    NotifierBackend,
    Problem,
    Seconds,
    SecretSource,
    Section,
    hookimpl,
    template_variables,
)
from cronstable.builtin.sections import reporter, secret, template, text

if TYPE_CHECKING:
    from email.message import EmailMessage

    from cronstable.builtin.templating import Templates

TIMEOUT: Final[Seconds] = 30.0
"""For each step of the exchange with the server: connect, greeting, login, each command."""
LONGEST: Final[Seconds] = 90.0
_LONGEST_SUBJECT: Final = 200

SCHEMA = reporter(
    "mail",
    "By mail, when `from` and `to` are set.",
    [{"from": "cron@example.org", "to": "ops@example.org", "smtpHost": "localhost"}],
    smtpHost=text("The mail server; `localhost` when it is not set."),
    smtpPort={"type": "integer", "minimum": 1, "maximum": 65535, "default": 25, "description": "Of the mail server."},
    tls={"type": "boolean", "default": False, "description": "TLS from the first byte (port 465)."},
    starttls={"type": "boolean", "default": False, "description": "TLS after STARTTLS (port 587)."},
    validate_certs={"type": "boolean", "default": True, "description": "Check the server's certificate."},
    html={"type": "boolean", "default": False, "description": "`body` is HTML; values in it are escaped."},
    username=text("Log in as, after TLS."),
    password=secret("Of the mail server"),
    subject=template("The subject"),
    body=template("The text"),
    **{"from": text("The sender."), "to": text("The receivers, with commas between them.")},
)


@dataclass(frozen=True, slots=True)
class MailSettings:
    """A section that names a sender and receivers."""

    sender: str
    receivers: tuple[str, ...]
    server: str
    port: int
    tls: bool
    starttls: bool
    validate_certs: bool
    html: bool
    username: str | None
    password: SecretSource | None
    templates: tuple[tuple[str, str], ...]


@hookimpl
def cronstable_notifiers() -> Iterable[NotifierBackend]:
    """The key ``mail`` of a ``report`` block."""
    yield NotifierBackend(name="mail", factory="cronstable.builtin.mail:make", schema=SCHEMA, parse=parse)


def parse(section: Section) -> MailSettings | None:
    """Settings; None without a sender or receivers. Raises ``InvalidSettings``."""
    problems: list[Problem] = []
    sender = _addresses("from", section, problems)
    receivers = _addresses("to", section, problems)
    texts = tuple((key, str(section[key])) for key in ("subject", "body") if key in section)
    if texts:
        from cronstable.builtin.templating import syntax_problems

        problems += syntax_problems(section, ("subject", "body"))
    if section.get("tls") and section.get("starttls"):
        hint = "take `tls` for port 465, `starttls` for port 587"
        problems.append(Problem(("starttls",), "`tls` and `starttls` exclude each other", hint=hint))
    if problems:
        raise InvalidSettings(problems)
    if not sender or not receivers:
        return None
    port, username = section.get("smtpPort"), section.get("username")
    return MailSettings(
        sender=str(section["from"]),
        receivers=receivers,
        server=str(section.get("smtpHost") or "localhost"),
        port=port if isinstance(port, int) else 25,
        tls=section.get("tls") is True,
        starttls=section.get("starttls") is True,
        validate_certs=section.get("validate_certs") is not False,
        html=section.get("html") is True,
        username=username if isinstance(username, str) and username else None,
        password=SecretSource.of(section.get("password")),
        templates=texts,
    )


def _addresses(key: str, section: Section, problems: list[Problem]) -> tuple[str, ...]:
    value = section.get(key)
    if not isinstance(value, str) or not value.strip():
        return ()
    found = tuple(address for _, address in getaddresses([value]) if address)
    # A line break would end the header and begin another one.
    if not found or re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", value):
        problems.append(Problem((key,), "is not a mail address", hint="write name@host, or Name <name@host>"))
    return found


def make(settings: object, host: Host) -> Notifier:
    """The factory. It imports what sending needs, so that the loop does not have to."""
    import email.policy  # noqa: F401
    import html  # noqa: F401

    import aiosmtplib  # noqa: F401

    from cronstable.builtin.templating import Templates

    assert isinstance(settings, MailSettings)
    texts = dict(settings.templates)
    return Mail(settings, host, Templates(texts), Templates(texts, html=True) if settings.html else None)


class Mail:
    """A ``Notifier``, and ``Bounded``."""

    longest_send = LONGEST

    def __init__(self, settings: MailSettings, host: Host, plain: Templates, html: Templates | None) -> None:
        self._settings = settings
        self._host = host
        self._plain = plain
        self._html = html
        self._given = frozenset(key for key, _ in settings.templates)

    async def send(self, message: Message) -> None:
        """Send one mail; none for a success that has nothing to say."""
        variables = template_variables(message, os.environ)
        mail = self.compose(variables)
        if mail is not None:
            await self._send(mail)

    def compose(self, variables: Mapping[str, Json]) -> EmailMessage | None:
        """The mail; None when it is about a success and its text would be empty (reference 2.3)."""
        from email.message import EmailMessage
        from email.policy import SMTP

        body = self._body(variables)
        if variables["success"] and not body.strip():
            return None
        mail = EmailMessage(policy=SMTP)
        mail["From"] = self._settings.sender
        mail["To"] = ", ".join(self._settings.receivers)
        mail["Subject"] = self._subject(variables)
        mail["Date"] = format_datetime(datetime.fromtimestamp(self._host.clock.now().wall, UTC))
        mail["Message-ID"] = f"<{self._host.ids.token(16)}@{_domain(self._settings.sender)}>"
        mail["Auto-Submitted"] = "auto-generated"
        if self._html is None:
            mail.set_content(_encodable(body))
        else:
            mail.set_content(_encodable(str(variables["message"] or variables["subject"])))
            mail.add_alternative(_encodable(body), subtype="html")
        return mail

    def _subject(self, variables: Mapping[str, Json]) -> str:
        subject = str(variables["subject"])
        if "subject" in self._given:
            subject = self._plain.render("subject", variables, self._host, lambda: str(variables["subject"]))
        elif not variables["schedule"]:
            subject = f"cronstable {variables['event']}: {subject}"
        # A line break would end the header and begin another one, and so would one in an encoded word: the email
        # package decodes those, and writes out what was in them.
        plain = re.sub(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+", " ", subject).replace("=?", "= ?")
        return plain.strip()[:_LONGEST_SUBJECT]

    def _body(self, variables: Mapping[str, Json]) -> str:
        from html import escape

        text = str(variables["message"])
        if self._html is None:
            return self._plain.render("body", variables, self._host, lambda: text) if "body" in self._given else text
        plain = f"<pre>{escape(text)}</pre>\n" if text else ""
        return self._html.render("body", variables, self._host, lambda: plain) if "body" in self._given else plain

    async def _send(self, mail: EmailMessage) -> None:
        import aiosmtplib

        settings = self._settings
        password = await settings.password.reveal(self._host) if settings.password is not None else None
        try:
            await aiosmtplib.send(
                mail,
                sender=getaddresses([settings.sender])[0][1],
                recipients=list(settings.receivers),
                hostname=settings.server,
                port=settings.port,
                username=settings.username,
                password=password if settings.username is not None else None,
                use_tls=settings.tls,
                start_tls=settings.starttls,
                validate_certs=settings.validate_certs,
                timeout=TIMEOUT,
                # What it would ask the resolver for otherwise, on the loop.
                local_hostname=_domain(settings.sender),
            )
        except aiosmtplib.SMTPRecipientsRefused as error:
            codes = sorted({refusal.code for refusal in error.recipients})
            raise NotDelivered(f"the server refuses the receivers ({codes})", retry=codes[0] < 500) from None
        except aiosmtplib.SMTPResponseException as error:
            # The server's words may repeat what it was told; its code says enough.
            what = type(error).__name__.removeprefix("SMTP")
            raise NotDelivered(f"the server answers {error.code} ({what})", retry=400 <= error.code < 500) from None
        except (aiosmtplib.SMTPException, OSError) as error:
            raise NotDelivered(f"{settings.server}:{settings.port}: {type(error).__name__}", retry=True) from None


def _encodable(text: str) -> str:
    """Bytes of the daemon's environment that are no UTF-8 are lone surrogates here."""
    return text.encode("utf-8", "replace").decode()


def _domain(sender: str) -> str:
    domain = getaddresses([sender])[0][1].rpartition("@")[2]
    return domain if re.fullmatch(r"[A-Za-z0-9.-]+", domain) else "localhost"
