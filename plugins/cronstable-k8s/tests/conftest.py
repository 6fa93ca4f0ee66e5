"""The stand-in for an apiserver, and stores over it, in virtual time."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import anyio
import pytest
from cronstable_k8s.leases import Leases
from cronstable_k8s.store import KubernetesLeaseStore

from cronstable.api import Grant, Held, Holder, HttpResponse, HttpStream
from cronstable.testing.clock import VirtualClock
from cronstable.testing.host import FakeHost

SCRIPT = Path(__file__).with_name("apiserver.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cronstable_k8s_stand_in", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


STAND_IN: Any = _load()


@pytest.fixture
def anyio_backend() -> str:
    """The backend that the daemon runs on."""
    return "asyncio"


@pytest.fixture
def stand_in() -> Any:
    """The module of the stand-in; ``stand_in.ApiServer(now)``."""
    return STAND_IN


Script = Callable[[str, str, bytes], HttpResponse | None | Coroutine[Any, Any, HttpResponse | None]]


@dataclass
class Line:
    """One node's way to the stand-in: an ``Http`` with ``HttpStreams``, and a ``Transport``.

    ``before(method, url, content)`` sees each call and may answer in its place, raise or hang; ``after`` the same once
    it has been carried out. ``calls``: (method, path) in order. ``cut``: None, "refused" or "silent".
    """

    server: Any
    before: Script = lambda method, url, content: None
    after: Script = lambda method, url, content: None
    calls: list[tuple[str, str]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)
    cut: str | None = None

    async def request(
        self,
        method: str,
        url: str,
        content: bytes = b"",
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        timeout: float,
        tls: Any = None,
    ) -> HttpResponse:
        self._note(method, url, headers, tls)
        try:
            with anyio.fail_after(timeout):
                await self._reach()
                scripted = await _settle(self.before(method, url, content))
                answer = scripted or self._serve(method, url, headers, content)
                return await _settle(self.after(method, url, content)) or answer
        except TimeoutError:
            raise TimeoutError("no answer") from None

    def _note(self, method: str, url: str, headers: Mapping[str, str], tls: Any) -> None:
        self.calls.append((method, url))
        self.headers.append(headers)
        self.contexts.append(tls)

    async def _reach(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.cut == "refused":
            raise OSError("ConnectError: All connection attempts failed")
        if self.cut == "silent":
            await anyio.Event().wait()

    def _serve(self, method: str, url: str, headers: Mapping[str, str], content: bytes) -> HttpResponse:
        reply = self.server.handle(method, url, headers, content)
        return HttpResponse(reply.status, reply.headers, reply.content)

    @asynccontextmanager
    async def stream(
        self,
        method_or_path: str,
        url: str = "",
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: float,
        lasts: float = 0.0,
        tls: Any = None,
    ) -> AsyncIterator[HttpStream]:
        url = url or method_or_path
        self._note("WATCH", url, headers, tls)
        with anyio.fail_after(timeout):
            await self._reach()
        refused = self.server.may_watch(url, headers)
        if refused is not None:
            yield HttpStream(refused.status, {}, _lines(refused.content))
        else:
            yield HttpStream(200, {}, self._until_cut(self.server.watch(url)))

    async def _until_cut(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for text in lines:
            await self._reach()
            yield text

    def count(self, method: str) -> int:
        return sum(1 for found, _ in self.calls if found == method)


async def _lines(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _settle(value: Any) -> Any:
    return await value if isinstance(value, Coroutine) else value


@pytest.fixture
def line() -> type[Line]:
    return Line


@pytest.fixture
def status() -> Callable[..., HttpResponse]:
    """A failure as a script gives it: ``status(429, "too many", {"retry-after": "1"})``; text or a Status."""

    def make(code: int, body: Any = "no", headers: Mapping[str, str] = MappingProxyType({})) -> HttpResponse:
        reply = STAND_IN.Reply(code, body, headers)
        return HttpResponse(code, headers, reply.content)

    return make


class Node:
    """One process on a stand-in: its host, its line and its store. Make it inside the loop."""

    def __init__(self, server: Any, name: str, *, pace: float = 0.0, watch: float = 0.0, host: Any = None) -> None:
        self.line = Line(server)
        self.host = FakeHost(VirtualClock.of_loop(), name, http=self.line) if host is None else host
        self.me = Holder(name, self.host.ids.token())
        leases = Leases(self.host, "cronstable-leader", timeout=2.5)
        leases.connect(self.line, "default")
        self.store = KubernetesLeaseStore(self.host, leases, ttl=15.0, pace=pace, watch=watch)

    def nonce(self) -> str:
        return self.host.ids.token(8)

    async def win(self) -> Grant:
        answer = await self.store.acquire(self.me, 15.0, nonce=self.nonce())
        assert isinstance(answer, Held), answer
        return answer.grant

    async def renewed(self, grant: Grant) -> Grant:
        answer = await self.store.renew(grant, nonce=self.nonce())
        assert isinstance(answer, Held), answer
        return answer.grant


@pytest.fixture
def node() -> type[Node]:
    return Node


@pytest.fixture
def server() -> Callable[[], Any]:
    """A new stand-in on the running loop's time, once a loop runs."""

    def make() -> Any:
        clock = VirtualClock.of_loop()
        return STAND_IN.ApiServer(lambda: clock.now().wall)

    return make
