"""A network that answers as a test says, and messages to send."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from cronstable_notify_webhook.notifier import make
from cronstable_notify_webhook.settings import parse

from cronstable.api import HttpResponse, Message, NotDelivered, QuorumLoss, Seconds
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost

SECRET_URL = "https://user:sesame@hooks.example.org/T0/sesame?key=sesame"


class Network:
    """Remembers requests. ``answers``: what comes back, in order; then 200."""

    def __init__(self) -> None:
        self.answers: list[HttpResponse | Exception] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes, float]] = []

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: Seconds,
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        self.requests.append((method, url, dict(headers), content, timeout))
        answer = self.answers.pop(0) if self.answers else HttpResponse(200, {}, b"ok")
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def network() -> Network:
    """The network of ``send``."""
    return Network()


@pytest.fixture
def fake_host(network: Network) -> FakeHost:
    """A host on that network."""
    return FakeHost(VirtualClock(), http=network)


@pytest.fixture
def send(fake_host: FakeHost) -> Callable[..., NotDelivered | None]:
    """``send(message, **section)``: what went wrong, None when it was delivered."""

    def call(message: Message | None = None, **section: object) -> NotDelivered | None:
        settings = parse({"url": {"value": SECRET_URL}, "contentType": "application/json", **section})  # type: ignore[dict-item]
        notifier = make(settings, fake_host)

        async def run() -> None:
            await notifier.send(message or QuorumLoss("node-a", 0.0, "the view changed", "host-1"))

        try:
            run_virtual(run)
        except NotDelivered as error:
            return error
        return None

    return call
