"""Fault injection for stores over HTTP: an ``Http`` that answers by plan, or passes on.

    host = FakeHost(clock, http=FaultyHttp(real, {("POST", 3): Status(401)}, clock))

Plans count the requests of each method from 1; a callable plan sees (method, url,
number) and may strike by the address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from cronstable.core.clock import Clock, Seconds
from cronstable.plugin.protocols import Http, HttpResponse

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Status:
    """Somebody answers in the store's place: 401, 403, 409, 429, 5xx. ``committed``: after it was carried out."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Nobody listens: the request never left."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection breaks after the request was sent. ``committed``: it was carried out all the same."""

    committed: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer within the caller's timeout. ``committed``: it was carried out all the same."""

    committed: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """It takes ``before`` seconds to get there and ``after`` to come back; the caller may have given up by then."""

    before: Seconds = 0.0
    after: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Twice:
    """A proxy sends it a second time; the second answer is thrown away."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer ends after so many bytes, and looks complete."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A proxy answers 200 with a page of its own."""

    content: bytes = b"<html><body>Please log in</body></html>"


HttpFault: TypeAlias = Status | Refused | Reset | Silence | Late | Twice | Cut | Page

HttpPlan: TypeAlias = "Mapping[tuple[str, int], HttpFault] | Callable[[str, str, int], HttpFault | None]"
"""Which fault strikes the n-th request of a method."""

STATUSES: Final = (401, 403, 409, 429, 500, 502, 503, 504)
"""What every store over HTTP has to survive in place of an answer."""

WITHOUT_AN_ANSWER: Final[tuple[HttpFault, ...]] = (
    *(Status(status) for status in STATUSES),
    Refused(),
    Reset(),
    Reset(committed=True),
    Silence(),
    Silence(committed=True),
    Cut(),
    Page(),
)
"""One of each that brings no usable answer: a store says ``StoreUnavailable`` or what it knows, and never ``Held``."""


class FaultyHttp:
    """An ``Http`` that misbehaves by plan around one that does not. ``requests``: (method, url) in their order."""

    def __init__(self, http: Http, plan: HttpPlan, clock: Clock) -> None:
        self.http = http
        self.plan = plan
        self.clock = clock
        self.requests: list[tuple[str, str]] = []

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
        """See ``Http.request``."""

        async def send() -> HttpResponse:
            return await self.http.request(method, url, headers=headers, content=content, timeout=timeout, tls=tls)

        match self._strikes(method, url):
            case None:
                return await send()
            case Status(status, text, extra, committed):
                if committed:
                    await send()
                return HttpResponse(status, dict(extra), text)
            case Refused():
                raise ConnectionRefusedError(f"injected: {method} {url}: nobody listens")
            case Reset(committed):
                if committed:
                    await send()
                raise ConnectionResetError(f"injected: {method} {url}: the connection broke")
            case Silence(committed):
                if committed:
                    await send()
                await self.clock.sleep(timeout)
                raise TimeoutError(f"injected: {method} {url}: no answer")
            case Late(before, after):
                return await self._late(send, before, after, timeout)
            case Twice():
                answer = await send()
                await send()
                return answer
            case Cut(after):
                answer = await send()
                return HttpResponse(answer.status, answer.headers, answer.content[:after])
            case Page(page):
                return HttpResponse(200, {"content-type": "text/html"}, page)
            case other:
                assert_never(other)

    async def _late(
        self, send: Callable[[], Awaitable[HttpResponse]], before: Seconds, after: Seconds, timeout: Seconds
    ) -> HttpResponse:
        await self.clock.sleep(min(before, timeout))
        if before > timeout:
            raise TimeoutError("injected: the request is still on its way")
        answer = await send()
        await self.clock.sleep(min(after, timeout - before))
        if before + after > timeout:
            raise TimeoutError("injected: the answer is still on its way")
        return answer

    def _strikes(self, method: str, url: str) -> HttpFault | None:
        self.requests.append((method, url))
        number = sum(1 for one, _ in self.requests if one == method)
        if isinstance(self.plan, Mapping):
            return self.plan.get((method, number))
        return self.plan(method, url, number)
