"""Where the API listens: TCP with and without TLS, and unix sockets. A listener that fails is skipped and said."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from aiohttp import web

from cronstable.api import Host
from cronstable.builtin.web.doors import Doors
from cronstable.builtin.web.repeats import HEAD_TIMEOUT, Repeats
from cronstable.builtin.web.settings import Tcp, Tls, Unix, WebSettings

IO_TIMEOUT: Final = 10.0
"""Seconds for reading certificates or making a unix socket."""
BACKLOG: Final = 128
PATIENCE: Final = 35.0
"""Seconds for what is being answered under a certificate that was replaced; commands and streams need less."""


@dataclass(frozen=True, slots=True)
class LoadedTls:
    """A server context and the digest of the files that it was made from."""

    context: ssl.SSLContext
    digest: bytes


@dataclass(frozen=True, slots=True)
class _Open:
    servers: tuple[asyncio.Server, ...]
    inode: int | None = None

    def close(self) -> None:
        """Take no more connections."""
        for server in self.servers:
            server.close()


class Listeners:
    """The listeners of one service. ``open`` may be called again and again: it opens what is not open."""

    def __init__(self, settings: WebSettings, runner: web.BaseRunner, host: Host, repeats: Repeats) -> None:
        self._settings = settings
        self._runner = runner
        self._threads = host.threads
        self._log = host.log
        self._repeats = repeats
        self._doors = Doors(host.clock, host.log)
        self._contexts = repeats.contexts
        self._open: dict[Tcp | Unix, _Open] = {}
        self._said: dict[Tcp | Unix, str] = {}
        self._tls: LoadedTls | None = None

    @property
    def count(self) -> int:
        """How many listeners are open."""
        return len(self._open)

    async def open(self) -> None:
        """Open every listener that is not open; warn of those that cannot be, once per reason."""
        for listen in self._settings.listen:
            if listen in self._open:
                continue
            try:
                self._open[listen] = await (
                    self._open_tcp(listen) if isinstance(listen, Tcp) else self._open_unix(listen)
                )
            except (
                OSError,
                ValueError,
            ) as error:  # ssl.SSLError and TimeoutError are OSErrors; host names may not encode
                reason = str(error) or type(error).__name__
                if self._said.get(listen) != reason:
                    self._log.warning("web: cannot listen on %s: %s; trying again every minute", listen, reason)
                self._said[listen] = reason
            else:
                self._said.pop(listen, None)
                self._log.info("web: listening on %s", listen)

    async def rotate_tls(self) -> None:
        """Open the https listeners anew when the certificate files changed and load; keep the old ones otherwise."""
        tls, old = self._settings.tls, self._tls
        if tls is None or old is None:
            return
        try:
            if await self._threads.run(lambda: _digest(tls), timeout=IO_TIMEOUT, lane="web") == old.digest:
                return
            await self._load_tls(tls)
        except (OSError, ValueError) as error:
            self._log.warning("web: the changed certificate does not load, the old one stays in use: %s", error)
            return
        for listen in [item for item in self._open if isinstance(item, Tcp) and item.tls]:
            self._open.pop(listen).close()
        await self.open()
        await self._end_outdated()

    async def _end_outdated(self) -> None:
        """End the connections under the old certificate: those that wait for a next request now, others as they can.

        One that is still shaking hands is not among them; it ends with its first answer.
        """
        open_now = [] if self._runner.server is None else self._runner.server.connections
        outdated = [one for one in open_now if self._contexts.outdated(one.transport)]
        async with anyio.create_task_group() as ending:
            for one in outdated:
                one.close()  # at once when nothing is asked on it
                ending.start_soon(one.shutdown, PATIENCE)

    def close(self) -> None:
        """Take no more connections."""
        for opened in self._open.values():
            opened.close()

    def remove_sockets(self) -> None:
        """Remove our unix sockets from the file system, unless somebody else has put his own there."""
        for listen, opened in self._open.items():
            if isinstance(listen, Unix) and opened.inode is not None:
                try:
                    if os.lstat(listen.path).st_ino == opened.inode:
                        os.unlink(listen.path)
                except OSError as error:
                    self._log.debug("web: %s was not removed: %s", listen, error)
        self._open.clear()

    async def _open_tcp(self, listen: Tcp) -> _Open:
        context = None
        if listen.tls and self._settings.tls is not None:
            context = (self._tls or await self._load_tls(self._settings.tls)).context
        # The loop finds the addresses of a host and binds to them; it shall accept through a door.
        bound = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, listen.host, listen.port, start_serving=False
        )
        try:
            sockets = [one.dup() for one in bound.sockets]
        finally:
            bound.close()
        opened: list[asyncio.Server] = []
        try:
            for one in sockets:
                opened.append(await self._serve(one, context))
        except OSError:
            for server in opened:
                server.close()
            raise
        finally:
            for one in sockets:
                one.close()
        return _Open(tuple(opened))

    async def _open_unix(self, listen: Unix) -> _Open:
        mode = self._settings.socket_mode
        sock, inode = await self._threads.run(lambda: bind_unix(listen.path, mode), timeout=IO_TIMEOUT, lane="web")
        return _Open((await self._serve(sock),), inode)

    async def _serve(self, bound: socket.socket, context: ssl.SSLContext | None = None) -> asyncio.Server:
        """Accept on ``bound``, which is used up."""
        door = self._doors.door(bound)
        handshake = None if context is None else HEAD_TIMEOUT
        try:
            return await asyncio.get_running_loop().create_server(
                self._connection, sock=door, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake
            )
        except OSError:
            door.close()
            raise

    def _connection(self) -> asyncio.Protocol:
        if self._repeats.ended:  # accepted before the listener was closed; it is refused when it is made
            return self._repeats.before(asyncio.Protocol)
        server = self._runner.server
        if server is None:
            raise RuntimeError("a connection came before the server was set up")
        return self._repeats.before(server)

    async def _load_tls(self, tls: Tls) -> LoadedTls:
        self._tls = await self._threads.run(lambda: load_tls(tls), timeout=IO_TIMEOUT, lane="web")
        self._contexts.now = self._tls.context
        return self._tls


def load_tls(tls: Tls) -> LoadedTls:
    """The server context of these files. Blocks; raises ``OSError`` naming the file that does not load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    digest = _digest(tls)
    try:
        context.load_cert_chain(tls.cert, tls.key, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        raise OSError(f"tls.cert {tls.cert} and tls.key {tls.key} do not load: {error}") from error
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except ssl.SSLError as error:
            raise OSError(f"tls.clientCa {tls.client_ca} does not load: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return LoadedTls(context, digest)


def bind_unix(path: str, mode: int | None) -> tuple[socket.socket, int]:
    """A bound unix socket and its inode, not listening yet. Blocks.

    What a dead process left behind is replaced; a socket that somebody listens on, or a file that is not a socket, is
    an ``OSError``. The mode is set before anybody can connect.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.EEXIST, f"{path} exists and is not a socket")
        if _somebody_listens(path):
            raise OSError(errno.EADDRINUSE, f"another process listens on {path}")
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        if mode is not None:
            os.chmod(path, mode)
        return sock, os.lstat(path).st_ino
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{path}: {error.strerror or error}") from error


def _somebody_listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:  # the queue of a living listener is full
            return True
        return True


def _no_passphrase() -> str:
    """An encrypted key must fail here; OpenSSL would ask on the terminal and stop the daemon."""
    raise ValueError("the key is encrypted, and there is nobody to ask for its passphrase")


def _digest(tls: Tls) -> bytes:
    digest = hashlib.sha256()
    for path in (tls.cert, tls.key, tls.client_ca):
        content = b"" if path is None else Path(path).read_bytes()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()
