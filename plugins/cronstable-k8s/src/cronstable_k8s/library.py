"""The apiserver through Kubernetes' own client for Python, which knows every way to authenticate (``exec`` and so on).

Blocking calls in threads of our own. The package is imported here only, by name: it has no types.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol, cast
from urllib.parse import parse_qsl

from cronstable.api import Host, HttpResponse, HttpStream, PluginError, Seconds
from cronstable_k8s.settings import KubernetesSettings

PACKAGE: Final = "kubernetes"
INSTALL: Final = "pip install 'cronstable[kubernetes]' cronstable-k8s"
LANE: Final = "cronstable-k8s-client"
WATCHES: Final = "cronstable-k8s-watch"
"""Their own threads: a renewal must not queue behind a watch that waits."""

LOAD_TIMEOUT: Seconds = 20.0
"""The package takes a second or two to import, and a program that makes credentials may take as long."""

GRACE: Seconds = 1.0
"""A thread gets so much longer than the client's own timeouts."""


class _Answer(Protocol):
    """What urllib3 gives."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    def stream(self, amt: int) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class _Client(Protocol):
    """``kubernetes.client.ApiClient``, as far as we use it."""

    def call_api(self, path: str, method: str, **options: object) -> object: ...


def is_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec(PACKAGE) is not None


async def connect(host: Host, settings: KubernetesSettings) -> LibraryTransport:
    """Load the package and the credentials. Raises ``PluginError`` that says what is missing."""
    if not is_installed():
        raise PluginError(f"cluster.kubernetes.clientLibrary: library, and its package is not installed: {INSTALL}")
    try:
        client = await host.threads.run(partial(_make, settings), timeout=LOAD_TIMEOUT, lane=LANE)
    except TimeoutError:
        raise PluginError(f"cluster.kubernetes: the client library did not load within {LOAD_TIMEOUT:g} s") from None
    return LibraryTransport(host, client)


def _make(settings: KubernetesSettings) -> _Client:
    config = importlib.import_module("kubernetes.config")
    api = importlib.import_module("kubernetes.client")
    configuration = api.Configuration()
    try:
        if settings.kubeconfig is not None:
            config.load_kube_config(config_file=settings.kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except Exception as error:  # noqa: BLE001 - see below
        # The package raises what it likes; its texts name files, and programs that failed.
        raise PluginError(f"cluster.kubernetes: the client library found no credentials: {_brief(error)}") from None
    if settings.api_server is not None:
        configuration.host = settings.api_server
    configuration.retries = False
    return cast("_Client", api.ApiClient(configuration))


class LibraryTransport:
    """``Transport`` over the package, which reads tokens and certificates again by itself."""

    def __init__(self, host: Host, client: _Client) -> None:
        self._host = host
        self._client = client

    async def request(self, method: str, path: str, content: bytes = b"", *, timeout: Seconds) -> HttpResponse:
        """See ``Transport.request``."""

        def call() -> HttpResponse:
            answer = self._call(method, path, content, (timeout, timeout))
            return HttpResponse(answer.status, _lower(answer.headers), answer.data or b"")

        return await self._host.threads.run(call, timeout=timeout + GRACE, lane=LANE)

    @asynccontextmanager
    async def stream(self, path: str, *, timeout: Seconds, lasts: Seconds) -> AsyncIterator[HttpStream]:
        """See ``Transport.stream``. What is left behind when the reader goes away ends by itself after ``lasts``."""
        begun = partial(self._call, "GET", path, b"", (timeout, lasts + timeout))
        answer = await self._host.threads.run(begun, timeout=timeout + GRACE, lane=WATCHES)
        try:
            yield HttpStream(answer.status, _lower(answer.headers), self._lines(answer, lasts + timeout))
        finally:
            answer.close()

    async def _lines(self, answer: _Answer, longest: Seconds) -> AsyncIterator[bytes]:
        pieces, rest = iter(answer.stream(65536)), b""

        def following() -> bytes:
            try:
                return next(pieces, b"")
            except Exception as error:  # noqa: BLE001 - urllib3's, or those below it
                raise OSError(f"the watch broke: {_brief(error)}") from None

        while piece := await self._host.threads.run(following, timeout=longest + GRACE, lane=WATCHES):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line

    def _call(self, method: str, path: str, content: bytes, timeout: tuple[Seconds, Seconds]) -> _Answer:
        """In a thread. Every status is an answer; what is none is an ``OSError``."""
        bare, _, query = path.partition("?")
        try:
            found = self._client.call_api(
                bare,
                method,
                query_params=parse_qsl(query),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=json.loads(content) if content else None,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=timeout,
            )
        except Exception as error:  # noqa: BLE001 - ApiException, or whatever a credential program raises
            return _refusal(error)
        return cast("_Answer", found)


class _Refusal:
    """A status of 300 and more, which the package raises."""

    def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.status, self.headers, self.data = status, headers, data

    def stream(self, amt: int) -> Iterator[bytes]:
        return iter((self.data,))

    def close(self) -> None:
        """Nothing is held."""


def _refusal(error: Exception) -> _Answer:
    status, body, headers = (getattr(error, name, None) for name in ("status", "body", "headers"))
    if not isinstance(status, int) or status == 0:
        name = type(error).__name__
        if "Timeout" in name:
            raise TimeoutError(f"the client library: {name}") from None
        raise OSError(f"the client library: {_brief(error)}") from None
    data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""
    return _Refusal(status, dict(headers.items()) if headers is not None else {}, data)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
