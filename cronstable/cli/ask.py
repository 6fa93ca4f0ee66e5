"""Asking a running node: where it listens, and one request with a clear word when it does not answer."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import click

from cronstable.core.clock import Seconds
from cronstable.core.job import Json

PATIENCE: Final[Seconds] = 10.0
"""How long a node may be silent."""
LONGEST_ANSWER: Final = 64 << 20
"""Bytes; the longest real answer, 10,000 decisions, has a few MiB."""
LONGEST_TOKEN: Final = 64 << 10
"""Bytes of a token file: a device such as /dev/zero never ends."""
EVERYWHERE: Final = frozenset({"0.0.0.0", "::", "*"})
"""Hosts that say 'listen on every address'; to be reached on this machine."""

Opener: TypeAlias = Callable[[], http.client.HTTPConnection]


class NoAnswer(click.ClickException):
    """The node cannot be asked, or says no: the reason on stderr, exit code 1."""

    exit_code = 1


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class Node:
    """A node to ask. ``label`` names it in messages; ``prefix``: what stands before each path of the API."""

    label: str
    open: Opener = field(repr=False)
    prefix: str = ""
    token: str | None = field(default=None, repr=False)

    def get(self, path: str) -> dict[str, Json]:
        """The JSON object at ``path``; ``NoAnswer`` for anything else."""
        headers = {"Accept": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        status, body = self._exchange(path, headers)
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise NoAnswer(f"{self.label} answers {status} without a JSON object: is this the API of a cronstable 2?")
        if status != http.HTTPStatus.OK:
            raise NoAnswer(self._refusal(status, document))
        return document

    def _exchange(self, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = self.open()
        try:
            connection.request("GET", self.prefix + path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LONGEST_ANSWER)
        except TimeoutError:
            raise NoAnswer(f"{self.label} does not answer within {PATIENCE:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{self.label} cannot be asked: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def _refusal(self, status: int, document: dict[str, Json]) -> str:
        said = document.get("error", f"status {status}")
        hint = "; --token-file names a file with a token" if status == http.HTTPStatus.UNAUTHORIZED else ""
        return f"{self.label}: {said}{hint}"


def node_at(address: str, token: str | None = None) -> Node:
    """The node at ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:///PATH``; ``ValueError`` for anything else."""
    url = urlsplit(address)
    if url.scheme == "unix" and url.path:
        return node_on_socket(url.path, token)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{address!r} is not http://HOST:PORT, https://HOST:PORT or unix:///PATH")
    host, port = _reachable(url.hostname), url.port

    def connect() -> http.client.HTTPConnection:
        if url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=PATIENCE)
        return http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=ssl.create_default_context())

    return Node(f"{url.scheme}://{url.netloc.rpartition('@')[2]}", connect, url.path.rstrip("/"), token)


def node_on_socket(path: str, token: str | None = None) -> Node:
    """The node that listens on the unix socket ``path``."""
    return Node(path, lambda: _UnixConnection(path), token=token)


def read_token(path: str) -> str:
    """The token in the first line of a file; ``NoAnswer`` when there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(LONGEST_TOKEN).decode("ascii").strip()
    except OSError as error:
        raise NoAnswer(f"the token file {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise NoAnswer(f"the token file {path} holds something that is no token") from None
    if not text or not text.isprintable():
        raise NoAnswer(f"the token file {path} holds {'something that is no token' if text else 'no token'}")
    return text


def _reachable(host: str) -> str:
    if host not in EVERYWHERE:
        return host
    return "::1" if host == "::" else "127.0.0.1"
