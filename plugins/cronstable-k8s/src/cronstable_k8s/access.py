"""Where the apiserver is and who we are to it, from files that may rotate while we run."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cronstable.api import Host, PluginError, Seconds
from cronstable_k8s import kubeconfig
from cronstable_k8s.kubeconfig import Material, Target
from cronstable_k8s.settings import KubernetesSettings

LANE: Final = "cronstable-k8s"
RECHECK: Seconds = 20.0
"""Between two looks at the files: a rotation counts within the minute, and a token is good for minutes more."""

READ_TIMEOUT: Seconds = 5.0
SILENT_DISK: Final = f"no answer from the disk within {READ_TIMEOUT:g} s"
SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"

Signature: TypeAlias = "tuple[tuple[str, int, int, int], ...]"
"""Path, modification time in ns, size and inode of each file: a swapped symlink changes one of them."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pod has: its environment, and the directory of its service account."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    account: str = SERVICE_ACCOUNT


@dataclass(frozen=True, slots=True)
class _Loaded:
    target: Target
    signature: Signature
    context: ssl.SSLContext | None
    token: str | None


class Access:
    """The apiserver of the settings. ``load`` first; then ``server``, ``context`` and ``token`` are what counts now."""

    def __init__(self, settings: KubernetesSettings, host: Host, around: Surroundings | None = None) -> None:
        self._settings = settings
        self._host = host
        self._around = around if around is not None else Surroundings()
        self._now: _Loaded | None = None
        self._before: str | None = None
        self._complaint = ""
        self._keeps = True

    @property
    def server(self) -> str:
        """The apiserver's URL without a slash at its end."""
        return self._loaded.target.server

    @property
    def context(self) -> ssl.SSLContext | None:
        """For https."""
        return self._loaded.context

    @property
    def token(self) -> str | None:
        """The bearer token, None when there is none."""
        return self._loaded.token

    @property
    def insecure(self) -> bool:
        """The apiserver's certificate is not looked at."""
        return self._loaded.target.insecure

    @property
    def needs_library(self) -> str | None:
        """What in the kubeconfig only the official client understands."""
        return self._loaded.target.needs_library

    @property
    def _loaded(self) -> _Loaded:
        if self._now is None:
            raise PluginError("cluster.kubernetes: the credentials were not loaded")
        return self._now

    async def load(self, *, credentials: bool = True) -> None:
        """Load for the first time. Raises ``PluginError`` that names file and remedy.

        ``credentials`` False: somebody else keeps those; the kubeconfig's namespace is still of interest.
        """
        self._keeps = credentials
        try:
            self._now = await self._read(None)
        except TimeoutError:
            raise PluginError(f"cluster.kubernetes: {SILENT_DISK}") from None

    async def namespace(self) -> str:
        """The Lease's namespace. Raises ``PluginError`` when nothing tells it."""
        settings = self._settings
        if settings.namespace is not None:
            return settings.namespace
        target = self._loaded.target
        if settings.kubeconfig is not None and target.namespace is not None:
            return target.namespace
        path = os.path.join(self._around.account, "namespace")
        try:
            text = await self._host.threads.run(lambda: _text_of(path), timeout=READ_TIMEOUT, lane=LANE)
        except (TimeoutError, PluginError):
            text = ""
        if not text.strip():
            raise PluginError(
                "cluster.kubernetes.leaseNamespace: it is not set, and neither a pod's service account nor the context "
                "of a kubeconfig tells one"
            )
        return text.strip()

    async def keep(self) -> None:
        """Look at the files now and then, until cancelled."""
        while self._keeps:
            await self._host.clock.sleep(RECHECK)
            await self.refresh()

    async def refresh(self) -> None:
        """Load changed files. Files that do not load, as half-written ones, change nothing and are tried again."""
        before = self._loaded
        try:
            now = await self._host.threads.run(
                lambda: signature_of(self._paths(before.target)), timeout=READ_TIMEOUT, lane=LANE
            )
            if now == before.signature:
                return
            self._now = await self._read(before)
        except (TimeoutError, PluginError) as error:
            complaint = str(error) if isinstance(error, PluginError) else SILENT_DISK
            if complaint != self._complaint:
                self._host.log.warning("cluster: %s; the credentials loaded before stay in use", complaint)
            self._complaint = complaint
            return
        self._complaint = ""
        if before.token != self._now.token:
            self._before = before.token
        self._host.log.info("cluster: the credentials of cluster.kubernetes were loaded again")

    async def other_token(self) -> bool:
        """The token was refused: is there another one? A file may have changed, or have changed to half a token."""
        refused = self.token
        await self.refresh()
        if self.token == refused and self._before is not None and self._now is not None:
            self._now = _Loaded(self._now.target, self._now.signature, self._now.context, self._before)
            self._before = None
        return self.token != refused

    # -- in a thread

    async def _read(self, before: _Loaded | None) -> _Loaded:
        return await self._host.threads.run(lambda: self._make(before), timeout=READ_TIMEOUT, lane=LANE)

    def _make(self, before: _Loaded | None) -> _Loaded:
        target = self._target()
        if not self._keeps:
            return _Loaded(target, (), None, None)
        # Before the load: a file that changes meanwhile then differs at the next look.
        signature = signature_of(self._paths(target))
        context = None
        if before is not None and _without(target.token, before.signature) == _without(target.token, signature):
            # A token alone is no reason to give up open connections.
            context = before.context
        elif target.server.startswith("https://"):
            context = _context(target)
        token = None
        if target.token:
            token = target.token.data if target.token.path is None else _token_of(target.token.path)
        return _Loaded(target, signature, context, token)

    def _paths(self, target: Target) -> list[str]:
        found = [one.path for one in (target.ca, target.cert, target.key, target.token)]
        return [path for path in (self._settings.kubeconfig, *found) if path is not None]

    def _target(self) -> Target:
        settings = self._settings
        if settings.kubeconfig is not None:
            target = kubeconfig.parse(_text_of(settings.kubeconfig), settings.kubeconfig)
        else:
            account = self._around.account
            target = Target(
                server=settings.api_server or self._server_of_pod(),
                ca=Material(path=os.path.join(account, "ca.crt")),
                token=Material(path=os.path.join(account, "token")),
            )
        if settings.api_server is None:
            return target
        kept = {name: getattr(target, name) for name in ("ca", "cert", "key", "token", "insecure", "namespace")}
        return Target(server=settings.api_server, needs_library=target.needs_library, **kept)

    def _server_of_pod(self) -> str:
        environ = self._around.environ
        name, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not name:
            raise PluginError(
                "cluster.kubernetes: this is no pod (KUBERNETES_SERVICE_HOST is not set): run it in one, or name a "
                "kubeconfig"
            )
        return f"https://[{name}]:{port}" if ":" in name else f"https://{name}:{port}"


