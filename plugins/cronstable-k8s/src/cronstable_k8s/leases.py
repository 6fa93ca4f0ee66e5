"""The calls about one Lease, and what the apiserver's answers mean (``coordination.k8s.io/v1``)."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

from cronstable.api import Host, HttpResponse, Json, Seconds, StoreUnavailable
from cronstable_k8s.record import Lease, Malformed, http_date
from cronstable_k8s.transport import Transport

GONE: Final = 410
LONGEST_QUIET: Seconds = 10.0
"""A ``Retry-After`` is honoured up to here; the lease would be lost over a longer one."""

WRITES: Final = frozenset({"POST", "PUT"})


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such Lease. ``at``: the server's clock, wall seconds."""

    at: float | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """The Lease is not any more what the write was built on: nothing was written."""


Found: TypeAlias = Lease | Absent


class Denied(StoreUnavailable):
    """401: another try at once would be answered the same."""


class NotAllowed(StoreUnavailable):
    """403: for good, or for a moment while the apiserver starts."""


class Leases:
    """One Lease, once it is connected. ``timeout``: seconds for one request.

    Raises ``StoreUnavailable`` for all that is no clear answer.
    """

    def __init__(self, host: Host, name: str, *, timeout: Seconds) -> None:
        self._host = host
        self._timeout = timeout
        self.name = name
        self.namespace = ""
        self._transport: Transport | None = None
        self._all = self._one = ""
        self._quiet_until = -math.inf

    def connect(self, transport: Transport, namespace: str) -> None:
        """Say where the Lease is."""
        self._transport = transport
        self.namespace = namespace
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        self._one = f"{self._all}/{quote(self.name, safe='')}"

    async def get(self) -> Found:
        """The Lease as it stands."""
        return self._lease_or_absent(await self._ask("GET", self._one))

    async def create(self, body: Mapping[str, Json]) -> Lease | Conflict:
        """Create it; ``Conflict`` when there is one."""
        answer = await self._ask("POST", self._all, body)
        if answer.status == 409:
            return Conflict()
        if answer.status != 201:
            raise self._unavailable("POST", answer)
        return _lease(answer)

    async def replace(self, body: Mapping[str, Json]) -> Lease | Conflict:
        """Replace the Lease whose uid and resourceVersion ``body`` carries."""
        answer = await self._ask("PUT", self._one, body)
        if answer.status == 409:
            return Conflict()
        if answer.status == 404 and _is_absence(answer, self.name):
            return Conflict()
        if answer.status != 200:
            # Not 201 either: that would be another object than the one we read.
            raise self._unavailable("PUT", answer)
        return _lease(answer)

    @asynccontextmanager
    async def watch(self, version: str, lasts: Seconds) -> AsyncIterator[AsyncIterator[Found]]:
        """What becomes of the Lease after ``version``; it ends after ``lasts`` seconds or when the server wants to.

        Raises ``StoreUnavailable``, also inside.
        """
        wanted = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self.name}",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, math.ceil(lasts))),
        }
        await self._be_quiet()
        try:
            async with self._connected.stream(
                f"{self._all}?{urlencode(wanted)}", timeout=self._timeout, lasts=lasts
            ) as stream:
                if stream.status == 403:
                    raise NotAllowed("a watch is not allowed")
                if stream.status != 200:
                    raise StoreUnavailable(f"a watch was answered with HTTP {stream.status}")
                async with aclosing(_events(stream.lines)) as events:
                    yield events
        except OSError as error:
            raise StoreUnavailable(f"the watch broke: {_text(error)}") from None

    @property
    def _connected(self) -> Transport:
        if self._transport is None:
            raise StoreUnavailable("not connected yet")
        return self._transport

    def _lease_or_absent(self, answer: HttpResponse) -> Found:
        if answer.status == 404 and _is_absence(answer, self.name):
            return Absent(http_date(answer.headers.get("date")))
        if answer.status != 200:
            raise self._unavailable("GET", answer)
        return _lease(answer)

    async def _ask(self, method: str, path: str, body: Mapping[str, Json] | None = None) -> HttpResponse:
        content = b"" if body is None else json.dumps(body).encode()
        await self._be_quiet()
        ambiguous = method in WRITES
        try:
            answer = await self._connected.request(method, path, content, timeout=self._timeout)
        except TimeoutError:
            raise StoreUnavailable(
                f"{method}: no answer from the apiserver within {self._timeout:g} s", ambiguous=ambiguous
            ) from None
        except OSError as error:
            raise StoreUnavailable(f"{method}: {_text(error)}", ambiguous=ambiguous) from None
        if answer.status == 429 or (answer.status >= 500 and "retry-after" in answer.headers):
            pause = min(_seconds(answer.headers.get("retry-after")), LONGEST_QUIET)
            self._quiet_until = self._host.clock.now().boot + pause
        return answer

    async def _be_quiet(self) -> None:
        """Wait out what the apiserver asked for. The caller's deadline goes on meanwhile."""
        pause = self._quiet_until - self._host.clock.now().boot
        if pause > 0:
            await self._host.clock.sleep(pause)

    def _unavailable(self, method: str, answer: HttpResponse) -> StoreUnavailable:
        said = _message(answer)
        text = f"{method}: the apiserver says {answer.status}: {said}"
        if answer.status == 401:
            return Denied(f"{method}: the apiserver does not accept our credentials (401): {said}")
        if answer.status == 403:
            return NotAllowed(f"{method}: not allowed (403): {said}")
        if answer.status == 404 and self.namespace in said:
            text = f"{method}: is there a namespace {self.namespace}? {said}"
        # A 504 may have been carried out, and so may any 5xx that a proxy made up.
        return StoreUnavailable(text, ambiguous=method in WRITES and answer.status >= 500)


async def _events(lines: AsyncIterator[bytes]) -> AsyncGenerator[Found, None]:
    async for line in lines:
        try:
            event = json.loads(line)
            kind, document = event["type"], event["object"]
            if kind in ("ADDED", "MODIFIED"):
                yield Lease.of(document)
            elif kind == "DELETED":
                yield Absent()
            elif kind != "BOOKMARK":
                # ERROR, as with 410 when our version is too old: whoever watches looks again.
                return
        except (ValueError, KeyError, TypeError, RecursionError, Malformed):
            raise StoreUnavailable("a watch was answered with something else") from None


def _lease(answer: HttpResponse) -> Lease:
    try:
        return Lease.of(json.loads(answer.content), http_date(answer.headers.get("date")))
    except (ValueError, RecursionError, Malformed):
        raise StoreUnavailable("the apiserver answered with something that is not a Lease", ambiguous=True) from None


def _is_absence(answer: HttpResponse, name: str) -> bool:
    """A 404 about this very Lease; about a namespace, or a page of some proxy, it is no answer at all."""
    details = _status(answer).get("details")
    return isinstance(details, Mapping) and details.get("kind") == "leases" and details.get("name") == name


def _status(answer: HttpResponse) -> Mapping[str, Json]:
    try:
        document = json.loads(answer.content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, Mapping) and document.get("kind") == "Status" else {}


def _message(answer: HttpResponse) -> str:
    message = _status(answer).get("message")
    return str(message)[:300] if message else answer.content[:100].decode("utf-8", "replace").strip()


def _seconds(text: str | None) -> Seconds:
    try:
        return max(0.0, float(text or 1))
    except ValueError:
        return 1.0


def _text(error: OSError) -> str:
    return str(error) or type(error).__name__
