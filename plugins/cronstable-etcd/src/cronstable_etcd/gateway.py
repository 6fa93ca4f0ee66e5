"""One etcd cluster through the JSON gateway of its members: which member to ask, as whom, and what errors mean."""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import anyio

from cronstable.api import Host, HttpStreams, InvalidSettings, Json, Seconds, SecretSource, StoreUnavailable
from cronstable_etcd import wire
from cronstable_etcd.tls import Tls

UNAUTHENTICATED: Final = 16
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
INVALID_ARGUMENT: Final = 3
FAILED_PRECONDITION: Final = 9
DENIED: Final = frozenset({INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED})
"""gRPC codes of an answer that another try at once would not change."""

ELSEWHERE: Final = frozenset({4, 8, 13, 14})
"""gRPC codes (deadline exceeded, resource exhausted, internal, unavailable) that another member may not answer."""

STALE_TOKEN: Final = ("invalid auth token", "user name is empty", "revision of auth store is old")
"""What etcd says with other codes when it means: authenticate again."""

TRY_TWICE_EVERY: Seconds = 5.0

COMMON_NAME: Final = "CommonName of client sending a request against gateway"


class Refused(Exception):
    """etcd understood and said no. ``code``: gRPC's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Denied(StoreUnavailable):
    """etcd answered, and does not let this node do it."""


class _TryElsewhere(Exception):
    """This member gave no usable answer; ``emptied``: it hung up after the request was sent."""

    def __init__(self, message: str, *, emptied: bool = False) -> None:
        super().__init__(message)
        self.emptied = emptied


class _BadToken(Exception):
    """The request was not looked at: the token is dead."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a member answered. ``at``: its clock then, wall seconds from the ``Date`` header, None when it sent none."""

    body: Mapping[str, Json]
    at: float | None


@dataclass(frozen=True, slots=True)
class Credentials:
    """An etcd user. The password is read each time it is needed, so that a rotated one counts."""

    username: str
    password: SecretSource


