"""The apiserver through Kubernetes' own client for Python, which knows every way to authenticate (``exec`` and so on).

Blocking calls in threads of our own. The package is imported here only, by name: it has no types.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

from cronstable.api import Host, HttpResponse, HttpStream, PluginError, Seconds
from cronstable_k8s.access import READ_TIMEOUT, RECHECK, SILENT_DISK, Signature, signature_of
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
    def release_conn(self) -> None: ...


class _Pool(Protocol):
    """``urllib3.PoolManager`` as the client has set it up: CA, certificates, proxy."""

    def request(self, method: str, url: str, **options: object) -> _Answer: ...


class _Configuration(Protocol):
    """``kubernetes.client.Configuration``: address, and a token that it renews when it is asked for."""

    host: str

    def auth_settings(self) -> Mapping[str, Mapping[str, str]]: ...


def is_installed() -> bool:
    """Whether the package is there."""
    found = importlib.util.find_spec(PACKAGE)
    # Any folder of that name, such as one of examples, is found as a namespace: it comes from no file.
    return found is not None and found.origin is not None


class Loaded(NamedTuple):
    """A client with its credentials, and what its kubeconfig looked like then."""

    pool: _Pool
    configuration: _Configuration
    signature: Signature


async def connect(host: Host, settings: KubernetesSettings) -> LibraryTransport:
    """Load the package and the credentials. Raises ``PluginError`` that says what is missing."""
    if not is_installed():
        raise PluginError(f"cluster.kubernetes.clientLibrary: library, and its package is not installed: {INSTALL}")
    try:
        loaded = await host.threads.run(partial(make, settings), timeout=LOAD_TIMEOUT, lane=LANE)
    except TimeoutError:
        raise PluginError(f"cluster.kubernetes: the client library did not load within {LOAD_TIMEOUT:g} s") from None
    return LibraryTransport(host, settings, loaded)


def make(settings: KubernetesSettings) -> Loaded:
    """Blocking. Raises ``PluginError``."""
    # Before the load: a file that changes meanwhile then differs at the next look.
    seen = signature(settings)
    config = importlib.import_module("kubernetes.config")
    api = importlib.import_module("kubernetes.client")
    configuration = api.Configuration()
    try:
        if settings.kubeconfig is not None:
            config.load_kube_config(config_file=settings.kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
        pool = api.ApiClient(configuration).rest_client.pool_manager
    except Exception as error:  # noqa: BLE001 - see below
        # The package raises what it likes; its texts name files, and programs that failed.
        raise PluginError(f"cluster.kubernetes: the client library found no credentials: {_brief(error)}") from None
    return Loaded(cast("_Pool", pool), cast("_Configuration", configuration), seen)


def signature(settings: KubernetesSettings) -> Signature:
    """Blocking. What changes when the kubeconfig does."""
    return () if settings.kubeconfig is None else signature_of([settings.kubeconfig])


class LibraryTransport:
    """``Transport`` over the package.

    It reads files again that a kubeconfig names, and a pod's token, but never the kubeconfig itself: ``keep`` does.
    """

    def __init__(self, host: Host, settings: KubernetesSettings, loaded: Loaded) -> None:
        self._host = host
        self._settings = settings
        self._loaded = loaded
        self._complaint = ""

    @property
    def server(self) -> str:
        """The address of the apiserver."""
        # Not written into the configuration: each renewal of a token puts its own address back.
        return self._settings.api_server or self._loaded.configuration.host

    async def keep(self) -> None:
        """Look at the kubeconfig now and then, until cancelled. One that does not load changes nothing."""
        while self._settings.kubeconfig is not None:
            await self._host.clock.sleep(RECHECK)
            await self._refresh()

    async def _refresh(self) -> None:
        run, log = self._host.threads.run, self._host.log
        try:
            now = await run(partial(signature, self._settings), timeout=READ_TIMEOUT, lane=LANE)
            if now == self._loaded.signature:
                return
            self._loaded = await run(partial(make, self._settings), timeout=LOAD_TIMEOUT, lane=LANE)
        except (TimeoutError, PluginError) as error:
            complaint = str(error) if isinstance(error, PluginError) else SILENT_DISK
            if complaint != self._complaint:
                log.warning("cluster: %s; the credentials loaded before stay in use", complaint)
            self._complaint = complaint
            return
        self._complaint = ""
        log.info("cluster: the credentials of cluster.kubernetes were loaded again")

    async def request(self, method: str, path: str, content: bytes = b"", *, timeout: Seconds) -> HttpResponse:
        """See ``Transport.request``."""

        def call() -> HttpResponse:
            answer = self._call(method, path, content, (timeout, timeout))
            try:
                return HttpResponse(answer.status, _lower(answer.headers), answer.data)
            except Exception as error:  # noqa: BLE001 - urllib3's, or those below it
                raise ConnectionResetError(f"the client library: {_brief(error)}") from None
            finally:
                answer.release_conn()

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
        """In a thread, below the package's own requests: those differ from version to version, and try again."""
        urllib3 = importlib.import_module("urllib3")
        loaded = self._loaded
        headers = {"accept": "application/json", "content-type": "application/json"}
        try:
            for one in loaded.configuration.auth_settings().values():
                if one["in"] == "header" and one["value"]:
                    headers[one["key"]] = one["value"]
            return loaded.pool.request(
                method,
                self.server.rstrip("/") + path,
                body=content or None,
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except urllib3.exceptions.NewConnectionError as error:
            raise OSError(f"the client library: {_brief(error)}") from None
        except urllib3.exceptions.TimeoutError as error:
            raise TimeoutError(f"the client library: {_brief(error)}") from None
        except Exception as error:  # noqa: BLE001 - urllib3's, or whatever a credential program raises
            raise OSError(f"the client library: {_brief(error)}") from None


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
