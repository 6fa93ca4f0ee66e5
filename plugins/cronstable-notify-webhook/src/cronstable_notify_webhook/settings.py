"""The section ``webhook`` as values. Secrets stay where they are until a message is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cronstable.api import InvalidSettings, Json, Problem, Seconds, SecretSource, Section

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset({"content-type", "content-length", "host", "transfer-encoding"})
_JSON: Final = re.compile(r"application/(?:[a-z0-9.-]+\+)?json", re.IGNORECASE)
BODYLESS: Final = frozenset({"GET", "DELETE"})
"""Methods that send nothing unless a ``body`` is given."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The key, and the name of the header that carries what it makes of the body."""

    secret: SecretSource
    header: str


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A section with an address. ``body``: a template, None for the usual text. ``timeout`` in seconds, for one try."""

    url: SecretSource
    method: str
    content_type: str
    headers: tuple[tuple[str, SecretSource], ...]
    body: str | None
    timeout: Seconds
    signature: Signature | None

    @property
    def is_json(self) -> bool:
        """The body is declared to be JSON."""
        return _JSON.fullmatch(self.content_type.split(";")[0].strip()) is not None


def parse(section: Section) -> WebhookSettings | None:
    """Settings from the validated section; None without an address. Raises ``InvalidSettings``."""
    url = SecretSource.of(section.get("url"))
    if url is None:
        return None
    problems: list[Problem] = []
    headers = _headers(section.get("headers"), problems)
    signature = _signature(section.get("signature"), problems)
    content_type = section.get("contentType")
    if not isinstance(content_type, str) or not re.fullmatch(r"[\x21-\x7e][\x20-\x7e]*", content_type):
        problems.append(Problem(("contentType",), "is not a media type", hint="for example application/json"))
    body, timeout = section.get("body"), section.get("timeout")
    if isinstance(body, str):
        from cronstable_notify_webhook.body import syntax_problem

        wrong = syntax_problem(body)
        if wrong is not None:
            problems.append(Problem(("body",), wrong))
    if problems:
        raise InvalidSettings(problems)
    return WebhookSettings(
        url=url,
        method=str(section.get("method") or "POST"),
        content_type=str(content_type),
        headers=headers,
        body=body if isinstance(body, str) else None,
        timeout=float(timeout) if isinstance(timeout, int | float) else 10.0,
        signature=signature,
    )


def _headers(section: Json, problems: list[Problem]) -> tuple[tuple[str, SecretSource], ...]:
    headers: list[tuple[str, SecretSource]] = []
    for name, value in section.items() if isinstance(section, dict) else ():
        source = SecretSource.of(value)
        if _HEADER_NAME.fullmatch(name) is None:
            problems.append(Problem(("headers", name), "is not the name of a header"))
        elif name.lower() in _OURS:
            hint = "set `contentType`" if name.lower() == "content-type" else "leave it out"
            problems.append(Problem(("headers", name), "this header is set by cronstable", hint=hint))
        elif source is None:
            problems.append(Problem(("headers", name), "the header has no value"))
        else:
            headers.append((name, source))
    return tuple(headers)


def _signature(section: Json, problems: list[Problem]) -> Signature | None:
    if not isinstance(section, dict):
        return None
    secret, header = SecretSource.of(section.get("secret")), str(section.get("header") or "X-Cronstable-Signature")
    if _HEADER_NAME.fullmatch(header) is None:
        problems.append(Problem(("signature", "header"), "is not the name of a header"))
    if secret is None:
        problems.append(Problem(("signature", "secret"), "the secret has no source"))
        return None
    return Signature(secret, header)
