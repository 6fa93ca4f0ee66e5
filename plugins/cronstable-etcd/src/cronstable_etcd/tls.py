"""The TLS context for https endpoints, made in one place and made again when its files change."""

from __future__ import annotations

import os
import ssl
from typing import Final, TypeAlias

from cronstable.api import Host, PluginError, Seconds
from cronstable_etcd.settings import TlsFiles

LANE: Final = "cronstable-etcd"
RECHECK: Seconds = 30.0
"""Between two looks at the files: twice within the minute after which a rotation must count."""

READ_TIMEOUT: Seconds = 5.0

Signature: TypeAlias = "tuple[tuple[str, int, int, int], ...]"
"""Path, modification time in ns, size and inode of each file: a swapped symlink changes one of them."""


class Tls:
    """Certificates on disk and the context made of them. ``context`` is None while nothing is configured.

    ``where``: the section that names them, for messages.
    """

    def __init__(self, files: TlsFiles, host: Host, where: str = "cluster.etcd") -> None:
        self._files = files
        self._where = f"{where}.tls"
        self._next_look = 0.0
        self._host = host
        self._loaded: Signature | None = None
        self._complaint = ""
        self.context: ssl.SSLContext | None = None

    async def load(self) -> None:
        """Load for the first time. Raises ``PluginError`` that names the file."""
        if self._files:
            try:
                self._loaded, self.context = await self._read()
            except TimeoutError:
                raise PluginError(self._silent_disk) from None

    async def keep(self) -> None:
        """Look at the files now and then, until cancelled."""
        while self._files:
            await self._host.clock.sleep(RECHECK)
            await self.refresh()

    async def look_now_and_then(self) -> None:
        """As ``keep`` does, for whoever has no task: to be called before each request."""
        boot = self._host.clock.now().boot
        if self._files and boot >= self._next_look:
            self._next_look = boot + RECHECK
            await self.refresh()

    async def refresh(self) -> None:
        """Load changed files. Files that do not load, as half-written ones, change nothing and are tried again."""
        try:
            now = await self._host.threads.run(self._signature, timeout=READ_TIMEOUT, lane=LANE)
            if now == self._loaded:
                return
            self._loaded, self.context = await self._read()
        except (TimeoutError, PluginError) as error:
            complaint = str(error) if isinstance(error, PluginError) else self._silent_disk
            if complaint != self._complaint:
                self._host.log.warning("cluster: %s; the certificates loaded before stay in use", complaint)
            self._complaint = complaint
            return
        self._complaint = ""
        self._host.log.info("cluster: the certificates of %s were loaded again", self._where)

    @property
    def _silent_disk(self) -> str:
        return f"{self._where}: no answer from the disk within {READ_TIMEOUT:g} s"

    async def _read(self) -> tuple[Signature, ssl.SSLContext]:
        return await self._host.threads.run(self._make, timeout=READ_TIMEOUT, lane=LANE)

    def _make(self) -> tuple[Signature, ssl.SSLContext]:
        # Before the load: a file that changes meanwhile then differs at the next look.
        signature = self._signature()
        files = self._files
        try:
            context = ssl.create_default_context(cafile=files.ca)
        except (OSError, ValueError) as error:
            raise PluginError(f"{self._where}.ca: {files.ca} cannot be used: {_reason(error)}") from None
        if files.cert is not None:
            try:
                context.load_cert_chain(files.cert, files.key)
            except (OSError, ValueError) as error:
                both = f"{files.cert} with {files.key}"
                raise PluginError(f"{self._where}.cert: {both} cannot be used: {_reason(error)}") from None
        return signature, context

    def _signature(self) -> Signature:
        found = []
        for path in (self._files.ca, self._files.cert, self._files.key):
            if path is not None:
                try:
                    status = os.stat(path)
                except (OSError, ValueError) as error:
                    raise PluginError(f"{self._where}: {path} cannot be read: {_reason(error)}") from None
                found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not a certificate or key"
    return error.strerror if isinstance(error, OSError) and error.strerror else "it is not a certificate or key"
