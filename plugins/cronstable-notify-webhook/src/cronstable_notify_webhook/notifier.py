"""One message, one request. The host bounds the time, tries again where that can help, and keeps the order."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from cronstable.api import (
    Host,
    HttpResponse,
    Json,
    Message,
    NotDelivered,
    Notifier,
    Seconds,
    SecretSource,
    template_variables,
)
from cronstable_notify_webhook.body import Body, BodyError, usual
from cronstable_notify_webhook.settings import BODYLESS, WebhookSettings

_PASSING: Final = frozenset({408, 425, 429})
"""Refusals that another try can turn, besides those of a server in trouble (5xx)."""
_FOR_SECRETS: Final[Seconds] = 20.0


def make(settings: object, host: Host) -> Notifier:
    """The factory that the hook names."""
    assert isinstance(settings, WebhookSettings)
    return Webhook(settings, host)


class Webhook:
    """A ``Notifier``, and ``Bounded``. No error and no log line of it names more of the address than its host."""

    def __init__(self, settings: WebhookSettings, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._body = Body(settings.body, as_json=settings.is_json) if settings.body is not None else None

    @property
    def longest_send(self) -> Seconds:
        """One request, and reading the secrets for it."""
        return self._settings.timeout + _FOR_SECRETS

    async def send(self, message: Message) -> None:
        """Send one request. Raises ``NotDelivered`` unless the answer is 2xx."""
        content = self._content(template_variables(message, os.environ))
        url = await self._settings.url.reveal(self._host)
        server = _server(url)
        headers = await self._headers(content)
        try:
            answer = await self._host.http.request(
                self._settings.method, url, headers=headers, content=content, timeout=self._settings.timeout
            )
        except TimeoutError:
            raise NotDelivered(f"{server}: no answer within {self._settings.timeout:g} s", retry=True) from None
        except OSError as error:
            # Its text may quote the address.
            cause = type(error.__cause__ or error).__name__
            raise NotDelivered(f"{server} cannot be reached ({cause})", retry=True) from None
        _judge(server, answer)

    def _content(self, variables: Mapping[str, Json]) -> bytes:
        as_json = self._settings.is_json
        if self._body is None:
            text = "" if self._settings.method in BODYLESS else usual(variables, as_json=as_json)
        else:
            try:
                text = self._body.render(variables)
            except BodyError as error:
                self._host.log.error(
                    "%s %s: the template `body` of webhook failed, plain text is sent instead: %s",
                    "job" if variables["schedule"] else "node",
                    variables["name"],
                    error,
                )
                text = usual(variables, as_json=as_json)
        return text.encode("utf-8", "replace")

    async def _headers(self, content: bytes) -> dict[str, str]:
        settings = self._settings
        headers = {"User-Agent": "cronstable"}
        if content or settings.method not in BODYLESS:
            headers["Content-Type"] = settings.content_type
        for name, source in settings.headers:
            headers[name] = await self._header_value(name, source)
        if settings.signature is not None:
            key = await settings.signature.secret.reveal(self._host)
            headers[settings.signature.header] = sign(key, content)
        return headers

    async def _header_value(self, name: str, source: SecretSource) -> str:
        value = (await source.reveal(self._host)).strip()
        if not re.fullmatch(r"[\t\x20-\x7e]*", value):
            raise NotDelivered(f"the value of the header {name} has characters in it that no header can have")
        return value


def sign(key: str, content: bytes) -> str:
    """The signature of a body: ``sha256=`` and 64 hex digits."""
    return f"sha256={hmac.new(key.encode(), content, hashlib.sha256).hexdigest()}"


def _server(url: str) -> str:
    """The host of an address, which is all that is ever said of it. Raises ``NotDelivered``."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"[\x00-\x20\x7f]", url):
        raise NotDelivered("the address is not a URL that begins with http:// or https://")
    return str(parts.hostname)


def _judge(server: str, answer: HttpResponse) -> None:
    status = answer.status
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise NotDelivered(f"{server} answers {status}; redirects are not followed")
    asked = answer.headers.get("retry-after", "").strip()
    raise NotDelivered(
        f"{server} answers {status}",
        retry=status >= 500 or status in _PASSING,
        after=float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else None,
    )
