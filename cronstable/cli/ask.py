"""Asking a running node: one request or a stream, with a clear word when it does not answer."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import quote, urlsplit

import click

from cronstable.core.clock import Seconds
from cronstable.core.job import Json

PATIENCE: Final[Seconds] = 10.0
"""How long a node may be silent."""
LONGEST_ACT: Final[Seconds] = 40.0
"""How long it may take to do something: the node itself gives up after 30 s (504)."""
STREAM_SILENCE: Final[Seconds] = 45.0
"""How long a stream may be silent: the node sends a comment every 15 s."""
LONGEST_ANSWER: Final = 64 << 20
"""Bytes; the longest real answer, 10,000 decisions, has a few MiB."""
LONGEST_TOKEN: Final = 64 << 10
"""Bytes of a token file: a device such as /dev/zero never ends."""
EVERYWHERE: Final = frozenset({"0.0.0.0", "::", "*"})
"""Hosts that say 'listen on every address'; to be reached on this machine."""

Opener: TypeAlias = Callable[[Seconds], http.client.HTTPConnection]
"""A connection, not opened yet, on which nothing may take longer than this."""


class NoAnswer(click.ClickException):
    """The node cannot be asked, or says no: the reason on stderr, exit code 1."""

    exit_code = 1


class Refusal(NoAnswer):
    """The node answers that it will not: ``status`` is 4xx or 5xx."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Lost(NoAnswer):
    """There is no connection, or it broke."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream of events. ``id``: what to go on after; empty when it has none."""

    event: str
    data: dict[str, Json]
    id: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: Seconds) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
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
        return self._object(*self._exchange("GET", path))

    def get_rows(self, path: str) -> list[dict[str, Json]]:
        """The list of JSON objects at ``path``; ``NoAnswer`` for anything else."""
        status, body = self._exchange("GET", path)
        rows = _parsed(body)
        if status != http.HTTPStatus.OK or not isinstance(rows, list):
            self._object(status, body)
            raise NoAnswer(self._strange(status))
        return [row for row in rows if isinstance(row, dict)]

    def get_bytes(self, path: str, kind: str) -> bytes:
        """What is at ``path``, which is of that media type; ``NoAnswer`` for anything else."""
        status, body = self._exchange("GET", path, accept=kind)
        if status != http.HTTPStatus.OK:
            self._object(status, body)
        return body

    def post(self, path: str, body: dict[str, Json] | None = None) -> dict[str, Json]:
        """Ask the node to do something; what it says. ``Refusal`` when it does not."""
        content = b"" if body is None else json.dumps(body).encode("ascii")
        return self._object(*self._exchange("POST", path, content, LONGEST_ACT))

    def stream(self, path: str, after: str = "", then: Seconds | None = None) -> Generator[Message, None, None]:
        """The messages of a stream, from the one after the id ``after`` on, until the node ends it.

        Raises ``Lost`` when the connection breaks, and ``TimeoutError`` after ``STREAM_SILENCE`` without a byte; with
        ``then``, once a message came, after so many seconds.
        """
        connection = self.open(PATIENCE)
        headers = self._headers("text/event-stream") | ({"Last-Event-ID": after} if after else {})
        try:
            # Closed, and not left to be collected: io then closes it and drops what that raises, a Ctrl-C as well.
            wire, answer = self._begin(connection, "GET", path, b"", headers)
            with closing(answer):
                if answer.status != http.HTTPStatus.OK:
                    self._object(answer.status, answer.read(LONGEST_ANSWER))
                    raise NoAnswer(self._strange(answer.status))
                wire.settimeout(STREAM_SILENCE)
                with closing(_messages(answer)) as messages:
                    for message in messages:
                        yield message
                        if then is not None:
                            wire.settimeout(then)
        except (ConnectionError, http.client.HTTPException) as error:
            raise Lost(f"{self.label}: the connection broke: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def _exchange(
        self, method: str, path: str, body: bytes = b"", patience: Seconds = PATIENCE, accept: str = "application/json"
    ) -> tuple[int, bytes]:
        connection = self.open(patience)
        try:
            _, answer = self._begin(connection, method, path, body, self._headers(accept))
            with closing(answer):
                return answer.status, answer.read(LONGEST_ANSWER)
        except TimeoutError:
            raise Lost(f"{self.label} does not answer within {patience:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise Lost(self._unreachable(error)) from None
        finally:
            connection.close()

    def _begin(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[socket.socket, http.client.HTTPResponse]:
        try:
            connection.request(method, self.prefix + path, body=body or None, headers=headers)
            # The connection lets go of it when the answer is the last one, as every stream is.
            wire = connection.sock
            return wire, connection.getresponse()
        except TimeoutError:
            raise Lost(f"{self.label} does not answer within {connection.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise Lost(self._unreachable(error)) from None

    def _headers(self, accept: str) -> dict[str, str]:
        return {"Accept": accept} | ({} if self.token is None else {"Authorization": f"Bearer {self.token}"})

    def _object(self, status: int, body: bytes) -> dict[str, Json]:
        document = _parsed(body)
        if not isinstance(document, dict):
            raise NoAnswer(self._strange(status))
        if status != http.HTTPStatus.OK:
            raise Refusal(self._refusal(status, document), status)
        return document

    def _strange(self, status: int) -> str:
        return f"{self.label} answers {status} without a JSON object: is this the API of a cronstable 2?"

    def _unreachable(self, error: Exception) -> str:
        hint = "; is the daemon running?" if isinstance(error, ConnectionRefusedError | FileNotFoundError) else ""
        return f"{self.label} cannot be asked: {error or type(error).__name__}{hint}"

    def _refusal(self, status: int, document: dict[str, Json]) -> str:
        said = document.get("error", f"status {status}")
        hint = "; --token-file names a file with a token" if status == http.HTTPStatus.UNAUTHORIZED else ""
        return f"{self.label}: {said}{hint}"


def job_path(job: str, rest: str = "") -> str:
    """The path of a job's resource; a name may hold anything."""
    return f"/jobs/{quote(job, safe='')}{rest}"


def _parsed(body: bytes) -> Json:
    try:
        found: Json = json.loads(body)
    except ValueError:
        return None
    return found


def _messages(answer: http.client.HTTPResponse) -> Generator[Message, None, None]:
    """Messages as they come (HTML standard, 9.2.6; our data is one line); comments only keep the connection."""
    event, data, last = "message", "", ""
    while line := answer.readline(LONGEST_ANSWER):
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data = value
        elif name == "id":
            last = value
        elif not name and not value and data:
            found = _parsed(data.encode())
            yield Message(event, found if isinstance(found, dict) else {}, last)
            event, data = "message", ""


def node_at(address: str, token: str | None = None) -> Node:
    """The node at ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:///PATH``; ``ValueError`` for anything else."""
    url = urlsplit(address)
    if url.scheme == "unix" and url.path:
        return node_on_socket(url.path, token)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{address!r} is not http://HOST:PORT, https://HOST:PORT or unix:///PATH")
    host, port = _reachable(url.hostname), url.port

    def connect(timeout: Seconds) -> http.client.HTTPConnection:
        if url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context())

    return Node(f"{url.scheme}://{url.netloc.rpartition('@')[2]}", connect, url.path.rstrip("/"), token)


def node_on_socket(path: str, token: str | None = None) -> Node:
    """The node that listens on the unix socket ``path``."""
    return Node(path, lambda timeout: _UnixConnection(path, timeout), token=token)


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