class Gateway:
    """Calls to a cluster. ``post_timeout``: seconds for one request to one member.

    ``where``: the section that describes it, for messages. ``watch_files``: nobody else looks after ``tls``.

    A member that fails is left for the next one, and the next call begins where the last one ended. Every request may
    be sent again: whoever makes one knows its own effect by a nonce. Raises ``StoreUnavailable`` when no member gave a
    usable answer, ``Refused`` when one said no.
    """

    def __init__(
        self,
        host: Host,
        endpoints: Sequence[str],
        *,
        post_timeout: Seconds,
        tls: Tls,
        credentials: Credentials | None = None,
        where: str = "cluster.etcd",
        watch_files: bool = False,
    ) -> None:
        self._host = host
        self._endpoints = tuple(endpoints)
        self._post_timeout = post_timeout
        self._tls = tls
        self._credentials = credentials
        self._where = where
        self._watch_files = watch_files
        self._current = 0
        self._token: str | None = None
        self._open = False
        """The server said that it knows no authentication."""
        self._once_until = -math.inf
        self._authenticating = anyio.Lock()

    async def call(self, path: str, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """POST ``body`` and give what came back, out of its ``result`` where the gateway streams."""
        return (await self.ask(path, body)).body

    async def ask(self, path: str, body: Mapping[str, Json]) -> Reply:
        """As ``call``, with the clock of whoever answered."""
        if self._watch_files:
            await self._tls.look_now_and_then()
        failures: dict[int, str] = {}
        again = True
        while True:
            number = self._next(failures)
            endpoint = self._endpoints[number]
            try:
                return await self._ask(endpoint, path, body)
            except _BadToken as error:
                if not again:
                    raise StoreUnavailable(f"{endpoint} refuses a token that it has just given: {error}") from None
                again = False
            except _TryElsewhere as error:
                if error.emptied and again and self._may_try_twice():
                    # Some builds hang up on a dead token; a pooled connection may also have died while it was idle.
                    self._token, again = None, False
                    continue
                failures[number] = f"{endpoint}: {error}"
                if len(failures) == len(self._endpoints):
                    raise StoreUnavailable("; ".join(failures.values()), ambiguous=True) from None
                self._current = self._next(failures)

    def _next(self, failures: Mapping[int, str]) -> int:
        """The member to ask: the one that answered last, or the first after it that this call has not tried.

        Calls may overlap, and one that fails must not lead another past the only member that answers.
        """
        number = self._current
        while number in failures:
            number = (number + 1) % len(self._endpoints)
        return number

    def _may_try_twice(self) -> bool:
        """Not each time: a member that does nothing but hang up is not to be asked twice as often."""
        boot = self._host.clock.now().boot
        if boot < self._once_until:
            return False
        self._once_until = boot + TRY_TWICE_EVERY
        return True

    @asynccontextmanager
    async def watch(self, request: Mapping[str, Json]) -> AsyncIterator[AsyncIterator[Mapping[str, Json]]]:
        """The messages of a watch, from the member that was asked last. Raises ``StoreUnavailable``, also inside."""
        http, endpoint = self._host.http, self._endpoints[self._current]
        if not isinstance(http, HttpStreams):
            raise StoreUnavailable("this host's HTTP client has no streams")
        content = json.dumps({"create_request": dict(request)}).encode()
        try:
            async with (
                http.stream(
                    "POST",
                    f"{endpoint}/v3/watch",
                    headers=self._headers(),
                    content=content,
                    timeout=self._post_timeout,
                    tls=self._context(endpoint),
                ) as stream,
                aclosing(self._messages(stream.lines)) as messages,
            ):
                yield messages
        except OSError as error:
            raise StoreUnavailable(f"{endpoint}: {_text(error)}") from None

    async def _messages(self, lines: AsyncIterator[bytes]) -> AsyncGenerator[Mapping[str, Json], None]:
        async for line in lines:
            try:
                yield _result(wire.document(line))
            except wire.Malformed as error:
                raise StoreUnavailable(f"a watch was answered with something else: {error}") from None
            except Refused as error:
                raise StoreUnavailable(f"a watch was refused: {error}") from None

    async def _ask(self, endpoint: str, path: str, body: Mapping[str, Json]) -> Reply:
        if self._credentials is not None and self._token is None and not self._open:
            async with self._authenticating:
                if self._token is None and not self._open:
                    await self._authenticate(endpoint, self._credentials)
        token = self._token
        try:
            return await self._post(endpoint, path, body)
        except Refused as error:
            if self._credentials is not None and _is_stale(error):
                self._open = False
                if self._token == token:
                    # Else another call has got a new one meanwhile.
                    self._token = None
                raise _BadToken(str(error)) from None
            raise

    async def _authenticate(self, endpoint: str, credentials: Credentials) -> None:
        try:
            password = await credentials.password.reveal(self._host)
        except InvalidSettings as error:
            raise StoreUnavailable(f"{self._where}.password: {error}") from None
        try:
            body: dict[str, Json] = {"name": credentials.username, "password": password}
            token = (await self._post(endpoint, "/v3/auth/authenticate", body)).body.get("token")
        except Refused as error:
            if error.code == FAILED_PRECONDITION:
                self._open = True
                self._host.log.warning("cluster: etcd has no authentication enabled: username and password go unused")
                return
            sort = Denied if error.code in DENIED else StoreUnavailable
            raise sort(f"{endpoint} does not accept the user {credentials.username}: {error}") from None
        if not isinstance(token, str) or not token:
            raise _TryElsewhere("it authenticated without giving a token")
        self._token = token

    async def _post(self, endpoint: str, path: str, body: Mapping[str, Json]) -> Reply:
        try:
            answer = await self._host.http.request(
                "POST",
                endpoint + path,
                headers=self._headers(),
                content=json.dumps(body).encode(),
                timeout=self._post_timeout,
                tls=self._context(endpoint),
            )
        except TimeoutError:
            raise _TryElsewhere(f"no answer within {self._post_timeout:g} s") from None
        except OSError as error:
            raise _TryElsewhere(_text(error), emptied=isinstance(error, ConnectionResetError)) from None
        first = answer.content.lstrip().split(b"\n", 1)[0]
        try:
            found = _result(wire.document(first))
        except wire.Malformed as error:
            if answer.status == 401:
                raise Refused("HTTP 401", UNAUTHENTICATED) from None
            if COMMON_NAME.encode() in first:
                raise Refused(_explained(first.decode("utf-8", "replace")), INVALID_ARGUMENT) from None
            raise _TryElsewhere(f"HTTP {answer.status}: {error}", emptied=not first) from None
        except Refused as error:
            if error.code in ELSEWHERE or answer.status >= 500:
                raise _TryElsewhere(str(error)) from None
            if answer.status == 401:
                raise Refused(str(error), UNAUTHENTICATED) from None
            raise
        if answer.status != 200:
            raise _TryElsewhere(f"HTTP {answer.status}")
        return Reply(found, _date(answer.headers.get("date")))

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            # As it is: etcd wants no scheme in front of it.
            headers["authorization"] = self._token
        return headers

    def _context(self, endpoint: str) -> ssl.SSLContext | None:
        return self._tls.context if endpoint.startswith("https://") else None


def _result(body: Mapping[str, Json]) -> Mapping[str, Json]:
    """What is inside, plain or streamed. Raises ``Refused`` for an error in either form, whatever the status."""
    error = body.get("error")
    if error is not None:
        details = error if isinstance(error, Mapping) else body
        message = details.get("message") or (error if isinstance(error, str) else "an error without a message")
        raise Refused(_explained(str(message)), wire.number(details.get("grpc_code", details.get("code"))))
    result = body.get("result")
    return result if isinstance(result, Mapping) else body


def _date(text: str | None) -> float | None:
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _is_stale(error: Refused) -> bool:
    return error.code == UNAUTHENTICATED or any(text in str(error) for text in STALE_TOKEN)


def _explained(message: str) -> str:
    if COMMON_NAME in message:
        return f"{message} (with auth on, etcd's gateway takes no client certificate that has a common name)"
    return message


def _text(error: OSError) -> str:
    return str(error) or type(error).__name__