def _context(target: Target) -> ssl.SSLContext:
    ca = target.ca
    try:
        context = ssl.create_default_context(cafile=ca.path, cadata=ca.data)
    except (OSError, ValueError) as error:
        raise PluginError(f"the CA {ca.path or 'in the kubeconfig'} cannot be used: {_reason(error)}") from None
    if target.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if target.cert:
        _load_pair(context, target.cert, target.key)
    return context


def _load_pair(context: ssl.SSLContext, cert: Material, key: Material) -> None:
    """``ssl`` takes a client certificate from files only; what came inline is in one of our own for a moment."""
    temporary: list[str] = []
    try:
        paths = [one.path or _written(one.data or "", temporary) for one in (cert, key)]
        context.load_cert_chain(*paths)
    except (OSError, ValueError) as error:
        both = " with ".join(one.path or "the kubeconfig's" for one in (cert, key))
        raise PluginError(f"the client certificate {both} cannot be used: {_reason(error)}") from None
    finally:
        for path in temporary:
            os.unlink(path)


def _written(text: str, temporary: list[str]) -> str:
    descriptor, path = tempfile.mkstemp(prefix="cronstable-")
    temporary.append(path)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
    return path


def _token_of(path: str) -> str:
    token = _text_of(path).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise PluginError(f"{path} holds no token")
    return token


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise PluginError(f"{path} cannot be read: {_reason(error)}") from None


def signature_of(paths: list[str]) -> Signature:
    """What changes when one of these files does."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            raise PluginError(f"{path} cannot be read: {_reason(error)}") from None
        found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _without(token: Material, signature: Signature) -> Signature:
    return tuple(one for one in signature if one[0] != token.path)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not a certificate or key"
    return error.strerror if isinstance(error, OSError) and error.strerror else "it is not text of the right sort"
